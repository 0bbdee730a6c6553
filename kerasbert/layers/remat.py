"""Gradient checkpointing: recompute chunks of a batch in the backward pass to save memory."""

import keras
from keras import ops

from kerasbert.backend.layers import one_by_one

# Offset between random states of chunks, more than a chunk draws.
_STRIDE = 4096


def pure_call(call, variables, states):
    """Make `call` a pure function: `(values of variables, inputs) -> (outputs, new states)`.

    Args:
        call: function of tensors that uses variables.
        variables: list of `keras.Variable`.
        states: list of those of the variables that `call` changes.
    """

    def pure(values, *args, **kwargs):
        pairs = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=pairs) as scope:
            outputs = call(*args, **kwargs)
            return outputs, [scope.get_current_value(state) for state in states]

    return pure


def in_chunks(call, layers, inputs, size):
    """Compute `call`, and its gradient, on B rows in chunks of `size` rows.

    The backward pass recomputes each chunk, so that only its activations are in memory (Gao et al.
    2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv
    2101.06983).

    Args:
        call: function from a dict of tensors to a tensor. It must treat rows independently.
        layers: list of the layers that `call` uses.
        inputs: dict of tensors (B, ...).
        size: rows per chunk.

    >>> layer = keras.layers.Dense(2)
    >>> x = {"x": ops.ones((5, 3))}
    >>> tuple(in_chunks(lambda x: layer(x["x"]), [layer], x, size=2).shape)
    (5, 2)
    """
    variables = list({id(v): v for layer in layers for v in layer.variables}.values())
    weights = {id(weight) for layer in layers for weight in layer.weights}
    states = [variable for variable in variables if id(variable) not in weights]
    pure = pure_call(call, variables, [])
    values = [v.value if id(v) in weights else ops.copy(v) for v in variables]

    count = ops.shape(next(iter(inputs.values())))[0]
    chunks = -(-count // size)
    rows = ops.minimum(ops.arange(chunks * size), count - 1)

    def parted(x):
        x = ops.take(x, rows, axis=0)
        return ops.reshape(x, (chunks, size, *ops.shape(x)[1:]))

    def moved(state, number):
        """Return a chunk's generator state, with an advanced counter (the second number)."""
        steps = ops.cast(ops.stack([0 * number, _STRIDE * number]), state.dtype)
        return state + steps

    def of_chunk(chunk):
        part, number = chunk
        own = [
            value if id(v) in weights else moved(value, number)
            for v, value in zip(variables, values, strict=True)
        ]
        # As an argument, `part` would need gradients of token ids on TensorFlow.
        return keras.remat(lambda *values: pure(values, part)[0])(*own)

    parts = {name: parted(x) for name, x in inputs.items()}
    outputs = one_by_one(of_chunk, (parts, ops.arange(chunks, dtype="int32")))
    for state in states:
        state.assign(moved(ops.convert_to_tensor(state), ops.cast(chunks, "int32")))
    outputs = ops.reshape(outputs, (chunks * size, *outputs.shape[2:]))
    return outputs[:count]

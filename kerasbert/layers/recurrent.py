"""Layers of recurrent encoder-decoders with attention (2015).

B batch, S source tokens, T target tokens, E embedding width, D width, K rows per source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.block import only_blocks_remat
from kerasbert.layers.token_layers import TokenDropout

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

CELLS = ("lstm", "gru")
ATTENTIONS = ("additive", "dot", "general", "concat")
_LAYERS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
_CELLS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}


@keras.saving.register_keras_serializable(package="kerasbert")
class RecurrentEncoder(ChecksKeywords, keras.layers.Layer):
    """Stack of LSTM or GRU layers that skips padding and also returns the final states.

    Args:
        num_layers: int.
        units: int. D, an even number with `bidirectional`.
        cell: "lstm" or "gru".
        bidirectional: whether each layer reads in both directions, with D / 2 units each.
        dropout: dropout between the layers.

    Example:

    >>> encoder = RecurrentEncoder(num_layers=2, units=8)
    >>> outputs, states = encoder(np.ones((2, 5, 4), "float32"), padding_mask=np.ones((2, 5)))
    >>> tuple(outputs.shape), [tuple(state.shape) for state in states]
    ((2, 5, 8), [(2, 8), (2, 8), (2, 8), (2, 8)])
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        cell: str = "lstm",
        bidirectional: bool = True,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("cell", cell, CELLS)
        self.num_layers = num_layers
        self.units = units
        self.cell = cell
        self.bidirectional = bidirectional
        self.dropout = dropout
        self.dropout_layer = TokenDropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape: Any, padding_mask_shape: Any = None) -> None:
        names = ("forward", "backward") if self.bidirectional else ("forward",)
        self.rnns = []
        for i in range(self.num_layers):
            pair = []
            for name in names:
                rnn = _LAYERS[self.cell](
                    self.units // len(names),
                    return_sequences=True,
                    return_state=True,
                    go_backwards=name == "backward",
                    use_cudnn=False,  # See `BiLSTM`.
                    dtype=self.dtype_policy,
                    name=f"{name}_{i}",
                )
                rnn.build((*inputs_shape[:-1], inputs_shape[-1] if i == 0 else self.units))
                pair.append(rnn)
            self.rnns.append(pair)
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def call(self, inputs: Tensor, padding_mask: Tensor, training: bool = False) -> Any:
        """Compute the outputs of the last layer and the final states of all layers.

        Args:
            inputs: floats (B, S, E).
            padding_mask: (B, S), true or 1 at tokens.
            training: bool.

        Returns:
            `(outputs, states)`: (B, S, D), and a tuple of tensors (B, D), each layer's output and,
            for LSTMs, cell state, with concatenated directions.
        """
        mask = ops.cast(padding_mask, "bool")
        x, states = inputs, []
        for i, pair in enumerate(self.rnns):
            x = self.dropout_layer(x, training=training) if i else x
            found = [rnn(x, mask=mask) for rnn in pair]
            parts = [outputs for outputs, *_ in found]
            if self.bidirectional:
                parts[1] = ops.flip(parts[1], axis=1)
            x = ops.concatenate(parts, axis=-1)
            states += [
                ops.concatenate(both, axis=-1) for both in zip(*(last for _, *last in found))
            ]
        return x, tuple(states)

    def compute_output_spec(
        self, inputs: Tensor, padding_mask: Tensor, training: bool = False
    ) -> Any:
        def spec(*shape):
            return keras.KerasTensor((inputs.shape[0], *shape), dtype=self.compute_dtype)

        count = self.num_layers * len(_state_names(self.cell))
        return spec(inputs.shape[1], self.units), tuple(spec(self.units) for _ in range(count))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "units": self.units,
            "cell": self.cell,
            "bidirectional": self.bidirectional,
            "dropout": self.dropout,
        }


def _state_names(cell):
    return ("output", "memory") if cell == "lstm" else ("output",)


@keras.saving.register_keras_serializable(package="kerasbert")
class AttentionDecoder(ChecksKeywords, keras.layers.Layer):
    """Stack of LSTM or GRU cells with attention to the outputs of an encoder.

    With the last cell's output h, an encoder output m, and weights W, U and v, attention scores
    are:

    - "additive": v · tanh(W h + U m), with the previous output h. The context (the encoder's
      outputs, averaged by the softmax of the scores) is an input of the first cell, as in Bahdanau
      et al.
    - "dot": h · m; "general": h · W m; "concat": v · tanh(W h + U m), with the current output h.
      The previous output vector is an input of the first cell (input feeding), as in Luong et al.

    The output vector is tanh(W [h; context]).

    Args:
        num_layers: int. Cells.
        units: int. D, the width of cells, encoder outputs and output vectors.
        cell: "lstm" or "gru".
        attention: "additive", "dot", "general" or "concat".

    Example:

    >>> decoder = AttentionDecoder(num_layers=1, units=8, cell="gru")
    >>> memory = np.ones((2, 5, 8), "float32")
    >>> outputs, weights = decoder(
    ...     np.ones((2, 3, 4), "float32"), memory, np.ones((2, 5)), [memory[:, 0]]
    ... )
    >>> tuple(outputs.shape), tuple(weights.shape)
    ((2, 3, 8), (2, 3, 5))

    Source: Bahdanau et al. 2015, arXiv 1409.0473; Luong et al. 2015, arXiv 1508.04025.
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        cell: str = "lstm",
        attention: str = "additive",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("cell", cell, CELLS)
        check_choice("attention", attention, ATTENTIONS)
        self.num_layers = num_layers
        self.units = units
        self.cell = cell
        self.attention = attention
        self.attends_first = attention == "additive"

    def build(self, inputs_shape: Any, *others: Any, **kwargs: Any) -> None:
        dtype, width = self.dtype_policy, self.units

        def dense(name, rows, activation=None):
            layer = keras.layers.Dense(
                width, activation=activation, use_bias=False, dtype=dtype, name=name
            )
            layer.build((None, rows))
            return layer

        self.cells = []
        for i in range(self.num_layers):
            cell = _CELLS[self.cell](width, dtype=dtype, name=f"cell_{i}")
            cell.build((None, inputs_shape[-1] + width if i == 0 else width))
            self.cells.append(cell)
        self.key = self.query = self.score = None
        if self.attention != "dot":
            self.key = dense("key", width)
        if self.attention in ("additive", "concat"):
            self.query = dense("query", width)
            self.score = self.add_weight(name="score", shape=(width,), initializer="random_normal")
        self.output_dense = dense("output", 2 * width, "tanh")
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    # === One step ===

    def read_memory(self, memory: Tensor, memory_mask: Tensor) -> dict[str, Any]:
        """Prepare the encoder's outputs (B, S, D), with a mask (B, S), for `step`."""
        memory = ops.cast(memory, self.compute_dtype)
        keys = memory if self.key is None else self.key(memory)
        return {"keys": keys, "memory": memory, "memory_mask": ops.cast(memory_mask, "bool")}

    def fresh_states(self, states: Any) -> tuple[Any, ...]:
        """Return the decoder's states before the first token, from those of the encoder."""
        states = [ops.cast(state, self.compute_dtype) for state in states]
        if not self.attends_first:
            states.append(ops.zeros_like(states[0]))  # The output vector that is fed.
        return tuple(states)

    def step(self, x: Tensor, states: Any, read: Any) -> Any:
        """Decode one token.

        Args:
            x: (B * K, E). Embeddings of the tokens; K consecutive rows share one source.
            states: tuple of tensors (B * K, D).
            read: the result of `read_memory`.

        Returns:
            `(outputs, weights, states)`, with outputs (B * K, D) and weights (B * K, S).
        """
        size = len(_state_names(self.cell))
        inner = [states[i : i + size] for i in range(0, size * self.num_layers, size)]
        if self.attends_first:
            context, weights = self._attend(inner[-1][0], read)
            fed = context
        else:
            fed = states[-1]
        x, after = ops.concatenate([x, fed], axis=-1), []
        for cell, own in zip(self.cells, inner):
            x, own = cell(x, list(own))
            after += own if isinstance(own, (list, tuple)) else [own]
        if not self.attends_first:
            context, weights = self._attend(x, read)
        outputs = self.output_dense(ops.concatenate([x, context], axis=-1))
        return outputs, weights, tuple(after if self.attends_first else [*after, outputs])

    def _attend(self, query, read):
        """Map queries (B * K, D) to contexts (B * K, D) and float32 weights (B * K, S)."""
        keys, memory = read["keys"], read["memory"]
        batch, length, width = ops.shape(keys)
        query = query if self.query is None else self.query(query)
        query = ops.reshape(query, (batch, -1, width))  # (B, K, D)
        if self.score is None:
            scores = ops.matmul(query, ops.swapaxes(keys, 1, 2))  # (B, K, S)
        else:
            hidden = ops.tanh(query[:, :, None] + keys[:, None])  # (B, K, S, D)
            scores = ops.sum(hidden * ops.cast(self.score, hidden.dtype), axis=-1)
        scores = ops.where(read["memory_mask"][:, None], ops.cast(scores, "float32"), -1e9)
        weights = ops.softmax(scores)
        context = ops.matmul(ops.cast(weights, memory.dtype), memory)
        return ops.reshape(context, (-1, width)), ops.reshape(weights, (-1, length))

    # === All steps ===

    def call(
        self,
        inputs: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        states: Any,
        training: bool = False,
    ) -> Any:
        """Decode target tokens by teacher forcing.

        Args:
            inputs: floats (B, T, E). Embeddings of the targets, from the start token.
            memory: floats (B, S, D). The encoder's outputs.
            memory_mask: (B, S), true or 1 at tokens.
            states: tuple of tensors (B, D), the final states of a `RecurrentEncoder`.
            training: bool.

        Returns:
            `(outputs, weights)`: (B, T, D), and the attention weights, float32 (B, T, S).
        """
        read = self.read_memory(memory, memory_mask)
        states = self.fresh_states(states)

        def step(states, xs):
            outputs, weights, states = self.step(xs[0], states, read)
            return states, (outputs, weights)

        like = (states[0], ops.cast(read["memory"][:, :, 0], "float32"))
        xs = [ops.moveaxis(ops.cast(inputs, self.compute_dtype), 1, 0)]
        found = backend.scan(step, states, xs, like=like)
        return tuple(ops.moveaxis(one, 0, 1) for one in found)

    def states_after(self, inputs: Tensor, count: Any, states: Any, read: Any) -> Any:
        """Return the states after the first `count` of the tokens (B, T, E).

        Args:
            inputs: floats (B, T, E).
            count: int tensor.
            states: the result of `fresh_states`.
            read: the result of `read_memory`.
        """

        def step(now, xs):
            after = self.step(xs[0], now, read)[2]
            after = tuple(ops.where(xs[1] < count, new, old) for new, old in zip(after, now))
            return after, after

        places = ops.arange(ops.shape(inputs)[1], dtype="int32")
        xs = [ops.moveaxis(ops.cast(inputs, self.compute_dtype), 1, 0), places]
        return tuple(one[-1] for one in backend.scan(step, states, xs))

    def compute_output_spec(
        self,
        inputs: Tensor,
        memory: Tensor,
        memory_mask: Tensor,
        states: Any,
        training: bool = False,
    ) -> Any:
        batch, length = inputs.shape[:2]
        outputs = keras.KerasTensor((batch, length, self.units), dtype=self.compute_dtype)
        weights = keras.KerasTensor((batch, length, memory.shape[1]), dtype="float32")
        return outputs, weights

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "units": self.units,
            "cell": self.cell,
            "attention": self.attention,
        }

"""Training of Transformer-XL on consecutive segments of a text, with its memory.

B streams, T tokens per segment, M memory tokens, L layers, D width.
"""

import keras
from keras import ops

from kerasbert.lineage.memory import remember


class StreamTrainer(keras.Model):
    """Model whose batches continue each other: it keeps the memory between steps.

    Args:
        model: a `TransformerXLLM`.
        streams: int. B, the size of every batch.
        memory_length: int. M. The memory begins with zeros, as in transformers.
    """

    def __init__(self, model, streams, memory_length):
        super().__init__(dtype=model.dtype_policy, name="stream_trainer")
        self.model = model
        backbone = model.backbone
        self.memory_length = memory_length
        self.memory = self.add_weight(
            name="memory",
            shape=(streams, backbone.num_layers, memory_length, backbone.hidden_dim),
            initializer="zeros",
            trainable=False,
            dtype=self.compute_dtype,
            autocast=False,
        )
        self.built = True

    def call(self, inputs, training=False):
        """Map token ids (B, T) to log-probabilities (B, T, V), and update the memory."""
        memory = ops.convert_to_tensor(self.memory)
        # Keras' call context passes `training` on to the layers.
        inputs = {"token_ids": inputs, "memory": memory}
        outputs, states = self.model.backbone.outputs_and_states(inputs)
        self.memory.assign(remember(states, memory, self.memory_length))
        return self.model.lm_head(outputs)


class FreshMemory(keras.callbacks.Callback):
    """Callback that empties the memory before every epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        memory = self.model.memory
        memory.assign(ops.zeros(memory.shape, memory.dtype))


def in_segments(ids, streams, segment):
    """Split ids into parallel streams, as rows for batches that continue each other.

    Row `i * streams + j` is segment `i` of stream `j`.

    Args:
        ids: ints (N,), at least `streams * segment + 1`.
        streams, segment: ints.

    Returns:
        `(inputs, following)`, ints (steps * streams, segment).

    >>> import numpy as np
    >>> inputs, following = in_segments(np.arange(10), streams=2, segment=2)
    >>> inputs.tolist(), following.tolist()
    ([[0, 1], [4, 5], [2, 3], [6, 7]], [[1, 2], [5, 6], [3, 4], [7, 8]])
    """
    steps = (len(ids) - 1) // (streams * segment)
    count = steps * streams * segment

    def rows(part):
        parts = part[:count].reshape(streams, steps, segment)
        return parts.swapaxes(0, 1).reshape(-1, segment)

    return rows(ids), rows(ids[1:])

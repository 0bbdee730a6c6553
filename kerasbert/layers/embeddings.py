"""Position embeddings: learned, sinusoidal and rotary.

B batch, T tokens, D width, N heads, H head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.backend.layers import at_least_float32, positions
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class PositionEmbedding(ChecksKeywords, keras.layers.Layer):
    """Learned position embeddings, which the caller adds to the token embeddings.

    RoBERTa uses `offset=2`: its table has two more rows than positions.

    Args:
        sequence_length: number of positions.
        offset: table row of the first position.
        initializer: the initializer of the table.

    Example:

    >>> tuple(PositionEmbedding(sequence_length=8)(np.zeros((2, 5, 4), "float32")).shape)
    (1, 5, 4)
    """

    def __init__(
        self,
        sequence_length: int,
        offset: int = 0,
        initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sequence_length = sequence_length
        self.offset = offset
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape: Any) -> None:
        self.position_embeddings = self.add_weight(
            name="embeddings",
            shape=(self.sequence_length + self.offset, inputs_shape[-1]),
            initializer=self.initializer,
        )

    def call(self, inputs: Tensor, start_index: Any = None, position_ids: Tensor = None) -> Tensor:
        """Return the embeddings of T positions, broadcastable to the inputs (B, T, D).

        Positions start at 0 or `start_index`, an int or a tensor, or are `position_ids` (B, T).
        """
        length = ops.shape(inputs)[1]
        check_length(length, self.sequence_length)
        if position_ids is not None:
            return ops.take(self.position_embeddings, position_ids + self.offset, axis=0)
        if start_index is not None:
            rows = ops.arange(length, dtype="int32") + (self.offset + start_index)
            return ops.expand_dims(ops.take(self.position_embeddings, rows, axis=0), 0)
        return positions(self.position_embeddings, self.offset, inputs)

    def compute_output_shape(
        self, inputs_shape: Any, start_index_shape: Any = None, position_ids_shape: Any = None
    ) -> Any:
        return inputs_shape if position_ids_shape is not None else (1, *inputs_shape[1:])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "sequence_length": self.sequence_length,
            "offset": self.offset,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class SinusoidalPositions(ChecksKeywords, keras.layers.Layer):
    """Fixed sinusoidal position embeddings, which the caller adds to the token embeddings.

    Sines come first, then cosines, as in Marian and tensor2tensor, instead of interleaved as in the
    paper.

    Args:
        sequence_length: number of positions.

    Example:

    >>> vectors = SinusoidalPositions(sequence_length=8)(np.zeros((2, 5, 4), "float32"))
    >>> tuple(vectors.shape), [round(float(x), 2) for x in vectors[0, 1]]
    ((1, 5, 4), [0.84, 0.01, 0.54, 1.0])

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """

    def __init__(self, sequence_length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequence_length = sequence_length

    def build(self, inputs_shape: Any) -> None:
        width = inputs_shape[-1]
        if width % 2:
            raise ValueError(
                f"hidden_dim={width} must be even: sinusoidal positions pair sines with cosines."
            )
        rates = 10000.0 ** (-np.arange(0, width, 2) / width)
        angles = np.arange(self.sequence_length)[:, None] * rates  # (positions, D / 2)
        self._table = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype("float32")

    def call(self, inputs: Tensor, start_index: Any = None) -> Tensor:
        """Return the embeddings (1, T, D) of T positions, from 0 or from `start_index` on."""
        length = ops.shape(inputs)[1]
        check_length(length, self.sequence_length)
        rows = ops.arange(length, dtype="int32")
        if start_index is not None:
            rows = rows + start_index
        table = ops.convert_to_tensor(self._table, dtype=self.compute_dtype)
        return ops.expand_dims(ops.take(table, rows, axis=0), 0)

    def compute_output_shape(self, inputs_shape: Any, start_index_shape: Any = None) -> Any:
        return (1, *inputs_shape[1:])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sequence_length": self.sequence_length}


def check_length(length, limit):
    """Raise a `ValueError` if a static length exceeds the number of positions."""
    if isinstance(length, int) and length > limit:
        raise ValueError(
            f"The input has {length} tokens per row, but the model has only {limit} positions; "
            f"set the preprocessor's sequence_length to {limit} or less."
        )


def restarted_positions(segment_ids):
    """Return positions (B, T) that restart at the second text of a row.

    It begins at the first token of another segment than the first.

    Args:
        segment_ids: ints (B, T).

    >>> [int(x) for x in restarted_positions(np.array([[3, 3, 1, 1, 1]]))[0]]
    [0, 1, 0, 1, 2]
    """
    segment_ids = ops.cast(segment_ids, "int32")
    places = ops.cumsum(ops.ones_like(segment_ids), axis=1) - 1
    differs = ops.cumsum(ops.cast(segment_ids != segment_ids[:, :1], "int32"), axis=1) > 0
    first = ops.sum(ops.cast(ops.logical_not(differs), "int32"), axis=1, keepdims=True)
    return ops.where(differs, places - first, places)


def rotate(x, base, start_index=None, factor=1.0):
    """Apply rotary position embedding (RoFormer, arXiv 2104.09864) in its half-split form.

    Args:
        x: tensor (B, T, N, H), H even.
        base: base of the wavelengths.
        start_index: int or tensor. Position of the first token; `None` means 0.
        factor: divisor of positions (position interpolation, arXiv 2306.15595).

    Returns:
        (B, T, N, H), in the dtype of `x`.
    """
    width = x.shape[-1]
    length = ops.shape(x)[1]
    wide = at_least_float32(x)
    dtype = keras.backend.standardize_dtype(wide.dtype)
    frequency = 1.0 / base ** (np.arange(0, width, 2, dtype=dtype) / width)
    frequency = (frequency / factor).astype(dtype)
    places = ops.arange(length, dtype=dtype)
    if start_index is not None:
        places = places + ops.cast(start_index, dtype)
    angle = ops.expand_dims(places, -1)  # (T, 1)
    angle = angle * ops.convert_to_tensor(frequency)  # (T, H/2)
    angle = ops.expand_dims(ops.concatenate([angle, angle], axis=-1), (0, 2))  # (1, T, 1, H)
    first, second = ops.split(wide, 2, axis=-1)
    turned = ops.concatenate([-second, first], axis=-1)
    return ops.cast(wide * ops.cos(angle) + turned * ops.sin(angle), x.dtype)

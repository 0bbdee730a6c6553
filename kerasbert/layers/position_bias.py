"""Biases of attention scores by relative position: learned buckets and ALiBi.

B batch, T tokens, S queries, K keys, D width, N heads, R distances, C blocks of W tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.base.errors import check_whole
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.relative_attention import relative_shift

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

# Distances are precomputed up to this one; no text is longer.
_FARTHEST = 2**20


class _PositionBias(ChecksKeywords, keras.layers.Layer):
    """Base class of biases by relative position; subclasses define `between`."""

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def call(self, inputs: Tensor, attention_mask: Tensor = None) -> Tensor:
        """Compute the argument `bias` of `SelfAttention`.

        Args:
            inputs: (B, T, D), used for its shape only.
            attention_mask: the output of `AttentionMask`, used for its shape only.

        Returns:
            (1, N, T, T). For a block mask (B, C, 1, W, K), the bias of any block (1, 1, N, W, K).
        """
        if attention_mask is not None and len(attention_mask.shape) == 5:
            block, seen = ops.shape(attention_mask)[3:]
            # The keys of a block begin before its first token.
            return ops.expand_dims(self.between(block, seen, (seen - block) // 2), 0)
        length = ops.shape(inputs)[1]
        return self.between(length, length)

    def between(self, queries: int, keys: int, first: Any = 0) -> Tensor:
        """Compute the bias (1, N, S, K) of consecutive queries and keys.

        Args:
            queries: number of queries S.
            keys: number of keys K.
            first: int or tensor. Position of the first query, relative to the first key.
        """
        raise NotImplementedError

    def compute_output_spec(self, inputs: Tensor, attention_mask: Tensor = None) -> Any:
        length = inputs.shape[1]
        return keras.KerasTensor((1, self.num_heads, length, length), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="kerasbert")
class RelativePositionBias(_PositionBias):
    """Learned bias of attention scores by bucketed relative position, shared by all layers.

    Half of a direction's buckets are for one distance each; the others grow logarithmically up to
    `max_distance`, and the last has all larger ones.

    Args:
        num_heads: int.
        num_buckets: number of buckets of both directions together.
        max_distance: distance from which on the last bucket is used.
        bidirectional: whether keys after a query have own buckets, instead of that of distance 0
            (causal attention).
        initializer: the initializer of the table.

    Example:

    >>> layer = RelativePositionBias(num_heads=2, num_buckets=8, max_distance=16)
    >>> tuple(layer(np.ones((3, 5, 8), "float32")).shape)
    (1, 2, 5, 5)

    Source: Raffel et al. 2020, arXiv 1910.10683, section 2.1 (T5); used by MPNet.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, **kwargs)
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape: Any) -> None:
        check_whole("num_buckets", self.num_buckets, 4 if self.bidirectional else 2)
        near = self.num_buckets // (4 if self.bidirectional else 2)
        check_whole("max_distance", self.max_distance, near + 1)
        self._reach = min(self.max_distance, _FARTHEST)
        distances = np.arange(-self._reach, self._reach + 1)
        self._buckets = buckets_of_distances(
            distances, self.num_buckets, self.max_distance, self.bidirectional
        )
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets, self.num_heads),
            initializer=self.initializer,
        )

    def between(self, queries: int, keys: int, first: Any = 0) -> Tensor:
        # In the order for `relative_shift`: query 0's distance 0 is in column `queries`.
        far = first + queries - ops.arange(queries + keys, dtype="int32")  # (R,)
        far = ops.clip(far, -self._reach, self._reach) + self._reach
        buckets = ops.take(ops.convert_to_tensor(self._buckets, dtype="int32"), far, axis=0)
        rows = ops.take(ops.convert_to_tensor(self.embeddings), buckets, axis=0)  # (R, N)
        rows = ops.cast(ops.transpose(rows), self.compute_dtype)[None, :, None]
        # Gathering the bias of each pair would have a slow gradient.
        shape = (1, self.num_heads, queries, queries + keys)
        return relative_shift(ops.broadcast_to(rows, shape), keys)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "initializer": keras.initializers.serialize(self.initializer),
        }


def buckets_of_distances(distances, num_buckets, max_distance, bidirectional):
    """Return the bucket of each distance of a query from a key; see `RelativePositionBias`.

    Args:
        distances: ints (R,), positive for keys before the query.

    >>> buckets_of_distances(np.array([-9, -1, 0, 1, 2, 3, 9]), 8, 16, True).tolist()
    [7, 5, 0, 1, 2, 2, 3]
    """
    buckets = np.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        buckets = (distances < 0) * num_buckets
        far = np.abs(distances)
    else:
        far = np.maximum(distances, 0)
    near = num_buckets // 2
    # As when the checkpoints were trained.
    ratio = np.log(np.maximum(far, near).astype("float32") / np.float32(near))
    ratio = ratio / np.float32(math.log(max_distance / near)) * np.float32(num_buckets - near)
    large = np.minimum(near + ratio.astype("int64"), num_buckets - 1)
    return buckets + np.where(far < near, far, large)


@keras.saving.register_keras_serializable(package="kerasbert")
class AlibiBias(_PositionBias):
    """Attention with linear biases (ALiBi): scores fall linearly with the distance.

    Each head has its own slope. Distances are symmetric, also for bidirectional attention. There
    are no weights and no maximum length.

    Args:
        num_heads: int.

    Example:

    >>> layer = AlibiBias(num_heads=2)
    >>> [float(value) for value in layer(np.ones((1, 3, 8), "float32"))[0, 0, 0]]
    [0.0, -0.0625, -0.125]

    Source: Press et al. 2022, arXiv 2108.12409; used by Jina-BERT v2, arXiv 2310.19923.
    """

    def between(self, queries: int, keys: int, first: Any = 0) -> Tensor:
        places = first + ops.arange(queries, dtype="int32")
        far = ops.abs(places[:, None] - ops.arange(keys, dtype="int32")[None])  # (S, K)
        slopes = ops.convert_to_tensor(alibi_slopes(self.num_heads), dtype=self.compute_dtype)
        return slopes[None, :, None, None] * ops.cast(-far, self.compute_dtype)[None, None]


def alibi_slopes(num_heads):
    """Return the slope of each head: 2 ** (-8 / N), 2 ** (-16 / N), ... for a power of two.

    Other numbers of heads have the slopes of the next lower power of two, then every second of
    twice that power.

    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    lower = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / lower * np.arange(1, lower + 1))
    more = 2.0 ** (-4 / lower * np.arange(1, 2 * lower + 1, 2))
    return np.concatenate([slopes, more[: num_heads - lower]])


def shared_bias(encoder, initializer, dtype):
    """Return the layer for an encoder's `position_bias`.

    Raises:
        ValueError: if the encoder's settings conflict with a bias.
    """
    kind = encoder.position_bias
    if encoder.position_embedding == "disentangled":
        raise ValueError(
            f"position_bias={kind!r} does not combine with position_embedding='disentangled', "
            "which adds terms of its own; use another position_embedding, or position_bias=None."
        )
    if kind == "alibi":
        return AlibiBias(encoder.num_heads, dtype=dtype, name="position_bias")
    check_whole("bucket_size", encoder.bucket_size, 2)
    return RelativePositionBias(
        encoder.num_heads,
        encoder.bucket_size * (1 if encoder.is_causal else 2),
        encoder.max_relative_positions or encoder.max_sequence_length,
        bidirectional=not encoder.is_causal,
        initializer=initializer,
        dtype=dtype,
        name="position_bias",
    )

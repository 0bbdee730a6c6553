"""Disentangled attention of DeBERTa.

B batch, T tokens, D width, N heads, H head width, R = 2T + 1 distances, U rows of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.backend.attention import heads_attention, split_heads
from kerasbert.backend.layers import is_known, matmul_transposed, of_tokens
from kerasbert.base.errors import check_whole
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.families.settings import has_bias
from kerasbert.layers.attention import SelfAttention, projection
from kerasbert.layers.relative_attention import relative_shift
from kerasbert.layers.token_layers import TokenDropout, TokenNorm

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

# Distances are precomputed up to this one; no text is longer.
_FARTHEST = 2**20


@keras.saving.register_keras_serializable(package="kerasbert")
class DistanceEmbedding(ChecksKeywords, keras.layers.Layer):
    """Learned relative position embeddings, shared by all layers.

    Args:
        max_distance: int. Larger distances share the embedding of this one.
        bucket_size: int or None. The table has `2 * bucket_size` rows: one per distance up to half
            of `bucket_size`, then logarithmic buckets. `None` means a row per distance.
        layer_norm_epsilon: float.
        use_bias: whether the norm has a bias.
        normalized: whether the embeddings are normalized; those of the first DeBERTa are not.
        initializer: the initializer of the table.

    Example:

    >>> layer = DistanceEmbedding(max_distance=8, bucket_size=4)
    >>> found = layer(np.ones((2, 3, 6), "float32"))
    >>> tuple(found["distances"].shape), tuple(found["places"].shape)
    ((7, 6), (7,))

    Source: He et al. 2021, arXiv 2006.03654, section 3.1; the buckets are DeBERTa-v2's.
    """

    def __init__(
        self,
        max_distance: int,
        bucket_size: int | None = None,
        layer_norm_epsilon: float = 1e-7,
        use_bias: bool = True,
        initializer: Any = "glorot_uniform",
        normalized: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.normalized = normalized
        self.max_distance = max_distance
        self.bucket_size = bucket_size
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape: Any) -> None:
        span = self.bucket_size or self.max_distance
        self._reach = min(max(self.max_distance, span), _FARTHEST)
        self._rows = rows_of_distances(self._reach, self.max_distance, self.bucket_size)
        self.embeddings = self.add_weight(
            name="embeddings", shape=(2 * span, inputs_shape[-1]), initializer=self.initializer
        )
        if not self.normalized:
            return
        self.layer_norm = TokenNorm(
            epsilon=self.layer_norm_epsilon,
            center=self.use_bias,
            dtype=self.dtype_policy,
            name="layer_norm",
        )
        self.layer_norm.build((1, None, inputs_shape[-1]))

    def call(self, inputs: Tensor) -> Tensor:
        """Look up the embeddings of all distances in a text.

        Args:
            inputs: (B, T, D), used for its shape only.

        Returns:
            A dict for `DisentangledAttention`: `distances` (U, D), and `places`, ints (R,), the row
            of each distance T, T - 1, ... -T.
        """
        length = ops.shape(inputs)[1]
        table = ops.convert_to_tensor(self.embeddings)
        if is_known(length):
            far = np.clip(length - np.arange(2 * length + 1), -self._reach, self._reach)
            places = self._rows[far + self._reach]
            first = int(places[-1])
            rows = table[first : int(places[0]) + 1]  # A larger distance has a larger row number.
            places = ops.convert_to_tensor(places - first, dtype="int32")
        else:
            far = ops.clip(
                length - ops.arange(2 * length + 1, dtype="int32"), -self._reach, self._reach
            )
            known = ops.convert_to_tensor(self._rows, dtype="int32")
            rows = ops.take(table, ops.take(known, far + self._reach, axis=0), axis=0)
            places = ops.arange(2 * length + 1, dtype="int32")
        if self.normalized:
            rows = self.layer_norm(rows[None])[0]
        return {"distances": ops.cast(rows, self.compute_dtype), "places": places}

    def compute_output_spec(self, inputs: Tensor) -> Any:
        return {
            "distances": keras.KerasTensor((None, inputs.shape[-1]), dtype=self.compute_dtype),
            "places": keras.KerasTensor((None,), dtype="int32"),
        }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "bucket_size": self.bucket_size,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "use_bias": self.use_bias,
            "normalized": self.normalized,
            "initializer": keras.initializers.serialize(self.initializer),
        }


def rows_of_distances(reach, max_distance, bucket_size=None):
    """Return the table row of each distance from -reach to reach; see `DistanceEmbedding`.

    >>> rows_of_distances(6, max_distance=8, bucket_size=4).tolist()
    [1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]
    """
    distance = np.arange(-reach, reach + 1)
    span = bucket_size or max_distance
    if bucket_size is not None:
        # As when the checkpoints were trained.
        middle = bucket_size // 2
        far = np.maximum(np.abs(distance), middle).astype("float32") / np.float32(middle)
        most = np.log(np.float32(max(max_distance - 1, middle + 1) / middle))
        ranges = np.ceil(np.log(far) / most * np.float32(middle - 1)) + middle
        is_near = np.abs(distance) <= middle
        distance = np.where(is_near, distance, np.sign(distance) * ranges).astype("int64")
    return np.clip(distance + span, 0, 2 * span - 1)


@keras.saving.register_keras_serializable(package="kerasbert")
class DisentangledAttention(SelfAttention):
    """Multi-head attention of DeBERTa, for `TransformerBlock(attention=...)`.

    Scores add content-to-content, content-to-position and position-to-content terms.

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: dropout of the attention probabilities in training.
        use_bias: bool.
        position_dropout: dropout of the distance embeddings.
        shares_projections: whether distance and token embeddings share the projections; not in the
            first DeBERTa, whose keys have no bias.
        kernel_initializer: an initializer.

    Example:

    >>> x = np.ones((1, 3, 8), "float32")
    >>> tuple(DisentangledAttention(num_heads=2)(x, **DistanceEmbedding(max_distance=4)(x)).shape)
    (1, 3, 8)

    Source: He et al. 2021, arXiv 2006.03654, section 3.1.
    """

    def __init__(
        self,
        num_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        position_dropout: float = 0.0,
        kernel_initializer: Any = "glorot_uniform",
        shares_projections: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, dropout, use_bias, None, kernel_initializer, **kwargs)
        self.position_dropout = position_dropout
        self.shares_projections = shares_projections

    def build(self, inputs_shape: Any) -> None:
        if self.shares_projections:
            super().build(inputs_shape)
        else:
            self._build_own_projections(inputs_shape)
        self.position_dropout_layer = TokenDropout(
            self.position_dropout, dtype=self.dtype_policy, name="position_dropout"
        )

    def _build_own_projections(self, inputs_shape):
        width, dtype = inputs_shape[-1], self.dtype_policy
        self.qkv = projection(self, inputs_shape, 3 * width, "qkv", use_bias=False)
        self.query_bias = self.value_bias = None
        if self.use_bias:
            self.query_bias = _Bias(dtype=dtype, name="query")
            self.value_bias = _Bias(dtype=dtype, name="value")
            self.query_bias.build(inputs_shape)
            self.value_bias.build(inputs_shape)
        self.position_key = projection(self, inputs_shape, width, "position_key", use_bias=False)
        self.position_query = projection(self, inputs_shape, width, "position_query", self.use_bias)
        self.output_dense = projection(self, inputs_shape, width, "output", self.use_bias)
        self.dropout_layer = TokenDropout(self.dropout, dtype=dtype, name="dropout")

    def _heads(self, x):
        """Split (B, T, D) into heads: (B, T, N, H)."""
        return of_tokens(x, self.num_heads, x.shape[-1] // self.num_heads)

    def _projections(self, inputs, rows):
        """Compute queries, keys and values of tokens, and queries and keys of distances."""
        if self.shares_projections:
            tokens = split_heads(self.qkv(inputs), self.num_heads, None)
            far_query, far_key, _ = split_heads(self.qkv(rows), self.num_heads, None)
            return *tokens, far_query, far_key
        query, key, value = ops.split(self.qkv(inputs), 3, axis=-1)
        if self.use_bias:
            query, value = self.query_bias(query), self.value_bias(value)
        parts = query, key, value, self.position_query(rows), self.position_key(rows)
        return tuple(map(self._heads, parts))

    def call(
        self,
        inputs: Tensor,
        distances: Tensor = None,
        places: Tensor = None,
        attention_mask: Tensor = None,
        training: bool = False,
        return_attention_scores: bool = False,
    ) -> Tensor:
        """Apply disentangled attention.

        Args:
            inputs: (B, T, D).
            distances, places: the outputs (U, D) and (R,) of `DistanceEmbedding`.
            attention_mask: bool, broadcastable to (B, N, T, T), true where attention is allowed.
            training: bool.
            return_attention_scores: bool.

        Returns:
            (B, T, D). With `return_attention_scores`, also the attention probabilities
            (B, N, T, T).
        """
        rows = distances[None]
        if training:
            rows = self.position_dropout_layer(rows, training=True)
        query, key, value, far_query, far_key = self._projections(inputs, rows)
        # A sum of three terms is divided by sqrt(3 * H); the kernel divides by sqrt(H).
        query = query * ops.cast(3**-0.5, query.dtype)
        scale = ops.cast(query.shape[-1] ** -0.5, query.dtype)
        by_query = _by_distance(query * scale, ops.take(far_key, places, axis=1))
        far_query = far_query * ops.cast(3**-0.5, query.dtype) * scale
        by_key = _by_distance(key, ops.take(far_query, ops.flip(places), axis=1))
        rate = self.dropout if training else 0.0
        outputs, maps = heads_attention(
            query,
            key,
            value,
            attention_mask,
            rate,
            self.dropout_layer.seed_generator if rate else None,
            return_attention_scores,
            bias=by_query + ops.swapaxes(by_key, 2, 3),
        )
        outputs = self.output_dense(of_tokens(outputs, inputs.shape[-1]))
        return (outputs, maps) if return_attention_scores else outputs

    def compute_output_spec(
        self, inputs: Tensor, distances: Tensor = None, places: Tensor = None, **kwargs: Any
    ) -> Any:
        return super().compute_output_spec(inputs, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in ("rotary_base", "rotary_factor", "rotary_value", "num_key_value_heads"):
            del config[name]
        return {
            **config,
            "position_dropout": self.position_dropout,
            "shares_projections": self.shares_projections,
        }


class _Bias(keras.layers.Layer):
    """A bias alone, for a part of a projection."""

    def build(self, inputs_shape):
        self.bias = self.add_weight(name="bias", shape=(inputs_shape[-1],), initializer="zeros")

    def call(self, inputs):
        return inputs + ops.cast(self.bias, inputs.dtype)


def _by_distance(x, rows):
    """Compute scores (B, N, T, T) of tokens `x` (B, T, N, H) with distances `rows` (1, R, N, H)."""
    x, rows = (ops.transpose(each, (0, 2, 1, 3)) for each in (x, rows))
    return relative_shift(matmul_transposed(x, rows), ops.shape(x)[2])


def shared_distances(encoder, initializer, dtype):
    """Return an encoder's `DistanceEmbedding`, or `None` for other position embeddings.

    Raises:
        ValueError: if the encoder's settings conflict with disentangled attention.
    """
    if encoder.position_embedding != "disentangled":
        return None
    if encoder.num_key_value_heads not in (None, encoder.num_heads):
        raise ValueError(
            f"position_embedding='disentangled' needs num_key_value_heads=None, got "
            f"{encoder.num_key_value_heads}."
        )
    if encoder.bucket_size is not None:
        check_whole("bucket_size", encoder.bucket_size, 2)
    if encoder.is_causal or encoder.local_window is not None:
        raise ValueError(
            f"position_embedding='disentangled' needs is_causal=False and local_window=None; got "
            f"is_causal={encoder.is_causal} and local_window={encoder.local_window}. Use those "
            "values, or position_embedding='rotary'."
        )
    return DistanceEmbedding(
        encoder.max_relative_positions or encoder.max_sequence_length,
        encoder.bucket_size,
        layer_norm_epsilon=encoder.layer_norm_epsilon,
        use_bias=has_bias(encoder.use_bias, "norm"),
        initializer=initializer,
        normalized=encoder.shares_projections,
        dtype=dtype,
        name="distance_embedding",
    )


def own_attention(encoder, initializer, dtype):
    """Return a layer's `DisentangledAttention`, or `None` for other position embeddings."""
    if encoder.position_embedding != "disentangled":
        return None
    return DisentangledAttention(
        encoder.num_heads,
        dropout=encoder.attention_dropout,
        use_bias=has_bias(encoder.use_bias, "attention"),
        position_dropout=encoder.dropout,
        shares_projections=encoder.shares_projections,
        kernel_initializer=initializer,
        dtype=dtype,
        name="attention",
    )

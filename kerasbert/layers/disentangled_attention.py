"""Disentangled attention of DeBERTa: content and relative position have separate score terms.

B batch, T tokens, D width, N heads, H head width, R = 2T + 1 distances, U rows of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert import backend
from kerasbert.base.errors import check_whole
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.families.settings import has_bias
from kerasbert.layers.attention import SelfAttention
from kerasbert.layers.dropout import TokenDropout
from kerasbert.layers.norm import TokenNorm
from kerasbert.layers.relative_attention import relative_shift

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

# Upper limit of the precomputed distances; no text is longer.
_FARTHEST = 2**20


@keras.saving.register_keras_serializable(package="kerasbert")
class DistanceEmbedding(ChecksKeywords, keras.layers.Layer):
    """Learned, normalized relative position embeddings, shared by all layers.

    Args:
        max_distance: int. Larger distances share the embedding of this one.
        bucket_size: int or None. The table has `2 * bucket_size` rows: one for each distance up to
            half of `bucket_size`, then logarithmic buckets. `None` gives each distance a row.
        layer_norm_epsilon: float.
        use_bias: bool. Whether the norm has a bias.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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
            A dict for `DisentangledAttention`: `distances` (U, D), and `places`, ints (R,), the
            rows of `distances` for the distances T, T - 1, ... -T.
        """
        length = ops.shape(inputs)[1]
        table = ops.convert_to_tensor(self.embeddings)
        if backend.is_known(length):
            far = np.clip(length - np.arange(2 * length + 1), -self._reach, self._reach)
            places = self._rows[far + self._reach]
            first = int(places[-1])
            rows = table[first : int(places[0]) + 1]  # Row numbers increase with the distance.
            places = ops.convert_to_tensor(places - first, dtype="int32")
        else:
            far = ops.clip(
                length - ops.arange(2 * length + 1, dtype="int32"), -self._reach, self._reach
            )
            known = ops.convert_to_tensor(self._rows, dtype="int32")
            rows = ops.take(table, ops.take(known, far + self._reach, axis=0), axis=0)
            places = ops.arange(2 * length + 1, dtype="int32")
        return {"distances": self.layer_norm(rows[None])[0], "places": places}

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
        # float32, as in the training of the checkpoints.
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

    The score of a query and a key is the sum of content-to-content, content-to-position and
    position-to-content terms. Distance and token embeddings share the projections.

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: float. Dropout of the attention probabilities in training.
        use_bias: bool.
        position_dropout: float. Dropout of the distance embeddings.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, dropout, use_bias, None, kernel_initializer, **kwargs)
        self.position_dropout = position_dropout

    def build(self, inputs_shape: Any) -> None:
        super().build(inputs_shape)
        self.position_dropout_layer = TokenDropout(
            self.position_dropout, dtype=self.dtype_policy, name="position_dropout"
        )

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
            (B, T, D); with `return_attention_scores` also the attention probabilities
            (B, N, T, T).
        """
        rows = distances[None]
        if training:
            rows = self.position_dropout_layer(rows, training=True)
        query, key, value = self._heads(inputs)
        far_query, far_key, _ = self._heads(rows)  # (1, N, U, H)
        # The score sums three terms, so it is scaled by 1 / sqrt(3 * H); `attend` divides by
        # sqrt(H) alone.
        query = query * ops.cast(3**-0.5, query.dtype)
        scale = ops.cast(query.shape[-1] ** -0.5, query.dtype)
        by_query = _by_distance(query * scale, ops.take(far_key, places, axis=2))
        far_query = far_query * ops.cast(3**-0.5, query.dtype) * scale
        by_key = _by_distance(key, ops.take(far_query, ops.flip(places), axis=2))
        rate = self.dropout if training else 0.0
        outputs, maps = backend.attend(
            query,
            key,
            value,
            attention_mask,
            rate,
            self.dropout_layer.seed_generator if rate else None,
            by_query + ops.swapaxes(by_key, 2, 3),
        )
        outputs = self.output_dense(backend.of_tokens(outputs, inputs.shape[-1]))
        return (outputs, maps) if return_attention_scores else outputs

    def _heads(self, x):
        """Compute queries, keys and values (B, N, T, H) of (B, T, D)."""
        heads = backend.split_heads(self.qkv(x), self.num_heads, None)
        return [ops.transpose(part, (0, 2, 1, 3)) for part in heads]

    def compute_output_spec(
        self, inputs: Tensor, distances: Tensor = None, places: Tensor = None, **kwargs: Any
    ) -> Any:
        return super().compute_output_spec(inputs, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["rotary_base"], config["rotary_factor"]
        return {**config, "position_dropout": self.position_dropout}


def _by_distance(x, rows):
    """Compute scores (B, N, T, T) of tokens (B, N, T, H) and their distances (1, N, R, H)."""
    return relative_shift(backend.matmul_transposed(x, rows), ops.shape(x)[2])


def shared_distances(encoder, initializer, dtype):
    """Return an encoder's `DistanceEmbedding`, or `None` if it uses other position embeddings.

    Raises:
        ValueError: if the encoder's settings conflict with disentangled attention.
    """
    if encoder.position_embedding != "disentangled":
        return None
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
        kernel_initializer=initializer,
        dtype=dtype,
        name="attention",
    )

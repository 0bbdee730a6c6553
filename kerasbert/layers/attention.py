"""Self-attention on one fused query-key-value projection.

B batch, T tokens, D width, N heads, H width of a head.
"""

import functools

import keras
from keras import ops

from kerasbert._keywords import ChecksKeywords
from kerasbert.backend import jax as _jax
from kerasbert.backend import jax_on_gpu, on_gpu
from kerasbert.backend import torch as _torch
from kerasbert.layers.dense import TokenDense, at_least_float32, matmul_transposed
from kerasbert.layers.dropout import TokenDropout
from kerasbert.layers.embeddings import rotate


@keras.saving.register_keras_serializable(package="kerasbert")
class AttentionMask(ChecksKeywords, keras.layers.Layer):
    """Which tokens a token may look at.

    Args:
        is_causal: bool. Only itself and those before it.
        window: int or None. Only those at most `window // 2` away (ModernBERT's local layers).

    Example:

    >>> tuple(AttentionMask(is_causal=True)(np.array([[1, 1, 0]])).shape)
    (1, 1, 3, 3)
    """

    def __init__(self, is_causal=False, window=None, **kwargs):
        super().__init__(**kwargs)
        self.is_causal = is_causal
        self.window = window
        self.built = True

    def call(self, padding_mask):
        """Map a mask (B, T), true or 1 at tokens, to a bool mask for `SelfAttention`.

        Returns:
            (B, 1, 1, T), or (B, 1, T, T) where it differs from token to token.
        """
        mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
        if not self.is_causal and self.window is None:
            return mask
        position = ops.arange(ops.shape(padding_mask)[1])
        distance = position[:, None] - position[None, :]  # (T, T), of query from key
        if self.is_causal:
            mask = ops.logical_and(mask, distance >= 0)
        if self.window is not None:
            mask = ops.logical_and(mask, ops.abs(distance) <= self.window // 2)
        return mask

    def compute_output_spec(self, padding_mask):
        batch, length = padding_mask.shape
        rows = 1 if not self.is_causal and self.window is None else length
        return keras.KerasTensor((batch, 1, rows, length), dtype="bool")

    def get_config(self):
        return {**super().get_config(), "is_causal": self.is_causal, "window": self.window}


def fused_attention(query, key, value, mask=None, dropout=0.0):
    """Attention by the backend's own kernel, or `None` where the formula written out is faster.

    PyTorch has one that on a GPU knows dropout too, JAX one without on an accelerator. TensorFlow
    has none, and JAX' own took 1.3 to 2.7 times as long on a CPU, at 25 to 384 tokens.

    Args:
        query: (B, T, N, H), as `key` and `value`.
        mask: bool, broadcastable to (B, N, T, T).
        dropout: float. Dropout of the maps.

    Returns:
        (B, T, N, H), or `None`.

    >>> x = np.ones((1, 2, 1, 4), "float32")
    >>> fused_attention(x, x, x, dropout=0.1) is None
    True
    """
    if keras.backend.backend() == "torch" and on_gpu():
        return _torch.attention(query, key, value, mask, dropout)
    if dropout or not _has_kernel():
        return None
    if jax_on_gpu():
        length = query.shape[1]
        if not isinstance(length, int) or length % 2:
            return None  # cuDNN has no gradients for an odd number of tokens.
        mask = None if mask is None else _jax.full_mask(mask, length)
    return ops.dot_product_attention(query, key, value, mask=mask)


def of_tokens(x, *sizes):
    """What each token has, (B, T, ...), in other axes: (B, T, *sizes).

    >>> tuple(of_tokens(np.ones((2, 3, 8)), 4, 2).shape)
    (2, 3, 4, 2)
    """
    return ops.reshape(x, (-1, ops.shape(x)[1], *sizes))


@functools.cache
def _has_kernel():
    if keras.backend.backend() == "jax":
        return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
    return keras.backend.backend() == "torch"


@keras.saving.register_keras_serializable(package="kerasbert")
class SelfAttention(ChecksKeywords, keras.layers.Layer):
    """Multi-head self-attention (arXiv 1706.03762).

    The backend's fused attention runs where it has one, in most cases without attention dropout.

    Args:
        num_heads: int. It has to divide the width of the input.
        dropout: float. Dropout of the attention maps in training.
        use_bias: bool.
        rotary_base: float or None. Rotary positions with this base.
        kernel_initializer: an initializer.

    Example:

    >>> tuple(SelfAttention(num_heads=2)(np.ones((1, 3, 8), "float32")).shape)
    (1, 3, 8)
    """

    def __init__(
        self,
        num_heads,
        dropout=0.0,
        use_bias=True,
        rotary_base=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout = dropout
        self.use_bias = use_bias
        self.rotary_base = rotary_base
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        if width % self.num_heads:
            raise ValueError(
                f"hidden_dim {width} is not a multiple of num_heads {self.num_heads}; "
                "each head needs the same whole width."
            )

        def dense(units, name):
            return TokenDense(
                units,
                use_bias=self.use_bias,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )

        self.qkv = dense(3 * width, "qkv")
        self.qkv.build(inputs_shape)
        self.output_dense = dense(width, "output")
        self.output_dense.build(inputs_shape)
        self.dropout_layer = TokenDropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(self, inputs, attention_mask=None, training=False, return_attention_scores=False):
        """Attend.

        Args:
            inputs: (B, T, D).
            attention_mask: bool, broadcastable to (B, N, T, T): true where a token may look.
            training: bool.
            return_attention_scores: bool.

        Returns:
            (B, T, D); with `return_attention_scores` also the maps (B, N, T, T).
        """
        width = inputs.shape[-1]
        heads = self.num_heads, width // self.num_heads
        projected = self.qkv(inputs)  # (B, T, 3 * D)
        outputs = scores = None
        dropout = self.dropout if training else 0.0
        plain = self.rotary_base is None and not _has_kernel()
        if plain and keras.backend.backend() == "tensorflow":
            # One transpose of all three: a fifth of a batch's time less than one of each.
            parts = ops.transpose(of_tokens(projected, 3, *heads), (2, 0, 3, 1, 4))
            query, key, value = ops.unstack(parts, 3)  # (B, N, T, H)
        else:
            # By a split: the gradients of three slices would be padded with zeros, and added up.
            parts = ops.split(projected, 3, axis=-1)  # (B, T, D) each
            query, key, value = (of_tokens(part, *heads) for part in parts)  # (B, T, N, H)
            if self.rotary_base is not None:
                query, key = rotate(query, self.rotary_base), rotate(key, self.rotary_base)
            if not return_attention_scores:
                outputs = fused_attention(query, key, value, attention_mask, dropout)
                if outputs is None and dropout and jax_on_gpu():
                    seed = self.dropout_layer.seed_generator
                    outputs = _jax.attention(query, key, value, attention_mask, dropout, seed)
            if outputs is None:
                query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
        if outputs is None:
            outputs, scores = self._attend(query, key, value, attention_mask, dropout)
        outputs = self.output_dense(of_tokens(outputs, width))
        return (outputs, scores) if return_attention_scores else outputs

    def _attend(self, query, key, value, mask, dropout):
        """The same in the open: for its maps, for dropout, and where nothing fused is faster.

        Args:
            query: (B, N, T, H), as `key` and `value`.

        Returns:
            Outputs (B, T, N, H), and the maps (B, N, T, T).
        """
        query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
        scores = at_least_float32(matmul_transposed(query, key))
        if mask is not None:
            scores = scores + ops.cast(ops.where(mask, 0.0, -1e9), scores.dtype)
        scores = ops.cast(ops.softmax(scores), query.dtype)
        if dropout:
            scores = self.dropout_layer(scores, training=True)
        outputs = ops.matmul(scores, value)  # (B, N, T, H)
        return ops.transpose(outputs, (0, 2, 1, 3)), scores

    def compute_output_spec(
        self, inputs, attention_mask=None, training=False, return_attention_scores=False
    ):
        outputs = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, length = inputs.shape[:2]
        scores = keras.KerasTensor(
            (batch, self.num_heads, length, length), dtype=self.compute_dtype
        )
        return outputs, scores

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "rotary_base": self.rotary_base,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

"""Self-attention on one fused query-key-value projection.

B batch, T tokens, D width, N heads, H width of a head.
"""

import functools

import keras
from keras import ops

from kerasbert.layers.dense import TokenDense
from kerasbert.layers.embeddings import rotate


@keras.saving.register_keras_serializable(package="kerasbert")
class AttentionMask(keras.layers.Layer):
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
        mask = ops.cast(padding_mask, "bool")[:, None, None, :]
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


@functools.cache
def _fused_attention():
    """Whether `ops.dot_product_attention` beats the formula written out.

    It does on PyTorch, and on JAX with an accelerator. TensorFlow has none, and JAX' own took
    1.3 to 2.7 times as long on a CPU, at 25 to 384 tokens.
    """
    if keras.config.backend() == "jax":
        return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
    return keras.config.backend() == "torch"


@keras.saving.register_keras_serializable(package="kerasbert")
class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention (arXiv 1706.03762).

    The backend's fused attention runs where it has one and attention dropout is not active.

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
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, name="dropout"
        )

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
        length, width = ops.shape(inputs)[1], inputs.shape[-1]
        qkv = self.qkv(inputs)  # (B, T, 3D)
        heads = ops.reshape(qkv, (-1, length, 3, self.num_heads, width // self.num_heads))
        query, key, value = heads[:, :, 0], heads[:, :, 1], heads[:, :, 2]  # (B, T, N, H)
        if self.rotary_base is not None:
            query, key = rotate(query, self.rotary_base), rotate(key, self.rotary_base)
        scores = None
        dropout = training and self.dropout > 0
        if return_attention_scores or dropout or not _fused_attention():
            outputs, scores = self._attend(query, key, value, attention_mask, dropout)
        else:
            outputs = ops.dot_product_attention(query, key, value, mask=attention_mask)
        outputs = self.output_dense(ops.reshape(outputs, (-1, length, width)))
        return (outputs, scores) if return_attention_scores else outputs

    def _attend(self, query, key, value, mask, dropout):
        """The same in the open: for its maps, for dropout, and where nothing fused is faster."""
        query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
        scores = ops.matmul(
            ops.transpose(query, (0, 2, 1, 3)), ops.transpose(key, (0, 2, 3, 1))
        )  # (B, N, T, T)
        scores = ops.cast(scores, "float32")
        if mask is not None:
            scores = scores + ops.where(mask, 0.0, -1e9)
        scores = ops.cast(ops.softmax(scores), query.dtype)
        if dropout:
            scores = self.dropout_layer(scores, training=True)
        outputs = ops.matmul(scores, ops.transpose(value, (0, 2, 1, 3)))  # (B, N, T, H)
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

"""Self-attention with a fused query-key-value projection, cross-attention and attention masks.

B batch, T tokens, S tokens of the memory (the encoder's output), D width, N heads, H head width.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert import backend
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.dense import TokenDense
from kerasbert.layers.dropout import TokenDropout
from kerasbert.layers.embeddings import rotate

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class AttentionMask(ChecksKeywords, keras.layers.Layer):
    """Attention mask from padding, causality and a local window.

    Args:
        is_causal: bool. Whether a token attends only to itself and earlier tokens.
        window: int or None. A token attends only to tokens at most `window // 2` away (ModernBERT's
            local layers).

    Example:

    >>> tuple(AttentionMask(is_causal=True)(np.array([[1, 1, 0]])).shape)
    (1, 1, 3, 3)
    """

    def __init__(self, is_causal: bool = False, window: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_causal = is_causal
        self.window = window
        self.built = True

    def call(self, padding_mask: Tensor, by_blocks: bool = False) -> Tensor:
        """Map a padding mask to a bool mask for `SelfAttention`.

        Args:
            padding_mask: (B, T), true or 1 at tokens.
            by_blocks: bool. Allow a block mask, linear in T, for long texts with a window: each of
                C blocks of W tokens attends to K tokens.

        Returns:
            (B, 1, 1, T) if all tokens share one mask, otherwise (B, 1, T, T); as a block mask
            (B, C, 1, W, K).
        """
        if by_blocks and self.window is not None:
            return backend.local_mask(padding_mask, self.is_causal, self.window)
        return backend.token_mask(padding_mask, self.is_causal, self.window)

    def compute_output_spec(self, padding_mask: Tensor, by_blocks: bool = False) -> Any:
        batch, length = padding_mask.shape
        rows = 1 if not self.is_causal and self.window is None else length
        return keras.KerasTensor((batch, 1, rows, length), dtype="bool")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "is_causal": self.is_causal, "window": self.window}


def projection(layer, inputs_shape, units, name, use_bias):
    """Build a dense layer of an attention layer, and check the width against `num_heads`."""
    width = inputs_shape[-1]
    if width % layer.num_heads:
        raise ValueError(
            f"hidden_dim {width} is not a multiple of num_heads {layer.num_heads}; "
            "each head needs the same whole width."
        )
    dense = TokenDense(
        units,
        use_bias=use_bias,
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )
    dense.build(inputs_shape)
    return dense


@keras.saving.register_keras_serializable(package="kerasbert")
class SelfAttention(ChecksKeywords, keras.layers.Layer):
    """Multi-head self-attention (arXiv 1706.03762).

    The backend's fused attention is used where possible, mostly without attention dropout.

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: float. Dropout of the attention probabilities in training.
        use_bias: bool.
        rotary_base: float or None. Base of the rotary position embedding; `None` disables it.
        rotary_factor: float. Divisor of the positions.
        kernel_initializer: an initializer.

    Example:

    >>> tuple(SelfAttention(num_heads=2)(np.ones((1, 3, 8), "float32")).shape)
    (1, 3, 8)
    """

    def __init__(
        self,
        num_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        rotary_base: float | None = None,
        kernel_initializer: Any = "glorot_uniform",
        rotary_factor: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout = dropout
        self.use_bias = use_bias
        self.rotary_base = rotary_base
        self.rotary_factor = rotary_factor
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape: Any) -> None:
        width = inputs_shape[-1]
        self.qkv = projection(self, inputs_shape, 3 * width, "qkv", self.use_bias)
        self.output_dense = projection(self, inputs_shape, width, "output", self.use_bias)
        self.dropout_layer = TokenDropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool = False,
        return_attention_scores: bool = False,
        cache: Tensor = None,
        cache_update_index: Any = 0,
    ) -> Tensor:
        """Apply self-attention.

        Args:
            inputs: (B, T, D).
            attention_mask: bool, broadcastable to (B, N, T, T), true where attention is allowed;
                or a block mask of `AttentionMask`.
            training: bool.
            return_attention_scores: bool. Not available with a block mask.
            cache: (B, 2, C, N, H), keys and values of C tokens. The inputs' keys and values are
                written into it, and the inputs attend to the result; the mask is then (T, C).
            cache_update_index: int or tensor. Position in the cache of the first input token.

        Returns:
            (B, T, D); with `return_attention_scores` also the attention probabilities
            (B, N, T, T), with `cache` also the updated cache.
        """
        if cache is not None:
            return self._with_cache(inputs, attention_mask, cache, cache_update_index)
        turn = self._turn()
        dropout = self.dropout if training else 0.0
        attend = functools.partial(backend.attention, maps=return_attention_scores)
        if attention_mask is not None and len(attention_mask.shape) == 5:
            attend = backend.local_attention
        outputs, scores = attend(
            self.qkv(inputs),
            self.num_heads,
            attention_mask,
            turn=turn,
            dropout=dropout,
            seed=self.dropout_layer.seed_generator if dropout else None,
        )
        outputs = self.output_dense(backend.of_tokens(outputs, inputs.shape[-1]))
        return (outputs, scores) if return_attention_scores else outputs

    def _turn(self, start_index=None):
        """Return the function that rotates queries and keys; `None` without rotary positions."""
        if self.rotary_base is None:
            return None
        turn = {"base": self.rotary_base, "factor": self.rotary_factor}
        return functools.partial(rotate, start_index=start_index, **turn)

    def _with_cache(self, inputs, mask, cache, index):
        projected = self.qkv(inputs)
        query, key, value = backend.split_heads(projected, self.num_heads, self._turn(index))
        cache = backend.update_cache(cache, ops.stack([key, value], axis=1), index)
        outputs, _ = backend.heads_attention(query, cache[:, 0], cache[:, 1], mask[None, None])
        return self.output_dense(backend.of_tokens(outputs, inputs.shape[-1])), cache

    def compute_output_spec(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
    ) -> Any:
        outputs = keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, length = inputs.shape[:2]
        scores = keras.KerasTensor(
            (batch, self.num_heads, length, length), dtype=self.compute_dtype
        )
        return outputs, scores

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "rotary_base": self.rotary_base,
            "rotary_factor": self.rotary_factor,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class CrossAttention(ChecksKeywords, keras.layers.Layer):
    """Multi-head attention of a text to an encoder's output, the memory (arXiv 1706.03762).

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: float. Dropout of the attention probabilities in training.
        use_bias: bool.
        kernel_initializer: an initializer.

    Example:

    >>> attention = CrossAttention(num_heads=2)
    >>> tuple(attention(np.ones((1, 3, 8), "float32"), np.ones((1, 5, 8), "float32")).shape)
    (1, 3, 8)
    """

    def __init__(
        self,
        num_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape: Any) -> None:
        width = inputs_shape[-1]
        self.query = projection(self, inputs_shape, width, "query", self.use_bias)
        self.kv = projection(self, inputs_shape, 2 * width, "kv", self.use_bias)
        self.output_dense = projection(self, inputs_shape, width, "output", self.use_bias)
        self.dropout_layer = TokenDropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def keys_values(self, memory: Tensor) -> Tensor:
        """Compute keys and values (B, 2, S, N, H) of the memory (B, S, D)."""
        parts = ops.split(self.kv(memory), 2, axis=-1)
        width = parts[0].shape[-1] // self.num_heads
        return ops.stack([backend.of_tokens(x, self.num_heads, width) for x in parts], axis=1)

    def call(
        self,
        inputs: Tensor,
        memory: Tensor = None,
        memory_mask: Tensor = None,
        training: bool = False,
        keys_values: Tensor = None,
    ) -> Tensor:
        """Apply cross-attention.

        Args:
            inputs: (B, T, D).
            memory: (B, S, D), the encoder's output; `None` if `keys_values` is given.
            memory_mask: bool, broadcastable to (B, N, T, S), true where attention is allowed.
            training: bool.
            keys_values: the precomputed `keys_values(memory)`.

        Returns:
            (B, T, D).
        """
        if keys_values is None:
            keys_values = self.keys_values(memory)
        width = inputs.shape[-1]
        query = backend.of_tokens(self.query(inputs), self.num_heads, width // self.num_heads)
        dropout = self.dropout if training else 0.0
        outputs, _ = backend.heads_attention(
            query,
            keys_values[:, 0],
            keys_values[:, 1],
            memory_mask,
            dropout=dropout,
            seed=self.dropout_layer.seed_generator if dropout else None,
        )
        return self.output_dense(backend.of_tokens(outputs, width))

    def compute_output_spec(
        self,
        inputs: Tensor,
        memory: Tensor = None,
        memory_mask: Tensor = None,
        training: bool | None = False,
    ) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

"""Self-attention, cross-attention and attention masks.

B batch, T tokens, S tokens of the memory (the encoder's output), D width, N heads, H head width.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.attention import (
    attention,
    heads_attention,
    local_attention,
    local_mask,
    split_heads,
    token_mask,
    update_cache,
    with_global_keys,
)
from kerasbert.backend.layers import of_tokens
from kerasbert.base.errors import check_heads
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.embeddings import rotate
from kerasbert.layers.token_layers import TokenDense, TokenDropout

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class AttentionMask(ChecksKeywords, keras.layers.Layer):
    """Attention mask from padding, causality and a local window.

    Args:
        is_causal: whether a token attends only to itself and earlier tokens.
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

    def call(
        self,
        padding_mask: Tensor,
        by_blocks: bool = False,
        is_global: Tensor = None,
        global_ranks: Tensor = None,
    ) -> Tensor:
        """Map a padding mask to a bool mask for `SelfAttention`.

        Args:
            padding_mask: (B, T), true or 1 at tokens.
            by_blocks: whether a window may give long texts a block mask, of linear size in T: each
                of C blocks of W tokens attends to K tokens.
            is_global, global_ranks: outputs of `GlobalTokens`, for `GlobalAttention`; all tokens
                attend to the global ones. `None` for no global tokens.

        Returns:
            (B, 1, 1, T) if all tokens share one mask, otherwise (B, 1, T, T), or a block mask (B,
            C, 1, W, K).
        """
        if by_blocks and self.window is not None:
            mask = local_mask(padding_mask, self.is_causal, self.window)
        else:
            mask = token_mask(padding_mask, self.is_causal, self.window)
        return mask if is_global is None else with_global_keys(mask, is_global, global_ranks)

    def compute_output_spec(
        self,
        padding_mask: Tensor,
        by_blocks: bool = False,
        is_global: Tensor = None,
        global_ranks: Tensor = None,
    ) -> Any:
        batch, length = padding_mask.shape
        rows = 1 if not self.is_causal and self.window is None else length
        return keras.KerasTensor((batch, 1, rows, length), dtype="bool")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "is_causal": self.is_causal, "window": self.window}


def projection(layer, inputs_shape, units, name, use_bias):
    """Build a projection of an attention layer; raise if `num_heads` does not divide the width."""
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

    The backend's fused attention is used if possible; with attention dropout, it rarely is.

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: dropout of the attention probabilities in training.
        use_bias: bool.
        rotary_base: float or None. Base of the rotary position embedding; `None` disables it.
        rotary_factor: divisor of the positions.
        rotary_value: whether values are rotated like queries and keys (some RoFormers).
        num_key_value_heads: number of heads of keys and values, a divisor of `num_heads`
            (grouped-query attention, arXiv 2305.13245); `None` means `num_heads`.
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
        rotary_value: bool = False,
        num_key_value_heads: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dropout = dropout
        self.use_bias = use_bias
        self.rotary_base = rotary_base
        self.rotary_factor = rotary_factor
        self.rotary_value = rotary_value
        self.num_key_value_heads = num_key_value_heads
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, inputs_shape: Any) -> None:
        width = inputs_shape[-1]
        count = self.num_key_value_heads or self.num_heads
        check_heads(self.num_heads, count, "num_key_value_heads", "num_heads")
        if count == self.num_heads:
            self.qkv = projection(self, inputs_shape, 3 * width, "qkv", self.use_bias)
        else:
            self.qkv = None
            self.query = projection(self, inputs_shape, width, "query", self.use_bias)
            width_of_kv = 2 * width // self.num_heads * count
            self.kv = projection(self, inputs_shape, width_of_kv, "kv", self.use_bias)
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
        bias: Tensor = None,
    ) -> Tensor:
        """Apply self-attention.

        Args:
            inputs: (B, T, D).
            attention_mask: bool, broadcastable to (B, N, T, T), true where attention is allowed;
                or a block mask of `AttentionMask`.
            training: bool.
            return_attention_scores: bool. Not available with a block mask.
            cache: (B, 2, C, N, H), keys and values of C tokens. The inputs' keys and values are
                written into it, and attended to, with a mask (T, C).
            cache_update_index: int or tensor. Position in the cache of the first input token.
            bias: floats added to the scaled scores, such as the output of `RelativePositionBias`,
                broadcastable to (B, N, T, T); with a cache to (B, N, T, C); with a block mask to
                (B, C, N, W, K).

        Returns:
            (B, T, D). With `return_attention_scores`, also the attention probabilities
            (B, N, T, T); with `cache`, also the updated cache.
        """
        if cache is not None:
            return self._with_cache(inputs, attention_mask, cache, cache_update_index, bias)
        outputs, scores = self._attended(
            inputs, attention_mask, training, return_attention_scores, bias=bias
        )
        outputs = self.output_dense(of_tokens(outputs, inputs.shape[-1]))
        return (outputs, scores) if return_attention_scores else outputs

    def _attended(self, inputs, mask, training, maps=False, **settings):
        """Return the outputs (B, T, N, H) of attention and its maps, or `None` without `maps`."""
        attend = functools.partial(attention, maps=maps)
        if mask is not None and len(mask.shape) == 5:
            attend = local_attention
        return attend(
            self._projected(inputs),
            self.num_heads,
            mask,
            turn=self._turn(),
            **self._dropped(training),
            **settings,
        )

    def _dropped(self, training):
        """Return the arguments of the kernels for dropout."""
        rate = self.dropout if training else 0.0
        return {"dropout": rate, "seed": self.dropout_layer.seed_generator if rate else None}

    def _projected(self, inputs, start_index=None):
        """Compute queries, keys and values (B, T, 3 * D) of the inputs, for the kernels."""
        turns_value = self.rotary_base is not None and self.rotary_value
        if self.qkv is not None and not turns_value:
            return self.qkv(inputs)
        width = inputs.shape[-1]
        if self.qkv is not None:
            query, key, value = ops.split(self.qkv(inputs), 3, axis=-1)
        else:
            query = self.query(inputs)
            key, value = (self._repeat(x) for x in ops.split(self.kv(inputs), 2, axis=-1))
        if turns_value:
            value = of_tokens(value, self.num_heads, width // self.num_heads)
            value = of_tokens(self._turn(start_index)(value), width)
        return ops.concatenate([query, key, value], axis=-1)

    def _repeat(self, x):
        """Repeat each head of keys or values for its group of queries: (B, T, D)."""
        count, group = self.num_key_value_heads, self.num_heads // self.num_key_value_heads
        heads = of_tokens(x, count, 1, x.shape[-1] // count)
        return of_tokens(ops.concatenate([heads] * group, axis=3), x.shape[-1] * group)

    def _turn(self, start_index=None):
        """Return the function that rotates queries and keys; `None` without rotary positions."""
        if self.rotary_base is None:
            return None
        turn = {"base": self.rotary_base, "factor": self.rotary_factor}
        return functools.partial(rotate, start_index=start_index, **turn)

    def _with_cache(self, inputs, mask, cache, index, bias):
        projected = self._projected(inputs, index)
        query, key, value = split_heads(projected, self.num_heads, self._turn(index))
        cache = update_cache(cache, ops.stack([key, value], axis=1), index)
        outputs, _ = heads_attention(query, cache[:, 0], cache[:, 1], mask[None, None], bias=bias)
        return self.output_dense(of_tokens(outputs, inputs.shape[-1])), cache

    def compute_output_spec(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        bias: Tensor = None,
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
            "rotary_value": self.rotary_value,
            "num_key_value_heads": self.num_key_value_heads,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class CrossAttention(ChecksKeywords, keras.layers.Layer):
    """Multi-head attention to an encoder's output, the memory (arXiv 1706.03762).

    Args:
        num_heads: int. Must divide the width of the input.
        dropout: dropout of the attention probabilities in training.
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
        return ops.stack([of_tokens(x, self.num_heads, width) for x in parts], axis=1)

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
            memory: (B, S, D), the encoder's output; may be `None` if `keys_values` is given.
            memory_mask: bool, broadcastable to (B, N, T, S), true where attention is allowed.
            training: bool.
            keys_values: the precomputed `keys_values(memory)`.

        Returns:
            (B, T, D).
        """
        if keys_values is None:
            keys_values = self.keys_values(memory)
        width = inputs.shape[-1]
        query = of_tokens(self.query(inputs), self.num_heads, width // self.num_heads)
        dropout = self.dropout if training else 0.0
        outputs, _ = heads_attention(
            query,
            keys_values[:, 0],
            keys_values[:, 1],
            memory_mask,
            dropout=dropout,
            seed=self.dropout_layer.seed_generator if dropout else None,
        )
        return self.output_dense(of_tokens(outputs, width))

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

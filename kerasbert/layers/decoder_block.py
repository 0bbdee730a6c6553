"""Transformer decoder layer: self-attention, cross-attention and feed-forward.

B batch, T tokens, S tokens of the memory (the encoder's output), K beams, D width, N heads,
H head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base import keras_internals
from kerasbert.families.settings import has_bias
from kerasbert.layers.attention import CrossAttention
from kerasbert.layers.block import TransformerBlock, layer_norm, only_blocks_remat

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerDecoderBlock(TransformerBlock):
    """A `TransformerBlock` with cross-attention between self-attention and feed-forward.

    The arguments are those of `TransformerBlock`. It is not rematerialized under
    `keras.RematScope`.

    Example:

    >>> block = TransformerDecoderBlock(num_heads=2, intermediate_dim=16)
    >>> memory = np.ones((1, 5, 8), "float32")
    >>> tuple(block(np.ones((1, 3, 8), "float32"), memory).shape)
    (1, 3, 8)

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1.
    """

    def build(self, inputs_shape: Any) -> None:
        super().build(inputs_shape)
        self.cross_attention = CrossAttention(
            self.num_heads,
            dropout=self.attention_dropout,
            use_bias=has_bias(self.use_bias, "attention"),
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="cross_attention",
        )
        self.cross_attention.build(inputs_shape)
        self.cross_attention_layer_norm = layer_norm(
            self.layer_norm_epsilon, self.use_bias, self.dtype_policy, "cross_attention_layer_norm"
        )
        self.cross_attention_layer_norm.build(inputs_shape)
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # TensorFlow's rematerialization gives extra inputs no gradient.
        return layer_call

    def call(
        self,
        inputs: Tensor,
        memory: Tensor = None,
        memory_mask: Tensor = None,
        attention_mask: Tensor = None,
        training: bool = False,
        keys_values: Tensor = None,
        cache: Tensor = None,
        cache_update_index: Any = 0,
    ) -> Tensor:
        """Map (B, T, D) to (B, T, D).

        Args:
            inputs: (B, T, D).
            memory, memory_mask: see `CrossAttention.call`.
            attention_mask, cache, cache_update_index: see `SelfAttention.call`.
            training: bool.
            keys_values: (B, 2, S, N, H), from `CrossAttention.keys_values`; inputs may then be (B *
                K, T, D), with K consecutive rows per text.

        Returns:
            (B, T, D). With `cache`, also the updated cache.
        """
        first = self.norm_first
        inside = {}
        if cache is not None:
            inside = {"cache": cache, "cache_update_index": cache_update_index}
        x = self.attention_layer_norm(inputs) if first else inputs
        x = self.attention(x, attention_mask=attention_mask, training=training, **inside)
        x, more = x if inside else (x, None)
        x = inputs + self._drop(x, training)
        x = x if first else self.attention_layer_norm(x)
        y = self.cross_attention_layer_norm(x) if first else x
        if keys_values is None:
            y = self.cross_attention(y, memory, memory_mask=memory_mask, training=training)
        else:
            # Beams become rows of one text, without a copy of its keys each.
            shape = ops.shape(y)
            y = ops.reshape(y, (ops.shape(keys_values)[0], -1, shape[-1]))
            y = self.cross_attention(y, memory_mask=memory_mask, keys_values=keys_values)
            y = ops.reshape(y, shape)
        x = x + self._drop(y, training)
        x = x if first else self.cross_attention_layer_norm(x)
        if first:
            x = x + self._feed_forward(self.output_layer_norm(x), training)
        else:
            x = self.output_layer_norm(x + self._feed_forward(x, training))
        return (x, more) if inside else x

    def compute_output_spec(
        self,
        inputs: Tensor,
        memory: Tensor = None,
        memory_mask: Tensor = None,
        attention_mask: Tensor = None,
        training: bool | None = False,
    ) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

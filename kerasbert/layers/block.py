"""Transformer encoder layer: attention and feed-forward, each with residual and norm.

B batch, T tokens, P positions, D width, I width of the feed-forward network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.layers import tokens_at
from kerasbert.base import keras_internals
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.families.settings import has_bias
from kerasbert.layers.attention import SelfAttention
from kerasbert.layers.remat import pure_call
from kerasbert.layers.token_layers import (
    TokenDense,
    TokenDropout,
    TokenNorm,
    TokenRMSNorm,
    activation_function,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from kerasbert.base.aliases import Tensor


def layer_norm(epsilon, use_bias, dtype, name, rms=False):
    """Return a norm over the width; without bias, or in its root-mean-square form, no `beta`."""
    if rms:
        return TokenRMSNorm(epsilon=epsilon, dtype=dtype, name=name)
    center = has_bias(use_bias, "norm")
    return TokenNorm(epsilon=epsilon, center=center, dtype=dtype, name=name)


def _is_float(x):
    return x is not None and keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))


def only_blocks_remat(operations):
    """Exempt all operations except whole blocks from `keras.RematScope`."""
    for operation in operations:
        if not isinstance(operation, TransformerBlock):
            keras_internals.without_remat(operation)


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerBlock(ChecksKeywords, keras.layers.Layer):
    """Transformer encoder layer.

    Args:
        num_heads: int.
        intermediate_dim: width of the feed-forward network.
        activation: string. See `kerasbert.layers.token_layers.activation_function`.
        dropout: dropout of the outputs of attention and feed-forward.
        attention_dropout: dropout of the attention probabilities.
        layer_norm_epsilon: float.
        norm_first: whether norms come before attention and feed-forward (pre-norm) instead of after
            the residual.
        attention_norm: whether there is a norm before attention; `False` needs `norm_first`.
        gated_mlp: whether the feed-forward is gated as in GeGLU (arXiv 2002.05202):
            activation(first half) * second half.
        use_bias: bool, or a list of the parts with biases: "attention", "intermediate" and
            "output" (both in the feed-forward), "norm".
        rotary_base, rotary_factor, rotary_value, num_key_value_heads: see `SelfAttention`.
        rms_norm: bool. Root-mean-square norms, which have no bias, instead of layer norms.
        kernel_initializer: an initializer.
        attention: a layer that replaces `SelfAttention`, such as `RelativeAttention`, with its own
            settings.

    Example:

    >>> block = TransformerBlock(num_heads=2, intermediate_dim=16)
    >>> tuple(block(np.ones((1, 3, 8), "float32")).shape)
    (1, 3, 8)
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        activation: str = "gelu_approximate",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        norm_first: bool = False,
        attention_norm: bool = True,
        gated_mlp: bool = False,
        use_bias: Any = True,
        rotary_base: float | None = None,
        kernel_initializer: Any = "glorot_uniform",
        attention: Any = None,
        rotary_factor: float = 1.0,
        rotary_value: bool = False,
        num_key_value_heads: int | None = None,
        rms_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm_first = norm_first
        self.attention_norm = attention_norm
        self.gated_mlp = gated_mlp
        self.use_bias = use_bias
        self.rotary_base = rotary_base
        self.rotary_factor = rotary_factor
        self.rotary_value = rotary_value
        self.num_key_value_heads = num_key_value_heads
        self.rms_norm = rms_norm
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.given_attention = attention

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        attention = keras.saving.deserialize_keras_object(config.get("attention"))
        return cls(**{**config, "attention": attention})

    def build(self, inputs_shape: Any) -> None:
        dtype = self.dtype_policy
        self.attention = self.given_attention or SelfAttention(
            self.num_heads,
            dropout=self.attention_dropout,
            use_bias=has_bias(self.use_bias, "attention"),
            rotary_base=self.rotary_base,
            rotary_factor=self.rotary_factor,
            rotary_value=self.rotary_value,
            num_key_value_heads=self.num_key_value_heads,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=dtype,
            name="attention",
        )
        self.attention.build(inputs_shape)
        self.attention_layer_norm = None
        if self.attention_norm:
            self.attention_layer_norm = layer_norm(
                *(self.layer_norm_epsilon, self.use_bias, dtype, "attention_layer_norm"),
                self.rms_norm,
            )
            self.attention_layer_norm.build(inputs_shape)

        def dense(units, name, activation=None):
            return TokenDense(
                units,
                activation=activation,
                use_bias=has_bias(self.use_bias, name),
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=dtype,
                name=name,
            )

        self._activation = activation_function(self.activation)
        if self.gated_mlp:  # One matmul computes both halves.
            self.intermediate = dense(2 * self.intermediate_dim, "intermediate")
        else:
            self.intermediate = dense(self.intermediate_dim, "intermediate", self._activation)
        self.intermediate.build(inputs_shape)
        self.output_dense = dense(inputs_shape[-1], "output")
        self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))
        self.output_layer_norm = layer_norm(
            *(self.layer_norm_epsilon, self.use_bias, dtype, "output_layer_norm"),
            self.rms_norm,
        )
        self.output_layer_norm.build(inputs_shape)
        self.dropout_layer = TokenDropout(self.dropout, dtype=dtype, name="dropout")
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return a call that recomputes the whole block in the backward pass; for `RematScope`.

        Keras would pass all arguments and variables to the backend, but JAX cannot branch on a
        traced `training`, and TensorFlow would draw other dropout masks in the recomputation. So
        this passes a pure function of tensors and random states.
        """

        def call(inputs, attention_inputs=None, **settings):
            variables = self.variables
            # Inputs such as distance embeddings may need gradients.
            shared = dict(attention_inputs or {})
            floats = [name for name, x in shared.items() if _is_float(x)]
            weights = {id(weight) for weight in self.weights}
            random_states = [v for v in variables if id(v) not in weights]

            def pure(inputs, *values):
                given = shared | dict(zip(floats, values[len(variables) :], strict=True))
                call = pure_call(layer_call, variables, random_states)
                values = values[: len(variables)]
                return call(values, inputs, attention_inputs=given, **settings)

            remat = super(TransformerBlock, self).rematerialized_call(pure, inputs)
            # PyTorch changes random states in place.
            values = [ops.copy(v) if id(v) not in weights else v.value for v in variables]
            outputs, states = remat(inputs, *values, *(shared[name] for name in floats))
            for variable, state in zip(random_states, states, strict=True):
                variable.assign(state)
            return outputs

        return call

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        positions: Tensor = None,
        cache: Tensor = None,
        cache_update_index: Any = 0,
        attention_inputs: Any = None,
    ) -> Tensor:
        """Map (B, T, D) to (B, T, D), or only to (B, P, D), at `positions` (B, P).

        `attention_inputs` is a dict of further arguments of the attention layer, such as `bias`;
        for others, see `SelfAttention.call`.
        """
        x = inputs
        if self.norm_first and self.attention_layer_norm is not None:
            x = self.attention_layer_norm(x)
        inside = {}
        if cache is not None:
            inside = {"cache": cache, "cache_update_index": cache_update_index}
        if return_attention_scores:
            inside = {"return_attention_scores": True}
        given = {"attention_mask": attention_mask, **(attention_inputs or {}), **inside}
        x = self.attention(x, training=training, **given)
        x, more = x if inside else (x, None)  # `more` is the attention probabilities or the cache.
        x = inputs + self._drop(x, training)
        if positions is not None:  # The feed-forward network treats tokens independently.
            x = tokens_at(x, positions)
        if self.norm_first:
            x = x + self._feed_forward(self.output_layer_norm(x), training)
        else:
            x = self.attention_layer_norm(x)
            x = self.output_layer_norm(x + self._feed_forward(x, training))
        return (x, more) if inside else x

    def _feed_forward(self, x, training):
        x = self.intermediate(x)  # (B, T, I), or (B, T, 2I) with a gate
        if self.gated_mlp:
            x, gate = ops.split(x, 2, axis=-1)
            x = self._activation(x) * gate
        return self._drop(self.output_dense(x), training)

    def _drop(self, x, training):
        # No dropout at inference: an uncompiled layer call takes 0.1 ms.
        return self.dropout_layer(x, training=True) if training else x

    def compute_output_spec(
        self,
        inputs: Tensor,
        attention_mask: Tensor = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        positions: Tensor = None,
        attention_inputs: Any = None,
    ) -> Any:
        tokens = inputs.shape[:2] if positions is None else positions.shape
        outputs = keras.KerasTensor((*tokens, inputs.shape[-1]), dtype=self.compute_dtype)
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
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "norm_first": self.norm_first,
            "attention_norm": self.attention_norm,
            "gated_mlp": self.gated_mlp,
            "use_bias": self.use_bias,
            "rotary_base": self.rotary_base,
            "rotary_factor": self.rotary_factor,
            "rotary_value": self.rotary_value,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm": self.rms_norm,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "attention": keras.saving.serialize_keras_object(self.given_attention),
        }

"""Convolution over tokens, beside an encoder's first layer (DeBERTa-v2).

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base import keras_internals
from kerasbert.base.keywords import ChecksKeywords
from kerasbert.layers.block import layer_norm, only_blocks_remat
from kerasbert.layers.token_layers import TokenDropout, activation_function

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenConvolution(ChecksKeywords, keras.layers.Layer):
    """Convolution over neighboring tokens, whose output is added to that of another layer.

    Args:
        kernel_size: number of tokens that an output depends on; odd.
        activation: string. See `kerasbert.layers.token_layers.activation_function`.
        dropout: dropout of the convolution's output.
        layer_norm_epsilon: float.
        norm_bias: whether the norm of the sum has a bias.
        kernel_initializer: an initializer.

    Example:

    >>> x = np.ones((2, 5, 8), "float32")
    >>> layer = TokenConvolution(kernel_size=3)
    >>> tuple(layer(x, padding_mask=np.ones((2, 5), "int32"), residual=x).shape)
    (2, 5, 8)

    Source: He et al. 2021, arXiv 2006.03654, and its code for DeBERTa-v2.
    """

    def __init__(
        self,
        kernel_size: int,
        activation: str = "tanh",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-7,
        norm_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if kernel_size % 2 == 0:
            raise ValueError(
                f"The kernel size of a convolution over tokens must be odd, got {kernel_size}."
            )
        self.kernel_size = kernel_size
        self.activation = activation
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm_bias = norm_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(
        self, inputs_shape: Any, padding_mask_shape: Any = None, residual_shape: Any = None
    ) -> None:
        dtype = self.dtype_policy
        self.conv = keras.layers.Conv1D(
            inputs_shape[-1],
            self.kernel_size,
            padding="same",
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=dtype,
            name="conv",
        )
        self.conv.build(inputs_shape)
        self.layer_norm = layer_norm(self.layer_norm_epsilon, self.norm_bias, dtype, "layer_norm")
        self.layer_norm.build(inputs_shape)
        self.dropout_layer = TokenDropout(self.dropout, dtype=dtype, name="dropout")
        self._activation = activation_function(self.activation)
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor = None,
        residual: Tensor = None,
        training: bool | None = False,
    ) -> Tensor:
        """Convolve tokens, without padding, and add another layer's output.

        Args:
            inputs: (B, T, D).
            padding_mask: (B, T), true or 1 at tokens.
            residual: (B, T, D), the output of the other layer.
            training: bool.

        Returns:
            (B, T, D).
        """
        x = self.conv(inputs * ops.cast(padding_mask, inputs.dtype)[:, :, None])
        if training:
            x = self.dropout_layer(x, training=True)
        return self.layer_norm(residual + self._activation(x))

    def compute_output_spec(
        self,
        inputs: Tensor,
        padding_mask: Tensor = None,
        residual: Tensor = None,
        training: bool | None = False,
    ) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "activation": self.activation,
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "norm_bias": self.norm_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

"""Layers of single tokens: dense layer, normalization and dropout; activations.

B batch, T tokens, D width, U units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.layers import at_least_float32, dense, dropout, gelu_approximate, norm
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


def activation_function(name):
    """Return an activation by name: Keras', or a further form of GELU.

    "gelu_approximate" is the tanh form, "quick_gelu" is x * sigmoid(1.702 x).

    >>> float(activation_function("gelu_approximate")(np.array([1.0]))[0]) < 0.8413
    True
    """
    if name in ("gelu_approximate", "quick_gelu"):
        return gelu_approximate if name == "gelu_approximate" else _quick_gelu
    return keras.activations.get(name)


@keras.saving.register_keras_serializable(package="kerasbert")
def _quick_gelu(x):
    """Compute x * sigmoid(1.702 x) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2)."""
    return x * ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenDense(ChecksKeywords, keras.layers.Dense):
    """A `Dense` layer that treats all tokens of a batch as the rows of one matrix.

    TensorFlow then fuses matmul, bias and activation (a separate GELU took 5 times as long as the
    matmul in bfloat16 on a CPU), and PyTorch matmul and bias.

    The arguments are those of `keras.layers.Dense`.

    Example:

    >>> tuple(TokenDense(5, activation="gelu")(np.ones((2, 3, 4), "float32")).shape)
    (2, 3, 5)
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Map (B, T, D) to (B, T, U)."""
        return dense(inputs, self.kernel, self.bias, self.activation, training)

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None
    ) -> None:
        # Keras' type check rejects subclasses of Dense.
        return super().quantize(mode, type_check=False, config=config)


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenNorm(ChecksKeywords, keras.layers.LayerNormalization):
    """`LayerNormalization` over the width, fused on TensorFlow during inference.

    Takes the arguments of `keras.layers.LayerNormalization`.

    Example:

    >>> tuple(TokenNorm()(np.ones((2, 3, 4), "float32")).shape)
    (2, 3, 4)
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        if self.axis not in (-1, [-1]) or self.rms_scaling or not self.scale:
            return super().call(inputs)
        inputs = ops.cast(inputs, self.compute_dtype)
        return norm(inputs, self.gamma, self.beta, self.epsilon, training)


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenRMSNorm(ChecksKeywords, keras.layers.Layer):
    """Root-mean-square normalization over the width, without mean and bias.

    Args:
        epsilon: float.

    Example:

    >>> [round(float(value), 3) for value in TokenRMSNorm()(np.array([[3.0, -3.0]], "float32"))[0]]
    [1.0, -1.0]

    Source: Zhang and Sennrich 2019, arXiv 1910.07467; used by EuroBERT.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, inputs_shape: Any) -> None:
        self.gamma = self.add_weight(name="gamma", shape=(inputs_shape[-1],), initializer="ones")

    def call(self, inputs: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x = at_least_float32(inputs)
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(x, self.compute_dtype) * ops.cast(self.gamma, self.compute_dtype)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenDropout(ChecksKeywords, keras.layers.Dropout):
    """`Dropout` with cheaper random numbers on JAX, and on TensorFlow and PyTorch on CPUs.

    Takes the arguments of `keras.layers.Dropout`.

    Example:

    >>> x = TokenDropout(0.5)(np.ones((100, 100), "float32"), training=True)
    >>> 0.9 < float(keras.ops.mean(x)) < 1.1
    True
    """

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        if self.noise_shape is not None:
            return super().call(inputs, training=training)
        return dropout(inputs, self.rate, self.seed_generator)

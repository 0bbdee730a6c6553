"""Dense layer on tokens, and activation functions by name.

B batch, T tokens, D width, U units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert import backend
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


def activation_function(name):
    """Return an activation: "gelu_approximate" (tanh form), "quick_gelu", or one of Keras' names.

    >>> float(activation_function("gelu_approximate")(np.array([1.0]))[0]) < 0.8413
    True
    """
    if name in ("gelu_approximate", "quick_gelu"):
        return backend.gelu_approximate if name == "gelu_approximate" else _quick_gelu
    return keras.activations.get(name)


@keras.saving.register_keras_serializable(package="kerasbert")
def _quick_gelu(x):
    """Compute x * sigmoid(1.702 x) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2)."""
    return x * ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenDense(ChecksKeywords, keras.layers.Dense):
    """A `Dense` layer that treats all tokens of a batch as the rows of one matrix.

    This lets TensorFlow fuse matmul, bias and activation (a separate GELU took 5 times as long as
    the matmul in bfloat16 on a CPU), and PyTorch fuse matmul and bias.

    Takes the arguments of `keras.layers.Dense`.

    Example:

    >>> tuple(TokenDense(5, activation="gelu")(np.ones((2, 3, 4), "float32")).shape)
    (2, 3, 5)
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Map (B, T, D) to (B, T, U)."""
        return backend.dense(inputs, self.kernel, self.bias, self.activation, training)

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None
    ) -> None:
        # Keras' type check rejects subclasses of Dense.
        return super().quantize(mode, type_check=False, config=config)

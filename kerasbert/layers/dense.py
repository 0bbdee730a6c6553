"""A projection of tokens.

B batch, T tokens, D width, U units.
"""

import keras
from keras import ops

from kerasbert import backend
from kerasbert._keywords import ChecksKeywords


def activation_function(name):
    """Keras' activation of that name, or one of the two forms of GELU that Keras has no name for.

    "gelu_approximate" is the tanh form, "quick_gelu" x * sigmoid(1.702 x).

    >>> float(activation_function("gelu_approximate")(np.array([1.0]))[0]) < 0.8413
    True
    """
    if name in ("gelu_approximate", "quick_gelu"):
        return backend.gelu_approximate if name == "gelu_approximate" else _quick_gelu
    return keras.activations.get(name)


@keras.saving.register_keras_serializable(package="kerasbert")
def _quick_gelu(x):
    """Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2."""
    return x * ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenDense(ChecksKeywords, keras.layers.Dense):
    """`Dense` on all the tokens of a batch as the rows of one matrix.

    In that form a product takes bias and activation along: TensorFlow fuses the three (GELU of its
    own took 5 times the product in bfloat16 on a CPU), PyTorch the first two.

    Takes the arguments of `keras.layers.Dense`.

    Example:

    >>> tuple(TokenDense(5, activation="gelu")(np.ones((2, 3, 4), "float32")).shape)
    (2, 3, 5)
    """

    def call(self, inputs, training=None):
        """Map (B, T, D) to (B, T, U)."""
        return backend.dense(inputs, self.kernel, self.bias, self.activation, training)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras' own check refuses subclasses.
        return super().quantize(mode, type_check=False, config=config)

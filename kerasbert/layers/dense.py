"""A projection of tokens.

B batch, T tokens, D width, U units.
"""

import keras
from keras import ops

from kerasbert._keywords import ChecksKeywords
from kerasbert.backend import jax_on_gpu
from kerasbert.backend import tensorflow as _tensorflow
from kerasbert.backend.torch import addmm


def activation_function(name):
    """Keras' activation of that name, or one of the two forms of GELU that Keras has no name for.

    "gelu_approximate" is the tanh form, "quick_gelu" x * sigmoid(1.702 x).

    >>> float(activation_function("gelu_approximate")(np.array([1.0]))[0]) < 0.8413
    True
    """
    if name in ("gelu_approximate", "quick_gelu"):
        return _gelu_approximate if name == "gelu_approximate" else _quick_gelu
    return keras.activations.get(name)


@keras.saving.register_keras_serializable(package="kerasbert")
def _gelu_approximate(x):
    return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="kerasbert")
def _quick_gelu(x):
    """Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2."""
    return x * ops.sigmoid(1.702 * x)


def matmul_transposed(x, y):
    """Product (..., N, V) of (..., N, E) with (..., V, E) transposed.

    On TensorFlow without a transpose, in the gradient too.

    >>> float(matmul_transposed(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))[0, 0])
    11.0
    """
    if keras.backend.backend() == "tensorflow":
        return _tensorflow.matmul_transposed(x, y)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def at_least_float32(x):
    """The same in float32, or in its own type where that is wider.

    >>> keras.backend.standardize_dtype(at_least_float32(np.ones(2, "float16")).dtype)
    'float32'
    """
    is_wide = keras.backend.standardize_dtype(x.dtype) == "float64"
    return ops.cast(x, "float64" if is_wide else "float32")


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
        shape = ops.shape(inputs)
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B * T, D)
        if keras.backend.backend() == "torch" and self.bias is not None:
            outputs = addmm(rows, self.kernel, self.bias)
            outputs = outputs if self.activation is None else self.activation(outputs)
        elif jax_on_gpu() and self.activation is not None:
            # XLA would write what the gradient of GELU takes out beside its result, and read it
            # back: twice as much as the product has.
            outputs = keras.remat(self._finish)(ops.matmul(rows, self.kernel))
        elif training and self._is_gelu() and _tensorflow.has_onednn():
            outputs = self._with_bias(ops.matmul(rows, self.kernel))
            outputs = _tensorflow.gelu(outputs, self.activation is _gelu_approximate)
        else:
            outputs = super().call(rows)
        return ops.reshape(outputs, (*shape[:-1], self.units))

    def _is_gelu(self):
        return self.activation is keras.activations.gelu or self.activation is _gelu_approximate

    def _finish(self, rows):
        """Bias and activation, of rows (B * T, U)."""
        return self.activation(self._with_bias(rows))

    def _with_bias(self, rows):
        return rows if self.bias is None else ops.add(rows, self.bias)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras' own check refuses subclasses.
        return super().quantize(mode, type_check=False, config=config)

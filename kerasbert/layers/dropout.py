"""Dropout layer with the backend's cheapest random numbers."""

import keras

from kerasbert import backend
from kerasbert.base.keywords import ChecksKeywords


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
        return backend.dropout(inputs, self.rate, self.seed_generator)

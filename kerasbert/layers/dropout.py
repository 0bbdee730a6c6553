"""Dropout of tokens and of attention maps."""

import keras

from kerasbert._keywords import ChecksKeywords
from kerasbert.backend import jax as _jax
from kerasbert.backend import jax_on_gpu
from kerasbert.backend import tensorflow as _tensorflow


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenDropout(ChecksKeywords, keras.layers.Dropout):
    """`Dropout`, with a cheaper source of random numbers on a CPU with TensorFlow, a GPU with JAX.

    Takes the arguments of `keras.layers.Dropout`.

    Example:

    >>> x = TokenDropout(0.5)(np.ones((100, 100), "float32"), training=True)
    >>> 0.9 < float(keras.ops.mean(x)) < 1.1
    True
    """

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        if _tensorflow.has_onednn():
            return _tensorflow.dropout(inputs, self.rate, self.seed_generator)
        if jax_on_gpu():
            return _jax.dropout(inputs, self.rate, self.seed_generator)
        return super().call(inputs, training=training)

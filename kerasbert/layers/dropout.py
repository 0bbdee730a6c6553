"""Dropout of tokens and of attention maps."""

import keras

from kerasbert import _jax
from kerasbert._device import jax_on_gpu


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenDropout(keras.layers.Dropout):
    """`Dropout`, with a cheaper source of random numbers where JAX runs on a GPU.

    Takes the arguments of `keras.layers.Dropout`.

    Example:

    >>> x = TokenDropout(0.5)(np.ones((100, 100), "float32"), training=True)
    >>> 0.9 < float(keras.ops.mean(x)) < 1.1
    True
    """

    def call(self, inputs, training=False):
        if not jax_on_gpu():
            return super().call(inputs, training=training)
        if not training or not self.rate:
            return inputs
        return _jax.dropout(inputs, self.rate, self.seed_generator)

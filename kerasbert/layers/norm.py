"""Layer normalization of tokens.

B batch, T tokens, D width.
"""

import keras

from kerasbert._keywords import ChecksKeywords
from kerasbert.backend import jax as _jax
from kerasbert.backend import jax_on_gpu
from kerasbert.backend.tensorflow import has_onednn, layer_norm


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenNorm(ChecksKeywords, keras.layers.LayerNormalization):
    """`LayerNormalization` over the width, fused by TensorFlow where nothing trains.

    Takes the arguments of `keras.layers.LayerNormalization`.

    Example:

    >>> tuple(TokenNorm()(np.ones((2, 3, 4), "float32")).shape)
    (2, 3, 4)
    """

    def call(self, inputs, training=None):
        """Map (B, T, D) to (B, T, D)."""
        if jax_on_gpu():
            inputs = keras.ops.cast(inputs, self.compute_dtype)
            return _jax.layer_norm(inputs, self.gamma, self.beta, self.epsilon)
        if training or not has_onednn():
            return super().call(inputs)
        return layer_norm(
            keras.ops.cast(inputs, self.compute_dtype), self.gamma, self.beta, self.epsilon
        )

"""Layer normalization of tokens.

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert import backend
from kerasbert.base.keywords import ChecksKeywords

if TYPE_CHECKING:
    from kerasbert.base.aliases import Tensor


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
        inputs = keras.ops.cast(inputs, self.compute_dtype)
        return backend.norm(inputs, self.gamma, self.beta, self.epsilon, training)

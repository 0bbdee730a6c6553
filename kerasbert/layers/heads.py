"""What stands between the encoder and a task's logits.

B batch, T tokens, D width.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kerasbert")
class Pooling(keras.layers.Layer):
    """One vector a text from one vector a token.

    Args:
        mode: "cls", the first token, or "mean" over the tokens that are no padding.

    Example:

    >>> x = np.array([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> [float(v) for v in Pooling("mean")(x, padding_mask=np.array([[1, 1, 0]]))[0]]
    [2.0, 3.0]
    """

    def __init__(self, mode="cls", **kwargs):
        super().__init__(**kwargs)
        if mode not in ("cls", "mean"):
            raise ValueError(f"Unknown pooling mode '{mode}'; use 'cls' or 'mean'.")
        self.mode = mode
        self.built = True

    def call(self, inputs, padding_mask=None):
        """Map (B, T, D) and a mask (B, T) to (B, D)."""
        if self.mode == "cls":
            return inputs[:, 0, :]
        if padding_mask is None:
            return ops.mean(inputs, axis=1)
        weights = ops.cast(padding_mask, inputs.dtype)[:, :, None]
        total = ops.sum(inputs * weights, axis=1)
        return total / ops.maximum(ops.sum(weights, axis=1), ops.cast(1e-9, inputs.dtype))

    def compute_output_spec(self, inputs, padding_mask=None):
        return keras.KerasTensor((inputs.shape[0], inputs.shape[-1]), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}

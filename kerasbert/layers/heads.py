"""What stands between the encoder and a task's logits.

B batch, T tokens, D width.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kerasbert")
class Pooling(keras.layers.Layer):
    """One vector a text from one vector a token.

    Args:
        mode: "cls", the first token, "mean" over the tokens that are no padding, or "max", the
            largest value of each feature in them. A row of padding alone gives zeros for the
            last two.

    Example:

    >>> x = np.array([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> [float(v) for v in Pooling("mean")(x, padding_mask=np.array([[1, 1, 0]]))[0]]
    [2.0, 3.0]
    """

    def __init__(self, mode="cls", **kwargs):
        super().__init__(**kwargs)
        if mode not in ("cls", "mean", "max"):
            raise ValueError(f"Unknown pooling mode '{mode}'; use 'cls', 'mean' or 'max'.")
        self.mode = mode
        self.built = True

    def call(self, inputs, padding_mask=None):
        """Map (B, T, D) and a mask (B, T) to (B, D)."""
        if self.mode == "cls":
            return inputs[:, 0, :]
        if padding_mask is None:
            return (ops.mean if self.mode == "mean" else ops.max)(inputs, axis=1)
        if self.mode == "max":
            mask = ops.cast(padding_mask, "bool")[:, :, None]  # (B, T, 1)
            lowest = ops.full_like(inputs, float("-inf"))
            largest = ops.max(ops.where(mask, inputs, lowest), axis=1)
            return ops.where(ops.any(mask, axis=1), largest, ops.zeros_like(largest))
        weights = ops.cast(padding_mask, inputs.dtype)[:, :, None]
        total = ops.sum(inputs * weights, axis=1)
        return total / ops.maximum(ops.sum(weights, axis=1), ops.cast(1e-9, inputs.dtype))

    def compute_output_spec(self, inputs, padding_mask=None):
        return keras.KerasTensor((inputs.shape[0], inputs.shape[-1]), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}


@keras.saving.register_keras_serializable(package="kerasbert")
class ScalarMix(keras.layers.Layer):
    """A learned average of layers: `gamma * sum(softmax(scalars) * layers)`.

    It starts as the plain average.

    Example:

    >>> x = np.ones((1, 2, 3), "float32")
    >>> [float(v) for v in ScalarMix()([x, 3 * x])[0, 0]]
    [2.0, 2.0, 2.0]

    Source: Peters et al. 2018, arXiv 1802.05365, equation 1.
    """

    def build(self, inputs_shape):
        self.scalars = self.add_weight(
            shape=(len(inputs_shape),), initializer="zeros", name="scalars"
        )
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")

    def call(self, inputs):
        """Map a list of L tensors (B, T, D) to (B, T, D)."""
        shares = self.gamma * ops.softmax(self.scalars)  # (L,)
        return sum(shares[i] * x for i, x in enumerate(inputs))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs[0].shape, dtype=self.compute_dtype)


def unit_length(x):
    """Divide vectors (..., D) by their Euclidean length; one of zeros stays, gradient and all.

    >>> vectors = unit_length(np.array([[3.0, 4.0], [0.0, 0.0]]))
    >>> [[round(float(value), 4) for value in vector] for vector in vectors]
    [[0.6, 0.8], [0.0, 0.0]]
    """
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    # The limit stands inside the root, whose slope at zero is infinite.
    return ops.multiply(x, ops.rsqrt(ops.maximum(squares, 1e-24)))

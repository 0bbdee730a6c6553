"""What stands between the encoder and a task's logits.

B batch, C choices, T tokens, D width.
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


@keras.saving.register_keras_serializable(package="kerasbert")
class ChoicesToRows(keras.layers.Layer):
    """Lays the choices of all examples below each other, for the encoder.

    Example:

    >>> inputs = {name: np.ones((2, 4, 5), "int32") for name in ("token_ids", "padding_mask")}
    >>> tuple(ChoicesToRows()(inputs)["token_ids"].shape)
    (8, 5)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.built = True

    def call(self, inputs):
        """Map a dict of (B, C, T), with `padding_mask`, to a dict of (B * C, T)."""
        rows = {name: ops.reshape(x, (-1, ops.shape(x)[-1])) for name, x in inputs.items()}
        mask = ops.cast(rows["padding_mask"], "int32")
        # Attention over no token at all has no defined value: a missing choice gets its first one.
        is_missing = ops.cast(ops.sum(mask, axis=-1, keepdims=True) == 0, "int32")  # (B * C, 1)
        is_first = ops.cast(ops.arange(ops.shape(mask)[-1]) == 0, "int32")  # (T,)
        return {**rows, "padding_mask": mask + is_missing * is_first}

    def compute_output_spec(self, inputs):
        return {
            name: keras.KerasTensor((None, x.shape[-1]), dtype=x.dtype)
            for name, x in inputs.items()
        }


@keras.saving.register_keras_serializable(package="kerasbert")
class RowsToChoices(keras.layers.Layer):
    """Puts the logits of the rows beside each other again; those of missing choices are -1e9.

    Example:

    >>> logits = np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> mask = np.array([[[1, 1], [1, 0]], [[1, 1], [0, 0]]])
    >>> [float(v) for v in RowsToChoices()(logits, padding_mask=mask)[1]]
    [3.0, -1000000000.0]
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.built = True

    def call(self, logits, padding_mask):
        """Map logits (B * C, 1) and the mask (B, C, T) to (B, C)."""
        logits = ops.reshape(logits, ops.shape(padding_mask)[:2])
        # Finite, so that nothing becomes NaN; softmax gives it exactly 0.
        return ops.where(ops.any(padding_mask, axis=-1), logits, ops.cast(-1e9, logits.dtype))

    def compute_output_spec(self, logits, padding_mask):
        return keras.KerasTensor(padding_mask.shape[:2], dtype=self.compute_dtype)

"""Pooling over the windows of long texts.

B batch, W windows per text, T tokens per window, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base import keras_internals
from kerasbert.base.errors import check_choice
from kerasbert.layers.block import only_blocks_remat
from kerasbert.layers.heads import MISSING, Pooling

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

WINDOW_POOLINGS = ("mean", "max", "attention")


@keras.saving.register_keras_serializable(package="kerasbert")
class WindowPooling(Pooling):
    """Pooling of the embeddings of a text's windows into one embedding per text.

    Args:
        mode: "mean", "max", or "attention", a trained weighted average, initialized to the mean.
            Missing windows have a mask of 0.

    Example:

    >>> x, mask = np.array([[1.0], [3.0], [5.0], [9.0]]), np.array([[[1], [1]], [[1], [0]]])
    >>> [float(v) for v in WindowPooling("mean")(x, padding_mask=mask)[:, 0]]
    [2.0, 5.0]

    Source: Sun et al. 2019, arXiv 1905.05583, section 5.3.1; the attention is that of Yang et al.
    2016, "Hierarchical Attention Networks for Document Classification", section 2.2.
    """

    def __init__(self, mode: str = "mean", **kwargs: Any) -> None:
        check_choice("mode", mode, WINDOW_POOLINGS)
        super().__init__("mean" if mode == "attention" else mode, **kwargs)
        self.mode = mode
        self.built = mode != "attention"

    def build(self, inputs_shape: Any, padding_mask_shape: Any = None) -> None:
        if self.mode != "attention":
            return
        width = inputs_shape[-1]
        settings = {"dtype": self.dtype_policy}
        self.dense = keras.layers.Dense(width, activation="tanh", name="dense", **settings)
        self.query = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros", name="query", **settings
        )
        for layer in (self.dense, self.query):
            layer.build((None, width))
        only_blocks_remat(keras_internals.flatten_layers(self, include_self=False))

    def call(self, inputs: Tensor, padding_mask: Tensor) -> Tensor:
        """Map (B * W, D) and the mask (B, W, T) to (B, D)."""
        is_there = ops.any(ops.cast(padding_mask, "bool"), axis=-1)  # (B, W)
        x = ops.reshape(inputs, (*ops.shape(padding_mask)[:2], inputs.shape[-1]))
        if self.mode != "attention":
            return super().call(x, padding_mask=is_there)
        scores = ops.cast(self.query(self.dense(inputs)), "float32")
        scores = ops.where(is_there, ops.reshape(scores, ops.shape(is_there)), MISSING)
        # Keras' softmax would warn of single windows.
        odds = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True))
        shares = (odds / ops.sum(odds, axis=-1, keepdims=True))[:, :, None]
        return ops.sum(ops.cast(shares, x.dtype) * x, axis=1)

    def compute_output_spec(self, inputs: Tensor, padding_mask: Tensor) -> Any:
        shape = (padding_mask.shape[0], inputs.shape[-1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

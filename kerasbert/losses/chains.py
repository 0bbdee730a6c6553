"""The loss of taggers with a conditional random field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.losses.logits import MeanOfWeights

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class ChainCrossEntropy(MeanOfWeights):
    """Negative log-likelihood of the labels in a `kerasbert.layers.CRF`, per token.

    A row's chain has the tokens with a sample weight above 0 and a label of 0 or more. A token's
    loss is the negative log-probability of its label, given emissions and earlier labels. With
    equal weights, the mean is the rows' negative log-likelihood divided by the number of tokens
    ("token_mean" in pytorch-crf).

    Args:
        crf: the `CRF` layer. It is not in the config: a tagger sets its own.
        reduction, name, dtype: see `keras.losses.Loss`. The default is the weighted mean.

    Example:

    >>> from kerasbert.layers import CRF
    >>> crf = CRF()
    >>> emissions = crf(np.zeros((1, 4, 2), "float32"))
    >>> loss = ChainCrossEntropy(crf)(np.array([[0, 1, 1, 0]]), emissions, np.array([[1, 1, 0, 0]]))
    >>> round(float(loss), 4)
    0.6931
    """

    def __init__(
        self,
        crf: keras.layers.Layer | None = None,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "chain_cross_entropy",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.crf = crf

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        mask = chain_mask(y_true, y_pred, sample_weight)
        y_true = ops.reshape(ops.cast(y_true, "int32"), ops.shape(mask))
        weights = ops.cast(mask, "float32")
        if sample_weight is not None:
            weights = weights * _per_token(sample_weight, mask)
        return super().__call__(ops.where(mask, y_true, -1), y_pred, weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return self.crf.losses_of_tokens(y_pred, y_true, y_true >= 0)


def chain_mask(y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
    """Return which tokens are in the chain of their row, bool (B, T).

    Args:
        y_true: class indices (B, T) or (B, T, 1).
        y_pred: (B, T, C).
        sample_weight: (B, T) or (B,); `None` for ones.

    Raises:
        ValueError: for labels that are not class indices.
    """
    y_true = ops.convert_to_tensor(y_true)
    if len(y_true.shape) == 3 and y_true.shape[-1] != 1:
        raise ValueError(
            f"A CRF takes class indices (B, T) as labels, got distributions {y_true.shape}; pass "
            "labels.argmax(axis=-1)."
        )
    mask = ops.reshape(y_true, ops.shape(y_pred)[:2]) >= 0
    return mask if sample_weight is None else mask & (_per_token(sample_weight, mask) > 0)


def _per_token(weights, mask):
    weights = ops.cast(weights, "float32")
    rank = len(weights.shape)
    weights = ops.reshape(weights, (*ops.shape(weights)[:1], -1)) if rank != 2 else weights
    return ops.broadcast_to(weights, ops.shape(mask))

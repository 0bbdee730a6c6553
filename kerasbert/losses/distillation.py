"""Losses for distillation of a teacher's scores or embeddings; shapes as in `similarity`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.errors import check_choice, check_value
from kerasbert.losses.ranking import BatchHardTriplet, Contrastive, CoSENT, MultipleNegativesRanking
from kerasbert.losses.similarity import SIMILARITIES, VectorLoss, check_widths, similar

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class MarginMSE(VectorLoss):
    """Squared error of margins of positives over negatives, compared with a teacher's.

    Embeddings are (B, C, D): anchors, positives and N - 1 negatives. Labels are the teacher's
    margins (B,) or (B, N - 1), or its scores (B, N) of positives and negatives.

    Args:
        similarity: "dot", "cosine", or "maxsim" for token embeddings.
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [1, 0], [0, 1]]], "float32")
    >>> float(MarginMSE()(np.array([[3.0, 1.0]]), vectors))
    1.0

    Source: Hofstätter et al. 2020, arXiv 2010.02666.
    """

    least, most, what = 3, None, "three or more columns of texts"

    def __init__(
        self,
        similarity: str = "dot",
        reduction: str | None = "sum_over_batch_size",
        name: str = "margin_mse",
        dtype: Dtype = None,
    ) -> None:
        check_choice("similarity", similarity, SIMILARITIES)
        super().__init__(reduction, name, dtype, similarity=similarity)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        anchor, *others = self.columns(y_pred)
        scores = [similar(self.similarity, anchor, other) for other in others]
        margins = ops.stack([scores[0] - score for score in scores[1:]], axis=1)  # (B, N - 1)
        labels = ops.cast(y_true, margins.dtype)
        if len(labels.shape) == 1:
            labels = labels[:, None]
        if labels.shape[1] == len(others):
            labels = labels[:, :1] - labels[:, 1:]
        _check_scores(self, y_true, labels.shape[1], len(others) - 1)
        return ops.mean(ops.square(margins - labels), axis=-1)


def _check_scores(loss, y_true, found, wanted):
    if found != wanted:
        raise ValueError(
            f"{type(loss).__name__} expected the teacher's scores of {wanted} texts per row as "
            f"labels, got shape {tuple(y_true.shape)}; pass one list of scores per row."
        )


@keras.saving.register_keras_serializable(package="kerasbert")
class DistillKL(VectorLoss):
    """Kullback-Leibler divergence KL(teacher || model) of the distributions over N texts.

    Embeddings are (B, C, D): anchors and N texts; labels are the teacher's scores (B, N).

    Args:
        temperature: divisor of the scores of both models.
        similarity: "dot", "cosine", or "maxsim" for token embeddings.
        normalize_scores: whether to first rescale this model's scores in each row to 0 to 1; with
            "maxsim", this is PyLate's `Distillation`.
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [1, 0], [0, 1]]], "float32")
    >>> round(float(DistillKL()(np.array([[1.0, 0.0]]), vectors)), 4)
    0.0

    Source: Lin et al. 2020, arXiv 2010.11386.
    """

    least, most, what = 3, None, "three or more columns of texts"

    def __init__(
        self,
        temperature: float = 1.0,
        similarity: str = "dot",
        normalize_scores: bool = False,
        reduction: str | None = "sum_over_batch_size",
        name: str = "distill_kl",
        dtype: Dtype = None,
    ) -> None:
        check_value("temperature", temperature, "positive")
        check_choice("similarity", similarity, SIMILARITIES)
        check_value("normalize_scores", normalize_scores, "flag")
        super().__init__(
            reduction,
            name,
            dtype,
            temperature=temperature,
            similarity=similarity,
            normalize_scores=normalize_scores,
        )

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        anchor, *others = self.columns(y_pred)
        if len(y_true.shape) != 2:
            _check_scores(self, y_true, None, len(others))
        _check_scores(self, y_true, y_true.shape[1], len(others))
        scores = ops.stack([similar(self.similarity, anchor, other) for other in others], axis=1)
        if self.normalize_scores:
            least, most = (f(scores, axis=1, keepdims=True) for f in (ops.min, ops.max))
            # For equal scores: the gradient of 0 / 1e-8 would be 1e8.
            span = ops.where(most > least, most - least, 1.0)
            scores = (scores - least) / (span + 1e-8)
        teacher = ops.cast(y_true, scores.dtype) / self.temperature
        student = ops.log_softmax(scores / self.temperature, axis=-1)
        found = ops.softmax(teacher, axis=-1) * (ops.log_softmax(teacher, axis=-1) - student)
        return ops.sum(found, axis=-1) * self.temperature**2


@keras.saving.register_keras_serializable(package="kerasbert")
class EmbeddingLoss(keras.losses.Loss):
    """Default loss of a `BertTextEmbedder`, by embeddings and labels.

    - Pairs or more, (B, C, D), without labels or with text ids: `MultipleNegativesRanking`.
    - Pairs with the integers 0 and 1: `Contrastive`; with floats: `CoSENT`.
    - Token embeddings (B, C, T, D) without labels: `MultipleNegativesRanking` with "maxsim".
    - Texts (B, D) with class ids: `BatchHardTriplet`; with embeddings: mean squared error.

    Args:
        similarity: "cosine" or "dot", for `MultipleNegativesRanking`.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> loss = EmbeddingLoss()
    >>> vectors = np.array([[[1, 0], [0, 1]], [[1, 0], [1, 0]]], "float32")
    >>> float(loss(np.array([1, 0], "int32"), vectors))
    0.3125
    """

    def __init__(
        self, similarity: str = "cosine", name: str = "embedding_loss", dtype: Dtype = None
    ) -> None:
        check_choice("similarity", similarity, ("cosine", "dot"))
        super().__init__(name=name, reduction=None, dtype=dtype)
        self.similarity = similarity

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        return self.fitting(y_true, y_pred)(y_true, y_pred, sample_weight)

    def fitting(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss that fits these labels and embeddings."""
        is_whole = "int" in keras.backend.standardize_dtype(y_true.dtype)
        axes = len(y_true.shape)
        if axes == 2 and y_true.shape[1] == 1 and len(y_pred.shape) == 3:
            axes = 1
        if len(y_pred.shape) == 2 and axes == 2:
            check_widths(y_true, y_pred)
            return keras.losses.MeanSquaredError()
        if len(y_pred.shape) == 2:
            if is_whole:
                return BatchHardTriplet()
            raise ValueError(
                "The labels are a flat list of floats; for one text per row pass its class, an "
                "integer or a name, or one embedding."
            )
        of_tokens = len(y_pred.shape) == 4
        if axes == 1 and of_tokens:
            raise ValueError(
                "pooling='tokens' gives one embedding per token, but scores of pairs need one per "
                "text; pass pairs or triples without labels, a teacher's scores with "
                "DistillKL(similarity='maxsim'), or use pooling='mean', 'cls' or 'max'."
            )
        if axes == 1:
            return Contrastive() if is_whole else CoSENT()
        if is_whole and of_tokens:
            # MaxSim sums many cosines, so it needs no scale.
            return MultipleNegativesRanking(scale=1.0, similarity="maxsim")
        if is_whole and self.similarity == "dot":
            # Dot products are unbounded, so they need no scale.
            return MultipleNegativesRanking(scale=1.0, similarity="dot")
        if is_whole:
            return MultipleNegativesRanking()
        raise ValueError(
            f"Labels of shape {tuple(y_true.shape)} for embeddings of shape {tuple(y_pred.shape)} "
            "need an explicit loss; if they are a teacher's scores, compile with MarginMSE() or "
            "DistillKL() of kerasbert.losses."
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("reduction")
        return {**config, "similarity": self.similarity}

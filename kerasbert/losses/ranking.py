"""Contrastive and ranking losses on text embeddings; shapes as in `similarity`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend import of_all_replicas
from kerasbert.backend.layers import unit_length
from kerasbert.backend.losses import log_sum_exp
from kerasbert.base.errors import check_choice, check_value
from kerasbert.losses.similarity import (
    DISTANCES,
    NEVER,
    SIMILARITIES,
    VectorLoss,
    all_similar,
    cosine,
    numbers,
    similar,
)

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class MultipleNegativesRanking(VectorLoss):
    """Cross-entropy of ranking each anchor's positive before all other texts of the batch.

    Embeddings are (B, C, D): anchors, positives, and any number of hard negatives. Those of other
    rows, of all replicas, are in-batch negatives. Labels are text ids (B, C), which exclude
    duplicates of the positive, and positives of equal anchors, from the negatives. Ids below 0 and
    other labels exclude nothing.

    Args:
        scale: factor of the similarities.
        symmetric: whether to average with the reverse loss, which ranks each positive's anchor.
        similarity: "cosine", "dot", or "maxsim" for token embeddings; with "maxsim" and `scale=1.0`
            the loss is PyLate's `Contrastive`.
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> anchors, others = np.eye(2, 4), np.eye(2, 4)
    >>> vectors = np.stack([anchors, others], axis=1).astype("float32")
    >>> loss = MultipleNegativesRanking(scale=1.0)
    >>> round(float(loss(np.zeros(2), vectors)), 4)
    0.3133

    Sources: Henderson et al. 2017, arXiv 1705.00652, section 4; Gao et al. 2021, SimCSE, arXiv
    2104.08821, whose pairs are the same text under two dropout masks.
    """

    most, what = None, "two or more columns of texts"

    def __init__(
        self,
        scale: float = 20.0,
        symmetric: bool = False,
        similarity: str = "cosine",
        reduction: str | None = "sum_over_batch_size",
        name: str = "multiple_negatives_ranking",
        dtype: Dtype = None,
    ) -> None:
        check_value("scale", scale, "positive")
        check_value("symmetric", symmetric, "flag")
        check_choice("similarity", similarity, SIMILARITIES)
        super().__init__(
            reduction, name, dtype, scale=scale, symmetric=symmetric, similarity=similarity
        )

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        anchors, seconds, *_ = columns = self.columns(y_pred)
        # The A rows of all replicas, this one's first.
        every = of_all_replicas(y_pred)
        is_alone = every is y_pred
        columns = columns if is_alone else self.columns(every)
        count = len(columns) - 1  # N
        # By columns, so that the positives of all rows come first.
        others = ops.concatenate(columns[1:])  # (N * A, ...)
        scores = self.scale * all_similar(self.similarity, anchors, others)  # (B, N * A)
        total = ops.shape(columns[0])[0]
        rows = ops.arange(ops.shape(scores)[0])
        is_own = rows[:, None] == ops.arange(total)[None]  # (B, A)
        excluded = self._excluded(y_true, is_own, count)
        if excluded is not None:
            scores = ops.where(excluded, NEVER, scores)
        right = ops.sum(ops.where(is_own, scores[:, :total], 0.0), axis=-1)  # (B,)
        loss = log_sum_exp(scores) - right
        if self.symmetric:
            back = scores[:, :total]
            if not is_alone:
                back = self.scale * all_similar(self.similarity, columns[0], seconds)  # (A, B)
            back = ops.transpose(back)  # (B, A)
            if not is_alone and excluded is not None:
                # A text excluded in one direction is excluded in the other too.
                back = ops.where(excluded[:, :total], NEVER, back)
            loss = (loss + log_sum_exp(back) - right) / 2
        return loss

    def _excluded(self, y_true, is_own, count):
        """Return which texts (B, N * A) are not valid negatives; `None` without ids."""
        if len(y_true.shape) != 2 or y_true.shape[1] not in (None, count + 1):
            return None
        every = of_all_replicas(y_true)
        right, parts = y_true[:, 1], []
        for n in range(1, count + 1):
            one = _equal(right, every[:, n])
            if n == 1:
                one = ops.logical_or(one, _equal(y_true[:, 0], every[:, 0]))
                one = ops.logical_and(one, ops.logical_not(is_own))
            parts.append(one)
        return ops.concatenate(parts, axis=1)


def _equal(x, y):
    """Return which ids of (B,) and (B,) belong to the same text: (B, B)."""
    return ops.logical_and(x[:, None] == y[None], y[None] >= 0)


@keras.saving.register_keras_serializable(package="kerasbert")
class CoSENT(VectorLoss):
    """Ranking loss: of any two pairs, the one with the higher label should have the higher cosine.

    Embeddings are (B, 2, D), labels are scores (B,), of which only the order matters. There is one
    loss for the whole batch.

    Args:
        scale: factor of the cosines.
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]]], "float32")
    >>> round(float(CoSENT(scale=1.0)(np.array([0.9, 0.1]), vectors)), 4)
    0.3133

    Source: Huang et al. 2024, "CoSENT: Consistent Sentence Embedding via Similarity Ranking",
    10.1109/TASLP.2024.3402087.
    """

    def __init__(
        self,
        scale: float = 20.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "cosent",
        dtype: Dtype = None,
    ) -> None:
        check_value("scale", scale, "positive")
        super().__init__(reduction, name, dtype, scale=scale)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        scores = self.scale * cosine(*self.columns(y_pred))  # (B,)
        labels = numbers(self, y_true, y_pred)
        differences = scores[:, None] - scores[None]
        is_wrong_way = labels[:, None] < labels[None]
        differences = ops.reshape(ops.where(is_wrong_way, differences, NEVER), (-1,))
        return log_sum_exp(ops.concatenate([ops.zeros_like(scores[:1]), differences]))


@keras.saving.register_keras_serializable(package="kerasbert")
class CosineRegression(VectorLoss):
    """Squared error between a pair's cosine and its label.

    Embeddings are (B, 2, D), labels are floats (B,). The arguments are those of
    `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [0, 1]]], "float32")
    >>> float(CosineRegression()(np.array([0.5]), vectors))
    0.25
    """

    label_range = (-1, 1)

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "cosine_regression",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(reduction, name, dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.square(cosine(*self.columns(y_pred)) - numbers(self, y_true, y_pred))


@keras.saving.register_keras_serializable(package="kerasbert")
class Contrastive(VectorLoss):
    """Contrastive loss: pulls pairs with label 1 together and pushes pairs with label 0 apart.

    Embeddings are (B, 2, D), labels are (B,).

    Args:
        margin: distance beyond which pairs with label 0 have no loss.
        distance: "cosine" or "euclidean".
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [0, 1]], [[1, 0], [1, 0]]], "float32")
    >>> float(Contrastive()(np.array([1, 0]), vectors))
    0.3125

    Source: Hadsell et al. 2006, "Dimensionality Reduction by Learning an Invariant Mapping".
    """

    label_range = (0, 1)

    def __init__(
        self,
        margin: float = 0.5,
        distance: str = "cosine",
        reduction: str | None = "sum_over_batch_size",
        name: str = "contrastive",
        dtype: Dtype = None,
    ) -> None:
        check_value("margin", margin, "positive")
        check_choice("distance", distance, DISTANCES)
        super().__init__(reduction, name, dtype, margin=margin, distance=distance)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        far = DISTANCES[self.distance](*self.columns(y_pred))
        labels = numbers(self, y_true, y_pred)
        missing = ops.relu(self.margin - far)
        return 0.5 * (labels * ops.square(far) + (1 - labels) * ops.square(missing))


@keras.saving.register_keras_serializable(package="kerasbert")
class Triplet(VectorLoss):
    """Triplet loss: the positive must be nearer to the anchor than the negative, by a margin.

    Embeddings are (B, 3, D): anchor, positive, negative; labels are ignored.

    Args:
        margin: float.
        distance: "euclidean" or "cosine".
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [1, 0], [4, 4]]], "float32")
    >>> float(Triplet(margin=6.0)(np.zeros(1), vectors))
    1.0

    Source: Schroff et al. 2015, arXiv 1503.03832.
    """

    least, most, what = 3, 3, "three columns of texts"

    def __init__(
        self,
        margin: float = 5.0,
        distance: str = "euclidean",
        reduction: str | None = "sum_over_batch_size",
        name: str = "triplet",
        dtype: Dtype = None,
    ) -> None:
        check_value("margin", margin, "positive")
        check_choice("distance", distance, DISTANCES)
        super().__init__(reduction, name, dtype, margin=margin, distance=distance)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        anchor, near, far = self.columns(y_pred)
        distance = DISTANCES[self.distance]
        return ops.relu(distance(anchor, near) - distance(anchor, far) + self.margin)


@keras.saving.register_keras_serializable(package="kerasbert")
class BatchHardTriplet(VectorLoss):
    """Triplet loss with each text's hardest positive and hardest negative in the batch.

    Embeddings are (B, D), labels are class ids (B,).

    Args:
        margin: float.
        distance: "euclidean" or "cosine".
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[0.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    >>> round(float(BatchHardTriplet(margin=2.0)(np.array([0, 0, 1]), vectors)), 4)
    0.0

    Source: Hermans et al. 2017, arXiv 1703.07737.
    """

    def __init__(
        self,
        margin: float = 5.0,
        distance: str = "euclidean",
        reduction: str | None = "sum_over_batch_size",
        name: str = "batch_hard_triplet",
        dtype: Dtype = None,
    ) -> None:
        check_value("margin", margin, "positive")
        check_choice("distance", distance, DISTANCES)
        super().__init__(reduction, name, dtype, margin=margin, distance=distance)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if len(y_pred.shape) != 2:
            raise ValueError(
                f"BatchHardTriplet expected one embedding per text, (B, D), got shape "
                f"{tuple(y_pred.shape)}; pass a list of texts and their classes to fit()."
            )
        far = DISTANCES[self.distance](y_pred[:, None], y_pred[None])  # (B, B)
        labels = numbers(self, y_true, y_pred)
        is_same = labels[:, None] == labels[None]
        is_other = ops.logical_not(ops.cast(ops.eye(ops.shape(far)[0]), "bool"))
        same = ops.where(ops.logical_and(is_same, is_other), far, 0.0)
        # Without a text of another class, the largest distance is used.
        most = ops.max(far, axis=1, keepdims=True)
        others = ops.where(is_same, far + most, far)
        return ops.relu(ops.max(same, axis=1) - ops.min(others, axis=1) + self.margin)


@keras.saving.register_keras_serializable(package="kerasbert")
class MatchingCosine(keras.metrics.Mean):
    """Weighted mean cosine of matching embeddings.

    - If labels are target embeddings: the cosine of the model's and the target embedding.
    - For pairs or longer tuples of texts: the cosine of the first two; for token embeddings, MaxSim
      divided by the number of tokens of the first text.
    - For texts with classes: the cosine of any two texts of the same class in the batch.

    Example:

    >>> vectors = np.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]]], "float32")
    >>> float(MatchingCosine()(np.zeros((2, 2)), vectors))
    0.5
    """

    def __init__(self, name: str = "cosine", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        y_true, y_pred = map(ops.convert_to_tensor, (y_true, y_pred))
        if len(y_pred.shape) == 4:
            first, second = unit_length(y_pred[:, 0]), unit_length(y_pred[:, 1])  # (B, T, D)
            count = ops.sum(ops.any(first != 0, axis=-1), axis=-1)
            mean = similar("maxsim", first, second) / ops.cast(ops.maximum(count, 1), first.dtype)
            return super().update_state(mean, sample_weight)
        if len(y_pred.shape) == 3:
            return super().update_state(cosine(y_pred[:, 0], y_pred[:, 1]), sample_weight)
        if len(y_true.shape) == len(y_pred.shape):
            y_true = ops.cast(y_true, y_pred.dtype)
            return super().update_state(cosine(y_true, y_pred), sample_weight)
        labels = ops.reshape(y_true, (-1,))
        is_same = ops.cast(labels[:, None] == labels[None], y_pred.dtype)
        is_same = is_same - ops.eye(ops.shape(is_same)[0], dtype=is_same.dtype)
        if sample_weight is not None:
            is_same = is_same * ops.cast(ops.reshape(sample_weight, (-1, 1)), is_same.dtype)
        units = unit_length(y_pred)
        cosines = ops.matmul(units, ops.transpose(units))
        return super().update_state(ops.reshape(cosines, (-1,)), ops.reshape(is_same, (-1,)))

"""Losses for training embedders: contrastive, ranking and distillation losses on text embeddings.

B batch, C columns of texts (such as query, positive and negative passage), N = C - 1 columns after
the first, D embedding width.

Embeddings are (B, C, D), with `similarity="maxsim"` (B, C, T, D), one per token, zeros at padding.
Losses named as in sentence-transformers 6.2 (Reimers and Gurevych 2019, arXiv 1908.10084) have the
same formulas and defaults.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend import logarithm_of_odds, of_all_replicas, unit_length
from kerasbert.base.errors import check_choice, check_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor

# Score that removes a text from a softmax.
NEVER = -1e9


def _cosine(x, y):
    """Return the cosine similarities (...) of two tensors of vectors (..., D)."""
    return ops.sum(unit_length(x) * unit_length(y), axis=-1)


def _distance(x, y):
    """Return Euclidean distances (...) of two tensors of vectors (..., D), with gradient 0 at 0."""
    squares = ops.sum(ops.square(x - y), axis=-1)
    is_zero = squares <= 0
    return ops.where(is_zero, 0.0, ops.sqrt(ops.where(is_zero, 1.0, squares)))


def _cosine_distance(x, y):
    return 1 - _cosine(x, y)


DISTANCES = {"euclidean": _distance, "cosine": _cosine_distance}
SIMILARITIES = ("cosine", "dot", "maxsim")


def max_similarity(queries: Tensor, texts: Tensor) -> Tensor:
    """Compute MaxSim: the sum over query tokens of the largest dot product with a text token.

    Args:
        queries: floats (Q, S, D), one embedding per token, zeros at padding.
        texts: floats (N, T, D), likewise.

    Returns:
        Floats (Q, N).

    Example:

    >>> queries = np.array([[[1, 0], [0, 1], [0, 0]]], "float32")
    >>> texts = np.array([[[-1, 0], [0, 0]], [[1, 0], [0, 2]]], "float32")
    >>> ops.convert_to_numpy(max_similarity(queries, texts)).tolist()
    [[-1.0, 3.0]]

    Source: Khattab and Zaharia 2020, "ColBERT", arXiv 2004.12832, equation 3.
    """
    queries, texts = map(ops.convert_to_tensor, (queries, texts))
    count, length, width = ops.shape(queries)
    tokens = ops.reshape(texts, (-1, width))  # (N * T, D)
    products = ops.matmul(ops.reshape(queries, (-1, width)), ops.transpose(tokens))
    products = ops.reshape(products, (count, length, *ops.shape(texts)[:2]))  # (Q, S, N, T)
    return ops.sum(_best(products, texts), axis=1)


def _best(products, texts):
    """Take the maximum of products (..., N, T) over T: (..., N); 0 for a text without tokens."""
    is_token = ops.any(texts != 0, axis=-1)  # (N, T)
    best = ops.max(ops.where(is_token, products, NEVER), axis=-1)
    # Padding in queries needs no mask: its products are all 0.
    return ops.where(ops.any(is_token, axis=-1), best, 0.0)


def _all_similar(similarity, queries, texts):
    """Compute similarities of all pairs: (Q, ..., D) and (N, ..., D) to (Q, N)."""
    if similarity == "maxsim":
        return max_similarity(queries, texts)
    if similarity == "cosine":
        queries, texts = unit_length(queries), unit_length(texts)
    return ops.matmul(queries, ops.transpose(texts))


def _similar(similarity, queries, texts):
    """Compute similarities of corresponding rows of two tensors (B, ..., D): (B,)."""
    if similarity == "maxsim":
        products = ops.matmul(queries, ops.transpose(texts, (0, 2, 1)))  # (B, S, T)
        return ops.sum(_best(ops.transpose(products, (1, 0, 2)), texts), axis=0)
    return _cosine(queries, texts) if similarity == "cosine" else ops.sum(queries * texts, axis=-1)


def _numbers(loss, y_true, y_pred):
    """Return the labels as (B,), in the dtype of the embeddings."""
    if len(y_true.shape) > 1 and y_true.shape[1] != 1:
        raise ValueError(
            f"{type(loss).__name__} expected one number per row as labels, got shape "
            f"{tuple(y_true.shape)}; pass a list of numbers as y, or use MultipleNegativesRanking "
            "for pairs without labels."
        )
    return ops.reshape(ops.cast(y_true, y_pred.dtype), (-1,))


class _VectorLoss(keras.losses.Loss):
    """Base class of losses on embeddings.

    Args:
        settings: settings of the subclass, which become attributes and config.
    """

    least, most, what = 2, 2, "pairs of texts"
    # Smallest and largest valid label; `None` allows all.
    label_range = None

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Dtype = None,
        **settings: Any,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.settings = settings
        for key, value in settings.items():
            setattr(self, key, value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.settings}

    def columns(self, y_pred: Tensor) -> tuple[Any, ...]:
        """Check the shape of embeddings (B, C, ...) and split them into C of (B, ...)."""
        shape = tuple(y_pred.shape)
        of_tokens = self.settings.get("similarity") == "maxsim"
        if (len(shape) == 4) != of_tokens and len(shape) in (3, 4):
            one, other = ("text", "token") if of_tokens else ("token", "text")
            raise ValueError(
                f"{type(self).__name__} expected one embedding per {other}, got one per {one}, "
                f"shape {shape}; use similarity='maxsim' with pooling='tokens', and other "
                "similarities and losses with other poolings."
            )
        if len(shape) != 3 + of_tokens or not self.least <= shape[1] <= (self.most or shape[1]):
            raise ValueError(
                f"{type(self).__name__} expected embeddings of {self.what}, got shape {shape}; "
                "pass a tuple of lists of texts to fit(), one list per column."
            )
        return [y_pred[:, column] for column in range(shape[1])]


@keras.saving.register_keras_serializable(package="kerasbert")
class MultipleNegativesRanking(_VectorLoss):
    """Cross-entropy of ranking each anchor's positive before all other texts of the batch.

    Embeddings are (B, C, D): anchors, positives, and any number of hard negatives. Positives and
    hard negatives of the other rows are in-batch negatives. Labels are text ids (B, C), used to
    exclude duplicates of the positive, and positives of an equal anchor, from the negatives. Ids
    below 0 and labels of any other shape exclude nothing. The batch spans all replicas.

    Args:
        scale: float. Factor of the similarities.
        symmetric: bool. Whether to average with the reverse loss, which ranks each positive's
            anchor among all anchors.
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
    2104.08821, whose pairs are a text and the same text under another dropout mask.
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
        # The rows of all replicas (A), those of this replica first.
        every = of_all_replicas(y_pred)
        is_alone = every is y_pred
        columns = columns if is_alone else self.columns(every)
        count = len(columns) - 1  # N
        # Column by column, so that the positives of all rows come first.
        others = ops.concatenate(columns[1:])  # (N * A, ...)
        scores = self.scale * _all_similar(self.similarity, anchors, others)  # (B, N * A)
        total = ops.shape(columns[0])[0]
        rows = ops.arange(ops.shape(scores)[0])
        is_own = rows[:, None] == ops.arange(total)[None]  # (B, A)
        excluded = self._excluded(y_true, is_own, count)
        if excluded is not None:
            scores = ops.where(excluded, NEVER, scores)
        right = ops.sum(ops.where(is_own, scores[:, :total], 0.0), axis=-1)  # (B,)
        loss = logarithm_of_odds(scores) - right
        if self.symmetric:
            back = scores[:, :total]
            if not is_alone:
                back = self.scale * _all_similar(self.similarity, columns[0], seconds)  # (A, B)
            back = ops.transpose(back)  # (B, A)
            if not is_alone and excluded is not None:
                # Excluded negatives are excluded in both directions.
                back = ops.where(excluded[:, :total], NEVER, back)
            loss = (loss + logarithm_of_odds(back) - right) / 2
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
class CoSENT(_VectorLoss):
    """Ranking loss: of any two pairs, the one with the higher label should have the higher cosine.

    Embeddings are (B, 2, D), labels scores (B,), of which only the order matters. There is one
    loss for the whole batch.

    Args:
        scale: float. Factor of the cosines.
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
        scores = self.scale * _cosine(*self.columns(y_pred))  # (B,)
        labels = _numbers(self, y_true, y_pred)
        differences = scores[:, None] - scores[None]
        is_wrong_way = labels[:, None] < labels[None]
        differences = ops.reshape(ops.where(is_wrong_way, differences, NEVER), (-1,))
        return logarithm_of_odds(ops.concatenate([ops.zeros_like(scores[:1]), differences]))


@keras.saving.register_keras_serializable(package="kerasbert")
class CosineRegression(_VectorLoss):
    """Squared error between a pair's cosine and its label.

    Embeddings are (B, 2, D), labels floats (B,). Takes the arguments of `keras.losses.Loss`.

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
        return ops.square(_cosine(*self.columns(y_pred)) - _numbers(self, y_true, y_pred))


@keras.saving.register_keras_serializable(package="kerasbert")
class Contrastive(_VectorLoss):
    """Contrastive loss: pulls pairs with label 1 together and pushes those with label 0 apart.

    Embeddings are (B, 2, D), labels (B,).

    Args:
        margin: float. Distance beyond which pairs with label 0 have no loss.
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
        labels = _numbers(self, y_true, y_pred)
        missing = ops.relu(self.margin - far)
        return 0.5 * (labels * ops.square(far) + (1 - labels) * ops.square(missing))


@keras.saving.register_keras_serializable(package="kerasbert")
class Triplet(_VectorLoss):
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
class BatchHardTriplet(_VectorLoss):
    """Triplet loss with each text's hardest positive and hardest negative in the batch.

    Embeddings are (B, D), labels class ids (B,).

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
        labels = _numbers(self, y_true, y_pred)
        is_same = labels[:, None] == labels[None]
        is_other = ops.logical_not(ops.cast(ops.eye(ops.shape(far)[0]), "bool"))
        same = ops.where(ops.logical_and(is_same, is_other), far, 0.0)
        # Without a text of another class, the largest distance is used.
        most = ops.max(far, axis=1, keepdims=True)
        others = ops.where(is_same, far + most, far)
        return ops.relu(ops.max(same, axis=1) - ops.min(others, axis=1) + self.margin)


@keras.saving.register_keras_serializable(package="kerasbert")
class MarginMSE(_VectorLoss):
    """Squared error between this model's and a teacher's margins of positives over negatives.

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
        scores = [_similar(self.similarity, anchor, other) for other in others]
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
class DistillKL(_VectorLoss):
    """Kullback-Leibler divergence KL(teacher || model) of the distributions over N texts.

    Embeddings are (B, C, D): anchors and N texts; labels are the teacher's scores (B, N).

    Args:
        temperature: float. Divisor of the scores of both models.
        similarity: "dot", "cosine", or "maxsim" for token embeddings.
        normalize_scores: bool. Whether to first rescale this model's scores in each row to the
            range 0 to 1. With "maxsim" the loss is then PyLate's `Distillation`.
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
        scores = ops.stack([_similar(self.similarity, anchor, other) for other in others], axis=1)
        if self.normalize_scores:
            least, most = (f(scores, axis=1, keepdims=True) for f in (ops.min, ops.max))
            # With equal scores, the gradient of 0 / 1e-8 would be 1e8.
            span = ops.where(most > least, most - least, 1.0)
            scores = (scores - least) / (span + 1e-8)
        teacher = ops.cast(y_true, scores.dtype) / self.temperature
        student = ops.log_softmax(scores / self.temperature, axis=-1)
        found = ops.softmax(teacher, axis=-1) * (ops.log_softmax(teacher, axis=-1) - student)
        return ops.sum(found, axis=-1) * self.temperature**2


class _AroundLoss(keras.losses.Loss):
    """Base class of losses that wrap another one, `loss`, an object or its config."""

    def __init__(self, loss: Any, name: str, dtype: Dtype) -> None:
        super().__init__(name=name, reduction=None, dtype=dtype)
        if isinstance(loss, dict):
            loss = keras.saving.deserialize_keras_object(loss)
        if not isinstance(loss, keras.losses.Loss):
            raise ValueError(
                f"loss={loss!r} must be a loss object, such as one of kerasbert.losses."
            )
        if isinstance(loss, AdaptiveLayer):
            own = type(self).__name__
            raise ValueError(
                f"AdaptiveLayer must be the outermost loss, not inside {own}; write "
                f"AdaptiveLayer({own}(...))."
            )
        self.loss = loss

    @property
    def label_range(self) -> Any:
        return getattr(self.loss, "label_range", None)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("reduction")
        return {**config, "loss": keras.saving.serialize_keras_object(self.loss)}


@keras.saving.register_keras_serializable(package="kerasbert")
class Matryoshka(_AroundLoss):
    """Matryoshka loss: the weighted sum of another loss on truncated embeddings.

    The trained embeddings can be truncated to any of `dims`. Truncated embeddings are normalized.

    Args:
        loss: a loss on embeddings.
        dims: list of ints. Lengths to train; should include the full width.
        weights: list of floats, one per length; `None` means 1 each.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.stack([np.eye(2, 4), np.eye(2, 4)], axis=1).astype("float32")
    >>> loss = Matryoshka(MultipleNegativesRanking(scale=1.0), [4, 2])
    >>> round(float(loss(np.zeros(2), vectors)), 4)
    0.6265

    Source: Kusupati et al. 2022, arXiv 2205.13147.
    """

    def __init__(
        self,
        loss: Any,
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
        name: str = "matryoshka",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(loss, name, dtype)
        dims = list(dims) if hasattr(dims, "__len__") else [dims]
        for dim in dims:
            check_value("dims", dim, "count")
        weights = [1.0] * len(dims) if weights is None else list(weights)
        if not dims or len(weights) != len(dims):
            raise ValueError(
                f"dims={dims} and weights={weights} must be non-empty lists of the same length."
            )
        self.dims, self.weights = dims, weights

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        width = y_pred.shape[-1]
        if max(self.dims) > width:
            raise ValueError(
                f"dims={self.dims} must be at most {width}, the width of the embeddings; "
                f"got {max(self.dims)}."
            )
        has_vectors = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == width
        total = 0.0
        for dim, weight in zip(self.dims, self.weights, strict=True):
            labels = y_true[..., :dim] if has_vectors else y_true
            vectors = unit_length(y_pred[..., :dim])
            total += weight * self.loss(labels, vectors, sample_weight)
        return total

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dims": self.dims, "weights": self.weights}


class _DivergenceFromLast(keras.losses.Loss):
    """Kullback-Leibler divergence KL(last layer || layer) of embeddings.

    Features divided by the temperature serve as logits. The last layer is the teacher and gets no
    gradient.
    """

    def __init__(self, temperature, dtype):
        super().__init__(name="divergence", dtype=dtype)
        self.temperature = temperature

    def call(self, last, vectors):
        last = ops.log_softmax(ops.stop_gradient(last) / self.temperature, axis=-1)
        own = ops.log_softmax(vectors / self.temperature, axis=-1)
        found = ops.sum(ops.exp(last) * (last - own), axis=-1)  # (B,) or (B, C)
        return ops.mean(ops.reshape(found, (ops.shape(found)[0], -1)), axis=-1)


# Weight of the loss of layer i; layer 0 is the embedding layer.
LAYER_WEIGHTINGS = {
    "uniform": lambda i: 1.0,
    "log": lambda i: 1 / (1 + math.log(1 + i)),
    "linear": lambda i: 1 / (1 + i),
}


@keras.saving.register_keras_serializable(package="kerasbert")
class AdaptiveLayer(_AroundLoss):
    """Another loss, applied to the embeddings of the last layer and of earlier layers.

    The trained model can be truncated after any layer: `embedder.with_layers(range(3))` keeps the
    first three, which take half the time of six. A `BertTextEmbedder` with `layers="last"` passes
    this loss embeddings (B, C, L + 1, D), or (B, L + 1, D) for single texts, of the embedding layer
    (layer 0) and of L layers, pooled, projected and normalized like the last. Metrics only get the
    last layer's. Wrapped around `Matryoshka`, this is the 2D Matryoshka loss.

    The loss is the sum of `last_layer_weight` times the loss of the last layer,
    `prior_layers_weight` times the mean of the weighted losses of the sampled layers, and for each
    sampled layer `kl_div_weight` times `kl_temperature` times the Kullback-Leibler divergence from
    the last layer's embeddings.

    Args:
        loss: a loss on embeddings.
        n_layers_per_step: int. Number of earlier layers to sample in each step; -1 takes all.
        last_layer_weight, prior_layers_weight, kl_div_weight: floats.
        kl_temperature: float. Divisor of the embeddings in the divergence; 0 disables it.
        layer_weighting: weight of layer i: "uniform" 1, "log" 1 / (1 + ln(1 + i)), "linear"
            1 / (1 + i).
        seed: int. Seed of the sampling; must be the same in all processes.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> texts = np.stack([np.eye(2, 4), np.eye(2, 4)], axis=1)  # (B, C, D)
    >>> layers = np.stack([texts, texts, texts], axis=2).astype("float32")  # (B, C, L + 1, D)
    >>> loss = AdaptiveLayer(MultipleNegativesRanking(scale=1.0))
    >>> round(float(loss(np.zeros(2), layers)), 4)
    0.6265

    Source: Li et al. 2024, "2D Matryoshka Sentence Embeddings", arXiv 2402.14776; names and
    defaults as in sentence-transformers.
    """

    def __init__(
        self,
        loss: Any,
        n_layers_per_step: int = 1,
        last_layer_weight: float = 1.0,
        prior_layers_weight: float = 1.0,
        kl_div_weight: float = 1.0,
        kl_temperature: float = 0.3,
        layer_weighting: str = "uniform",
        seed: int | None = None,
        name: str = "adaptive_layer",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(loss, name, dtype)
        if n_layers_per_step != -1:
            check_value("n_layers_per_step", n_layers_per_step, "count")
        check_choice("layer_weighting", layer_weighting, LAYER_WEIGHTINGS)
        self.settings = {
            "n_layers_per_step": n_layers_per_step,
            "last_layer_weight": last_layer_weight,
            "prior_layers_weight": prior_layers_weight,
            "kl_div_weight": kl_div_weight,
            "kl_temperature": kl_temperature,
            "layer_weighting": layer_weighting,
            "seed": seed,
        }
        for key, value in self.settings.items():
            if key.endswith(("_weight", "_temperature")):
                check_value(key, value, "number")
            setattr(self, key, value)
        self.seed_generator = keras.random.SeedGenerator(seed)

    @property
    def variables(self) -> list[Any]:
        """The random state, to be tracked by the model that is trained."""
        return [self.seed_generator.state]

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
        if len(y_pred.shape) not in (3, 4):
            raise ValueError(
                "AdaptiveLayer expected the embeddings of all layers from a BertTextEmbedder, got "
                f"shape {tuple(y_pred.shape)}; compile other models with the inner loss alone."
            )
        count = y_pred.shape[-2] - 1  # L
        last, layers = y_pred[..., -1, :], y_pred[..., :-1, :]
        weights = ops.convert_to_tensor(
            [LAYER_WEIGHTINGS[self.layer_weighting](i) for i in range(count)], last.dtype
        )
        if 0 < self.n_layers_per_step < count:
            # Indices, not branches, so that one graph serves all samples.
            order = ops.argsort(keras.random.uniform((count,), seed=self.seed_generator))
            count = self.n_layers_per_step
            layers = ops.take(layers, order[:count], axis=-2)
            weights = ops.take(weights, order[:count])
        weights = weights * (self.prior_layers_weight / count)
        total = self.last_layer_weight * self.loss(y_true, last, sample_weight)
        divergence = self.kl_temperature and _DivergenceFromLast(self.kl_temperature, self.dtype)
        for i in range(count):
            vectors = layers[..., i, :]
            total = total + weights[i] * self.loss(y_true, vectors, sample_weight)
            if divergence:
                found = divergence(last, vectors, sample_weight)
                total = total + self.kl_div_weight * self.kl_temperature * found
        return total

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.settings}


def flops(vectors: Any) -> Tensor:
    """Return the FLOPS regularizer of sparse embeddings (B, V): the sum of squared mean weights.

    It estimates the cost of retrieval; weights must not be negative.

    >>> float(flops(np.array([[1.0, 0.0], [3.0, 0.0]])))
    4.0

    Source: arXiv 2004.05665, "Minimizing FLOPs to Learn Efficient Sparse Representations".
    """
    return ops.sum(ops.square(ops.mean(vectors, axis=0)))


@keras.saving.register_keras_serializable(package="kerasbert")
class Sparse(_AroundLoss):
    """Another loss plus `flops` regularization of queries and texts, which drives weights to 0.

    Embeddings are (B, C, V), with queries in the first column, or (B, V) for texts only.

    Args:
        loss: a loss on embeddings.
        query_weight: float. Weight of the `flops` of queries; 0 disables it.
        text_weight: float. Weight of the `flops` of texts.
        name, dtype: see `keras.losses.Loss`.

    Example:

    >>> vectors = np.array([[[1, 0], [1, 0]], [[1, 0], [1, 0]]], "float32")
    >>> loss = Sparse(CosineRegression(), query_weight=0.5, text_weight=0.25)
    >>> float(loss(np.array([1.0, 1.0]), vectors))
    0.75

    Source: Formal et al. 2021, arXiv 2109.10086; weights as in sentence-transformers' example.
    """

    def __init__(
        self,
        loss: Any,
        query_weight: float = 5e-5,
        text_weight: float = 3e-5,
        name: str = "sparse",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(loss, name, dtype)
        check_value("query_weight", query_weight, "number")
        check_value("text_weight", text_weight, "number")
        self.query_weight, self.text_weight = query_weight, text_weight

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        total = self.loss(y_true, y_pred, sample_weight)
        if len(y_pred.shape) == 2:
            return total + self.text_weight * flops(y_pred)
        texts = ops.reshape(y_pred[:, 1:], (-1, y_pred.shape[-1]))
        total = total + self.query_weight * flops(y_pred[:, 0])
        return total + self.text_weight * flops(texts)

    def get_config(self) -> dict[str, Any]:
        weights = {"query_weight": self.query_weight, "text_weight": self.text_weight}
        return {**super().get_config(), **weights}


@keras.saving.register_keras_serializable(package="kerasbert")
class EmbeddingLoss(keras.losses.Loss):
    """Default loss of a `BertTextEmbedder`; selects a loss by the embeddings and labels.

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


def check_widths(y_true, y_pred):
    """Raise if target embeddings (B, D) differ in width from the model's and would broadcast."""
    if y_true.shape[-1] not in (None, y_pred.shape[-1]):
        raise ValueError(
            f"The labels are embeddings of width {y_true.shape[-1]}, but the model's have width "
            f"{y_pred.shape[-1]}; pass embeddings of that width, or classes as a flat list."
        )


@keras.saving.register_keras_serializable(package="kerasbert")
class ActiveWords(keras.metrics.Mean):
    """Mean number of nonzero weights of sparse embeddings (B, C, V) or (B, V).

    Example:

    >>> float(ActiveWords()(np.zeros(2), np.array([[0.0, 2.0, 1.0], [0.0, 1.0, 0.0]])))
    1.5
    """

    def __init__(self, name: str = "active_words", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        counts = ops.sum(ops.cast(ops.not_equal(y_pred, 0), "float32"), axis=-1)  # (B, C) or (B,)
        if len(y_pred.shape) == 3:
            counts = ops.mean(counts, axis=1)
        return super().update_state(counts, sample_weight)


@keras.saving.register_keras_serializable(package="kerasbert")
class MatchingCosine(keras.metrics.Mean):
    """Weighted mean cosine of matching embeddings.

    - Target embeddings as labels: cosine of the model's and the target embedding.
    - Pairs or more: cosine of the first and second text; for token embeddings, MaxSim divided by
      the number of tokens of the first text.
    - Texts with classes: cosine of all texts of the same class in the batch.

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
            mean = _similar("maxsim", first, second) / ops.cast(ops.maximum(count, 1), first.dtype)
            return super().update_state(mean, sample_weight)
        if len(y_pred.shape) == 3:
            return super().update_state(_cosine(y_pred[:, 0], y_pred[:, 1]), sample_weight)
        if len(y_true.shape) == len(y_pred.shape):
            y_true = ops.cast(y_true, y_pred.dtype)
            return super().update_state(_cosine(y_true, y_pred), sample_weight)
        labels = ops.reshape(y_true, (-1,))
        is_same = ops.cast(labels[:, None] == labels[None], y_pred.dtype)
        is_same = is_same - ops.eye(ops.shape(is_same)[0], dtype=is_same.dtype)
        if sample_weight is not None:
            is_same = is_same * ops.cast(ops.reshape(sample_weight, (-1, 1)), is_same.dtype)
        units = unit_length(y_pred)
        cosines = ops.matmul(units, ops.transpose(units))
        return super().update_state(ops.reshape(cosines, (-1,)), ops.reshape(is_same, (-1,)))

"""Losses and metrics for token prediction, classification, text pairs and parse trees.

B batch, P predictions, V vocabulary size, C classes or texts per list, W words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert import backend
from kerasbert.backend.layers import at_least_float32
from kerasbert.backend.losses import cross_entropy, first_choice, log_sum_exp
from kerasbert.base.errors import check_choice, check_value

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Dtype, Tensor


def token_cross_entropy(labels: Any, logits: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Compute the cross-entropy of each prediction.

    Args:
        labels: ids (B, P), as ints or floats.
        logits: floats (B, P, V).
        label_smoothing: share of each label that is spread evenly over all V tokens.

    Returns:
        floats (B, P).
    """
    labels, logits = ops.cast(labels, "int32"), ops.convert_to_tensor(logits)
    entropy = cross_entropy(labels, logits)
    if not label_smoothing:
        return entropy
    logits = at_least_float32(logits)
    even = log_sum_exp(logits) - ops.mean(logits, axis=-1)
    return (1 - label_smoothing) * ops.cast(entropy, even.dtype) + label_smoothing * even


def is_first_choice(labels: Any, logits: Tensor) -> Tensor:
    """Return 1.0 where the label has the (first) largest logit, and 0.0 elsewhere: (B, P)."""
    chosen = first_choice(ops.convert_to_tensor(logits))
    return ops.cast(ops.equal(ops.cast(chosen, "int32"), ops.cast(labels, "int32")), "float32")


class MeanOfWeights(keras.losses.Loss):
    """Base class of losses that are weighted means over all replicas of a step.

    Keras averages per replica first, which favors replicas with few tokens.
    """

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Any:
        loss = super().__call__(y_true, y_pred, sample_weight)
        if sample_weight is None or self.reduction != "mean_with_sample_weight":
            return loss
        own = ops.sum(ops.cast(sample_weight, "float32"))
        mean = backend.mean_of_replicas(own)
        return loss if mean is own else loss * ops.cast(own / ops.maximum(mean, 1e-9), loss.dtype)


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenCrossEntropy(MeanOfWeights):
    """Cross-entropy over a vocabulary, by default the weighted mean over predictions.

    Args:
        label_smoothing: share of each label that is spread evenly over all tokens (Szegedy et al.
            2015, arXiv 1512.00567, section 7).
        reduction, name, dtype: see `keras.losses.Loss`.

    Example:

    >>> logits = np.log([[[0.7, 0.2, 0.1], [0.2, 0.4, 0.4]]])
    >>> labels, weights = np.array([[0, 1]]), np.array([[1, 0]])
    >>> round(float(TokenCrossEntropy()(labels, logits, weights)), 4)
    0.3567
    """

    def __init__(
        self,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "token_cross_entropy",
        dtype: Dtype = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        check_value("label_smoothing", label_smoothing, "share")
        self.label_smoothing = label_smoothing

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


class TokenMean(keras.metrics.Mean):
    """Base class of metrics that are weighted means over the tokens of all batches.

    Keras' own metrics average each row first, which favors short rows.
    """

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        values = self.of_tokens(ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred))
        if sample_weight is not None:
            weights = ops.cast(sample_weight, values.dtype)
            weights = ops.reshape(weights, (*ops.shape(weights), *[1] * (2 - len(weights.shape))))
            sample_weight = ops.reshape(ops.broadcast_to(weights, ops.shape(values)), (-1,))
        return super().update_state(ops.reshape(values, (-1,)), sample_weight)

    def of_tokens(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Compute the value of each token (B, P)."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


@keras.saving.register_keras_serializable(package="kerasbert")
class TokenAccuracy(TokenMean):
    """Weighted share of predictions whose label has the largest logit.

    Example:

    >>> accuracy = TokenAccuracy()
    >>> float(accuracy([[0, 2]], [[[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]]]))
    0.5
    """

    def __init__(self, name: str = "accuracy", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "up"

    def of_tokens(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return is_first_choice(y_true, y_pred)


@keras.saving.register_keras_serializable(package="kerasbert")
class BinaryTokenCrossEntropy(MeanOfWeights):
    """Binary cross-entropy per token, (B, T), by default the weighted mean.

    Example:

    >>> loss = BinaryTokenCrossEntropy()
    >>> round(float(loss([[1, 0]], np.array([[0.0, 9.0]]), np.array([[1.0, 0.0]]))), 4)
    0.6931
    """

    def __init__(
        self,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "binary_token_cross_entropy",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.binary_crossentropy(ops.cast(y_true, y_pred.dtype), y_pred, from_logits=True)


@keras.saving.register_keras_serializable(package="kerasbert")
class BinaryTokenAccuracy(TokenMean):
    """Weighted share of tokens whose logit is positive if and only if their label is 1.

    Example:

    >>> float(BinaryTokenAccuracy()([[1, 0]], np.array([[0.5, 2.0]])))
    0.5
    """

    def __init__(self, name: str = "accuracy", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "up"

    def of_tokens(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.cast(ops.equal(y_pred > 0, ops.cast(y_true, "bool")), "float32")


@keras.saving.register_keras_serializable(package="kerasbert")
class PositiveShare(TokenMean):
    """Weighted share of labels that are 1: the error rate of always predicting 0.

    Example:

    >>> float(PositiveShare()([[1, 0, 0, 0]], np.zeros((1, 4))))
    0.25
    """

    def __init__(self, name: str = "positive_share", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"

    def of_tokens(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.cast(y_true, "float32")


@keras.saving.register_keras_serializable(package="kerasbert")
class Perplexity(TokenMean):
    """Perplexity: the exponential of the weighted mean cross-entropy.

    Example:

    >>> perplexity = Perplexity()
    >>> round(float(perplexity([[0, 2]], [[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]])), 4)
    4.0
    """

    def __init__(self, name: str = "perplexity", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"

    def result(self) -> Tensor:
        return ops.exp(super().result())

    def of_tokens(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return token_cross_entropy(y_true, y_pred)


def _are_rows(y_true, y_pred):
    """Return whether labels are distributions (..., C) like the outputs, not class ids."""
    return len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] != 1


@keras.saving.register_keras_serializable(package="kerasbert")
class ClassCrossEntropy(MeanOfWeights, keras.losses.SparseCategoricalCrossentropy):
    """Cross-entropy for class ids (...), or for one-hot or soft labels (..., C).

    Args:
        label_smoothing: share of each label that is spread evenly over all classes.
        *args, **kwargs: those of `keras.losses.SparseCategoricalCrossentropy`.

    Example:

    >>> loss, logits = ClassCrossEntropy(from_logits=True), np.log([[0.7, 0.2, 0.1]])
    >>> round(float(loss(np.array([0]), logits)), 4)
    0.3567
    >>> round(float(loss(np.array([[1.0, 0.0, 0.0]]), logits)), 4)
    0.3567
    """

    def __init__(self, *args: Any, label_smoothing: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_value("label_smoothing", label_smoothing, "share")
        ignored = super().get_config()["ignore_class"]
        if label_smoothing and ignored is not None:
            raise ValueError(
                f"label_smoothing={label_smoothing} cannot be combined with ignore_class={ignored}"
                "; give these labels the sample weight 0 instead."
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        config, share = super().get_config(), self.label_smoothing
        if _are_rows(y_true, y_pred):
            return keras.losses.categorical_crossentropy(
                y_true, y_pred, from_logits=config["from_logits"], label_smoothing=share
            )
        loss = super().call(y_true, y_pred)
        if not share:
            return loss
        tiny = keras.config.epsilon()
        odds = (
            ops.log_softmax(y_pred, axis=-1)
            if config["from_logits"]
            else ops.log(ops.clip(y_pred, tiny, 1 - tiny))
        )
        even = -ops.mean(odds, axis=-1)
        return (1 - share) * loss + share * even

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Without it, earlier versions can read the config.
        return config | ({"label_smoothing": self.label_smoothing} if self.label_smoothing else {})


@keras.saving.register_keras_serializable(package="kerasbert")
class ClassAccuracy(keras.metrics.MeanMetricWrapper):
    """Accuracy for the labels of `ClassCrossEntropy`.

    Example:

    >>> accuracy, logits = ClassAccuracy(), np.array([[0.7, 0.2, 0.1]])
    >>> float(accuracy([0], logits)), float(accuracy([[1.0, 0.0, 0.0]], logits))
    (1.0, 1.0)
    """

    def __init__(self, name: str = "accuracy", dtype: Dtype = None) -> None:
        super().__init__(_is_right, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _is_right(y_true, y_pred):
    y_true, y_pred = keras.ops.convert_to_tensor(y_true), keras.ops.convert_to_tensor(y_pred)
    if _are_rows(y_true, y_pred):
        return keras.metrics.categorical_accuracy(y_true, y_pred)
    return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)


@keras.saving.register_keras_serializable(package="kerasbert")
class ClassScore(keras.metrics.Metric):
    """F1, precision or recall of the predicted classes, for the labels of `ClassAccuracy`.

    Args:
        score: "f1", "precision" or "recall".
        classes: int. C.
        positive: int. The class to score; `None` averages over all that occur (macro average), as
            in scikit-learn.

    Example:

    >>> score, logits = ClassScore("f1", 3), np.array([[9.0, 0, 0], [9.0, 0, 0], [0, 9.0, 0]])
    >>> round(float(score([0, 1, 1], logits)), 4)
    0.6667
    """

    def __init__(
        self,
        score: str,
        classes: int,
        positive: int | None = None,
        name: str | None = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(name=name or f"macro_{score}", dtype=dtype)
        check_choice("score", score, ("f1", "precision", "recall"))
        self.score, self.classes, self.positive = score, classes, positive
        self._direction = "up"
        self.counts = self.add_variable((3, classes), initializer="zeros", name="counts")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if _are_rows(y_true, y_pred):
            y_true = ops.argmax(y_true, axis=-1)
        gold = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), self.classes)
        chosen = ops.reshape(ops.argmax(y_pred, axis=-1), (-1,))
        chosen = ops.one_hot(ops.cast(chosen, "int32"), self.classes)  # (N, C)
        weights = ops.ones_like(gold[:, 0])
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, gold.dtype), (-1,))
        parts = [gold * chosen, gold, chosen]
        sums = ops.stack([ops.sum(part * weights[:, None], axis=0) for part in parts])
        self.counts.assign_add(ops.cast(sums, self.counts.dtype))

    def result(self) -> Tensor:
        right, gold, chosen = self.counts[0], self.counts[1], self.counts[2]
        total = {"f1": (gold + chosen) / 2, "precision": chosen, "recall": gold}[self.score]
        scores = right / ops.where(total > 0, total, 1.0)
        if self.positive is not None:
            return scores[self.positive]
        there = ops.cast(gold + chosen > 0, scores.dtype)
        return ops.sum(scores * there) / ops.maximum(ops.sum(there), 1.0)

    def get_config(self) -> dict[str, Any]:
        config = {"score": self.score, "classes": self.classes, "positive": self.positive}
        return {"name": self.name, "dtype": self.dtype, **config}


def _of_lists(values, y_true):
    """Average values of lists (B, C) over labels that are not -1; return pairs (B,) unchanged."""
    if len(values.shape) < 2:
        return values
    is_known = y_true >= 0
    total = ops.sum(ops.where(is_known, values, 0.0), axis=-1)
    return total / ops.maximum(ops.sum(ops.cast(is_known, values.dtype), axis=-1), 1.0)


class _PairLoss(keras.losses.Loss):
    """Base class of pointwise losses on text pairs."""

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true = ops.cast(y_true, y_pred.dtype)
        if len(y_pred.shape) == 2:
            # The very low logits of missing texts would overflow.
            y_pred = ops.where(y_true >= 0, y_pred, 0.0)
        return _of_lists(self.of_pairs(y_true, y_pred), y_true)

    def of_pairs(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Compute the loss of each pair."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="kerasbert")
class PairCrossEntropy(_PairLoss):
    """Binary cross-entropy of pairs (B,) or lists of pairs (B, C); labels from 0 to 1.

    All lists count equally. The label -1 marks a missing text.

    Example:

    >>> loss = PairCrossEntropy()
    >>> round(float(loss(np.array([1.0]), np.array([0.0]))), 4)
    0.6931
    >>> round(float(loss(np.array([[1.0, -1.0]]), np.array([[0.0, -1e9]]))), 4)
    0.6931
    """

    def of_pairs(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.binary_crossentropy(y_true, y_pred, from_logits=True)


@keras.saving.register_keras_serializable(package="kerasbert")
class PairSquaredError(_PairLoss):
    """Squared error of pairs (B,) or lists of pairs (B, C), as in `PairCrossEntropy`.

    Example:

    >>> float(PairSquaredError()(np.array([[1.0, -1.0]]), np.array([[3.0, -1e9]])))
    4.0
    """

    def of_pairs(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.square(y_pred - y_true)


@keras.saving.register_keras_serializable(package="kerasbert")
class PairAccuracy(keras.metrics.MeanMetricWrapper):
    """Share of pairs whose logit is above 0 if and only if their label is above 0.5.

    Lists of pairs are averaged as in `PairCrossEntropy`.

    Example:

    >>> float(PairAccuracy()(np.array([1.0, 0.0]), np.array([2.0, 3.0])))
    0.5
    """

    def __init__(self, name: str = "accuracy", dtype: Dtype = None) -> None:
        super().__init__(_is_right_of_pairs, name=name, dtype=dtype)
        self._direction = "up"

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _is_right_of_pairs(y_true, y_pred):
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    return _of_lists(ops.cast(ops.equal(y_pred > 0, y_true > 0.5), "float32"), y_true)


@keras.saving.register_keras_serializable(package="kerasbert")
class TreeLoss(keras.losses.Loss):
    """Mean absolute error of predicted distances or depths in parse trees.

    Labels are (B, W, W) or (B, W); -1 is ignored. A sentence's errors are averaged over W * W or W,
    so that all sentences count equally.

    Example:

    >>> labels = np.array([[0, 1, -1], [2, 1, 0]])
    >>> float(TreeLoss()(labels, np.array([[0.0, 3.0, 7.0], [2.0, 1.0, 3.0]])))
    1.0

    Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word
    Representations", NAACL, section 2.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "tree_loss",
        dtype: Dtype = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true = ops.cast(y_true, y_pred.dtype)
        is_known = ops.cast(y_true != -1, y_pred.dtype)
        axes = tuple(range(1, len(y_pred.shape)))
        total = ops.sum(ops.abs(y_pred - y_true) * is_known, axis=axes)
        return total / ops.maximum(ops.sum(is_known, axis=axes), 1.0)

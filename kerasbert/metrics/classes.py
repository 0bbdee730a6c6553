"""Metrics of classification and regression.

N examples.
"""

from __future__ import annotations

import types
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike


def accuracy(y: ArrayLike, predictions: Any) -> float:
    """Return the share of correct predictions.

    Args:
        y, predictions: class indices or names (N,).

    >>> accuracy(["ham", "spam", "ham"], ["ham", "spam", "spam"])
    0.6666666666666666
    """
    y, predictions = _classes(y, predictions)
    return float(np.mean(y == predictions))


def f1(y: ArrayLike, predictions: Any, positive: Any = 1) -> float:
    """Return the F1 of one class; 0 if it occurs neither in `y` nor in `predictions`.

    Args:
        y, predictions: class indices or names (N,).
        positive: int. The class to score.

    >>> f1([1, 1, 0, 0], [1, 0, 1, 0])
    0.5
    """
    return _of_class("f1", y, predictions, positive)


def precision(y: Any, predictions: Any, positive: Any = 1) -> float:
    """Return the precision of one class; arguments as for `f1`.

    >>> precision([1, 1, 0, 0], [1, 0, 0, 0])
    1.0
    """
    return _of_class("precision", y, predictions, positive)


def recall(y: Any, predictions: Any, positive: Any = 1) -> float:
    """Return the recall of one class; arguments as for `f1`.

    >>> recall([1, 1, 0, 0], [1, 0, 0, 0])
    0.5
    """
    return _of_class("recall", y, predictions, positive)


def macro_f1(y: ArrayLike, predictions: Any) -> float:
    """Return the mean F1 of all classes that occur in `y` or in `predictions`.

    Args:
        y, predictions: class indices or names (N,).
    """
    return _mean_of_classes("f1", y, predictions)


def macro_precision(y: Any, predictions: Any) -> float:
    """Return the mean precision, as `macro_f1`."""
    return _mean_of_classes("precision", y, predictions)


def macro_recall(y: Any, predictions: Any) -> float:
    """Return the mean recall, as `macro_f1`."""
    return _mean_of_classes("recall", y, predictions)


#: Name of the macro average of each per-class score.
MACRO = types.MappingProxyType({name: f"macro_{name}" for name in ("f1", "precision", "recall")})


def scores_by_class(
    y: ArrayLike, predictions: Any, labels: Any = None
) -> dict[Any, dict[str, Any]]:
    """Return F1, precision and recall for each class.

    Args:
        y, predictions: class indices or names (N,).
        labels: list of classes; by default all that occur in `y` or in `predictions`.

    Returns:
        Dict of class to a dict of `f1`, `precision`, `recall`, and two counts: `gold` (in `y`) and
        `predicted`.

    >>> scores_by_class(["a", "b"], ["a", "a"])["a"]
    {'f1': 0.6666666666666666, 'precision': 0.5, 'recall': 1.0, 'gold': 1, 'predicted': 2}
    """
    from sklearn.metrics import precision_recall_fscore_support

    y, predictions = _classes(y, predictions)
    labels = np.unique([*y, *predictions]).tolist() if labels is None else list(labels)
    columns = precision_recall_fscore_support(y, predictions, labels=labels, zero_division=0)
    return {
        label: {
            "f1": float(f1),
            "precision": float(precision),
            "recall": float(recall),
            "gold": int(gold),
            "predicted": int((predictions == label).sum()),
        }
        for label, precision, recall, f1, gold in zip(labels, *columns)
    }


def _of_class(score, y, predictions, positive):
    from sklearn import metrics

    y, predictions = _classes(y, predictions)
    if (y.dtype.kind in "OSU") != isinstance(positive, str):
        raise ValueError(
            f"positive={positive!r} is not a class like {y[0]!r}; pass the class to score."
        )
    function = getattr(metrics, f"{score}_score")
    return float(function(y, predictions, labels=[positive], average="macro", zero_division=0))


def _mean_of_classes(score, y, predictions):
    from sklearn import metrics

    y, predictions = _classes(y, predictions)
    return float(
        getattr(metrics, f"{score}_score")(y, predictions, average="macro", zero_division=0)
    )


def matthews(y: ArrayLike, predictions: Any) -> float:
    """Return the Matthews correlation of any number of classes; 0 for a single class.

    Args:
        y, predictions: class indices or names (N,).

    >>> matthews([1, 1, 0, 0], [1, 1, 0, 1])
    0.5773502691896258
    """
    from sklearn.metrics import matthews_corrcoef

    y, predictions = _classes(y, predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The result is 0 for a single class.
        return float(matthews_corrcoef(y, predictions))


def pearson(y: ArrayLike, predictions: ArrayLike) -> float:
    """Return Pearson's correlation; 0 if either side is constant.

    Args:
        y, predictions: floats (N,).

    >>> round(pearson([1.0, 2.0, 4.0], [2.0, 3.0, 5.0]), 6)
    1.0
    """
    return _correlation("pearsonr", y, predictions)


def spearman(y: ArrayLike, predictions: ArrayLike) -> float:
    """Return Spearman's rank correlation; ties share their mean rank.

    Args:
        y, predictions: floats (N,).

    >>> round(spearman([1, 2, 3, 4], [1, 4, 9, 16]), 6)
    1.0
    """
    return _correlation("spearmanr", y, predictions)


def mean_absolute_error(y: ArrayLike, predictions: ArrayLike) -> float:
    """Return the mean absolute error; lower is better.

    Args:
        y, predictions: floats (N,).
    """
    y, predictions = _numbers(y, predictions)
    return float(np.mean(np.abs(y - predictions)))


def f1_from(y: ArrayLike, predictions: ArrayLike, threshold: float = 3.0) -> float:
    """Return the F1 of the class "at least the threshold", as KLUE reports for similarity.

    Args:
        y, predictions: floats (N,).
        threshold: float.
    """
    y, predictions = _numbers(y, predictions)
    return f1((y >= threshold).astype(int), (predictions >= threshold).astype(int))


def _correlation(name, y, predictions):
    import scipy.stats

    y, predictions = _numbers(y, predictions)
    if len(y) < 2 or np.ptp(y) == 0 or np.ptp(predictions) == 0:
        return 0.0  # The correlation is undefined, but NaN would stop callbacks.
    with warnings.catch_warnings():
        # The correlation of nearly constant columns is inexact, but defined.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return float(getattr(scipy.stats, name)(y, predictions).statistic)


def check_sizes(y, predictions):
    if len(y) != len(predictions):
        raise ValueError(
            f"There are {len(y)} labels in y but {len(predictions)} predictions; pass one for "
            "each label."
        )
    if not len(y):
        raise ValueError("y is empty; pass at least one label.")


def _classes(y, predictions):
    check_sizes(y, predictions)
    y, predictions = np.asarray(y), np.asarray(predictions)
    for name, column in (("y", y), ("predictions", predictions)):
        if column.ndim != 1:
            raise ValueError(
                f"{name} has shape {column.shape}; pass one class index or name for each example."
            )
    if (y.dtype.kind in "OSU") != (predictions.dtype.kind in "OSU"):
        raise ValueError(
            f"y has classes like {y[0]!r}, but predictions like {predictions[0]!r}; "
            "pass names for both, or numbers for both."
        )
    return y, predictions


def _numbers(y, predictions):
    check_sizes(y, predictions)
    y, predictions = (np.asarray(column, "float64") for column in (y, predictions))
    return y.reshape(len(y)), predictions.reshape(len(predictions))

"""Thresholds on class probabilities: for F1 or a precision, and for sets with a coverage.

N examples, C classes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.metrics.calibration import checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def best_threshold(y: ArrayLike, scores: ArrayLike, precision: float | None = None) -> float:
    """Return the threshold of a class that is best on held-out examples.

    Scores above the threshold, which is halfway between two, predict the class.

    Args:
        y: bools or 0 and 1 (N,). Which examples are of the class.
        scores: floats (N,). The probability of the class.
        precision: float. `None` maximizes F1; otherwise, recall is maximized with at least this
            precision.

    Raises:
        ValueError: if no example is of the class, no threshold reaches the precision, or all scores
            are 0.

    >>> best_threshold([1, 1, 0, 0], [0.9, 0.4, 0.3, 0.1])
    0.35
    >>> round(best_threshold([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], precision=1.0), 2)
    0.85
    """
    y, scores = np.asarray(y, bool), np.asarray(scores, "float64")
    if y.shape != scores.shape or y.ndim != 1:
        raise ValueError(f"y has shape {y.shape} and scores {scores.shape}; pass (N,) for both.")
    if not y.any():
        raise ValueError("No example is of the class; add some to the held-out examples.")
    if precision is not None and not 0 < precision <= 1:
        raise ValueError(f"precision={precision!r} must be above 0 and at most 1.")
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    # A threshold must lie between two different scores.
    counts = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True) & (ranked > 0)) + 1
    if not len(counts):
        raise ValueError("All scores are 0, which no threshold separates; pass probabilities.")
    right = np.cumsum(y[order])[counts - 1]
    if precision is None:
        chosen = int(np.argmax(2 * right / (counts + y.sum())))
    else:
        good = np.flatnonzero(right >= precision * counts)
        if not len(good):
            best = (right / counts).max()
            raise ValueError(
                f"No threshold reaches precision={precision}; the highest is {best:.3f}. Pass a "
                "lower one."
            )
        chosen = int(good[-1])
    last = counts[chosen]
    least, below = ranked[last - 1], ranked[last] if last < len(ranked) else 0.0
    middle = (least + below) / 2
    return float(middle if middle < least else below)  # There may be no number between both.


def conformal_threshold(y: ArrayLike, probabilities: ArrayLike, coverage: float = 0.9) -> float:
    """Return the threshold for class sets that contain the true class with a given probability.

    A set has all classes whose probability is at least the threshold. Of new examples of the same
    distribution, on average at least the share `coverage` of sets contains the true class, whatever
    the model.

    Args:
        y: class indices (N,) of examples outside the training data.
        probabilities: floats (N, C), rows that sum to 1.
        coverage: float between 0 and 1.

    Raises:
        ValueError: for shapes that do not match, and if there are too few examples for `coverage`.

    >>> y, rows = [0, 0, 1, 1], [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]]
    >>> conformal_threshold(y, rows, coverage=0.6)
    0.7

    Source: Sadinle et al. 2019, "Least ambiguous set-valued classifiers", arXiv 1609.00451; split
    conformal prediction as in Angelopoulos and Bates 2021, arXiv 2107.07511, section 1.
    """
    y, rows = checked(y, probabilities)
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage!r} must be between 0 and 1.")
    rank = math.ceil((len(y) + 1) * coverage - 1e-9)  # Against rounding errors.
    if rank > len(y):
        least = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise ValueError(
            f"coverage={coverage} needs at least {least} held-out examples, got {len(y)}; add "
            "more, or lower the coverage."
        )
    return float(np.sort(rows[np.arange(len(y)), y])[len(y) - rank])

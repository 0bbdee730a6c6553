"""Calibration of predicted probabilities, and temperature scaling.

N examples, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

_LEAST = 1e-12


def reliability(y: ArrayLike, probabilities: ArrayLike, bins: int = 15) -> list[dict[str, Any]]:
    """Return confidence and accuracy per bin, the data of a reliability diagram.

    Args:
        y: class indices (N,).
        probabilities: (N, C), rows that sum to 1.
        bins: number of equal-width bins from 0 to 1.

    Returns:
        List with a dict for each nonempty bin: `confidence` (the mean in the bin), `accuracy`, and
        `share` (of the N examples).

    Raises:
        ValueError: for shapes that do not match, and for rows that are not probabilities.

    >>> reliability([0, 0], [[0.9, 0.1], [0.8, 0.2]], bins=2)
    [{'confidence': 0.85, 'accuracy': 1.0, 'share': 1.0}]
    """
    y, rows = checked(y, probabilities)
    confidence, right = rows.max(axis=1), rows.argmax(axis=1) == y
    # Bins include their upper edge, as in the paper.
    places = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    found = []
    for place in np.unique(places):
        here = places == place
        found.append(
            {
                "confidence": round(float(confidence[here].mean()), 6),
                "accuracy": round(float(right[here].mean()), 6),
                "share": round(float(here.mean()), 6),
            }
        )
    return found


def expected_calibration_error(y: Any, probabilities: Any, bins: int = 15) -> float:
    """Return the mean gap between confidence and accuracy, over bins weighted by size.

    Args:
        y, probabilities, bins: see `reliability`.

    >>> round(expected_calibration_error([0, 1], [[0.9, 0.1], [0.9, 0.1]]), 4)
    0.4

    Source: Guo et al. 2017, arXiv 1706.04599, equation 3.
    """
    rows = reliability(y, probabilities, bins)
    return float(sum(row["share"] * abs(row["confidence"] - row["accuracy"]) for row in rows))


def fit_temperature(y: Any, probabilities: Any) -> float:
    """Fit a temperature to held-out predictions; above 1, the model was overconfident.

    Args:
        y, probabilities: see `reliability`, for examples outside the training data.

    >>> round(fit_temperature([0, 0, 0, 1], [[0.99, 0.01]] * 4), 1)
    4.2

    Source: Guo et al. 2017, arXiv 1706.04599, section 4.2.
    """
    import scipy.optimize

    y, rows = checked(y, probabilities)
    logits = np.log(np.maximum(rows, _LEAST))

    def loss(log_temperature):
        scaled = logits / np.exp(log_temperature)
        top = scaled.max(axis=1, keepdims=True)
        total = np.log(np.exp(scaled - top).sum(axis=1)) + top[:, 0]
        return float(np.mean(total - scaled[np.arange(len(y)), y]))

    # The optimum is 0 if all predictions are correct, and infinite if none is.
    found = scipy.optimize.minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded")
    return float(np.exp(found.x))


def with_temperature(probabilities: Any, temperature: float) -> np.ndarray:
    """Return probabilities (N, C) after dividing their logits by a temperature.

    >>> with_temperature([[0.8, 0.2]], 2.0).round(4).tolist()
    [[0.6667, 0.3333]]
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be a number above 0.")
    scaled = np.log(np.maximum(np.asarray(probabilities, "float64"), _LEAST)) / temperature
    scaled = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return scaled / scaled.sum(axis=-1, keepdims=True)


def checked(y, probabilities):
    """Check class indices (N,) and probabilities (N, C), and return them as arrays."""
    y, rows = np.asarray(y), np.asarray(probabilities, "float64")
    if rows.ndim != 2 or y.shape != rows.shape[:1] or not len(rows):
        raise ValueError(
            f"y has shape {y.shape} and probabilities {rows.shape}; pass (N,) and (N, C) with at "
            "least one example."
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= rows.shape[1]:
        raise ValueError(
            f"y must hold whole numbers of the {rows.shape[1]} classes, counted from 0."
        )
    if not (rows >= 0).all() or not np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        raise ValueError(
            "probabilities must not be negative, and each row must sum to 1; pass softmax outputs."
        )
    return y, rows

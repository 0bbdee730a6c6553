"""Thresholds for F1, for a precision, and for sets with a coverage."""

import numpy as np
import pytest

from kerasbert.metrics import best_threshold, conformal_threshold


def f1_at(y, scores, threshold):
    found = scores > threshold
    return 2 * (found & y).sum() / (found.sum() + y.sum())


def test_no_other_threshold_is_better():
    rng = np.random.default_rng(0)
    for _ in range(20):
        y = rng.random(40) < 0.3
        y[0] = True
        scores = np.round(np.clip(0.3 * y + rng.random(40) * 0.7, 0, 1), 1)  # Many are equal.
        chosen = best_threshold(y, scores)
        most = max(f1_at(y, scores, t) for t in np.linspace(-0.01, 1, 203))
        assert f1_at(y, scores, chosen) == most
        precise = best_threshold(y, scores, precision=0.4)
        found = scores > precise
        assert y[found].mean() >= 0.4
        lower = [t for t in np.linspace(0.005, 1, 200) if t < precise]
        assert all(y[scores > t].mean() < 0.4 or (scores > t).sum() == found.sum() for t in lower)


def test_scores_without_a_number_between_them():
    for low in (0.5, np.nextafter(0.5, 0)):
        assert best_threshold([0, 1], [low, np.nextafter(low, 1)]) == low


def test_impossible_thresholds_are_errors():
    with pytest.raises(ValueError, match="No example is of the class"):
        best_threshold([0, 0], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"No threshold reaches precision=0.9; .* is 0.500"):
        best_threshold([1, 0], [0.1, 0.2], precision=0.9)
    with pytest.raises(ValueError, match="All scores are 0"):
        best_threshold([1, 0], [0.0, 0.0])

    with pytest.raises(ValueError, match="coverage=0.9 needs at least 9 held-out examples, got 2"):
        conformal_threshold([0, 1], [[0.5, 0.5]] * 2)


def test_the_coverage_holds_for_a_wrong_model():
    """On average over draws, sets of new examples contain the true class, although the
    probabilities are far too confident.
    """
    rng = np.random.default_rng(0)
    covered, sizes = [], []
    for _ in range(200):
        logits = rng.normal(size=(300, 4))
        odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        y = np.array([rng.choice(4, p=row) for row in odds])
        rows = np.exp(5 * logits) / np.exp(5 * logits).sum(axis=1, keepdims=True)
        threshold = conformal_threshold(y[:100], rows[:100], coverage=0.8)
        sets = rows[100:] >= threshold
        covered.append(sets[np.arange(200), y[100:]].mean())
        sizes.append(sets.sum(axis=1).mean())
    assert 0.79 < np.mean(covered) < 0.83
    assert np.mean(sizes) < 3.5  # The sets do not simply contain all classes.

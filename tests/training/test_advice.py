"""The analyses of `advise`: intervals, calibration, rows, sentences."""

import numpy as np
import pytest

from kerasbert.metrics import accuracy, macro_f1
from kerasbert.training import advice

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.


def test_scores_are_those_of_the_metrics():
    random = np.random.default_rng(0)
    y, one, other = random.integers(0, 4, (3, 200))
    one[:150] = y[:150]
    values, samples = advice.resampled(y, [[one], [one, other]], np.arange(200), 5)
    assert values[0] == pytest.approx([accuracy(y, one), macro_f1(y, one)])
    both = np.mean([[f(y, x) for f in (accuracy, macro_f1)] for x in (one, other)], axis=0)
    assert values[1] == pytest.approx(both)
    # The spread is the standard error of a share.
    p = values[0, 0]
    assert samples[:, 0, 0].std() == pytest.approx(np.sqrt(p * (1 - p) / 200), rel=0.1)
    # With groups of two rows, intervals are wider.
    wide = advice.resampled(y, [[one]], np.arange(200) // 8, 5)[1]
    assert samples.shape == (1000, 2, 2) and wide[:, 0, 0].std() > 0


def confident(count=400, classes=3, seed=0):
    """Return labels, the true ones, and probabilities of a good model, with 5 % of the labels
    flipped.
    """
    random = np.random.default_rng(seed)
    true = random.integers(0, classes, count)
    logits = random.normal(size=(count, classes)) + 5 * np.eye(classes)[true]
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    flipped = random.permutation(count)[: count // 20]
    y = true.copy()
    y[flipped] = (true[flipped] + 1) % classes
    return y, true, rows, set(flipped.tolist())


def test_flipped_labels_are_found():
    y, true, rows, flipped = confident()
    found = advice.wrong_labels(y, rows)
    named = [row for row, _ in found]
    assert len(flipped & set(named)) >= 0.8 * len(flipped)
    assert len(flipped & set(named)) >= 0.7 * len(named)
    assert all(true[row] == looks for row, looks in found if row in flipped)
    assert set(named[:10]) <= flipped  # The most suspicious rows come first.
    assert advice.wrong_labels(true, np.eye(3)[true]) == []


def test_as_cleanlab():
    """The rows that `find_label_issues(filter_by="confident_learning")` of cleanlab 2.9 returns."""
    y, _, rows, _ = confident()
    theirs = [19, 23, 39, 73, 97, 151, 168, 173, 183, 272, 314, 316, 339, 345, 361, 366]
    assert sorted(row for row, _ in advice.wrong_labels(y, rows)) == theirs


def test_temperatures_are_of_other_folds():
    y, _, rows, _ = confident()
    folds = np.arange(len(y)) % 4
    facts, after = advice.calibration(y, rows, folds)
    assert set(facts) == {"temperature", "error", "error_after"}
    assert after.shape == rows.shape and np.allclose(after.sum(axis=1), 1)
    changed = y.copy()
    changed[folds == 0] = 0
    other = advice.calibration(changed, rows, folds)[1]
    assert np.allclose(after[folds == 0], other[folds == 0])
    assert not np.allclose(after[folds == 1], other[folds == 1])


def test_useful_rows_are_unsure_and_differ():
    # Three clusters of equally uncertain rows, and certain ones.
    features = np.repeat(np.eye(3), 10, axis=0) + 1e-3 * np.arange(30)[:, None]
    rows = np.full((30, 2), 0.5)
    rows[np.arange(30) % 10 > 2] = [0.9, 0.1]
    found = advice.most_useful(rows, features, 3)
    assert sorted(row // 10 for row in found) == [0, 1, 2]
    assert all(row % 10 <= 2 for row in found)
    assert advice.most_useful(rows, features, 50)[:9] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert advice.most_useful(rows[:0], features[:0], 5) == []


def table(**values):
    """Return arms whose resamples have a deviation of 0.01, independently."""
    random = np.random.default_rng(0)
    samples = {k: v + 0.01 * random.normal(size=(1000, 2)) for k, v in values.items()}
    arms = {
        name: {
            "title": name.upper(),
            "seconds": 2.0,
            "megabytes": 30.4,
            **{m: advice.interval(value, samples[name][:, 1]) for m in advice.METRICS},
        }
        for name, value in values.items()
    }
    return arms, samples


@pytest.mark.parametrize(
    ("values", "chosen", "said"),
    [
        ({"tfidf": 0.9, "full": 0.8}, "tfidf", "Use TFIDF: macro-F1 0.900"),
        ({"tfidf": 0.895, "full": 0.9}, "tfidf", "TFIDF and FULL are within 0.005 of each other"),
        ({"tfidf": 0.8, "frozen": 0.89, "full": 0.9}, "full", "may be chance. About 7"),
        ({"tfidf": 0.8, "frozen": 0.89, "full": 0.9}, "full", "; TFIDF, 0.800, 2.0 s per training"),
        ({"tfidf": 0.8, "full": 0.9}, "full", "is more than chance"),
        ({"tfidf": 0.9}, "tfidf", "Only one method was tried, TFIDF"),
        ({"tfidf": 0.4, "full": 0.405}, "tfidf", "better than always predicting the most frequent"),
    ],
)
def test_recommendations(values, chosen, said):
    arms, samples = table(**values)
    assert advice.choose(arms, samples, "macro_f1") == chosen
    assert sum(arm["wins"] for arm in arms.values()) == pytest.approx(1)
    baseline = {"macro_f1": {"value": 0.4}}
    sentences = advice.recommend(arms, chosen, baseline, "macro_f1", 100)
    assert said in " ".join(sentences)


@pytest.mark.parametrize(
    ("half", "spread", "said"),
    [
        (0.8, 0.005, "more labels help; as many again would add about 0.100 or less"),
        (0.899, 0.003, "would add little"),
        (0.88, 0.05, "do not show"),
    ],
)
def test_what_more_labels_buy(half, spread, said):
    random = np.random.default_rng(0)
    values = {0.25: 0.5, 0.5: half, 1.0: 0.9}
    curve = [
        {"share": k, "labels": int(400 * k), "accuracy": {"value": v}} for k, v in values.items()
    ]
    samples = [v + spread * random.normal(size=(1000, 2)) for v in values.values()]
    sentence = advice.curve_sentence(curve, samples, "accuracy")
    assert said in sentence and sentence.startswith("From 200 to 400 labels, accuracy changed by +")
    assert "unknown" in advice.curve_sentence(curve[-1:], samples[-1:], "accuracy")

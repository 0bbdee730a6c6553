"""Scores of classes and numbers compared with scikit-learn and scipy, in 1,000 random cases
each.
"""

import itertools
import re
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from kerasbert import metrics

# The metrics use no backend, and scikit-learn is slow, so test once.
pytestmark = pytest.mark.backends("tensorflow")
CASES = 1000


def class_cases(classes):
    """Return right and predicted classes, sometimes of one class only."""
    rng = np.random.default_rng(0)
    for _ in range(CASES):
        size = rng.integers(1, 12)
        yield tuple(rng.integers(0, rng.integers(1, classes + 1), size) for _ in range(2))


def f1_by_hand(y, predicted, positive):
    both = sum(a == b == positive for a, b in zip(y, predicted))
    either = sum(a == positive for a in y) + sum(b == positive for b in predicted)
    return 2 * both / either if either else 0.0


def matthews_by_hand(y, predicted):
    """Return the correlation of the indicators of all classes, summed over the classes."""
    classes = sorted({*y, *predicted})
    a, b = (
        np.array([[c == k for k in classes] for c in column], float) for column in (y, predicted)
    )
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    norm = np.sqrt((a * a).sum() * (b * b).sum())
    return (a * b).sum() / norm if norm else 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_scores_of_classes():
    for case, (y, predicted) in enumerate(class_cases(4)):
        positive = 1
        if case % 2:
            y, predicted, positive = [f"c{i}" for i in y], [f"c{i}" for i in predicted], "c1"
        ours = (
            metrics.matthews(y, predicted),
            metrics.macro_f1(y, predicted),
            metrics.f1(y, predicted, positive),
            metrics.accuracy(y, predicted),
        )
        by_hand = (
            matthews_by_hand(y, predicted),
            np.mean([f1_by_hand(y, predicted, c) for c in {*y, *predicted}]),
            f1_by_hand(y, predicted, positive),
            sum(a == b for a, b in zip(y, predicted)) / len(y),
        )
        assert ours == pytest.approx(by_hand, abs=1e-9)


def test_scores_are_those_of_scikit_learn():
    for y, predicted in itertools.islice(class_cases(2), 100):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Only one class.
            expected = (
                sklearn.metrics.accuracy_score(y, predicted),
                sklearn.metrics.matthews_corrcoef(y, predicted),
                sklearn.metrics.f1_score(y, predicted, zero_division=0),
            )
        ours = [metric(y, predicted) for metric in (metrics.accuracy, metrics.matthews, metrics.f1)]
        assert ours == pytest.approx(expected, abs=1e-12)


def test_one_class_only():
    assert metrics.matthews([1, 1, 1], [1, 1, 1]) == 0.0
    assert metrics.f1([0, 0], [0, 0]) == 0.0
    assert metrics.macro_f1(["a", "a"], ["a", "a"]) == 1.0


def ranks(values):
    """Return ranks from 1, with the mean rank for ties."""
    return [
        sum(other < value for other in values) + (sum(o == value for o in values) + 1) / 2
        for value in values
    ]


@pytest.mark.slow
def test_correlations():
    rng = np.random.default_rng(0)
    for case in range(CASES):
        size = rng.integers(3, 12)
        # Few different numbers, and thus many ties, in every second case.
        draw = rng.normal if case % 2 else lambda size: rng.integers(0, 3, size) / 2
        y, predicted = draw(size=size), draw(size=size)
        if np.ptp(y) == 0 or np.ptp(predicted) == 0:
            assert metrics.pearson(y, predicted) == metrics.spearman(y, predicted) == 0.0
            continue
        pearson = scipy.stats.pearsonr(y, predicted).statistic
        spearman = scipy.stats.spearmanr(y, predicted).statistic
        assert metrics.pearson(list(y), list(predicted)) == pytest.approx(pearson, abs=1e-12)
        assert metrics.spearman(y, predicted) == pytest.approx(spearman, abs=1e-12)
        assert np.corrcoef(ranks(y), ranks(predicted))[0, 1] == pytest.approx(spearman, abs=1e-9)


def test_a_regressors_column_and_bad_numbers():
    y = [1.0, 2.0, 4.0]
    assert metrics.pearson(y, np.array([[1.0], [2.0], [4.0]])) == pytest.approx(1.0)
    assert np.isnan(metrics.pearson(y, [1.0, float("nan"), 2.0]))
    assert metrics.mean_absolute_error(y, [1, 1, 1]) == pytest.approx(4 / 3)
    assert metrics.pearson([1.0], [2.0]) == 0.0


def test_f1_of_what_is_at_least_three():
    y, predicted = [0.0, 3.0, 2.9, 5.0], [3.0, 3.1, 0.0, 2.0]
    assert metrics.f1_from(y, predicted) == 0.5
    assert metrics.METRICS["f1_from_3"](y, predicted) == 0.5


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.accuracy([1, 0], [1]), "2 labels in y but 1 predictions"),
        (lambda: metrics.pearson([], []), "y is empty"),
        (lambda: metrics.matthews(["a"], [1]), "pass names for both, or numbers for both"),
        (lambda: metrics.accuracy([0, 1], np.zeros((2, 2))), "predictions has shape (2, 2)"),
        (lambda: metrics.f1(["a", "b"], ["a", "b"]), "positive=1 is not a class like"),
        (lambda: metrics.squad(["a"], ["a"]), "pass a list of reference answers and one"),
        (lambda: metrics.squad([["a"]], ["a"], "mlqa"), "rules='mlqa' is unknown; use one of squ"),
        (lambda: metrics.squad2([["a"]], ["a"], []), "1 labels in y but 0 predictions"),
        (lambda: metrics.entities([["O"]], [["O", "O"]]), "At position 0 y has 1 tags"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("score", ["f1", "precision", "recall"])
def test_means_over_classes_and_each_class(score):
    random = np.random.default_rng(0)
    y, said = random.integers(0, 11, (2, 200))
    function = getattr(sklearn.metrics, f"{score}_score")
    macro = function(y, said, average="macro", zero_division=0)
    assert metrics.METRICS[metrics.MACRO[score]](y, said) == pytest.approx(macro)
    each = function(y, said, average=None, zero_division=0)
    by_class = metrics.scores_by_class(y, said)
    assert [row[score] for row in by_class.values()] == pytest.approx(each.tolist())
    assert metrics.METRICS[score](y == 3, said == 3) == pytest.approx(each[3])

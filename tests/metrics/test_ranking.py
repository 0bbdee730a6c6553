"""Ranking metrics, compared with scikit-learn and computed by hand."""

import numpy as np
import pytest

from kerasbert import metrics
from kerasbert.metrics.ranking import average_precision, gain_share, recall, reciprocal_rank


def test_beside_scikit_learn():
    from sklearn.metrics import ndcg_score

    random = np.random.default_rng(0)
    grades, scores = random.integers(0, 4, (5, 12)), random.standard_normal((5, 12))
    grades[:, 0] = 1  # At least one relevant text.
    y = [(f"q{query}", grade) for query, row in enumerate(grades) for grade in row]
    order = random.permutation(len(y))
    found = metrics.ndcg([y[i] for i in order], scores.ravel()[order], k=10)
    assert found == pytest.approx(ndcg_score(grades, scores, k=10))
    firsts = [(row[np.argsort(-own)] > 0).argmax() + 1 for row, own in zip(grades, scores)]
    assert metrics.mrr(y, scores.ravel()) == pytest.approx(np.mean(1 / np.array(firsts)))


def test_equal_scores_do_not_help():
    """If a model gives all texts the same score, the worst order is scored, whatever the order of
    the file is.
    """
    y = [("q", 1), ("q", 0), ("q", 0)]
    assert metrics.mrr(y, [0.5, 0.5, 0.5]) == pytest.approx(1 / 3)


def test_what_counts():
    y = [("a", 1), ("b", 0), ("b", 0), ("a", 0)]
    assert metrics.ndcg(y, [2.0, 1.0, 0.0, 1.0]) == 1.0  # The query "b" has no relevant text.
    far = [("a", 0)] * 10 + [("a", 1)]
    assert metrics.METRICS["mrr@10"](far, range(11, 0, -1)) == 0.0
    assert metrics.METRICS["ndcg@10"](far, range(11)) == 1.0
    with pytest.raises(ValueError, match="No query has a text with a label above 0"):
        metrics.ndcg([("a", 0)], [1.0])


def test_of_one_query():
    gains, ideal = np.array([0.0, 2.0, 0.0, 1.0]), np.array([2.0, 1.0, 1.0])
    assert reciprocal_rank(gains, ideal, 4) == 0.5
    assert recall(gains, ideal, 4) == pytest.approx(2 / 3)
    assert average_precision(gains, ideal, 4) == pytest.approx((1 / 2 + 2 / 4) / 3)
    expected = 2 / np.log2(3) + 1 / np.log2(5)
    assert gain_share(gains, ideal, 4) == pytest.approx(
        expected / (2 + 1 / np.log2(3) + 1 / np.log2(4))
    )

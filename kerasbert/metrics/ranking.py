"""Ranking metrics.

K ranked texts of a query, N query-text pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def ndcg(y: Sequence[Any], predictions: Any, k: int = 10) -> float:
    """Return the normalized discounted cumulative gain, averaged over queries.

    Args:
        y: list of N pairs of a query and a text's relevance grade, at least 0.
        predictions: scores (N,). Of texts with equal scores, the one with the lower grade ranks
            first.
        k: number of top-ranked texts to score.

    Raises:
        ValueError: if no query has a text with a grade above 0; queries without one are skipped.

    >>> round(ndcg([("a", 0), ("a", 2), ("a", 1), ("b", 1)], [0.9, 0.8, 0.1, 0.5]), 4)
    0.8348

    Source: Järvelin and Kekäläinen 2002, doi 10.1145/582415.582418.
    """
    return _mean(gain_share, y, predictions, k)


def mrr(y: Any, predictions: Any, k: int = 10) -> float:
    """Return the mean reciprocal rank of the first text with a grade above 0.

    Args:
        y, predictions, k: see `ndcg`.

    >>> mrr([("a", 0), ("a", 2), ("a", 1), ("b", 1)], [0.9, 0.8, 0.1, 0.5])
    0.75
    """
    return _mean(reciprocal_rank, y, predictions, k)


def _mean(score, y, predictions, k):
    queries = {}
    for (query, grade), prediction in zip(y, predictions, strict=True):
        queries.setdefault(query, []).append((-float(prediction), float(grade)))
    scores = []
    for rows in queries.values():
        gains = np.array([grade for _, grade in sorted(rows)])
        ideal = np.sort(gains[gains > 0])[::-1]
        if len(ideal):
            scores.append(score(gains[:k], ideal, k))
    if not scores:
        raise ValueError("No query has a text with a label above 0; pass one relevant text.")
    return float(np.mean(scores))


# Scores of one query, from the grades of its top-ranked texts (K,), those of all relevant texts in
# descending order, and k.


def gain_share(gains, ideal, k):
    """Return the `ndcg` of a query.

    >>> gain_share(np.array([1.0, 0.0]), np.array([1.0]), 2)
    1.0
    """

    def discounted(values):
        return float((values / np.log2(np.arange(2, len(values) + 2))).sum())

    return discounted(gains) / discounted(ideal[:k])


def reciprocal_rank(gains, ideal, k):
    """Return the `mrr` of a query.

    >>> reciprocal_rank(np.array([0.0, 1.0]), np.array([1.0]), 2)
    0.5
    """
    places = np.flatnonzero(gains)
    return float(1 / (places[0] + 1)) if len(places) else 0.0


def average_precision(gains, ideal, k):
    """Return the average precision of a query at k, normalized by min(k, relevant texts).

    >>> average_precision(np.array([0.0, 1.0]), np.array([1.0]), 2)
    0.5
    """
    places = np.flatnonzero(gains)
    found = (np.arange(1, len(places) + 1) / (places + 1)).sum()
    return float(found / min(k, len(ideal)))


def recall(gains, ideal, k):
    """Return the share of the relevant texts that are among the top k.

    >>> recall(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 2)
    0.5
    """
    return float(np.count_nonzero(gains) / len(ideal))

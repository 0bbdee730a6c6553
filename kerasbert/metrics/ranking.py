"""Scores of texts in an order, for queries.

K texts of a query, N pairs of a query and a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def ndcg(y: Sequence[Any], predictions: Any, k: int = 10) -> float:
    """Normalized discounted cumulative gain: grades, less further down; the mean over queries.

    Args:
        y: list of N pairs of a query and the grade of a text for it, a number from 0.
        predictions: how well each text fits, as a model says (N,). Of equal ones the text that is
            worse counts as the first one.
        k: int. How many of the best texts are looked at.

    Raises:
        ValueError: where no query has a text with a grade above 0; others do not count.

    >>> round(ndcg([("a", 0), ("a", 2), ("a", 1), ("b", 1)], [0.9, 0.8, 0.1, 0.5]), 4)
    0.8348

    Source: Järvelin and Kekäläinen 2002, doi 10.1145/582415.582418.
    """
    return _mean(gain_share, y, predictions, k)


def mrr(y: Any, predictions: Any, k: int = 10) -> float:
    """One divided by the rank of the first text with a grade above 0; the mean over queries.

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
        raise ValueError("No query has a text with a label above 0, and there is nothing to find.")
    return float(np.mean(scores))


# Of one query. Each takes the grades of the best texts in their order (K,), those of all right
# texts, the highest first, and how many are looked at.


def gain_share(gains, ideal, k):
    """What `ndcg` is of a query.

    >>> gain_share(np.array([1.0, 0.0]), np.array([1.0]), 2)
    1.0
    """

    def discounted(values):
        return float((values / np.log2(np.arange(2, len(values) + 2))).sum())

    return discounted(gains) / discounted(ideal[:k])


def reciprocal_rank(gains, ideal, k):
    """What `mrr` is of a query.

    >>> reciprocal_rank(np.array([0.0, 1.0]), np.array([1.0]), 2)
    0.5
    """
    places = np.flatnonzero(gains)
    return float(1 / (places[0] + 1)) if len(places) else 0.0


def average_precision(gains, ideal, k):
    """The mean precision at the right texts, of the most that can be among k.

    >>> average_precision(np.array([0.0, 1.0]), np.array([1.0]), 2)
    0.5
    """
    places = np.flatnonzero(gains)
    found = (np.arange(1, len(places) + 1) / (places + 1)).sum()
    return float(found / min(k, len(ideal)))


def recall(gains, ideal, k):
    """The share of the right texts that are among k.

    >>> recall(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 2)
    0.5
    """
    return float(np.count_nonzero(gains) / len(ideal))

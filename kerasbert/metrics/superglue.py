"""Scores of SuperGLUE that no other benchmark has.

N examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.metrics.classes import check_sizes, f1

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike


def multirc(y: Sequence[Any], predictions: ArrayLike) -> dict[str, float]:
    """Return the scores of MultiRC, in which any number of answers to a question may be right.

    Args:
        y: list of N tuples `(question, label)`, one per answer. Answers of one question have the
            same `question`, any value; `label` is 1 for right answers, otherwise 0.
        predictions: ints (N,), 1 for right and 0 for wrong.

    Returns:
        Dict of `f1a`, the F1 over all answers, and `exact_match`, the share of questions for which
        every answer is predicted correctly.

    >>> multirc([("a", 1), ("a", 0), ("b", 1)], [1, 0, 0])
    {'f1a': 0.6666666666666666, 'exact_match': 0.5}

    Sources: Khashabi et al. 2018 (NAACL), section 4; Wang et al. 2019, arXiv 1905.00537.
    """
    check_sizes(y, predictions)
    labels = [label for _, label in y]
    is_right = {}
    for (question, label), prediction in zip(y, predictions):
        is_right[question] = is_right.get(question, True) and label == prediction
    return {"f1a": f1(labels, predictions), "exact_match": float(np.mean([*is_right.values()]))}


def gender_parity(y: Sequence[Any], predictions: Sequence[Any]) -> float:
    """Return the share of pairs of examples that get the same prediction.

    In AX-g (Winogender), the examples of a pair differ only in the gender of a pronoun.

    Args:
        y: list of N pair names, equal for the two examples of a pair. Others are left out.
        predictions: class indices or names (N,).

    Returns:
        A float; 0 if there is no pair.

    >>> gender_parity([0, 0, 1, 1], ["yes", "yes", "yes", "no"])
    0.5

    Sources: Rudinger et al. 2018, arXiv 1804.09301; Wang et al. 2019, arXiv 1905.00537.
    """
    check_sizes(y, predictions)
    pairs = {}
    for name, prediction in zip(y, predictions):
        pairs.setdefault(name, []).append(prediction)
    whole = [pair for pair in pairs.values() if len(pair) == 2]
    return float(np.mean([first == second for first, second in whole])) if whole else 0.0

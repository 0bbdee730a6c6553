"""Exact match and F1 of predicted answers.

N examples.
"""

from __future__ import annotations

import collections
import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice
from kerasbert.metrics.classes import check_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class AnswerRules:
    """A benchmark's rules for comparing a prediction with a reference.

    Args:
        normalize: function of a string; equal results are an exact match.
        units: function of a normalized string to a list of units, whose overlap gives F1.
        empty_matches: whether two empty answers have an F1 of 1, because "no answer" may be
            correct.
    """

    normalize: object
    units: object
    empty_matches: bool


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# KorQuAD's scorer replaces these with a space and deletes other punctuation.
_KOREAN_BRACKETS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def _one_spaced(text):
    return " ".join(text.split())


def _normalize_english(text):
    return _one_spaced(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)))


def _normalize_korean(text):
    return _one_spaced(text.translate(_KOREAN_BRACKETS).lower().translate(_PUNCTUATION))


def _normalize_japanese(text):
    return _one_spaced(text.lower().rstrip("。"))


def _characters(text):
    return list(text.replace(" ", ""))


#: Comparison rules by benchmark.
ANSWER_RULES = {
    "squad": AnswerRules(_normalize_english, str.split, False),
    "squad2": AnswerRules(_normalize_english, str.split, True),
    "korquad": AnswerRules(_normalize_korean, _characters, False),
    "jsquad": AnswerRules(_normalize_japanese, list, True),
}


def answer_scores(
    y: Sequence[Any], predictions: Sequence[str], rules: str = "squad"
) -> tuple[np.ndarray, np.ndarray]:
    """Return each prediction's exact match and F1 with its closest reference answer.

    Args:
        y: list of N lists of reference answers; an empty list for no answer.
        predictions: list of N strings, "" for no answer.
        rules: "squad", "squad2", "korquad" or "jsquad".

    Returns:
        `(exact, f1)`, float64 (N,) each.

    >>> exact, f1 = answer_scores([["the red house"]], ["Red houses, a house"])
    >>> exact.tolist(), f1.tolist()
    ([0.0], [0.8])
    """
    check_choice("rules", rules, ANSWER_RULES)
    rules = ANSWER_RULES[rules]
    check_sizes(y, predictions)
    scores = np.zeros((len(y), 2))
    for position, (golds, prediction) in enumerate(zip(y, predictions)):
        if isinstance(golds, str) or not isinstance(prediction, str):
            raise ValueError(
                f"The answers at position {position} are {golds!r} and {prediction!r}; pass a "
                "list of reference answers and one string."
            )
        prediction = rules.normalize(prediction)
        golds = [rules.normalize(gold) for gold in golds]
        if rules.empty_matches:
            golds = list(filter(None, golds)) or [""]
        for gold in golds:
            pair = gold == prediction, _overlap(rules, gold, prediction)
            scores[position] = np.maximum(scores[position], pair)
    return scores[:, 0], scores[:, 1]


def _overlap(rules, gold, prediction):
    gold, prediction = rules.units(gold), rules.units(prediction)
    if not gold or not prediction:
        return float(rules.empty_matches and gold == prediction)
    same = sum((collections.Counter(gold) & collections.Counter(prediction)).values())
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall) if same else 0.0


def squad(y: Sequence[Any], predictions: Sequence[str], rules: str = "squad") -> dict[str, Any]:
    """Return exact match and F1 of answers, as SQuAD 1.1's scorer does.

    Args:
        y: list of N lists of reference answers.
        predictions: list of N strings.
        rules: string. See `answer_scores`.

    Returns:
        Dict of `exact_match` and `f1`.

    >>> squad([["Denver Broncos", "the Broncos"], ["1066"]], ["Broncos!", "in 1066"])
    {'exact_match': 0.5, 'f1': 0.8333333333333333}

    Source: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1.
    """
    exact, overlap = answer_scores(y, predictions, rules)
    return {"exact_match": float(exact.mean()), "f1": float(overlap.mean())}


def squad2(
    y: Sequence[Any], predictions: Sequence[str], null_scores: ArrayLike | None = None
) -> dict[str, Any]:
    """Return SQuAD 2.0's scores, overall and by answerability, and those at the best threshold.

    Args:
        y: list of N lists of reference answers, empty for unanswerable questions.
        predictions: list of N strings, "" for no answer.
        null_scores: floats (N,), higher where "no answer" is likelier. They add the scores at the
            best thresholds for exact match and F1, above which a null score counts as "no answer".

    Returns:
        Dict of `exact_match` and `f1`. For such questions, also with the prefixes `has_answer_` and
        `no_answer_`. With `null_scores`, also `best_exact_match`, `best_exact_match_threshold`,
        `best_f1` and `best_f1_threshold`.

    >>> scores = squad2([["Rome"], []], ["Rome", "Paris"], [-3.0, 2.5])
    >>> scores["f1"], scores["best_f1"], scores["best_f1_threshold"]
    (0.5, 1.0, -3.0)

    Source: Rajpurkar et al. 2018, arXiv 1806.03822, and its scorer, which likewise
    keeps the order of questions with equal null scores.
    """
    exact, overlap = answer_scores(y, predictions, "squad2")
    has_answer = np.array([len(golds) > 0 for golds in y])
    scores = {"exact_match": exact, "f1": overlap}
    result = {name: float(values.mean()) for name, values in scores.items()}
    for prefix, which in (("has_answer_", has_answer), ("no_answer_", ~has_answer)):
        if which.any():
            result.update((prefix + name, float(v[which].mean())) for name, v in scores.items())
    if null_scores is None:
        return result
    check_sizes(y, null_scores)
    null_scores = np.asarray(null_scores, "float64")
    answered = np.array([bool(prediction) for prediction in predictions])
    for name, values in scores.items():
        best, threshold = _best_threshold(values, answered, has_answer, null_scores)
        result[f"best_{name}"], result[f"best_{name}_threshold"] = best, threshold
    return result


def _best_threshold(scores, answered, has_answer, null_scores):
    """Return the best mean score and its threshold: the highest null score that is answered."""
    order = np.argsort(null_scores, kind="stable")
    # Start without answers, then accept them by ascending null score.
    gains = np.where(has_answer, scores, -answered.astype("float64"))[order]
    sums = np.cumsum(np.append(np.sum(~has_answer), gains))
    best = int(np.argmax(sums))
    if best:
        threshold = null_scores[order[best - 1]]
    else:
        # No question is answered: below all null scores (0 for probabilities).
        threshold = min(0.0, np.nextafter(null_scores.min(), -np.inf))
    return float(sums[best] / len(scores)), float(threshold)


def with_threshold(predictions: Any, null_scores: Any, threshold: float) -> list[str]:
    """Replace answers whose null score exceeds the threshold with "".

    >>> with_threshold(["Rome", "Paris"], [-3.0, 2.5], 0.0)
    ['Rome', '']
    """
    return ["" if score > threshold else answer for answer, score in zip(predictions, null_scores)]

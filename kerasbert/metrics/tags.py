"""Entity-level metrics of tagging.

N examples, W words.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.metrics.classes import check_sizes
from kerasbert.text.tagging import OUTSIDE, TagSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def entities(y: Sequence[Any], predictions: Any) -> dict[str, Any]:
    """Return precision, recall and F1 of entities and the accuracy of tags, as `conlleval`.

    An entity is correct if its first word, last word and type are. Either side may use any of the
    schemes IOB1, IOB2 (BIO), IOE, BIOES, BILOU and IO.

    Args:
        y: list of N lists of tags, such as "B-PER", "I-PER", "O".
        predictions: the same.

    Returns:
        Dict of `f1`, `precision`, `recall` and `accuracy`.

    >>> scores = entities([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]])
    >>> scores["f1"], scores["accuracy"]
    (0.5, 0.75)

    Source: Tjong Kim Sang and De Meulder 2003, the CoNLL-2003 shared task.
    """
    _check_tags(y, predictions)
    counts = sum(_entity_counts(y, predictions).values(), np.zeros(3, int))
    pairs = [(a, b) for gold, found in zip(y, predictions) for a, b in zip(gold, found)]
    right = sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0
    return {**_precision_recall(*counts), "accuracy": right}


def entities_by_type(y: Sequence[Any], predictions: Any) -> dict[str, dict[str, Any]]:
    """Return the scores for each entity type, as in `conlleval`'s table.

    Args:
        y: list of N lists of tags.
        predictions: the same.

    Returns:
        Dict of type to a dict of `f1`, `precision`, `recall`, and entity counts: `gold` (in `y`)
        and `predicted`.

    >>> entities_by_type([["B-PER", "O"]], [["B-PER", "B-LOC"]])["LOC"]
    {'f1': 0.0, 'precision': 0.0, 'recall': 0.0, 'gold': 0, 'predicted': 1}
    """
    _check_tags(y, predictions)
    return {
        type: {**_precision_recall(*counts), "gold": int(counts[0]), "predicted": int(counts[1])}
        for type, counts in sorted(_entity_counts(y, predictions).items())
    }


def klue_entities(
    y: Sequence[Any], predictions: Any, labels: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return KLUE's scores of character tags: macro F1 over entity types and over tags.

    Args:
        y: list of N lists of tags, one per non-space character.
        predictions: the same.
        labels: list of strings. All tags; a tag that occurs nowhere has an F1 of 1. `None` means
            the tags that occur.

    Returns:
        Dict of `entity_f1` and `char_f1`.

    Source: Park et al. 2021, arXiv 2105.09680, and its baseline code.
    """
    from sklearn.metrics import f1_score

    _check_tags(y, predictions)
    by_type = [_precision_recall(*count)["f1"] for count in _entity_counts(y, predictions).values()]
    flat = [[tag for row in rows for tag in row] for rows in (y, predictions)]
    labels = sorted({*flat[0], *flat[1]}) if labels is None else labels
    char_f1 = f1_score(*flat, labels=labels, average="macro", zero_division=1.0)
    return {"entity_f1": float(np.mean(by_type)) if by_type else 0.0, "char_f1": float(char_f1)}


def _check_tags(y, predictions):
    check_sizes(y, predictions)
    for position, (gold, found) in enumerate(zip(y, predictions)):
        if len(gold) != len(found):
            raise ValueError(
                f"At position {position} y has {len(gold)} tags but predictions has {len(found)}; "
                "pass one tag for each word."
            )


def _entity_counts(y, predictions):
    """Return a dict of type to counts, ints (3,): entities in `y`, in predictions and in both."""
    names = sorted({tag for rows in (y, predictions) for row in rows for tag in row})
    if set(names) <= {OUTSIDE, *"BIELSUMW"}:
        names.append("B")  # With it, `TagSet` reads single letters as tags.
    names = list(dict.fromkeys(names))
    tags = TagSet(names)
    number = {name: number for number, name in enumerate(names)}
    counts = collections.defaultdict(lambda: np.zeros(3, int))
    for rows in zip(y, predictions):
        gold, found = (set(tags.entities([number[tag] for tag in row])) for row in rows)
        for place, group in enumerate((gold, found, gold & found)):
            for type, _, _ in group:
                counts[type][place] += 1
    return counts


def _precision_recall(gold, found, right):
    precision = right / found if found else 0.0
    recall = right / gold if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": float(f1), "precision": float(precision), "recall": float(recall)}

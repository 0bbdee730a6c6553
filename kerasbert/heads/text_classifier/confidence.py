"""Decisions of a classifier from its probabilities: thresholds per class and log-odds.

N texts, C classes.
"""

import numbers

import numpy as np

from kerasbert.base.errors import did_you_mean
from kerasbert.text.names import known_name


def class_thresholds(threshold, names, multi_label):
    """Return the threshold of each class.

    Args:
        threshold: a number for all classes, a list of C numbers, or a dict of class name to number.
            A class missing in the dict has no threshold; of two classes, 1 minus the other's; with
            `multi_label`, 0.5.
        names: list of C strings.
        multi_label: bool.

    Returns:
        floats (C,).

    >>> class_thresholds({"spam": 0.3}, ["ham", "spam"], multi_label=False).tolist()
    [0.7, 0.3]
    """
    if isinstance(threshold, dict):
        given = {}
        for key, value in threshold.items():
            name = known_name(key, names)
            if name is None:
                raise ValueError(
                    f"threshold has the class {key!r}, but the classes are {', '.join(names)}"
                    + did_you_mean(key, names, ".", show=repr)
                )
            given[name] = value
        missing = 0.5 if multi_label else 0.0
        if len(names) == 2 and len(given) == 1 and not multi_label:
            (value,) = given.values()
            missing = 1 - value if _is_share(value) else missing
        values = [given.get(name, missing) for name in names]
    elif isinstance(threshold, (list, tuple, np.ndarray)):
        values = list(threshold)
        if len(values) != len(names):
            raise ValueError(
                f"threshold has {len(values)} numbers for the {len(names)} classes "
                f"{', '.join(names)}; pass one for each, one for all, or a dict by name."
            )
    else:
        values = [threshold] * len(names)
    for name, value in zip(names, values):
        if not _is_share(value):
            raise ValueError(
                f"The threshold of {name!r} is {value!r}; it must be a number from 0 to 1."
            )
    return np.asarray(values, "float64")


def _is_share(value):
    is_number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    return is_number and 0 <= value <= 1


def describe(names, row, multi_label, limits=None):
    """Return the result of `classify` for one text.

    Args:
        names: list of C strings.
        row: floats (C,), probabilities.
        multi_label: bool.
        limits: floats (C,), thresholds; `None` means 0.5 with `multi_label`, otherwise none.
    """
    probabilities = {name: float(value) for name, value in zip(names, row, strict=True)}
    if multi_label:
        limits = np.full(len(names), 0.5) if limits is None else limits
        found = [name for name, value, limit in zip(names, row, limits) if value > limit]
        return {"labels": found, "probabilities": probabilities}
    best = int(np.argmax(row))
    if limits is not None:
        best = int(np.argmax(np.where(row > limits, row, -1)))
    label = names[best] if limits is None or row[best] > limits[best] else None
    score = float(row[best] if label is not None else np.max(row))
    return {"label": label, "score": score, "probabilities": probabilities}


def log_odds(probabilities, multi_label):
    """Return logits (N, C) of which the sigmoid, or the softmax, gives the probabilities."""
    rows = np.clip(np.asarray(probabilities, "float64"), 1e-12, 1)
    return np.log(rows) - np.log(np.clip(1 - rows, 1e-12, 1)) if multi_label else np.log(rows)

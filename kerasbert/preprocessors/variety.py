"""Warnings for labels that leave nothing to learn: training on them reaches a loss of 0."""

import warnings

import numpy as np


def warn_of_equal(y, what, shown=repr):
    """Warn where several labels are all the same.

    Args:
        y: array (N,).
        what: string. What they are, such as "labels".
        shown: function of a label to what the user knows it by.

    >>> warn_of_equal(np.array([1, 0]), "labels")
    """
    if len(y) > 1 and (y == y[0]).all():
        warnings.warn(
            f"All {len(y):,} {what} are {shown(y[0].item())}: there is nothing to tell apart, and "
            "the model will learn to say that of every text; add examples with other labels, or "
            "check the column and the files that they come from.",
            stacklevel=2,
        )


def warn_of_columns(y, names):
    """Warn of classes that no text has, or that every text has.

    Args:
        y: floats (N, C), above 0 where a text has the class.
        names: list of C names.
    """
    for value, said in ((False, "no text has"), (True, "all texts have")):
        same = np.flatnonzero((y > 0).all(axis=0) if value else ~(y > 0).any(axis=0))
        if len(y) > 1 and len(same):
            shown = ", ".join(repr(names[i]) for i in same[:5]) + (", ..." if len(same) > 5 else "")
            warnings.warn(
                f"{len(same):,} of the {len(names):,} classes ({shown}) are the same in all "
                f"{len(y):,} examples, where {said} them: the model will learn to say that of "
                "every text; add other examples, or drop the classes.",
                stacklevel=2,
            )


def warn_of_nothing(what, instead):
    """Warn that a training has no examples of what it learns."""
    warnings.warn(
        f"{what}, so that the loss is 0 from the start and the model learns nothing; {instead}.",
        stacklevel=2,
    )


def counted(y, sample_weight):
    """Labels (...) and their weights as NumPy, the labels of weight above 0 alone: (N, ...)."""
    y, weights = (
        None if part is None else np.asarray(getattr(part, "flat_values", part))
        for part in (y, sample_weight)
    )
    if weights is None or weights.shape != y.shape[: weights.ndim]:
        return y
    return y[weights > 0]

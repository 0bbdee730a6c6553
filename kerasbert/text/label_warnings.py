"""Warnings for labels that are all equal: the model then learns nothing."""

import warnings

import numpy as np


def warn_of_equal(y, what, shown=repr):
    """Warn if there are several labels and all of them are equal.

    Args:
        y: array (N,).
        what: name of the values in the warning, such as "labels".
        shown: function that formats a label.

    >>> warn_of_equal(np.array([1, 0]), "labels")
    """
    if len(y) > 1 and (y == y[0]).all():
        warnings.warn(
            f"All {len(y):,} {what} are {shown(y[0].item())}: the model will learn to "
            "predict that for every text; add examples with other labels, or check the column and "
            "files of the labels.",
            stacklevel=2,
        )


def warn_of_columns(y, names):
    """Warn about classes that no text has, or that all texts have.

    Args:
        y: floats (N, C). A value is above 0 if the text has the class.
        names: list of C names.
    """
    for value, said in ((False, "no text has"), (True, "all texts have")):
        same = np.flatnonzero((y > 0).all(axis=0) if value else ~(y > 0).any(axis=0))
        if len(y) > 1 and len(same):
            shown = ", ".join(repr(names[i]) for i in same[:5]) + (", ..." if len(same) > 5 else "")
            warnings.warn(
                f"{len(same):,} of the {len(names):,} classes ({shown}) are the same in all "
                f"{len(y):,} examples, where {said} them: the model will learn to predict that for "
                "every text; add other examples, or drop the classes.",
                stacklevel=2,
            )


def warn_of_nothing(what, instead):
    """Warn that the training data contain nothing to learn from.

    Args:
        what: a clause: what the data lack.
        instead: a clause: what to do.
    """
    warnings.warn(
        f"{what}, so the loss is 0 from the start and the model learns nothing; {instead}.",
        stacklevel=2,
    )


def counted(y, sample_weight):
    """Return the labels whose sample weight is above 0, as a NumPy array (N, ...).

    Weights whose shape does not fit the labels are ignored.
    """
    y, weights = (
        None if part is None else np.asarray(getattr(part, "flat_values", part))
        for part in (y, sample_weight)
    )
    if weights is None or weights.shape != y.shape[: weights.ndim]:
        return y
    return y[weights > 0]

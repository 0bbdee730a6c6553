"""Checks of ids, lists, strings and numbers that users pass to an index."""

import math
import numbers

from kerasbert.base.errors import is_whole
from kerasbert.text.columns import columns_of, rows_of


def is_number(value):
    """Return whether a value is a finite real number, but not a bool."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and (isinstance(value, numbers.Integral) or math.isfinite(value))


def is_id(value):
    return isinstance(value, str) or is_whole(value)


def listed(values, name, of=""):
    """Return values as a list, or raise a `ValueError` if they are a string, dict or scalar.

    Args:
        values: list, array, or column of pandas, polars, PyArrow or `datasets`.
        name: name of the argument, for errors.
        of: string. Expected items, for errors, such as " of strings".
    """
    if not isinstance(values, dict) and (table := columns_of(values)) is not None:
        raise ValueError(
            f"{name} must be a list{of}, got a table with the columns "
            f"{', '.join(map(repr, table))}; pass one column."
        )
    is_scalar = not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0
    if is_scalar or isinstance(values, (str, bytes, dict)):
        raise ValueError(f"{name} must be a list{of}, got {values!r:.50}.")
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def listed_rows(values, name, of):
    """Return the rows of a table as a list of dicts, and other values as `listed` does."""
    rows = rows_of(values)
    return listed(values, name, of) if rows is None else rows


def strings(texts, name):
    """Return texts as a list; anything else is a `ValueError`."""
    texts = listed(texts, name, " of strings")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] must be a string, got {text!r:.50}.")
    return [str(text) for text in texts]

"""Checks of ids, lists, strings and numbers that users pass to an index."""

import math
import numbers

from kerasbert.base.errors import is_whole


def is_number(value):
    """Return whether a value is a finite real number, but not a bool."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and (isinstance(value, numbers.Integral) or math.isfinite(value))


def is_id(value):
    return isinstance(value, str) or is_whole(value)


def listed(values, name, of=""):
    """Return values as a list; strings, dicts and scalars are a `ValueError`."""
    is_scalar = not hasattr(values, "__iter__") or getattr(values, "ndim", 1) == 0
    if is_scalar or isinstance(values, (str, bytes, dict)):
        raise ValueError(f"{name} must be a list{of}, got {values!r:.50}.")
    return list(values)


def strings(texts, name):
    """Return texts as a list; anything else is a `ValueError`."""
    texts = listed(texts, name, " of strings")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] must be a string, got {text!r:.50}.")
    return [str(text) for text in texts]

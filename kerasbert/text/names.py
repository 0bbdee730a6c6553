"""Comparison of names in one Unicode form: file names of macOS are decomposed."""

import unicodedata

# Invisible characters, which editors may leave at the ends of a cell.
_INVISIBLE = "\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\u00ad"


def trimmed(name):
    """Return a name without surrounding spaces and invisible characters.

    >>> trimmed("\u3000ham\u200b ")
    'ham'
    """
    while (shorter := name.strip().strip(_INVISIBLE)) != name:
        name = shorter
    return name


def composed(name):
    """Return a name in NFC, for comparison."""
    return unicodedata.normalize("NFC", name)


def known_name(name, names):
    """Find a name in a list, in any Unicode form.

    Returns:
        The name as in `names`, or `None`.

    >>> known_name("cafe\\u0301", ["tea", "caf\\u00e9"])
    'café'
    """
    if not isinstance(name, str):  # Pandas' NA cannot be compared.
        return None
    if name in names:
        return name
    if name.isascii() and all(map(str.isascii, names)):
        return None
    wanted = composed(name)
    return next((one for one in names if composed(one) == wanted), None)


def same_names(some, others):
    """Return whether two lists have the same names, in any order.

    >>> same_names(["tea", "cafe\\u0301"], ["caf\\u00e9", "tea"])
    True
    """
    return sorted(map(composed, some)) == sorted(map(composed, others))

"""What is said of errors: of other libraries' in short, of numbers that are none,
and of packages that are missing."""

import importlib.util
import math
import numbers
import reprlib

# What models may compute in, as Keras' policies are named.
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def first_line(error):
    """The first line of what an error says, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_whole(name, value, least=1):
    """Raise a `ValueError` unless a setting is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r} has to be a whole number from {least}.")


# What a setting can be: its test, and what it has to be in words. A "?" after a kind allows `None`.
_MOST = (2 - 2.0**-23) * 2.0**127  # the largest float32
_KINDS = {
    "count": (lambda x: _is_number(x, numbers.Integral) and x >= 1, "a whole number from 1"),
    "whole": (lambda x: _is_number(x, numbers.Integral) and x >= 0, "a whole number from 0"),
    "number": (lambda x: _is_number(x) and 0 <= x <= _MOST, "a number from 0"),
    "positive": (lambda x: _is_number(x) and 0 < x <= _MOST, "a number above 0"),
    "share": (lambda x: _is_number(x) and 0 <= x < 1, "from 0 to below 1"),
    "flag": (lambda x: type(x).__name__ in ("bool", "bool_"), "true or false"),
    "name": (lambda x: isinstance(x, str), "a string"),
    "names": (
        lambda x: isinstance(x, list) and all(isinstance(one, str) for one in x),
        "a list of strings",
    ),
    "object": (lambda x: isinstance(x, dict), "an object"),
    "list": (lambda x: isinstance(x, list), "a list"),
    "token": (
        lambda x: isinstance(x.get("content") if isinstance(x, dict) else x, str),
        "a string, or an object with the string 'content'",
    ),
}


def _is_number(value, kind=numbers.Real):
    if not isinstance(value, kind) or isinstance(value, bool):
        return False
    return isinstance(value, numbers.Integral) or math.isfinite(value)


def check_value(name, value, kind, where=""):
    """Raise a `ValueError` unless a setting is of its kind.

    Args:
        name: string.
        value: any.
        kind: string. A key of `_KINDS`, with a "?" where `None` is fine too.
        where: string. The file that says so.
    """
    if value is None and kind.endswith("?"):
        return
    fits, words = _KINDS[kind.removesuffix("?")]
    if not fits(value):
        where = f" in '{where}'" if where else ""
        raise ValueError(f"{name}={reprlib.repr(value)}{where} has to be {words}.")


def check_fields(config, kinds, where):
    """`check_value` for those fields of a file's object that are there.

    Args:
        config: dict.
        kinds: dict of name to kind.
        where: string. The file.
    """
    for name, kind in kinds.items():
        if name in config:
            check_value(name, config[name], kind, where)


def check_precision(precision):
    """Raise a `ValueError` for what a model of ours cannot compute in."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; use one of {', '.join(PRECISIONS)}.")


def need_packages(what, extra, *packages):
    """Raise an `ImportError` unless the packages of an extra are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"{what} needs the package {package}; run `pip install 'kerasbert[{extra}]'`."
            )

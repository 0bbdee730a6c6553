"""What is said of errors: of other libraries' in short, of numbers that are none,
and of packages that are missing."""

import importlib.util
import numbers

# What models may compute in, as Keras' policies are named.
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def first_line(error):
    """The first line of what an error says, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_whole(name, value, least=1):
    """Raise a `ValueError` unless a setting is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r} has to be a whole number from {least}.")


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

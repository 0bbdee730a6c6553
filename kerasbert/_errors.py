"""What is said of errors: of other libraries' in short, and of numbers that are none."""

import numbers


def first_line(error):
    """The first line of what an error says, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_whole(name, value, least=1):
    """Raise a `ValueError` unless a setting is a whole number from `least` on."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r} has to be a whole number from {least}.")

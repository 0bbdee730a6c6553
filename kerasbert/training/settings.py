"""Settings, declared once for Python, the command line and saved files."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from kerasbert.base.errors import check_whole

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def setting(
    default: object,
    text: str,
    panel: str | None = None,
    *,
    free: bool = False,
    option: bool = True,
    **shown: object,
) -> Any:
    """Declare a setting: a field of a dataclass that is derived from `Settings`.

    Args:
        default: the setting's default. The option of a bool is a flag for the opposite.
        text: the description for the function's docstring. Its first sentence is the option's help,
            with settings in backticks as options.
        panel: panel of the option in the help.
        free: whether the setting may change when a training is resumed.
        option: whether the command has an option.
        **shown: further properties of the option: another `name` or `help`; `type`, or, for a list
            separated by commas, `numbers`, the type of its items; `value` of a flag; `choices`,
            `metavar` and `min`.
    """
    metadata = {"text": text, "panel": panel, "option": option, **shown}
    return dataclasses.field(default=default, compare=not free, metadata=metadata)


class Settings:
    """Base class of dataclasses of settings, whose other fields are required arguments."""

    def choose(self, **values):
        """Set fields of this frozen dataclass; only its `__post_init__` may call this."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def compared(self):
        """Return the settings that all runs in a folder share."""
        fields = settings_in(self)
        return {one.name: getattr(self, one.name) for one in fields if one.compare}


def settings_in(kind):
    """Return the fields of a dataclass that `setting` declared."""
    return [one for one in dataclasses.fields(kind) if "text" in one.metadata]


def takes_settings(
    kind: Callable[Arguments, Any],
) -> Callable[[Callable[..., Result]], Callable[Arguments, Result]]:
    """Make a function take a dataclass's fields as its arguments.

    The function receives the required fields, and the checked object as `settings`. Type checkers
    and editors see all arguments. Its docstring gets the settings' texts.
    """

    def decorate(function):
        settings = settings_in(kind)
        needed = [one.name for one in dataclasses.fields(kind) if one not in settings]

        @functools.wraps(function)
        def call(*args, **kwargs):
            given = kind(*args, **kwargs)
            return function(*(getattr(given, name) for name in needed), settings=given)

        kind.__init__.__qualname__ = function.__name__  # For Python's TypeErrors.
        result = inspect.signature(function).return_annotation
        call.__signature__ = inspect.signature(kind).replace(return_annotation=result)
        arguments, mark, others = inspect.cleandoc(function.__doc__).partition("\n\nReturns:")
        more = (f"\n    {one.name}: {one.metadata['text']}" for one in settings)
        call.__doc__ = "".join([arguments, *more, mark, others])
        return call

    return decorate


def numbers(name, values, kind, least):
    """Return a number or a list of numbers as a tuple without duplicates.

    >>> numbers("epochs", [2, 3, 2], int, 1)
    (2, 3)
    """
    values = values if isinstance(values, (list, tuple)) else (values,)
    for value in values:
        if kind is int:
            check_whole(name, value, least)
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not value > least:
            raise ValueError(f"{name}={value!r} must be a number above {least}.")
    if not values:
        raise ValueError(f"{name} is empty; pass at least one number.")
    return tuple(dict.fromkeys(map(kind, values)))


def two_numbers(given, separator):
    """Return two whole numbers above 0 from a string or a sequence, or `None`.

    >>> two_numbers("3/16", "/"), two_numbers((2, 4), "x"), two_numbers("2x", "x")
    ((3, 16), (2, 4), None)
    """
    try:
        first, second = map(int, given.split(separator) if isinstance(given, str) else given)
    except (TypeError, ValueError):
        return None
    return (first, second) if min(first, second) > 0 else None

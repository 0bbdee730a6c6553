"""Command-line options that are generated from a dataclass of settings."""

import functools
import inspect
import re
import types
import typing
from enum import StrEnum
from typing import Annotated

import typer

from kerasbert.cli.app import numbers, settings
from kerasbert.training.settings import settings_in


def takes_options(kind, **readers):
    """Decorate a command to have one option for each setting in a dataclass.

    The command gets `read_options`, a function that returns the passed settings as a dict. Call it
    within `command`, which prints its errors.

    Args:
        kind: a dataclass of settings; see `kerasbert.training.settings`.
        **readers: for each list setting, a function that reads one value of its option.
    """
    fields = [one for one in settings_in(kind) if one.metadata["option"]]

    def decorate(command):
        def run(**given):
            values = {one.name: given.pop(one.name) for one in fields}
            read = functools.partial(_read, fields, values, readers)
            return command(**given, read_options=read)

        own = inspect.signature(command).parameters.values()
        own = [one for one in own if one.name != "read_options"]
        needed = [one for one in own if one.default is one.empty]
        others = [one for one in own if one.default is not one.empty]
        parameters = [
            one.replace(kind=one.KEYWORD_ONLY)
            for one in (*needed, *(_parameter(one, fields) for one in fields), *others)
        ]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _option(field):
    name = field.metadata.get("name", field.name)
    return f"--{name.replace('_', '-')}"


def _is_dict(field):
    return field.type in (dict, dict | None)


def _help(field, fields):
    """Return an option's help, by default the first sentence of the setting's text."""
    text = field.metadata.get("help") or re.match(r".*?\.(?= |$)", field.metadata["text"])[0]
    names = {f"`{one.name}`": _option(one) for one in fields}
    return re.sub(r"`\w+`", lambda found: names.get(found[0], found[0]), text)


def _parameter(field, fields):
    """Return the parameter that a setting has in the command's signature."""
    more, default = field.metadata, field.default
    if "type" in more:
        kind, default = more["type"], None
    elif "numbers" in more:
        several = default if isinstance(default, tuple) else (default,)
        kind = str | None
        default = None if default is None else ",".join(map(str, several))
    elif "choices" in more:
        kind = StrEnum(field.name.title(), {name: name for name in more["choices"]}) | None
    elif "value" in more or field.type is bool:
        kind, default = bool, False
    elif _is_dict(field) or field.type in (list, list | None):
        kind, default = list[str] | None, None
    elif _plain(field.type) in (int, float, str):
        kind = field.type
    else:
        kind = str | None
    shown = {name: more[name] for name in ("metavar", "min") if name in more}
    shown |= {"help": _help(field, fields), "rich_help_panel": more["panel"]}
    option = typer.Option(_option(field), **shown)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _plain(kind):
    """Return a type without `None`: `int` for `int | None`."""
    others = [one for one in typing.get_args(kind) if one is not types.NoneType]
    return others[0] if len(others) == 1 else kind


def _read(fields, values, readers):
    """Return the settings that the user passed, converted to the types of the dataclass."""
    found = {}
    for field in fields:
        value, more = values[field.name], field.metadata
        is_flag = "value" in more or field.type is bool
        if value is None or value == [] or is_flag and not value:
            continue
        if is_flag:
            value = more.get("value", not field.default)
        elif "numbers" in more:
            value = numbers(_option(field), value, more["numbers"])
        elif field.name in readers:
            value = [readers[field.name](one) for one in value]
        elif _is_dict(field):
            value = settings(_option(field), value)
        elif "choices" in more:
            value = str(value)
        elif int in typing.get_args(field.type) and isinstance(value, str) and value.isdecimal():
            value = int(value)
        found[field.name] = value
    return found

"""What the commands share: the program, its options and its errors."""

import contextlib
import importlib.util
import json
import os
import sys
import warnings
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from kerasbert._errors import EXTRAS, PRECISIONS, how_to_install
from kerasbert._process import silent_tensorflow
from kerasbert._triton import import_triton

app = typer.Typer(
    help="BERT in Keras 3: presets of the whole family, by name, trained, scored and served.",
    epilog="`kerasbert --install-completion` lets the tab key complete commands and options.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


class Backend(StrEnum):
    """What Keras runs on."""

    tensorflow = "tensorflow"
    jax = "jax"
    torch = "torch"


Precision = StrEnum("Precision", {name: name for name in PRECISIONS})

BackendOption = Annotated[
    Backend | None,
    typer.Option(help="What Keras runs on; by default KERAS_BACKEND, or what is installed."),
]
PrecisionOption = Annotated[
    Precision | None,
    typer.Option(help="What the model computes in; weights stay float32. By default float32."),
]
ENCODING = "Encoding of files that are not UTF-8, such as cp949, shift_jis or utf-16."
EncodingOption = Annotated[str | None, typer.Option(help=ENCODING)]
RunnerOption = Annotated[
    str | None, typer.Option(help="Apache Beam's, such as FlinkRunner; by default no Beam.")
]
BeamOption = Annotated[
    list[str] | None, typer.Option(help="A further option of Beam, such as region=eu-west1.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: JSON, nothing else.")]


@contextlib.contextmanager
def command(backend=None, stopped="Stopped; nothing was written.", starts=True):
    """Where a command works: on a backend, with one sentence for a mistake or a warning.

    What is printed in here is progress and goes to the standard error, so that results stand alone
    in the standard output.

    Args:
        backend: string. What Keras runs on, if it matters.
        stopped: string. What to say of Ctrl-C, unless the work itself says it.
        starts: bool. Whether Keras is started before the work begins.

    Raises:
        typer.Exit: 2 for a mistake, 130 for Ctrl-C.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.showwarning = lambda message, *_, **__: typer.echo(f"{message}", err=True)
        try:
            if starts:
                start_keras(backend)
            yield
        except (ValueError, ImportError, OSError) as error:
            # Without the number of an error that has a sentence of its own.
            is_ours = isinstance(error, OSError) and error.filename is None and error.strerror
            typer.echo(error.strerror if is_ours else str(error), err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stop:
            typer.echo(f"\n{stop if str(stop) else stopped}", err=True)
            raise typer.Exit(130) from None


def start_keras(backend):
    """Import Keras on a backend, which can be chosen only now."""
    if "keras" in sys.modules:
        from kerasbert.backend import name

        if backend not in (None, running := name()):
            raise ValueError(
                f"Keras already runs on {running} in this process; start another "
                f"one for --backend {backend}."
            )
        return
    if backend is not None:
        os.environ["KERAS_BACKEND"] = backend
    chosen = os.environ.get("KERAS_BACKEND")
    if chosen and importlib.util.find_spec(chosen) is None:
        raise ValueError(f"The backend {chosen} is not installed; run {_backend_advice(chosen)}.")
    with silent_tensorflow():
        import_triton()
        import keras_hub  # noqa: F401


def _backend_advice(name):
    # TensorFlow is no extra: kerasbert depends on it.
    return how_to_install(name) if name in EXTRAS else "`pip install tensorflow tensorflow-text`"


def show(*tables):
    """Print rich tables whose columns stand in the order of their importance.

    No name is broken or cut: where a terminal is too narrow, the last columns are left out, and
    that is said. What goes to a pipe or a file is whole.
    """
    is_terminal = sys.stdout.isatty()
    for table in tables:
        left_out = []
        while is_terminal and len(table.columns) > 1 and _width(table) > Console().width:
            left_out.insert(0, str(table.columns.pop().header).replace("\n", " ").strip())
        _console(_width(table)).print(table)
        if left_out:
            print(
                "Not shown, for want of width: "
                + ", ".join(filter(None, left_out))
                + ". A wider terminal or a pipe has all."
            )


def _width(table):
    """The characters that a table needs with each of its cells in one line."""
    for column in table.columns:
        column.no_wrap = True
    return max(_console(10_000).measure(table).maximum, Console().width)


def _console(width):
    """A console that prints names such as "[red]" and ":heart:" as they are."""
    return Console(width=width, markup=False, emoji=False)


def settings(option, texts):
    """Options of the form `name=value` as a dict, the values as JSON where they are JSON."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{option} {text!r} is not name=value, such as pooler=false.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def text_columns(text, text_b):
    """The options --text and --text-b as a list of columns, or `None`."""
    if text is None and text_b is not None:
        raise ValueError("--text-b needs --text, the column of the first text.")
    return [name for name in (text, text_b) if name is not None] or None


def label_columns(label):
    """The option --label as a column, or as a list of the columns of several classes.

    >>> label_columns("label"), label_columns("food,travel"), label_columns(None)
    ('label', ['food', 'travel'], None)
    """
    names = [] if label is None else label.split(",")
    return names if len(names) > 1 else label


def numbers(option, text, kind):
    """Numbers with commas between them."""
    if text is None:
        return None
    try:
        return [kind(item) for item in text.split(",")]
    except ValueError:
        wanted = "whole numbers" if kind is int else "numbers"
        raise ValueError(
            f"{option} {text!r} has to be {wanted} with commas between them."
        ) from None

"""The command-line application, and the options and error handling that commands share."""

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

from kerasbert.base.errors import EXTRAS, PRECISIONS, how_to_install
from kerasbert.base.process import silent_tensorflow

app = typer.Typer(
    help="BERT models in Keras 3: train, evaluate, convert and serve presets of many families.",
    epilog="Run `kerasbert --install-completion` to enable tab completion.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


class Backend(StrEnum):
    """Keras backends."""

    tensorflow = "tensorflow"
    jax = "jax"
    torch = "torch"


Precision = StrEnum("Precision", {name: name for name in PRECISIONS})

BackendOption = Annotated[
    Backend | None,
    typer.Option(help="Keras backend; defaults to KERAS_BACKEND, or to an installed one."),
]
PrecisionOption = Annotated[
    Precision | None,
    typer.Option(help="Precision of computations (default: float32); weights stay in float32."),
]
ENCODING = "Encoding of files that are not UTF-8, such as cp949, shift_jis or utf-16."
EncodingOption = Annotated[str | None, typer.Option(help=ENCODING)]
RunnerOption = Annotated[
    str | None,
    typer.Option(help="Apache Beam runner, such as FlinkRunner; Beam is used only with one."),
]
BeamOption = Annotated[
    list[str] | None, typer.Option(help="Further option for Beam, such as region=eu-west1.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


@contextlib.contextmanager
def command(backend=None, stopped="Stopped; nothing was written.", starts=True):
    """Run the body of a command, and print errors and warnings as single lines.

    Redirects standard output to standard error, so that progress does not mix with results.

    Args:
        backend: the Keras backend, if the command needs a particular one.
        stopped: message after Ctrl-C, unless the interrupted function raises its own.
        starts: whether to import Keras before the body runs.

    Raises:
        typer.Exit: with code 2 for an error, 130 for Ctrl-C.
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
            # Print only the message of this package's OSErrors, without the error number.
            is_ours = isinstance(error, OSError) and error.filename is None and error.strerror
            typer.echo(error.strerror if is_ours else str(error), err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stop:
            typer.echo(f"\n{stop if str(stop) else stopped}", err=True)
            raise typer.Exit(130) from None


def _show_version(wanted):
    if wanted:
        from kerasbert import __version__

        print(f"kerasbert {__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
):
    pass


def start_keras(backend):
    """Import Keras with the given backend; raise if it is already imported with another one."""
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
        from kerasbert.base import host  # noqa: F401

        # isort: split
        import keras_hub  # noqa: F401


def _backend_advice(name):
    # TensorFlow is a dependency, so no extra has its packages.
    return how_to_install(name) if name in EXTRAS else "`pip install tensorflow tensorflow-text`"


def show(*tables):
    """Print tables of `rich`, whose columns are in order of importance.

    Names are never wrapped or truncated: on a narrow terminal, the last columns are left out, with
    a note. Pipes and files get all columns.
    """
    is_terminal = sys.stdout.isatty()
    for table in tables:
        left_out = []
        while is_terminal and len(table.columns) > 1 and _width(table) > Console().width:
            left_out.insert(0, str(table.columns.pop().header).replace("\n", " ").strip())
        _console(_width(table)).print(table)
        if left_out:
            print(
                "Columns omitted on this narrow terminal: "
                + ", ".join(filter(None, left_out))
                + ". A wider terminal or a pipe shows them."
            )


def _width(table):
    """Return a table's width in characters, with each cell on one line."""
    for column in table.columns:
        column.no_wrap = True
    return max(_console(10_000).measure(table).maximum, Console().width)


def _console(width):
    """Return a console that prints names such as "[red]" and ":heart:" literally."""
    return Console(width=width, markup=False, emoji=False)


def settings(option, texts):
    """Parse `name=value` options into a dict; values that are valid JSON are decoded."""
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
    """Combine --text and --text-b into a list of columns, or `None`."""
    if text is None and text_b is not None:
        raise ValueError("--text-b needs --text, the column of the first text.")
    return [name for name in (text, text_b) if name is not None] or None


def label_columns(label):
    """Return --label as a column, or as a list of columns, one for each class.

    >>> label_columns("label"), label_columns("food,travel"), label_columns(None)
    ('label', ['food', 'travel'], None)
    """
    names = [] if label is None else label.split(",")
    return names if len(names) > 1 else label


def numbers(option, text, kind):
    """Parse comma-separated numbers."""
    try:
        return [kind(item) for item in text.split(",")]
    except ValueError:
        wanted = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{option} must be comma-separated {wanted}, got {text!r}.") from None

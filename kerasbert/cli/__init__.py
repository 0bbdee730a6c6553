"""The `kerasbert` command line.

Each command calls the Python function of the same name. Each module defines a group of commands.
"""

import codecs
import sys

from kerasbert.base.strict_json import to_json
from kerasbert.cli import (  # noqa: F401  Importing them registers their commands.
    advise,
    checkpoints,
    doctor,
    play,
    pretraining,
    search,
    tasks,
)
from kerasbert.cli.app import app

__all__ = ["app", "main"]


def main():
    """Run the command line."""
    # On Windows, output to a pipe is encoded in a code page: cp949 lacks é, and cp932 lacks Hangul.
    codecs.register_error("kerasbert", _escape)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="kerasbert")
    app()


def _escape(error):
    """Replace characters that an encoding lacks by JSON escapes, which JSON reads as the same."""
    return to_json(error.object[error.start : error.end])[1:-1], error.end

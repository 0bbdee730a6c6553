"""The `kerasbert` command line.

Each command calls the Python function of the same name. Each module holds a group of commands.
"""

from kerasbert.cli import (  # noqa: F401  Importing them registers their commands.
    advise,
    checkpoints,
    play,
    pretraining,
    search,
    tasks,
)
from kerasbert.cli.app import app

__all__ = ["app", "main"]


def main():
    """Run the command line."""
    app()

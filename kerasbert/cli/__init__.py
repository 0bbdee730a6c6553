"""The command `kerasbert`.

Each command has the Python call of the same name behind it. A file holds a group of commands.
"""

from kerasbert.cli import (  # noqa: F401  They add their commands.
    advising,
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

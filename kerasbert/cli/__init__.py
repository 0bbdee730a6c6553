"""The command `kerasbert`.

Each command has the Python call of the same name behind it. A file holds a group of commands.
"""

from kerasbert.cli import advising, checkpoints, pretraining, tasks  # noqa: F401  They add their commands.
from kerasbert.cli.app import app

__all__ = ["app", "main"]


def main():
    """Run the command line."""
    app()

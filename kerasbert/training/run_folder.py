"""`RunFolder`: the output folder of `finetune` and `advise`."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from kerasbert.base.files import names_in, read_json, remove, write_json
from kerasbert.visualize.figures import save

SETTINGS = "settings.json"


@dataclass
class RunFolder:
    """An output folder, whose finished runs are not repeated.

    Args:
        output: path of the folder.
        shared: dict. The settings that all runs in the folder must share.
        overwrite: whether to remove earlier runs.
        verbose: whether to show progress.
        check_interrupt: function that raises `KeyboardInterrupt` if Ctrl-C was pressed before.
    """

    output: str
    shared: dict
    overwrite: bool
    verbose: bool
    check_interrupt: Callable

    # Entries that are not results, and a term for `shared["data"]` in errors.
    others, data_term = frozenset(), "examples"

    def say(self, text):
        if self.verbose:
            print(text, flush=True)

    def path(self, *names):
        return os.path.join(self.output, *names)

    def check_output(self):
        """Raise if the folder has other files, or runs with other settings."""
        there = set(names_in(self.output)) - self.others
        if there and SETTINGS not in there:
            raise ValueError(f"The folder '{self.output}' has other files; name another one.")
        if not self.overwrite and names_in(self.path("runs")):
            self.compare(self.output)

    def compare(self, folder):
        """Raise if the runs in a folder have other settings than these."""
        there = self.recorded(folder)
        for name, value in self.shared.items():
            if there.get(name) != value:
                what = f"{name}={there.get(name)!r}, not {value!r}"
                if isinstance(value, dict) or name == "data":
                    what = f"other {self.data_term}" if name == "data" else f"another {name}"
                raise ValueError(
                    f"The runs in '{folder}' have {what}; name another folder, or pass "
                    "--overwrite (overwrite=True)."
                )

    def recorded(self, folder):
        """Return the settings that the runs in a folder share."""
        return read_json(os.path.join(folder, SETTINGS))

    def begin(self):
        """Create the folder, after data and model are ready."""
        if self.overwrite:
            # First, so that an interrupted removal leaves nothing to resume.
            remove(self.path("runs"))
            for name in names_in(self.output):
                if name not in {SETTINGS, *self.others}:
                    remove(self.path(name))
            self.overwrite = False
        os.makedirs(self.output, exist_ok=True)
        # First, to mark the folder as one with runs.
        write_json(self.path(SETTINGS), self.shared)
        os.makedirs(self.path("runs"), exist_ok=True)

    def draw(self, figures, notes):
        """Draw figures, or add a note if matplotlib is not installed.

        Args:
            figures: dict of file name to a function that returns a figure.
            notes: list of strings.

        Returns:
            List of the names of the files that were written.
        """
        try:
            drawn = {name: figure() for name, figure in figures.items()}
        except ImportError as error:
            notes.append(str(error))
            self.say(notes[-1])
            return []
        for name, figure in drawn.items():
            save(figure, self.path(name))
        return list(drawn)

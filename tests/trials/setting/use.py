"""The places where a setting that was added in one line appears; see `test_trials.py`.

python use.py FOLDER LOOP SETTINGS
"""

import importlib
import inspect
import json
import sys

from typer.testing import CliRunner

import kerasbert
from kerasbert import presets
from kerasbert.cli import app


def main():
    loop = sys.argv[2]
    kind = getattr(importlib.import_module(f"kerasbert.training.{loop}_settings"), sys.argv[3])
    public = getattr(kerasbert, loop)
    given = {}

    def noted(*args, **kwargs):
        given.update({name: value for name, value in kwargs.items() if name == "beers"})
        raise ValueError("It does not run.")

    setattr(importlib.import_module(f"kerasbert.training.{loop}"), loop, noted)
    presets.check = print
    more = {"pretrain": ["text.txt", "-o", "out"], "finetune": ["bert", "out", "--task", "rte"]}
    CliRunner().invoke(app, [loop, *more[loop], "--beers", "4"])
    found = {
        "default": inspect.signature(public).parameters["beers"].default,
        "doc": inspect.getdoc(public),
        "given": given,
        "saved": kind(*["a"] * (2 if loop == "pretrain" else 3), beers=4).compared()["beers"],
        "help": CliRunner().invoke(app, [loop, "--help"]).output,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

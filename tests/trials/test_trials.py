"""Trials of the structure: a kind of head, a family and a setting, added to a copy of the package.

Only the files in `kind/` and `family/` are added: a row and a folder, and a file. Public classes
are imported in `models/__init__.py` and `preprocessors/__init__.py`, and the file in
`families/__init__.py`. A setting is one line.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import pytest

import kerasbert

HERE = pathlib.Path(__file__).parent
PACKAGE = pathlib.Path(kerasbert.__file__).parent


def copy_of_package(target):
    """Copy the package, with the presets next to it in a checkout."""
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(PACKAGE, target / "kerasbert", ignore=ignored)
    if not (copy / "preset_files").exists():
        shutil.copytree(PACKAGE.parent / "presets", copy / "preset_files")
    return copy


def insert(path, text, before):
    """Insert lines before the last line that begins with `before`."""
    whole = path.read_text()
    head, mark, tail = whole.rpartition(f"\n{before}")
    assert mark
    path.write_text(f"{head}\n{text}{before}{tail}")


def run(script, target, *more):
    """Run a trial's script on its copy of the package; return its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(target),
        "KERAS_BACKEND": keras.backend.backend(),
    }
    done = subprocess.run(
        [sys.executable, script, target / "work", *more],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_kind_of_head(tmp_path):
    """With only a row and a folder, a kind of head can be trained, called, saved, converted, served
    and fine-tuned.
    """
    copy = copy_of_package(tmp_path)
    insert(copy / "kinds.py", (HERE / "kind" / "row.txt").read_text(), ")\nKINDS = ")
    for part, name in (
        ("model", "BertTextCounter"),
        ("preprocessor", "BertTextCounterPreprocessor"),
    ):
        line = f"from kerasbert.heads.text_counter.{part} import {name}\n"
        insert(copy / f"{part}s" / "__init__.py", line, "\n__all__ = [")
    ignored = shutil.ignore_patterns("row.txt", "use.py")
    shutil.copytree(HERE / "kind", copy / "heads" / "text_counter", ignore=ignored)
    print(run(HERE / "kind" / "use.py", tmp_path))


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("torch")
def test_a_family(tmp_path):
    """With only a file, a family can load and write each head of a transformers checkpoint."""
    copy = copy_of_package(tmp_path)
    shutil.copy(HERE / "family" / "other_bert.py", copy / "families")
    house = copy / "families" / "__init__.py"
    insert(house, "    other_bert,\n", "    roberta,\n")
    house.write_text(house.read_text().replace("xlm, gpt)", "xlm, gpt, other_bert)"))
    print(run(HERE / "family" / "use.py", tmp_path))


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("loop, kind", [("pretrain", "Pretrain"), ("finetune", "Finetune")])
def test_a_setting(loop, kind, tmp_path):
    """With only a line, Python, the command, its help, the saved file and the reference have the
    setting.
    """
    file = copy_of_package(tmp_path) / "training" / f"{loop}_settings.py"
    head, mark, rest = file.read_text().partition(f"class {kind}Settings")
    line = '    beers: int = setting(3, "Beers per step.", "Training", min=1)\n'
    first = "    def __post_init__"
    file.write_text(head + mark + rest.replace(first, f"{line}\n{first}", 1))
    found = json.loads(run(HERE / "setting" / "use.py", tmp_path, loop, f"{kind}Settings"))
    assert found["default"] == 3 and found["given"] == {"beers": 4}
    assert found["saved"] == 4
    assert "    beers: Beers per step.\n\nReturns:" in found["doc"]
    assert "--beers" in found["help"] and "Beers per step." in found["help"]

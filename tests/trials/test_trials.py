"""The two trials of the house: a kind of head and a family are added to a copy of the package.

What is added, and nothing else, stands in `kind/` and `family/`: a row and a folder, and a file.
Public classes are imported in `models/__init__.py` and `preprocessors/__init__.py`, and the file in
`families/__init__.py`.
"""

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
    """Copy the package, with the presets that a checkout has beside it."""
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(PACKAGE, target / "kerasbert", ignore=ignored)
    if not (copy / "preset_files").exists():
        shutil.copytree(PACKAGE.parent / "presets", copy / "preset_files")
    return copy


def insert(path, text, before):
    """Put lines before the last place where `before` begins a line."""
    whole = path.read_text()
    head, mark, tail = whole.rpartition(f"\n{before}")
    assert mark
    path.write_text(f"{head}\n{text}{before}{tail}")


def run(script, target):
    """Run a script of a trial on its copy of the package; what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(target),
        "KERAS_BACKEND": keras.backend.backend(),
    }
    done = subprocess.run(
        [sys.executable, script, target / "work"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_kind_of_head(tmp_path):
    """A row and a folder: it trains, answers, is saved, converted, served and fine-tuned."""
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
@pytest.mark.backends("tensorflow", "torch")
def test_a_family(tmp_path):
    """A file: each head of a checkpoint of transformers loads and is written."""
    copy = copy_of_package(tmp_path)
    shutil.copy(HERE / "family" / "ernie.py", copy / "families")
    house = copy / "families" / "__init__.py"
    insert(house, "    ernie,\n", "    gpt,\n")
    house.write_text(house.read_text().replace("nomic_bert, gpt)", "nomic_bert, gpt, ernie)"))
    print(run(HERE / "family" / "use.py", tmp_path))

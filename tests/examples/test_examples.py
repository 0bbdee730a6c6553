"""The examples run from their command lines."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts import only_tensorflow_is_fast

pytest.importorskip("tensorflow_text")

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script, *arguments, cwd=None):
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def scores(output, row):
    """The three figures of a row of the table."""
    return [float(x) for x in re.search(rf"{row}(.*)", output)[1].split("│")[1:4]]


@only_tensorflow_is_fast
def test_classify_sms_in_short(tmp_path):
    with open(EXAMPLES / "data" / "sms_spam.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[:400]
    with open(tmp_path / "few.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    arguments = ("--data", "few.csv", "--epochs", 1, "--output", "spam")
    done = run("classify_sms.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "9/9" in done.stdout  # the bar of the progress
    assert scores(done.stdout, "always ham")[1:] == [0, 0]
    assert len(scores(done.stdout, "this model")) == 3
    answers = re.findall(r"^ +(ham|spam)  (0\.\d+|1\.0000)  (\w+)", done.stdout, re.MULTILINE)
    assert [first for _, _, first in answers] == ["Congratulations", "Are", "URGENT"]
    assert (tmp_path / "spam" / "1" / "saved_model.pb").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.csv", "spam"]


@pytest.mark.slow
def test_classify_sms(tmp_path):
    done = run("classify_sms.py", "--output", tmp_path / "spam")
    assert done.returncode == 0, done.stderr
    accuracy, f1, matthews = scores(done.stdout, "this model")
    assert accuracy > 0.985 and f1 > 0.94 and matthews > 0.93
    labels = re.findall(r"^ +(ham|spam)  [01]\.\d{4}  ", done.stdout, re.MULTILINE)
    assert labels == ["spam", "ham", "spam"]


def test_a_column_that_is_missing_is_named(tmp_path):
    (tmp_path / "other.csv").write_text("message,label\nhello,ham\n")
    done = run("classify_sms.py", "--data", "other.csv", cwd=tmp_path)
    assert done.returncode != 0 and "has no column 'text'" in done.stderr


def test_classify_served_wants_a_saved_model(tmp_path):
    done = run("classify_served.py", tmp_path, "hello")
    assert (
        done.returncode == 1 and "is no SavedModel; name the folder of one version" in done.stderr
    )
    done = run("classify_served.py")
    assert done.returncode == 1 and "Usage: python" in done.stderr

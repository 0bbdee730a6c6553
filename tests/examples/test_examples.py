"""The examples run from their command lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    """Return the three figures of a row of the table."""
    return [float(x) for x in re.search(rf"{row}(.*)", output)[1].split("│")[1:4]]


@pytest.mark.slow
def test_classify_sms(tmp_path):
    done = run("classify_sms.py", "--output", "spam", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"(\d+)/\1", done.stdout)  # The progress bar.
    assert scores(done.stdout, "always ham")[1:] == [0, 0]
    accuracy, f1, matthews = scores(done.stdout, "this model")
    assert accuracy > 0.985 and f1 > 0.94 and matthews > 0.93
    answers = re.findall(r"^ +(ham|spam)  (?:0\.\d+|1\.0000)  (\w+)", done.stdout, re.MULTILINE)
    assert answers == [("spam", "Congratulations"), ("ham", "Are"), ("spam", "URGENT")]
    assert (tmp_path / "spam" / "1" / "saved_model.pb").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["spam"]


@pytest.mark.slow
def test_a_column_that_is_missing_is_named(tmp_path):
    (tmp_path / "other.csv").write_text("message,label\nhello,ham\n")
    done = run("classify_sms.py", "--data", "other.csv", cwd=tmp_path)
    assert done.returncode != 0 and "has no column 'text'" in done.stderr


@pytest.mark.slow
def test_classify_served_wants_a_saved_model(tmp_path):
    done = run("classify_served.py", tmp_path, "hello")
    assert (
        done.returncode == 1
        and "is not a SavedModel; name the folder of one version" in done.stderr
    )
    done = run("classify_served.py")
    assert done.returncode == 1 and "Usage: python" in done.stderr


def treebank():
    """Make a CoNLL-U file of trees in which each word is attached to the one before it."""
    words = "the a old new dog cat sees likes".split()
    rows = []
    for number in range(40):
        tags = [words[(number * 3 + place * 5) % len(words)] for place in range(4 + number % 3)]
        for place, word in enumerate(tags):
            rows.append("\t".join([str(place + 1), word, "_", "X", *"__", str(place), *"___"]))
        rows.append("")
    return "\n".join(rows)


@pytest.mark.slow
def test_probe_syntax(tmp_path):
    """The trees of this treebank follow the word order, so each row of the table recovers them."""
    (tmp_path / "a.conllu").write_text(treebank(), encoding="utf-8")
    arguments = ("a.conllu", "a.conllu", "--epochs", "2", "--layers", "0,2", "--picture", "a.png")
    done = run("probe_syntax.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"each word to the next *│ 1\.000 +│ 1\.000", done.stdout)
    assert len(re.findall(r"│ [02] +│ [01]\.\d{3} +│ -?[01]\.\d{3}", done.stdout)) == 2
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.slow
def test_family_tree(tmp_path):
    """The treebank has only one tag, which word embeddings alone can predict."""
    (tmp_path / "a.conllu").write_text(treebank(), encoding="utf-8")
    words = [line.split("\t")[1] for line in treebank().split("\n") if line]
    (tmp_path / "text.txt").write_text("\n".join(words * 3), encoding="utf-8")
    arguments = ("text.txt", "a.conllu", "a.conllu", "--epochs", "1", "--vocabulary-size", "60")
    names = ["ELMo", "XLNet", "ELECTRA"]
    done = run("family_tree.py", *arguments, "--only", ",".join(names), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("the most frequent", *names):
        assert re.search(rf"│ {name} +│ 1\.000", done.stdout), done.stdout
    assert len(re.findall(r"loss \d+\.\d\d in", done.stdout)) == 3

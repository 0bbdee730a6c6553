"""`predict_corpus`: predictions for many files as shards, on one machine."""

import json
import os

import numpy as np
import pytest

import kerasbert
from kerasbert.models import BertTextClassifier
from tests.cli.test_commands import kerasbert as run
from tests.export import tiny

TEXTS = ["good", "", "a bad film", "서울의 날씨가 좋다", "東京の天気", "good " * 20, "bad"]


@pytest.fixture(scope="module")
def model():
    return tiny.task("TextClassifier", labels=tiny.LABELS, num_classes=3)


@pytest.fixture(scope="module")
def preset(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset") / "classifier"
    model.save_to_preset(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    rows = [{"id": f"r{number}", "text": text} for number, text in enumerate(TEXTS[::-1])]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / ".hidden").write_text("no")
    return folder


def check_same(rows, model, corpus):
    """Check that the rows are those of `predict`, file by file."""
    for name in ("lines.txt", "rows.jsonl"):
        said = kerasbert.predict(model, str(corpus / name), verbose=False)
        found = [row for row in rows if row["file"] == name]
        assert [row["id"] for row in found] == said["ids"]
        assert [row["prediction"] for row in found] == said["predictions"]
        for row, expected in zip(found, said["probabilities"]):
            assert list(row["probabilities"]) == list(expected) == tiny.LABELS
            values = list(row["probabilities"].values())
            np.testing.assert_allclose(values, list(expected.values()), atol=1e-5)
    assert len(rows) == 2 * len(TEXTS)
    assert [row["file"] for row in rows] == ["lines.txt"] * len(TEXTS) + ["rows.jsonl"] * len(TEXTS)


def shards(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))


@pytest.mark.backends("torch")
def test_the_same_as_predict(model, corpus, tmp_path):
    out = tmp_path / "out"
    assert kerasbert.predict_corpus(model, corpus, out, rows=3) == 2 * len(TEXTS)
    check_same(list(kerasbert.read_predictions(out)), model, corpus)
    places = ("00000-00000", "00000-00001", "00000-00002")
    places += ("00001-00000", "00001-00001", "00001-00002")
    assert shards(out) == [f"predictions-{place}.jsonl" for place in places]
    # Only missing shards are computed again.
    times = {name: os.stat(out / name).st_mtime_ns for name in shards(out)}
    (out / "predictions-00000-00001.jsonl").unlink()
    assert kerasbert.predict_corpus(model, corpus, out, rows=3) == 2 * len(TEXTS)
    changed = [name for name in shards(out) if os.stat(out / name).st_mtime_ns != times[name]]
    assert changed == ["predictions-00000-00001.jsonl"]
    with pytest.raises(ValueError, match="has predictions with rows=3, not 4"):
        kerasbert.predict_corpus(model, corpus, out, rows=4)
    other = tiny.shake(tiny.task("TextClassifier", labels=tiny.LABELS, num_classes=3), 0.1)
    with pytest.raises(ValueError, match="has predictions from another model"):
        kerasbert.predict_corpus(other, corpus, out, rows=3)


@pytest.mark.backends("torch")
def test_tags_of_words(tmp_path):
    """Rows of words have no text that could serve as an id."""
    model = tiny.task("TokenClassifier", labels=["O", "B-X", "I-X"], num_classes=3)
    (tmp_path / "words.jsonl").write_text('{"tokens": ["a", "bc"]}\n{"tokens": ["d"]}\n')
    assert kerasbert.predict_corpus(model, tmp_path / "words.jsonl", tmp_path / "out", rows=1) == 2
    rows = list(kerasbert.read_predictions(tmp_path / "out"))
    said = kerasbert.predict(model, str(tmp_path / "words.jsonl"))
    assert [row["prediction"] for row in rows] == [list(x) for x in said["predictions"]]
    assert [row["id"] for row in rows] == [0, 1] and "probabilities" not in rows[0]


@pytest.mark.backends("torch")
def test_the_command(preset, corpus, tmp_path):
    out = tmp_path / "out"
    done = run("predict", preset, f"{corpus}/*.txt", "--output", out, "--rows", "4")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{len(TEXTS)} predictions -> {out}\n"
    rows = list(kerasbert.read_predictions(out))
    expected = BertTextClassifier.from_preset(preset).classify(TEXTS)
    assert [row["prediction"] for row in rows] == [one["label"] for one in expected]
    for options, message in (
        (("--rows", "4"), "pass DATA, a folder or quoted pattern, and --output, a folder."),
        (("--rows", "4", "--output", out, "--limit", "3"), "--limit cannot be used with --rows"),
        (("--beam", "region=x", "--output", out), "--beam 'region=x' needs a --runner"),
    ):
        done = run("predict", preset, corpus, *options)
        assert done.exit_code == 2 and message in done.output, done.output


@pytest.mark.backends("torch")
def test_bad_input(model, corpus, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="is not a file, nor a pattern"):
        kerasbert.predict_corpus(model, tmp_path / "none*.txt", out)
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(ValueError, match="has no column 'text'.*its columns are 'body'"):
        kerasbert.predict_corpus(model, tmp_path / "a.jsonl", out)
    assert kerasbert.predict_corpus(model, tmp_path / "a.jsonl", out, columns=["body"]) == 1
    with pytest.raises(ValueError, match="rows=0"):
        kerasbert.predict_corpus(model, corpus, out, rows=0)
    manifest = out / "predictions.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(ValueError, match="is incomplete; run the same predict_corpus again"):
        list(kerasbert.read_predictions(out))

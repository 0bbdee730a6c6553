"""Near duplicates among documents, on one machine."""

import gzip
import json
import random
import sys

import fsspec
import numpy as np
import pytest

from kerasbert.base import storage
from kerasbert.data import deduplicate, documents
from kerasbert.data.deduplicate import shingles, signature
from tests.cli.test_commands import kerasbert as run

module = sys.modules["kerasbert.data.deduplicate"]
WORDS = {
    "en": "weather river lovely mountain walks under bright window between many quiet".split(),
    "ko": "날씨가 좋아서 강을 따라 오래 걸었다 어제는 비가 내렸고 산에는 눈이 왔다".split(),
    "ja": "東京 の 天気 は とても 良い です 昨日 雨 が 降り 山 へ 行きました".split(),
}


def text_of(language, seed, words=150):
    """Return one line of prose, always the same one."""
    draw = random.Random(f"{language}{seed}")
    numbered = (f"{draw.choice(WORDS[language])}{draw.randrange(40)}" for _ in range(words))
    return ("" if language == "ja" else " ").join(numbered)


def changed(text, seed=0, count=2):
    """Return a text with some letters replaced."""
    draw = random.Random(seed)
    for _ in range(count):
        place = draw.randrange(len(text))
        text = text[:place] + "x" + text[place + 1 :]
    return text


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """Make a folder of files in three languages with near duplicates in and across them."""
    folder = tmp_path_factory.mktemp("planted")
    one = {name: [text_of(name, seed) for seed in range(6)] for name in WORDS}
    texts = [one["en"][0], one["ko"][0], changed(one["en"][0]), one["ja"][0]]
    (folder / "a.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    rows = [one["ko"][1], changed(one["ko"][0]), one["ja"][0], one["en"][1]]
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        for number, text in enumerate(rows):
            row = {"id": f"r{number}", "text": text}
            file.write(json.dumps(row, ensure_ascii=number % 2 > 0) + "\n")
    (folder / "c").mkdir()
    (folder / "c" / "d.txt").write_text(one["en"][0].upper() + "!!\n", encoding="utf-8")
    (folder / "c" / "e.txt").write_text(f"{one['ko'][2]}\n\n{one['en'][2]}", encoding="utf-8")
    (folder / "empty.txt").write_text("\n \n")
    return folder


EXPECTED = ["a.txt:3", "b.jsonl.gz:2", "b.jsonl.gz:3", "c/d.txt:1"]


def content(folder):
    """Return the files below a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".kerasbert")
    }


def test_the_first_stays(planted, tmp_path):
    found = deduplicate(planted, tmp_path / "out", document_end="empty_line")
    assert [pair["document"] for pair in found["pairs"]] == EXPECTED
    assert [pair["like"] for pair in found["pairs"]] == ["a.txt:1", "a.txt:2", "a.txt:4", "a.txt:1"]
    assert (found["documents"], found["kept"]) == (11, 7)
    there = content(tmp_path / "out")
    assert sorted(there) == [".duplicates.json", "a.txt", "b.jsonl.gz", "c/e.txt"]
    assert json.loads(there[".duplicates.json"]) == found
    # JSON lines keep all their fields.
    with gzip.open(planted / "b.jsonl.gz", "rb") as file:
        lines = file.read().splitlines(keepends=True)
    assert gzip.decompress(there["b.jsonl.gz"]) == lines[0] + lines[3]
    left = list(documents(tmp_path / "out" / "a.txt", sentences="lines"))
    every = list(documents(planted / "a.txt", sentences="lines"))
    assert left == [every[0], every[1], every[3]]
    assert found["kept_characters"] == sum(
        len(text)
        for file in ("a.txt", "b.jsonl.gz", "c/e.txt")
        for document in documents(tmp_path / "out" / file, sentences="lines")
        for text in document
    )
    # The folder is a corpus; its report is a hidden file.
    assert len(list(documents(tmp_path / "out", document_end="empty_line"))) == found["kept"]
    # The result has no duplicates.
    clean = [tmp_path / "out" / name for name in ("a.txt", "b.jsonl.gz", "c")]
    again = deduplicate(clean, tmp_path / "again", document_end="empty_line")
    assert again["kept"] == again["documents"] == found["kept"]


def test_files_are_documents_in_a_folder(planted, tmp_path):
    found = deduplicate(planted / "c", tmp_path / "out")
    assert found["documents"] == found["kept"] == 2
    # Empty lines inside a document stay.
    assert (tmp_path / "out" / "e.txt").read_text().rstrip() == (
        planted / "c" / "e.txt"
    ).read_text()


def test_the_given_order_counts(tmp_path):
    (tmp_path / "a.txt").write_text("It rains today in Seoul.\n")
    (tmp_path / "b.txt").write_text("It rains today, in Seoul!\n")
    found = deduplicate([tmp_path / "b.txt", tmp_path / "a.txt"], tmp_path / "out")
    assert found["pairs"] == [{"document": "a.txt:1", "like": "b.txt:1", "similarity": 1.0}]


@pytest.mark.parametrize("language", WORDS)
def test_signatures_tell_how_alike_texts_are(language):
    text = text_of(language, 0, 400)
    for count in (0, 3, 20):
        other = changed(text, count, count)
        one, two = set(shingles(text).tolist()), set(shingles(other).tolist())
        exact = len(one & two) / len(one | two)
        same = np.frombuffer(signature(text), "uint8") == np.frombuffer(signature(other), "uint8")
        assert abs((same.mean() - 1 / 256) / (1 - 1 / 256) - exact) < 0.12
    assert signature(text) == signature(f" {text.upper()}?! ")
    # Signatures are the same everywhere, so the same documents are kept.
    assert signature("It rains.").hex().startswith("90f5554e6cadbe9a") and len(signature("")) == 128


def test_short_texts(tmp_path):
    (tmp_path / "a.txt").write_text("a\n\nb\n\nA.\n\n!!\n\n??\n\n!!\n\n비\n\n비\n")
    found = deduplicate(tmp_path / "a.txt", tmp_path / "out")
    assert [pair["document"] for pair in found["pairs"]] == ["a.txt:3", "a.txt:6", "a.txt:8"]


@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.99, 1.0])
def test_any_threshold(threshold, planted, tmp_path):
    found = deduplicate(planted, tmp_path, threshold=threshold, document_end="empty_line")
    assert found["documents"] - found["kept"] == (2 if threshold > 0.9 else 4)


def test_many_copies(tmp_path):
    """A copy is not compared with all earlier ones, of which there may be many."""
    text = text_of("en", 0)
    (tmp_path / "a.txt").write_text("\n\n".join([text] * 300 + [changed(text)] * 300))
    found = deduplicate(tmp_path / "a.txt", tmp_path / "out")
    assert found["kept"] == 1 and len(found["pairs"]) == 100


def test_the_command(planted, tmp_path):
    out = tmp_path / "out"
    done = run("deduplicate", f"{planted}/*.txt", f"{planted}/*.gz", "-o", out, "--threshold", 0.7)
    assert done.exit_code == 0, done.output
    assert "3 of 8 documents (" in done.stdout and f"kept 5 -> {out}" in done.stdout
    assert "a.txt:3 resembles a.txt:1 (0." in done.stdout
    done = run("deduplicate", planted, "-o", out)
    assert done.exit_code == 2 and f"'{out}' is not empty; name another" in done.output
    done = run("deduplicate", planted, "-o", tmp_path / "more", "--json")
    assert json.loads(done.stdout)["documents"] == 7  # One file per document.


def test_an_interrupted_call_leaves_nothing(planted, tmp_path, monkeypatch):
    """An interrupted call used to leave some of the files, which other commands read as a corpus
    and the same call rejected.
    """
    settings = {"document_end": "empty_line"}
    expected = deduplicate(planted, tmp_path / "expected", **settings)
    writes = []

    def stopped(*args):
        writes.append(args)
        if len(writes) == 2:
            raise KeyboardInterrupt
        return written(*args)

    written = module._write
    monkeypatch.setattr(module, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        deduplicate(planted, tmp_path / "out", **settings)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()
    assert deduplicate(planted, tmp_path / "out", **settings) == expected
    assert content(tmp_path / "out") == content(tmp_path / "expected")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "out"]
    # Called again on a complete folder, it writes nothing.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert deduplicate(planted, tmp_path / "out", **settings) == expected
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    for other in ({"threshold": 0.7}, {"encoding": "latin-1"}, {"document_end": "line"}):
        with pytest.raises(ValueError, match="is not empty; name another folder"):
            deduplicate(planted, tmp_path / "out", **{**settings, **other})


@pytest.mark.parametrize("stop", ["a.txt", "b.jsonl.gz", ".duplicates.json"])
def test_an_interrupted_call_at_a_url(stop, planted, tmp_path, monkeypatch):
    """A store cannot rename folders: readers get an error, and the same call completes it."""
    store = fsspec.filesystem("memory")
    url, settings = f"memory://dedup-{tmp_path.name}-{stop[:2]}", {"document_end": "empty_line"}
    expected = deduplicate(planted, tmp_path / "here", **settings)
    put, reports = storage.put, []

    def stopped(path, place, *rest):
        reports.append(place) if place.endswith(".duplicates.json") else None
        if place.endswith(stop) and (stop[0] != "." or len(reports) == 2):
            raise KeyboardInterrupt
        put(path, place, *rest)

    monkeypatch.setattr(storage, "put", stopped)
    with pytest.raises(KeyboardInterrupt):
        deduplicate(planted, url, **settings)
    monkeypatch.undo()
    for reads in (lambda: list(documents(url)), lambda: list(documents([planted, url]))):
        with pytest.raises(ValueError, match="is incomplete: `deduplicate` was interrupted"):
            reads()
    assert deduplicate(planted, url, **settings) == expected
    below = url.removeprefix("memory:/")
    there = {name.removeprefix(f"{below}/"): store.cat_file(name) for name in store.find(below)}
    assert there == content(tmp_path / "here")
    assert len(list(documents(url, document_end="empty_line"))) == expected["kept"]
    store.rm(below, recursive=True)


def test_a_corpus_without_text_leaves_nothing_at_a_url(planted, tmp_path):
    with pytest.raises(ValueError, match="The corpus has no text"):
        deduplicate(planted / "empty.txt", f"memory://none-{tmp_path.name}")
    assert not fsspec.filesystem("memory").exists(f"/none-{tmp_path.name}/.duplicates.json")


def test_bad_input(planted, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for threshold in (0, 1.5, -1):
        with pytest.raises(ValueError, match=f"threshold={threshold} must be above 0"):
            deduplicate(planted, out, threshold=threshold)
    with pytest.raises(ValueError, match="is not a file, nor a pattern"):
        deduplicate(tmp_path / "none", out)
    with pytest.raises(ValueError, match="The corpus has no text"):
        deduplicate(planted / "empty.txt", out)
    with pytest.raises(ValueError, match="with text_key .now 'body'"):
        deduplicate(planted / "b.jsonl.gz", out, text_key="body")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="a.parquet' is a table, but .* convert it"):
        deduplicate(tmp_path / "a.parquet", out)
    assert not out.exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="datasketch; run `pip install datasketch`"):
        deduplicate(planted, out)

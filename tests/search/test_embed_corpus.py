"""The embeddings of a corpus as files: on one machine and by Beam's local runner."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from kerasbert import SearchIndex
from kerasbert.base import files
from kerasbert.cli import app
from kerasbert.search import embed_corpus, read_vectors
from tests.export import tiny

LINES = ["the weather", "", "a good film", "서울의 날씨", "東京の天気", "  ", "the weather"]


@pytest.fixture(scope="module")
def embedder():
    model = tiny.task("TextEmbedder", encoder_settings={"num_layers": 1})
    model.run_eagerly = True  # Compilation takes longer.
    return model


@pytest.fixture(scope="module")
def preset(embedder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset") / "embedder"
    embedder.save_to_preset(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    rows = [{"_id": f"d{i}", "title": "A title", "text": text} for i, text in enumerate("abc")]
    rows.append({"_id": "d3", "title": None, "text": "alone"})
    with gzip.open(folder / "rows.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (folder / "more").mkdir()
    (folder / "more" / "table.csv").write_text("id,title,text\n7,An,other\n8,,one\n")
    (folder / ".hidden").write_text("no")
    return folder


IDS = ["lines.txt:1", "lines.txt:3", "lines.txt:4", "lines.txt:5", "lines.txt:7"]
IDS += ["7", "8", "d0", "d1", "d2", "d3"]


def everything(folder):
    parts = list(read_vectors(folder))
    ids, texts = ([x for part in parts for x in part[place]] for place in (0, 1))
    return ids, texts, np.concatenate([vectors for *_, vectors in parts])


def names(folder):
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def test_shards(embedder, corpus, tmp_path):
    settings = {"text": ["title", "text"], "format": "npy", "rows": 2}
    paths = [corpus / "rows.jsonl.gz", corpus / "more"]
    count = embed_corpus(paths, tmp_path / "out", embedder, **settings)
    ids, texts, vectors = everything(tmp_path / "out")
    assert count == len(ids) == 6 and ids == ["7", "8", "d0", "d1", "d2", "d3"]
    assert texts == ["An other", "one", "A title a", "A title b", "A title c", "alone"]
    expected = embedder.embed(texts)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    found = [x for x in names(tmp_path / "out") if x.endswith(".npy")]
    assert found == [f"vectors-{x}.npy" for x in ("00000-00000", "00001-00000", "00001-00001")]
    # An index accepts these embeddings.
    index = SearchIndex(embedder)
    for ids, texts, vectors in read_vectors(tmp_path / "out"):
        index.add(texts, ids, vectors)
    assert [hit["id"] for hit in index.search("A title b", top_k=1)] == ["d1"]


def test_settings_of_vectors(embedder, corpus, tmp_path):
    settings = {"dtype": "float16", "dims": 5, "similarity": "dot", "prompt": "doc: "}
    embed_corpus(corpus / "lines.txt", tmp_path / "out", embedder, format="npy", **settings)
    ids, texts, vectors = everything(tmp_path / "out")
    assert ids == ["lines.txt:1", "lines.txt:3", "lines.txt:4", "lines.txt:5", "lines.txt:7"]
    assert texts == [text for text in LINES if text.strip()] and vectors.dtype == np.float16
    expected = embedder.embed([f"doc: {text}" for text in texts])[:, :5]
    np.testing.assert_allclose(vectors, expected, rtol=2e-3, atol=2e-3)


def test_what_is_done_stays(embedder, corpus, tmp_path, monkeypatch):
    out, settings = tmp_path / "out", {"format": "npy", "rows": 2}
    seen = []
    embed = type(embedder).embed

    def stopping(self, texts, **kwargs):
        seen.append(texts)
        if len(seen) == 2:
            raise OSError(28, "No space left on device")
        return embed(self, texts, **kwargs)

    monkeypatch.setattr(type(embedder), "embed", stopping)
    with pytest.raises(OSError, match="No space"):
        embed_corpus(corpus / "lines.txt", out, embedder, **settings)
    with pytest.raises(ValueError, match="is incomplete; run the same"):
        list(read_vectors(out))
    assert embed_corpus(corpus / "lines.txt", out, embedder, **settings) == 5
    assert len(seen) == 4  # The first shard was there before.
    done = {name: os.stat(out / name).st_mtime_ns for name in names(out) if name[-1] == "y"}
    assert embed_corpus(corpus / "lines.txt", out, embedder, **settings) == 5 and len(seen) == 4
    assert done == {name: os.stat(out / name).st_mtime_ns for name in done}
    # Shards with other settings are not written into the same folder.
    for message, corpus_, model, more in (
        ("rows=2, not 3", "lines.txt", embedder, {"rows": 3}),
        ("prompt='', not 'x'", "lines.txt", embedder, {"prompt": "x"}),
        ("another corpus", "rows.jsonl.gz", embedder, {}),
        ("another model", "lines.txt", tiny.task("TextEmbedder", scale=0.3), {}),
    ):
        with pytest.raises(ValueError, match=message):
            embed_corpus(corpus / corpus_, out, model, **{**settings, **more})
    (out / "vectors-00000-00001.npy").unlink()
    with pytest.raises(ValueError, match="00001.npy' is missing"):
        list(read_vectors(out))


def test_bad_input(embedder, corpus, tmp_path):
    def write(name, text, encoding="utf-8"):
        (tmp_path / name).write_text(text, encoding=encoding)
        return tmp_path / name

    (tmp_path / "nothing").mkdir()
    for message, path, settings in (
        ("The folder '.*nothing' has no files", tmp_path / "nothing", {}),
        ("is not a file, nor a pattern", tmp_path / "none*.txt", {}),
        ("has no texts", write("empty.txt", "\n \n"), {}),
        ("row 1, has no column 'body'; its columns are 'id'", corpus / "more", {"text": "body"}),
        ("has no column 'key'", corpus / "more", {"id": "key"}),
        ("bad.jsonl', line 2 is not valid JSON", write("bad.jsonl", '"a"\n{"te'), {}),
        ("row 1, must be an object or a string", write("list.jsonl", "[1]\n"), {}),
        ("^'latin.txt' is not UTF-8 .*--encoding", write("latin.txt", "Größe", "latin-1"), {}),
        ("dims=99 is more than the 32", corpus / "lines.txt", {"dims": 99}),
        ("format='csv'", corpus / "lines.txt", {"format": "csv"}),
    ):
        with pytest.raises(ValueError, match=message):
            embed_corpus(path, tmp_path / "out", embedder, **{"format": "npy", **settings})
        if (tmp_path / "out").exists():
            assert names(tmp_path / "out") in ([], ["vectors.json"])
            files.remove(str(tmp_path / "out"))
    with pytest.raises(ValueError, match="has no texts"):
        embed_corpus(tmp_path / "empty.txt", tmp_path / "mended", embedder, format="npy")
    write("empty.txt", "good\n")
    assert embed_corpus(tmp_path / "empty.txt", tmp_path / "mended", embedder, format="npy") == 1
    with pytest.raises(ValueError, match="has vectors from another corpus"):
        embed_corpus(corpus / "lines.txt", tmp_path / "mended", embedder, format="npy")
    tokens = type(embedder)(embedder.backbone, embedder.preprocessor, pooling="tokens")
    for model, message in ((tokens, "pooling='tokens'"), (embedder.backbone, "must be a BertText")):
        with pytest.raises(ValueError, match=message):
            embed_corpus(corpus / "lines.txt", tmp_path / "out", model, format="npy")
    with pytest.raises(ValueError, match="has no vectors.json"):
        list(read_vectors(corpus))


def test_the_command(preset, corpus, tmp_path):
    call = ["embed", str(corpus / "lines.txt"), "-o", str(tmp_path / "out"), "--preset", preset]
    result = CliRunner().invoke(app, [*call, "--format", "npy", "--rows", "3"])
    assert result.exit_code == 0, result.output
    assert f"5 embeddings -> {tmp_path / 'out'}" in result.output
    assert everything(tmp_path / "out")[0] == IDS[:5]
    # One file is as Excel writes it in Japan; the file next to it is UTF-8.
    (tmp_path / "japan").mkdir()
    (tmp_path / "japan" / "a.csv").write_text("id,text\n1,①日本\n", encoding="cp932")
    (tmp_path / "japan" / "b.txt").write_text("日本語で書いた文です\n", encoding="utf-8")
    files = [str(tmp_path / "japan"), "-o", str(tmp_path / "other"), "--encoding", "shift_jis"]
    result = CliRunner().invoke(app, ["embed", *files, *call[4:], "--format", "npy"])
    assert result.exit_code == 0, result.output
    assert everything(tmp_path / "other")[1] == ["①日本", "日本語で書いた文です"]
    result = CliRunner().invoke(app, [*call, "--beam", "region=x"])
    assert result.exit_code == 2 and "--beam 'region=x' needs a --runner" in result.output


def test_prompts_are_those_of_an_index(embedder, corpus, tmp_path):
    bare = embedder.preprocessor
    settings = {**bare.get_config(), "tokenizer": bare.tokenizer, "prompts": {"text": "a good "}}
    model = type(embedder)(embedder.backbone, type(bare).from_config(settings), embedder.pooling)
    model.run_eagerly = True
    file = str(corpus / "lines.txt")
    embed_corpus(file, tmp_path / "own", model, format="npy")
    embed_corpus(file, tmp_path / "given", embedder, format="npy", prompt="a good ")
    ((_, texts, found),) = read_vectors(tmp_path / "own")
    ((_, _, expected),) = read_vectors(tmp_path / "given")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    hit = SearchIndex(model, texts, query_prompt="a good ").search(texts[0], 1)[0]
    assert hit["text"] == texts[0] and hit["score"] == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="vectors from another model"):
        embed_corpus(file, tmp_path / "own", embedder, format="npy")


@pytest.mark.slow
def test_a_killed_run_goes_on(preset, tmp_path):
    texts = "\n".join(f"text number {i}" for i in range(400))
    (tmp_path / "corpus.txt").write_text(texts)
    out = tmp_path / "out"
    code = (
        "import sys; from kerasbert.search import embed_corpus; "
        "embed_corpus(*sys.argv[1:], format='npy', rows=5)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "corpus.txt"), str(out), preset]
    process = subprocess.Popen(command)
    while not list(out.glob("*.npy")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = list(out.glob("*.npy"))
    assert len(done) < 80 and {np.load(path).shape for path in done} == {(5, 32)}
    subprocess.run(command, check=True)
    assert len(everything(out)[0]) == 400


@pytest.mark.peers
def test_parquet(embedder, corpus, tmp_path):
    import pyarrow.parquet

    count = embed_corpus(corpus, tmp_path / "out", embedder, rows=3)
    ids, texts, vectors = everything(tmp_path / "out")
    assert count == 11 and ids == IDS and vectors.shape == (11, 32)
    # The output can be read as a corpus.
    again = [tmp_path / "out" / name for name in names(tmp_path / "out") if "parquet" in name]
    assert embed_corpus(again, tmp_path / "again", embedder) == 11
    for one, other in zip((ids, texts, vectors), everything(tmp_path / "again")):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    table = pyarrow.parquet.read_table(again[0])
    assert table.column_names == ["id", "text", "vector"]

"""Lines, fields and rows that are far too long, plain and compressed, raise one-sentence errors."""

import bz2
import gzip
import importlib
import json
import lzma

import pytest

from kerasbert.base.memory import peak_bytes
from kerasbert.data import documents, text_files
from kerasbert.heads.base.file_readers import read_inputs

# Reading files does not depend on the backend.
pytestmark = pytest.mark.backends("torch")
MODULE = importlib.import_module("kerasbert.search.embed_corpus")
SHORT = 1 << 16


@pytest.fixture
def short(monkeypatch):
    """Limit lines to 64 kB instead of 64 MiB, so that the tests are quick."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", SHORT)
    monkeypatch.setattr(text_files, "CHUNK", SHORT // 4)


def rows_of(path):
    settings = {"text": ["text"], "id": None}
    return [text for _, text in MODULE._rows(path.name, str(path), settings)]


LONG = "word " * (SHORT // 2)
PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pytest.importorskip("backports.zstd").compress(data),
}


@pytest.mark.parametrize("ending", PACK)
def test_json_lines(short, tmp_path, ending):
    rows = [json.dumps({"text": text}) for text in ("one", "two", LONG, "four")]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending]("\n".join(rows).encode()))
    with pytest.raises(ValueError, match=f"a.jsonl{ending}' has more than 0 MiB in line 3"):
        list(documents(path))
    rows[2] = json.dumps({"text": LONG[: SHORT // 2]})
    path.write_bytes(PACK[ending]("\n".join(rows).encode()))
    assert len(list(documents(path))) == 4


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "tsv"])
def test_embed_corpus(short, tmp_path, kind, ending):
    row = json.dumps if kind == "jsonl" else str
    head = "text\n" if kind in ("csv", "tsv") else ""
    path = tmp_path / f"a.{kind}{ending}"

    def write(text):
        lines = "".join(f"{row(one)}\n" for one in ("one", text, "three"))
        path.write_bytes(PACK[ending]((head + lines).encode()))

    write(LONG)
    line = 3 if head else 2
    with pytest.raises(ValueError, match=f"{path.name}' has more than 0 MiB in line {line}"):
        rows_of(path)
    write(LONG[: SHORT // 3])
    assert len(rows_of(path)) == 3
    if kind == "csv":  # A single field has many lines.
        write('"' + "word\n" * (SHORT // 2) + '"')
        with pytest.raises(ValueError, match="table at line 3 .*field .*limit"):
            rows_of(path)


@pytest.mark.peers
def test_a_dictionary_of_parquet(tmp_path):
    """2,000 rows share one large text: they are read one by one, never all at once."""
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    text = "ab " * (1 << 21)  # 6 MB each, so 12 GB for all rows.
    table = pyarrow.table({"text": pyarrow.array([text] * 3).dictionary_encode()})
    index = pyarrow.array([0] * 2000, "int32")
    column = pyarrow.DictionaryArray.from_arrays(index, table["text"].chunk(0).dictionary)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)
    before = peak_bytes()
    found = MODULE._rows(path.name, str(path), {"text": ["text"], "id": None})
    assert next(found)[1] == text and next(found)[1] == text
    assert next(documents(path, sentences="lines"))
    assert peak_bytes() - before < 400 << 20


@pytest.mark.peers
def test_rows_of_parquet(short, tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", LONG]}), path)
    for read in (lambda: list(documents(path)), lambda: rows_of(path)):
        with pytest.raises(ValueError, match="a.parquet' has more than 0 MiB in row 2"):
            read()
    pyarrow.parquet.write_table(pyarrow.table({"text": [["one", "two"], ["three"]]}), path)
    assert len(list(documents(path))) == 2
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * SHORT * 64] * 2}), path)
    for read in (lambda: list(documents(path)), lambda: rows_of(path)):
        with pytest.raises(ValueError, match="a.parquet' (expands from|has more)"):
            read()


def test_gzip_of_what_is_read_whole(short, tmp_path):
    for name, content in (("a.txt.gz", b"a" * SHORT * 99), ("a.jsonl.gz", b"\n" * SHORT * 99)):
        (tmp_path / name).write_bytes(gzip.compress(b'"one"\n' + content))
        with pytest.raises(ValueError, match=f"{name}' expands from .* to .*, which no text does"):
            read_inputs(str(tmp_path / name))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert read_inputs(str(tmp_path / "b.txt.gz")) == ["one", "two"]


def test_text_is_cut_as_ever(tmp_path):
    """Lines of text have no limit: long ones are split into documents."""
    with gzip.open(tmp_path / "a.txt.gz", "wb", 1) as file:
        for _ in range(20):
            file.write(b"word. " * (1 << 18))
    before = peak_bytes()
    assert len(list(documents(tmp_path / "a.txt.gz", sentences="lines"))) == 4
    assert peak_bytes() - before < 150 << 20

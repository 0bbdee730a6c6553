"""Tables of every form, read by the reader that all commands share."""

import gzip
import json
import unicodedata

import pytest

from kerasbert.data import documents
from kerasbert.data.tables import delimiter_of, find_name, open_table, records
from kerasbert.heads.base.file_readers import read_inputs, read_table
from kerasbert.search.embed_corpus import _rows

pytestmark = pytest.mark.backends("tensorflow")
NFD = unicodedata.normalize("NFD", "문장,분류\n") + "가,1\n나,0\n"


def write(folder, name, data, encoding="utf-8"):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cr.csv", b"text,label\ra,1\rb,0\r"),
        ("cr.tsv", b"text\tlabel\ra\t1\rb\t0"),
        ("crcrlf.csv", b"text,label\r\r\na,1\r\r\nb,0\r\r\n"),
        ("mixed.csv", b"text,label\na,1\rb,0\n"),
        ("commas.csv", "text,label,,\na,1,,\nb,0,,\n,,,\n"),
        ("rows.csv", "text,label\na,1,\nb,0,,\n"),
        ("sep.csv", "sep=;\ntext;label\na;1\nb;0\n"),
        ("sep.csv", b'\xef\xbb\xbf"sep=|"\r\ntext|label\r\na|1\r\nb|0\r\n'),
        ("sep.csv", "\ufeffSEP=\t\r\ntext\tlabel\r\na\t1\r\nb\t0\r\n".encode("utf-16-le")),
        ("pipe.csv", "text|label\na|1\nb|0\n"),
        ("pipe.txt", "text|label\na|1\nb|0\n"),
        ("semicolon.tsv", "text;label\na;1\nb;0\n"),
        ("blank.csv", "\n\ntext,label\na,1\n,\n\n , \nb,0\n\n"),
        ("case.csv", " Text , LABEL\na,1\nb,0\n"),
        ("two_marks.csv", b"\xef\xbb\xbf\xef\xbb\xbftext,label\na,1\nb,0\n"),
        ("packed.csv.gz", gzip.compress(b"text,label\na,1\nb,0\n", mtime=0)),
        ("a.jsonl", b'{"text":"a","label":"1"}\r{"text":"b","label":"0"}\r'),
        ("a.json", '[{"text": "a", "label": "1"},\n {"text": "b", "label": "0"}]'),
        ("a.jsonl", '[{"text": "a", "label": "1"},\n {"text": "b", "label": "0"}]'),
        ("a.json", '{"data": [{"text": "a", "label": "1"}, {"text": "b", "label": "0"}]}'),
        ("a.json", '{"text": "a", "label": "1"}\n\n{"text": "b", "label": "0"}\n'),
        (
            "a.ndjson.gz",
            gzip.compress(b'{"text":"a","label":"1"}\n{"text":"b","label":"0"}', mtime=0),
        ),
    ],
)
def test_the_same_table(tmp_path, name, data):
    path = write(tmp_path, name, data)
    table = read_table(path, wanted=["text", "label"])
    assert table.column("text") == ["a", "b"] and table.column("label") == ["1", "0"]
    assert read_inputs(path) == ["a", "b"]
    if not name.endswith(".txt"):  # A `.txt` file of a corpus has no columns.
        settings = {"text": ["text"], "id": None, "encoding": None}
        found = [text for _, text in _rows(name, path, settings)]
        assert found == ["a", "b"]
    if "csv" in name or "tsv" in name:
        assert [text for (text,) in documents(path)] == ["a", "b"]


def test_columns_by_name(tmp_path):
    path = write(tmp_path, "nfd.csv", NFD)
    assert read_table(path).column("문장") == ["가", "나"] and find_name(["A", "a"], "a") == "a"
    assert [text for (text,) in documents(path, text_key="문장")] == ["가", "나"]
    settings = {"text": ["문장"], "id": "분류", "encoding": None}
    assert list(_rows("nfd.csv", path, settings)) == [("1", "가"), ("0", "나")]
    path = write(tmp_path, "two.csv", "Text,TEXT,label\na,b,1\n")
    with pytest.raises(ValueError, match="has the columns 'Text' and 'TEXT', but no 'text'"):
        read_table(path).column("text")
    path = write(tmp_path, "twice.csv", "text,text\na,b\n")
    with pytest.raises(ValueError, match="more than one column 'text'"):
        list(records(path, wanted=["text"]))
    path = write(tmp_path, "headless.csv", "good film,1\nbad film,0\n")
    with pytest.raises(ValueError, match="no column 'text'.* Its first line must name the col"):
        read_table(path).column("text")
    with pytest.raises(
        ValueError, match="has the columns 'good film', '1'; name the column of the texts"
    ):
        list(documents(path))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json"])
def test_an_empty_file_of_a_corpus_has_no_rows(tmp_path, name):
    path = write(tmp_path, name, "\n \n")
    assert list(records(path)) == []
    with pytest.raises(ValueError, match=f"{name}' is empty"):
        read_table(path)
    assert list(records(write(tmp_path, "b.csv", "text\n"))) == []


def test_delimiters():
    assert delimiter_of("text, kurz;label", ".csv", ["text, kurz"]) == ";"
    assert delimiter_of("This is text, and label\n", ".tsv", ["text", "label"]) == "\t"
    assert delimiter_of("a,b\tc", ".tsv", ["a"]) == "\t"


def test_quoted_line_ends(tmp_path):
    path = write(tmp_path, "a.csv", b'text,label\r"a\nz",1\r"b\rz",0\r')
    assert read_table(path).column("text") == ["a\nz", "b\nz"]
    path = write(tmp_path, "b.csv", b'sep=,\r\ntext,label\r\n"a\r\nz",1\r\nb,0\r\n')
    table = read_table(path)
    assert table.column("text") == ["a\nz", "b"] and table.numbers == [3, 5]


def test_what_json_does_not_have(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": NaN, "label": 1}\n{"text": "b", "label": null}\n')
    table = read_table(path)
    assert table.column("text") == [None, "b"] and table.column("label") == [1, None]
    path = write(tmp_path, "b.jsonl", json.dumps({"text": "a"}) + "\n{")
    with pytest.raises(ValueError, match="b.jsonl', line 2 is not valid JSON"):
        list(records(path))


def test_rows_that_are_answered_one_by_one_stay(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\na,1\n,\nb,0\n")
    assert read_table(path, keep_broken=True).column("text") == ["a", "", "b"]
    assert open_table(path)[2] == "line"


@pytest.mark.peers
@pytest.mark.filterwarnings("error")
def test_spreadsheets(tmp_path):
    import datetime

    import openpyxl

    book = openpyxl.Workbook()
    rows = [
        (None, None, None),
        ("Text", "label", "day"),
        ("a\nz", 1, datetime.date(2026, 1, 2)),
        (7, 0, datetime.datetime(2026, 1, 2, 3, 4)),
        (None, None, None),
        ("b", 2.5, True),
    ]
    for row in rows:
        book.active.append(row)
    path = tmp_path / "a.xlsx"
    book.save(path)
    table = read_table(str(path))
    assert table.column("text") == ["a\nz", 7, "b"] and table.column("label") == [1, 0, 2.5]
    assert table.column("day") == ["2026-01-02", "2026-01-02 03:04:00", "TRUE"]
    assert table.place(2) == f"'{path}', row 6" and read_inputs(str(path)) == ["a\nz", 7, "b"]
    assert list(documents(path)) == [["a", "z"], ["7"], ["b"]]
    book.create_sheet("more").append(["x"])
    book.save(path)
    with pytest.warns(UserWarning, match="Of the 2 sheets of .* 'Sheet', is read"):
        read_table(str(path))
    path.write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ValueError, match="a.xlsx' is not a readable spreadsheet"):
        read_table(str(path))

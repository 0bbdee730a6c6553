"""Corpora: every format, broken files, and bounded memory."""

import bz2
import gzip
import itertools
import json
import lzma
import pickle
import textwrap
import tracemalloc

import pytest

from kerasbert.data import blocks, documents, text_files
from kerasbert.data import corpus as corpus_module
from kerasbert.data.corpus import part_documents, parts

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.

TWO = [["It rains.", "It pours."], ["The sun shines."]]
TWO_TEXT = "It rains.\nIt pours.\n\nThe sun shines.\n"


def read(path, **settings):
    return list(documents(path, **settings))


# Formats


@pytest.mark.parametrize(
    "content",
    [
        TWO_TEXT,
        "\n \n\t\n" + TWO_TEXT + "\n\n \n",
        TWO_TEXT.rstrip("\n"),
        TWO_TEXT.replace("\n", "\r\n"),
        TWO_TEXT.replace("\n", "\r"),
        TWO_TEXT.replace("\n\n", "\n \t \n\n"),
        TWO_TEXT.replace("\n\n", "\n\u3000\xa0\n"),
        "\ufeff" + TWO_TEXT,
        TWO_TEXT.encode("utf-16"),
        TWO_TEXT.encode("utf-32"),
    ],
    ids="plain empty_lines no_end crlf cr spaces wide_spaces mark utf16 utf32".split(),
)
def test_a_sentence_a_line_and_empty_lines_between_documents(write, content):
    assert read(write("a.txt", content)) == TWO


def test_carriage_returns_at_the_end_of_a_chunk(write, monkeypatch):
    path = write("a.txt", TWO_TEXT.replace("\n", "\r\n"))
    for size in range(1, 20):
        monkeypatch.setattr(text_files, "CHUNK", size)
        assert read(path) == TWO


@pytest.mark.parametrize("encoding", ["cp949", "euc-kr", "utf-8"])
def test_an_encoding_may_be_named(write, encoding, monkeypatch):
    path = write("a.txt", "비가 온다.\n\n해가 뜬다.\n".encode(encoding))
    monkeypatch.setattr(text_files, "CHUNK", 3)  # cuts inside characters
    assert read(path, encoding=encoding) == [["비가 온다."], ["해가 뜬다."]]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
@pytest.mark.parametrize("encoding", ["shift_jis", "latin-1"])
def test_an_encoding_is_for_files_that_are_not_utf8(write, name, encoding):
    sentence = "비가 온다. 바람이 분다."
    texts = {
        "a.txt": sentence,
        "a.jsonl": f'{{"text": "{sentence}"}}',
        "a.csv": f"text\n{sentence}",
    }
    path = write(name, f"{texts[name]}\n".encode())
    assert read(path, encoding=encoding, sentences="lines") == [[sentence]]


@pytest.mark.parametrize(
    "name, pack", [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_compressed(write, name, pack):
    path = write(f"a.txt.{name}", pack(TWO_TEXT.encode()))
    assert read(path) == TWO
    cut = write(f"b.txt.{name}", path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rf"'.*b\.txt\.{name}' is truncated or damaged"):
        read(cut)
    other = write(f"c.txt.{name}", TWO_TEXT)
    with pytest.raises(ValueError, match="truncated or damaged"):
        read(other)


def test_zstandard(write):
    path = write("a.txt.zst", b"(\xb5/\xfd")
    try:
        from backports import zstd
    except ImportError:
        with pytest.raises(ImportError, match="pip install backports.zstd"):
            read(path)
        return
    packed = zstd.compress(TWO_TEXT.encode())
    path.write_bytes(packed + packed)  # as compression programs write that use all cores
    assert read(path) == TWO[:1] + [TWO[1] + TWO[0]] + TWO[1:]
    path.write_bytes(packed[:-3])
    with pytest.raises(ValueError, match="is truncated or damaged"):
        read(path)


def test_json_lines(write):
    records = [{"text": "It rains. It pours."}, {"text": ""}, {"text": "The sun\r\nshines."}]
    content = "\n".join(map(json.dumps, records))
    expected = [["It rains.", "It pours."], ["The sun", "shines."]]
    assert read(write("a.jsonl", content)) == expected
    assert read(write("a.jsonl.gz", gzip.compress(content.encode()))) == expected
    lines = read(write("b.json", content), sentences="lines")
    assert lines == [["It rains. It pours."], ["The sun", "shines."]]
    other = write("c", '{"body": ["One.", "Two. Three."]}\n\n{"body": "caf\\u00e9 \\ud83d"}')
    assert read(other, text_key="body") == [["One.", "Two.", "Three."], ["café ?"]]


def test_folders_patterns_and_lists(write, tmp_path):
    write("news/b/2.txt", "Two now. Two then.")
    write("news/1.txt", "One a.\n\nOne b.\n")
    write("news/.hidden", "No.")
    write("news/.git/x", "No.")
    write("news/3.jsonl", '{"text": "Three."}\n{"text": "Four."}')
    folder = tmp_path / "news"
    in_folder = [["One a.", "One b."], ["Three."], ["Four."], ["Two now.", "Two then."]]
    assert read(folder) == in_folder
    assert read(f"{folder}/**/*.txt") == [["One a."], ["One b."], ["Two now.", "Two then."]]
    assert read(f"{folder}/**/*.txt", document_end="file", sentences="split") == [
        ["One a.", "One b."],
        ["Two now.", "Two then."],
    ]
    assert read([folder / "b", folder, folder / "1.txt"]) == in_folder[-1:] + in_folder[:-1]
    # An existing file name is not a pattern.
    assert read(write("[a].txt", "Brackets.")) == [["Brackets."]]


STORIES = {
    "en": [
        ["The harbour lay still under a grey sky.", "Mr. Hill counted nine boats that morning."]
        + ["None of them had gone out since the storm of last week, and nobody spoke of it."],
        ["In spring the road to the mill is under water.", "We walk over the hill, then."]
        + ["It takes an hour longer, but one sees the whole valley from up there."],
    ],
    "ko": [
        ["오늘은 아침부터 비가 내렸다.", "나는 우산을 들고 역까지 천천히 걸어갔다."]
        + ["기차는 십 분 늦게 도착했지만 아무도 화를 내지 않았다."],
        ["도서관은 여덟 시에 문을 닫는다.", "그래서 우리는 저녁을 먼저 먹기로 했다."]
        + ["골목 끝의 작은 식당에는 오래된 사진이 많이 걸려 있었다."],
    ],
    "ja": [
        ["今日は朝から雨が降っていた。", "私は傘を持って駅までゆっくり歩いた。"]
        + ["電車は十分遅れて着いたが、怒っている人は誰もいなかった。"],
        ["図書館は八時に閉まる。", "だから私たちは先に夕食をとることにした。"]
        + ["路地の奥の小さな食堂には、古い写真がたくさん飾ってあった。"],
    ],
}


def paragraphs_a_line(document, space):
    return space.join(document)


def sentences_a_line(document, space):
    return "\n".join(document)


def wrapped_lines(document, space):
    return "\n".join(textwrap.wrap(space.join(document), 36))


@pytest.mark.parametrize("language", STORIES)
@pytest.mark.parametrize("form", [paragraphs_a_line, sentences_a_line, wrapped_lines])
def test_files_say_whether_they_are_prose(write, language, form):
    stories, space = STORIES[language], "" if language == "ja" else " "
    stories = stories * 4
    text = "\n\n".join(form(document, space) for document in stories)
    path = write("a.txt", text)
    assert read(path) == stories
    # A folder with one file per document is read in the same way, with blocks of any size.
    for number, document in enumerate(stories):
        write(f"folder/{number:03}.txt", form(document * 3, space))
    assert read(path.parent / "folder") == [document * 3 for document in stories]
    assert [d for _, block in blocks(path, block_bytes=64) for d in block] == stories
    # Explicit arguments win.
    lines = [form(document, space).split("\n") for document in stories]
    assert read(path, sentences="lines") == lines
    (said,) = corpus_module.describe_files(path)
    how = {paragraphs_a_line: "prose, split", sentences_a_line: "one sentence per line"}
    assert how.get(form, "wrapped prose, joined and split") in said
    assert said.endswith("documents end at empty lines")


def test_a_document_a_line(write):
    path = write("a.txt", "It rains. It pours.\n\nThe sun shines.")
    expected = [["It rains.", "It pours."], ["The sun shines."]]
    assert read(path, document_end="line") == expected
    assert read(path, document_end="line", sentences="lines")[0] == ["It rains. It pours."]


# Blocks


def test_documents_do_not_depend_on_blocks(write, monkeypatch):
    text = "".join(f"Line {i} of it.\n" + "\n" * (i % 7 == 0) for i in range(3000))
    one, other = write("d/a.txt", text), write("d/b.txt", text[:5000])
    expected = read([one, other])
    monkeypatch.setattr(text_files, "CHUNK", 512)
    monkeypatch.setattr(corpus_module, "LONGEST", 4096)
    assert read([one, other]) == expected
    for size in (1, 100, 5000, 10**6):
        found = list(blocks([one, other], block_bytes=size))
        assert [index for index, _ in found] == list(range(len(found)))
        assert [d for _, block in found for d in pickle.loads(pickle.dumps(block))] == expected
        assert found[-1][1].progress == 1
        assert all(0.75 * size <= block.size < size + 4096 + 512 for _, block in found[:-1])


@pytest.mark.parametrize("end", ["file", "empty_line", "line"])
@pytest.mark.parametrize("between", ["\n", " ", ""])
def test_a_document_that_is_too_long_becomes_several(write, monkeypatch, end, between):
    monkeypatch.setattr(text_files, "CHUNK", 512)
    monkeypatch.setattr(corpus_module, "LONGEST", 1000)
    path = write("a.txt", between.join(["비가온다."] * 1000))
    found = read(path, document_end=end, sentences="lines")
    assert len(found) >= 13
    joined = "".join("".join(document) for document in found).replace(" ", "")
    assert joined == "비가온다." * 1000  # no character is split
    sizes = [sum(len(line.encode()) for line in document) for document in found]
    assert max(sizes) <= 1000
    for size in (1, 5000):
        parts = blocks(path, document_end=end, sentences="lines", block_bytes=size)
        assert [document for _, block in parts for document in block] == found


def test_memory_is_flat(write):
    def peak(paths):
        tracemalloc.start()
        for _, block in blocks(paths, block_bytes=1 << 16):
            for _ in block:
                pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    text = ("It rains and it pours.\n" * 20 + "\n") * 250  # more than 100 kB
    small = [write(f"{i}.txt", text) for i in range(4)]
    small.append(write("x.txt.gz", gzip.compress(text.encode() * 4)))
    large = [*small, *(write(f"{i}.txt", text) for i in range(4, 8))]
    large.append(write("y.txt.gz", gzip.compress(text.encode() * 16)))
    assert peak(large) < 1.2 * peak(small)


# Bad input


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sentences": "split them"}, "'split them' must be one of None, 'lines', 'split'"),
        ({"document_end": "page"}, "document_end='page' must be one of"),
        ({"errors": "strict?"}, "errors='strict.' must be one of"),
        ({"encoding": "klingon"}, "encoding='klingon' is unknown"),
    ],
)
def test_unknown_settings(write, settings, message):
    with pytest.raises(ValueError, match=message):
        read(write("a.txt", TWO_TEXT), **settings)


def test_nothing_to_read(write, tmp_path):
    with pytest.raises(ValueError, match=r"'.*nowhere\.txt' is not a file, nor"):
        read(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match=r"'.*\*\.md' is not a file, nor"):
        read(tmp_path / "*.md")
    with pytest.raises(ValueError, match="The corpus is an empty list"):
        read([])
    for name in ("a.zip", "a.tar.gz"):
        with pytest.raises(ValueError, match=f"{name}' is an archive; unpack it"):
            read(write(f"archives/{name}", "x").parent)
        (tmp_path / "archives" / name).unlink()
    folder = write("empty/.hidden", "").parent
    with pytest.raises(ValueError, match="The folder '.*empty' has no files"):
        read(folder)
    empty = write("a.txt", "\n \n")
    for call in (read, lambda path: list(blocks(path))):
        with pytest.raises(ValueError, match=r"corpus '.*a\.txt' and 1 more has no text"):
            call([empty, write("b.txt", "")])
    with pytest.raises(ValueError, match="has no text"):
        read(write("c.jsonl", '{"text": " "}'))


@pytest.mark.parametrize("chunk", [4, 1 << 20])
def test_bytes_that_are_no_utf8(write, chunk, monkeypatch):
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    path = write("a.txt", b"One.\r\n\r\nTwo.\r\nThr\xffee.\r\n")
    with pytest.raises(ValueError, match=r"'.*a\.txt' is not UTF-8 in line 4; .*errors='replace'"):
        read(path)
    assert read(path, errors="replace") == [["One."], ["Two.", "Thr\ufffdee."]]
    assert read(path, errors="ignore") == [["One."], ["Two.", "Three."]]
    path = write("b.txt", "하나\n\n둘\n셋".encode("cp949") + b"\xff\n")
    with pytest.raises(ValueError, match=r"'.*b\.txt' is not CP949 in line 4"):
        read(path, encoding="cp949")


@pytest.mark.parametrize(
    "line, message",
    [
        ("{'text'}", r"Line 3 of '.*' is not JSON .*\{\"text\": "),
        ('{"body": "x"}', r"Line 3 of '.*' has the keys 'body'; name the key .* with text_key"),
        ('{"text": 5}', "Line 3 of '.*' has no text at 'text'"),
        ('{"text": ["a", 5]}', "Line 3 of '.*' has no text at 'text'"),
        ("[]", "Line 3 of '.*' has no text at 'text'"),
    ],
)
def test_json_lines_that_have_no_text(write, line, message):
    path = write("a.jsonl", f'{{"text": "Fine."}}\n\n{line}\n')
    with pytest.raises(ValueError, match=message):
        read(path)


# Parts, and Parquet


def in_parts(path, part_bytes, **settings):
    return [
        list(part_documents(*part, **settings))
        for part in parts(str(path), path.stat().st_size, part_bytes)
    ]


def several_documents():
    """Documents of all sizes, in three scripts."""
    words = "It rains. 비가 온다. 雨が降る。 naïve \ufeff x".split(" ")
    return [[" ".join(words[: 1 + (i * j) % 7]) for j in range(1 + i % 5)] for i in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", ["empty_line", "line"])
def test_parts_have_the_documents_of_the_whole(write, newline, end):
    blank = [newline * 2, newline + " \t" + newline, newline * 4]
    text = "".join(
        newline.join(document) + blank[number % 3]
        for number, document in enumerate(several_documents())
    )
    for name, data in (("a.txt", text.encode()), ("mark.txt", ("\ufeff" + text).encode())):
        path = write(name, data)
        whole = read(path, document_end=end)
        for size in (1, 50, 333, 10**6):
            found = in_parts(path, size, document_end=end)
            assert list(itertools.chain(*found)) == whole
            # Files with classic Mac OS line ends cannot be split.
            if newline != "\r" and size == 333:
                assert sum(map(bool, found)) > 5


def test_parts_of_json_lines_and_what_is_one_part(write):
    lines = [json.dumps({"text": " ".join(document)}) for document in several_documents()]
    path = write("a.jsonl", "\n".join(lines).encode())
    assert list(itertools.chain(*in_parts(path, 100))) == read(path)
    text = "\n\n".join("\n".join(document) for document in several_documents())
    for name, data, settings in (
        ("a.txt.gz", gzip.compress(text.encode()), {}),
        ("b.txt", text.encode("utf-16"), {}),
        ("c.txt", text.replace("ï", "i").encode("cp949", "replace"), {"encoding": "cp949"}),
        ("d.txt", text.encode(), {"document_end": "file"}),
    ):
        path = write(name, data)
        first, *rest = in_parts(path, 100, **settings)
        assert first == read(path, **settings) and not any(rest)


def test_a_document_that_is_too_long_is_cut_alike_in_parts(write, monkeypatch):
    monkeypatch.setattr(corpus_module, "LONGEST", 512)
    monkeypatch.setattr(text_files, "CHUNK", 64)
    texts = [("word " * n).strip() for n in (3, 200, 1, 101, 102, 103, 104, 300, 2)]
    path = write("a.txt", "\n\n".join(texts).encode())
    whole = read(path)
    assert max(len(x.encode()) for document in whole for x in document) <= 512
    for size in (10, 100, 512, 700):
        assert list(itertools.chain(*in_parts(path, size))) == whole
    for _, block in blocks(path, block_bytes=700):
        assert list(block) == whole[: len(list(block))]
        break


def test_where_a_line_of_a_part_is(write):
    path = write("a.jsonl", b'{"text": "a"}\n' * 50 + b'{"texts": "a"}\n')
    with pytest.raises(ValueError, match=r"Line 11, counted from byte 560, of '.*a\.jsonl' has"):
        in_parts(path, 550)


@pytest.mark.peers
def test_parquet(write, tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = ["\n".join(document) for document in several_documents()]
    texts[3:5] = [None, ""]
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": range(len(texts)), "body": texts, "parts": [["a b", "c"]] * 60})
    pyarrow.parquet.write_table(table, path, row_group_size=7)
    lines = write(
        "a.jsonl", "".join(json.dumps({"body": text or ""}) + "\n" for text in texts).encode()
    )
    whole = read(lines, text_key="body")
    assert read(path, text_key="body") == whole
    assert read(path, text_key="parts", sentences="lines") == [["a b", "c"]] * 60
    found = in_parts(path, 200, text_key="body")
    assert list(itertools.chain(*found)) == whole and sum(map(bool, found)) > 3
    with pytest.raises(
        ValueError, match=r"has the columns 'id', 'body', 'parts'; name the column of the texts"
    ):
        read(path)
    with pytest.raises(ValueError, match=r"Row 1 of '.*a\.parquet' has no text at 'id'"):
        read(path, text_key="id")
    for data in (b"", b"PAR1", path.read_bytes()[:-100]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is not a valid Parquet file"):
            read(path, text_key="body")

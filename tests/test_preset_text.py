"""The text of the presets: readers and filters, on small text in memory."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib

import preset_licenses
import preset_text
import pytest
import real_data
from preset_text import Document

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")
LONG = "The house by the river was so old that nobody in the village knew who had built it."
OTHER = "She said that there was nothing to see in the garden, and went back to her book."
KO = "이 문서는 사용자가 프로그램을 처음 설치할 때 알아야 할 내용을 설명합니다."
JA = "この文書では、利用者が最初に知っておくべきことを簡単に説明しています。"


def read(reader, content, **settings):
    content = content.encode() if isinstance(content, str) else content
    return [[preset_text.tidy(text) for text in one] for one in reader(content, **settings)]


@pytest.mark.peers
def test_marked_up_html():
    page = f"<html><nav><p>Menu</p></nav><p>{LONG}<pre>x = 1</pre><ul><li>An item</li>"
    page += "<li><p>Another</p></li></ul><table><tr><td><p>1</p></td></tr></table>"
    assert read(preset_text.marked_up, page) == [[LONG, "An item", "Another"]]
    page = '<div class="block">A method.</div><div class="other">Not this</div>'
    assert read(preset_text.marked_up, page, block="block") == [["A method."]]


@pytest.mark.peers
def test_marked_up_in_its_encoding():
    page = f"<meta charset=euc-kr><p>{KO}</p>".encode("euc-kr")
    assert read(preset_text.marked_up, page) == [[KO]]


@pytest.mark.peers
def test_marked_up_xml():
    page = '<?xml version="1.0"?><page xmlns="http://projectmallard.org/1.0/"><title>T</title>'
    page += "<p>Open &kate; and <code>x</code><note><p>Inside.</p></note> go on.</p></page>"
    assert read(preset_text.marked_up, page) == [["Open kate and xInside. go on.", "Inside."]]


def test_manual_page():
    page = r""".\" A comment
.TH CP 1
.SH NAME
cp \- copy \fIfiles\fR
.PP
It copies
.B files
and folders.
.nf
cp a b
.fi
The end."""
    assert read(preset_text.manual_page, page) == [
        ["", "cp - copy files", "It copies files and folders.", "The end."]
    ]


def test_pod():
    text = "=head1 NAME\n\nUse B<this I<one>> or L<that|perlfunc>.\n\n  my $code;\n"
    assert read(preset_text.pod, text) == [["Use this one or that."]]


def test_restructured():
    text = ".. note::\n\n   See :func:`~os.walk` and ``walk``, `here <x.html>`_.\n\n* An *item*.\n"
    assert read(preset_text.restructured, text) == [["See os.walk and walk, here.", "An item."]]


def catalog_of(messages):
    """Bytes of a compiled gettext catalog."""
    pairs = sorted((key.encode(), value.encode()) for key, value in messages.items())
    start = 28 + 16 * len(pairs)
    data, tables = b"", ([], [])
    for side in (0, 1):
        for pair in pairs:
            tables[side].append((len(pair[side]), start + len(data)))
            data += pair[side] + b"\0"
    header = (0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    numbers = [*header, *(number for table in tables for row in table for number in row)]
    return b"".join(number.to_bytes(4, "little") for number in numbers) + data


def test_catalog():
    charset = "Content-Type: text/plain; charset=UTF-8\n"
    content = catalog_of(
        {"": charset, "_Open <b>a</b> file": "파일 열기(_O)", "menu\x04A\n\nB": KO}
    )
    assert KO in read(preset_text.catalog, content)[0]
    assert "파일 열기" in read(preset_text.catalog, content)[0]
    assert {"Open a file", "A", "B"} <= set(read(preset_text.catalog, content, original=True)[0])


def test_messages():
    words = {"@metadata": {"authors": ["A"]}, "a": f"'''{KO}'''", "b": {"c": "[[X|도움말]] {{x}}"}}
    content = json.dumps(words)
    assert read(preset_text.messages, content) == [["A", KO, "도움말 {{x}}"]]


def test_dictionary():
    text = "Lari \\Lari\\ n.\n   A {suborder} of birds;\n   gulls.\n   [1913 Webster]\n"
    assert read(preset_text.dictionary, text) == [["A suborder of birds; gulls.", ""]]


def test_glosses():
    line = (
        '02084071 05 n 02 dog 0 domestic_dog 0 001 @ 0 n 0 | a member of the genus; "it barked"  '
    )
    assert read(preset_text.glosses, f"  1 license | x\n{line}") == [
        ['dog, domestic dog: a member of the genus; "it barked"']
    ]


def test_verses():
    verses = [{"-osisID": str(number), "text": f"Verse {number}."} for number in range(1, 7)]
    one = {"chapter": {"verse": {"-osisID": "1", "text": "Alone."}}}
    bible = {"osis": {"osisText": {"div": [{"chapter": [{"verse": verses}]}, one]}}}
    assert read(preset_text.verses, json.dumps(bible)) == [
        ["Verse 1. Verse 2. Verse 3. Verse 4. Verse 5.", "Verse 6."],
        ["Alone."],
    ]


def test_sword(monkeypatch):
    first = zlib.compress(b"<w lemma='x'>In</w> the beginning.<lb/><note>No.</note>And on.")
    blocks = first + b"padding" + zlib.compress(b"Next.")
    start = len(first) + 7
    index = struct.pack("<IIIIII", 0, len(first), 0, start, len(blocks) - start, 0)
    found = [("a.czz", blocks), ("a.czs", index)]
    monkeypatch.setattr(preset_text, "archive_files", lambda path: found)
    assert list(preset_text.sword(None)) == [["In the beginning.", "And on."], ["Next."]]


@pytest.mark.peers
def test_documented():
    service = {
        "documentation": "<p>One.<p>Two.",
        "shapes": [{"description": "Three.", "name": "x"}],
    }
    assert read(preset_text.documented, json.dumps(service)) == [["One.", "Two.", "Three."]]


@pytest.mark.peers
def test_electron():
    pages = {"/a": {"sections": [{"html": f"<p>{KO}</p>"}]}, "/b": {"html": "<p>둘</p>"}}
    content = json.dumps({"docs": {"ko-KR": pages, "en-US": {}}})
    assert read(preset_text.electron, content, locale="ko-KR") == [[KO], ["둘"]]


def test_archive_files(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as jar:
        jar.writestr("help.html", "<p>x</p>")
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("b.txt.gz", gzip.compress(b"text"))
        wheel.writestr("c.jar", inner.getvalue())
    assert dict(preset_text.archive_files(tmp_path / "a.whl")) == {
        "b.txt": b"text",
        "c.jar/help.html": b"<p>x</p>",
    }
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as package:
        info = tarfile.TarInfo("package/d.txt")
        info.size = 4
        package.addfile(info, io.BytesIO(b"text"))
    assert dict(preset_text.archive_files(tmp_path / "a.tgz")) == {"package/d.txt": b"text"}


@pytest.mark.parametrize("language, text", [("en", LONG), ("en", OTHER), ("ko", KO), ("ja", JA)])
def test_prose_stays(language, text):
    assert preset_text.is_prose(text, language)
    assert not preset_text.is_prose(text[:-1] + ":", language)


@pytest.mark.parametrize(
    "language, text",
    [
        ("en", "Save the file."),
        ("en", "Le vieux chien qui habite dans la maison du village dort toute la nuit."),
        ("en", "if (x == 1) { return the_value(); } else { the.other->value::of(x) = 2; }."),
        ("ko", LONG),
        ("ko", "파일 %s 을(를) {0} 에서 열 수 없습니다."),
        ("ja", "機械学習基礎理論講義資料目次一覧表。"),
        ("ja", KO),
    ],
)
def test_what_is_no_prose_goes(language, text):
    assert not preset_text.is_prose(text, language)


@pytest.mark.peers
def test_repeated_paragraphs_go():
    documents = [Document("a", [LONG, OTHER]), Document("b", [LONG.upper(), "New."])]
    found = list(preset_text.repeated(documents, "en"))
    assert [one.paragraphs for one in found] == [[LONG, OTHER], ["New."]]


def test_short_documents_go():
    documents = [Document("a", [LONG]), Document("a", [LONG, OTHER]), Document("a", [LONG * 3])]
    assert list(preset_text.short(documents, "en")) == documents[1:]
    assert len(list(preset_text.short([Document("a", [KO * 3])], "ko"))) == 1


@pytest.mark.peers
def test_documents_alike_go():
    words = [f"word{number}" for number in range(200)]
    text, changed = " ".join(words), " ".join([*words[:195], "an", "other", "end"])
    documents = [Document("a", [text]), Document("b", [changed]), Document("c", [text[::-1]])]
    assert [one.source for one in preset_text.alike(documents, "en")] == ["a", "c"]


@pytest.mark.peers
def test_overlap_is_dropped_and_counted():
    sets = [("reviews", [LONG]), ("questions", ["Too short."])]
    quoted = "He wrote: the house by the river was so old, that it fell."
    documents = [Document("a", [quoted, OTHER]), Document("b", [LONG])]
    kept, counts = preset_text.drop_overlap(documents, "en", sets)
    assert kept == [Document("a", [OTHER])]
    assert counts["reviews"]["paragraphs"] == 2
    assert counts["questions"] == {"texts": 1, "n-grams": 0, "paragraphs": 0, "characters": 0}


@pytest.mark.peers
def test_overlap_of_letters():
    kept, counts = preset_text.drop_overlap(
        [Document("a", [f"먼저, {KO}", "다른 문장입니다."])], "ko", [("treebank", [KO])]
    )
    assert kept == [Document("a", ["다른 문장입니다."])]
    assert counts["treebank"]["paragraphs"] == 1


def test_every_source_is_pinned_and_named_once():
    names = [(source.language, source.name) for source in preset_text.SOURCES]
    assert len(names) == len(set(names))
    for source in preset_text.SOURCES:
        assert len(real_data.SHA256[preset_text.ARCHIVES[source.package]]) == 64
        assert source.license and source.reason and "brown" not in source.package


@pytest.mark.peers
def test_made_reads_filters_counts_and_repeats(monkeypatch, tmp_path):
    paragraphs = [LONG, "File", OTHER, LONG]
    source = preset_text.SOURCES[0]._replace(read=lambda path: [paragraphs], language="en")
    monkeypatch.setattr(preset_text, "SOURCES", [source])
    monkeypatch.setattr(real_data, "archive", lambda artifact: tmp_path)
    found = preset_licenses.Statement("a", "doc", ["MIT"], [])
    monkeypatch.setattr(preset_text, "stated", lambda package: found)
    documents, report = preset_text.made("en", overlap=False)
    assert documents == [Document(source.name, [LONG, OTHER])]
    row = report["sources"][source.name]
    assert row["licenses"] == ["MIT"] and row["reason"].endswith(preset_text.MAIN)
    assert row["counts"]["read"][0] == row["counts"]["alike"][0] == 1
    assert row["counts"]["alike"][1] == len(LONG) + len(OTHER)
    # Text that was read before is taken from the folder.
    preset_text.made("en", overlap=False, kept=tmp_path)
    monkeypatch.setattr(real_data, "archive", None)
    assert preset_text.made("en", overlap=False, kept=tmp_path)[0] == documents
    # A source that restricts use is not read.
    found = found._replace(restrictions=["for non-commercial use"])
    documents, report = preset_text.made("en", overlap=False, kept=tmp_path)
    assert documents == [] and "non-commercial" in report["sources"][source.name]["refused"]

"""Text in any encoding, compression and with any line ends."""

import bz2
import gzip
import lzma

import pytest

from kerasbert.data import documents, text_files
from kerasbert.data.encodings import codec_of
from kerasbert.data.text_files import ending_of, read_text, text_lines

pytestmark = pytest.mark.backends("tensorflow")


@pytest.mark.parametrize(
    ("name", "codec", "text"),
    [
        ("shift_jis", "cp932", "①髙はしご"),
        ("Shift-JIS", "cp932", "㈱Ⅲ"),
        ("windows-31j", "cp932", "﨑"),
        ("euc-kr", "cp949", "똠방각하 펲시콜라"),
        ("ks_c_5601-1987", "cp949", "뷁"),
        ("euc_jp", "euc_jis_2004", "①"),
        ("gb2312", "gb18030", "朱镕基"),
        ("latin-1", "cp1252", "“a”"),
    ],
)
def test_a_superset_is_read(tmp_path, name, codec, text):
    path = tmp_path / "a.txt"
    path.write_bytes(f"{text}\n다".encode(codec) if codec == "cp949" else f"{text}\n".encode(codec))
    assert read_text(path, name).startswith(text)
    # Corpora, such as those of `vocab` and `pretrain`, are read the same way.
    assert next(documents(path, encoding=name, sentences="lines"))[0] == text


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_utf16_without_a_mark(tmp_path, codec):
    path = tmp_path / "a.txt"
    path.write_bytes("비가 온다.\n눈이 온다.\n".encode(codec))
    for name in (codec, codec[:6], codec[:6].replace("-", "").upper()):
        assert read_text(path, name) == "비가 온다.\n눈이 온다.\n"
        found = list(documents(path, encoding=name, sentences="lines"))
        assert found == [["비가 온다.", "눈이 온다."]]
    path.write_bytes(b"plain\n")
    assert read_text(path, "utf-16") == next(documents(path, encoding="utf-16"))[0] + "\n"


@pytest.mark.parametrize("name", ["sjis-x", "base64", "rot13", "hex", ""])
def test_what_is_no_encoding_of_text(name):
    with pytest.raises(ValueError, match="is unknown; use 'utf-8', 'cp949'"):
        codec_of(name)


def test_an_error_recommends_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Le café était très bon, à mon goût".encode("cp1252"))
    with pytest.raises(ValueError) as caught:
        read_text(path, "ascii")
    said = str(caught.value)
    assert "is not ASCII text" in said and "it may be cp1252, then pass" in said
    path.write_bytes(b"\x81\xff" * 9)
    with pytest.raises(ValueError, match="is not SHIFT_JIS text .* --encoding cp949 or utf-16 ."):
        read_text(path, "shift_jis")  # The error does not recommend the encoding that failed.


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1 << 20])
def test_line_ends(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text_files, "CHUNK", max(chunk, 4))
    path = tmp_path / "a.txt"
    for raw, lines in (
        (b"a\r\nb\r\n", ["a\n", "b\n"]),
        (b"a\rb\r\rc", ["a\n", "b\n", "\n", "c"]),
        (b"a\r\r\nb\r\r\n", ["a\n", "b\n"]),
        (b"one\ntwo\rstill\n", ["one\n", "two\rstill\n"]),
        ("가\r나\r".encode(), ["가\n", "나\n"]),
        ("가\r나\r".encode("utf-16"), ["가\n", "나\n"]),
    ):
        path.write_bytes(raw)
        assert list(text_lines(path)) == lines, raw


def test_utf8_is_recognized_behind_plain_letters(tmp_path, monkeypatch):
    """The encoding of other files does not affect a UTF-8 file, wherever its first non-ASCII letter
    is.
    """
    monkeypatch.setattr(text_files, "CHUNK", 50)
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\n" * 20 + "이 영화는 정말 재미있었다".encode())
    assert read_text(path, "cp949").endswith("재미있었다")
    path.write_bytes(b"plain\n" * 20 + "이 영화는 정말 재미있었다".encode("cp949"))
    assert read_text(path, "euc-kr").endswith("재미있었다")


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
def test_compressed(tmp_path, ending, pack):
    path = tmp_path / f"a.csv.{ending}"
    path.write_bytes(pack.compress("\ufeffx\r\n".encode()))
    assert read_text(path) == "x\n" and ending_of(path) == ".csv"


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PK\x03\x04", "spreadsheets"),
        (b"\xd0\xcf\x11\xe0", "Excel 97"),
        (b"PAR1", "Parquet"),
        (gzip.compress(b"text,label", mtime=0), "gzip"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, start, kind):
    path = tmp_path / "a.csv"
    path.write_bytes(start + b"\0\xff" * 9)
    for encoding in (None, "cp949"):
        with pytest.raises(
            ValueError, match=f"a.csv' is not a text file, but begins like .*{kind}"
        ):
            read_text(path, encoding)

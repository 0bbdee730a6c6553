"""Streaming reader of text files, with any encoding, line ends and compression."""

import contextlib
import gzip
import importlib
import os
import re

from kerasbert.base.errors import reading
from kerasbert.base.paths import check_regular
from kerasbert.base.storage import open_file
from kerasbert.data.encodings import (
    codec_of,
    is_utf8,
    likely_encoding,
    split_mark,
    text_decoder,
    without_mark,
)

CHUNK = 1 << 20  # bytes read at a time
LONGEST_LINE = 1 << 26  # maximum bytes of a unit that is read at once: a JSON line, a table row
# Maximum compression ratio beyond LONGEST_LINE. Text reaches 3 to 20, one repeated letter 1,000.
MOST_PACKED = 50
COMPRESSED = {
    ".gz": "gzip",
    ".bz2": "bz2",
    ".xz": "lzma",
    ".lzma": "lzma",
    ".zst": "backports.zstd",  # in the standard library since Python 3.14
}
# First bytes of other formats.
_NO_TEXT = {
    b"PK\x03\x04": "spreadsheets (.xlsx, .ods) and archives",
    b"\xd0\xcf\x11\xe0": "spreadsheets of Excel 97 (.xls)",
    b"%PDF-": "PDF files (.pdf)",
    b"PAR1": "Parquet files (.parquet)",
    b"\x1f\x8b": "gzip files (.gz)",
    b"SQLite format 3": "databases",
}


def ending_of(path):
    """Return a file's extension in lower case, without that of its compression.

    >>> ending_of("a/B.CSV"), ending_of("b.jsonl.gz"), ending_of("words")
    ('.csv', '.jsonl', '')
    """
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    return os.path.splitext(stem)[1] if ending in COMPRESSED else ending


@contextlib.contextmanager
def unpacked(path, opened=open_file, name=None):
    """Open a file that may be compressed.

    Yields `(file, raw)`: the uncompressed file, and the stored one, whose position shows the
    progress. Errors name `name`.
    """
    package = COMPRESSED.get(os.path.splitext(path)[1].lower())
    try:
        module = importlib.import_module(package) if package else None
    except ImportError:
        raise ImportError(
            f"'{path}' needs the package '{package}': `pip install {package}`."
        ) from None
    with opened(path) as raw, reading(name or path, what="truncated or damaged"):
        with module.open(raw, "rb") if package else contextlib.nullcontext(raw) as file:
            yield file, raw


def packed(file, name):
    """Return a file that writes to `file`, compressed by the extension of `name`."""
    package = COMPRESSED.get(os.path.splitext(name)[1].lower())
    if package == "gzip":  # Timestamp 0, for reproducible bytes.
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if package:
        return importlib.import_module(package).open(file, "wb")
    return contextlib.nullcontext(file)


def check_line(size, path, where):
    """Check that a line or row is short enough to be read at once.

    Raises:
        ValueError: if it has more than `LONGEST_LINE` bytes.
    """
    if size > LONGEST_LINE:
        raise ValueError(
            f"'{path}' has more than {LONGEST_LINE >> 20} MiB in {where}, which is read at once; "
            "split or remove it."
        )


def check_packed(size, stored, path, where=""):
    """Check that compressed data do not expand more than text.

    Raises:
        ValueError: if they expand to more than `LONGEST_LINE` bytes and more than `MOST_PACKED`
            times their stored size.
    """
    if size > max(LONGEST_LINE, MOST_PACKED * stored):
        raise ValueError(
            f"'{path}' expands from {stored:,} to more than {size:,} bytes{where}, which no text "
            "does; fetch it again."
        )


def text_chunks(
    path,
    encoding=None,
    name=None,
    *,
    whole=False,
    errors="strict",
    opened=open_file,
):
    """Yield the text of a file in chunks, with `\\n` as the line end.

    Args:
        path: string.
        encoding: encoding of a file that is not UTF-8 and has no byte-order mark, as Excel writes.
            It is not guessed, since a wrong guess would silently give wrong text.
        name: name of the file in errors, by default its path.
        whole: whether the caller keeps all text in memory, to limit the expansion of compressed
            files.
        errors: string. Handling of undecodable bytes, as in `codecs`.
        opened: function that opens a path for reading bytes.

    Raises:
        ValueError: for a file in another encoding, with the likely one.
    """
    name = path if name is None else name
    codec = None if encoding is None else codec_of(encoding)
    if os.path.exists(path):
        check_regular(path)
    line_end, held, size, line = None, "", 0, 1
    whole = whole and os.path.splitext(path)[1].lower() in COMPRESSED
    with unpacked(path, opened, name) as (file, _):
        marked, chunk = split_mark(file.read(CHUNK))
        for start, usual in _NO_TEXT.items():
            if chunk.startswith(start):
                raise ValueError(
                    f"'{name}' is not a text file, but begins like {usual}; rename it with that "
                    "extension, or save it as text."
                )
        found = marked or without_mark(codec or "utf-8", chunk)
        is_settled = codec is None or marked is not None
        decoder = text_decoder(found, errors)
        while chunk:
            more = file.read(CHUNK)
            if not is_settled and not chunk.isascii():
                is_settled = True
                if is_utf8(chunk):  # Only for files that are not UTF-8.
                    found, decoder = "utf-8", text_decoder("utf-8", errors)
            try:
                text = decoder.decode(chunk, not more)
                # UTF-16 and ISO-2022 that are valid UTF-8 have zeros or escape sequences.
                is_text = text.count("\0") <= 0.1 * len(text) and "\x1b$" not in text
                wrong = None if is_text else "it contains zeros or escape sequences"
            except UnicodeDecodeError as error:
                # `kept`: bytes of a character that began in the previous chunk.
                kept = len(error.object) - len(chunk)
                wrong = f"byte {size - kept + error.start}"
            if wrong:
                called = encoding if found == codec else found
                raw = None if marked else chunk
                raise _undecodable(name, found, called, wrong, raw)
            size += len(chunk)
            text, held = held + text, ""
            if more:  # The newline may come with the next chunk.
                kept = len(text) - len(text.rstrip("\r"))
                text, held = text[: len(text) - kept], text[len(text) - kept :]
            text = re.sub("\r+\n", "\n", text)
            if line_end is None and (first := re.search("[\r\n]", text)):
                line_end = first[0]
            if line_end == "\r":  # The first line end is a lone CR, as in classic Mac OS.
                text = text.replace("\r", "\n")
            if whole:
                line += text.count("\n")
                check_packed(size, os.path.getsize(path), name, f" (in line {line:,})")
            yield text
            chunk = more


def _undecodable(name, found, called, wrong, raw):
    likely = None if raw is None else likely_encoding(raw)
    guess = ""
    if likely not in (None, found):
        guess = f"it may be {likely}, then pass --encoding {likely}. Otherwise "
    one, other, *_ = (x for x in ("cp949", "shift_jis", "utf-16") if codec_of(x) != found)
    return ValueError(
        f"'{name}' is not {called.upper()} text ({wrong}); {guess}name its encoding, such as "
        f"--encoding {one} or {other} (in Python encoding=), or save it again as UTF-8."
    )


def text_lines(path, encoding=None, name=None, **settings):
    """Yield the lines of a file, each with the `\\n` that ends it; see `text_chunks`.

    Raises:
        ValueError: as `text_chunks`, and for a too long line.
    """
    held, size, number = [], 0, 1
    for chunk in text_chunks(path, encoding, name, **settings):
        *whole, rest = chunk.split("\n")
        # Chunks are shorter than the limit, so only a line across chunks can be too long.
        for line in whole:
            if held:
                size += len(line)
                check_line(size, name or path, f"line {number}")
                line = "".join([*held, line])
                held, size = [], 0
            number += 1
            yield line + "\n"
        held.append(rest)
        size += len(rest)
        check_line(size, name or path, f"line {number}")
    if size:
        yield "".join(held)


def read_text(path, encoding=None):
    """Read the text of a file, with `\\n` as the line end; see `text_chunks`.

    Raises:
        ValueError: for an empty file, or another encoding, with the likely one.
    """
    text = "".join(text_chunks(path, encoding, whole=True))
    if not text.strip("\ufeff \n\t\r"):
        raise ValueError(f"'{path}' is empty.")
    return text.lstrip("\ufeff")

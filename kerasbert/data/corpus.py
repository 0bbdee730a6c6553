"""Text corpora: streams of documents and their sentences, read from files.

Memory holds one block of text, the work unit of a worker process, never the whole corpus.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import gzip
import importlib
import itertools
import json
import os
import re
from typing import TYPE_CHECKING

from kerasbert.base.errors import need_packages, reading
from kerasbert.base.files import as_path
from kerasbert.base.storage import find, join, open_file, read_json
from kerasbert.data.encodings import codec_of, is_utf8, likely_encoding, split_mark, without_mark
from kerasbert.data.tables import (
    JSON,
    PARQUET,
    SPREADSHEETS,
    find_name,
    open_parquet,
    parquet_rows,
    records,
)
from kerasbert.data.text_files import (
    CHUNK,
    COMPRESSED,
    LONGEST_LINE,
    check_line,
    ending_of,
    unpacked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from kerasbert.base.aliases import Corpus

# The report of `deduplicate` in its output folder, hidden from readers of that folder.
REPORT = ".duplicates.json"
LONGEST = 1 << 23  # bytes of a text document; longer ones are split
DOCUMENT_ENDS = ("empty_line", "line", "file")
TABLES = (".csv", ".tsv", PARQUET, *SPREADSHEETS)  # with texts in one column
ARCHIVES = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz", ".zip")
# sentencex takes quadratic time for long Chinese or Japanese paragraphs, so it gets parts of about
# this many characters.
PART = 1000
# Bytes and lines sampled to tell prose from one sentence per line. A file is prose if sentencex
# finds several sentences in more than a share PROSE of its lines: the share is 0.01 in files with
# one sentence per line, and 0.7 for paragraphs of two sentences.
SAMPLE = 1 << 16
SAMPLE_LINES = 200
PROSE = 0.3
# Document ends, by kind of file, where a file may be split into parts.
ENDS_OF_DOCUMENTS = {
    "json": re.compile(rb"\n"),
    "line": re.compile(rb"\n"),
    "empty_line": re.compile(rb"\n[ \t\r\v\f]*\n"),
}
EAST_ASIAN_END = re.compile("[。！？][”’」』）]*")
NUMBER_BEGINS = re.compile(r"\d[.．]$")
CLOSING = "」』”）】》〉"
ENDS = ".!?。！？…"
OPENING = "\"'“‘「『（(["


def documents(
    corpus: Corpus,
    *,
    document_end: str | None = None,
    sentences: str | None = None,
    language: str = "en",
    wrapped: bool | None = None,
    text_key: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> Iterator[Any]:
    """Read the documents of a corpus one by one.

    Files are text, JSON lines (`.jsonl`, `.ndjson`, `.json`) or tables (`.csv`, `.tsv`), plain or
    compressed (`.gz`, `.bz2`, `.xz`, and `.zst` with `backports.zstd`), Parquet (`.parquet`, with
    `pyarrow`) or spreadsheets (`.xlsx`, with `python-calamine`). Paths are read in the given order,
    those of a folder or pattern sorted. Hidden files of a folder are skipped.

    Args:
        corpus: path of a file, of a folder (read recursively), a pattern such as
            `"news/**/*.txt.gz"`, or a list of these; also URLs such as `"s3://bucket/news/"`, see
            `kerasbert.base.storage`.
        document_end: string. Where a document of a text file ends: at an `"empty_line"`, at each
            `"line"`, or with the `"file"`. `None` means `"file"` for the files of a folder and
            `"empty_line"` for others. Each JSON line or row of a table is one document. Text
            documents of more than 8 MiB are split; a JSON line or a row of Parquet may have up to
            64 MiB.
        sentences: string. `"lines"` reads each line as a sentence, `"split"` splits running prose
            into sentences. `None` means `"split"`, or `"lines"` for files whose documents end at
            empty lines and whose first lines hold one sentence each.
        language: string. ISO code of the language, whose abbreviations (`Mr.`) do not end a
            sentence. The default also suits Chinese, Japanese and Korean, as all other rules are
            shared.
        wrapped: bool. Whether lines of prose are wrapped at some width, so that sentences continue
            on the next line. `None` decides by the lengths of the file's first lines, or of each
            document's lines if documents do not end at empty lines.
        text_key: string. The key in a JSON line, or the column of a table, that has the text: a
            string, or a list with a string per line. If given, all other files are read as JSON
            lines; `None` means `"text"`.
        encoding: string. Encoding of files that are not UTF-8 and have no byte-order mark.
        errors: `"strict"`, or `"replace"` or `"ignore"` for invalid bytes.

    Yields:
        Lists of non-empty strings: the sentences of a document, at least one.

    Raises:
        ValueError: if there is no file or no text, or, with file and line, for an unreadable one.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "two.txt")
    ...     _ = path.write_text("It rains.\\nIt pours.\\n\\nThe sun shines.\\n")
    ...     list(documents(path))
    ...     list(documents(folder))
    [['It rains.', 'It pours.'], ['The sun shines.']]
    [['It rains.', 'It pours.', 'The sun shines.']]
    """
    settings = {key: value for key, value in locals().items() if key != "corpus"}
    found = False
    for _, block in blocks(corpus, block_bytes=CHUNK, **settings):
        for document in block:
            found = True
            yield document
    if not found:
        raise _no_text(corpus)


def blocks(corpus: Corpus, *, block_bytes: int = 1 << 24, **settings: Any) -> Iterator[Any]:
    """Split a corpus at the ends of documents into blocks, the unit of work of a worker process.

    The boundaries depend only on the files and `block_bytes`.

    Args:
        corpus: as for `documents`.
        block_bytes: int. Approximate bytes of text per block; at most 8 MiB more.
        **settings: as for `documents`.

    Yields:
        `(index, block)`, from 0. A block's text is parsed when iterated over, so blocks are cheap
        to send to other processes.

    Raises:
        ValueError: as for `documents`.
    """
    settings = _Settings(**settings)
    files = _files(corpus, settings)
    total = sum(size for _, _, size in files)
    before, index, size, empty = 0, 0, 0, True
    pieces = []
    for path, kind, bytes_of_file in files:
        for piece, position in _pieces(path, kind, block_bytes, settings):
            empty = empty and not piece.data.strip()
            pieces.append(piece)
            size += len(piece.data)
            # A piece may fall short of `block_bytes` by the size of the next document.
            if size >= 0.75 * block_bytes:
                yield index, Block(tuple(pieces), settings, (before + position) / (total or 1))
                index, size, pieces = index + 1, 0, []
        before += bytes_of_file
    if empty:
        raise _no_text(corpus)
    if pieces:
        yield index, Block(tuple(pieces), settings, 1.0)


def corpus_bytes(corpus):
    """Return the total size of a corpus's files in bytes."""
    return sum(size for _, _, size in _files(corpus, _Settings()))


def parts(path, size, part_bytes):
    """Split a large file for several readers of `part_documents`: list of `(path, start, end)`.

    Compressed text is one part, because it can only be read from the start.

    >>> parts("a.txt", 25, 10)
    [('a.txt', 0, 10), ('a.txt', 10, 20), ('a.txt', 20, 25)]
    >>> parts("a.txt.gz", 25, 10)
    [('a.txt.gz', 0, 25)]
    """
    if os.path.splitext(path)[1].lower() in COMPRESSED:
        part_bytes = max(size, 1)
    starts = range(0, max(size, 1), part_bytes)
    return [(path, start, min(start + part_bytes, size)) for start in starts]


def part_documents(path, start, end, opened=open_file, **settings):
    """Read the documents of one part of a file.

    Reading starts at the first document boundary after `start` and stops at the first one after
    `end`, so that a file's parts, in order, hold its documents. A row group of Parquet belongs to
    the part that it starts in. Files that are one document, and text that is not UTF-8, belong to
    the first part.

    Args:
        path: path or URL of a file.
        start, end: ints. Byte offsets.
        opened: function that opens a path for reading bytes.
        **settings: as for `documents`.

    Yields:
        As `documents`, or nothing for an empty part.
    """
    settings = _Settings(**settings)
    kind = _kind(path, settings, "file")
    for piece, _ in _pieces(path, kind, CHUNK, settings, (start, end), opened):
        yield from _documents(piece, settings)


@dataclasses.dataclass(frozen=True)
class Block:
    """Documents of a corpus, parsed when the block is iterated over.

    Attributes:
        pieces: tuple of `Piece`.
        settings: settings of `documents`.
        progress: float. Share of the corpus's bytes read so far.
    """

    pieces: tuple
    settings: object
    progress: float

    def __iter__(self):
        for piece in self.pieces:
            yield from _documents(piece, self.settings)

    def sources(self):
        """Yield `(source, text)` of each document: its part of the file, and its text."""
        for piece in self.pieces:
            texts, sources = itertools.tee(_lines_of_documents(piece, self.settings))
            if piece.kind == "json":
                lines = piece.data.decode("utf-8", self.settings.errors).split("\n")
                sources = ([line] for line in lines if line.strip())
            end = "\n\n" if piece.kind == "empty_line" else "\n"
            for source, text in zip(sources, texts):
                if any(map(str.strip, text)):
                    yield "\n".join(source).rstrip("\n") + end, "\n".join(text)

    @property
    def size(self):
        """Size of the text in bytes."""
        return sum(len(piece.data) for piece in self.pieces)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Whole documents of one file: UTF-8 `data` with newlines as line ends, starting at `line`."""

    path: str
    line: int  # counted from byte `start`
    kind: str  # "json", "table", or a value of DOCUMENT_ENDS
    data: bytes
    sentences: str = "split"
    wrapped: bool | None = None
    start: int = 0

    def at(self, line):
        """Name a line or row for an error message."""
        name = "row" if self.kind == "table" else "line"
        after = f", counted from byte {self.start:,}," if self.start else ""
        return f"{name} {line}{after}"


@dataclasses.dataclass(frozen=True)
class _Settings:
    document_end: str | None = None
    sentences: str | None = None
    language: str = "en"
    wrapped: bool | None = None
    text_key: str | None = None
    encoding: str = "utf-8"
    errors: str = "strict"

    def __post_init__(self):
        _one_of("document_end", self.document_end, (None, *DOCUMENT_ENDS))
        _one_of("sentences", self.sentences, (None, "lines", "split"))
        _one_of("errors", self.errors, ("strict", "replace", "ignore"))
        codec_of(self.encoding)


READING = tuple(field.name for field in dataclasses.fields(_Settings))


def _one_of(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}.")


class NoTextError(ValueError):
    """Raised if all files of a corpus are empty."""


def _no_text(corpus):
    return NoTextError(f"The corpus {_shown(corpus)} has no text: all of its files are empty.")


def _shown(corpus):
    paths = as_paths(corpus)
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"'{paths[0]}'{more}"


# Files


def as_paths(given):
    """Return one path, or several, as a list of strings."""
    return list(map(as_path, [given] if isinstance(given, (str, os.PathLike)) else given))


def check_found(given, found, kind="file", report=None):
    """Raise a `ValueError` if a file, folder or pattern is empty or incomplete.

    Args:
        given: string. What the user named.
        found: the files that were found.
        kind: string. The kind of `given`, as `kerasbert.base.storage.find` returns it.
        report: dict. The report of `deduplicate`; `None` reads it from the folder.
    """
    if kind == "folder":
        report = read_json(join(given, REPORT), {}) if report is None else report
        if report.get("complete", True) is not True:
            raise ValueError(
                f"The folder '{given}' is incomplete: `deduplicate` was interrupted, or is still "
                "writing it; run the same command again."
            )
    if not found and os.path.isdir(os.path.expanduser(given)):
        raise ValueError(f"The folder '{given}' has no files.")
    if not found:
        raise ValueError(f"'{given}' is not a file, nor a pattern that matches one.")


def _files(corpus, settings):
    """List the files as `(path, kind, bytes)`, each path once."""
    corpus = as_paths(corpus)
    if not corpus:
        raise ValueError("The corpus is an empty list; pass a file, a folder or a pattern.")
    found = {}
    for given in corpus:
        place, sizes = find(given)
        check_found(given, sizes, place)
        for path, size in sizes.items():
            if path.lower().endswith(ARCHIVES):
                raise ValueError(
                    f"'{path}' is an archive; unpack it, and pass the folder of its text or "
                    "JSON lines."
                )
            found.setdefault(path, (_kind(path, settings, place), size))
    return [(path, *facts) for path, facts in found.items()]


def _kind(path, settings, place):
    """Return the kind of a file: "table", "json", or a value of DOCUMENT_ENDS."""
    name = os.path.basename(path).lower()
    if ending_of(name) in TABLES:
        return "table"
    if settings.text_key is not None or ending_of(name) in JSON:
        return "json"
    return settings.document_end or ("file" if place == "folder" else "empty_line")


def packed(file, name):
    """Return a file that compresses into `file` if `name` has a compression extension."""
    package = COMPRESSED.get(os.path.splitext(name)[1].lower())
    if package == "gzip":  # No timestamp, so that the same text gives the same bytes.
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    if package:
        return importlib.import_module(package).open(file, "wb")
    return contextlib.nullcontext(file)


def _chunks(path, settings, size, part=None, opened=open_file):
    """Yield `(data, position)`: UTF-8 with newlines as line ends, and the bytes read so far."""
    start, end = part or (0, None)
    with unpacked(path, opened) as (file, raw):
        if start:
            file.seek(start)

        def read():
            return file.read(size if end is None else min(size, end - file.tell()))

        chunk = read()
        marked = None
        if not start:
            marked, chunk = split_mark(chunk)
        encoding = marked or without_mark(codec_of(settings.encoding), chunk)
        # As in `text_files.text_chunks`, `encoding` is for files that are not UTF-8.
        decoder = None
        if encoding != "utf-8" and (marked or not is_utf8(chunk)):
            decoder = codecs.getincrementaldecoder(encoding)(settings.errors)
        line, held = 1, b""
        while chunk:
            more = read()
            if decoder is not None:
                try:
                    chunk = decoder.decode(chunk, not more).encode("utf-8", "replace")
                except UnicodeDecodeError as error:
                    before = error.object[: error.start].decode(encoding, "replace")
                    line += before.count("\n")
                    raise _undecodable(path, f"line {line}", encoding) from None
            data = held + chunk
            held = b""
            if data.endswith(b"\r") and more:  # The newline may come with the next chunk.
                data, held = data[:-1], b"\r"
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            line += data.count(b"\n")
            yield data, raw.tell()
            chunk = more


def _cut(path, kind, settings, part, opened):
    """Return where a part's documents start and end in its file; `None` is the end of the file."""
    start, end = part
    if os.path.splitext(path)[1].lower() in COMPRESSED:
        return (0, None) if start == 0 else None
    with opened(path) as file:
        marked, _ = split_mark(file.read(4))
        encoding = marked or codec_of(settings.encoding)
        if kind not in ENDS_OF_DOCUMENTS or encoding != "utf-8":
            return (0, None) if start == 0 else None
        start, end = (_next_end(file, place, kind) for place in part)
    return (start, end) if start != end else None


def _next_end(file, place, kind):
    """Return the first byte after the first document end found from `place`, or the file size.

    It depends only on `place`, so that one part ends where the next begins.
    """
    if place == 0:
        return 0
    place = file.seek(place)
    data = b""
    while chunk := file.read(1 << 16):
        data += chunk
        if found := ENDS_OF_DOCUMENTS[kind].search(data):
            return place + found.end()
        kept = max(0, data.rfind(b"\n"))
        place, data = place + kept, data[kept:]
    return place + len(data)


def _rows(path, settings, part, opened):
    """Yield `(data, position)` of a table: each row's text as a JSON line."""
    key = settings.text_key or "text"
    found = _parquet_texts if ending_of(path) == PARQUET else _table_texts
    lines, size, position = [], 0, 0
    for position, text in found(path, key, settings, part or (0, None), opened):
        # A missing text counts as empty.
        line = json.dumps({key: "" if text is None else text}, default=repr) + "\n"
        lines.append(line.encode())
        size += len(line)
        if size >= CHUNK:
            yield b"".join(lines), position
            lines, size = [], 0
    yield b"".join(lines), position


def _table_texts(path, key, settings, part, opened):
    """Yield `(position, text)` of a table, which belongs to the first part as a whole."""
    if part[0]:
        return
    encoding = None if codec_of(settings.encoding) == "utf-8" else settings.encoding
    reading = {"encoding": encoding, "opened": opened}
    if ending_of(path) not in SPREADSHEETS:
        reading["errors"] = settings.errors
    name = None
    for number, row in records(path, wanted=[key], **reading):
        name = find_name(row, key) if number == 1 else name
        if name is None:
            raise _no_column(path, row, key)
        yield 0, row[name] if row[name] is None else str(row[name])


def _parquet_texts(path, key, settings, part, opened):
    """Yield `(position, text)` of the row groups that begin in a part."""
    need_packages(f"'{path}'", "data", "pyarrow")
    start, end = part
    with reading(path, what="not a valid Parquet file"), opened(path) as raw:
        with open_parquet(raw) as file:
            name = find_name(file.schema_arrow.names, key)
            if name is None:
                raise _no_column(path, file.schema_arrow.names, key)
            rows = 0
            for place in range(file.num_row_groups):
                group, before = file.metadata.row_group(place), rows
                rows += group.num_rows
                column = group.column(0)
                begin = column.dictionary_page_offset or column.data_page_offset
                if begin < start or (end is not None and begin >= end):
                    continue
                for _, (text,) in parquet_rows(file, path, place, [name], before):
                    yield begin, text


def _no_column(path, names, key):
    has = ", ".join(map(repr, names))
    return ValueError(
        f"'{path}' has the columns {has}; name the text's with text_key, now {key!r}."
    )


def _undecodable(path, where, encoding, raw=b""):
    likely = likely_encoding(raw)
    return ValueError(
        f"'{path}' is not {encoding.upper()} in {where}; "
        + (f"it may be {likely}: set `encoding`" if likely else "set `encoding`")
        + ", or pass errors='replace'."
    )


# Blocks


def _pieces(path, kind, size, settings, part=None, opened=open_file):
    """Yield `(piece, bytes read)`: pieces of about `size` bytes, split at the ends of documents."""
    # Documents must not depend on the block size, so the longest document caps it.
    size = min(size, LONGEST)
    if kind == "table":
        chunks, form, start = _rows(path, settings, part, opened), ("split", None), 0
    else:
        if part is not None and (part := _cut(path, kind, settings, part, opened)) is None:
            return
        form, start = _form(path, kind, settings, opened), part[0] if part else 0
        # Chunks of a quarter of `size`, so that pieces are not much larger.
        chunks = _chunks(path, settings, min(CHUNK, max(64, size // 4)), part, opened)
    line, data, searched = 1, bytearray(), 0
    for chunk, position in chunks:
        data += chunk
        while len(data) >= size:
            end = _last_end(data, kind, searched)
            if end < 0 and kind not in ("json", "table") and len(data) >= LONGEST:
                end = _any_end(data[:LONGEST])
            if end < 0:
                searched = max(0, data.rfind(b"\n"))
                if kind == "json" and len(data) - searched > LONGEST_LINE:
                    number = line + data.count(b"\n")
                    check_line(len(data) - searched, path, f"line {number}")
                break
            yield Piece(path, line, kind, bytes(data[:end]), *form, start), position
            line += data.count(b"\n", 0, end)
            del data[:end]
            searched = 0
    if data:
        yield Piece(path, line, kind, bytes(data), *form, start), position


def _form(path, kind, settings, opened=open_file):
    """Detect how a file is written from its first lines: `(sentences, wrapped)` of a `Piece`."""
    if kind != "empty_line" or settings.sentences is not None:
        return "split", None
    data, _ = next(_chunks(path, settings, SAMPLE, None, opened), (b"", 0))
    # A line cut off by the sample counts as it is; undecodable bytes are reported later.
    lines = [line.strip() for line in data.decode("utf-8", "replace").split("\n")][:SAMPLE_LINES]
    if settings.wrapped or (settings.wrapped is None and _are_wrapped(lines)):
        return "split", True
    lines = list(filter(None, lines))
    several = sum(len(_sentences(line, settings)) > 1 for line in lines)
    return ("split" if several > PROSE * len(lines) else "lines"), False


def describe_files(corpus, **settings):
    """Describe how the files of a corpus are read: one string per way, with the first such file.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "two.txt")
    ...     _ = path.write_text("It rains. It pours.\\n\\nThe sun shines. It is hot.\\n")
    ...     describe_files(path)[0].replace(folder, "")
    "'/two.txt': prose, split into sentences; documents end at empty lines"
    """
    settings = _Settings(**settings)
    found = {}
    for path, kind, _ in _files(corpus, settings):
        sentences, wrapped = _form(path, kind, settings)
        sentences = settings.sentences or sentences
        how = {"split": "prose, split into sentences", "lines": "one sentence per line"}[sentences]
        if wrapped:
            how = "wrapped prose, joined and split into sentences"
        ends = {
            "json": "one document per JSON line",
            "table": "one document per row of the table",
            "file": "one document per file",
            "line": "one document per line",
            "empty_line": "documents end at empty lines",
        }[kind]
        found.setdefault(f"{how}; {ends}", []).append(path)
    return [
        f"'{paths[0]}'" + (f" and {len(paths) - 1:,} more" if paths[1:] else "") + f": {how}"
        for how, paths in found.items()
    ]


def _last_end(data, kind, start):
    """Return where the last document of `data` ends, not before `start`; -1 if none ends.

    The result never exceeds the split point of an overlong document, so that it does not depend on
    how much was read.
    """
    if kind in ("json", "table"):
        return data.rfind(b"\n", start) + 1 or -1
    end = data.rfind(b"\n", start, LONGEST)
    if kind == "line":
        return end + 1 or -1
    while kind == "empty_line" and end >= 0:
        before = data.rfind(b"\n", start, end)
        if before >= 0 and not data[before + 1 : end].strip():
            return end + 1
        end = before
    return -1


def _any_end(data):
    """Find where to split an overlong document: after a line, a word, or a character."""
    end = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1
    if end:
        return end
    end = len(data) - 1
    while end > 1 and data[end] & 0xC0 == 0x80:  # inside a UTF-8 character
        end -= 1
    return end


# Documents


def _documents(piece, settings):
    """Yield the documents of a piece as lists of sentences."""
    sentences = settings.sentences or piece.sentences
    wrapped = piece.wrapped if settings.wrapped is None else settings.wrapped
    for lines in _lines_of_documents(piece, settings):
        document = (
            _split(lines, settings, wrapped)
            if sentences == "split"
            else list(filter(None, map(str.strip, lines)))
        )
        if document:
            yield document


def _lines_of_documents(piece, settings):
    """Yield each document as a list of lines."""
    try:
        lines = piece.data.decode("utf-8", settings.errors).split("\n")
    except UnicodeDecodeError as error:
        where = piece.at(piece.line + piece.data.count(b"\n", 0, error.start))
        raise _undecodable(piece.path, where, "utf-8", piece.data) from None
    if piece.kind in ("json", "table"):
        for number, line in enumerate(lines, piece.line):
            if line.strip():
                yield _json_text(line, piece.at(number), piece.path, settings)
    elif piece.kind == "line":
        yield from ([line] for line in lines)
    elif piece.kind == "file":
        yield lines
    else:
        for filled, group in itertools.groupby(
            lines, lambda line: not line.isspace() and line != ""
        ):
            if filled:
                yield list(group)


def _json_text(line, where, path, settings):
    """Return the text of a JSON line as a list of lines."""
    key = settings.text_key or "text"
    where = f"{where.capitalize()} of '{path}'"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{where} is not JSON ({error}); each line must be an object such as "
            f'{{"{key}": "..."}}.'
        ) from None
    text = record.get(key) if isinstance(record, dict) else None
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = "\n".join(text)
    if not isinstance(text, str):
        has = f"has the keys {', '.join(map(repr, record))}" if isinstance(record, dict) else ""
        has = has if has and key not in record else f"has no text at {key!r}"
        raise ValueError(f"{where} {has}; name the key of the text with text_key (now {key!r}).")
    # A lone surrogate, such as "\ud83d" in JSON, is not a character.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


# Sentences


def _split(lines, settings, wrapped):
    """Split lines of prose into sentences; `wrapped=None` decides by the lines themselves."""
    lines = [line.strip() for line in lines]
    wrapped = _are_wrapped(lines) if wrapped is None else wrapped
    paragraphs = _paragraphs(lines) if wrapped else filter(None, lines)
    return [found for paragraph in paragraphs for found in _sentences(paragraph, settings)]


def _sentences(paragraph, settings):
    """Split a paragraph into sentences with Wikimedia's sentencex.

    On Brown, Korean and Japanese manuals and Chinese news it was the fastest (10 to 28 MB per
    second) of the libraries that know all four languages; it needs no model.
    """
    from sentencex import segment

    parts = (_mended(segment(settings.language, part)) for part in _parts(paragraph))
    return list(itertools.chain.from_iterable(parts))


def _parts(paragraph):
    start = 0
    while len(paragraph) - start > PART:
        end = EAST_ASIAN_END.search(paragraph, start + PART)
        if end is None:
            break
        yield paragraph[start : end.end()]
        start = end.end()
    yield paragraph[start:]


def _mended(sentences):
    """Undo splits that are never right: in a number, before a closing or after an opening mark."""
    found = []
    carried = ""
    for sentence in sentences:
        sentence, carried = carried + sentence, ""
        plain = sentence.rstrip()
        if plain[-1:] in OPENING and plain[-2:-1].isspace():
            sentence, carried = plain[:-1], sentence[len(plain) - 1 :]
        if found:
            rest = sentence.lstrip(CLOSING)
            found[-1] += sentence[: len(sentence) - len(rest)]
            sentence = rest
            if sentence[:1].isdecimal() and NUMBER_BEGINS.search(found[-1]):
                sentence = found.pop() + sentence
        found.append(sentence)
    return [sentence for sentence in map(str.strip, [*found, carried]) if sentence]


def _are_wrapped(lines):
    """Return whether lines were wrapped: all but each paragraph's last one have similar lengths."""
    inner = [a for a, b in itertools.pairwise(lines) if a and b]
    if len(inner) < 2:
        return False
    lengths = sorted(map(len, inner))
    width = lengths[int(0.95 * len(inner))]
    long = sum(length >= 0.75 * width for length in lengths)
    ended = sum(line[-1] in ENDS for line in inner)
    return 30 <= width <= 120 and long >= 0.7 * len(inner) and ended <= 0.5 * len(inner)


def _paragraphs(lines):
    """Join the lines between empty lines into paragraphs."""
    for filled, group in itertools.groupby(lines, bool):
        if filled:
            text = ""
            for line in group:
                joined = text and not (_is_east_asian(text[-1]) and _is_east_asian(line[0]))
                text += f" {line}" if joined else line
            yield text


def _is_east_asian(character):
    """Return whether a script has no spaces: Chinese, kana, their punctuation; not Hangul."""
    return "\u2e80" <= character <= "\u9fff" or "\uff00" <= character <= "\uffef"

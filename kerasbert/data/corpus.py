"""Text corpora as streams of documents.

Only one block of text, a worker's unit, is in memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from typing import TYPE_CHECKING

from kerasbert.base.storage import open_file
from kerasbert.data import text_files
from kerasbert.data.corpus_files import (
    Reading,
    as_paths,
    files_of,
    kind_of,
    part_offsets,
    read_chunks,
    row_chunks,
    undecodable,
)
from kerasbert.data.sentences import are_wrapped, split_paragraph, split_prose
from kerasbert.data.text_files import COMPRESSED, check_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from kerasbert.base.aliases import Corpus

LONGEST = 1 << 23  # maximum bytes of a text document; longer documents are split
# Bytes and lines sampled to detect prose: sentencex finds several sentences in more than a share
# PROSE of the lines. The share is 0.01 with one sentence per line, 0.7 for paragraphs of two.
SAMPLE = 1 << 16
SAMPLE_LINES = 200
PROSE = 0.3


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
    `pyarrow`) or spreadsheets (`.xlsx`, with `python-calamine`). Paths are read in order, files of
    a folder or pattern sorted, without hidden ones.

    Args:
        corpus: path of a file, of a folder (read recursively), a pattern such as
            `"news/**/*.txt.gz"`, or a list of these; also URLs such as `"s3://bucket/news/"`, see
            `kerasbert.base.storage`.
        document_end: end of a document of a text file: an `"empty_line"`, each `"line"`, or the
            `"file"`. `None` means `"file"` in a folder, else `"empty_line"`. Each JSON line or row
            of a table is a document. Text documents of more than 8 MiB are split; a JSON line or a
            row of Parquet may have up to 64 MiB.
        sentences: string. `"lines"` reads each line as a sentence, `"split"` splits prose. `None`
            means `"lines"` for files with documents between empty lines and one sentence in each
            first line, else `"split"`.
        language: ISO code of the language, whose abbreviations (`Mr.`) do not end a sentence. The
            default also suits Chinese, Japanese and Korean.
        wrapped: whether lines of prose are wrapped at some width. `None` decides by the lengths of
            a file's first lines, or of each document's if these do not end at empty lines.
        text_key: JSON key or table column of the text: a string, or a list with a string per line.
            A list of keys or columns reads parallel text, a document of one sentence, possibly
            empty, per language. If given, files other than tables are read as JSON lines. `None`
            means `"text"`.
        encoding: encoding of files without UTF-8 and byte-order mark.
        errors: string. For invalid bytes: `"strict"`, `"replace"` or `"ignore"`, as in
            `bytes.decode`.

    Yields:
        Lists of non-empty strings: the sentences of a document, at least one.

    Raises:
        ValueError: if there is no file or text, or a file cannot be read, with file and line.

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
    for _, block in blocks(corpus, block_bytes=text_files.CHUNK, **settings):
        for document in block:
            found = True
            yield document
    if not found:
        raise _no_text(corpus)


def blocks(corpus: Corpus, *, block_bytes: int = 1 << 24, **settings: Any) -> Iterator[Any]:
    """Split a corpus at the ends of documents into blocks.

    Boundaries depend only on files and `block_bytes`.

    Args:
        corpus: as for `documents`.
        block_bytes: approximate bytes of text per block; a block has at most 8 MiB more.
        **settings: as for `documents`.

    Yields:
        `(index, block)`; the index starts at 0. Text is parsed in iteration, so blocks are cheap to
        send to processes.

    Raises:
        ValueError: as for `documents`.
    """
    settings = Reading(**settings)
    files = files_of(corpus, settings)
    total = sum(size for _, _, size in files)
    before, index, size, empty = 0, 0, 0, True
    pieces = []
    for path, kind, bytes_of_file in files:
        for piece, position in _pieces(path, kind, block_bytes, settings):
            empty = empty and not piece.data.strip()
            pieces.append(piece)
            size += len(piece.data)
            # A piece is smaller by up to the next document.
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
    return sum(size for _, _, size in files_of(corpus, Reading()))


def parts(path, size, part_bytes):
    """Split a large file into a list of parts `(path, start, end)` for `part_documents`.

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
    `end`, so that each document is in one part. A row group of Parquet is in the part where it
    starts; files of one document, and text that is not UTF-8, in the first.

    Args:
        path: path or URL of a file.
        start, end: ints. Byte offsets.
        opened: function that opens a path for reading bytes.
        **settings: as for `documents`.

    Yields:
        As `documents`, or nothing for an empty part.
    """
    settings = Reading(**settings)
    kind = kind_of(path, settings, "file")
    for piece, _ in _pieces(path, kind, text_files.CHUNK, settings, (start, end), opened):
        yield from _documents(piece, settings)


@dataclasses.dataclass(frozen=True)
class Block:
    """Documents of a corpus, parsed when the block is iterated over.

    Attributes:
        pieces: tuple of `Piece`.
        settings: settings of `documents`.
        progress: share of bytes read so far.
    """

    pieces: tuple
    settings: object
    progress: float

    def __iter__(self):
        for piece in self.pieces:
            yield from _documents(piece, self.settings)

    def sources(self):
        """Yield `(source, text)` for each document; the source is its part of the file."""
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


class NoTextError(ValueError):
    """Raised if all files of a corpus are empty."""


def _no_text(corpus):
    first, *others = as_paths(corpus)
    more = f" and {len(others)} more" if others else ""
    return NoTextError(f"The corpus '{first}'{more} has no text: all of its files are empty.")


def _pieces(path, kind, size, settings, part=None, opened=open_file):
    """Yield `(piece, bytes read)`: pieces of about `size` bytes, split at the ends of documents."""
    # Splits of overlong documents must not depend on `size`.
    size = min(size, LONGEST)
    if kind == "table":
        chunks, form, start = row_chunks(path, settings, part, opened), ("split", None), 0
    else:
        if part is not None and (part := part_offsets(path, kind, settings, part, opened)) is None:
            return
        form, start = _form(path, kind, settings, opened), part[0] if part else 0
        # So that pieces are not much larger than `size`.
        chunks = read_chunks(
            path, settings, min(text_files.CHUNK, max(64, size // 4)), part, opened
        )
    line, data, searched = 1, bytearray(), 0
    for chunk, position in chunks:
        data += chunk
        while len(data) >= size:
            end = _last_end(data, kind, searched)
            if end < 0 and kind not in ("json", "table") and len(data) >= LONGEST:
                end = _any_end(data[:LONGEST])
            if end < 0:
                searched = max(0, data.rfind(b"\n"))
                if kind == "json" and len(data) - searched > text_files.LONGEST_LINE:
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
    """Detect the form of a file from its first lines: `(sentences, wrapped)` of a `Piece`."""
    if kind != "empty_line" or settings.sentences is not None:
        return "split", None
    data, _ = next(read_chunks(path, settings, SAMPLE, None, opened), (b"", 0))
    # The start of a last line counts as a line. Undecodable bytes cause an error later.
    lines = [line.strip() for line in data.decode("utf-8", "replace").split("\n")][:SAMPLE_LINES]
    if settings.wrapped or (settings.wrapped is None and are_wrapped(lines)):
        return "split", True
    lines = list(filter(None, lines))
    several = sum(len(split_paragraph(line, settings.language)) > 1 for line in lines)
    return ("split" if several > PROSE * len(lines) else "lines"), False


def describe_files(corpus, **settings):
    """Describe how files of a corpus are read, a string per way with its first file.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "two.txt")
    ...     _ = path.write_text("It rains. It pours.\\n\\nThe sun shines. It is hot.\\n")
    ...     describe_files(path)[0].replace(folder, "")
    "'/two.txt': prose, split into sentences; documents end at empty lines"
    """
    settings = Reading(**settings)
    found = {}
    for path, kind, _ in files_of(corpus, settings):
        sentences, wrapped = _form(path, kind, settings)
        sentences = settings.sentences or sentences
        how = {"split": "prose, split into sentences", "lines": "one sentence per line"}[sentences]
        if settings.is_parallel:
            how = f"parallel text in {', '.join(settings.text_keys)}"
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
    """Return the last document end in `data` at or after `start`, or -1.

    It is at most the split of an overlong document, so that documents do not depend on how much was
    read.
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
    """Return where to split an overlong document: after a line, word or character."""
    end = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1
    if end:
        return end
    end = len(data) - 1
    while end > 1 and data[end] & 0xC0 == 0x80:  # inside a UTF-8 character
        end -= 1
    return end


def _documents(piece, settings):
    """Yield the documents of a piece as lists of sentences."""
    sentences = settings.sentences or piece.sentences
    wrapped = piece.wrapped if settings.wrapped is None else settings.wrapped
    for lines in _lines_of_documents(piece, settings):
        if settings.is_parallel:
            document = [line.strip() for line in lines]
            if any(document):
                yield document
            continue
        document = (
            split_prose(lines, settings.language, wrapped)
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
        raise undecodable(piece.path, where, "utf-8", piece.data) from None
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
    keys, where = settings.text_keys, f"{where.capitalize()} of '{path}'"
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{where} is not JSON ({error}); each line must be an object such as "
            f'{{"{keys[0]}": "..."}}.'
        ) from None
    there = record if isinstance(record, dict) else {}
    key = next((name for name in keys if name not in there), keys[0])
    text = there.get(key)
    if settings.is_parallel and key in there:
        texts = [there[name] or "" for name in keys]
        are_texts = all(isinstance(one, str) for one in texts)
        text = [" ".join(one.splitlines()) for one in texts] if are_texts else None
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = "\n".join(text)
    if not isinstance(text, str):
        has = f"has the keys {', '.join(map(repr, record))}" if isinstance(record, dict) else ""
        has = has if has and key not in record else f"has no text at {key!r}"
        raise ValueError(f"{where} {has}; name the key of the text with text_key (now {key!r}).")
    # Lone surrogates, such as "\ud83d" in JSON, are no characters.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

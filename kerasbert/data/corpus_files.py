"""Files of a corpus, read as UTF-8 in chunks or parts."""

import dataclasses
import json
import os
import re

from kerasbert.base.errors import need_packages, reading
from kerasbert.base.paths import as_path
from kerasbert.base.storage import find, join, open_file, read_json
from kerasbert.data import text_files
from kerasbert.data.encodings import (
    codec_of,
    is_utf8,
    likely_encoding,
    split_mark,
    text_decoder,
    without_mark,
)
from kerasbert.data.tables import (
    JSON,
    PARQUET,
    SPREADSHEETS,
    find_name,
    open_parquet,
    parquet_rows,
    records,
)
from kerasbert.data.text_files import COMPRESSED, ending_of, unpacked

# Report of `deduplicate`; readers of the folder skip hidden files.
REPORT = ".duplicates.json"
DOCUMENT_ENDS = ("empty_line", "line", "file")
TABLES = (".csv", ".tsv", PARQUET, *SPREADSHEETS)  # files with the texts in one column
ARCHIVES = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz", ".zip")
# Document ends, by kind of file; only these may be split into parts.
ENDS_OF_DOCUMENTS = {
    "json": re.compile(rb"\n"),
    "line": re.compile(rb"\n"),
    "empty_line": re.compile(rb"\n[ \t\r\v\f]*\n"),
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read a corpus: the checked settings of `documents`."""

    document_end: str | None = None
    sentences: str | None = None
    language: str = "en"
    wrapped: bool | None = None
    text_key: str | tuple | list | None = None
    encoding: str = "utf-8"
    errors: str = "strict"

    def __post_init__(self):
        for name, allowed in (
            ("document_end", (None, *DOCUMENT_ENDS)),
            ("sentences", (None, "lines", "split")),
            ("errors", ("strict", "replace", "ignore")),
        ):
            if getattr(self, name) not in allowed:
                known = ", ".join(map(repr, allowed))
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {known}.")
        codec_of(self.encoding)

    @property
    def text_keys(self):
        """The columns of parallel text, or the one with the text."""
        several = isinstance(self.text_key, (tuple, list))
        return list(self.text_key) if several else [self.text_key or "text"]

    @property
    def is_parallel(self):
        """Whether each document is one text in several languages."""
        return len(self.text_keys) > 1


READING = tuple(field.name for field in dataclasses.fields(Reading))


def as_paths(given):
    """Return a path, or a list of paths, as a list of strings."""
    return list(map(as_path, [given] if isinstance(given, (str, os.PathLike)) else given))


def check_found(given, found, kind="file", report=None):
    """Raise a `ValueError` if a file, folder or pattern is empty or incomplete.

    Args:
        given: string. What the user passed.
        found: the files that were found.
        kind: the kind of `given`, see `kerasbert.base.storage.find`.
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


def files_of(corpus, settings):
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
            found.setdefault(path, (kind_of(path, settings, place), size))
    return [(path, *facts) for path, facts in found.items()]


def kind_of(path, settings, place):
    """Return the kind of a file: "table", "json", or a value of DOCUMENT_ENDS."""
    name = os.path.basename(path).lower()
    if ending_of(name) in TABLES:
        return "table"
    if settings.text_key is not None or ending_of(name) in JSON:
        return "json"
    return settings.document_end or ("file" if place == "folder" else "empty_line")


def read_chunks(path, settings, size, part=None, opened=open_file):
    """Yield `(data, position)`: UTF-8 with newlines, and the number of bytes read."""
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
        # `encoding` applies only to files that are not UTF-8.
        decoder = None
        if encoding != "utf-8" and (marked or not is_utf8(chunk)):
            decoder = text_decoder(encoding, settings.errors)
        line, held = 1, b""
        while chunk:
            more = read()
            if decoder is not None:
                try:
                    chunk = decoder.decode(chunk, not more).encode("utf-8", "replace")
                except UnicodeDecodeError as error:
                    before = error.object[: error.start].decode(encoding, "replace")
                    line += before.count("\n")
                    raise undecodable(path, f"line {line}", encoding) from None
            data = held + chunk
            held = b""
            if data.endswith(b"\r") and more:  # The newline may come with the next chunk.
                data, held = data[:-1], b"\r"
            if b"\r" in data:
                data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            line += data.count(b"\n")
            yield data, raw.tell()
            chunk = more


def part_offsets(path, kind, settings, part, opened):
    """Return the byte offsets of a part's documents.

    An end of `None` is that of the file; `None` alone is a part without documents.
    """
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
    """Return the offset of the first document end at or after `place`, or the file size.

    It depends only on `place`, so that parts are adjacent.
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


def row_chunks(path, settings, part, opened):
    """Yield `(data, position)` of a table; the data are JSON lines with the text of each row."""
    keys = settings.text_keys
    found = _parquet_texts if ending_of(path) == PARQUET else _table_texts
    lines, size, position = [], 0, 0
    for position, texts in found(path, keys, settings, part or (0, None), opened):
        # Missing texts are empty.
        row = {key: "" if text is None else text for key, text in zip(keys, texts)}
        line = json.dumps(row, default=repr) + "\n"
        lines.append(line.encode())
        size += len(line)
        if size >= text_files.CHUNK:
            yield b"".join(lines), position
            lines, size = [], 0
    yield b"".join(lines), position


def _table_texts(path, keys, settings, part, opened):
    """Yield `(position, texts)` of the rows of a table; its first part has all rows."""
    if part[0]:
        return
    encoding = None if codec_of(settings.encoding) == "utf-8" else settings.encoding
    reading = {"encoding": encoding, "opened": opened}
    if ending_of(path) not in SPREADSHEETS:
        reading["errors"] = settings.errors
    names = None
    for number, row in records(path, wanted=keys, **reading):
        names = _columns(path, row, keys) if number == 1 else names
        yield 0, [row[name] if row[name] is None else str(row[name]) for name in names]


def _parquet_texts(path, keys, settings, part, opened):
    """Yield `(position, texts)` of the rows in those row groups that begin in a part."""
    need_packages(f"'{path}'", "data", "pyarrow")
    start, end = part
    with reading(path, what="not a valid Parquet file"), opened(path) as raw:
        with open_parquet(raw) as file:
            names = _columns(path, file.schema_arrow.names, keys)
            rows = 0
            for place in range(file.num_row_groups):
                group, before = file.metadata.row_group(place), rows
                rows += group.num_rows
                column = group.column(0)
                begin = column.dictionary_page_offset or column.data_page_offset
                if begin < start or (end is not None and begin >= end):
                    continue
                for _, texts in parquet_rows(file, path, place, names, before):
                    yield begin, texts


def _columns(path, names, keys):
    """Return the names of the columns of the texts, or raise if a table lacks one."""
    found = [find_name(names, key) for key in keys]
    if None in found:
        has, key = ", ".join(map(repr, names)), keys[found.index(None)]
        raise ValueError(
            f"'{path}' has the columns {has}; name the column of the texts with text_key (now "
            f"{key!r})."
        )
    return found


def undecodable(path, where, encoding, raw=b""):
    likely = likely_encoding(raw)
    return ValueError(
        f"'{path}' is not {encoding.upper()} in {where}; "
        + (f"it may be {likely}: set `encoding`" if likely else "set `encoding`")
        + ", or pass errors='replace'."
    )

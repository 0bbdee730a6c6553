"""Table reader: delimited text, JSON, Parquet and spreadsheets.

Except for spreadsheets and JSON arrays, files are read row by row and may be larger than memory.
"""

import csv
import datetime
import io
import itertools
import json
import re
import warnings
import zipfile

from kerasbert.base.errors import first_line, need_packages, reading
from kerasbert.base.storage import open_file
from kerasbert.data import text_files
from kerasbert.data.text_files import check_line, check_packed, ending_of, text_lines
from kerasbert.text.names import composed, trimmed

JSON = (".json", ".jsonl", ".ndjson")
PARQUET = ".parquet"
SPREADSHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
# Delimiters accepted for each file extension, the usual one first.
DELIMITERS = {".csv": ",;\t|", ".tsv": "\t|;,", ".tab": "\t|;,", ".txt": "\t|;,"}
TABLES = (*DELIMITERS, *JSON, PARQUET, *SPREADSHEETS)
# Excel's line with the delimiter.
_SEPARATOR = re.compile(r'"?sep=([,;|\t])"?[,;|\t ]*', re.IGNORECASE)


def plain_name(name):
    """Normalize a column name: case, Unicode form and blanks around it.

    >>> plain_name(" Text ") == plain_name("text")
    True
    """
    return composed(trimmed(str(name))).casefold()


def find_name(names, wanted):
    """Find the column that a name refers to.

    Returns:
        The equal name, else the only one that differs in case, surrounding blanks or Unicode form
        (macOS decomposes names), else `None`.

    >>> find_name(["Text", "label"], "text"), find_name(["text", "Text"], "Text")
    ('Text', 'Text')
    """
    if wanted in names:
        return wanted
    found = {name for name in names if plain_name(name) == plain_name(wanted)}
    return found.pop() if len(found) == 1 else None


class EmptyTableError(ValueError):
    """Error for an empty table file."""


def open_table(
    path,
    *,
    encoding=None,
    wanted=(),
    names=(),
    quotes=None,
    name=None,
    opened=open_file,
    **reading_text,
):
    """Open a table.

    Args:
        path: string.
        encoding: string. See `text_files.text_chunks`.
        wanted: list of strings. The needed columns. The delimiter is the one that finds most of
            them in the first line.
        names: list of strings. All columns, for a file without a header.
        quotes: whether values may be in `"`; `None` means in `.csv`, after a `sep=` line, and if
            all column names are quoted.
        name: name of the file in errors, by default its path.
        opened: function that opens a path for reading bytes.
        **reading_text: further settings of `text_files.text_chunks`.

    Returns:
        `(header, rows, unit)`: column names, or `None` for JSON; an iterator over `(number,
        values)`, or `(number, row)` for JSON; and "line" or "row", which the number counts. Blank
        rows at a sheet's end are left out.

    Raises:
        ValueError: for a file that is empty, or not of its extension's format.
    """
    name = path if name is None else name
    ending, source = ending_of(name), f"'{name}'"
    if ending == PARQUET:
        return _parquet_table(path, name, opened)
    if ending in SPREADSHEETS:
        return _sheet_table(path, name, opened)
    lines = text_lines(path, encoding, name, opened=opened, **reading_text)
    if ending in JSON:
        return None, _json_rows(lines, source), "row"
    return (*_delimited(lines, ending, source, wanted, names, quotes), "line")


def records(path, **settings):
    """Yield `(number, row)` for each row of a table, numbered from 1.

    A row is a dict or, in a JSON file, any JSON value.

    An empty file yields nothing.

    Args:
        path, **settings: see `open_table`.

    Raises:
        ValueError: as `open_table`, and for a wanted column that occurs more than once.
    """
    try:
        header, rows, _ = open_table(path, **settings)
        rows = enumerate(rows, start=1)
        first = next(rows, None)  # Only here, an empty JSON file raises an error.
    except EmptyTableError:
        return
    if header is not None:
        for wanted in settings.get("wanted", ()):
            if header.count(find_name(header, wanted)) > 1:
                raise ValueError(twice(f"'{settings.get('name') or path}'", wanted))
    for number, (_, row) in itertools.chain([first] if first else (), rows):
        yield (
            number,
            row if header is None else dict(itertools.zip_longest(header, row[: len(header)])),
        )


def twice(source, name, wanted=""):
    """Return the error for a repeated column."""
    return f"{source} has more than one column '{name}'{wanted}; rename all but one of them."


# === Text with delimiters ===


def _delimited(lines, ending, source, wanted, names, quotes):
    """Return `(header, rows)` of delimited text."""
    skipped, mark = 0, None
    for line in lines:
        line = line.lstrip("\ufeff") if not skipped else line
        separator = _SEPARATOR.fullmatch(line.rstrip("\n"))
        if separator and mark is None:
            mark = separator[1]
        elif line.strip("\n \r"):
            break
        skipped += 1
    else:
        raise EmptyTableError(f"{source} is empty.")
    is_told, mark = mark is not None, mark or delimiter_of(line, ending, wanted)
    if quotes is None:
        quotes = ending == ".csv" or is_told or _is_quoted(line, mark)
    rows = _cells(itertools.chain([line], lines), mark, quotes, skipped, source)
    number, first = next(rows)
    if names and len(first) == len(names) and any(find_name(first, x) is None for x in wanted):
        return list(names), itertools.chain([(number, first)], rows)
    header = first
    while len(header) > 1 and not header[-1].strip():  # The line may end with delimiters.
        header.pop()
    return header, _trimmed(rows, len(header))


def _is_quoted(line, mark):
    """Return whether all column names are quoted, as some programs do even in `.tsv`."""
    names = [name for name in line.strip("\r\n").split(mark) if name not in ("", '""')]
    return bool(names) and all(len(x) > 2 and x[0] == x[-1] == '"' for x in names)


def _trimmed(rows, width):
    for number, cells in rows:
        while len(cells) > width and not cells[-1].strip():
            cells.pop()
        yield number, cells


def delimiter_of(line, ending, wanted=()):
    """Choose a header's delimiter, which finds most of the wanted columns.

    >>> delimiter_of("text;label, or none", ".csv", ["text"])
    ';'
    """
    usual, *others = DELIMITERS.get(ending, "\t")
    if ending != ".csv" and usual in line:
        return usual
    counts = {}
    for mark in (usual, *others):
        if mark in line:
            cells = next(csv.reader([line.rstrip("\n")], delimiter=mark), [])
            counts[mark] = sum(find_name(cells, name) is not None for name in wanted)
    best = max(counts, key=counts.get, default=usual)
    # Texts may contain commas, so an unusual delimiter is chosen only if it gives all wanted
    # columns.
    is_sure = ending == ".csv" or (wanted and counts.get(best) == len(wanted))
    return best if is_sure else usual


def _parts(lines):
    for line in lines:
        if "\r" in line:
            yield from filter(None, re.split("(?<=\r)(?!\n)", line))
        else:
            yield line


def _cells(lines, mark, quotes, skipped, source):
    """Yield `(line, values)` of each row, without blank lines."""
    if not quotes:
        for number, line in enumerate(lines, start=skipped + 1):
            if line := line.removesuffix("\n"):
                yield number, line.split(mark)
        return
    # Texts may exceed csv's default limit.
    limit = csv.field_size_limit(max(csv.field_size_limit(), text_files.LONGEST_LINE))
    number = skipped + 1
    try:
        # `_parts` is needed, because csv rejects strings with line ends.
        reader = csv.reader(_parts(lines), delimiter=mark, strict=True)
        for cells in reader:
            if cells:
                yield number, cells
            number = skipped + reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{source} is not a valid {mark!r}-separated table at line {number} ({error}); write "
            'a quote within quotes as "", or save the file as .tsv.'
        ) from None
    finally:
        csv.field_size_limit(limit)


# === JSON ===


def _json_rows(lines, source):
    """Yield `(number, row)` of JSON lines, or of one JSON array or object."""
    number, first = 0, ""
    for first in lines:
        if first := first.lstrip("\ufeff"):
            number += 1
            if first.strip():
                break
    if not first.strip():
        raise EmptyTableError(f"{source} is empty.")
    row = _loads(first)
    if row is _NO_JSON or _all_rows(row):
        # One array or object, possibly on several lines, or invalid JSON.
        rest = list(lines)
        whole = row if row is not _NO_JSON and not rest else _loads("".join([first, *rest]))
        if whole is _NO_JSON:
            lines = rest
        else:
            rows = _all_rows(whole) or (whole if isinstance(whole, list) else [whole])
            yield from enumerate(rows, start=1)
            return
    yield from (
        (place, row)
        for place, (_, row) in enumerate(
            json_lines(itertools.chain([first], lines), source, number), start=1
        )
    )


_NO_JSON = object()


def _loads(text):
    """Parse JSON; NaN and infinities become `None`, and invalid JSON `_NO_JSON`."""
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return _NO_JSON


def _all_rows(value):
    """Return the rows of a JSON value of a whole table, or `None`.

    A table is a list, an object with a list "data", or an object of columns or rows, as of
    `DataFrame.to_json`.

    >>> _all_rows({"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}})
    [{'text': 'a', 'label': 'x'}, {'text': 'b', 'label': 'y'}]
    """
    rows = value.get("data") if isinstance(value, dict) else value
    if isinstance(rows, list) and rows and all(isinstance(one, dict) for one in rows):
        return rows
    inner = list(value.values()) if isinstance(value, dict) else []
    if not inner or not all(
        isinstance(x, dict) and x and x.keys() == inner[0].keys() for x in inner
    ):
        return None
    if all(key.isdecimal() for key in inner[0]):
        return [{name: column[key] for name, column in value.items()} for key in inner[0]]
    return inner if all(key.isdecimal() for key in value) else None


def json_lines(lines, source, start=1):
    """Yield `(line, value)` of each JSON line, without blank lines.

    Args:
        lines: strings.
        source: name of the file in errors.
        start: int. The number of the first line.

    Raises:
        ValueError: for a line that is not valid JSON, with its number.
    """
    for number, line in enumerate(lines, start=start):
        if line.strip():
            try:
                yield number, json.loads(line, parse_constant=lambda name: None)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{source}, line {number} is not valid JSON ({error}).") from None


# === Parquet ===


def _parquet_table(path, name, opened):
    need_packages(f"'{name}'", "data", "pyarrow")
    what = "not a Parquet file"

    def rows():
        with reading(name, what=what), opened(path) as raw, open_parquet(raw) as file:
            names, before = file.schema_arrow.names, 0
            for group in range(file.num_row_groups):
                yield from parquet_rows(file, name, group, names, before)
                before += file.metadata.row_group(group).num_rows

    with reading(name, what=what), opened(path) as raw, open_parquet(raw) as file:
        names = file.schema_arrow.names
    return names, rows(), "row"


def open_parquet(source):
    """Open a `pyarrow.parquet.ParquetFile` with repeated texts only once in memory.

    Args:
        source: path, or a file opened for reading.
    """
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(source)
    texts = [x.name for x in schema if str(x.type).startswith(("string", "large_string", "dict"))]
    if not isinstance(source, str):
        source.seek(0)
    return pyarrow.parquet.ParquetFile(source, read_dictionary=texts)


def parquet_rows(file, path, group, names, before):
    """Yield `(number, values)` for each row of a row group.

    Declared sizes are checked first: a few bytes may expand to many large rows.

    Args:
        file: a file from `open_parquet`.
        path: its path, for errors.
        group: int. The number of the row group.
        names: list of strings. The columns to read.
        before: int. The number of rows in earlier row groups.
    """
    found = file.metadata.row_group(group)
    for place in range(found.num_columns):
        column = found.column(place)
        if column.path_in_schema.split(".")[0] in names:
            check_packed(column.total_uncompressed_size, column.total_compressed_size, path)
    for batch in file.iter_batches(1024, row_groups=[group], columns=names):
        columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
        for values in zip(*columns):
            before += 1
            values = [value.as_py() for value in values]
            size = sum(len(x) if isinstance(x, (str, bytes, list)) else 0 for x in values)
            check_line(size, path, f"row {before}")
            yield before, values


# === Spreadsheets ===


def _sheet_table(path, name, opened):
    """Open the first sheet of a workbook that is not empty."""
    need_packages(f"'{name}'", "excel", "python_calamine")
    import python_calamine

    with opened(path) as file:
        data = io.BytesIO(file.read())
    if zipfile.is_zipfile(data):
        with zipfile.ZipFile(data) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())
        check_packed(unpacked, data.getbuffer().nbytes, name)
    data.seek(0)
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(data)
        sheets = {x: book.get_sheet_by_name(x) for x in book.sheet_names}
        filled = [x for x, sheet in sheets.items() if sheet.height]
        if not filled:
            raise EmptyTableError(f"'{name}' is empty.")
        rows = sheets[filled[0]].to_python(skip_empty_area=False)
    except (python_calamine.CalamineError, OSError) as error:
        raise ValueError(
            f"'{name}' is not a readable spreadsheet ({first_line(error)}); save it again, or as "
            ".csv."
        ) from None
    if len(filled) > 1:
        warnings.warn(
            f"Of the {len(filled)} sheets of '{name}', only the first one, '{filled[0]}', is read.",
            stacklevel=2,
        )
    rows = [(number, [_shown(x) for x in row]) for number, row in enumerate(rows, start=1)]
    filled_rows = [row for row in rows if any(x not in (None, "") for x in row[1])]
    header = filled_rows[0][1]
    while header[-1] in (None, ""):
        header.pop()
    after = [row for row in rows if filled_rows[0][0] < row[0] <= filled_rows[-1][0]]
    return [str(x) for x in header], iter([(n, row[: len(header)]) for n, row in after]), "row"


def _shown(value):
    """Return a cell as a spreadsheet shows it: 3 for 3.0, TRUE, a date without time."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, (datetime.date, datetime.datetime, datetime.time)):
        return value.isoformat(*[" "] * isinstance(value, datetime.datetime))
    return value

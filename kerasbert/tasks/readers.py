"""Files to columns: tables, SQuAD's JSON, CoNLL's columns, and the `datasets` library.

Bytes are UTF-8, or what a byte-order mark or the caller says; lines end as on Unix or Windows.
"""

import csv
import gzip
import io
import json
import os
import warnings
from dataclasses import dataclass

from kerasbert._errors import first_line, reading
from kerasbert.data.corpus import CHUNK, check_packed
from kerasbert.data.encodings import check_encoding, likely_encoding, split_mark
from kerasbert.files import check_name, check_regular


@dataclass
class Table:
    """Named columns, and where each row stands.

    Args:
        columns: dict of name to a list of N values.
        source: string. The file, for errors.
        numbers: list of N ints. The line, or the row, of each.
        unit: string. "line" or "row".
        repeated: names that several columns of the file have; `columns` has the last of each.
    """

    columns: dict
    source: str
    numbers: list
    unit: str = "line"
    repeated: frozenset = frozenset()

    def __len__(self):
        return len(self.numbers)

    def column(self, name, wanted=""):
        """The values of a column.

        Raises:
            ValueError: where there is none, with those that there are, and where there are two.
        """
        if name in self.repeated:
            raise ValueError(
                f"{self.source} has more than one column '{name}'{wanted}; rename all but one of "
                "them."
            )
        if name in self.columns:
            return self.columns[name]
        raise ValueError(
            f"{self.source} has no column '{name}'{wanted}; its columns are "
            f"{', '.join(map(repr, self.columns)) or 'none'}."
        )

    def place(self, position):
        """Where a row is, for errors."""
        return f"{self.source}, {self.unit} {self.numbers[position]}"


def read_table(path, names=(), wanted=(), quotes=None, keep_broken=False, encoding=None):
    """Read a file of columns.

    `.tsv` and `.txt` are split at tabs, `.csv` at commas, semicolons or tabs: at what gives its
    header the wanted columns, or else the first of them that it has. `.jsonl` and `.json` hold
    dicts, one a line or in a list, whose inner ones give columns such as "labels.score", and
    `.parquet` is read by pandas.

    Args:
        path: string.
        names: list of strings. Those of the columns, where the first line does not name them.
        wanted: list of strings. If they are not all in the first line, and `names` are given, the
            first line is a row.
        quotes: bool. Whether `"` may stand around a value; so by default in `.csv` only.
        keep_broken: bool. Keep rows with too few values, with "" for these, as files do that are
            answered row by row; by default they are left out, with a warning.
        encoding: string. See `read_text`.

    Returns:
        A `Table`.

    Raises:
        ValueError: for an empty file, one that is not what its name says, or not UTF-8.
    """
    ending = os.path.splitext(path)[1].lower()
    source = f"'{path}'"
    if ending == ".parquet":
        return _read_parquet(path, source)
    text = read_text(path, encoding)
    if ending in (".json", ".jsonl", ".ndjson"):
        return _json_table(text, source)
    if ending == ".csv":
        quotes, delimiter = quotes is None or quotes, _delimiter(text, wanted)
    elif ending in (".tsv", ".txt", ".tab"):
        quotes, delimiter = bool(quotes), "\t"
    else:
        raise ValueError(
            f"{source} ends in '{ending}'; kerasbert reads .csv, .tsv, .txt, .json, .jsonl and "
            ".parquet."
        )
    rows = list(_rows(text, delimiter, quotes, source))
    first = rows[0][1]
    if names and not set(wanted) <= set(first) and len(first) == len(names):
        header = list(names)
    else:
        header, rows = first, rows[1:]
    if not rows:
        raise ValueError(f"{source} has a header but no rows.")
    broken = [number for number, cells in rows if len(cells) != len(header)]
    if 2 * len(broken) > len(rows):
        raise ValueError(
            f"{source} is no table: {len(broken)} of its {len(rows)} rows do not have the "
            f"{len(header)} values of its header, the first one in line {broken[0]}."
        )
    if broken and not keep_broken:
        warnings.warn(
            f"{len(broken)} of the {len(rows)} rows of {source} are broken and left out; the first "
            f"one is line {broken[0]}.",
            stacklevel=2,
        )
        rows = [(number, cells) for number, cells in rows if len(cells) == len(header)]
    # Values beyond the header have no name.
    width = len(header)
    cells = [(cells + [""] * width)[:width] for _, cells in rows]
    columns = {name: [row[place] for row in cells] for place, name in enumerate(header)}
    repeated = frozenset(name for name in columns if header.count(name) > 1)
    return Table(columns, source, [number for number, _ in rows], repeated=repeated)


def read_lines(path, columns, encoding=None):
    """Read plain text, an example a line, to be answered line by line.

    Args:
        path: string. Where its first line names the columns, with tabs between, it is a table.
        columns: list of strings. Of several, each line has as many texts, with tabs between.
        encoding: string. See `read_text`.

    Returns:
        A `Table`, also of the empty lines.
    """
    lines = read_text(path, encoding).rstrip("\n").split("\n")
    if set(columns) <= set(lines[0].split("\t")):
        return read_table(path, (), columns, keep_broken=True, encoding=encoding)
    rows = [[line] if len(columns) == 1 else line.split("\t") for line in lines]
    table = Table({}, f"'{path}'", list(range(1, len(rows) + 1)))
    for position, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(
                f"{table.place(position)}, has {len(row)} text{'s' if len(row) > 1 else ''}; give "
                f"{' and '.join(columns)}, with a tab between them, or a table that names them."
            )
    table.columns.update(zip(columns, map(list, zip(*rows))))
    return table


def read_inputs(path, columns=("text",), encoding=None):
    """Read what a model is asked, an input a row.

    Args:
        path: string. A table with these columns, or a text a line, of several columns with tabs
            between. In a `.jsonl` a line may be a string or a list, such as a question and its
            context.
        columns: list of strings.
        encoding: string. See `read_text`.

    Returns:
        List of strings, of several columns of lists of them. Blank ones are left out.

    Raises:
        ValueError: where there are none.
    """
    if path.endswith(".jsonl") and not (text := read_text(path, encoding)).lstrip().startswith("{"):
        return list(json_lines(text, f"'{path}'"))
    if path.endswith((".csv", ".json", ".jsonl", ".parquet")):
        table = read_table(path, encoding=encoding)
    else:
        table = read_lines(path, columns, encoding)
    rows = list(zip(*(table.column(name) for name in columns)))
    rows = [row for row in rows if any(str(value).strip() for value in row)]
    if not rows:
        raise ValueError(f"'{path}' has no texts.")
    return [row[0] if len(columns) == 1 else list(row) for row in rows]


def read_text(path, encoding=None):
    """The text of a file, with `\\n` at the ends of lines.

    Args:
        path: string. Of what ends with `.gz` the content is read.
        encoding: string. Of a file that is not UTF-8 and has no byte-order mark; Excel writes
            one with UTF-8 and UTF-16. It is not guessed: wrong text would come without a word.

    Raises:
        ValueError: where it is empty, or in another encoding, with the one that it may be.
    """
    if encoding is not None:
        check_encoding(encoding)
    check_regular(path)
    if str(path).endswith(".gz"):
        with reading(path, what="no intact gzip file"):
            raw = _unpacked(path)
    else:
        with open(path, "rb") as file:
            raw = file.read()
    marked, data = split_mark(raw)
    found = marked or ("utf-8" if encoding is None or _is_utf8(data) else encoding)
    wrong = None
    try:
        text = data.decode(found)
        # Of ASCII alone they are UTF-8, too.
        if text.count("\0") > 0.1 * len(text) or "\x1b$" in text:
            wrong = "zeros or escapes are in it"
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start}"
    if wrong:
        likely = None if marked or encoding else likely_encoding(raw)
        guess = f"it may be {likely}, then pass --encoding {likely}. Else " if likely else ""
        raise ValueError(
            f"'{path}' is no {found.upper()} text ({wrong}); {guess}name its encoding, such as "
            "--encoding cp949 or shift_jis (in Python encoding=), or save it again as UTF-8."
        )
    if not text.strip():
        raise ValueError(f"'{path}' is empty.")
    return text.replace("\r\n", "\n")


def _unpacked(path):
    """The decompressed bytes of a gzip file; raises if it expands more than any text does."""
    stored, found, size, line = os.path.getsize(path), [], 0, 1
    with gzip.open(path) as file:
        while chunk := file.read(CHUNK):
            found.append(chunk)
            size += len(chunk)
            line += chunk.count(b"\n")
            check_packed(size, stored, path, f" (in line {line:,})")
    return b"".join(found)


def _is_utf8(data):
    """Whether this is UTF-8 and nothing else; a character or two of cp949 may look like it."""
    try:
        return sum(not character.isascii() for character in data.decode()) >= 8
    except UnicodeDecodeError:
        return False


def _delimiter(text, wanted):
    header = text.partition("\n")[0]
    marks = [mark for mark in ",;\t" if mark in header]
    # A name of one column may hold the mark of another kind of table.
    return max(marks, key=lambda mark: len(_cells(header, mark) & set(wanted)), default=",")


def _cells(line, delimiter):
    return set(next(csv.reader([line], delimiter=delimiter), ()))


def _rows(text, delimiter, quotes, source):
    """`(line, values)` of each row; blank lines are none."""
    if not quotes:
        for number, line in enumerate(text.split("\n"), start=1):
            if line:
                yield number, line.split(delimiter)
        return
    limit = csv.field_size_limit(2**31 - 1)  # A text may be longer than the module's default.
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        number = 1
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{source} is no {delimiter!r}-separated table at line {number} ({error}); write a "
            'quote within quotes as "", or save it as .tsv.'
        ) from None
    finally:
        csv.field_size_limit(limit)


def _json_table(text, source):
    try:
        rows = json.loads(text)
    except RecursionError:
        raise ValueError(f"{source} is nested deeper than JSON is read here.") from None
    except ValueError:
        rows = list(json_lines(text, source))
    if isinstance(rows, dict):
        rows = rows["data"] if isinstance(rows.get("data"), list) else [rows]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{source} has to hold objects, one a line or in a list.")
    return _table_of(rows, source)


def json_lines(text, source):
    """What each line of a text holds in JSON, but for empty ones.

    Raises:
        ValueError: for a line that is none, with its number.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{source}, line {number} is no JSON ({error}).") from None


def _table_of(rows, source):
    """A table of dicts, which may have others in them."""
    rows = [dict(_flat(row)) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table(columns, source, list(range(1, len(rows) + 1)), "row")


def _flat(row, prefix=""):
    """A dict's items, and those of the dicts in it as "outer.inner"."""
    for name, value in row.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")


def _read_parquet(path, source):
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ValueError(
            f"{source} needs pandas and pyarrow: pip install pandas pyarrow ({first_line(error)})."
        ) from error
    except Exception as error:  # pyarrow and pandas raise many kinds.
        raise ValueError(f"{source} is no Parquet file ({first_line(error)}).") from error
    if not len(frame):
        raise ValueError(f"{source} has no rows.")
    return _table_of(_plain(frame.to_dict("records")), source)


def _plain(value):
    """Arrays, of arrays too, as lists; a missing value as `None`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    is_missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
    return None if is_missing else value


# === SQuAD ===


def read_squad(path, encoding=None):
    """Read SQuAD's JSON, of 1.1 or 2.0 or another language, in an encoding, see `read_text`.

    Returns:
        A `Table` of `id`, `question`, `context` and `answers`, a dict of `text` and `answer_start`
        with a list each, empty for "no answer"; `None` where there are none, as in a test set.
    """
    source = f"'{path}'"
    try:
        articles = json.loads(read_text(path, encoding))["data"]
        rows = [
            {
                "id": str(qa["id"]),
                "question": qa["question"],
                "context": paragraph["context"],
                "answers": _answers(qa),
            }
            for article in articles
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        ]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
            raise
        raise ValueError(
            f"{source} is not in SQuAD's format, data > paragraphs > qas with id, question and "
            f"answers ({type(error).__name__}: {first_line(error)})."
        ) from None
    if not rows:
        raise ValueError(f"{source} holds no questions.")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Table(columns, source, list(range(1, len(rows) + 1)), "question")


def _answers(qa):
    if qa.get("is_impossible"):
        return {"text": [], "answer_start": []}
    if qa.get("answers") is None:
        return None
    return {name: [a[name] for a in qa["answers"]] for name in ("text", "answer_start")}


# === CoNLL's columns ===

DOCUMENT = "-DOCSTART-"


def read_columns(path, comment=None, encoding=None):
    """Read one word a line, with its tags beside it, and an empty line after each sentence.

    Columns are separated by tabs, or else by any white space. A line of `-DOCSTART-` begins a new
    document, and is no word.

    Args:
        path: string.
        comment: string. What lines to leave out begin with.
        encoding: string. See `read_text`.

    Returns:
        List of documents, each a list of sentences, each a list of `(line, cells)`.
    """
    documents, sentence = [[]], []
    for number, line in enumerate([*read_text(path, encoding).split("\n"), ""], start=1):
        if comment is not None and line.startswith(comment):
            continue
        first = line.split()[:1]
        if first and first != [DOCUMENT]:
            cells = line.split("\t") if "\t" in line else line.split()
            sentence.append((number, [cells[0], *(cell.strip() for cell in cells[1:])]))
            continue
        if sentence:
            documents[-1].append(sentence)
            sentence = []
        if first and documents[-1]:
            documents.append([])
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"'{path}' holds no words.")
    return documents


# === Where the files are ===


def find_file(folder, candidates, name, page):
    """The first of a task's files that is in a folder, at its official place or right there.

    Raises:
        ValueError: where there is none, with the page to get it from.
    """
    folder = os.path.expanduser(folder)
    if not os.path.isdir(folder):
        raise ValueError(f"'{folder}' is no folder; give the one that holds the files of '{name}'.")
    candidates = [candidates] if isinstance(candidates, str) else candidates
    for candidate in candidates:
        check_name(candidate, name, nested=True)
        for place in (candidate, os.path.basename(candidate)):
            path = os.path.join(folder, *place.split("/"))
            if os.path.isfile(path):
                return path
    more = f" (nor {len(candidates) - 1} others)" if len(candidates) > 1 else ""
    raise ValueError(
        f"The folder '{folder}' has no {candidates[0]}{more} of the task '{name}'; get it from "
        f"{page}"
    )


def from_datasets(dataset, split, name, page):
    """A split by name through the `datasets` library: a `Table`.

    Args:
        dataset: tuple of the arguments of `datasets.load_dataset`; a last one that is a dict holds
            named ones.
        split: string. The library's name of it.
        name: string. The task's, for errors.
        page: string. Where else to get the files.

    Raises:
        ValueError: where the library is not installed, or cannot get it, with the page.
    """
    way_out = f"get the files from {page} and name their folder"
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"The data of '{name}' have to come from somewhere: {way_out}, or pip install datasets."
        ) from None
    named = dataset[-1] if isinstance(dataset[-1], dict) else {}
    try:
        loaded = datasets.load_dataset(*dataset[: len(dataset) - bool(named)], split=split, **named)
    except Exception as error:  # It raises what its many parts raise.
        raise ValueError(
            f"The datasets library cannot get '{dataset[0]}' ({first_line(error)}); {way_out}."
        ) from error
    return table_of_dataset(loaded, f"the {split} split of {dataset[0]}")


def table_of_dataset(loaded, source):
    """A `datasets.Dataset` as a `Table`, with the names of its classes in place of numbers."""
    columns = {}
    for name in loaded.column_names:
        values, feature = [_plain(value) for value in loaded[name]], loaded.features[name]
        names = getattr(feature, "names", None) or getattr(
            getattr(feature, "feature", None), "names", None
        )
        columns[name] = [_named(value, names) for value in values] if names else values
        for key in dict.fromkeys(key for v in values if isinstance(v, dict) for key in v):
            columns[f"{name}.{key}"] = [None if v is None else v.get(key) for v in values]
    return Table(columns, source, list(range(1, len(loaded) + 1)), "row")


def _named(value, names):
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None

"""Readers for tables, SQuAD's JSON and CoNLL columns."""

import json
import os
import re
import warnings
from collections import Counter
from dataclasses import dataclass, replace

from kerasbert.base.errors import first_line
from kerasbert.base.paths import check_name
from kerasbert.data.tables import (
    TABLES,
    find_name,
    json_lines,
    open_table,
    plain_name,
    twice,
)
from kerasbert.data.text_files import ending_of, read_text
from kerasbert.heads.base.annotations import flat_annotations
from kerasbert.text.columns import plain


@dataclass
class Table:
    """Named columns, and the position of each row in the file.

    Args:
        columns: dict of name to a list of N values.
        source: the file, for error messages.
        numbers: list of N ints. Line or row numbers.
        unit: "line" or "row": what the numbers count.
        repeated: names that several columns share; `columns` has the last of these columns.
    """

    columns: dict
    source: str
    numbers: list
    unit: str = "line"
    repeated: frozenset = frozenset()

    def __len__(self):
        return len(self.numbers)

    def find(self, name):
        """Return the table's spelling of a column name, or `None`."""
        return find_name(self.columns, name)

    def column(self, name, wanted=""):
        """Return the values of a column.

        Raises:
            ValueError: if the column is ambiguous or missing, with a list of columns.
        """
        found = self.find(name)
        if found in self.repeated:
            raise ValueError(twice(self.source, found, wanted))
        if found is not None:
            return self.columns[found]
        alike = [x for x in self.columns if plain_name(x) == plain_name(name)]
        if alike:
            raise ValueError(
                f"{self.source} has the columns {' and '.join(map(repr, alike))}, but no "
                f"'{name}'{wanted}; name the intended one."
            )
        raise ValueError(
            f"{self.source} has no column '{name}'{wanted}; its columns are "
            f"{', '.join(map(repr, self.columns)) or 'none'}."
            + (" Its first line must name the columns." if self.unit == "line" else "")
        )

    def place(self, position):
        """Return a row's place in the file, for errors."""
        return f"{self.source}, {self.unit} {self.numbers[position]}"


def read_table(path, names=(), wanted=(), quotes=None, keep_broken=False, encoding=None):
    """Read a table from a file.

    `.csv` is split at commas, semicolons, tabs or `|`: the delimiter that finds most wanted columns
    in the header. `.tsv` and `.txt` are split at tabs, or another delimiter if it finds all wanted
    columns. `.jsonl` and `.json` hold dicts, one per line or in a list; nested dicts become columns
    such as "labels.score". A Label Studio export has one row per task, with a column "label".
    `.parquet` needs pyarrow; `.xlsx` and `.ods` (first sheet only) need python-calamine. Text may
    be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).

    Args:
        path: string.
        names: list of strings. Column names for files without a header.
        wanted: list of strings. The needed columns. With `names`, the first line is a header only
            if it has all of them.
        quotes: whether values may be enclosed in `"`; by default only in `.csv`.
        keep_broken: whether to keep blank rows, and broken rows (padded with "" or truncated), for
            one prediction per row, instead of leaving them out (broken ones with a warning).
        encoding: string. See `text_files.text_chunks`.

    Returns:
        A `Table`.

    Raises:
        ValueError: for a file that is empty, not of its extension's format, or not UTF-8.
    """
    source = f"'{path}'"
    if ending_of(path) not in TABLES:
        raise ValueError(
            f"{source} ends in '{ending_of(path)}'; kerasbert reads .csv, .tsv, .txt, .json, "
            ".jsonl, .parquet and .xlsx."
        )
    header, rows, unit = open_table(
        path, encoding=encoding, wanted=wanted, names=names, quotes=quotes, whole=True
    )
    if header is None:
        return _json_table([row for _, row in rows], source)
    rows = [(number, cells) for number, cells in rows if keep_broken or not _is_blank(cells)]
    if not rows:
        raise ValueError(f"{source} has a header but no rows.")
    width = len(header)
    broken = [number for number, cells in rows if len(cells) != width]
    if 2 * len(broken) > len(rows):
        raise ValueError(
            f"{source} is not a table: {len(broken)} of its {len(rows)} rows do not have the "
            f"{width} values of its header, the first one in line {broken[0]}."
        )
    if broken and not keep_broken:
        warnings.warn(
            f"{len(broken)} of the {len(rows)} rows of {source} are broken and left out; the first "
            f"one is line {broken[0]}.",
            stacklevel=2,
        )
        rows = [(number, cells) for number, cells in rows if len(cells) == width]
    if broken:
        rows = [(number, [*cells, *[""] * width][:width]) for number, cells in rows]
    columns = {}
    for place, name in enumerate(header):
        values = [cells[place] for _, cells in rows]
        if unit == "row":  # Parquet cells may be arrays and objects.
            inner = table_of_rows([{name: plain(value)} for value in values], source)
            columns |= inner.columns
        else:
            columns[name] = values
    repeated = frozenset(name for name in header if header.count(name) > 1)
    return Table(columns, source, [number for number, _ in rows], unit, repeated)


def _is_blank(cells):
    """Return whether a row of several columns has only empty cells."""
    return len(cells) > 1 and not any(x is not None and str(x).strip() for x in cells)


def read_lines(path, columns, encoding=None):
    """Read plain text with one example per line.

    Args:
        path: string. With column names in the first line, separated by tabs or `|`, it is a table.
        columns: list of strings. Tabs separate several texts of a line.
        encoding: string. See `text_files.text_chunks`.

    Returns:
        A `Table`, including empty lines.
    """
    lines = read_text(path, encoding).rstrip("\n").split("\n")
    for mark in "\t|":
        cells = lines[0].split(mark)
        if all(find_name(cells, name) is not None for name in columns):
            return read_table(path, (), columns, keep_broken=True, encoding=encoding)
    rows = [[line] if len(columns) == 1 else line.split("\t") for line in lines]
    table = Table({}, f"'{path}'", list(range(1, len(rows) + 1)))
    for position, row in enumerate(rows):
        if len(row) != len(columns):
            raise ValueError(
                f"{table.place(position)}, has {len(row)} text{'s' if len(row) > 1 else ''}; give "
                f"{' and '.join(columns)}, separated by a tab, or a table with these columns."
            )
    table.columns.update(zip(columns, map(list, zip(*rows))))
    return table


def read_inputs(path, columns=("text",), encoding=None):
    """Read inputs of a model, one per row.

    Args:
        path: a table with these columns, or text with one input per line and tabs between columns.
            A line of `.jsonl` may be a string or a list, such as a question and its context.
        columns: list of strings.
        encoding: string. See `text_files.text_chunks`.

    Returns:
        List of strings, or of lists of strings for several columns, without blank inputs.

    Raises:
        ValueError: for a file without inputs.
    """
    ending = ending_of(path)
    if ending in (".jsonl", ".ndjson"):
        text = read_text(path, encoding)
        if not text.lstrip().startswith("{") and not re.match(r"\s*\[\s*\{", text):
            lines = text.removesuffix("\n").split("\n")
            return [row for _, row in json_lines(lines, f"'{path}'")]
    if ending in TABLES and ending != ".txt":
        table = read_table(path, (), columns, encoding=encoding)
    else:
        table = read_lines(path, columns, encoding)
    rows = list(zip(*(_texts(table.column(name)) for name in columns)))
    rows = [row for row in rows if any(str(value).strip() for value in row)]
    if not rows:
        raise ValueError(f"'{path}' has no texts.")
    return [row[0] if len(columns) == 1 else list(row) for row in rows]


def _texts(values):
    return ["" if value is None else value for value in values]


def _json_table(rows, source):
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{source} must contain objects, one per line or in a list.")
    return table_of_rows(flat_annotations(rows, source), source)


def table_of_rows(rows, source):
    """Make a `Table` from dicts, which may be nested."""
    rows = [dict(_flat(row)) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table(columns, source, list(range(1, len(rows) + 1)), "row")


def _flat(row, prefix=""):
    """Yield the items of nested dicts, with names such as "outer.inner"."""
    for name, value in row.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")


# === SQuAD ===


def is_squad(path, encoding=None):
    """Return whether a file is a JSON object with articles under "data", as in SQuAD."""
    text = read_text(path, encoding)
    return not text.lstrip().startswith("[") and re.search(r'"data"\s*:', text) is not None


def read_squad(path, encoding=None):
    """Read JSON in SQuAD's format (1.1, 2.0 or in another language).

    Returns:
        A `Table` of `id`, `question`, `context` and `answers`. Answers are a dict of two lists,
        `text` and `answer_start`, empty for "no answer"; or `None` in an unlabeled file.
    """
    source = f"'{path}'"
    try:
        articles = json.loads(read_text(path, encoding))["data"]
        rows = [
            {
                # KLUE's key is "guid".
                "id": str(qa["guid"] if "id" not in qa and "guid" in qa else qa["id"]),
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
        raise ValueError(f"{source} has no questions.")
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


# CoNLL-U: columns of words and parts of speech, number of columns, and pattern of the ids of
# multiword tokens and words outside the text.
CONLLU_WORD, CONLLU_TAG, CONLLU_WIDTH = 1, 3, 10
_NO_WORD = re.compile("[0-9]+[-.][0-9]+")
_NAMED = re.compile("#+ [^\t]")


@dataclass
class Columns:
    """Contents of a file with a word and its tags per line.

    Args:
        documents: list of documents, each a list of sentences, each a list of `(line, cells)`.
        source: the file, for errors.
        is_conllu: whether these are the ten columns of CoNLL-U.
        has_tabs: whether tabs separate the columns, so that words may contain spaces.
    """

    documents: list
    source: str
    is_conllu: bool = False
    has_tabs: bool = False

    def rows(self):
        """Yield `(line, cells)` for all words."""
        for document in self.documents:
            for sentence in document:
                yield from sentence

    def checked(self, label):
        """Return a copy without comments.

        Args:
            label: number of the column of tags.

        Raises:
            ValueError: for a line with another number of columns, for example because its word
                contains a space.
        """
        usual = Counter(len(cells) for _, cells in self.rows()).most_common(1)[0][0]

        def is_word(number, cells):
            if len(cells) == usual:
                return cells not in (["#", "newdoc"], ["#", "newpar"])
            if cells[0].startswith("#"):
                return False
            is_misread = label < 0 or len(cells) > usual and not self.has_tabs
            if len(cells) > 1 and is_misread:
                raise ValueError(
                    f"{self.source}, line {number}, has {len(cells)} columns, where most lines "
                    f"have {usual}: {' '.join(cells)!r}. Separate the columns with tabs, so that "
                    "words may contain spaces."
                )
            return True

        documents = [
            [[row for row in sentence if is_word(*row)] for sentence in document]
            for document in self.documents
        ]
        return replace(self, documents=[list(filter(None, x)) for x in documents])


def read_columns(path, comment=None, encoding=None):
    """Read a file with a word and its tags per line, and an empty line after each sentence.

    Tabs separate columns or, without any, white space. A line with `-DOCSTART-` starts a new
    document. In CoNLL-U files, comments and multiword tokens are left out.

    Args:
        path: string.
        comment: prefix of lines to leave out.
        encoding: string. See `text_files.text_chunks`.

    Returns:
        A `Columns`.
    """
    lines = read_text(path, encoding).split("\n")
    words = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    is_conllu = bool(words) and all(
        len(cells) == CONLLU_WIDTH and cells[0].replace("-", "").replace(".", "").isdecimal()
        for cells in words
    )
    comment = "#" if is_conllu else comment
    has_tabs = 2 * sum(len(cells) > 1 for cells in words) > len(words)
    documents, sentence = [[]], []
    for number, line in enumerate([*lines, ""], start=1):
        if comment is not None and line.startswith(comment):
            continue
        # Comments have no tabs, except KLUE's, with id and text of a sentence.
        if has_tabs and line.startswith("#") and ("\t" not in line or _NAMED.match(line)):
            continue
        first = line.split()[:1]
        if first and first != [DOCUMENT]:
            cells = line.split("\t") if "\t" in line else line.split()
            while len(cells) > 1 and not cells[-1].strip():
                cells.pop()
            if not is_conllu or not _NO_WORD.fullmatch(cells[0]):
                sentence.append((number, [cells[0], *(cell.strip() for cell in cells[1:])]))
            continue
        if sentence:
            documents[-1].append(sentence)
            sentence = []
        if first and documents[-1]:
            documents.append([])
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"'{path}' has no words.")
    return Columns(documents, f"'{path}'", is_conllu, has_tabs)


# === Locations of files ===


def find_file(folder, candidates, name, page):
    """Return the first existing candidate, at its official path or directly in the folder.

    Raises:
        ValueError: if none exists, with the download page.
    """
    folder = os.path.expanduser(folder)
    if not os.path.isdir(folder):
        raise ValueError(f"'{folder}' is not a folder; pass the one with the files of '{name}'.")
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

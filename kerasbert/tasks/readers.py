"""Files to columns: tables, SQuAD's JSON, CoNLL's columns, and the `datasets` library."""

import json
import os
import re
import warnings
from collections import Counter
from dataclasses import dataclass, replace

from kerasbert._errors import first_line, how_to_install
from kerasbert.data.tables import (
    TABLES,
    find_name,
    json_lines,
    open_table,
    plain_name,
    twice,
)
from kerasbert.data.text_files import ending_of, read_text
from kerasbert.files import check_name
from kerasbert.tasks.annotations import flat_annotations


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

    def find(self, name):
        """How the table writes the name of a column, or `None`; see `tables.find_name`."""
        return find_name(self.columns, name)

    def column(self, name, wanted=""):
        """The values of a column.

        Raises:
            ValueError: where there is none, with those that there are, and where there are two.
        """
        found = self.find(name)
        if found in self.repeated:
            raise ValueError(twice(self.source, found, wanted))
        if found is not None:
            return self.columns[found]
        alike = [x for x in self.columns if plain_name(x) == plain_name(name)]
        if alike:
            raise ValueError(
                f"{self.source} has the columns {' and '.join(map(repr, alike))}, and no "
                f"'{name}'{wanted}; name the one that is meant."
            )
        raise ValueError(
            f"{self.source} has no column '{name}'{wanted}; its columns are "
            f"{', '.join(map(repr, self.columns)) or 'none'}."
            + (" Its first line must name the columns." if self.unit == "line" else "")
        )

    def place(self, position):
        """Where a row is, for errors."""
        return f"{self.source}, {self.unit} {self.numbers[position]}"


def read_table(path, names=(), wanted=(), quotes=None, keep_broken=False, encoding=None):
    """Read a file of columns.

    `.csv` is split at commas, semicolons, tabs or `|`: at what gives its header the wanted columns,
    or else the first of them that it has; `.tsv` and `.txt` at tabs, or at what gives it all of the
    wanted columns. `.jsonl` and `.json` hold dicts, one a line or in a list, whose inner ones give
    columns such as "labels.score"; exports of Label Studio are read as the data of their tasks with
    a column "label". `.parquet` needs pyarrow, and `.xlsx` and `.ods` python-calamine, which read
    the first sheet. Text may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`).

    Args:
        path: string.
        names: list of strings. Those of the columns, where the first line does not name them.
        wanted: list of strings. If they are not all in the first line, and `names` are given, the
            first line is a row.
        quotes: bool. Whether `"` may stand around a value; so by default in `.csv` only.
        keep_broken: bool. Keep rows with too few values, with "" for these, and blank ones, as
            files do that are answered row by row; by default broken rows are left out, with a
            warning, and blank ones without.
        encoding: string. See `text_files.text_chunks`.

    Returns:
        A `Table`.

    Raises:
        ValueError: for an empty file, one that is not what its name says, or not UTF-8.
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
            f"{source} is no table: {len(broken)} of its {len(rows)} rows do not have the "
            f"{width} values of its header, the first one in line {broken[0]}."
        )
    if broken and not keep_broken:
        warnings.warn(
            f"{len(broken)} of the {len(rows)} rows of {source} are broken and left out; the first "
            f"one is line {broken[0]}.",
            stacklevel=2,
        )
        rows = [(number, cells) for number, cells in rows if len(cells) == width]
    # Values beyond the header have no name.
    if broken:
        rows = [(number, [*cells, *[""] * width][:width]) for number, cells in rows]
    columns = {}
    for place, name in enumerate(header):
        values = [cells[place] for _, cells in rows]
        if unit == "row":  # Of Parquet, whose cells may be arrays and objects.
            inner = _table_of([{name: _plain(value)} for value in values], source)
            columns |= inner.columns
        else:
            columns[name] = values
    repeated = frozenset(name for name in header if header.count(name) > 1)
    return Table(columns, source, [number for number, _ in rows], unit, repeated)


def _is_blank(cells):
    """Whether a row of several columns holds nothing."""
    return len(cells) > 1 and not any(x is not None and str(x).strip() for x in cells)


def read_lines(path, columns, encoding=None):
    """Read plain text, an example a line, to be answered line by line.

    Args:
        path: string. Where its first line names the columns, with tabs or `|` between, it is a
            table.
        columns: list of strings. Of several, each line has as many texts, with tabs between.
        encoding: string. See `text_files.text_chunks`.

    Returns:
        A `Table`, also of the empty lines.
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
        encoding: string. See `text_files.text_chunks`.

    Returns:
        List of strings, of several columns of lists of them. Blank ones are left out.

    Raises:
        ValueError: where there are none.
    """
    ending = ending_of(path)
    if ending in (".jsonl", ".ndjson"):
        text = read_text(path, encoding)
        if not text.lstrip().startswith("{") and not _is_list_of_objects(text):
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


def _is_list_of_objects(text):
    return re.match(r"\s*\[\s*\{", text) is not None


def _json_table(rows, source):
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{source} has to hold objects, one a line or in a list.")
    return _table_of(flat_annotations(rows, source), source)


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


def is_squad(path, encoding=None):
    """Whether a file is an object with its articles under "data", as SQuAD's; not rows of JSON."""
    text = read_text(path, encoding)
    return not text.lstrip().startswith("[") and re.search(r'"data"\s*:', text) is not None


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
                # KLUE calls it "guid".
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


# The numbers of CoNLL-U's columns of words and of their parts of speech, of all that it has, and
# those of tokens of several words and of words that are not in the text.
CONLLU_WORD, CONLLU_TAG, CONLLU_WIDTH = 1, 3, 10
_NO_WORD = re.compile("[0-9]+[-.][0-9]+")
_NAMED = re.compile("#+ [^\t]")


@dataclass
class Columns:
    """Words a line, with their tags in columns.

    Args:
        documents: list of documents, each a list of sentences, each a list of `(line, cells)`.
        source: string. The file, for errors.
        is_conllu: bool. Whether they are the ten columns of CoNLL-U.
        has_tabs: bool. Whether tabs stand between them, so that words may hold spaces.
    """

    documents: list
    source: str
    is_conllu: bool = False
    has_tabs: bool = False

    def rows(self):
        """Yield `(line, cells)` of all words."""
        for document in self.documents:
            for sentence in document:
                yield from sentence

    def checked(self, label):
        """The same without comments, with as many columns in each line.

        Args:
            label: int. The number of the column of tags.

        Raises:
            ValueError: for a line with more or fewer columns, whose tag or word would be another
                one: a word with a space in it.
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
                    f"have {usual}: {' '.join(cells)!r}. Write tabs between the columns, so that a "
                    "word may hold spaces."
                )
            return True

        documents = [
            [[row for row in sentence if is_word(*row)] for sentence in document]
            for document in self.documents
        ]
        return replace(self, documents=[list(filter(None, x)) for x in documents])


def read_columns(path, comment=None, encoding=None):
    """Read one word a line, with its tags beside it, and an empty line after each sentence.

    Columns are separated by tabs, or else by any white space. A line of `-DOCSTART-` begins a new
    document, and is no word. Of CoNLL-U, comments and tokens of several words are left out.

    Args:
        path: string.
        comment: string. What lines to leave out begin with.
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
        # A comment, which has no tabs, or as KLUE's of a sentence's name and its text.
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
        raise ValueError(f"'{path}' holds no words.")
    return Columns(documents, f"'{path}'", is_conllu, has_tabs)


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
            f"The data of '{name}' must come from somewhere: {way_out}, or run "
            f"{how_to_install('data')}."
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

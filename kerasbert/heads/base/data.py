"""Base class of the kinds of data: columns to examples, predictions to files.

N: number of examples. The stateless class of each kind is in the file `data.py` of its folder.
"""

import math
import warnings

from kerasbert.base.errors import did_you_mean
from kerasbert.data.text_files import ending_of
from kerasbert.heads.base import file_readers
from kerasbert.heads.base.examples import Examples
from kerasbert.metrics import METRICS
from kerasbert.text.names import composed, trimmed


class Data:
    """Base class of the kinds of data, with common defaults."""

    # Defaults for own files: text columns, their allowed numbers, label column, metrics and
    # prediction file.
    columns = ("text",)
    column_counts = (1,)
    label = "label"
    metrics = ("accuracy",)
    submission = "predictions.tsv"
    takes_label_columns = False  # Whether `label` may name one column of 0 and 1 per class.

    def fields_of_files(self, task, given):
        """Return further `Task` fields for your own files.

        Args:
            task: the `Task` without these fields.
            given: dict of the arguments `labels`, `choices`, `choice_start`, `metrics` and
                `settings` of `file_task`.
        """
        return {}

    def fields_of_model(self, model):
        """Return the `Task` fields of a model, besides the class names."""
        return {}

    def tune(self, model, scores):
        """Set the thresholds of a trained model that its scores on the dev examples determine."""

    def settings(self, task):
        """Return the arguments of `from_preset` for a new head."""
        return {"new_head": True}

    def open(self, task, path, split):
        """Return a `file_readers.Table`, or another input of `examples`.

        Args:
            task: the `Task`.
            path: string; or the `Table` of data in memory, which is returned unchanged.
            split: string.
        """
        return path if isinstance(path, file_readers.Table) else self.read_file(task, path, split)

    def read_file(self, task, path, split):
        """Read a file for `open`."""
        source = task.source
        wanted = [source.columns.get(name, name) for name in task.columns]
        if is_test(split) and ending_of(path) == ".txt":
            return file_readers.read_lines(path, wanted, source.encoding)
        return file_readers.read_table(
            path,
            source.header,
            wanted,
            source.quotes,
            keep_broken=is_test(split),
            encoding=source.encoding,
        )

    def examples(self, task, table, split):
        """Convert a table to `Examples`."""
        columns = tuple(texts_of(table, column_of(task, table, name)) for name in task.columns)
        y = self._labels(task, table, split)
        x = columns if len(columns) > 1 else columns[0]
        return examples_of(x, y, ids_of(task, table), gold=y)

    def check_model(self, task, model):
        """Raise a `ValueError` if the model has other classes."""

    def count(self, data):
        """Return the number of predictions."""
        return len(data)

    def groups(self, data):
        """Return the group of each example; splitting keeps a group together."""
        return range(len(data))

    def answers(self, task, model, data, batch_size):
        """Return `(predictions, probabilities)`, see `Task.answers`."""
        raise NotImplementedError

    def scores(self, task, data, predictions):
        return scores_of(task.metrics, data.gold, predictions)

    def scores_by_class(self, task, data, predictions):
        """See `Task.scores_by_class`."""
        return {}

    def _labels(self, task, table, split):
        """Return the labels of all rows; `None` for a test set without labels."""
        name = name_in(task, table, task.label)
        if is_test(split) and _is_empty(table, name):
            return None
        return [
            self._label(task, value, table, position)
            for position, value in enumerate(
                table.column(name, f" for the labels of '{task.name}'")
            )
        ]


def _is_empty(table, name):
    """Return whether a column is missing or has only empty values."""
    found = table.find(name)
    return found is None or all(written(value) == "" for value in table.columns[found])


def is_test(split):
    return split.startswith("test")


def column_of(task, table, name):
    """Return the values of a column, found by its name in the files or in the task."""
    return table.column(name_in(task, table, name), f" of the task '{task.name}'")


def name_in(task, table, name):
    """Return a column's name in the files, or the task's name for it."""
    there = task.source.columns.get(name, name)
    return name if table.find(there) is None and table.find(name) is not None else there


def texts_of(table, values):
    texts = []
    for position, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise ValueError(f"{table.place(position)}: {value!r} is not a text.")
        # Tables do not distinguish missing and empty texts.
        texts.append(value if isinstance(value, str) else written(value))
    return texts


def ids_of(task, table, unique=False):
    """Return the examples' ids, or running numbers if ids are missing or ambiguous.

    Args:
        unique: whether ids must be unique because results are stored by id. If `False`, a column
            that the user named may have empty or duplicate ids.
    """
    given, counted = task.source.id, list(range(len(table)))
    if not task.has_own_files:  # Submissions use running numbers.
        found = table.find(given)
        return counted if found is None else table.columns[found] or counted
    # The id column of KLUE's files is "guid".
    names = [given] if given else ["id", "guid"]
    name = next((x for x in names if table.find(x) is not None), None)
    if name is not None:
        ids = table.column(name) if given else table.columns[table.find(name)]
        is_clear = len(set(map(str, ids))) == len(ids) and not any(i in (None, "") for i in ids)
        if is_clear or (given and not unique):
            return ids
        if not given and not unique:
            return counted
        lack = f"whose column '{name}' has empty or duplicate ids"
    elif given:
        lack = f"which has no column '{given}'"
    else:
        return counted
    warnings.warn(
        f"The examples of {table.source}, {lack}, get the ids 0, 1, 2 and so on.", stacklevel=2
    )
    return counted


def examples_of(x, y, ids=None, gold=None, sentences=None):
    rows = x[0] if isinstance(x, tuple) else x
    return Examples(x, y, list(range(len(rows))) if ids is None else ids, gold, sentences)


def found_answers(data, lost, split, source, where, name):
    """Warn of answers that are not in their texts; training data leaves out their examples.

    Args:
        data: `Examples`.
        lost: list of ints. Positions of these examples.
        split: string.
        source: string. The file.
        where: string. Where the answers were searched for.
        name: string. What the ids identify.
    """
    if not lost:
        return data
    is_left_out = split == "train"
    warnings.warn(
        f"{len(lost)} of the {len(data)} answers of {source} are not {where}, the first one for "
        f"{name} {data.ids[lost[0]]!r}; they are "
        f"{'left out' if is_left_out else 'scored anyway'}.",
        stacklevel=3,
    )
    return data.take(sorted({*range(len(data))} - {*lost})) if is_left_out else data


def written(value):
    """Convert a label to text: "1" for 1.0, as which pandas may read 1.

    >>> written(1.0), written(" ham "), written(None), written(math.nan)
    ('1', 'ham', '', '')
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_missing = value is None or isinstance(value, float) and math.isnan(value)
    # Files from macOS may have a label in two Unicode forms.
    return "" if is_missing else composed(trimmed(str(value)))


def by_size(text):
    """Return the sort key of a label: numbers by value, then names."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def unknown_value(what, value, known):
    known = list(dict.fromkeys(known))
    shown = ", ".join(map(repr, known[:12])) + (", ..." if len(known) > 12 else "")
    return f"{what} {value!r} is unknown; known are {shown}{did_you_mean(value, known, show=repr)}"


def scores_of(names, gold, predictions):
    result = {}
    for name in names:
        scores = METRICS[name](gold, predictions)
        result.update(scores if isinstance(scores, dict) else {name: scores})
    return result


def index_file(task, data, values):
    lines = [f"{i}\t{value}" for i, value in zip(data.ids, values)]
    return {task.submission: "\n".join(["index\tprediction", *lines, ""])}


def first_table(task):
    """Read the training file of a task with your own files; without one, read its first file."""
    first, source = first_file(task), task.source
    if isinstance(first, file_readers.Table):
        return first
    return file_readers.read_table(first, (), task.columns, source.quotes, encoding=source.encoding)


def first_file(task):
    """Return the path or the table in memory that `first_table` reads."""
    return task.source.files.get("train") or next(iter(task.source.files.values()))

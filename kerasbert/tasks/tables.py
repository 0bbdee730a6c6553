"""What the kinds of data share: a table's columns to examples, a model's answers to files.

N examples. One class a kind, in a file of its name, all of the same methods and none with a state.
"""

import math
import warnings

from kerasbert._errors import did_you_mean
from kerasbert.data.names import composed, trimmed
from kerasbert.data.text_files import ending_of
from kerasbert.metrics import METRICS
from kerasbert.tasks import readers
from kerasbert.tasks.examples import Examples


class Data:
    """What is the same for most kinds."""

    # Of your own files: the columns of text and how many they may be, the column of labels, the
    # scores, and the file of predictions.
    columns = ("text",)
    column_counts = (1,)
    label = "label"
    metrics = ("accuracy",)
    submission = "predictions.tsv"

    def fields_of_files(self, task, given):
        """Further fields of the `Task` of your own files.

        Args:
            task: the `Task` so far.
            given: dict of `labels`, `choices`, `choice_start`, `metrics` and `settings`, as the
                caller of `file_task` gave them.
        """
        return {}

    def fields_of_model(self, model):
        """Further fields of the `Task` that a model does, beside the names of its classes."""
        return {}

    def settings(self, task):
        """The arguments of `from_preset` that make the new head."""
        return {"new_head": True}

    def open(self, task, path, split):
        """A file as a `readers.Table`, or as what `examples` takes."""
        source = task.source
        wanted = [source.columns.get(name, name) for name in task.columns]
        if is_test(split) and ending_of(path) == ".txt":
            return readers.read_lines(path, wanted, source.encoding)
        return readers.read_table(
            path,
            source.header,
            wanted,
            source.quotes,
            keep_broken=is_test(split),
            encoding=source.encoding,
        )

    def examples(self, task, table, split):
        """A table as `Examples`."""
        columns = tuple(texts_of(table, column_of(task, table, name)) for name in task.columns)
        y = self._labels(task, table, split)
        x = columns if len(columns) > 1 else columns[0]
        return examples_of(x, y, ids_of(task, table), gold=y)

    def check_model(self, task, model):
        """Refuse a model of other classes."""

    def count(self, data):
        """How many predictions there are."""
        return len(data)

    def groups(self, data):
        """What each example belongs to; those of one stay together where data are cut."""
        return range(len(data))

    def answers(self, task, model, data, batch_size):
        """`(predictions, probabilities)`, see `Task.answers`."""
        raise NotImplementedError

    def scores(self, task, data, predictions):
        return scores_of(task.metrics, data.gold, predictions)

    def scores_by_class(self, task, data, predictions):
        """See `Task.scores_by_class`."""
        return {}

    def _labels(self, task, table, split):
        """The labels of all rows; `None` where a test set has none."""
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
    """Whether a table has no such column, or nothing in it."""
    found = table.find(name)
    return found is None or all(written(value) == "" for value in table.columns[found])


def is_test(split):
    return split.startswith("test")


def column_of(task, table, name):
    """A column by the name that it has in the files, or else by the task's own."""
    return table.column(name_in(task, table, name), f" of the task '{task.name}'")


def name_in(task, table, name):
    """How a table calls a column: as the task's files do, or else by the task's own name."""
    there = task.source.columns.get(name, name)
    return name if table.find(there) is None and table.find(name) is not None else there


def texts_of(table, values):
    texts = []
    for position, value in enumerate(values):
        if isinstance(value, (list, dict)):
            raise ValueError(f"{table.place(position)}: {value!r} is no text.")
        # A table says of a text that is missing what it says of an empty one.
        texts.append(value if isinstance(value, str) else written(value))
    return texts


def ids_of(task, table):
    """What the examples are called; they are counted where that is not said, or not clear."""
    given, counted = task.source.id, list(range(len(table)))
    if not task.has_own_files:  # Of the papers' tasks the numbers are what is handed in.
        found = table.find(given)
        return counted if found is None else table.columns[found] or counted
    # KLUE's files call it "guid".
    names = [given] if given else ["id", "guid"]
    name = next((x for x in names if table.find(x) is not None), None)
    if name is not None:
        ids = table.column(name) if given else table.columns[table.find(name)]
        is_clear = len(set(map(str, ids))) == len(ids) and not any(i in (None, "") for i in ids)
        # Answers go by their ids: of two with one id, one would be lost.
        if is_clear or (given and task.head != "question_answering"):
            return ids
        if not given and task.head != "question_answering":
            return counted
        lack = f"whose column '{name}' gives not each of them a name of its own"
    elif given:
        lack = f"which has no column '{given}'"
    else:
        return counted
    warnings.warn(f"The examples of {table.source}, {lack}, are counted from 0.", stacklevel=2)
    return counted


def examples_of(x, y, ids=None, gold=None, sentences=None):
    rows = x[0] if isinstance(x, tuple) else x
    return Examples(x, y, list(range(len(rows))) if ids is None else ids, gold, sentences)


def written(value):
    """A label as a file writes it: 1.0, which pandas makes of 1 beside missing ones, is "1".

    >>> written(1.0), written(" ham "), written(None), written(math.nan)
    ('1', 'ham', '', '')
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_missing = value is None or isinstance(value, float) and math.isnan(value)
    # Files that were written on a Mac may have one label in two forms.
    return "" if is_missing else composed(trimmed(str(value)))


def by_size(text):
    """A key to sort labels by: numbers by their size, before names."""
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
    """The training file of a task of your own, or else the first one, as a table."""
    return readers.read_table(
        first_file(task), (), task.columns, task.source.quotes, encoding=task.source.encoding
    )


def first_file(task):
    """The path of that file."""
    return task.source.files.get("train") or next(iter(task.source.files.values()))

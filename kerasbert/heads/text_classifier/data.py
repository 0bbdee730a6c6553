"""Text classification data."""

import re
import unicodedata
import warnings
from collections import Counter

import numpy as np

from kerasbert.base.strict_json import to_json
from kerasbert.heads.base.annotations import as_lists
from kerasbert.heads.base.data import (
    Data,
    by_size,
    first_table,
    index_file,
    is_test,
    name_in,
    scores_of,
    unknown_value,
    written,
)
from kerasbert.heads.base.task_fields import Source
from kerasbert.metrics import MACRO, scores_by_class
from kerasbert.text.names import known_name, same_names

# Metrics for any number of classes per text, of rows of 0 and 1.
_OF_SEVERAL = ("macro_f1", "accuracy")
_SEPARATORS = re.compile(r"\s*[|;,#/、，；／・·]\s*")


class TextClassification(Data):
    """Data of texts with one class each, or with any number if the model has `multi_label`.

    Labels are class names. With `multi_label`, lists of names or a column of 0 and 1 per class.
    """

    takes_label_columns = True
    column_counts = (1, 2)
    metrics = ("accuracy", "macro_f1", "matthews")

    def fields_of_files(self, task, given):
        found, is_several = _classes(task, given["labels"])
        fields = {"labels": tuple(map(str, given["labels"] or found))}
        if not is_several:
            return fields
        if isinstance(task.label, tuple) and not same_names(fields["labels"], task.label):
            raise ValueError(
                f"labels={list(fields['labels'])!r} differ from the label columns "
                f"{', '.join(map(repr, task.label))}; omit `labels`."
            )
        metrics = given["metrics"] or _OF_SEVERAL
        for name in metrics:
            if name not in _OF_SEVERAL:
                raise ValueError(
                    f"metrics={name!r} is for one class per text, but these have any number; use "
                    "'macro_f1', the mean over the classes, or 'accuracy', the share of texts with "
                    "all classes right."
                )
        return {**fields, "metrics": tuple(metrics), "model": {"multi_label": True}}

    def fields_of_model(self, model):
        fields = {}
        if model.multi_label:
            fields = {"metrics": _OF_SEVERAL, "model": {"multi_label": True}}
        if model.labels is None:
            # Without class names, files contain indices.
            numbers = tuple(map(str, range(len(model.label_names))))
            fields["source"] = Source(values=numbers)
        return fields

    def settings(self, task):
        return {"labels": list(task.labels)}

    def _labels(self, task, table, split):
        if isinstance(task.label, tuple):
            return self._of_columns(task, table, split)
        name = name_in(task, table, task.label)
        found = table.find(name)
        if found is not None and found not in table.repeated:
            table.columns[found] = as_lists(table.columns[found])
        return super()._labels(task, table, split)

    def _of_columns(self, task, table, split):
        """Return each text's classes from columns of 0 and 1."""
        if not same_names(task.label, task.labels):
            raise ValueError(
                f"The label columns are {', '.join(map(repr, task.label))}, but the classes of "
                f"'{task.name}' are {', '.join(map(repr, task.labels))}; name a column for each."
            )
        names = [name_in(task, table, name) for name in task.label]
        columns = [table.columns.get(table.find(name), ()) for name in names]
        if is_test(split) and not any(written(value) for column in columns for value in column):
            return None
        columns = [table.column(name, f" for the labels of '{task.name}'") for name in names]
        rows = [[] for _ in range(len(table))]
        for name, column in zip(task.label, columns):
            for position, value in enumerate(column):
                text = written(value).lower()
                if text not in _YES | _NO:
                    raise ValueError(
                        f"{table.place(position)}: the label {value!r} in the column '{name}' must "
                        "be 0 or 1."
                    )
                if text in _YES:
                    rows[position].append(known_name(name, task.labels))
        return rows

    def _label(self, task, value, table, position):
        place = table.place(position)
        if task.has_one_class:
            if isinstance(value, list) and len(value) == 1:  # Annotation tools write such lists.
                value = value[0]
            if isinstance(value, list):
                raise ValueError(
                    f"{place}: the label is {value!r}, but the texts of '{task.name}' have one "
                    "class each."
                )
            return self._class(task, value, place)
        if value is None or isinstance(value, str) and not value.strip():
            raise ValueError(
                f"{place}: the label is missing; write [] for a text without classes, or remove "
                "the row."
            )
        rows = value if isinstance(value, list) else [value]
        chosen = {self._class(task, one, place) for one in rows}
        return [name for name in task.labels if name in chosen]

    def _class(self, task, value, place):
        if isinstance(value, (list, dict)):
            raise ValueError(
                f"{place}: the label {value!r} is not a class name; give a name, a list of names, "
                "or one column of 0 and 1 for each class."
            )
        text = written(value)
        known = known_name(text, task.labels)
        if known is not None:
            return known
        if text in task.source.values:
            return task.labels[task.source.values.index(text)]
        known = [*task.source.values, *task.labels]
        raise ValueError(unknown_value(f"{place}: the label", text, known))

    def check_model(self, task, model):
        if model.multi_label == task.has_one_class:
            kinds = ("one class per text", "any number of classes per text")
            raise ValueError(
                f"The model predicts {kinds[model.multi_label]}, but '{task.name}' has "
                f"{kinds[not model.multi_label]}; use a model that was trained on it."
            )
        if not same_names(self._names(task, model), task.labels):
            raise ValueError(
                f"The model's classes are {', '.join(model.label_names)}, but those of "
                f"'{task.name}' are {', '.join(task.labels)}; use a model that was trained on it."
            )

    def _names(self, task, model):
        """Return the model's class names in the task's spelling, or the task's."""
        if model.labels is None and model.num_classes == len(task.labels):
            return list(task.labels)
        return [known_name(name, task.labels) or name for name in model.label_names]

    def answers(self, task, model, data, batch_size):
        names = self._names(task, model)
        rows = model.predict_proba(data.x, batch_size)
        if model.multi_label:
            predictions = [[x for x, p in zip(names, row) if p > 0.5] for row in rows.tolist()]
        else:
            predictions = [names[i] for i in rows.argmax(axis=-1)]
        return predictions, [dict(zip(names, row)) for row in rows.tolist()]

    def scores(self, task, data, predictions):
        if not task.has_one_class:
            return _scores_of_several(task, data.gold, predictions)
        number = {name: number for number, name in enumerate(task.labels)}
        for name in predictions:
            if name not in number:
                raise ValueError(unknown_value("The prediction", name, task.labels))
        columns = ([number[name] for name in column] for column in (data.gold, predictions))
        return scores_of(task.metrics, *columns)

    def scores_by_class(self, task, data, predictions):
        if not task.has_one_class or not set(task.metrics) & set(MACRO.values()):
            return {}
        return scores_by_class(data.gold, predictions, task.labels)

    def files(self, task, data, predictions, threshold):
        names = dict(zip(task.labels, task.source.values or task.labels))
        if task.has_one_class:
            return index_file(task, data, [names[name] for name in predictions])
        rows = [[names[name] for name in row] for row in predictions]
        return index_file(task, data, [to_json(row, ensure_ascii=False) for row in rows])


_YES, _NO = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no"}


def _scores_of_several(task, gold, predictions):
    """Score lists of class names."""
    from sklearn.metrics import f1_score

    rows = [
        np.array([[name in row for name in task.labels] for row in column], int)
        for column in (gold, predictions)
    ]
    scores = {
        "macro_f1": lambda y, found: f1_score(y, found, average="macro", zero_division=0),
        "accuracy": lambda y, found: np.mean((y == found).all(axis=-1)),
    }
    return {name: float(scores[name](*rows)) for name in task.metrics}


def _classes(task, given):
    """Return the training file's classes, and whether texts may have several."""
    table = first_table(task)
    if isinstance(task.label, tuple):
        for name in task.label:
            table.column(name, " for the labels")
        return task.label, True
    if given and table.find(task.label) is None:  # A test set without labels.
        return given, False
    values = as_lists(table.column(name_in(task, table, task.label), " for the labels"))
    lists = [value for value in values if isinstance(value, list)]
    # Annotation tools also write single classes as lists.
    is_several = bool(lists) and any(len(value) != 1 for value in lists)
    flat = [x for value in values for x in (value if isinstance(value, list) else [value])]
    for position, value in enumerate(values):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, (list, dict)):
                raise ValueError(
                    f"{table.place(position)}: the label {value!r} is not a class name; give a "
                    "name, a list of names, or one column of 0 and 1 for each class."
                )
    found = set(map(written, flat)) - {""}
    if not found:
        raise ValueError(f"The column '{task.label}' of {table.source} has no labels.")
    if not is_several:
        _warn_of_joined(found, table.source)
    _warn_of_alike(found, table.source)
    return sorted(found, key=by_size), is_several


def _warn_of_alike(names, source):
    """Warn if names differ only in case, width or number format."""
    alike = {}
    for name in sorted(names):
        alike.setdefault(_plain(name), []).append(name)
    several = [group for group in alike.values() if len(group) > 1]
    if several:
        warnings.warn(
            f"{sum(map(len, several))} of the {len(names)} classes of {source} differ from another "
            "one only in case, width, spaces or number format, such as "
            f"{' and '.join(map(repr, several[0]))}, and count as separate classes. Write each "
            "class in one form.",
            stacklevel=2,
        )


def _plain(name):
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return by_size(text)[:2] if by_size(text)[0] == 0 else text


def _warn_of_joined(names, source):
    """Warn if names look like several joined class names."""
    parts = {name: _SEPARATORS.split(name) for name in names}
    counts = Counter(part for several in parts.values() for part in set(several))
    joined = [
        name
        for name, several in parts.items()
        if len(several) > 1 and all(part and counts[part] > 1 for part in several)
    ]
    if joined:
        one = min(joined)
        warnings.warn(
            f"{len(joined)} of the {len(names)} classes of {source} join other classes, such as "
            f"{one!r}, and count as separate classes. For several classes per text, write lists "
            f"({parts[one]}), or one column of 0 and 1 for each class.",
            stacklevel=2,
        )

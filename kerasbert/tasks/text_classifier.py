"""Classes of texts."""

from kerasbert.preprocessors.texts import known_name
from kerasbert.tasks.tables import (
    Data,
    first_table,
    index_file,
    scores_of,
    unknown_value,
    written,
)
from kerasbert.tasks.task import Source


class TextClassification(Data):
    """Names of classes."""

    column_counts = (1, 2)
    metrics = ("accuracy", "macro_f1", "matthews")

    def fields_of_files(self, task, given):
        return {"labels": tuple(given["labels"] or _classes(task))}

    def fields_of_model(self, model):
        if model.labels is not None:
            return {}
        # Of classes without names, files write the numbers.
        return {"source": Source(values=tuple(map(str, range(len(model.label_names)))))}

    def settings(self, task):
        return {"labels": list(task.labels)}

    def _label(self, task, value, table, position):
        text = written(value)
        known = known_name(text, task.labels)
        if known is not None:
            return known
        if text in task.source.values:
            return task.labels[task.source.values.index(text)]
        known = [*task.source.values, *task.labels]
        raise ValueError(unknown_value(f"{table.place(position)}: the label", text, known))

    def check_model(self, task, model):
        if sorted(self._names(task, model)) != sorted(task.labels):
            raise ValueError(
                f"The model's classes are {', '.join(model.label_names)}, but those of "
                f"'{task.name}' are {', '.join(task.labels)}; take a model that was trained on it."
            )

    def _names(self, task, model):
        """The names of the model's classes, or the task's where it has as many and no names."""
        unnamed = model.labels is None and model.num_classes == len(task.labels)
        return list(task.labels) if unnamed else model.label_names

    def answers(self, task, model, data, batch_size):
        names = self._names(task, model)
        rows = model.predict_proba(data.x, batch_size)
        predictions = [names[i] for i in rows.argmax(axis=-1)]
        return predictions, [dict(zip(names, row)) for row in rows.tolist()]

    def scores(self, task, data, predictions):
        number = {name: number for number, name in enumerate(task.labels)}
        for name in predictions:
            if name not in number:
                raise ValueError(unknown_value("The prediction", name, task.labels))
        columns = ([number[name] for name in column] for column in (data.gold, predictions))
        return scores_of(task.metrics, *columns)

    def files(self, task, data, predictions, threshold):
        written = dict(zip(task.labels, task.source.values or task.labels))
        return index_file(task, data, [written[name] for name in predictions])


def _classes(task):
    """The names of the classes in the training file, numbers by size."""
    table = first_table(task)
    values = {written(value) for value in table.column(task.label, " for the labels")} - {""}
    if not values:
        raise ValueError(f"The column '{task.label}' of {table.source} holds no labels.")

    def by_size(text):
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return sorted(values, key=by_size)

"""Reranking data."""

import dataclasses
import math

from kerasbert.heads.base.data import Data, column_of, first_table, index_file


class Reranking(Data):
    """Data of query-text pairs with relevance grades of at least 0, and metrics per query.

    Models are trained on grades that are divided by the highest grade in the training file.
    """

    columns = ("query", "text")
    column_counts = (2,)
    metrics = ("ndcg@10", "mrr@10")

    def fields_of_files(self, task, given):
        table = first_table(task)
        if table.find(task.label) is None and "train" not in task.source.files:
            return {"range": (0.0, 1.0)}
        values = column_of(task, table, task.label)
        grades = [self._label(task, value, table, i) for i, value in enumerate(values)]
        if not any(grades):
            raise ValueError(
                f"The column '{task.label}' of {table.source} has no label above 0; label relevant "
                "texts 1, or by grades such as 1 to 3."
            )
        return {"range": (0.0, max(grades))}

    def fields_of_model(self, model):
        return {"range": (0.0, 1.0)}

    def examples(self, task, table, split):
        data = super().examples(task, table, split)
        if data.y is None:
            return data
        most = task.range[1]
        return dataclasses.replace(
            data,
            y=[min(grade / most, 1.0) for grade in data.y],
            gold=list(zip(data.x[0], data.y, strict=True)),
        )

    def groups(self, data):
        return data.x[0]

    def _label(self, task, value, table, position):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(
                f"{table.place(position)}: the label {value!r} must be a number of at least 0."
            )
        return number

    def answers(self, task, model, data, batch_size):
        return model.score(data.x, batch_size).tolist(), None

    def files(self, task, data, predictions, threshold):
        return index_file(task, data, [f"{score:.6f}" for score in predictions])

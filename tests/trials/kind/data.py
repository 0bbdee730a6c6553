"""Counts of texts."""

from kerasbert.heads.base.data import Data, index_file


class TextCounting(Data):
    """Numbers from 0."""

    metrics = ("mean_absolute_error",)

    def _label(self, task, value, table, position):
        if not str(value).isdecimal():
            raise ValueError(f"{table.place(position)}: the label {value!r} is no integer >= 0.")
        return float(value)

    def answers(self, task, model, data, batch_size):
        return model.count(data.x, batch_size).tolist(), None

    def files(self, task, data, predictions, threshold):
        return index_file(task, data, [f"{number:.3f}" for number in predictions])

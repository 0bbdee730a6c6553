"""Text regression data."""

import math

from kerasbert.heads.base.data import Data, index_file


class TextRegression(Data):
    """Data of texts with one number each."""

    column_counts = (1, 2)
    metrics = ("pearson", "spearman", "mean_absolute_error")

    def _label(self, task, value, table, position):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"{table.place(position)}: the label {value!r} must be a finite number."
            )
        return number

    def answers(self, task, model, data, batch_size):
        return model.score(data.x, batch_size).tolist(), None

    def files(self, task, data, predictions, threshold):
        least, most = task.range or (-math.inf, math.inf)
        numbers = [f"{min(max(number, least), most):.6f}" for number in predictions]
        return index_file(task, data, numbers)

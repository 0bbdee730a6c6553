"""Multiple-choice data."""

from kerasbert.heads.base.annotations import as_lists
from kerasbert.heads.base.data import Data, column_of, examples_of, ids_of, texts_of, written


class MultipleChoice(Data):
    """Prompts with choices and the index of the correct one."""

    columns = ("prompt",)

    def fields_of_files(self, task, given):
        return {"choices": tuple(given["choices"]), "choice_start": given["choice_start"]}

    def fields_of_model(self, model):
        return {"choices": ("choices",)}

    def examples(self, task, table, split):
        (prompts,) = (texts_of(table, column_of(task, table, name)) for name in task.columns)
        if len(task.choices) == 1:
            rows = as_lists(column_of(task, table, task.choices[0]))
            choices = [self._list(row, table, i) for i, row in enumerate(rows)]
        else:
            columns = [texts_of(table, column_of(task, table, name)) for name in task.choices]
            # In rows with fewer choices, the last columns are empty.
            choices = [_without_empty(list(row)) for row in zip(*columns)]
        if task.choice_start:
            starts = texts_of(table, column_of(task, table, task.choice_start))
            choices = [
                [f"{start} {choice}".strip() for choice in row]
                for start, row in zip(starts, choices)
            ]
        for position, row in enumerate(choices):
            if not row:
                raise ValueError(f"{table.place(position)} has no choices.")
        y = self._labels(task, table, split)
        for position, label in enumerate(y or ()):
            if not 0 <= label < len(choices[position]):
                raise ValueError(
                    f"{table.place(position)}: the label {label} is not the index of one of its "
                    f"{len(choices[position])} choices, counted from 0."
                )
        return examples_of((prompts, choices), y, ids_of(task, table), gold=y)

    def _list(self, row, table, position):
        if not isinstance(row, list) or not all(isinstance(choice, str) for choice in row):
            raise ValueError(
                f"{table.place(position)}: the choices are {row!r}; give a list of strings, or "
                "name one column per choice."
            )
        return row

    def _label(self, task, value, table, position):
        text = written(value)
        if not text.isdecimal():
            raise ValueError(
                f"{table.place(position)}: the label {value!r} is not the index of a choice, "
                "counted from 0."
            )
        return int(text)

    def answers(self, task, model, data, batch_size):
        rows = model.choose(*data.x, batch_size=batch_size)
        return [row["index"] for row in rows], [row["scores"] for row in rows]

    def files(self, task, data, predictions, threshold):
        lines = [f"{i},{choice}" for i, choice in zip(data.ids, predictions)]
        return {task.submission: "\n".join([",pred", *lines, ""])}


def _without_empty(row):
    while row and not row[-1]:
        row.pop()
    return row

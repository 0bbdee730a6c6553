"""Question answering data."""

import math
import re
from dataclasses import replace

from kerasbert.base.strict_json import to_json
from kerasbert.data.text_files import ending_of
from kerasbert.heads.base import file_readers
from kerasbert.heads.base.data import (
    Data,
    column_of,
    examples_of,
    found_answers,
    ids_of,
    is_test,
    texts_of,
)
from kerasbert.metrics import METRICS, with_threshold


class QuestionAnswering(Data):
    """Data of questions with contexts, and with answers in SQuAD's format."""

    columns = ("question", "context")
    column_counts = (2,)
    label = "answers"
    metrics = ("squad",)
    submission = "predictions.json"

    def fields_of_files(self, task, given):
        fields = {}
        if given["settings"] is None:
            fields["settings"] = replace(task.settings, sequence_length=384)
        if given["metrics"] is None:
            gold = task.read(next(iter(task.source.files))).gold
            if gold is not None and not all(gold):  # Some questions are unanswerable.
                fields["metrics"] = ("squad2",)
        return fields

    def read_file(self, task, path, split):
        encoding = task.source.encoding
        if ending_of(path) == ".json" and (
            not task.has_own_files or file_readers.is_squad(path, encoding)
        ):
            return file_readers.read_squad(path, encoding)
        return super().read_file(task, path, split)

    def examples(self, task, table, split):
        questions, contexts = (
            texts_of(table, column_of(task, table, name)) for name in task.columns
        )
        ids = ids_of(task, table, unique=True)
        if is_test(split) and table.find(task.label) is None:
            return examples_of((questions, contexts), None, ids)
        rows = [
            self._answers(row, context, table, position)
            for position, (row, context) in enumerate(
                zip(table.column(task.label, f" for the answers of '{task.name}'"), contexts)
            )
        ]
        if any(row is None for row in rows):
            return examples_of((questions, contexts), None, ids)
        y = [aligned(row["text"], row["answer_start"], text) for row, text in zip(rows, contexts)]
        lost = [i for i, (row, found) in enumerate(zip(rows, y)) if row["text"] and found is None]
        data = examples_of((questions, contexts), y, ids, gold=[row["text"] for row in rows])
        return found_answers(data, lost, split, table.source, "in their contexts", "question")

    def _answers(self, row, context, table, position):
        """Return a dict of lists `text` and `answer_start`, or `None` for unlabeled data."""
        if row is None:
            return None
        if isinstance(row, list) and all(isinstance(one, dict) for one in row):
            row = {name: [one.get(name) for one in row] for name in ("text", "answer_start")}
        if isinstance(row, str):  # Tables may have answers without positions.
            return {"text": [row] if row else [], "answer_start": [max(context.find(row), 0)]}
        if isinstance(row, dict) and {"text", "answer_start"} <= set(row):
            text, starts = row["text"], row["answer_start"]
            if isinstance(text, str):
                text, starts = [text], [starts]
            if len(text) == len(starts):
                return {"text": list(text), "answer_start": [int(start) for start in starts]}
        raise ValueError(
            f"{table.place(position)}: the answers are {row!r}; give a string, or 'text' and "
            "'answer_start' lists of equal length."
        )

    def answers(self, task, model, data, batch_size):
        # Scores and submissions need the best span even of a question without an answer.
        threshold = None if model.null_threshold is None else math.inf
        found = model.answer(*data.x, null_threshold=threshold, batch_size=batch_size)
        rows = [answers[0] for answers in found]
        predictions = [{name: row[name] for name in ("answer", "null_score")} for row in rows]
        return predictions, [row["score"] for row in rows]

    def tune(self, model, scores):
        if "best_f1_threshold" in scores:
            model.null_threshold = scores["best_f1_threshold"]

    def scores(self, task, data, predictions):
        answers = [row["answer"] for row in predictions]
        result = {}
        for name in task.metrics:
            more = ([row["null_score"] for row in predictions],) if name == "squad2" else ()
            result.update(METRICS[name](data.gold, answers, *more))
        return result

    def files(self, task, data, predictions, threshold):
        answers = [row["answer"] for row in predictions]
        nulls = [row["null_score"] for row in predictions]
        if threshold is not None:
            answers = with_threshold(answers, nulls, threshold)
        files = {task.submission: dict(zip(data.ids, answers))}
        if "squad2" in task.metrics:
            odds = (math.exp(-abs(score)) for score in nulls)  # At most 1: no overflow.
            files["na_prob.json"] = {
                i: (1 if score > 0 else odd) / (1 + odd)
                for i, score, odd in zip(data.ids, nulls, odds)
            }
        return {
            name: to_json(content, ensure_ascii=False, indent=1) + "\n"
            for name, content in files.items()
        }


def aligned(texts, starts, context):
    """Find the span `(start, end)` of an answer in its context, `end` exclusive.

    Return the first answer at its position, else the nearest occurrence of the first answer in the
    context (white space may differ), else `None`.

    >>> aligned(["Rome"], [9], "In old Rome")
    (7, 11)
    >>> aligned(["ancient  city"], [0], "an ancient city"), aligned(["Paris"], [0], "In old Rome")
    ((3, 15), None)
    """
    trimmed = []
    for text, start in zip(texts, starts):
        start += len(text) - len(text.lstrip())
        text = text.strip()
        if text and start >= 0 and context.startswith(text, start):
            return start, start + len(text)
        if text:
            trimmed.append((text, start))
    for text, start in trimmed:
        pattern = r"\s+".join(map(re.escape, text.split()))
        found = [match.span() for match in re.finditer(pattern, context)]
        if found:
            return min(found, key=lambda span: abs(span[0] - start))
    return None

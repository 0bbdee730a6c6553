"""`evaluate` and `predict`: apply a trained model to a task's data or to a file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from kerasbert import converter, presets
from kerasbert.base.files import json_in
from kerasbert.base.notebook import Bar, in_notebook
from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.frames import is_path, table_of
from kerasbert.heads.base.task import BertTask
from kerasbert.kinds import kind_of
from kerasbert.tasks import get_task
from kerasbert.tasks.own import model_task
from kerasbert.training.recording import Pulse
from kerasbert.training.results import Results

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import AnyPath

# File with a fine-tuned preset's task, method and scores.
RECORD = "finetuning.json"
_CHUNK = 2048  # Examples between updates of the progress bar.


def evaluate(
    model: Any,
    data: Any = None,
    *,
    task: Any = None,
    split: str = "dev",
    columns: Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    encoding: str | None = None,
    batch_size: int = 32,
    precision: str | None = None,
    limit: int | None = None,
    verbose: bool = True,
) -> dict[str, Any]:
    """Score a model on labeled examples.

    Args:
        model: string or model. The `model` folder of `finetune`, another preset with the task's
            head, or a task model.
        data: a file in the format of the training files, or a folder with the official files of
            `task`; `None` loads them with the `datasets` library. Or a table in memory, as for
            `kerasbert.tasks.file_task`.
        task: string or `Task`. `None` means the task that the model was trained on, or, if this
            task was not recorded, a task for files.
        split: the split of a folder or the library.
        columns: list of strings. Text columns, if not the task's.
        label: string or list of strings. Label column, if not the task's; or a 0/1 column per
            class.
        encoding: encoding of a file that is not UTF-8, such as "cp949" or "shift_jis".
        batch_size: int.
        precision: string, such as "mixed_bfloat16"; `None` means Keras' global policy.
        limit: maximum number of examples, from the start.
        verbose: whether to show progress.

    Returns:
        Dict of `task`, `split`, `examples` (their number), `metric` (name of the main score),
        `scores`, `classes` (see `Task.scores_by_class`) and `published`.

    Raises:
        ValueError: if the model or the data do not fit the task.
    """
    model, task, _ = open_model(model, task, precision)
    file, folder = _file_or_folder(data)
    examples = read_data(
        task, file, folder, "dev" if file else split, columns, label, encoding, limit
    )
    predictions, _ = answer_all(task, model, examples, batch_size, verbose)
    return Results(
        {
            "task": task.name,
            "split": _split_name(file, split),
            "examples": len(examples),
            "metric": task.main_metric,
            "scores": task.score(examples, predictions),
            "classes": task.scores_by_class(examples, predictions),
            "published": [vars(published) for published in task.published],
        }
    )


def predict(
    model: Any,
    data: Any = None,
    output: AnyPath | None = None,
    *,
    task: Any = None,
    split: str = "test",
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    batch_size: int = 32,
    precision: str | None = None,
    limit: int | None = None,
    verbose: Any = True,
) -> dict[str, Any]:
    """Predict examples, and optionally write a submission.

    Args:
        model, data, task, columns, encoding, batch_size, precision, limit, verbose: see `evaluate`.
            Files need no labels. A `.txt` file has one text per line, unless its first line names
            columns.
        output: folder for the submission files; `None` writes none.
        split: the split of a folder or the library.

    Returns:
        Dict of `task`, `split`, `ids` (of the examples), `predictions` and `probabilities` (see
        `Task.answers`) and `files` (paths).

    Raises:
        ValueError: if the model or the data do not fit the task.
    """
    model, task, threshold = open_model(model, task, precision)
    file, folder = _file_or_folder(data)
    examples = read_data(
        task, file, folder, "test" if file else split, columns, None, encoding, limit
    )
    predictions, probabilities = answer_all(task, model, examples, batch_size, verbose)
    files = [] if output is None else task.write(output, examples, predictions, threshold)
    return Results(
        {
            "task": task.name,
            "split": _split_name(file, split),
            "ids": examples.ids,
            "predictions": predictions,
            "probabilities": probabilities,
            "files": files,
        }
    )


def open_model(source, task=None, precision=None):
    """Load a model, and return `(model, task, threshold)`.

    Raises:
        ValueError: if the model does not fit the task.
    """
    task = get_task(task) if isinstance(task, str) else task
    if isinstance(source, BertTask):
        task = task or model_task(source)
        task.check_model(source)
        return source, task, None
    directory = presets.resolve(source)
    record = json_in(directory, RECORD)
    if task is None and "task" in record:
        task = Task.from_dict(record["task"], os.path.join(directory, RECORD))
    found = converter.class_in(directory)
    if task is None and not getattr(kind_of(found), "data", ""):
        raise ValueError(
            f"'{source}' is a {found.__name__}, which has no head for a task; fine-tune it with "
            "`kerasbert finetune`."
        )
    if task is not None and not issubclass(found, task.model_class):
        raise ValueError(
            f"'{source}' is a {found.__name__}, but the task '{task.name}' needs a "
            f"{task.model_class.__name__}; fine-tune it with `kerasbert finetune`."
        )
    model = found.from_preset(source, **({} if precision is None else {"dtype": precision}))
    task = task or model_task(model)
    task.check_model(model)
    return model, task, record.get("scores", {}).get("best_f1_threshold")


def answer_all(task, model, examples, batch_size=32, verbose=True):
    """Run `Task.answers`, with progress for many examples."""
    if not verbose or len(examples) <= _CHUNK:
        return task.answers(model, examples, batch_size)
    parts = [slice(start, start + _CHUNK) for start in range(0, len(examples), _CHUNK)]
    rows, probabilities = [], []
    for part in _shown(parts):
        found, probable = task.answers(model, examples.take(part), batch_size)
        rows += found
        probabilities = None if probable is None else probabilities + probable
    return rows, probabilities


def _shown(parts):
    """Yield the parts, and show progress with a bar or, in files and pipes, with lines."""
    if in_notebook():
        bar = Bar()
        for number, part in enumerate(parts):
            bar.show(number, len(parts), "predicting")
            yield part
        bar.show(len(parts), len(parts), "predicted")
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(parts, "Predicting", console=Console(stderr=True))
        return
    pulse = Pulse(lambda text: print(text, file=sys.stderr, flush=True))
    for number, part in enumerate(parts):
        pulse.tick(lambda number=number: f"predicting, {number / len(parts):.0%} done")
        yield part


def _file_or_folder(data):
    """Return `(file, folder)`, of which `data` is one and the other `None`, or both are `None`.

    A table in memory counts as a file.
    """
    if data is None:
        return None, None
    if not is_path(data):
        return table_of(data, "data"), None
    path = os.path.expanduser(os.fspath(data))
    if os.path.isfile(path):
        return path, None
    if os.path.isdir(path):
        return None, path
    raise ValueError(f"There is no file or folder '{data}'.")


def _split_name(file, split):
    """Return the name of the examples in results."""
    if file is None:
        return split
    return os.path.basename(file) if is_path(file) else "data"


def read_data(task, file, folder, split, columns, label, encoding, limit):
    """Read a task's examples from a file, a folder or the library."""
    task = _with_columns(task, columns, label)
    if file is not None:
        task = task.with_files(encoding, **{split: file})
    elif not task.source.files and task.trained_on is None:
        raise ValueError(
            f"The task '{task.name}' has no data of its own; pass a file, or name a task."
        )
    return task.read(split, folder, limit)


def _with_columns(task, columns, label):
    """Return the task with other column names."""
    if not columns and label is None:
        return task
    names = dict(zip(task.columns, columns or ()))
    if columns and len(columns) != len(task.columns):
        raise ValueError(
            f"The task '{task.name}' reads {len(task.columns)} text columns "
            f"({', '.join(task.columns)}), got {len(columns)}; name each."
        )
    if isinstance(label, (list, tuple)) and not task.model.get("multi_label"):
        raise ValueError(
            f"label={list(label)!r} names a column per class, which is for multi-label models; "
            f"'{task.name}' reads one label column."
        )
    if isinstance(label, (list, tuple)) or (label is not None and isinstance(task.label, tuple)):
        # The file may have lists of labels or 0/1 columns, whichever the training files had.
        task = replace(task, label=label if isinstance(label, str) else tuple(label))
    elif label is not None:
        names[task.label] = label
    # Columns of CoNLL files have numbers instead of names.
    names = {name: int(v) if v.lstrip("-").isdecimal() else v for name, v in names.items()}
    source = task.source
    return replace(task, source=replace(source, columns={**source.columns, **names}))

"""`file_task` and `model_task`: data tasks for your own files and models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kerasbert.base.errors import check_choice
from kerasbert.heads.base.data import written
from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.task_fields import Settings, Source
from kerasbert.kinds import KINDS, kinds_with
from kerasbert.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# One run with the preset's learning rate and at least 3 epochs.
_SETTINGS = Settings((32,), None, None)


def file_task(
    train: Any = None,
    dev: Any = None,
    test: Any = None,
    *,
    head: str = "text_classifier",
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    labels: Any = None,
    choices: Sequence[str] = ("choices",),
    choice_start: str = "",
    id: str = "",
    metrics: Sequence[str] | None = None,
    settings: Settings | None = None,
    quotes: bool | None = None,
    encoding: str | None = None,
    name: str = "own",
) -> Task:
    """Make a task from your own files.

    Tables are `.csv`, `.tsv`, `.jsonl`, `.json`, `.parquet` or `.xlsx`. Questions may also be in
    SQuAD's JSON format. Tagged words may be in a file with any other extension, with one word per
    line and CoNLL columns; in a table with one word per row and a column "sentence" of sentence
    numbers; or in a table with a list of words per row. Texts with spans, lists of `[start, end,
    type]`, are tagged by characters. Exports of doccano and Label Studio are read too.

    Tables may be in memory: a data frame of pandas or polars, a PyArrow table, a `datasets.Dataset`
    (with the names of its classes), or a dict of columns.

    Args:
        train, dev, test: strings, paths of files, or tables in memory. At least one is required.
        head: string. See `Task`.
        columns: string or list of strings. Text columns, two for pairs. By head, they default to
            "text"; "question" and "context"; "prompt"; "query" and "text"; or "tokens", lists of
            words. For CoNLL columns, the number of the word column, 0 by default.
        label: label column. The default is "answers" for questions, "tags" for lists of words, and
            otherwise "label" (for reranking, relevance grades from 0). For CoNLL columns, a column
            number, by default the last. A list names a column of 0 and 1 for each class.
        labels: list of strings. Classes in order, or tags. Defaults to those in the training file,
            or else in the first file, sorted.
        choices: list of strings. One column per choice, or a single column with lists.
        choice_start: column of the text with which all choices of a prompt start.
        id: column of the ids in the prediction file; defaults to "id" if its values are unique.
        metrics: list of names in `kerasbert.metrics.METRICS`. The first one selects models. With
            more than two classes, "f1", "precision" and "recall" are means over the classes.
        settings: a `Settings`; defaults to one run: batches of 32, the preset's learning rate, and
            3 epochs or, for few examples, more (see `min_steps` of `kerasbert.finetune`).
        quotes: whether values may be enclosed in `"`; by default only in `.csv`.
        encoding: encoding of files that are not UTF-8, such as "cp949" or "shift_jis", which is
            read as its superset cp932 (and "euc-kr" as cp949).
        name: string.

    Returns:
        A `Task`; `task.read("train")` reads the file.

    Raises:
        ValueError: for a file that is missing or lacks required columns or labels.

    >>> task = file_task({"text": ["Hi", "Claim your prize"], "label": ["ham", "spam"]})
    >>> task.labels, task.read("train").x
    (('ham', 'spam'), ['Hi', 'Claim your prize'])
    """
    check_choice("head", head, [kind.name for kind in kinds_with("data")])
    if train is dev is test is None:
        raise ValueError("A task of your own needs a file: pass train, dev or test.")
    kind = KINDS[head].load("data")
    columns = [columns] if isinstance(columns, (str, int)) else columns
    columns = kind.columns if columns is None else tuple(map(str, columns))
    if isinstance(label, (list, tuple)):
        if not kind.takes_label_columns:
            raise ValueError(
                f"label={list(label)!r} names one column of 0 and 1 per class, which is for "
                f"text_classifier; a {head} has one column of labels."
            )
        label = tuple(map(written, label))
    else:
        label = kind.label if label is None else str(label)
    if len(columns) not in kind.column_counts:
        raise ValueError(
            f"A {head} reads {' or '.join(map(str, kind.column_counts))} columns of text, not "
            f"{len(columns)} ({', '.join(columns)})."
        )
    for metric in metrics or ():
        check_choice("metrics", metric, METRICS)
    # Numbers among the column names are those of columns in CoNLL files.
    given = (*columns, label) if isinstance(label, str) else columns
    numbers = {text: int(text) for text in given if text.lstrip("-").isdecimal()}
    task = Task(
        name=name,
        title=name,
        head=head,
        columns=columns,
        label=label,
        metrics=tuple(metrics or kind.metrics),
        settings=settings or _SETTINGS,
        source=Source(columns=numbers, id=id, quotes=quotes),
        submission=kind.submission,
    ).with_files(encoding, train=train, dev=dev, test=test)
    given = {
        "labels": None if labels is None else [written(label) for label in labels],
        "choices": choices,
        "choice_start": choice_start,
        "metrics": metrics,
        "settings": settings,
    }
    return replace(task, **kind().fields_of_files(task, given))


def model_task(model):
    """Return the task that a model performs, for files with the default columns.

    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> model_task(BertTextClassifier(backbone, labels=["ham", "spam"])).labels
    ('ham', 'spam')
    """
    head = getattr(model, "kind", None)
    if head not in KINDS or not KINDS[head].data:
        known = ", ".join(kind.model for kind in kinds_with("data"))
        raise ValueError(
            f"A {type(model).__name__} makes no predictions that could be scored; use one of "
            f"{known}."
        )
    kind = KINDS[head].load("data")()
    task = Task(
        name="own",
        title="own",
        head=head,
        columns=kind.columns,
        label=kind.label,
        labels=tuple(getattr(model, "label_names", ())),
        metrics=kind.metrics,
        settings=_SETTINGS,
        submission=kind.submission,
    )
    return replace(task, **kind.fields_of_model(model))

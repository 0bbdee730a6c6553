"""Your own files as a task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kerasbert._errors import check_choice
from kerasbert.kinds import KINDS, kinds_with
from kerasbert.metrics import METRICS
from kerasbert.tasks.tables import written
from kerasbert.tasks.task import Settings, Source, Task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# One run, at the preset's rate; the grid of the papers is for their tasks.
_SETTINGS = Settings((32,), None, (3,))


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
    """Make a task of your own files.

    Tables are `.csv`, `.tsv`, `.jsonl`, `.json`, `.parquet` or `.xlsx` (see
    `readers.read_table`). Questions may be in SQuAD's JSON. Words with tags may be in CoNLL's
    columns, one word a line, in a file of any other ending; in a table with a word a row and a
    column "sentence" with the number of its sentence; or as lists. Texts with spans, a list of
    `[start, end, type]` each, are tagged by characters. Exports of doccano and Label Studio are
    read as they are.

    Args:
        train, dev, test: strings, the paths of files, at least one of them.
        head: string. See `Task`.
        columns: string, or list of strings. Those of the text: one, or two for pairs ("text" by
            default); "question" and "context"; "prompt"; "query" and "text"; of a table of lists
            of words "tokens". Of CoNLL's columns the number of the words', 0 by default.
        label: string. The column of labels, "label" by default, of texts for a query numbers from
            0 on; "answers" of questions, "tags" of lists of words. Of CoNLL's columns their
            number, the last one by default.
        labels: list of strings. The classes in their order, or the tags; by default those of the
            training file (without one of the first one there is), sorted.
        choices: list of strings. The columns of the choices, or one column of lists.
        choice_start: string. A column that all choices begin with.
        id: string. The column of what an example is called in the file of predictions; by
            default "id", where each row has another one.
        metrics: list of names in `kerasbert.metrics.METRICS`. The first one chooses models.
            Above two classes "f1", "precision" and "recall" are means over the classes.
        settings: a `Settings`; by default of one run, with the middle of the papers' values.
        quotes: bool. Whether `"` may stand around a value; so by default in `.csv` only.
        encoding: string. Of files that are not UTF-8, such as "cp949" or "shift_jis", which is
            read as its superset cp932 (and "euc-kr" as cp949).
        name: string.

    Returns:
        A `Task`; `task.read("train")` reads the file.

    Raises:
        ValueError: for a file that is missing, or has not what it should have.
    """
    check_choice("head", head, [kind.name for kind in kinds_with("tasks")])
    if train is dev is test is None:
        raise ValueError("A task of your own needs a file: pass train, dev or test.")
    kind = KINDS[head].load("tasks")
    columns = [columns] if isinstance(columns, (str, int)) else columns
    columns = kind.columns if columns is None else tuple(map(str, columns))
    if isinstance(label, (list, tuple)):
        if head != "text_classifier":
            raise ValueError(
                f"label={list(label)!r} is for classes of texts, a column of 0 and 1 each; a "
                f"{head} has one column of labels."
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
    # Numbers of CoNLL's columns.
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
    """The task that a model does, on files with the columns that people need not name.

    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> model_task(BertTextClassifier(backbone, labels=["ham", "spam"])).labels
    ('ham', 'spam')
    """
    head = getattr(model, "kind", None)
    if head not in KINDS or not KINDS[head].tasks:
        known = ", ".join(kind.models for kind in kinds_with("tasks"))
        raise ValueError(
            f"A {type(model).__name__} gives no answers that could be scored; take one of {known}."
        )
    kind = KINDS[head].load("tasks")()
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

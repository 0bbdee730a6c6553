"""Your own files as a task."""

import os
from dataclasses import replace

from kerasbert import converter
from kerasbert.data.tagging import OUTSIDE, TagSet
from kerasbert.metrics import METRICS
from kerasbert.tasks import heads, readers
from kerasbert.tasks.task import Settings, Source, Task

_METRICS = {
    "text_classifier": ("accuracy", "macro_f1", "matthews"),
    "text_regressor": ("pearson", "spearman", "mean_absolute_error"),
    "multiple_choice": ("accuracy",),
    "question_answering": ("squad",),
    "token_classifier": ("entities",),
}
# Columns that people need not name.
_COLUMNS = {
    "text_classifier": ("text",),
    "text_regressor": ("text",),
    "multiple_choice": ("prompt",),
    "question_answering": ("question", "context"),
    "token_classifier": ("tokens",),
}
_LABELS = {"question_answering": "answers", "token_classifier": "tags"}
# One run, at the preset's rate; the grid of the papers is for their tasks.
_SETTINGS = Settings((32,), None, (3,))


def file_task(
    train=None,
    dev=None,
    test=None,
    *,
    head="text_classifier",
    columns=None,
    label=None,
    labels=None,
    choices=("choices",),
    choice_start="",
    id="",
    metrics=None,
    settings=None,
    quotes=None,
    encoding=None,
    name="own",
):
    """Make a task of your own files.

    Tables are `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet` (see `readers.read_table`).
    Questions may be in SQuAD's JSON, and words with tags in CoNLL's columns, one word a line, in a
    file of any other ending.

    Args:
        train, dev, test: strings, the paths of files, at least one of them.
        head: string. See `Task`.
        columns: list of strings. Those of the text: one, or two for pairs ("text" by default);
            "question" and "context"; "prompt"; of a table of lists of words "tokens". Of CoNLL's
            columns the number of the words', 0 by default.
        label: string. The column of labels, "label" by default; "answers" of questions, "tags"
            of lists of words. Of CoNLL's columns their number, the last one by default.
        labels: list of strings. The classes in their order, or the tags; by default those of the
            training file (without one of the first one there is), sorted.
        choices: list of strings. The columns of the choices, or one column of lists.
        choice_start: string. A column that all choices begin with.
        id: string. The column of what an example is called in the file of predictions; by
            default "id", where each row has another one.
        metrics: list of names in `kerasbert.metrics.METRICS`. The first one chooses models.
        settings: a `Settings`; by default of one run, with the middle of the papers' values.
        quotes: bool. Whether `"` may stand around a value; so by default in `.csv` only.
        encoding: string. Of files that are not UTF-8, such as "cp949" or "shift_jis".
        name: string.

    Returns:
        A `Task`; `task.read("train")` reads the file.

    Raises:
        ValueError: for a file that is missing, or has not what it should have.
    """
    if head not in heads.HEADS:
        raise ValueError(f"head={head!r} is unknown; use one of {', '.join(heads.HEADS)}.")
    if train is dev is test is None:
        raise ValueError("A task of your own needs a file: pass train, dev or test.")
    columns = _COLUMNS[head] if columns is None else tuple(map(str, columns))
    label = _LABELS.get(head, "label") if label is None else str(label)
    wanted = {"question_answering": (2,), "text_classifier": (1, 2), "text_regressor": (1, 2)}
    if len(columns) not in wanted.get(head, (1,)):
        raise ValueError(
            f"A {head} reads {' or '.join(map(str, wanted.get(head, (1,))))} columns of text, not "
            f"{len(columns)} ({', '.join(columns)})."
        )
    for metric in metrics or ():
        if metric not in METRICS:
            raise ValueError(f"There is no metric '{metric}'; use one of {', '.join(METRICS)}.")
    # Numbers of CoNLL's columns.
    numbers = {text: int(text) for text in (*columns, label) if text.lstrip("-").isdecimal()}
    task = Task(
        name=name,
        title=name,
        head=head,
        columns=columns,
        label=label,
        metrics=tuple(metrics or _METRICS[head]),
        settings=settings or _SETTINGS,
        source=Source(columns=numbers, id=id, quotes=quotes),
    ).with_files(encoding, train=train, dev=dev, test=test)
    source, files = task.source, task.source.files
    more = {}
    if head == "multiple_choice":
        more = {"choices": tuple(choices), "choice_start": choice_start}
    if head == "text_classifier":
        more = {"labels": tuple(labels or _classes(files, source, columns, label))}
    if head == "token_classifier":
        more = _tags(files, source, columns, label) if labels is None else _scheme(labels)
        if metrics is None and more["scheme"] is None:
            more["metrics"] = ("accuracy", "macro_f1")
    if head == "question_answering":
        more = {"submission": "predictions.json"}
        if settings is None:
            more["settings"] = replace(_SETTINGS, sequence_length=384)
    return replace(task, **more)


def model_task(model):
    """The task that a model does, on files with the columns that people need not name.

    >>> from kerasbert.models import BertBackbone, BertTextClassifier
    >>> backbone = BertBackbone(
    ...     vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    ... )
    >>> model_task(BertTextClassifier(backbone, labels=["ham", "spam"])).labels
    ('ham', 'spam')
    """
    classes = converter.tasks()
    head = next((head for head in heads.HEADS if isinstance(model, classes[head])), None)
    if head is None:
        known = ", ".join(classes[head].__name__ for head in heads.HEADS)
        raise ValueError(
            f"A {type(model).__name__} gives no answers that could be scored; take one of {known}."
        )
    if getattr(model, "multi_label", False):
        raise ValueError("The model gives each text any number of classes, and no task does so.")
    names = tuple(getattr(model, "label_names", ()))
    # Of classes without names, files write the numbers.
    unnamed = head == "text_classifier" and model.labels is None
    values = tuple(map(str, range(len(names)))) if unnamed else ()
    is_plain = head == "token_classifier" and _scheme(names)["scheme"] is None
    return Task(
        name="own",
        title="own",
        head=head,
        columns=_COLUMNS[head],
        label=_LABELS.get(head, "label"),
        labels=names,
        choices=("choices",) if head == "multiple_choice" else (),
        metrics=("accuracy", "macro_f1") if is_plain else _METRICS[head],
        settings=_SETTINGS,
        source=Source(values=values),
        submission="predictions.json" if head == "question_answering" else "predictions.tsv",
    )


def _classes(files, source, columns, label):
    """The names of the classes in the training file, numbers by size."""
    table = _first_table(files, source, columns)
    values = {heads.written(value) for value in table.column(label, " for the labels")} - {""}
    if not values:
        raise ValueError(f"The column '{label}' of {table.source} holds no labels.")

    def by_size(text):
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return sorted(values, key=by_size)


def _first_table(files, source, columns):
    path = files.get("train") or next(iter(files.values()))
    return readers.read_table(path, (), columns, source.quotes, encoding=source.encoding)


def _tags(files, source, columns, label):
    """The tags of the training file, as far as they are those of a scheme their types."""
    path = files.get("train") or next(iter(files.values()))
    if os.path.splitext(path)[1].lower() in (".json", ".jsonl", ".parquet"):
        rows = _first_table(files, source, columns).column(label, " for the tags")
        found = {tag for row in rows for tag in row or ()}
    else:
        place = source.columns.get(label, -1)
        found = {
            cells[place]
            for document in readers.read_columns(path, encoding=source.encoding)
            for sentence in document
            for _, cells in sentence
            if len(cells) > max(place, 1)
        }
    if not found:
        raise ValueError(f"'{path}' holds no tags beside its words.")
    return _scheme(sorted(map(str, found)))


def _scheme(tags):
    """The types and the scheme of tags; other labels as they are."""
    letters = {tag[0] for tag in tags if tag[1:2] == "-"}
    scheme = next(
        (
            scheme
            for scheme, known in (("BIO", "BI"), ("BIOES", "BIES"), ("BILOU", "BILU"))
            if letters and letters <= set(known)
        ),
        None,
    )
    is_plain = any(tag[1:2] != "-" and tag != OUTSIDE for tag in tags)
    if scheme is None or is_plain:
        return {"labels": tuple(tags), "scheme": None}
    return {"labels": tuple(sorted(TagSet(tags).types)), "scheme": scheme}

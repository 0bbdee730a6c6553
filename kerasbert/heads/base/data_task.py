"""`Task`: columns, labels, head, metrics and data source of a benchmark or of your own files."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice
from kerasbert.base.files import write_text
from kerasbert.base.notebook import summary
from kerasbert.base.paths import check_name, inside
from kerasbert.heads.base import file_readers, frames
from kerasbert.heads.base.task_fields import Published, Settings, Source
from kerasbert.kinds import FORMS, KINDS
from kerasbert.metrics import MACRO, MAIN_SCORES, ScoreCallback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath
    from kerasbert.heads.base.examples import Examples


@dataclass(frozen=True)
class Task:
    """A data task, built-in (`kerasbert.tasks.get_task`) or your own (`file_task`).

    Args:
        name: string, such as "rte".
        title: name in papers.
        head: the kind of model: "text_classifier", "text_regressor", "token_classifier",
            "question_answering", "multiple_choice" or "reranker".
        columns: tuple. Text columns, by head: one text, or two for pairs; question and context;
            the prompt; query and text; or the words.
        metrics: tuple. Names in `kerasbert.metrics.METRICS`; the first one selects models. With
            more than two classes, "f1", "precision" and "recall" are means over the classes, named
            "macro_f1" and so on.
        label: column of the labels; or a tuple of columns of 0 and 1, one for each class.
        labels: tuple. Class names in order, or entity types.
        choices: tuple. For multiple choice: one column per choice, or a single column with lists.
        choice_start: column of the text that starts all choices.
        scheme: tagging scheme of the entity types.
        units: "words"; or "characters", for whole texts with spans as labels.
        context: "sentence"; or "document", to read a document's sentences together.
        range: tuple of the lowest and the highest label, for regression and relevance grades.
        settings: a `Settings`.
        model: dict. Further arguments of the model's `from_preset`.
        published: tuple of `Published`.
        source: a `Source`.
        submission: file name of a submission.
        trained_on: the `Task` whose training data is used; `None` means this task.
        form: format of official files and submissions, a name in `kerasbert.kinds.FORMS`; `None`
            for tables.

    >>> from kerasbert.tasks import get_task
    >>> task = get_task("rte")
    >>> task.model_class.__name__, task.labels, task.main_metric
    ('BertTextClassifier', ('entailment', 'not_entailment'), 'accuracy')
    """

    name: str
    title: str
    head: str
    columns: tuple
    metrics: tuple
    label: str = "label"
    labels: tuple = ()
    choices: tuple = ()
    choice_start: str = ""
    scheme: str | None = None
    units: str = "words"
    context: str = "sentence"
    range: tuple | None = None
    settings: Settings = Settings()
    model: dict = field(default_factory=dict)
    published: tuple = ()
    source: Source = Source()
    submission: str = "predictions.tsv"
    trained_on: Task | None = None
    form: str = ""

    def __post_init__(self):
        # Tags and choices have no positive class.
        labels = KINDS[self.head].labels if self.head in KINDS else ""
        is_binary = labels == "class" and len(self.labels) <= 2
        if labels in ("class", "choice", "tag") and not is_binary:
            names = tuple(dict.fromkeys(MACRO.get(name, name) for name in self.metrics))
            object.__setattr__(self, "metrics", names)

    def as_dict(self) -> dict[str, Any]:
        """Return the task as a dict for JSON, without the paths of your own files.

        >>> from kerasbert.tasks import get_task
        >>> Task.from_dict(get_task("ax").as_dict()) == get_task("ax")
        True
        """
        files = {} if self.has_own_files else self.source.files
        task = dataclasses.replace(self, source=dataclasses.replace(self.source, files=files))
        values = dataclasses.asdict(task)
        del values["source"]["encoding"]  # It belongs to the user's files.
        if not self.form:
            del values["form"]  # Earlier versions cannot read it.
        return {**values, "trained_on": self.trained_on and self.trained_on.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "the task") -> Self:
        """Make a task from the dict that `as_dict` returned.

        Args:
            values: dict.
            source: its file, for errors.

        Raises:
            ValueError: if a file name leads out of its folder.
        """
        values = {name: _as_tuples(value) for name, value in values.items()}
        values["settings"] = Settings(**values["settings"])
        values["source"] = Source(**values["source"])
        values["published"] = tuple(Published(**row) for row in values["published"])
        if values["trained_on"] is not None:
            values["trained_on"] = cls.from_dict(values["trained_on"], source)
        task = cls(**values)
        if task.form:
            check_choice(f"form in '{source}'", task.form, FORMS)
        check_name(task.submission, source)
        for names in task.source.files.values():
            for name in [names] if isinstance(names, str) else names:
                check_name(name, source, nested=True)
        for name in task.source.dataset:
            if isinstance(name, dict):
                # Other arguments of `load_dataset` could name any file.
                if others := name.keys() - {"revision"}:
                    raise ValueError(
                        f"'{source}' has an unknown setting of a dataset, {min(others)!r}; only "
                        "'revision' is allowed."
                    )
            else:
                check_name(name, source, nested=True)
        return task

    def with_files(self, encoding: str | None = None, **paths: Any) -> Self:
        """Return the task with your own files, in the official format.

        Args:
            encoding: encoding of files that are not UTF-8, such as "cp949".
            **paths: strings. The file of each split, or `None`; or a table in memory, as for
                `kerasbert.tasks.file_task`.

        Raises:
            ValueError: if a file is missing, or a table cannot be read.
        """
        files = {split: self._own(split, x) for split, x in paths.items() if x is not None}
        source = dataclasses.replace(
            self.source, files=files, encoding=encoding, page="", license="", dataset=()
        )
        # Published scores do not apply.
        task = dataclasses.replace(self, source=source, published=(), trained_on=None)
        if self.source.files and not self.has_own_files:
            task = dataclasses.replace(task, title=f"files in the form of {self.title}")
        return task

    def _own(self, split, given):
        """Return a file's absolute path, or the `Table` of data in memory."""
        if isinstance(given, file_readers.Table):
            return given
        if not frames.is_path(given):
            if self.form:
                raise ValueError(
                    f"{split}: the task '{self.name}' reads its official files; pass their paths, "
                    f"not a {type(given).__name__}."
                )
            return frames.table_of(given, split)
        path = os.path.abspath(os.path.expanduser(os.fsdecode(given)))
        if not os.path.isfile(path):
            raise ValueError(f"There is no file '{os.fsdecode(given)}' for {split}.")
        return path

    def _repr_html_(self):
        settings = self.settings
        facts = {
            "head": self.head,
            "text columns": list(self.columns),
            "label column": list(self.label) if isinstance(self.label, tuple) else self.label,
            "labels": list(self.labels),
            "scores": list(self.metrics),
            "splits": list(self.splits),
            "settings": [
                f"{name}={getattr(settings, name)!r}"
                for name in ("batch_sizes", "learning_rates", "epochs", "sequence_length")
            ],
            "page": self.source.page,
            "license": self.source.license,
            "use": "kerasbert.finetune(task, preset, output)",
        }
        return summary(f"Task {self.title!r}", facts)

    @property
    def has_own_files(self) -> bool:
        """Whether the files are your own."""
        return any(map(_is_own, self.source.files.values()))

    @property
    def main_metric(self) -> str:
        """The score that selects models."""
        return MAIN_SCORES.get(self.metrics[0], self.metrics[0])

    @property
    def mode(self) -> str:
        """ "max", or "min" if lower is better, as in Keras' callbacks."""
        return "min" if self.main_metric.endswith("error") else "max"

    @property
    def has_one_class(self) -> bool:
        """Whether each text has exactly one class, as in most text classification tasks."""
        return KINDS[self.head].labels == "class" and not self.is_multi_label

    @property
    def is_multi_label(self) -> bool:
        """Whether each text may have any number of classes."""
        return bool(self.model.get("multi_label"))

    @property
    def model_class(self) -> type[Any]:
        """The class of the task's models, such as `kerasbert.models.BertTextClassifier`."""
        return KINDS[self.head].load("model")

    @property
    def splits(self) -> tuple[str, ...]:
        """The available splits, such as ("train", "dev", "test")."""
        more = self.trained_on.splits if self.trained_on else ()
        return tuple(dict.fromkeys([*more, *self.source.files]))

    def model_settings(self) -> dict[str, Any]:
        """Return the arguments of the model's `from_preset` for a new head."""
        length = {"sequence_length": self.settings.sequence_length}
        return {**self._data.settings(self), **length, **self.model}

    def read(self, split: str, folder: AnyPath | None = None, limit: int | None = None) -> Examples:
        """Read a split.

        Args:
            split: "train", "dev" or "test".
            folder: folder of the official files; `None` uses the `datasets` library.
            limit: maximum number of examples; the first ones are read.

        Returns:
            `Examples`.

        Raises:
            ValueError: for missing or invalid files, with file and line.
        """
        source = self.source
        if split not in source.files and self.trained_on is not None:
            return self.trained_on.read(split, folder, limit)
        if split not in source.files:
            raise ValueError(
                f"The task '{self.name}' has no split '{split}'; it has {', '.join(self.splits)}."
            )
        path = source.files[split]
        is_own = _is_own(path)
        if folder is not None and not is_own:
            path = file_readers.find_file(folder, path, self.name, source.page)
        if folder is not None or is_own:
            table = self._data.open(self, path, split)
        elif source.dataset:
            there = source.splits.get(split, split)
            table = frames.from_datasets(source.dataset, there, self.name, source.page)
        else:
            files = [path] if isinstance(path, str) else path
            raise ValueError(
                f"The data of '{self.name}' come from a folder with {files[0]}; get it from "
                f"{source.page} and pass its folder."
            )
        data = self._data.examples(self, table, split)
        return data if limit is None else data.take(slice(limit))

    def cut(self, data: Examples, share: float) -> tuple[Examples, Examples]:
        """Split examples deterministically; texts of one query stay together.

        Args:
            data: `Examples`.
            share: share of the second part; neither is empty.

        Returns:
            `(rest, part)`, two `Examples`.
        """
        groups = list(self._data.groups(data))
        names = list(dict.fromkeys(groups))
        if len(names) < 2:
            raise ValueError(
                f"'{self.name}' has one {'query' if len(data) > 1 else 'example'}; no dev split "
                "can be made of it. Pass a dev file."
            )
        order = np.random.default_rng(0).permutation(len(names)).tolist()
        count = min(max(round(share * len(order)), 1), len(order) - 1)
        chosen = {names[i] for i in order[:count]}
        is_chosen = [group in chosen for group in groups]
        rows = range(len(groups))
        return (
            data.take([row for row in rows if not is_chosen[row]]),
            data.take([row for row in rows if is_chosen[row]]),
        )

    def check_model(self, model: Any) -> None:
        """Raise if a model is of another kind or has other classes.

        Raises:
            ValueError: if so, with the task's requirements.
        """
        wanted = self.model_class
        if not isinstance(model, wanted):
            raise ValueError(
                f"The task '{self.name}' needs a {wanted.__name__}, not a {type(model).__name__}."
            )
        self._data.check_model(self, model)

    def predict(self, model: Any, data: Examples, batch_size: int = 32) -> list[Any]:
        """Predict examples, for `score` and `write`.

        Args:
            model: a `model_class`.
            data: `Examples`.
            batch_size: int.

        Returns:
            A list of class names, numbers or indices of choices; for taggers, of lists of tags per
            sentence or of spans `(start, end, type)`; for questions, of dicts of `answer` and
            `null_score`.
        """
        return self.answers(model, data, batch_size)[0]

    def answers(self, model: Any, data: Any, batch_size: int = 32) -> tuple[Any, Any]:
        """Predict examples with probabilities.

        Args:
            model, data, batch_size: see `predict`.

        Returns:
            `(predictions, probabilities)`. Probabilities per example: a dict by class name, a list
            by choice, or a number for an answer; `None` for regressors and taggers.
        """
        self.check_model(model)
        return self._data.answers(self, model, data, batch_size)

    def tune(self, model: Any, scores: Mapping[str, float]) -> None:
        """Set the thresholds of a trained model that its `scores` on dev determine, if any."""
        self._data.tune(model, scores)

    def count(self, data: Any) -> int:
        """Return the number of predictions: one per example or sentence."""
        return self._data.count(data)

    def score(self, data: Any, predictions: Any) -> dict[str, float]:
        """Score predictions.

        Args:
            data: `Examples` with labels.
            predictions: output of `predict`.

        Returns:
            Dict of name to fraction; `main_metric` names the most important one.
        """
        if data.gold is None:
            raise ValueError(
                f"These examples of '{self.name}' have no labels to score predictions with; submit "
                "the predictions, or use another split."
            )
        return self._data.scores(self, data, predictions)

    def scores_by_class(self, data: Any, predictions: Any) -> dict[str, dict[str, Any]]:
        """Score each class or entity type.

        Args:
            data: `Examples` with labels.
            predictions: output of `predict`.

        Returns:
            Dict of class to scores, see `kerasbert.metrics.scores_by_class`; empty if `score` does
            not average over classes.
        """
        return self._data.scores_by_class(self, data, predictions)

    def score_callback(
        self, data: Any, batch_size: int = 32, prefix: str = "val_"
    ) -> ScoreCallback:
        """Make a callback of `fit` that scores `data` after every epoch.

        Args:
            data: `Examples` with labels.
            batch_size: int.
            prefix: prefix of the names in the logs.

        Returns:
            A `kerasbert.metrics.ScoreCallback`.
        """
        return ScoreCallback(
            lambda model: self.score(data, self.predict(model, data, batch_size)), prefix
        )

    def write(
        self, folder: AnyPath, data: Examples, predictions: Any, threshold: float | None = None
    ) -> None:
        """Write predictions in the format of the official scorer or leaderboard.

        Args:
            folder: folder for `submission`, and for SQuAD 2.0 also `na_prob.json`.
            data: `Examples`.
            predictions: output of `predict`.
            threshold: float. For questions: a null score above this means "no answer".

        Returns:
            List of the files' paths.
        """
        if len(predictions) != self.count(data):
            raise ValueError(
                f"There are {len(predictions)} predictions for {self.count(data)} examples "
                f"of '{self.name}'; pass the output of `predict` for them."
            )
        files = self._data.files(self, data, predictions, threshold)
        os.makedirs(folder, exist_ok=True)
        return [write_text(inside(folder, x, self.name), text) for x, text in files.items()]

    @property
    def _data(self):
        return (FORMS[self.form] if self.form else KINDS[self.head]).load("data")()


def _is_own(path):
    return isinstance(path, file_readers.Table) or isinstance(path, str) and os.path.isabs(path)


def _as_tuples(value):
    """Convert lists to tuples, at any depth."""
    if isinstance(value, dict):
        return {name: _as_tuples(item) for name, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value

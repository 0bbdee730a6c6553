"""A task as data: its columns and labels, its head, its scores, and where its data come from."""

from __future__ import annotations

import dataclasses
import itertools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.files import check_name, inside, write_text
from kerasbert.kinds import KINDS
from kerasbert.metrics import MACRO, MAIN_SCORES, ScoreCallback
from kerasbert.optimizers import FINETUNING_LEARNING_RATE
from kerasbert.tasks import readers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from kerasbert._typing import AnyPath
    from kerasbert.tasks.examples import Examples


@dataclass(frozen=True)
class Settings:
    """How to fine-tune: one value of each, or more to search.

    Args:
        batch_sizes, learning_rates, epochs: tuples; `None` for the learning rates is the one that
            the preset records, 3e-5 where it has none.
        warmup: float. The share of the steps in which the rate rises; after it it falls to 0.
        sequence_length: int. The most tokens of a row.

    >>> len(Settings().grid()), Settings(epochs=(3,)).grid()[0]
    (18, {'batch_size': 16, 'learning_rate': 5e-05, 'epochs': 3})

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.3.
    """

    batch_sizes: tuple = (16, 32)
    learning_rates: tuple | None = (5e-5, 3e-5, 2e-5)
    epochs: tuple = (2, 3, 4)
    warmup: float = 0.1
    sequence_length: int = 128

    def grid(self) -> list[dict[str, Any]]:
        """All combinations: a list of dicts of `batch_size`, `learning_rate` and `epochs`."""
        names = ("batch_size", "learning_rate", "epochs")
        rates = self.learning_rates or (FINETUNING_LEARNING_RATE,)
        values = (self.batch_sizes, rates, self.epochs)
        return [dict(zip(names, point)) for point in itertools.product(*values)]


@dataclass(frozen=True)
class Published:
    """A score in print.

    Args:
        model: string. As it is called there, for example "BERT-Base".
        split: string. "dev" or "test".
        metric: string. Its name among the task's scores.
        value: float. A fraction, as our scores are.
        where: string. The paper and the table.
    """

    model: str
    split: str
    metric: str
    value: float
    where: str


@dataclass(frozen=True)
class Source:
    """Where a task's data come from, and how their files are written.

    Args:
        page: string. Where people get them.
        license: string. Of the data; "" where the page says more than fits here.
        files: dict of split to a path in the folder, or a tuple of those that it may have.
        columns: dict of a column's name to that in the files, where it is another one; to its
            number in files of one word a line.
        header: tuple. The columns of files whose first line does not name them.
        values: tuple. How the files write the labels, where it is not by name.
        id: string. The column of what an example is called; of your own files "id" by default,
            where each row has another one. Otherwise they are counted from 0.
        quotes: bool. See `readers.read_table`.
        comment: string. See `readers.read_columns`.
        encoding: string. Of your own files, see `readers.read_text`.
        dataset: tuple. The arguments of `datasets.load_dataset`; empty for none.
        splits: dict of split to that library's name of it, where it is another one.
    """

    page: str = ""
    license: str = ""
    files: dict = field(default_factory=dict)
    columns: dict = field(default_factory=dict)
    header: tuple = ()
    values: tuple = ()
    id: str = ""
    quotes: bool | None = None
    comment: str | None = None
    encoding: str | None = None
    dataset: tuple = ()
    splits: dict = field(default_factory=lambda: {"dev": "validation"})


@dataclass(frozen=True)
class Task:
    """A task: `kerasbert.tasks.get_task` has those of the papers, `file_task` makes yours.

    Args:
        name: string, such as "rte".
        title: string, as papers write it.
        head: string. The kind of model: "text_classifier", "text_regressor", "token_classifier",
            "question_answering", "multiple_choice" or "reranker".
        columns: tuple. The columns of text: one, or two for pairs; question and context; the
            prompt; query and text; the words and nothing else.
        metrics: tuple. Names in `kerasbert.metrics.METRICS`, the first one to choose models by.
            Above two classes "f1", "precision" and "recall" are the means over the classes, and
            become "macro_f1" and so on.
        label: string. The column of labels; or a tuple of them, one of 0 and 1 for each class.
        labels: tuple. The names of the classes in their order, or the types of entities.
        choices: tuple. Of multiple choice: the columns of the choices, or the one column of lists.
        choice_start: string. A column that all choices begin with.
        scheme: string. The tags that are made of types of entities.
        units: string. "words", or "characters": the texts are whole, and the labels spans.
        context: string. "sentence", or "document": sentences of a document are read as one.
        range: tuple of the least and the greatest number, of regression, and of texts' grades for
            a query.
        settings: a `Settings`.
        model: dict. Further arguments of the model's `from_preset`.
        published: tuple of `Published`.
        source: a `Source`.
        submission: string. The name of the file that is handed in.
        trained_on: the `Task` that a model of this one is trained on, where it is another one.

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

    def __post_init__(self):
        # Tags and choices have no positive class either.
        is_binary = self.head == "text_classifier" and len(self.labels) <= 2
        if (
            self.head in ("text_classifier", "token_classifier", "multiple_choice")
            and not is_binary
        ):
            names = tuple(dict.fromkeys(MACRO.get(name, name) for name in self.metrics))
            object.__setattr__(self, "metrics", names)

    def as_dict(self) -> dict[str, Any]:
        """The task as JSON can hold it, without the paths of your own files.

        >>> from kerasbert.tasks import get_task
        >>> Task.from_dict(get_task("ax").as_dict()) == get_task("ax")
        True
        """
        files = {} if self.has_own_files else self.source.files
        task = dataclasses.replace(self, source=dataclasses.replace(self.source, files=files))
        values = dataclasses.asdict(task)
        del values["source"]["encoding"]  # Of these files, too.
        return {**values, "trained_on": self.trained_on and self.trained_on.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "the task") -> Self:
        """Make a task from what `as_dict` returned.

        Args:
            values: dict.
            source: string. The file that holds it, for errors.

        Raises:
            ValueError: if a file name leads out of the folder that the file is expected in.
        """
        values = {name: _as_tuples(value) for name, value in values.items()}
        values["settings"] = Settings(**values["settings"])
        values["source"] = Source(**values["source"])
        values["published"] = tuple(Published(**row) for row in values["published"])
        if values["trained_on"] is not None:
            values["trained_on"] = cls.from_dict(values["trained_on"], source)
        task = cls(**values)
        check_name(task.submission, source)
        for names in task.source.files.values():
            for name in [names] if isinstance(names, str) else names:
                check_name(name, source, nested=True)
        for name in task.source.dataset:
            if isinstance(name, dict):
                # Other arguments of `load_dataset` may name any file.
                if others := name.keys() - {"revision"}:
                    raise ValueError(
                        f"'{source}' has an unknown setting of a dataset, {min(others)!r}; only "
                        "'revision' is allowed."
                    )
            else:
                check_name(name, source, nested=True)
        return task

    def with_files(self, encoding: str | None = None, **paths: Any) -> Self:
        """The task with your own files in place of its data, in the form of the official ones.

        Args:
            encoding: string. Of the files that are not UTF-8, such as "cp949".
            **paths: strings, the path of each split's file; `None` for none.

        Raises:
            ValueError: for a file that is not there.
        """
        files = {
            split: os.path.abspath(os.path.expanduser(path))
            for split, path in paths.items()
            if path is not None
        }
        for split, path in files.items():
            if not os.path.isfile(path):
                raise ValueError(f"There is no file '{paths[split]}' for {split}.")
        source = dataclasses.replace(
            self.source, files=files, encoding=encoding, page="", license="", dataset=()
        )
        # Nothing is published about them.
        task = dataclasses.replace(self, source=source, published=(), trained_on=None)
        if self.source.files and not self.has_own_files:
            task = dataclasses.replace(task, title=f"files in the form of {self.title}")
        return task

    @property
    def has_own_files(self) -> bool:
        """Whether its files are yours, by path."""
        return any(map(_is_own, self.source.files.values()))

    @property
    def main_metric(self) -> str:
        """The score to choose models by."""
        return MAIN_SCORES.get(self.metrics[0], self.metrics[0])

    @property
    def mode(self) -> str:
        """ "max", or "min" where less is better, as Keras' callbacks call it."""
        return "min" if self.main_metric.endswith("error") else "max"

    @property
    def has_one_class(self) -> bool:
        """Whether each text has one class, as most tasks of a text classifier have it."""
        return self.head == "text_classifier" and not self.model.get("multi_label")

    @property
    def model_class(self) -> type[Any]:
        """The class of its models, such as `kerasbert.models.BertTextClassifier`."""
        return KINDS[self.head].load("models")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are, such as ("train", "dev", "test")."""
        more = self.trained_on.splits if self.trained_on else ()
        return tuple(dict.fromkeys([*more, *self.source.files]))

    def model_settings(self) -> dict[str, Any]:
        """The arguments of the model's `from_preset` for a new head: a dict."""
        length = {"sequence_length": self.settings.sequence_length}
        return {**self._data.settings(self), **length, **self.model}

    def read(self, split: str, folder: AnyPath | None = None, limit: int | None = None) -> Examples:
        """Read a split.

        Args:
            split: string. "train", "dev" or "test".
            folder: string. The one with the official files; `None` asks the `datasets` library.
            limit: int. The most examples.

        Returns:
            `Examples`.

        Raises:
            ValueError: where the files are missing or not what they should be, with the place.
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
            path = readers.find_file(folder, path, self.name, source.page)
        if folder is not None or is_own:
            table = self._data.open(self, path, split)
        elif source.dataset:
            there = source.splits.get(split, split)
            table = readers.from_datasets(source.dataset, there, self.name, source.page)
        else:
            files = [path] if isinstance(path, str) else path
            raise ValueError(
                f"The data of '{self.name}' come from a folder with {files[0]}; get it from "
                f"{source.page} and name its folder."
            )
        data = self._data.examples(self, table, split)
        return data if limit is None else data.take(slice(limit))

    def cut(self, data: Examples, share: float) -> tuple[Examples, Examples]:
        """Some examples and the rest, always the same; texts of one query stay together.

        Args:
            data: `Examples`.
            share: float. Of the second part, at least one example as the first has.

        Returns:
            `(rest, part)`, two `Examples`.
        """
        groups = list(self._data.groups(data))
        names = list(dict.fromkeys(groups))
        if len(names) < 2:
            raise ValueError(
                f"'{self.name}' has one {'query' if len(data) > 1 else 'example'}; no dev split "
                "can be cut off it."
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
        """Refuse a model of another kind, or of other classes.

        Raises:
            ValueError: with what the task needs.
        """
        wanted = self.model_class
        if not isinstance(model, wanted):
            raise ValueError(
                f"The task '{self.name}' needs a {wanted.__name__}, not a {type(model).__name__}."
            )
        self._data.check_model(self, model)

    def predict(self, model: Any, data: Examples, batch_size: int = 32) -> list[Any]:
        """What a model says of examples, in the form that `score` and `write` take.

        Args:
            model: a model of `model_class`.
            data: `Examples`.
            batch_size: int.

        Returns:
            A list: names of classes; numbers; the number of the chosen one; for taggers lists of
            tags, one a sentence, or lists of spans `(start, end, type)`; for questions dicts of
            `answer` and `null_score`.
        """
        return self.answers(model, data, batch_size)[0]

    def answers(self, model: Any, data: Any, batch_size: int = 32) -> tuple[Any, Any]:
        """`predict`, and how probable the model holds it.

        Args:
            model, data, batch_size: see `predict`.

        Returns:
            `(predictions, probabilities)`: of each example a dict by the names of its classes, a
            list by its choices, or the number of a question's answer; `None` of regressors and
            taggers.
        """
        self.check_model(model)
        return self._data.answers(self, model, data, batch_size)

    def count(self, data: Any) -> int:
        """How many predictions there are of `Examples`: one each, or one a sentence."""
        return self._data.count(data)

    def score(self, data: Any, predictions: Any) -> dict[str, float]:
        """The task's scores of predictions.

        Args:
            data: `Examples` with labels.
            predictions: what `predict` returns.

        Returns:
            Dict of name to a fraction; `main_metric` is the name of the first one to look at.
        """
        if data.gold is None:
            raise ValueError(
                f"These examples of '{self.name}' have no labels to score predictions with; hand "
                "the predictions in, or take another split."
            )
        return self._data.scores(self, data, predictions)

    def scores_by_class(self, data: Any, predictions: Any) -> dict[str, dict[str, Any]]:
        """The scores of each class, or of each type of entity, where `score` averages over them.

        Args:
            data: `Examples` with labels.
            predictions: what `predict` returns.

        Returns:
            Dict of class to what `kerasbert.metrics.scores_by_class` gives of it; empty where the
            scores are no such means.
        """
        return self._data.scores_by_class(self, data, predictions)

    def score_callback(
        self, data: Any, batch_size: int = 32, prefix: str = "val_"
    ) -> ScoreCallback:
        """A callback of `fit` that scores the model on `data` after every epoch.

        Args:
            data: `Examples` with labels.
            batch_size: int.
            prefix: string. In front of the names in the logs.

        Returns:
            A `kerasbert.metrics.ScoreCallback`.
        """
        return ScoreCallback(
            lambda model: self.score(data, self.predict(model, data, batch_size)), prefix
        )

    def write(
        self, folder: AnyPath, data: Examples, predictions: Any, threshold: float | None = None
    ) -> None:
        """Write predictions as the official scorer or the leaderboard takes them.

        Args:
            folder: string. Where to put `submission`, and for SQuAD 2.0 `na_prob.json` beside it.
            data: `Examples`.
            predictions: what `predict` returns.
            threshold: float. Of questions: a null score beyond it makes the answer none.

        Returns:
            List of the files' paths.
        """
        if len(predictions) != self.count(data):
            raise ValueError(
                f"There are {len(predictions)} predictions for {self.count(data)} examples "
                f"of '{self.name}'; pass what `predict` returns for them."
            )
        files = self._data.files(self, data, predictions, threshold)
        os.makedirs(folder, exist_ok=True)
        return [write_text(inside(folder, x, self.name), text) for x, text in files.items()]

    @property
    def _data(self):
        return KINDS[self.head].load("tasks")()


def _is_own(path):
    return isinstance(path, str) and os.path.isabs(path)


def _as_tuples(value):
    """Lists, which JSON makes of tuples, as tuples."""
    if isinstance(value, dict):
        return {name: _as_tuples(item) for name, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value

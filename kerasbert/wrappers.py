"""scikit-learn estimators for texts.

Keras' own wrappers (`keras.wrappers.SKLearnClassifier`) take numbers only.

N texts, C classes, D width of an embedding.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
import zipfile
from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401

# isort: split
import keras
import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from kerasbert.metrics.tags import entities
from kerasbert.models import (
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
)
from kerasbert.optimizers import AdamW

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath

__all__ = [
    "SKLearnTextClassifier",
    "SKLearnTextEmbedder",
    "SKLearnTextRegressor",
    "SKLearnTokenClassifier",
]

PRESET = "bert_mini_demo_en_uncased"


class _Estimator(BaseEstimator):
    """Base class of the estimators: parameters, and pickling with the fitted model as a preset."""

    _task = None

    def _load(self, **options):
        """Load the preset as a model of this kind."""
        if self.sequence_length is not None:
            options["sequence_length"] = self.sequence_length
        return self._task.from_preset(self.preset, **options, **(self.model_options or {}))

    def _fitted(self, method):
        """Return the fitted model."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"{type(self).__name__} is not fitted; call fit() before {method}."
            )
        return self.model_

    def __sklearn_is_fitted__(self):
        return "model_" in vars(self)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.input_tags.one_d_array, tags.no_validation = True, True
        tags.non_deterministic = self._trains
        return tags

    def __getstate__(self):
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = _packed(state["model_"])
        return state

    def __setstate__(self, state):
        state = dict(state)
        if "model_" in state:
            state["model_"] = _unpacked(state["model_"], self._task)
        super().__setstate__(state)


class _Trained(_Estimator):
    """An estimator whose `fit` trains."""

    _trains = True

    def __init__(
        self,
        preset: AnyPath = PRESET,
        *,
        sequence_length: int | None = None,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float | None = None,
        random_state: Any = None,
        model_options: Mapping[str, Any] | None = None,
        fit_options: Mapping[str, Any] | None = None,
        verbose: Any = 0,
    ) -> None:
        self.preset = preset
        self.sequence_length = sequence_length
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.model_options = model_options
        self.fit_options = fit_options
        self.verbose = verbose

    def _train(self, x, y, sample_weight=None, **options):
        """Load and train the model."""
        with _seeded(self.random_state):
            model = self._load(**options)
            if self.learning_rate is not None:
                multipliers = model.learning_rate_multipliers()
                model.compile(AdamW(self.learning_rate, learning_rate_multipliers=multipliers))
            settings = {"epochs": self.epochs, "batch_size": self.batch_size}
            settings |= {"verbose": self.verbose, **(self.fit_options or {})}
            history = model.fit(x, y, sample_weight=sample_weight, **settings)
        self.model_, self.history_ = model, history.history
        return self


class SKLearnTextClassifier(ClassifierMixin, _Trained):
    """scikit-learn classifier of texts or text pairs.

    `fit` loads a preset's encoder as a `kerasbert.models.BertTextClassifier` with a new head, and
    trains it.

    Args:
        preset: string, as for `from_preset`.
        sequence_length: maximum length in tokens; `None` for the preset's.
        epochs: int.
        batch_size: texts per training step, and per batch of predictions.
        learning_rate: float. `None` for the preset's default, such as 3e-5. The optimizer is
            `kerasbert.optimizers.AdamW`.
        random_state: int, `numpy.random.RandomState` or `None`, as in scikit-learn. Fixes the new
            layers' weights, dropout and the order of texts.
        model_options: dict. More arguments for `from_preset`, such as {"pooling": "mean"}.
        fit_options: dict. More arguments for `fit`, such as `callbacks` or {"class_weight":
            "balanced"}.
        verbose: as in `keras.Model.fit`.

    `X` is a list, array or pandas column of strings (N,), or for pairs an array or frame (N, 2).
    `y` has class names or numbers (N,), or for several labels per text 0 and 1 (N, C). Pickles
    (also of joblib) contain the model as a preset; load only trusted ones.

    Attributes:
        classes_: array (C,). The classes, sorted.
        model_: the fitted `BertTextClassifier`.
        history_: dict of metric name to its values by epoch.

    Example:

    >>> from sklearn.model_selection import cross_val_score
    >>> texts, y = ["good", "bad"] * 4, [1, 0] * 4
    >>> classifier = SKLearnTextClassifier(epochs=1, sequence_length=8, random_state=0)
    >>> cross_val_score(classifier, texts, y, cv=2).shape
    (2,)

    Source: the estimators of setfit, skops and `keras.wrappers`.
    """

    _task = BertTextClassifier

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on texts (N,) or pairs (N, 2) with labels `y`.

        Raises:
            ValueError: for fewer than two classes, and for inputs of another shape.
        """
        y = np.asarray(y)
        check_classification_targets(y)
        several = type_of_target(y) == "multilabel-indicator"
        y = y if several else column_or_1d(y)
        self.classes_ = np.arange(y.shape[1]) if several else np.unique(y)
        names = [str(name) for name in self.classes_.tolist()]
        if len(names) < 2:
            raise ValueError(f"y has one class, '{names[0]}', but a classifier needs two or more.")
        if len(set(names)) < len(names):
            raise ValueError(f"y has several classes with equal names: {names}; rename them.")
        if not several:
            y = [names[i] for i in np.searchsorted(self.classes_, y)]
        return self._train(_texts(X), y, sample_weight, labels=names, multi_label=several)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities (N, C) in the order of `classes_`."""
        model = self._fitted("predict_proba()")
        return _or_empty(
            X, (0, len(self.classes_)), lambda x: model.predict_proba(x, self.batch_size)
        )

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable classes (N,), or 0 and 1 (N, C) for several labels per text."""
        probabilities = self.predict_proba(X)
        if self.model_.multi_label:
            return (probabilities > 0.5).astype(int)
        return self.classes_[probabilities.argmax(axis=1)]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class SKLearnTextRegressor(RegressorMixin, _Trained):
    """scikit-learn regressor on texts or text pairs.

    `fit` loads a `kerasbert.models.BertTextRegressor` and trains it. Arguments, input and pickles
    are those of `SKLearnTextClassifier`; `y` has numbers (N,).

    Attributes:
        model_: the fitted `BertTextRegressor`.
        history_: dict of metric name to its values by epoch.

    Example:

    >>> regressor = SKLearnTextRegressor(epochs=1, sequence_length=8)
    >>> regressor.fit(["short", "a longer text"], [1.0, 3.0]).predict(["new"]).shape
    (1,)
    """

    _task = BertTextRegressor

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on texts (N,) or pairs (N, 2) with numbers `y` (N,)."""
        return self._train(_texts(X), np.asarray(y, "float32"), sample_weight, new_head=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return numbers (N,)."""
        model = self._fitted("predict()")
        return _or_empty(
            X, (0,), lambda x: np.asarray(model.predict(x, batch_size=self.batch_size, verbose=0))
        )


class SKLearnTokenClassifier(_Trained):
    """scikit-learn estimator that labels words, such as named entities.

    `fit` loads a `kerasbert.models.BertTokenClassifier` and trains it. Arguments and pickles are
    those of `SKLearnTextClassifier`. `X` is a list of lists of words, `y` a list of lists of one
    label per word.

    Attributes:
        classes_: array (C,). The labels, sorted.
        model_: the fitted `BertTokenClassifier`.
        history_: dict of metric name to its values by epoch.

    Example:

    >>> tagger = SKLearnTokenClassifier(epochs=1, sequence_length=8)
    >>> tagger = tagger.fit([["Kim", "sleeps"], ["it", "rains"]], [["B-PER", "O"], ["O", "O"]])
    >>> len(tagger.predict([["Kim", "sleeps", "well"]])[0])
    3
    """

    _task = BertTokenClassifier

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on lists of words with lists of labels."""
        x, y = [list(words) for words in X], [[str(label) for label in labels] for labels in y]
        self.classes_ = np.array(sorted({label for labels in y for label in labels}))
        if len(self.classes_) < 2:
            raise ValueError(f"y has the labels {self.classes_.tolist()}, but needs two or more.")
        return self._train(x, y, sample_weight, labels=self.classes_.tolist())

    def predict(self, X: Any) -> list[list[str]]:
        """Return one label per word, lists like those in `y`."""
        model = self._fitted("predict()")
        x = [list(words) for words in X]
        return model.predict_labels(x, batch_size=self.batch_size) if x else []

    def score(self, X: Any, y: Any) -> float:
        """Return the F1 of entities for labels such as "B-PER", else the accuracy of words."""
        found, y = self.predict(X), [[str(label) for label in labels] for labels in y]
        if any(label.startswith(("B-", "I-", "S-", "E-")) for label in self.classes_):
            return entities(y, found)["f1"]
        pairs = [pair for rows in zip(y, found, strict=True) for pair in zip(*rows, strict=True)]
        return float(np.mean([gold == label for gold, label in pairs]))


class SKLearnTextEmbedder(TransformerMixin, _Estimator):
    """scikit-learn transformer from texts to embeddings, the features of a next step.

    `fit` loads a `kerasbert.models.BertTextEmbedder` and trains nothing.

    Args:
        preset: string, as for `from_preset`.
        sequence_length: maximum length in tokens; `None` for the preset's.
        batch_size: texts per batch.
        model_options: dict. More arguments for `from_preset`, such as {"pooling": "cls"}.

    Attributes:
        model_: the loaded `BertTextEmbedder`.

    Example:

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> pipeline = make_pipeline(SKLearnTextEmbedder(), LogisticRegression())
    >>> pipeline.fit(["good", "bad", "fine", "poor"], [1, 0, 1, 0]).predict(["great"]).shape
    (1,)
    """

    _task, _trains = BertTextEmbedder, False

    def __init__(
        self,
        preset: AnyPath = PRESET,
        *,
        sequence_length: int | None = None,
        batch_size: int = 32,
        model_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.preset = preset
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.model_options = model_options

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Load the model; `X` and `y` are not used."""
        self.model_ = self._load()
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return embeddings (N, D), float32."""
        model = self._fitted("transform()")
        return _or_empty(
            X, (0, model.output_shape[-1]), lambda x: model.embed(x, batch_size=self.batch_size)
        )

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the D features, "sklearntextembedder0" and so on."""
        width = self._fitted("get_feature_names_out()").output_shape[-1]
        return np.array([f"{type(self).__name__.lower()}{i}" for i in range(width)], object)


def _texts(x):
    """Return texts or pairs in a form for `fit`.

    Raises:
        ValueError: for a single string.
    """
    if isinstance(x, str):
        raise ValueError(f"X is the string {x[:40]!r}; pass a list of texts.")
    return np.ravel(x).tolist() if isinstance(x, np.ndarray) and x.shape[1:] == (1,) else x


def _or_empty(x, shape, predict):
    """Return `predict(x)`, or for no texts an empty array."""
    x = _texts(x)
    return predict(x) if len(x) else np.zeros(shape, "float32")


@contextlib.contextmanager
def _seeded(random_state):
    """Seed Keras by `random_state`, without effect on Python's and NumPy's global generators."""
    before = random.getstate(), np.random.get_state()
    try:
        keras.utils.set_random_seed(check_random_state(random_state).randint(2**31))
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _packed(model):
    """Return the bytes of a zip file with the model's preset."""
    data = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(data, "w") as packed:
        place = os.path.join(folder, "model")
        model.save_to_preset(place)
        for parent, _, names in os.walk(place):
            for name in names:
                path = os.path.join(parent, name)
                packed.write(path, os.path.relpath(path, place))
    return data.getvalue()


def _unpacked(data, task):
    """Return the model of `_packed`."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            packed.extractall(folder)
        return task.from_preset(folder)

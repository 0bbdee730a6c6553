"""Tasks that make vectors of texts, and train on what belongs together.

N texts, B batch, C columns of texts, T tokens, D' width of a vector.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert._errors import check_whole
from kerasbert.backend import is_known, lengthen
from kerasbert.layers.remat import in_chunks
from kerasbert.losses import (
    AdaptiveLayer,
    BatchHardTriplet,
    EmbeddingLoss,
    MultipleNegativesRanking,
)
from kerasbert.losses.vectors import check_widths
from kerasbert.models.reading import check_batch_size, is_dataset, is_ready, passes, split
from kerasbert.models.task import BertTask
from kerasbert.preprocessors.texts import label_rows, read_once
from kerasbert.preprocessors.variety import warn_of_equal, warn_of_nothing

if TYPE_CHECKING:
    from typing import Any

    from kerasbert._typing import Tensor

# Losses that compare the rows of a batch with each other.
_AMONG_ROWS = (BatchHardTriplet, EmbeddingLoss, MultipleNegativesRanking)
# The `_layers_model` of the model that is in a step of training or evaluation.
_IN_STEP = contextvars.ContextVar("_IN_STEP", default=None)


class ComparingTask(BertTask):
    """Base of the tasks whose vectors a loss of `kerasbert.losses` compares.

    Several columns of texts, a tuple, become vectors (B, C, D'). The preprocessor of such a task is
    a `BertTextEmbedderPreprocessor`, and its `pooling` says what a vector is made of.
    """

    chunk_size = None
    # What gives the vectors (B, L + 1, D') of all layers, where the loss is an `AdaptiveLayer`.
    _layers_model = None

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, (list, tuple)):
            return _stacked(inputs, lambda column: self(column, *args, **kwargs))
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        if isinstance(inputs, (list, tuple)):  # `fit` on JAX comes in here.
            return _stacked(inputs, lambda one: self.call(one, training=training, **kwargs))
        # Known before chunks are computed a second time, which may be in another thread.
        gives_layers = self._layers_model is not None and _IN_STEP.get() is self._layers_model

        def embed(inputs):
            if gives_layers:
                return self._layers_model(self.fill_in(inputs), training=training)
            return super(ComparingTask, self).call(inputs, training=training, **kwargs)

        if training and self.chunk_size is not None:
            return in_chunks(embed, self.layers, self.fill_in(inputs), self.chunk_size)
        return embed(inputs)

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        *,
        metrics: Any = "auto",
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure training, as `BertTask.compile`.

        Args:
            chunk_size: int. Compute the vectors of so many rows at a time and, for the gradient, a
                second time: batches of thousands fit into the memory of these, and train as they
                would without. Slower by about a third.
            optimizer, loss, metrics, **kwargs: as of `BertTask.compile`.

        Source: Gao et al. 2021, arXiv 2101.06983.
        """
        if chunk_size is not None:
            check_whole("chunk_size", chunk_size)
        needs_layers = any(isinstance(one, AdaptiveLayer) for one in keras.tree.flatten(loss))
        layers_model = self._of_all_layers() if needs_layers else None
        self.chunk_size = chunk_size
        super().compile(optimizer, loss, metrics=metrics, **kwargs)
        # Not by `setattr`, as its weights are this model's.
        self.__dict__["_layers_model"] = layers_model

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        return config and {**config, "chunk_size": self.chunk_size}

    # === Vectors of all layers, which `AdaptiveLayer` compares ===

    def _of_all_layers(self):
        """A model of this one's inputs and weights with the vectors of all layers."""
        raise ValueError(
            f"AdaptiveLayer takes the vectors of all layers, and a {type(self).__name__} has those "
            "of the last; compile with the loss that is inside."
        )

    @property
    def variables(self) -> list[Any]:
        losses = keras.tree.flatten(self.loss) if self._layers_model is not None else []
        drawing = [one.variables for one in losses if isinstance(one, AdaptiveLayer)]
        return [*super().variables, *itertools.chain(*drawing)]

    # Not by `super()`: with several processes on PyTorch `self` is something that calls the model.

    def train_step(self, *args: Any) -> Any:
        with _step_of(self):
            return keras.Model.train_step(self, *args)

    def test_step(self, *args: Any) -> Any:
        with _step_of(self):
            return keras.Model.test_step(self, *args)

    def _has_layers(self, x, vectors):
        """Whether the vectors of inputs are those of all layers."""
        has_columns = isinstance(x, (list, tuple))
        return self._layers_model is not None and len(vectors.shape) == 3 + has_columns

    def _last(self, x, vectors):
        """The vectors of inputs, where all layers have one those of the last."""
        return vectors[..., -1, :] if self._has_layers(x, vectors) else vectors

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train; see the class for what it takes, and `keras.Model.fit`.

        Args:
            x: a tuple of two or more lists of texts, which are compared; a list of texts; ready
                arrays, for columns a tuple of dicts; or a `tf.data.Dataset` of batches of these.
            y: scores (N,), classes (N,), vectors (N, D'), or none.
            **kwargs: as of `BertTask.fit`.

        Raises:
            ValueError: for columns of different sizes, and for labels that fit none of the above.
        """
        y = read_once(y) if self._is_raw(x) else y
        held_out = kwargs.get("validation_data")
        share = kwargs.get("validation_split")
        is_tuple = isinstance(x, tuple)
        columns = self._compared(x, y)
        self._check_differing(columns, x, y, batch_size)
        if columns is not None:
            x = columns  # Read once: a generator among them is used up.
            if share and held_out is None:
                kwargs.pop("validation_split")
                (x, y, sample_weight), held_out = split((x, y, sample_weight), share)
        if held_out is not None:
            parts = held_out if isinstance(held_out, tuple) else (held_out,)
            if is_tuple and y is None and _are_texts(*parts[1:2]):
                raise ValueError(
                    "validation_data has texts in the place of labels; as x they are a tuple of "
                    "columns in a tuple, such as validation_data=((queries, texts),)."
                )
            # Lists of texts alone are columns here too, `validation_data=((a, b),)`.
            kwargs["validation_data"] = self._in_columns(*parts, batch_size=batch_size)
        x, y, sample_weight = _three(
            self._in_columns(
                *(x, y, sample_weight),
                batch_size=batch_size,
                shuffle=kwargs.get("shuffle", True),
            )
        )
        self._expect_labels(x, y)
        return super().fit(x, y, batch_size, sample_weight, **kwargs)

    def _check_differing(self, columns, x, y, batch_size):
        """Refuse texts in memory, or their columns, of which the loss has nothing to compare."""
        loss = getattr(self, "loss", None)
        while hasattr(loss, "loss"):  # `Matryoshka` and others are around one.
            loss = loss.loss
        if not isinstance(loss, _AMONG_ROWS) or not self._is_raw(x):
            return
        if columns is not None and y is None and len(columns) == 2 and len(columns[0]) == 1:
            raise ValueError(
                "There is one row, and a ranking holds it against the others of its batch; pass "
                "more rows."
            )
        if columns is not None and y is None and len(columns) == 2 and batch_size == 1:
            warn_of_nothing(
                "With batch_size=1 a pair has no other texts in its batch to be held against",
                "pass a larger batch_size, or columns of hard negatives",
            )
        if columns is None and y is not None and _axes(y) == 1 and len(y) == len(x):
            labels = label_rows(y, len(y))
            if labels and all(label == labels[0] for label in labels):
                raise ValueError(
                    f"All {len(labels)} labels are {labels[0]!r}: there is nothing to tell apart; "
                    "pass texts of another class too."
                )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Loss and metrics, of what `fit` takes; see `keras.Model.evaluate`."""
        x, y, sample_weight = _three(self._in_columns(x, y, sample_weight, batch_size=batch_size))
        self._expect_labels(x, y)
        return super().evaluate(x, y, batch_size, sample_weight, **kwargs)

    def _expect_labels(self, x, y):
        """Have steps on labels with another number of axes than before made anew."""
        if is_dataset(x):
            y = keras.utils.unpack_x_y_sample_weight(x.element_spec)[1]
        self._expect(None if y is None else _axes(y), "train", "test")

    def _in_columns(self, x, y=None, sample_weight=None, batch_size=None, shuffle=False):
        """Texts that are compared, as a dataset of ready batches; anything else as it is."""
        check_batch_size(batch_size)
        y = read_once(y) if self._is_raw(x) else y
        if is_dataset(x):
            if not is_ready(x) and self.preprocessor is not None and _has_columns(x.element_spec):
                return self.preprocessor.map_columns(x)
            return x if y is None and sample_weight is None else (x, y, sample_weight)
        if hasattr(x, "__next__"):
            return self._generated(x), y, sample_weight
        if isinstance(x, keras.utils.PyDataset):
            if self._compared(*_parts(x[0])[:2]) is not None:
                batches = functools.partial(passes, x, shuffle)
                x = self._dataset_from(batches, x[0], x.num_batches, self._column_batch)
            return x, y, sample_weight
        columns = self._compared(x, y)
        if columns is None:
            return x, y, sample_weight
        self._check_range(y)
        if y is not None and shuffle and _axes(y) == 1:
            warn_of_equal(np.asarray(label_rows(y, len(y))), "scores of pairs")
        return self.preprocessor.column_batches(
            columns,
            y,
            sample_weight,
            batch_size or 32,
            shuffle,
            coarse=self._compiles_shapes(),
        )

    def _generated(self, batches):
        """A generator of batches; where its texts are compared, a dataset of ready ones."""
        first = next(batches, None)
        if first is None:
            return batches  # Others say so.
        batches = itertools.chain([first], batches)
        if self._compared(*_parts(first)[:2]) is None:
            return batches
        return self._dataset_from(lambda: batches, first, read=self._column_batch)

    def _column_batch(self, x, y=None, sample_weight=None):
        """A batch of texts that are compared, ready; anything else as it is."""
        columns = self._compared(x, y)
        if columns is None:
            return x, y, sample_weight
        self._check_range(y)
        return self.preprocessor.column_batch(columns, y, sample_weight)

    def _check_range(self, y):
        """Refuse labels that the loss has no sense for."""
        limits = getattr(getattr(self, "loss", None), "label_range", None)
        if limits is None or not hasattr(y, "__len__"):
            return
        for position, label in enumerate(label_rows(y, len(y))):
            if isinstance(label, (int, float)) and not limits[0] <= label <= limits[1]:
                raise ValueError(
                    f"The label at position {position} is {label}, and {self.loss.name} takes "
                    f"{limits[0]} to {limits[1]}: bring them there, as by dividing by the largest, "
                    "or compile with CoSENT(), of which only the order counts."
                )

    def _compared(self, x, y):
        """The columns of texts in memory that a loss compares; `None` of what is no such thing.

        Of texts alone both columns are these (SimCSE).
        """
        if not self._is_raw(x):
            return None
        if isinstance(x, tuple) and len(x) > 2:
            return x
        # Vectors are for a text or a pair in one row; more columns have scores.
        if y is not None and _axes(y) != 1:
            return None
        columns = self.preprocessor.columns(x)[0]
        if len(columns) > 1:
            return columns
        return (*columns, *columns) if y is None else None

    def predict(
        self, x: Any = None, batch_size: int | None = None, role: str | None = None, **kwargs: Any
    ) -> np.ndarray:
        """Vectors in the order of `x`, on raw texts or on ready arrays.

        `role` says what texts are, as of `embed`.
        """
        preprocessor = self._for_role(role)
        if not self._is_raw(x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        return self._predict_texts(x, batch_size, preprocessor, **kwargs)

    def _for_role(self, role):
        if self.preprocessor is None and role is None:
            return None
        if not hasattr(self.preprocessor, "for_role"):
            raise ValueError(f"role={role!r} is for texts, and this model has no preprocessor.")
        return self.preprocessor.for_role(role)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """One step, on what `fit` takes; see `keras.Model.train_on_batch`."""
        return super().train_on_batch(*self._compared_batch(x, y, sample_weight), **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
        """Loss and metrics of a batch; see `keras.Model.test_on_batch`."""
        return super().test_on_batch(*self._compared_batch(x, y, sample_weight), **kwargs)

    def _compared_batch(self, x, y, sample_weight):
        x, y, sample_weight = _three(self._column_batch(x, y, sample_weight))
        self._expect_labels(x, y)
        return x, y, sample_weight

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Tensor = None,
        sample_weight: Any = None,
        training: bool | None = True,
    ) -> Tensor:
        if self._layers_model is not None and not self._has_layers(x, y_pred):
            # Before the first step Keras comes here with what a call outside of a step gives.
            with _step_of(self):
                y_pred = self(x, training=training)
        y = self._labels(y, self._last(x, y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        y_pred = self._last(x, y_pred)
        y = self._labels(y, y_pred)  # Keras may come here before the loss.
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _labels(self, y, y_pred):
        """Labels that fit; of ready columns without any, numbers that say nothing."""
        of_tokens = self.pooling == "tokens"
        if y is None and len(y_pred.shape) == 3 + of_tokens:
            vector = y_pred[:, :, 0, 0] if of_tokens else y_pred[:, :, 0]  # (B, C)
            return -ops.ones_like(vector, dtype="int32")
        if y is None:
            raise ValueError(
                "One vector for each text was given no labels; pass a tuple of two columns, or "
                "vectors or classes as y."
            )
        if isinstance(self.loss, keras.losses.MeanSquaredError):
            if len(y.shape) != len(y_pred.shape):
                raise ValueError(
                    f"The labels have {len(y.shape)} axes and the vectors {len(y_pred.shape)}; "
                    "the mean squared error takes one vector for each text: pass vectors, or "
                    "compile with a loss of your own."
                )
            check_widths(y, y_pred)
        return y


@contextlib.contextmanager
def _step_of(model):
    """A context in which the model gives the vectors of all layers, where its loss takes them."""
    token = _IN_STEP.set(model._layers_model)
    try:
        yield
    finally:
        _IN_STEP.reset(token)


def _stacked(columns, embed):
    """The vectors (B, ...) of each column, as (B, C, ...); of tokens all padded to one length."""
    vectors = [embed(column) for column in columns]
    if len(vectors[0].shape) == 3:
        sizes = [ops.shape(x)[1] for x in vectors]
        longest = max(sizes) if all(map(is_known, sizes)) else ops.max(ops.stack(sizes))
        vectors = [lengthen(x, 1, longest - size) for x, size in zip(vectors, sizes, strict=True)]
    return ops.stack(vectors, axis=1)


def _three(parts):
    """`(x, y, sample_weight)` of a dataset, or of two or three of them."""
    if is_dataset(parts):
        return parts, None, None
    return (*parts, None)[:3]


def _parts(batch):
    """`(x, y, sample_weight)` of what a generator or a `PyDataset` gives."""
    return keras.utils.unpack_x_y_sample_weight(batch if isinstance(batch, tuple) else (batch,))


def _are_texts(y=None):
    return isinstance(y, (list, tuple)) and any(isinstance(one, str) for one in y)


def check_alike(queries, documents):
    """Refuse to compare vectors of two models, (..., D) and (..., D')."""
    widths = queries.shape[-1], documents.shape[-1]
    if widths[0] != widths[1]:
        raise ValueError(
            f"The vectors have {widths[0]} and {widths[1]} numbers; compare those of one model."
        )


def _axes(y):
    """How many axes labels have, also where they are no rectangle, which others refuse."""
    if hasattr(y, "shape") or not hasattr(y, "__iter__"):
        return len(getattr(y, "shape", ()))
    return 2 if any(isinstance(row, (list, tuple, np.ndarray)) for row in y) else 1


def _has_columns(spec):
    """Whether batches of a dataset are texts that are compared, by what they hold."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    if not isinstance(x, tuple) or len(x) < 2:
        return False
    return y is None or len(x) > 2 or y.shape.rank == 1

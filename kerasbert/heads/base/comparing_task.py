"""Base class of embedders trained by comparing texts.

N texts, B batch, C columns of texts, T tokens, D' embedding width.
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

from kerasbert.backend import compiles_shapes
from kerasbert.backend.layers import is_known, lengthen
from kerasbert.base.errors import check_whole
from kerasbert.heads.base.inputs import (
    check_batch_size,
    dataset_from,
    is_dataset,
    is_raw,
    is_ready,
    passes,
    split,
)
from kerasbert.heads.base.steps import discard_steps, predict_texts
from kerasbert.heads.base.task import BertTask
from kerasbert.layers.remat import in_chunks
from kerasbert.losses import (
    AdaptiveLayer,
    BatchHardTriplet,
    EmbeddingLoss,
    MultipleNegativesRanking,
)
from kerasbert.losses.similarity import check_widths
from kerasbert.text.label_warnings import warn_of_equal, warn_of_nothing
from kerasbert.text.texts import label_rows, read_once

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

# Losses that compare the rows of a batch.
_AMONG_ROWS = (BatchHardTriplet, EmbeddingLoss, MultipleNegativesRanking)
# The `_layers_model` of the running step.
_IN_STEP = contextvars.ContextVar("_IN_STEP", default=None)


class ComparingTask(BertTask):
    """Base class of tasks trained with a loss of `kerasbert.losses` that compares embeddings.

    For several columns of texts, the outputs are embeddings (B, C, D'). Subclasses have a
    `BertTextEmbedderPreprocessor` and an attribute `pooling`.
    """

    chunk_size = None
    # Outputs all layers' embeddings (B, L + 1, D'), for the loss `AdaptiveLayer`.
    _layers_model = None

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, (list, tuple)):
            return _stacked(inputs, lambda column: self(column, *args, **kwargs))
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Tensor = None, **kwargs: Any
    ) -> Tensor:
        if isinstance(inputs, (list, tuple)):  # `__call__` handles these, but JAX's `fit` skips it.
            return _stacked(inputs, lambda one: self.call(one, training=training, **kwargs))
        # Read here, because chunks may be recomputed in another thread.
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
        """Configure training; see `BertTask.compile`.

        Args:
            chunk_size: number of rows embedded at a time, and again in the backward pass
                (GradCache). Large batches then need the memory of one chunk, and about a third more
                time, for the same gradients.
            optimizer, loss, metrics, **kwargs: see `BertTask.compile`.

        Source: Gao et al. 2021, arXiv 2101.06983.
        """
        if chunk_size is not None:
            check_whole("chunk_size", chunk_size)
        needs_layers = any(isinstance(one, AdaptiveLayer) for one in keras.tree.flatten(loss))
        layers_model = self._of_all_layers() if needs_layers else None
        self.chunk_size = chunk_size
        super().compile(optimizer, loss, metrics=metrics, **kwargs)
        # In `__dict__`, because Keras would track an attribute, and its weights are this model's.
        self.__dict__["_layers_model"] = layers_model

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        return config and {**config, "chunk_size": self.chunk_size}

    # === Embeddings of all layers, for `AdaptiveLayer` ===

    def _of_all_layers(self):
        """Return a model with the same weights that outputs all layers' embeddings."""
        raise ValueError(
            f"AdaptiveLayer needs the embeddings of all layers, but {type(self).__name__} only has "
            "those of the last; compile with the inner loss instead."
        )

    @property
    def variables(self) -> list[Any]:
        losses = keras.tree.flatten(self.loss) if self._layers_model is not None else []
        drawing = [one.variables for one in losses if isinstance(one, AdaptiveLayer)]
        return [*super().variables, *itertools.chain(*drawing)]

    # Without `super()`: with several processes on PyTorch, `self` is a wrapper.

    def train_step(self, *args: Any) -> Any:
        with _step_of(self):
            return BertTask.train_step(self, *args)

    def test_step(self, *args: Any) -> Any:
        with _step_of(self):
            return keras.Model.test_step(self, *args)

    def _has_layers(self, x, vectors):
        """Return whether `vectors`, the outputs for `x`, cover all layers."""
        has_columns = isinstance(x, (list, tuple))
        return self._layers_model is not None and len(vectors.shape) == 3 + has_columns

    def _last(self, x, vectors):
        """Return the embeddings of the last layer."""
        return vectors[..., -1, :] if self._has_layers(x, vectors) else vectors

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train on texts to compare; see `keras.Model.fit`.

        Args:
            x: a tuple of two or more lists of texts to compare; a list of texts; preprocessed
                arrays (a tuple of dicts for several columns); or a `tf.data.Dataset` of batches of
                these.
            y: scores (N,), classes (N,), embeddings (N, D') or `None`.
            **kwargs: as in `BertTask.fit`.

        Raises:
            ValueError: for columns of different sizes, or for labels of another kind.
        """
        y = read_once(y) if is_raw(self, x) else y
        held_out = kwargs.get("validation_data")
        share = kwargs.get("validation_split")
        is_tuple = isinstance(x, tuple)
        columns = self._compared(x, y)
        self._check_differing(columns, x, y, batch_size)
        if columns is not None:
            x = columns  # The original columns may include an exhausted generator.
            if share and held_out is None:
                kwargs.pop("validation_split")
                (x, y, sample_weight), held_out = split((x, y, sample_weight), share)
        if held_out is not None:
            parts = held_out if isinstance(held_out, tuple) else (held_out,)
            labels = parts[1] if isinstance((*parts, None)[1], (list, tuple)) else ()
            if is_tuple and y is None and any(isinstance(label, str) for label in labels):
                raise ValueError(
                    "validation_data has texts in place of labels; pass the columns as a nested "
                    "tuple, such as validation_data=((queries, texts),)."
                )
            # Users pass unlabeled columns as `validation_data=((a, b),)`.
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
        """Raise if texts are too much alike for in-batch negatives."""
        loss = getattr(self, "loss", None)
        while hasattr(loss, "loss"):  # Inner loss of `Matryoshka` and others.
            loss = loss.loss
        if not isinstance(loss, _AMONG_ROWS) or not is_raw(self, x):
            return
        if columns is not None and y is None and len(columns) == 2 and len(columns[0]) == 1:
            raise ValueError(
                "x has only one row, but a ranking loss compares each row with the others of its "
                "batch; pass more rows."
            )
        if columns is not None and y is None and len(columns) == 2 and batch_size == 1:
            warn_of_nothing(
                "With batch_size=1 a pair has no in-batch negatives",
                "pass a larger batch_size, or columns of hard negatives",
            )
        if columns is None and y is not None and _axes(y) == 1 and len(y) == len(x):
            labels = label_rows(y, len(y))
            if labels and all(label == labels[0] for label in labels):
                raise ValueError(
                    f"All {len(labels)} labels are {labels[0]!r}, so there are no classes to "
                    "separate; pass texts of another class too."
                )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Compute loss and metrics on data as in `fit`; see `keras.Model.evaluate`."""
        x, y, sample_weight = _three(self._in_columns(x, y, sample_weight, batch_size=batch_size))
        self._expect_labels(x, y)
        return super().evaluate(x, y, batch_size, sample_weight, **kwargs)

    def _expect_labels(self, x, y):
        """Discard compiled steps if the rank of the labels has changed."""
        if is_dataset(x):
            y = keras.utils.unpack_x_y_sample_weight(x.element_spec)[1]
        discard_steps(self, None if y is None else _axes(y), "train", "test")

    def _in_columns(self, x, y=None, sample_weight=None, batch_size=None, shuffle=False):
        """Return texts to compare as a dataset of preprocessed batches."""
        check_batch_size(batch_size)
        y = read_once(y) if is_raw(self, x) else y
        if is_dataset(x):
            if not is_ready(x) and self.preprocessor is not None and _has_columns(x.element_spec):
                return self.preprocessor.map_columns(x)
            return x if y is None and sample_weight is None else (x, y, sample_weight)
        if hasattr(x, "__next__"):
            return self._generated(x), y, sample_weight
        if isinstance(x, keras.utils.PyDataset):
            if self._compared(*_three(x[0])[:2]) is not None:
                batches = functools.partial(passes, x, shuffle)
                x = dataset_from(self, batches, x[0], x.num_batches, self._column_batch)
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
            coarse=compiles_shapes(self.jit_compile),
        )

    def _generated(self, batches):
        """Convert a generator of texts to compare to a dataset of preprocessed batches."""
        first = next(batches, None)
        if first is None:
            return batches  # An error follows later.
        batches = itertools.chain([first], batches)
        if self._compared(*_three(first)[:2]) is None:
            return batches
        return dataset_from(self, lambda: batches, first, preprocess=self._column_batch)

    def _column_batch(self, x, y=None, sample_weight=None):
        """Preprocess a batch of texts to compare."""
        columns = self._compared(x, y)
        if columns is None:
            return x, y, sample_weight
        self._check_range(y)
        return self.preprocessor.column_batch(columns, y, sample_weight)

    def _check_range(self, y):
        """Raise for labels outside the loss's range."""
        limits = getattr(getattr(self, "loss", None), "label_range", None)
        if limits is None or not hasattr(y, "__len__"):
            return
        for position, label in enumerate(label_rows(y, len(y))):
            if isinstance(label, (int, float)) and not limits[0] <= label <= limits[1]:
                raise ValueError(
                    f"The label at position {position} is {label}, but {self.loss.name} expects "
                    f"{limits[0]} to {limits[1]}; rescale the labels, for example by dividing by "
                    "the largest, or compile with CoSENT(), which only uses their order."
                )

    def _compared(self, x, y):
        """Return the columns of raw texts to compare, or `None` for other data.

        A single column without labels is returned twice (SimCSE).
        """
        if not is_raw(self, x):
            return None
        if isinstance(x, tuple) and len(x) > 2:
            return x
        # Labels with more axes are target embeddings, so no columns are compared.
        if y is not None and _axes(y) != 1:
            return None
        columns = self.preprocessor.columns(x)[0]
        if len(columns) > 1:
            return columns
        return (*columns, *columns) if y is None else None

    def predict(
        self, x: Any = None, batch_size: int | None = None, role: str | None = None, **kwargs: Any
    ) -> np.ndarray:
        """Return embeddings of raw texts or arrays, in the order of `x`.

        For `role`, see `embed`.
        """
        preprocessor = self._for_role(role)
        if not is_raw(self, x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        return predict_texts(self, x, batch_size, preprocessor, **kwargs)

    def _for_role(self, role):
        if self.preprocessor is None and role is None:
            return None
        if not hasattr(self.preprocessor, "for_role"):
            raise ValueError(f"role={role!r} needs raw texts, but this model has no preprocessor.")
        return self.preprocessor.for_role(role)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Train one step on data as in `fit`; see `keras.Model.train_on_batch`."""
        return super().train_on_batch(*self._compared_batch(x, y, sample_weight), **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
        """Compute loss and metrics of one batch; see `keras.Model.test_on_batch`."""
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
            # Keras builds the loss on outputs of the last layer only.
            with _step_of(self):
                y_pred = self(x, training=training)
        y = self._labels(y, self._last(x, y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Tensor, sample_weight: Any = None
    ) -> dict[str, Any]:
        y_pred = self._last(x, y_pred)
        y = self._labels(y, y_pred)  # Keras may compute metrics before the loss.
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _labels(self, y, y_pred):
        """Check and return labels; preprocessed columns without any get dummy labels."""
        of_tokens = self.pooling == "tokens"
        if y is None and len(y_pred.shape) == 3 + of_tokens:
            vector = y_pred[:, :, 0, 0] if of_tokens else y_pred[:, :, 0]  # (B, C)
            return -ops.ones_like(vector, dtype="int32")
        if y is None:
            raise ValueError(
                "There is one text per row but no labels; pass a tuple of two columns as x, or "
                "embeddings or classes as y."
            )
        if isinstance(self.loss, keras.losses.MeanSquaredError):
            if len(y.shape) != len(y_pred.shape):
                raise ValueError(
                    f"The labels have {len(y.shape)} axes and the embeddings {len(y_pred.shape)}; "
                    "pass a target embedding per text for the mean squared error, or compile with "
                    "another loss."
                )
            check_widths(y, y_pred)
        return y


@contextlib.contextmanager
def _step_of(model):
    """Return a context in which the model outputs all layers' embeddings if `AdaptiveLayer` needs
    them.
    """
    token = _IN_STEP.set(model._layers_model)
    try:
        yield
    finally:
        _IN_STEP.reset(token)


def _stacked(columns, embed):
    """Stack the embeddings (B, ...) of C columns to (B, C, ...); pad tokens to one length."""
    vectors = [embed(column) for column in columns]
    if len(vectors[0].shape) == 3:
        sizes = [ops.shape(x)[1] for x in vectors]
        longest = max(sizes) if all(map(is_known, sizes)) else ops.max(ops.stack(sizes))
        vectors = [lengthen(x, 1, longest - size) for x, size in zip(vectors, sizes, strict=True)]
    return ops.stack(vectors, axis=1)


def _three(parts):
    """Return `(x, y, sample_weight)` from `x` alone or a tuple; missing parts are `None`."""
    return (*parts, None, None)[:3] if isinstance(parts, tuple) else (parts, None, None)


def check_alike(queries, documents):
    """Raise if the embeddings of queries and documents have different widths (the last axis)."""
    widths = queries.shape[-1], documents.shape[-1]
    if widths[0] != widths[1]:
        raise ValueError(
            f"The embeddings have widths {widths[0]} and {widths[1]}; pass embeddings of one model."
        )


def _axes(y):
    """Return the number of axes of labels; 2 for ragged labels."""
    if hasattr(y, "shape") or not hasattr(y, "__iter__"):
        return len(getattr(y, "shape", ()))
    return 2 if any(isinstance(row, (list, tuple, np.ndarray)) for row in y) else 1


def _has_columns(spec):
    """Return whether a dataset's batches are texts to compare."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(spec)
    if not isinstance(x, tuple) or len(x) < 2:
        return False
    return y is None or len(x) > 2 or y.shape.rank == 1

"""Tasks that make vectors of texts, and train on what belongs together.

N texts, B batch, C columns of texts, T tokens, D' width of a vector.
"""

import functools
import itertools

import keras
import numpy as np
from keras import ops

from kerasbert._errors import check_whole
from kerasbert.backend import is_known, lengthen
from kerasbert.layers.remat import in_chunks
from kerasbert.models.reading import check_batch_size, is_dataset, is_ready, passes, split
from kerasbert.models.task import BertTask


class ComparingTask(BertTask):
    """Base of the tasks whose vectors a loss of `kerasbert.losses` compares.

    Several columns of texts, a tuple, become vectors (B, C, D'). The preprocessor of such a task is
    a `BertTextEmbedderPreprocessor`, and its `pooling` says what a vector is made of.
    """

    chunk_size = None

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, (list, tuple)):
            return _stacked(inputs, lambda column: self(column, *args, **kwargs))
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=None, mask=None, **kwargs):
        if isinstance(inputs, (list, tuple)):  # `fit` on JAX comes in here.
            return _stacked(inputs, lambda one: self.call(one, training=training, **kwargs))

        def embed(inputs):
            return super(ComparingTask, self).call(inputs, training=training, **kwargs)

        if training and self.chunk_size is not None:
            return in_chunks(embed, self.layers, self.fill_in(inputs), self.chunk_size)
        return embed(inputs)

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", chunk_size=None, **kwargs):
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
        self.chunk_size = chunk_size
        super().compile(optimizer, loss, metrics=metrics, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {**config, "chunk_size": self.chunk_size}

    def fit(self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs):
        """Train; see the class for what it takes, and `keras.Model.fit`.

        Args:
            x: a tuple of two or more lists of texts, which are compared; a list of texts; ready
                arrays, for columns a tuple of dicts; or a `tf.data.Dataset` of batches of these.
            y: scores (N,), classes (N,), vectors (N, D'), or none.
            **kwargs: as of `BertTask.fit`.

        Raises:
            ValueError: for columns of different sizes, and for labels that fit none of the above.
        """
        held_out = kwargs.get("validation_data")
        share = kwargs.get("validation_split")
        columns = self._compared(x, y) if share and held_out is None else None
        if columns is not None:
            kwargs.pop("validation_split")
            (x, y, sample_weight), held_out = split((columns, y, sample_weight), share)
        if held_out is not None:
            parts = held_out if isinstance(held_out, tuple) else (held_out,)
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

    def evaluate(self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs):
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
        return self.preprocessor.column_batch(columns, y, sample_weight)

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

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """One step, on what `fit` takes; see `keras.Model.train_on_batch`."""
        return super().train_on_batch(*self._compared_batch(x, y, sample_weight), **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Loss and metrics of a batch; see `keras.Model.test_on_batch`."""
        return super().test_on_batch(*self._compared_batch(x, y, sample_weight), **kwargs)

    def _compared_batch(self, x, y, sample_weight):
        x, y, sample_weight = _three(self._column_batch(x, y, sample_weight))
        self._expect_labels(x, y)
        return x, y, sample_weight

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        y = self._labels(y, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
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
        return y


def _stacked(columns, embed):
    """The vectors (B, D') of each column, as (B, C, D'); of tokens as (B, C, T, D')."""
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

"""Inputs of task models: texts in memory, and batches from datasets and generators."""

import itertools

import keras
import numpy as np

from kerasbert import backend
from kerasbert.backend.tensorflow import tf
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_whole
from kerasbert.text.texts import read_once

# Up to this many rows run without a tf.data pipeline, which would take longer to start than it
# saves by preprocessing ahead.
FEW = 1024


class ReadsTexts:
    """Mixin of task models: tells texts from arrays of token ids, and makes batches of texts."""

    def _is_raw(self, x):
        """Return whether `x` is texts in memory, for the preprocessor."""
        if x is None or is_dataset(x):
            return False
        if self.preprocessor is None:
            if _holds_text(x):
                raise ValueError(
                    "This model has no preprocessor and takes arrays of token ids, not texts; "
                    "set `model.preprocessor`, or load the model with `from_preset`."
                )
            return False
        if has_ids(x) or isinstance(x, dict):
            return not has_ids(x)
        return not isinstance(x, keras.utils.PyDataset) and not hasattr(x, "__next__")

    def _sorted_batches(
        self, x, y=None, sample_weight=None, batch_size=None, few=FEW, preprocessor=None
    ):
        check_batch_size(batch_size)
        if backend.is_distributed(self):
            few = 0  # Keras distributes only the batches of a dataset.
        return (preprocessor or self.preprocessor).sorted_batches(
            x, batch_size or 32, y, sample_weight, buckets=self._compiles_shapes(), few=few
        )

    def _compiles_shapes(self):
        return backend.compiles_shapes(self.jit_compile)

    def _as_lists(self, texts, method):
        """Return `(texts, single)` for an inference method; texts are a list, or two in a tuple.

        All inference methods read texts here, so that they accept and refuse the same inputs.
        """
        if self.preprocessor is None:
            raise ValueError(f"{method} takes texts, but this model has no preprocessor.")
        columns, batched = self.preprocessor.columns(texts)
        return (columns if len(columns) > 1 else columns[0]), not batched

    # === Batches from datasets and generators ===

    def _read(self, x, batch_size=None, anew=False, shuffle=False):
        """Return a `tf.data.Dataset` of features for a dataset, generator or `PyDataset` of texts.

        Inputs that already yield arrays of token ids are returned unchanged.
        """
        if is_dataset(x):
            return self._preprocess_dataset(x, anew, batch_size)
        if hasattr(x, "__next__"):
            return self._read_generator(x, batch_size)
        if isinstance(x, keras.utils.PyDataset) and self._is_raw(_inputs_of(x[0])):
            return self._dataset_from(lambda: passes(x, shuffle), x[0], x.num_batches)
        return x

    def _read_generator(self, batches, batch_size):
        first = next(batches, None)
        if first is None:
            raise ValueError("The generator is empty; create a new one for each use.")
        batches = itertools.chain([first], batches)
        if not self._is_raw(_inputs_of(first)):
            self._build_on(first)
            return (batch for batch in batches)  # Keras only accepts generators.
        if _is_single(_inputs_of(first)):
            batches = _grouped(batches, batch_size or 32)
            first = next(batches)
            batches = itertools.chain([first], batches)
        return self._dataset_from(lambda: batches, first)

    def _dataset_from(self, batches, first, size=None, read=None):
        """Return a dataset of features of the batches that `batches()` yields.

        `first`, the first batch, determines the signature. `read` replaces the preprocessor.
        """

        def preprocess(batch):
            try:
                parts = batch if isinstance(batch, tuple) else (batch,)
                return keras.tree.map_structure(
                    keras.ops.convert_to_numpy, (read or self.preprocessor)(*parts)
                )
            except Exception as error:
                self._reading_error = error
                raise

        def spec(array):
            return tf.TensorSpec([None] * array.ndim, array.dtype)

        first = preprocess(first)
        self._build_on(first)
        signature = keras.tree.map_structure(spec, first)
        dataset = tf.data.Dataset.from_generator(
            lambda: map(preprocess, batches()), output_signature=signature
        )
        if size is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(size))
        return dataset.prefetch(2)

    def _build_on(self, batch):
        """Build loss and metrics on this batch; Keras would consume one without training on it."""
        if isinstance(batch, tuple) and len(batch) > 1:
            keras_internals.build_on(self, batch)

    def _preprocess_dataset(self, dataset, anew=False, batch_size=None):
        """Map the preprocessor over a `tf.data.Dataset` of raw batches or of single texts."""
        if self.preprocessor is None or is_ready(dataset):
            return dataset
        parts = keras.tree.flatten(_inputs_of(dataset.element_spec))
        if all(part.shape.rank == 0 and part.dtype == "string" for part in parts):
            dataset = dataset.batch(batch_size or 32)
        return self.preprocessor.map_dataset(dataset, anew)


def _holds_text(x):
    while isinstance(x, (list, tuple)) and x:
        x = x[0]
    kind = getattr(getattr(x, "dtype", None), "kind", None)  # For NumPy and pandas columns.
    return isinstance(x, (str, bytes)) or kind in ("O", "S", "U")


def check_batch_size(batch_size):
    if batch_size is not None:
        check_whole("batch_size", batch_size)


def check_ranked(query, texts, top_k):
    """Return the texts for `rank` as a list.

    Raises:
        ValueError: for an invalid `query`, `texts` or `top_k`.
    """
    if not isinstance(query, (str, bytes)):
        raise ValueError(f"query must be one string, got {query!r}; call rank() per query.")
    if isinstance(texts, (str, bytes, dict, set, frozenset)) or not hasattr(texts, "__iter__"):
        raise ValueError(f"texts must be a list of strings, got {texts!r}.")
    if top_k is not None:
        check_whole("top_k", top_k)
    return list(texts)


def best_first(order_by, scores, texts, top_k, return_texts):
    """Return the result of `rank`: largest `order_by` (N,) first, ties in the given order."""
    order = np.argsort(-order_by, kind="stable")[:top_k]
    found = [{"corpus_id": int(place), "score": float(scores[place])} for place in order]
    if return_texts:
        for row in found:
            row["text"] = texts[row["corpus_id"]]
    return found


def is_in_memory(x):
    return isinstance(x, (dict, list, tuple, np.ndarray)) or keras.ops.is_tensor(x)


def is_ready(dataset):
    """Return whether a `tf.data.Dataset` already has token ids."""
    return has_ids(_inputs_of(dataset.element_spec))


def has_ids(x):
    """Return whether inputs are a dict with any `...token_ids`, or a tuple of such dicts."""
    if isinstance(x, tuple):
        return bool(x) and all(map(has_ids, x))
    return isinstance(x, dict) and any(name.endswith("token_ids") for name in x)


def check_separate(x, y, sample_weight):
    """Raise for labels passed with a dataset or generator, as Keras would ignore them.

    Raises:
        ValueError: with how to pass them.
    """
    given = [n for n, v in (("y", y), ("sample_weight", sample_weight)) if v is not None]
    has_batches = is_dataset(x) or hasattr(x, "__next__") or isinstance(x, keras.utils.PyDataset)
    if given and has_batches:
        raise ValueError(
            f"{' and '.join(given)} cannot be passed with a {type(x).__name__}, whose batches "
            "must contain them: let it yield (x, y) or (x, y, sample_weight), for example with "
            "tf.data.Dataset.zip((x, y))."
        )


def _inputs_of(batch):
    return batch[0] if isinstance(batch, tuple) else batch


def passes(dataset, shuffle):
    """Iterate one epoch of a `keras.utils.PyDataset`, as Keras does."""
    dataset.on_epoch_begin()
    size = dataset.num_batches
    order = itertools.count() if size is None else range(size)
    for i in np.random.permutation(size) if shuffle and size is not None else order:
        yield dataset[int(i)]
    dataset.on_epoch_end()


def _is_single(x):
    """Return whether `x` is a single text or a single pair."""
    if isinstance(x, dict):
        x = tuple(x.values())
    return isinstance(x, (str, bytes)) or isinstance(x, tuple) and _is_single(x[0])


def _grouped(rows, size):
    """Batch single examples, each `x`, `(x, y)` or `(x, y, sample_weight)`."""
    while group := [
        row if isinstance(row, tuple) else (row,) for row in itertools.islice(rows, size)
    ]:
        x, *targets = map(list, zip(*group, strict=True))
        if isinstance(x[0], dict):
            x = {name: [row[name] for row in x] for name in x[0]}
        yield (x, *targets)


def is_dataset(x):
    """Return whether this is a `tf.data.Dataset`, or one that `tf.distribute` distributes."""
    return hasattr(x, "element_spec") and hasattr(x, "cardinality")


def split(arrays, share):
    """Split the last share off each array, as `validation_split` does."""
    arrays = (arrays[0], *map(read_once, arrays[1:]))
    columns = arrays[0].values() if isinstance(arrays[0], dict) else arrays[0]
    size = len(next(iter(columns)) if isinstance(arrays[0], (dict, tuple)) else columns)
    cut = int(size * (1 - share))
    if not 0 < cut < size:
        raise ValueError(
            f"validation_split={share} of {size} texts leaves one side empty; use another share, "
            "or pass validation_data."
        )

    def part(array, start, stop):
        if isinstance(array, tuple):
            return tuple(part(one, start, stop) for one in array)
        if isinstance(array, dict):
            return {name: part(one, start, stop) for name, one in array.items()}
        rows = getattr(array, "iloc", array)  # pandas' [] would read numbers as row labels.
        return None if array is None else rows[start:stop]

    return (
        tuple(part(array, 0, cut) for array in arrays),
        tuple(part(array, cut, size) for array in arrays),
    )

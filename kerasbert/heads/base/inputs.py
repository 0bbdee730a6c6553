"""Inputs of task models: texts in memory, and batches from datasets and generators."""

import itertools

import keras
import numpy as np

from kerasbert import backend
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_whole
from kerasbert.encoder.functional import has_ids
from kerasbert.text.batches import UNKNOWN, Passes, Stream, as_tf_data, runs_in_numpy
from kerasbert.text.texts import read_once

# Up to this many rows, starting a tf.data pipeline takes longer than it saves.
FEW = 1024


def is_raw(task, x):
    """Return whether `x` is texts in memory, which the task's preprocessor must convert."""
    if x is None or is_dataset(x):
        return False
    if task.preprocessor is None:
        if _holds_text(x):
            raise ValueError(
                "This model has no preprocessor and takes arrays of token ids, not texts; "
                "set `model.preprocessor`, or load the model with `from_preset`."
            )
        return False
    if has_ids(x) or isinstance(x, dict):
        return not has_ids(x)
    return not isinstance(x, keras.utils.PyDataset) and not hasattr(x, "__next__")


def as_lists(task, texts, method):
    """Return `(texts, single)` for an inference method.

    `texts` is a list, or for pairs a tuple of two lists; `single` is true for a single text or
    pair.
    """
    if task.preprocessor is None:
        raise ValueError(f"{method} takes texts, but this model has no preprocessor.")
    columns, batched = task.preprocessor.columns(texts)
    return (columns if len(columns) > 1 else columns[0]), not batched


def as_batch(task, x, y=None, sample_weight=None):
    """Return `[x, y, sample_weight]` of one batch of texts or arrays as tensors."""
    if is_raw(task, x):
        data = task.preprocessor(x, y, sample_weight)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    to_tensor = keras.ops.convert_to_tensor
    return [
        None if part is None else keras.tree.map_structure(to_tensor, part)
        for part in (x, y, sample_weight)
    ]


def sorted_batches(
    task, x, y=None, sample_weight=None, batch_size=None, few=FEW, preprocessor=None
):
    """Return batches of texts of similar length, and the texts' order in them."""
    check_batch_size(batch_size)
    if backend.is_distributed(task):
        few = 0  # Keras distributes only a dataset's batches.
    return (preprocessor or task.preprocessor).sorted_batches(
        x,
        batch_size or 32,
        y,
        sample_weight,
        buckets=backend.compiles_shapes(task.jit_compile),
        few=few,
    )


# === Batches from datasets and generators ===


def read(task, x, batch_size=None, dynamic=False, shuffle=False, keep=False, steps=None):
    """Return a dataset of features for a dataset, generator or `PyDataset` of texts.

    Inputs of token ids are returned unchanged. `keep` reads up to `steps` batches of a generator
    into memory, for several passes.
    """
    if is_dataset(x):
        return preprocessed(task, x, dynamic, batch_size)
    if hasattr(x, "__next__"):
        return _read_generator(task, x, batch_size, keep, steps)
    if isinstance(x, keras.utils.PyDataset) and is_raw(task, _inputs_of(x[0])):
        return dataset_from(task, lambda: passes(x, shuffle), x[0], x.num_batches)
    return x


def _read_generator(task, batches, batch_size, keep, steps):
    first = next(batches, None)
    if first is None:
        raise ValueError("The generator is empty; create a new one for each use.")
    batches = itertools.chain([first], batches)
    if not is_raw(task, _inputs_of(first)):
        build_on(task, first)
        return (batch for batch in batches)  # Keras accepts only generators.
    if _is_single(_inputs_of(first)):
        batches = _grouped(batches, batch_size or 32)
        first = next(batches)
        batches = itertools.chain([first], batches)
    if not keep:
        return dataset_from(task, lambda: batches, first)
    kept = list(itertools.islice(batches, steps))
    return dataset_from(task, lambda: kept, first, len(kept))


def dataset_from(task, batches, first, size=UNKNOWN, preprocess=None):
    """Return a dataset of features of the batches that `batches()` yields.

    `first`, the first batch, determines the signature; `size` is the number of batches.
    `preprocess` replaces the task's preprocessor.
    """

    def features(batch):
        try:
            parts = batch if isinstance(batch, tuple) else (batch,)
            return keras.tree.map_structure(
                keras.ops.convert_to_numpy, (preprocess or task.preprocessor)(*parts)
            )
        except Exception as error:
            task._running.reading_error = error
            raise

    first = features(first)
    build_on(task, first)
    kind = Stream if size == UNKNOWN else Passes
    size = None if size == UNKNOWN else size
    dataset = kind(lambda number: map(features, batches()), first, size)
    return dataset if runs_in_numpy() else as_tf_data(dataset)


def build_on(task, batch):
    """Build loss and metrics on `batch`, so that Keras takes none from the generator without
    training on it.
    """
    if isinstance(batch, tuple) and len(batch) > 1:
        keras_internals.build_on(task, batch)


def preprocessed(task, dataset, dynamic=False, batch_size=None):
    """Map the preprocessor over a `tf.data.Dataset` of texts."""
    if task.preprocessor is None or is_ready(dataset):
        return dataset
    parts = keras.tree.flatten(_inputs_of(dataset.element_spec))
    if all(part.shape.rank == 0 and part.dtype == "string" for part in parts):
        dataset = dataset.batch(batch_size or 32)
    return task.preprocessor.map_dataset(dataset, dynamic)


# === Kinds of inputs ===


def _holds_text(x):
    while isinstance(x, (list, tuple)) and x:
        x = x[0]
    kind = getattr(getattr(x, "dtype", None), "kind", None)  # NumPy and pandas columns have one.
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
    """Return the result of `rank`, the largest `order_by` (N,) first; ties keep their order."""
    order = np.argsort(-order_by, kind="stable")[:top_k]
    found = [{"corpus_id": int(place), "score": float(scores[place])} for place in order]
    if return_texts:
        for row in found:
            row["text"] = texts[row["corpus_id"]]
    return found


def is_ready(dataset):
    """Return whether a `tf.data.Dataset` already has token ids."""
    return has_ids(_inputs_of(dataset.element_spec))


def check_separate(x, y, sample_weight):
    """Raise for labels beside a dataset or generator, which Keras would ignore.

    Raises:
        ValueError: if so, with the way to pass them.
    """
    given = [n for n, v in (("y", y), ("sample_weight", sample_weight)) if v is not None]
    has_batches = is_dataset(x) or hasattr(x, "__next__") or isinstance(x, keras.utils.PyDataset)
    if given and has_batches:
        raise ValueError(
            f"{' and '.join(given)} cannot be passed with a {type(x).__name__}, whose batches "
            "must contain them: let it yield (x, y) or (x, y, sample_weight), for example with "
            "tf.data.Dataset.zip((x, y))."
        )


def check_labeled(task, y, is_raw):
    """Raise for labels out of range, and for missing labels if the task needs them."""
    is_free = type(task).replaces_steps() and not task.loss_needs_labels
    is_needed = task._needs_labels(is_raw) and not is_free
    if y is None and getattr(task, "loss", None) and is_needed:
        raise ValueError(
            f"{type(task).__name__} got no labels for training or evaluation; pass them as y, "
            "one per text, or use predict()."
        )
    task._check_labels(y)


def check_ids(task, x):
    """Raise for token ids (NumPy arrays or lists) outside the encoder's vocabulary."""
    if not isinstance(x, dict):
        return
    task.backbone.check_padding(x)
    for name in task.id_inputs:
        _check_range(x.get(name), task.backbone.vocabulary_size)


def _check_range(ids, count):
    if isinstance(ids, (list, tuple)):
        try:
            ids = np.asarray(ids)
        except ValueError:  # Keras or `check_arrays` raises an error for ragged rows.
            return
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iuf" or not ids.size:
        return
    if ids.min() < 0 or ids.max() >= count:
        place = np.argwhere((ids < 0) | (ids >= count))[0]
        raise ValueError(
            f"token_ids has {ids[tuple(place)]} at {place.tolist()}, but the encoder's "
            f"vocabulary_size is {count}: ids are 0 to {count - 1}; tokenize with the "
            "tokenizer of this model's preset."
        )


def _inputs_of(batch):
    return batch[0] if isinstance(batch, tuple) else batch


def passes(dataset, shuffle):
    """Yield the batches of one epoch of a `keras.utils.PyDataset`, as Keras does."""
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
    """Group examples, each `x`, `(x, y)` or `(x, y, sample_weight)`, into lists of `size`."""
    while group := [
        row if isinstance(row, tuple) else (row,) for row in itertools.islice(rows, size)
    ]:
        x, *targets = map(list, zip(*group, strict=True))
        if isinstance(x[0], dict):
            x = {name: [row[name] for row in x] for name in x[0]}
        yield (x, *targets)


def is_dataset(x):
    """Return whether this is a `tf.data.Dataset`, also a distributed one."""
    return hasattr(x, "element_spec") and hasattr(x, "cardinality")


def split(arrays, share):
    """Split a share of rows off the end of each array, as `validation_split` does."""
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
        rows = getattr(array, "iloc", array)  # pandas would use row labels.
        return None if array is None else rows[start:stop]

    return (
        tuple(part(array, 0, cut) for array in arrays),
        tuple(part(array, cut, size) for array in arrays),
    )

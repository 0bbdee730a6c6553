"""Batches made while the model runs: in NumPy by a thread, or as a `tf.data.Dataset`.

Shapes: B examples per batch.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from kerasbert import backend
from kerasbert.backend.tensorflow import tf
from kerasbert.text import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

AHEAD = 4
ENDLESS, UNKNOWN = -1, -2  # Cardinalities of a `tf.data.Dataset`.


class Spec(NamedTuple):
    """Shape and type of an array of a batch. A varying size is `None`."""

    shape: tuple[int | None, ...]
    dtype: np.dtype


class ReadsAhead(keras.utils.PyDataset):
    """Batches of NumPy arrays, made ahead by a thread.

    A subclass defines `example` (a batch, which shows the structure), `made_from` and `map`.
    Methods without a docstring are those of a `tf.data.Dataset`.

    Args:
        num_batches: int. `None` means without end.
    """

    def __init__(self, num_batches: int | None) -> None:
        super().__init__()
        self._count, self._thread, self._next = num_batches, None, 0

    @property
    def num_batches(self) -> int | None:
        return self._count

    def made_from(self, number: int) -> Iterator[Any]:
        """Return an iterator over the batches of a pass, from index `number` on."""
        raise NotImplementedError

    def __getitem__(self, number: int) -> Any:
        if self._thread is None or number != self._next:
            self._stop()
            self._batches, self._ahead = iter(self.made_from(number)), collections.deque()
            self._thread = ThreadPoolExecutor(1)
        while len(self._ahead) <= AHEAD:
            self._ahead.append(self._thread.submit(next, self._batches, None))
        try:
            batch = self._ahead.popleft().result()
        except BaseException:
            self._stop()
            raise
        self._next = number + 1
        if self._next == self.num_batches:
            self._ahead.popleft().result()  # Runs the generator to its end.
            self._stop()
        return batch

    def _stop(self):
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._thread = self._batches = self._ahead = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_thread": None, "_batches": None, "_ahead": None}

    def cardinality(self) -> int:
        return ENDLESS if self.num_batches is None else self.num_batches

    @property
    def element_spec(self) -> Any:
        return keras.tree.map_structure(lambda x: Spec((None,) * np.ndim(x), x.dtype), self.example)

    def as_numpy_iterator(self) -> Iterator[Any]:
        numbers = itertools.count() if self.num_batches is None else range(self.num_batches)
        for number in numbers:
            batch = self[number]
            if batch is None:
                return
            yield batch

    def __iter__(self) -> Iterator[Any]:
        return self.as_numpy_iterator()


class Passes(ReadsAhead):
    """Batches that are the same in every pass.

    Args:
        function: function of an index that returns an iterator over the batches from there on.
        example: a batch.
        num_batches: int. `None` means without end.
        first: index of the first batch.
    """

    def __init__(
        self,
        function: Callable[[int], Iterator[Any]],
        example: Any,
        num_batches: int | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(num_batches)
        self._function, self.example, self._first = function, example, first

    def made_from(self, number: int) -> Iterator[Any]:
        return self._function(self._first + number)

    def map(self, function: Callable[..., Any]) -> Passes:
        def mapped(number):
            return itertools.starmap(function, self._function(number))

        return type(self)(mapped, function(*self.example), self._count, self._first)

    def take(self, count: int) -> Passes:
        count = count if self._count is None else min(count, self._count)

        def taken(number):
            return itertools.islice(self._function(number), self._first + count - number)

        return Passes(taken, self.example, count, self._first)

    def as_numpy_iterator(self) -> Iterator[Any]:
        # Each pass reads a copy, so that several can be read at once.
        return super(Passes, copy.copy(self)).as_numpy_iterator()


class Stream(Passes):
    """An unknown number of batches, from a generator."""

    def for_keras(self) -> Iterator[Any]:
        """Return a generator of tuples, as Keras needs for an unknown number of batches."""
        return (x if isinstance(x, tuple) else (x,) for x in self.as_numpy_iterator())

    def cardinality(self) -> int:
        return UNKNOWN


class Batches(ReadsAhead):
    """Batches made in NumPy, planned again for every epoch.

    A batch depends only on the epoch and its index. The next epoch begins with the batch after an
    epoch's last.

    Args:
        plan: function of the epoch that returns a list of int arrays (B,) of row numbers.
        make_batch: function of row numbers and, with `seeds`, of a seed that returns a batch of
            NumPy arrays.
        seeds: function of the epoch that returns ints, from which batches draw their seeds.
        first_epoch: int.
    """

    def __init__(
        self,
        plan: Callable[..., Any],
        make_batch: Callable[..., Any],
        seeds: Callable[..., Any] | None = None,
        first_epoch: int = 0,
    ) -> None:
        super().__init__(len(plan(0)))
        self._plan, self._make, self._seeds, self._epoch = plan, make_batch, seeds, first_epoch

    def map(self, function: Callable[..., Any]) -> Batches:
        def make(*arguments):
            return function(*self._make(*arguments))

        return Batches(self._plan, make, self._seeds, self._epoch)

    def __len__(self) -> int:
        return self.num_batches

    @functools.cached_property
    def example(self) -> Any:
        """A batch, which shows the structure."""
        return next(self._made(0))

    def made_from(self, number: int) -> Iterator[Any]:
        if number == 0 and self._next == self.num_batches:
            self._epoch, self._next = self._epoch + 1, 0
        return self._made(number)

    def _made(self, number):
        batches = self._plan(self._epoch)
        if self._seeds is None:
            return map(self._make, batches[number:])
        seeds = draw_seeds(self._seeds(self._epoch), len(batches))
        return map(self._make, batches[number:], seeds[number:])


def runs_in_numpy() -> bool:
    """Return whether batches for `fit` are made in NumPy.

    If Keras trains with TensorFlow, or if `keras.distribution` splits batches over processes, a
    `tf.data.Dataset` is read instead.
    """
    given = keras.distribution.distribution()
    is_split = given is not None and given.num_processes > 1 and given.auto_shard_dataset
    return not (backend.trains_in_graphs() or is_split)


def batch_dataset(
    plan: Callable[..., Any],
    make_batch: Any,
    seeds: Callable[..., Any] | None = None,
    first_epoch: int = 0,
) -> Any:
    """Make a `tf.data.Dataset` of batches planned again for every epoch.

    Python runs once per epoch; the graph makes and prefetches batches in parallel.

    Args:
        plan: function of the epoch that returns a list of int arrays (B,). The number is the same
            for all epochs.
        make_batch: traced function of row numbers (B,) and, with `seeds`, a seed, int64 (2,).
        seeds: function of the epoch that returns ints, from which batches draw their seeds.
        first_epoch: int.
    """
    epochs = itertools.count(first_epoch)

    def one_epoch():
        epoch = next(epochs)
        batches = plan(epoch)
        ends = np.cumsum([len(batch) for batch in batches])
        drawn = draw_seeds((0,) if seeds is None else seeds(epoch), len(batches))
        return np.concatenate(batches), np.append(0, ends[:-1]), ends, drawn

    @tf.autograph.experimental.do_not_convert
    def cut(_):
        rows, begins, ends, drawn = tf.numpy_function(one_epoch, [], [tf.int64] * 4)
        for one in (rows, begins, ends):
            one.set_shape([None])
        drawn.set_shape([None, 2])
        # For a ragged tensor, TensorFlow would log long warnings.
        parts = tf.data.Dataset.from_tensor_slices((begins, ends, drawn))
        return parts.map(lambda begin, end, seed: (rows[begin:end], seed))

    num_batches = len(plan(0))
    # `from_generator` would take a quarter longer to build and start.
    rows = tf.data.Dataset.range(1).flat_map(cut)
    # Keras shows the number of steps only if the cardinality is known.
    rows = rows.apply(tf.data.experimental.assert_cardinality(num_batches))

    @tf.autograph.experimental.do_not_convert
    def make(rows, seed):
        return make_batch(rows) if seeds is None else make_batch(rows, seed)

    return map_ahead(rows, make)


def rows_of_part(dataset, index, count):
    """Split each batch of a `tf.data.Dataset` or `ReadsAhead` into `count` parts and keep one.

    Unequal parts are padded with rows of weight 0, and their other weights increased, so that the
    mean of the parts' losses equals that of the batch.

    Args:
        dataset: yields `(x, y)` or `(x, y, sample_weight)`.
        index: index of the part to keep, from 0.
        count: number of parts.

    >>> dataset = tf.data.Dataset.from_tensors((tf.constant([5, 6, 7]), tf.constant([0, 1, 1])))
    >>> for part in (0, 1):
    ...     x, y, weight = next(rows_of_part(dataset, part, 2).as_numpy_iterator())
    ...     print(x.tolist(), y.tolist(), [f"{one:.2f}" for one in weight])
    [5, 6] [0, 1] ['1.33', '1.33']
    [7, 5] [1, 0] ['1.33', '0.00']
    """

    def part(x, y, sample_weight=None):
        size = ops.shape(keras.tree.flatten(x)[0])[0]
        own = -(-size // count)
        rows = index * own + ops.range(own)
        more = ops.cast(own * count, "float32") / ops.cast(size, "float32")
        weight = ops.where(rows < size, more, 0.0)  # (own,)
        rows = rows % size

        def weighted(given):
            if given is None:
                return weight
            axes = [1] * (len(given.shape) - 1)
            return ops.cast(ops.gather(given, rows), "float32") * ops.reshape(weight, [-1, *axes])

        if isinstance(y, dict):
            given = sample_weight or {}
            weights = {name: weighted(given.get(name)) for name in y}
        elif isinstance(y, (tuple, list)):
            weights = tuple(map(weighted, sample_weight or [None] * len(y)))
        else:
            weights = weighted(sample_weight)
        x, y = keras.tree.map_structure(lambda rows_of: ops.gather(rows_of, rows), (x, y))
        return x, y, weights

    if isinstance(dataset, ReadsAhead):
        return dataset.map(part)
    return dataset.map(tf.autograph.experimental.do_not_convert(part))


def as_tensors(outputs):
    """Convert nested tensors of TensorFlow to tensors of the current backend."""
    return keras.tree.map_structure(
        lambda rows: keras.ops.convert_to_tensor(np.asarray(rows)), outputs
    )


def on_first_texts(dataset, look):
    """Call a function with the texts of a dataset's first batch when it is read.

    Args:
        dataset: yields `x`, or a tuple that begins with `x`.
        look: function of a list of bytes per column of `x`.

    Returns:
        A dataset of the same batches. `look` is called only for batches of strings, and not with a
        distribution strategy, whose workers may be other machines.
    """
    spec = dataset.element_spec
    parts = keras.tree.flatten(spec[0] if isinstance(spec, tuple) else spec)
    if tf.distribute.has_strategy() or any(
        not isinstance(part, tf.TensorSpec) or part.dtype != tf.string or part.shape.rank != 1
        for part in parts
    ):
        return dataset

    def look_at(*columns):
        columns = [column.numpy().tolist() for column in columns]
        if all(columns):
            look(columns)
        return np.int32(0)

    @tf.autograph.experimental.do_not_convert
    def looked_at(number, batch):
        columns = keras.tree.flatten(batch[0] if isinstance(spec, tuple) else batch)
        done = ops.cond(
            number == 0,
            lambda: tf.ensure_shape(tf.py_function(look_at, columns, "int32"), []),
            lambda: 0,
        )
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    return dataset.enumerate().map(looked_at)


def draw_seeds(seed, count):
    """Return seeds, int64 (count, 2), that a tuple of ints determines."""
    return np.random.default_rng(seed).integers(2**62, size=(count, 2))


def map_ahead(dataset: Any, make: Callable[..., Any]) -> Any:
    """Map a `tf.data.Dataset` in parallel and in order, and prefetch the results."""
    parallel = os.cpu_count() or 1
    return _prefetched(dataset.map(make, num_parallel_calls=parallel, deterministic=True))


def _prefetched(dataset):
    options = tf.data.Options()
    # At its end, an iterator waits for the autotune thread, whose sleep doubles each time, up to
    # the epoch's duration (TensorFlow 2.21).
    options.autotune.enabled = False
    # Without files to divide, each worker reads its part of every batch.
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.prefetch(AHEAD).with_options(options)


def as_tf_data(batches: ReadsAhead) -> Any:
    """Read batches as a `tf.data.Dataset`."""

    def spec(x):
        return tf.TensorSpec((None,) * x.ndim, x.dtype)

    with tf.device("cpu"):
        dataset = tf.data.Dataset.from_generator(
            batches.as_numpy_iterator,
            output_signature=keras.tree.map_structure(spec, batches.example),
        )
        if (count := batches.cardinality()) != UNKNOWN:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        return _prefetched(dataset)

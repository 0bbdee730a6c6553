"""TensorFlow's names for array operations, in NumPy on data in memory and in TensorFlow in graphs.

Packing, masking and windows are written once with these functions: on NumPy arrays and `Ragged`
they run in NumPy, with a tensor among their arguments in TensorFlow, which a graph needs. Functions
have the arguments and the results of TensorFlow's of the same name, as far as they are used.

Shapes: N rows, V values of all rows.
"""

from __future__ import annotations

import functools
import random
import sys
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import rows_of as _rows_in_graph
from kerasbert.backend.tensorflow import rows_where as _rows_where_in_graph
from kerasbert.backend.tensorflow import tf

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_DTYPES = ("bool", "int32", "int64", "float32", "float64")
# The names of TensorFlow below hide these.
_numbers = range


def is_tensor(x: Any) -> bool:
    """Return whether this is a TensorFlow tensor or ragged tensor, without importing TensorFlow."""
    return type(x).__module__.startswith("tensorflow")


def in_graph() -> bool:
    """Return whether TensorFlow is tracing a graph."""
    return sys.modules.get("tensorflow") is not None and not tf.executing_eagerly()


class Ragged:
    """Rows of different lengths in NumPy, with the methods of `tf.RaggedTensor` that are used.

    Args:
        values: array (V, ...), or a `Ragged` of the inner rows.
        row_splits: ints (N + 1,).

    >>> rows = Ragged(np.array([5, 6, 7]), [0, 1, 1, 3])
    >>> rows.to_list(), rows[1:].to_list(), rows[:, 1:].to_list()
    ([[5], [], [6, 7]], [[], [6, 7]], [[], [], [7]])
    """

    def __init__(self, values: Any, row_splits: Any) -> None:
        self.values = values
        self.row_splits = np.asarray(row_splits, "int64")

    @classmethod
    def from_row_lengths(cls, values: Any, row_lengths: Any) -> Ragged:
        return cls(values, np.append(0, np.cumsum(row_lengths, dtype="int64")))

    @classmethod
    def from_lists(cls, rows: Any, dtype: Any = "int32") -> Ragged:
        """Make one from a list of lists of numbers."""
        values = [np.asarray(row, dtype) for row in rows]
        flat = np.concatenate(values) if values else np.zeros(0, dtype)
        return cls.from_row_lengths(flat, [len(row) for row in rows])

    @classmethod
    def from_tensor(cls, x: Any) -> Ragged:
        x = np.asarray(x)
        return cls.from_row_lengths(x.reshape(-1, *x.shape[2:]), np.full(len(x), x.shape[1]))

    @property
    def flat_values(self) -> np.ndarray:
        return self.values.flat_values if isinstance(self.values, Ragged) else self.values

    @property
    def dtype(self) -> np.dtype:
        return self.flat_values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (len(self), None, *self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def nrows(self) -> int:
        return len(self)

    def row_lengths(self) -> np.ndarray:
        return np.diff(self.row_splits)

    def row_starts(self) -> np.ndarray:
        return self.row_splits[:-1]

    def row_limits(self) -> np.ndarray:
        return self.row_splits[1:]

    def value_rowids(self) -> np.ndarray:
        return np.repeat(np.arange(len(self)), self.row_lengths())

    def with_values(self, values: Any) -> Ragged:
        return Ragged(values, self.row_splits)

    def with_flat_values(self, values: Any) -> Ragged:
        if isinstance(self.values, Ragged):
            values = self.values.with_flat_values(values)
        return self.with_values(values)

    def with_row_splits_dtype(self, dtype: Any) -> Ragged:
        return self

    def merge_dims(self, outer: int, inner: int) -> Ragged:
        """Join the inner rows of each row; `outer` and `inner` must be 1 and 2."""
        return Ragged(self.values.values, self.values.row_splits[self.row_splits])

    def take(self, rows: Any) -> Ragged:
        """Return the rows with these numbers."""
        rows = np.asarray(rows)
        lengths = self.row_lengths()[rows]
        splits = np.append(0, np.cumsum(lengths))
        index = np.repeat(self.row_splits[:-1][rows] - splits[:-1], lengths)
        index += np.arange(splits[-1])
        values = self.values
        return Ragged(values.take(index) if isinstance(values, Ragged) else values[index], splits)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            rows, places = key
            if rows != slice(None) or places.step:
                raise IndexError(f"{key} is neither rows nor a part of all rows.")
            starts, lengths = self.row_starts(), self.row_lengths()
            first, last = (
                default if place is None else np.where(place < 0, lengths + place, place)
                for place, default in ((places.start, 0), (places.stop, lengths))
            )
            last = np.clip(last, 0, lengths)
            first = np.clip(first, 0, last)
            index = ragged_range(starts + first, starts + last)
            return Ragged(self.values[index.values], index.row_splits)
        if isinstance(key, slice):
            return self.take(np.arange(len(self))[key])
        key = _numbers(len(self))[key]  # Counts negative ones from the end.
        return self.values[self.row_splits[key] : self.row_splits[key + 1]]

    def __iter__(self) -> Any:
        return (self[row] for row in _numbers(len(self)))

    def __mod__(self, number: int) -> Ragged:
        return self.with_flat_values(self.flat_values % number)

    def to_list(self) -> list[Any]:
        values = self.values
        values = values.to_list() if isinstance(values, Ragged) else values.tolist()
        splits = self.row_splits.tolist()
        return [values[a:b] for a, b in zip(splits[:-1], splits[1:])]

    def to_tensor(self, default_value: Any = 0, shape: Any = None) -> np.ndarray:
        """Pad the rows at their ends, to the longest one or to `shape`."""
        values = self.values
        if isinstance(values, Ragged):
            values = values.to_tensor(default_value, None if shape is None else shape[1:])
        lengths = self.row_lengths()
        width = int(lengths.max(initial=0))
        if shape is not None and shape[1] not in (None, -1):
            width = int(shape[1])
        padded = np.full((len(self), width, *values.shape[1:]), default_value, values.dtype)
        place = np.arange(len(values)) - np.repeat(self.row_starts(), lengths)
        row = np.repeat(np.arange(len(self)), lengths)
        kept = place < width
        padded[row[kept], place[kept]] = values[kept]
        return padded


def as_ragged(x: Any) -> Ragged:
    """Return a `tf.RaggedTensor` as a `Ragged`, others unchanged."""
    if not is_tensor(x):
        return x
    values = x.values
    values = as_ragged(values) if hasattr(values, "row_splits") else values.numpy()
    return Ragged(values, x.row_splits.numpy())


def as_tensor(x: Any) -> Any:
    """Return a `Ragged` as a `tf.RaggedTensor`, and arrays as tensors."""
    if not isinstance(x, Ragged):
        return tf.convert_to_tensor(x)
    return tf.RaggedTensor.from_row_splits(as_tensor(x.values), x.row_splits, validate=False)


def _holds_tensor(args):
    return any(_holds_tensor(x) if isinstance(x, (list, tuple)) else is_tensor(x) for x in args)


def _for_tensorflow(x):
    if isinstance(x, str):
        return tf.as_dtype(x) if x in _DTYPES else x
    return as_tensor(x) if isinstance(x, Ragged) else x


def _in_both(name: str) -> Callable[..., Any]:
    """Make a NumPy function call TensorFlow's of this name if an argument is a tensor."""

    def decorate(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            if not (_holds_tensor(args) or _holds_tensor(kwargs.values())):
                return function(*args, **kwargs)
            found = tf
            for part in name.split("."):
                found = getattr(found, part)
            args = [_for_tensorflow(x) for x in args]
            kwargs = {key: _for_tensorflow(x) for key, x in kwargs.items()}
            return found(*args, **kwargs)

        return run

    return decorate


abs = _in_both("abs")(np.abs)
minimum = _in_both("minimum")(np.minimum)
maximum = _in_both("maximum")(np.maximum)
round = _in_both("round")(np.round)
floor = _in_both("floor")(np.floor)
equal = _in_both("equal")(np.equal)
clip_by_value = _in_both("clip_by_value")(np.clip)
broadcast_to = _in_both("broadcast_to")(np.broadcast_to)
tile = _in_both("tile")(np.tile)
transpose = _in_both("transpose")(np.transpose)
reduce_any = _in_both("reduce_any")(np.any)
reduce_all = _in_both("reduce_all")(np.all)


@_in_both("convert_to_tensor")
def convert_to_tensor(x, dtype=None):
    return np.asarray(x, _dtype(dtype))


@_in_both("cast")
def cast(x, dtype):
    if isinstance(x, Ragged):
        return x.with_flat_values(cast(x.flat_values, dtype))
    return np.asarray(x).astype(_dtype(dtype), copy=False)


def _dtype(dtype):
    return getattr(dtype, "as_numpy_dtype", dtype)


@_in_both("shape")
def shape(x, out_type="int32"):
    return np.array(np.shape(x), out_type)


@_in_both("size")
def size(x, out_type="int32"):
    return np.dtype(out_type).type(np.size(x))


@_in_both("range")
def range(*limits, dtype="int32"):
    return np.arange(*limits, dtype=dtype)


@_in_both("where")
def where(condition, x=None, y=None):
    if x is None:
        return np.argwhere(condition)
    return np.where(condition, *_alike(x, y))


def _alike(x, y):
    """Give a Python number the type of the other value, as TensorFlow does."""
    if not hasattr(x, "dtype"):
        x = np.asarray(x, getattr(y, "dtype", None) or _usual(x))
    if not hasattr(y, "dtype"):
        y = np.asarray(y, x.dtype)
    return x, y


def _usual(x):
    return np.result_type(np.asarray(x), "int8").name.replace("64", "32")


@_in_both("gather")
def gather(params, indices, axis=None, batch_dims=0):
    if isinstance(params, Ragged):
        return params.take(indices)
    params, indices = np.asarray(params), np.asarray(indices)
    if batch_dims == 0:
        return np.take(params, indices, axis=axis or 0)
    shape = (len(params), *[1] * (indices.ndim - 1))
    return params[np.arange(len(params)).reshape(shape), indices]


@_in_both("gather_nd")
def gather_nd(params, indices):
    return np.asarray(params)[tuple(np.moveaxis(np.asarray(indices), -1, 0))]


@_in_both("concat")
def concat(values, axis):
    values = list(values)
    ragged = [x for x in values if isinstance(x, Ragged)]
    if ragged and axis == 0:
        lengths = np.concatenate([x.row_lengths() for x in values])
        return Ragged.from_row_lengths(concat([x.values for x in values], 0), lengths)
    if ragged:
        rows = [x if isinstance(x, Ragged) else Ragged.from_tensor(x) for x in values]
        lengths = np.stack([x.row_lengths() for x in rows], axis=1)  # (N, parts)
        joined = concat([x.values for x in rows], 0)
        # The parts of a row follow each other.
        first = np.cumsum([0, *(len(x.values) for x in rows[:-1])])
        starts = np.stack([x.row_starts() for x in rows], axis=1) + first
        counts = lengths.reshape(-1)
        ends = np.cumsum(counts)
        index = np.arange(ends[-1] if len(ends) else 0)
        index += np.repeat(starts.reshape(-1) - (ends - counts), counts)
        return Ragged.from_row_lengths(gather(joined, index), lengths.sum(axis=1))
    typed = next((x.dtype for x in values if hasattr(x, "dtype")), None)
    return np.concatenate([np.asarray(x, typed) for x in values], axis)


@_in_both("stack")
def stack(values, axis=0):
    typed = next((x.dtype for x in values if hasattr(x, "dtype")), "int32")
    return np.stack([np.asarray(x, typed) for x in values], axis)


@_in_both("unstack")
def unstack(x):
    return list(x)


@_in_both("reshape")
def reshape(x, shape):
    return np.reshape(x, [int(size) for size in shape])


@_in_both("pad")
def pad(x, paddings, constant_values=0):
    return np.pad(x, [[int(n) for n in pair] for pair in paddings], constant_values=constant_values)


@_in_both("fill")
def fill(dims, value):
    value = np.asarray(value)
    dtype = value.dtype if value.dtype.kind != "i" or value.ndim else "int32"
    return np.full([int(size) for size in dims], value, dtype)


@_in_both("zeros_like")
def zeros_like(x, dtype=None):
    return np.zeros_like(x, _dtype(dtype))


@_in_both("ones_like")
def ones_like(x, dtype=None):
    if isinstance(x, Ragged):
        return x.with_flat_values(np.ones_like(x.flat_values, _dtype(dtype)))
    return np.ones_like(x, _dtype(dtype))


@_in_both("reduce_sum")
def reduce_sum(x, axis=None, keepdims=False):
    x = np.asarray(x)
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


@_in_both("reduce_max")
def reduce_max(x, axis=None):
    if isinstance(x, Ragged):
        return _by_row(np.maximum, x)
    x = np.asarray(x)
    return np.max(x, axis=axis, initial=_least(x.dtype))


def _least(dtype):
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _by_row(reduce, rows):
    """Reduce each row of a `Ragged`; an empty one gives the least number."""
    found = np.full(len(rows), _least(rows.dtype), rows.dtype)
    reduce.at(found, rows.value_rowids(), rows.values)
    return found


@_in_both("cumsum")
def cumsum(x, axis=0, exclusive=False):
    x = np.asarray(x)
    total = np.cumsum(x, axis=axis, dtype=x.dtype)
    return total - x if exclusive else total


@_in_both("searchsorted")
def searchsorted(sorted_sequence, values, side="left", out_type="int32"):
    if np.ndim(sorted_sequence) == 1:
        return np.searchsorted(sorted_sequence, values, side).astype(_dtype(out_type))
    rows = [np.searchsorted(a, b, side) for a, b in zip(sorted_sequence, values, strict=True)]
    return np.array(rows, _dtype(out_type)).reshape(np.shape(values))


@_in_both("math.top_k")
def top_k(x, k):
    order = np.argsort(-x, axis=-1, kind="stable")[..., : int(k)]
    return np.take_along_axis(x, order, -1), order.astype("int32")


@_in_both("sort")
def sort(x, axis=-1):
    return np.sort(x, axis)


@_in_both("argmax")
def argmax(x, axis=0, output_type="int64"):
    return np.argmax(x, axis).astype(_dtype(output_type))


@_in_both("one_hot")
def one_hot(indices, depth):
    return (indices[..., None] == np.arange(depth)).astype("float32")


@_in_both("sequence_mask")
def sequence_mask(lengths, maxlen):
    return np.arange(int(maxlen)) < np.asarray(lengths)[..., None]


@_in_both("tensor_scatter_nd_update")
def tensor_scatter_nd_update(x, indices, updates):
    x = np.array(x)
    x[tuple(np.moveaxis(np.asarray(indices), -1, 0))] = updates
    return x


def _segments(reduce, least):
    def of_segments(data, segment_ids, num_segments):
        data = np.asarray(data)
        found = np.full((int(num_segments), *data.shape[1:]), least(data.dtype), data.dtype)
        reduce.at(found, np.asarray(segment_ids).reshape(-1), data.reshape(-1))
        return found

    def run(data, segment_ids, num_segments):
        # Segments with negative numbers are dropped.
        data, ids = np.asarray(data).reshape(-1), np.asarray(segment_ids).reshape(-1)
        return of_segments(data[ids >= 0], ids[ids >= 0], num_segments)

    return run


unsorted_segment_sum = _in_both("math.unsorted_segment_sum")(_segments(np.add, lambda dtype: 0))
unsorted_segment_min = _in_both("math.unsorted_segment_min")(
    _segments(np.minimum, lambda dtype: np.iinfo(dtype).max)
)
unsorted_segment_max = _in_both("math.unsorted_segment_max")(
    _segments(np.maximum, lambda dtype: np.iinfo(dtype).min)
)


@_in_both("ragged.range")
def ragged_range(starts, limits=None):
    if limits is None:
        starts, limits = np.zeros_like(starts), starts
    lengths = np.maximum(limits - starts, 0)
    splits = np.append(0, np.cumsum(lengths, dtype="int64"))
    values = np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)
    return Ragged(values.astype(np.asarray(starts).dtype), splits)


def rows_of(rows):
    """Return the row of each value of ragged rows: int64 (V,)."""
    return rows.value_rowids() if isinstance(rows, Ragged) else _rows_in_graph(rows)


def rows_where(mask, *arrays):
    """Return a list with the rows of each array where `mask` (N,) is true."""
    if not _holds_tensor((mask, *arrays)):
        return [np.asarray(array)[mask] for array in arrays]
    return _rows_where_in_graph(mask, *arrays)


def column(rows, number):
    """Return ragged rows (N, 1) of one number, to join with the rows (N, None)."""
    if not is_tensor(rows):
        return Ragged.from_tensor(np.full((len(rows), 1), number, "int32"))
    filled = tf.fill([rows.nrows(), 1], tf.constant(number, tf.int32))
    filled = tf.RaggedTensor.from_tensor(filled)
    return filled.with_row_splits_dtype(rows.row_splits.dtype)


@_in_both("ensure_shape")
def ensure_shape(x, shape):
    if len(x.shape) != len(shape) or any(b not in (None, a) for a, b in zip(x.shape, shape)):
        raise ValueError(f"The shape {x.shape} is not {shape}.")
    return x


def strings_join(before, texts):
    """Put a string before each of the texts, a list or a tensor."""
    if is_tensor(texts):
        return tf.strings.join([before, texts])
    return [before.encode() + text if isinstance(text, bytes) else before + text for text in texts]


def check(good, message, *data):
    """Raise unless all are true: a ValueError, or TensorFlow's error inside a graph."""
    if is_tensor(good):
        return tf.debugging.Assert(tf.reduce_all(good), [message, *data], summarize=32)
    if not np.all(good):
        raise ValueError(" ".join(map(str, [message, *data])))
    return None


# === Random numbers, those of TensorFlow ===


def _philox(counter, key):
    """Apply Philox 4x32 with 10 rounds to counters uint32 (N, 4) with one key uint32 (2,).

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
    """
    a, b, c, d = (counter[:, i].astype("uint64") for i in _numbers(4))
    key = [int(part) for part in key]
    low = np.uint64(0xFFFFFFFF)
    for _ in _numbers(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a = (second >> np.uint64(32)) ^ b ^ np.uint64(key[0])
        c = (first >> np.uint64(32)) ^ d ^ np.uint64(key[1])
        b, d = second & low, first & low
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack([a, b, c, d], axis=1).astype("uint32")


def _random_bits(count, seed):
    """Return uint32 (count,) for a seed of two ints, as TensorFlow's stateless operations do."""
    seed = np.asarray(seed).astype("int64").view("uint64")
    halves = np.stack([seed, seed >> np.uint64(32)], axis=1).astype("uint32").reshape(1, 4)
    mixed = _philox(halves, (0x3EC8F720, 0x02461E29))[0]
    counter = np.zeros((-(-count // 4), 4), "uint32")
    numbers = np.arange(len(counter), dtype="uint64")
    counter[:, 0], counter[:, 1] = numbers, numbers >> np.uint64(32)
    counter[:, 2:] = mixed[2:]
    return _philox(counter, mixed[:2]).reshape(-1)[:count]


def stateless_uniform(shape, seed, minval=0, maxval=None, dtype="float32"):
    """Draw numbers from 0 below 1, or whole ones from `minval` below `maxval`.

    A seed gives the same numbers in NumPy, in TensorFlow and on every device.
    """
    if _holds_tensor((shape, seed)):
        return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype, alg="philox")
    shape = [int(one) for one in shape]
    bits = _random_bits(int(np.prod(shape)), seed).reshape(shape)
    if dtype == "float32":
        return (bits & 0x7FFFFF | 0x3F800000).astype("uint32").view("float32") - np.float32(1)
    return (minval + (bits % np.uint32(maxval - minval)).astype("int64")).astype(dtype)


def draw_seed():
    """Draw a seed that `keras.utils.set_random_seed` reproduces, ints (2,)."""
    if in_graph():
        return tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)
    return np.array([random.randrange(2**31) for _ in _numbers(2)])


def split_seed(seed, count):
    """Return `count` seeds that a seed determines, ints (count, 2)."""
    if is_tensor(seed):
        return tf.random.split(seed, count, alg="philox")
    dtype = np.asarray(seed).dtype
    return _random_bits(count * 2 * dtype.itemsize // 4, seed).view(dtype).reshape(count, 2)


# === Loops ===


@_in_both("cond")
def cond(pred, true_fn, false_fn):
    return true_fn() if pred else false_fn()


@_in_both("while_loop")
def while_loop(cond, body, loop_vars):
    while cond(*loop_vars):
        loop_vars = body(*loop_vars)
    return loop_vars


@_in_both("scan")
def scan(fn, elems, initializer, reverse=False):
    is_nested = isinstance(elems, tuple)
    steps = list(zip(*elems)) if is_nested else list(elems)
    state, found = initializer, []
    for step in reversed(steps) if reverse else steps:
        state = fn(state, step)
        found.append(state)
    found = found[::-1] if reverse else found
    if not isinstance(initializer, tuple):
        return np.stack(found)
    return tuple(map(np.stack, zip(*found)))

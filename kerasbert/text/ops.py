"""Array operations for NumPy and for TensorFlow graphs, with TensorFlow's names and results.

Packing, masking and windows are written once, with these functions. They run in NumPy on arrays and
`Ragged`, and in TensorFlow if an argument is a tensor.

Shapes: N rows, V values of all rows.
"""

from __future__ import annotations

import functools
import random
import sys
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.text.ragged import Ragged, ranges

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_DTYPES = ("bool", "int32", "int64", "float32", "float64")
# `range` below hides the built-in function.
_numbers = range


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a TensorFlow tensor or ragged tensor."""
    return _is_of_tensorflow(type(x))


@functools.cache
def _is_of_tensorflow(kind):
    return kind.__module__.startswith("tensorflow")


def in_graph() -> bool:
    """Return whether TensorFlow is tracing a graph."""
    return sys.modules.get("tensorflow") is not None and not tf.executing_eagerly()


def as_ragged(x: Any) -> Ragged:
    """Convert a `tf.RaggedTensor` to a `Ragged`; return other values unchanged."""
    if not is_tensor(x):
        return x
    values = x.values
    values = as_ragged(values) if hasattr(values, "row_splits") else values.numpy()
    return Ragged(values, x.row_splits.numpy())


def as_tensor(x: Any) -> Any:
    """Convert a `Ragged` to a `tf.RaggedTensor`, and arrays to tensors."""
    if not isinstance(x, Ragged):
        return tf.convert_to_tensor(x)
    return tf.RaggedTensor.from_row_splits(as_tensor(x.values), x.row_splits, validate=False)


def _holds_tensor(args):
    # A generator would take as long as a small operation of NumPy.
    for x in args:
        if _holds_tensor(x) if isinstance(x, (list, tuple)) else _is_of_tensorflow(type(x)):
            return True
    return False


def _for_tensorflow(x):
    if isinstance(x, str):
        return tf.as_dtype(x) if x in _DTYPES else x
    return as_tensor(x) if isinstance(x, Ragged) else x


def _in_both(name: str) -> Callable[..., Any]:
    """Make a NumPy function call TensorFlow's `name` if an argument is a tensor."""

    def decorate(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            if not (_holds_tensor(args) or kwargs and _holds_tensor(kwargs.values())):
                return function(*args, **kwargs)
            found = tf
            for part in name.split("."):
                found = getattr(found, part)
            args = [_for_tensorflow(x) for x in args]
            kwargs = {key: _for_tensorflow(x) for key, x in kwargs.items()}
            return found(*args, **kwargs)

        return run

    return decorate


minimum = _in_both("minimum")(np.minimum)
maximum = _in_both("maximum")(np.maximum)
round = _in_both("round")(np.round)
floor = _in_both("floor")(np.floor)
equal = _in_both("equal")(np.equal)
broadcast_to = _in_both("broadcast_to")(np.broadcast_to)
tile = _in_both("tile")(np.tile)
transpose = _in_both("transpose")(np.transpose)
reduce_any = _in_both("reduce_any")(np.any)
reduce_all = _in_both("reduce_all")(np.all)
sort = _in_both("sort")(np.sort)
unstack = _in_both("unstack")(list)


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
    """Convert a Python number to the type of the other value, as TensorFlow does."""
    if not hasattr(x, "dtype"):
        usual = np.result_type(np.asarray(x), "int8").name.replace("64", "32")
        x = np.asarray(x, getattr(y, "dtype", None) or usual)
    if not hasattr(y, "dtype"):
        y = np.asarray(y, x.dtype)
    return x, y


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
    indices = np.asarray(indices)
    return np.asarray(params)[tuple(indices[..., axis] for axis in _numbers(indices.shape[-1]))]


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
        first = np.cumsum([0, *(len(x.values) for x in rows[:-1])])
        starts = np.stack([x.row_starts() for x in rows], axis=1) + first
        index, _ = ranges(starts.reshape(-1), lengths.reshape(-1))
        return Ragged.from_row_lengths(gather(joined, index), lengths.sum(axis=1))
    typed = next((x.dtype for x in values if hasattr(x, "dtype")), None)
    return np.concatenate([np.asarray(x, typed) for x in values], axis)


@_in_both("stack")
def stack(values, axis=0):
    typed = next((x.dtype for x in values if hasattr(x, "dtype")), "int32")
    return np.stack([np.asarray(x, typed) for x in values], axis)


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
        # An empty row gives the smallest number of its type.
        found = np.full(len(x), _least(x.dtype), x.dtype)
        np.maximum.at(found, x.value_rowids(), x.values)
        return found
    x = np.asarray(x)
    return np.max(x, axis=axis, initial=_least(x.dtype))


def _least(dtype):
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _most(dtype):
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


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
    if x.ndim == 2:
        return x[np.arange(len(x))[:, None], order], order.astype("int32")
    return np.take_along_axis(x, order, -1), order.astype("int32")


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


def _segments(name, reduce, start):
    @_in_both(name)
    def run(data, segment_ids, num_segments):
        data, ids = np.asarray(data), np.asarray(segment_ids)
        data, ids = data.reshape(-1, *data.shape[ids.ndim :]), ids.reshape(-1)
        if ids.min(initial=0) < 0:  # Negative segment ids are dropped.
            data, ids = data[ids >= 0], ids[ids >= 0]
        found = np.full((int(num_segments), *data.shape[1:]), start(data.dtype), data.dtype)
        reduce.at(found, ids, data)
        return found

    return run


unsorted_segment_sum = _segments("math.unsorted_segment_sum", np.add, lambda dtype: 0)
unsorted_segment_min = _segments("math.unsorted_segment_min", np.minimum, _most)
unsorted_segment_max = _segments("math.unsorted_segment_max", np.maximum, _least)


@_in_both("ragged.range")
def ragged_range(starts, limits=None):
    if limits is None:
        starts, limits = np.zeros_like(starts), starts
    values, splits = ranges(starts, np.maximum(limits - starts, 0))
    return Ragged(values.astype(np.asarray(starts).dtype), splits)


def rows_of(rows):
    """Return the row of each value of ragged rows: int64 (V,)."""
    if isinstance(rows, Ragged):
        return rows.value_rowids()
    # `value_rowids` would allocate a dense tensor padded to the longest row.
    size = tf.size(rows.flat_values, tf.int64)
    later = rows.row_splits[1:-1]
    return tf.cumsum(tf.scatter_nd(later[:, tf.newaxis], tf.ones_like(later), [size + 1]))[:-1]


def rows_where(mask, *arrays):
    """Return the rows of each array where `mask` (N,) is true."""
    if not _holds_tensor((mask, *arrays)):
        return [np.asarray(array)[mask] for array in arrays]
    # `tf.boolean_mask` is slow to trace, and repeats work for each tensor.
    rows = tf.where(mask)[:, 0]
    return [tf.gather(array, rows) for array in arrays]


def column(rows, number):
    """Return ragged rows (N, 1) of one number."""
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
    """Raise a `ValueError` (TensorFlow's error in a graph) unless all of `good` is true."""
    if is_tensor(good):
        return tf.debugging.Assert(tf.reduce_all(good), [message, *data], summarize=32)
    if not np.all(good):
        raise ValueError(" ".join(map(str, [message, *data])))
    return None


# === Random numbers, equal to TensorFlow's ===


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
    """Draw floats in [0, 1), or integers in [`minval`, `maxval`).

    The numbers of a seed are the same in NumPy, in TensorFlow and on every device.
    """
    if _holds_tensor((shape, seed)):
        return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype, alg="philox")
    shape = [int(one) for one in shape]
    bits = _random_bits(int(np.prod(shape)), seed).reshape(shape)
    if dtype == "float32":
        return (bits & 0x7FFFFF | 0x3F800000).astype("uint32").view("float32") - np.float32(1)
    return (minval + (bits % np.uint32(maxval - minval)).astype("int64")).astype(dtype)


def draw_seed():
    """Draw a seed, ints (2,), reproducible by `keras.utils.set_random_seed`."""
    if in_graph():
        return tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)
    return np.array([random.randrange(2**31) for _ in _numbers(2)])


def split_seed(seed, count):
    """Derive `count` seeds, ints (count, 2), from a seed."""
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

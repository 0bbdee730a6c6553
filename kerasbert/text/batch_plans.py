"""Length bucketing: batches of examples with little padding.

Shapes: N examples, B per batch.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_whole

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

# From 32 on, a step is at most a quarter of its bucket. Film reviews of 27 tokens on average then
# have 15% padding, instead of 29% with steps of 16, for a few more compiled shapes.
BUCKETS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
STEP = 256  # Step between larger buckets.


def bucket_length(length: int) -> int:
    """Return the smallest bucket for `length` tokens.

    >>> bucket_length(17), bucket_length(512), bucket_length(513)
    (24, 512, 768)
    """
    beyond = -(-int(length) // STEP) * STEP
    return next((bucket for bucket in BUCKETS if length <= bucket), beyond)


def buckets_up_to(maximum: int) -> list[int]:
    """Return all buckets below `maximum`, then `maximum` itself.

    >>> buckets_up_to(60)
    [8, 16, 24, 32, 40, 48, 60]
    """
    beyond = range(BUCKETS[-1] + STEP, maximum, STEP)
    return [bucket for bucket in (*BUCKETS, *beyond) if bucket < maximum] + [maximum]


def cheap_shapes(lengths, batch_size, shape_cost, buckets=None):
    """Choose `buckets` and `short` for `similar_length_batches` that need few compiled shapes.

    Few epochs are faster with fewer shapes and more padding.

    Args:
        lengths: ints (N,).
        batch_size: int.
        shape_cost: number. Cost of one more shape, in padding tokens per epoch.
        buckets: list of ints, ascending. The choice of lengths; `None` means `BUCKETS`.

    Returns:
        `(buckets, short)`: the padded lengths, and the index of the incomplete batch.

    >>> lengths = [8, 8, 8, 16, 16, 64]
    >>> cheap_shapes(lengths, 2, shape_cost=0), cheap_shapes(lengths, 2, shape_cost=20)
    (([8, 16, 64], 0), ([16, 64], 0))
    """
    lengths, batch_size = _checked(lengths, batch_size)
    buckets = np.array(buckets or buckets_up_to(bucket_length(lengths.max())))
    rows = buckets[np.searchsorted(buckets, np.sort(lengths))]  # (N,), their padded lengths
    num_batches = -(-len(rows) // batch_size)
    ends = np.cumsum(_sizes(len(rows), batch_size, num_batches - 1))
    _, firsts = np.unique(rows[ends - 1], return_index=True)
    # An incomplete batch that is the only one of its length adds no shape.
    places = {num_batches // 2, *firsts.tolist()}
    costs = (_cheapest(rows, batch_size, short, shape_cost) for short in sorted(places))
    _, buckets, short = min(costs, key=lambda one: one[0])
    return buckets, short


def _cheapest(rows, batch_size, short, shape_cost):
    """Return the cheapest `(cost, buckets, short)`, given the index of the incomplete batch.

    `rows` are the padded lengths (N,), sorted.
    """
    sizes = _sizes(len(rows), batch_size, short)
    ends = np.cumsum(sizes)
    lengths, firsts = np.unique(rows[ends - 1], return_index=True)
    firsts = [*firsts.tolist(), len(sizes)]
    best = [(0, [])]  # By length: cost and buckets of the batches up to it.
    for end in range(1, len(firsts)):
        length, options = int(lengths[end - 1]), []
        for begin in range(end):
            joined = sizes[firsts[begin] : firsts[end]]
            cost = shape_cost * len(np.unique(joined)) + length * int(joined.sum())
            options.append((best[begin][0] + cost, [*best[begin][1], length]))
        best.append(min(options, key=lambda one: one[0]))
    return *best[-1], short


def _sizes(count, batch_size, short):
    """Return the batch sizes of `count` rows; only the batch at `short` may be smaller."""
    sizes = np.full(-(-count // batch_size), batch_size)
    sizes[short] -= sizes.sum() - count
    return sizes


def similar_length_batches(
    lengths: ArrayLike,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    buckets: Any = None,
    short: int | None = None,
) -> list[np.ndarray]:
    """Cut an epoch into batches of similar length, in random order.

    Examples are shuffled, sorted by bucket and cut, which gives less padding and more mixing than
    pools sorted by exact length. Any few successive batches have short and long examples; a purely
    random order may end with steps of one length.

    Args:
        lengths: ints (N,). Number of tokens of each example.
        batch_size: int.
        seed: int.
        epoch: int.
        buckets: list of ints, ascending. Lengths to pad to; `None` means `BUCKETS`.
        short: index of the incomplete batch, in order of length; `None` means the middle.

    Returns:
        A list of int arrays (B,) of row numbers. B is `batch_size` except in the incomplete batch.

    >>> lengths = [5, 100, 6, 101, 7, 102]
    >>> sorted(sorted(batch.tolist()) for batch in similar_length_batches(lengths, 3))
    [[0, 2, 4], [1, 3, 5]]
    """
    lengths, batch_size = _checked(lengths, batch_size)
    random = np.random.default_rng((seed, epoch))
    rows = random.permutation(len(lengths))
    buckets = buckets_up_to(int(lengths.max())) if buckets is None else buckets
    places = np.searchsorted(buckets, lengths)  # (N,)
    rows = rows[np.argsort(places[rows], kind="stable")]
    num_batches = -(-len(rows) // batch_size)
    # With the same length in every epoch, the incomplete batch adds only one shape.
    sizes = _sizes(len(rows), batch_size, num_batches // 2 if short is None else short)
    batches = np.split(rows, np.cumsum(sizes)[:-1])
    return [batches[i] for i in _mixed_order(num_batches, random)]


def _mixed_order(count, random, kinds=8):
    """Return a random order of `count` sorted items, in which short and long items alternate.

    Each run of `kinds` items has one from each of `kinds` ranges.
    """
    parts = np.split(np.arange(count), np.arange(1, kinds) * count // kinds)
    runs = itertools.zip_longest(*map(random.permutation, parts))
    return [i for run in runs for i in random.permutation([i for i in run if i is not None])]


def sorted_batches(
    lengths: ArrayLike, batch_size: int, counts: ArrayLike | None = None
) -> list[np.ndarray]:
    """Cut the examples into batches, the longest examples first.

    A batch that needs too much memory then fails at once.

    Args:
        lengths: ints (N,). Number of tokens of each example.
        batch_size: maximum number of examples per batch.
        counts: ints (N,). Number of rows of each example, growing with its length. `batch_size`
            then counts rows.

    Returns:
        A list of int arrays (B,). Concatenated, it is the `order` of `restore_order`.

    >>> [batch.tolist() for batch in sorted_batches([3, 9, 5], 2)]
    [[1, 2], [0]]
    >>> [batch.tolist() for batch in sorted_batches([3, 9, 5], 2, counts=[1, 2, 1])]
    [[1], [2, 0]]
    """
    lengths, batch_size = _checked(lengths, batch_size)
    rows = np.argsort(-lengths, kind="stable")
    if counts is not None and np.max(counts) > 1:
        batches, start = [], 0
        while start < len(rows):
            size = max(batch_size // int(counts[rows[start]]), 1)
            batches.append(rows[start : start + size])
            start += size
        return batches
    return np.split(rows, range(batch_size, len(rows), batch_size))


def given_batches(lengths: ArrayLike, batch_size: int) -> list[np.ndarray]:
    """Cut the examples into batches in the given order: a list of int arrays (B,)."""
    lengths, batch_size = _checked(lengths, batch_size)
    return np.split(np.arange(len(lengths)), range(batch_size, len(lengths), batch_size))


def restore_order(outputs: ArrayLike, order: ArrayLike) -> Any:
    """Put rows computed in `order` back into their original order.

    Args:
        outputs: array (N, ...), or nested arrays.
        order: ints (N,). Output row `i` belongs to example `order[i]`.

    >>> restore_order(np.array(["c", "a", "b"]), [2, 0, 1]).tolist()
    ['a', 'b', 'c']
    """
    back = np.argsort(order)
    return keras.tree.map_structure(lambda rows: np.asarray(rows)[back], outputs)


def _checked(lengths, batch_size):
    lengths = np.asarray(lengths)
    if not len(lengths):
        raise ValueError("There are no examples to batch; pass at least one.")
    check_whole("batch_size", batch_size)
    return lengths, batch_size

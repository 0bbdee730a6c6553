"""Overlapping windows over long texts.

Shapes: N texts, R windows, E tokens of all windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import is_whole
from kerasbert.text import ops

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Tensor


def cut_windows(
    lengths: ArrayLike, size: Any, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide texts into windows that start `stride` tokens apart.

    Args:
        lengths: ints (N,). Number of tokens of each text.
        size: int, or ints (N,). Maximum number of tokens per window.
        stride: distance between window starts, at most `size`.

    Returns:
        `(rows, starts, ends)`, ints (R,): the text of each window, its first token, and the one
        after its last. An empty text has one empty window.

    Raises:
        ValueError: if the stride is not from 1 to `size`.

    >>> [array.tolist() for array in cut_windows([3, 9], size=4, stride=3)]
    [[0, 1, 1, 1], [0, 0, 3, 6], [3, 4, 7, 9]]

    Source: `doc_stride` of google-research/bert, `run_squad.py`.
    """
    lengths = np.asarray(lengths, "int64")
    sizes = np.broadcast_to(np.asarray(size, "int64"), lengths.shape)
    smallest = sizes.min(initial=np.iinfo("int64").max)
    if not is_whole(stride) or not 1 <= stride <= smallest:
        raise ValueError(
            f"stride={stride!r} does not fit windows of {smallest} tokens; use a whole number from "
            f"1 to {smallest}."
        )
    rows, starts, lengths = windows_of(lengths, sizes, stride)
    return rows, starts, starts + lengths


def windows_of(lengths, sizes, stride):
    """Divide texts like `cut_windows`, also in graphs.

    Args:
        lengths: ints (N,). Number of tokens of each text.
        sizes: ints (N,). Maximum number of tokens per window, at least 1.
        stride: distance between window starts, limited to the window size.

    Returns:
        `(rows, starts, lengths)`, ints (R,) of the type of `lengths`: text, first token and number
        of tokens of each window, at least one per text.
    """
    strides = ops.minimum(sizes, stride)
    counts = 1 - -ops.maximum(lengths - sizes, 0) // strides
    index = ops.ragged_range(counts)
    rows = ops.cast(ops.rows_of(index), lengths.dtype)
    starts = index.values * ops.gather(strides, rows)
    left = ops.gather(lengths, rows) - starts
    return rows, starts, ops.minimum(ops.gather(sizes, rows), left)


def take_windows(tokens, rows, starts, lengths):
    """Return the tokens of each window, ragged (R, None), from texts (N, None)."""
    first = ops.cast(ops.gather(tokens.row_starts(), rows), "int32") + starts
    index = ops.ragged_range(first, first + lengths)
    return index.with_values(ops.gather(tokens.values, index.values))


def window_tokens(starts: Tensor, ends: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """List the tokens of all windows.

    Returns:
        `(windows, positions)`, ints (E,): the window of each token, and its position in the text.

    >>> [array.tolist() for array in window_tokens([0, 3], [2, 5])]
    [[0, 0, 1, 1], [0, 1, 3, 4]]
    """
    starts, ends = np.asarray(starts), np.asarray(ends)
    sizes = ends - starts
    windows = np.repeat(np.arange(len(sizes)), sizes)
    before = np.cumsum(sizes) - sizes
    return windows, np.arange(len(windows)) + (starts - before)[windows]


def most_context(rows: ArrayLike, starts: ArrayLike, ends: ArrayLike) -> np.ndarray:
    """Mark the window in which each token has the most context.

    The context is the smaller number of tokens before or after the token, plus a hundredth of the
    window's length. Of equal windows, the first is chosen.

    Args:
        rows, starts, ends: ints (R,), as from `cut_windows`.

    Returns:
        bool (E,), in the order of `window_tokens`.

    >>> most_context([0, 0], [0, 2], [4, 6]).tolist()
    [True, True, True, False, False, True, True, True]

    Source: the "maximum context" of google-research/bert, `run_squad.py`.
    """
    rows, starts, ends = (np.asarray(array) for array in (rows, starts, ends))
    if len(np.unique(rows)) == len(rows):
        return np.ones((ends - starts).sum(), bool)
    lengths = np.zeros(rows.max() + 1, "int64")
    np.maximum.at(lengths, rows, ends)
    firsts = (np.cumsum(lengths) - lengths)[rows] + starts
    return _choose(firsts, ends - starts, lengths.sum())[1].values


def context_windows(firsts, lengths, count):
    """Find the window with the most context for each token, as `most_context` does.

    Args:
        firsts, lengths: ints (R,). Each window's first token, counted over all texts, and length.
        count: int. P, the number of tokens in all texts, each in a window.

    Returns:
        `(windows, places, chosen)`: each token's chosen window and position in it, ints (P,); and
        whether a window is chosen for each of its tokens, ragged bools (R, None).
    """
    first, chosen, window, place = _choose(firsts, lengths, count)
    return ops.gather(window, first), ops.gather(place, first), chosen


def _choose(firsts, lengths, count):
    """Choose for each token the element with the most context.

    Returns:
        `(chosen, is_chosen, windows, positions)`: each token's chosen element, ints (P,); and for
        each element (token of a window), ragged (R, None): is it chosen, its window, its position
        there.
    """
    firsts, lengths = ops.cast(firsts, "int64"), ops.cast(lengths, "int64")
    tokens = ops.ragged_range(firsts, firsts + lengths)  # (R, None)
    window, token = tokens.value_rowids(), tokens.values
    place = token - ops.gather(firsts, window)
    size = ops.gather(lengths, window)
    context = ops.cast(ops.minimum(place, size - 1 - place), "float64")
    context += 0.01 * ops.cast(size, "float64")
    best = ops.unsorted_segment_max(context, token, count)
    element = ops.range(ops.size(token))
    first = ops.where(context == ops.gather(best, token), element, np.iinfo("int32").max)
    first = ops.unsorted_segment_min(first, token, count)
    return first, tokens.with_values(element == ops.gather(first, token)), window, place

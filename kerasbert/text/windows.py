"""Overlapping windows over long texts, and the window in which a token has the most context.

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
    """Split texts into windows that start `stride` tokens apart, until one reaches the end.

    Args:
        lengths: ints (N,). Tokens of each text.
        size: int, or ints (N,). Maximum number of tokens per window.
        stride: int. At most `size`, so that no token is skipped.

    Returns:
        `(rows, starts, ends)`, ints (R,): the text of each window, in order, and its first and
        end token (exclusive). An empty text has one empty window.

    Raises:
        ValueError: for a stride that skips tokens or does not advance.

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
    counts = 1 + np.maximum(-((sizes - lengths) // stride), 0)
    rows = np.repeat(np.arange(len(lengths)), counts)
    starts = stride * (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts))
    return rows, starts, np.minimum(starts + sizes[rows], lengths[rows])


def cut_windows_in_graph(lengths, sizes, stride):
    """Split texts like `cut_windows`, in core TensorFlow ops, eagerly and in the graph.

    Args:
        lengths: int32 (N,). Tokens of each text.
        sizes: int32 (N,). Maximum number of tokens per window of each text, at least 1.
        stride: int. Distance between window starts; capped at the window size, so that no token is
            skipped.

    Returns:
        `(rows, starts, lengths)`, int32 (R,): the text of each window, its first token and its
        number of tokens. Each text has at least one window.
    """
    strides = ops.minimum(sizes, stride)
    counts = 1 - -ops.maximum(lengths - sizes, 0) // strides
    index = ops.ragged_range(counts)
    rows = ops.cast(ops.rows_of(index), "int32")
    starts = index.values * ops.gather(strides, rows)
    left = ops.gather(lengths, rows) - starts
    return rows, starts, ops.minimum(ops.gather(sizes, rows), left)


def take_windows(tokens, rows, starts, lengths):
    """Gather the tokens of each window: ragged (N, None) -> (R, None)."""
    first = ops.cast(ops.gather(tokens.row_starts(), rows), "int32") + starts
    index = ops.ragged_range(first, first + lengths)
    return index.with_values(ops.gather(tokens.values, index.values))


def window_tokens(starts: Tensor, ends: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """List the tokens of all windows, window by window.

    Returns:
        `(windows, positions)`, ints (E,): the window of each token, and its position in its text.

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

    The context is the number of tokens on the side that has fewer, plus a hundredth of the window's
    length; ties go to the earlier window.

    Args:
        rows, starts, ends: ints (R,), as from `cut_windows`.

    Returns:
        bool (E,), in the order of `window_tokens`; each token of each text is true once.

    >>> most_context([0, 0], [0, 2], [4, 6]).tolist()
    [True, True, True, False, False, True, True, True]

    Source: the "maximum context" of google-research/bert, `run_squad.py`.
    """
    rows, starts, ends = (np.asarray(array) for array in (rows, starts, ends))
    windows, positions = window_tokens(starts, ends)
    if len(np.unique(rows)) == len(rows):
        return np.ones(len(windows), bool)
    context = np.minimum(positions - starts[windows], ends[windows] - 1 - positions)
    context = context + 0.01 * (ends - starts)[windows]
    order = np.lexsort((windows, -context, positions, rows[windows]))
    token = np.stack([rows[windows], positions])[:, order]
    best = np.ones(len(order), bool)
    best[1:] = (token[:, 1:] != token[:, :-1]).any(axis=0)
    chosen = np.zeros(len(order), bool)
    chosen[order[best]] = True
    return chosen

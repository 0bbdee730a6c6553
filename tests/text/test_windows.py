"""Windows compared with the loops of the paper's code."""

import numpy as np
import pytest

from kerasbert.data import cut_windows, most_context, window_tokens
from kerasbert.text.windows import context_windows, take_windows, windows_of


def reference(length, size, stride):
    """Return the windows of a text, and for each token the number of the window whose outputs are
    used.
    """
    spans, start = [], 0
    while True:
        end = min(start + size, length)
        spans.append((start, end))
        if end == length:
            break
        start += stride
    best = []
    for place in range(length):
        scores = [
            min(place - start, end - 1 - place) + 0.01 * (end - start)
            if start <= place < end
            else -1
            for start, end in spans
        ]
        best.append(scores.index(max(scores)))
    return spans, best


def test_as_the_loops_do():
    random = np.random.default_rng(0)
    for _ in range(200):
        lengths = random.integers(0, 40, 5)
        sizes = random.integers(1, 12, 5)
        stride = int(random.integers(1, sizes.min() + 1))
        rows, starts, ends = cut_windows(lengths, sizes, stride)
        windows, places = window_tokens(starts, ends)
        chosen = most_context(rows, starts, ends)
        for row, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            spans, best = reference(length, size, stride)
            mine = np.flatnonzero(rows == row)
            assert list(zip(starts[mine], ends[mine], strict=True)) == spans
            counted = chosen & np.isin(windows, mine)
            order = np.argsort(places[counted])
            assert places[counted][order].tolist() == list(range(length))
            assert (windows[counted][order] - mine[0]).tolist() == best


def test_one_size_for_all():
    for found, expected in zip(cut_windows([3, 9], 4, 3), cut_windows([3, 9], [4, 4], 3)):
        np.testing.assert_array_equal(found, expected)


def test_nothing():
    rows, starts, ends = cut_windows([], 4, 2)
    assert len(rows) == len(starts) == len(ends) == len(most_context(rows, starts, ends)) == 0
    assert [array.tolist() for array in cut_windows([0], 4, 2)] == [[0], [0], [0]]


@pytest.mark.parametrize("stride", [0, -1, 5, 2.5, None])
def test_bad_strides(stride):
    message = f"stride={stride} does not fit windows of 4 tokens; use a whole number from 1 to 4"
    with pytest.raises(ValueError, match=message):
        cut_windows([3, 9], [6, 4], stride)


# --- in the graph ---


def test_in_the_graph():
    import tensorflow as tf

    random = np.random.default_rng(0)
    lengths, sizes = random.integers(1, 80, 300), random.integers(1, 30, 300)
    tokens = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()), lengths)
    for stride in (1, 3, 10, 40):
        # A stride longer than a window would skip tokens.
        strides = np.minimum(sizes, stride)
        expected = [
            reference(int(n), int(size), int(step))[0]
            for n, size, step in zip(lengths, sizes, strides, strict=True)
        ]
        for run in (windows_of, tf.function(windows_of, autograph=False)):
            parts = run(
                tf.constant(lengths, tf.int32), tf.constant(sizes, tf.int32), tf.constant(stride)
            )
            assert all(part.dtype == tf.int32 for part in parts)
            rows, starts, counts = (part.numpy() for part in parts)
            assert rows.tolist() == [i for i, row in enumerate(expected) for _ in row]
            assert list(zip(starts, starts + counts)) == [span for row in expected for span in row]
        windows = take_windows(tokens, *parts)
        assert windows.row_lengths().numpy().tolist() == counts.tolist()
        held = [set() for _ in lengths]
        for row, window in zip(rows, windows.to_list(), strict=True):
            held[row].update(window)
        assert held == [set(row) for row in tokens.to_list()]
        firsts = (np.cumsum(lengths) - lengths)[rows] + starts
        window, place, chosen = context_windows(
            tf.constant(firsts), tf.constant(counts), lengths.sum()
        )
        np.testing.assert_array_equal(
            chosen.values, most_context(rows, starts, np.add(starts, counts))
        )
        token = firsts[window.numpy()] + place.numpy()
        np.testing.assert_array_equal(token, np.arange(lengths.sum()))
        np.testing.assert_array_equal(np.sort(window), chosen.value_rowids()[chosen.values])


def test_a_long_text_is_quick():
    starts = np.arange(0, 200_000, 128)
    counts = most_context(np.zeros_like(starts), starts, starts + 384)
    assert counts.sum() == starts[-1] + 384

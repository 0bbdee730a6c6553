"""Windows over long texts, against loops that spell the rules out."""

import numpy as np
import pytest

from kerasbert.preprocessors.windows import cut_windows, max_context, window_tokens

pytest.importorskip("tensorflow", reason="windows are cut in TensorFlow's graph")


def slow_windows(length, size, stride):
    """One window after the other, until one reaches the end."""
    windows, start = [], 0
    while True:
        windows.append((start, min(size, length - start)))
        if start + size >= length:
            return windows
        start += min(size, stride)


def slow_owner(token, windows):
    """The window in which a token has most context; the first one of several."""
    best, owner = None, None
    for number, (start, length) in enumerate(windows):
        if start <= token < start + length:
            left, right = token - start, start + length - 1 - token
            context = min(left, right) + 0.01 * length
            if best is None or context > best:
                best, owner = context, number
    return owner


def random_texts():
    random = np.random.default_rng(0)
    for _ in range(300):
        yield random.integers(1, 80), random.integers(1, 30), random.integers(1, 40)


def test_windows_are_as_the_rule_says():
    import tensorflow as tf

    for stride in (1, 3, 10, 40):
        lengths, sizes = np.array([(length, size) for length, size, _ in random_texts()]).T
        expected = [slow_windows(*pair, stride) for pair in zip(lengths, sizes, strict=True)]
        for run in (cut_windows, tf.function(cut_windows, autograph=False)):
            parts = run(
                tf.constant(lengths, tf.int32), tf.constant(sizes, tf.int32), tf.constant(stride)
            )
            assert all(part.dtype == tf.int32 for part in parts)
            rows, starts, found = (part.numpy() for part in parts)
            assert rows.tolist() == [i for i, row in enumerate(expected) for _ in row]
            assert list(zip(starts, found)) == [window for row in expected for window in row]


def test_windows_hold_every_token():
    import tensorflow as tf

    lengths, sizes = np.array([(length, size) for length, size, _ in random_texts()]).T
    tokens = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()), lengths)
    rows, starts, found = cut_windows(
        tf.constant(lengths, tf.int32), tf.constant(sizes, tf.int32), 7
    )
    windows = window_tokens(tokens, rows, starts, found)
    assert windows.row_lengths().numpy().tolist() == found.numpy().tolist()
    held = [set() for _ in lengths]
    for row, window in zip(rows.numpy(), windows.to_list(), strict=True):
        held[row].update(window)
    assert held == [set(row) for row in tokens.to_list()]


def test_max_context():
    several = 0
    for length, size, stride in random_texts():
        windows = slow_windows(length, size, stride)
        counts = max_context(*zip(*windows, strict=True))
        expected = np.zeros(counts.shape, bool)
        for token in range(length):
            window = slow_owner(token, windows)
            expected[window, token - windows[window][0]] = True
        np.testing.assert_array_equal(counts, expected)
        assert counts.sum() == length  # Each token counts once.
        several += len(windows) > 2
    assert several > 100


def test_max_context_of_a_long_text_is_quick():
    starts = np.arange(0, 200_000, 128)
    counts = max_context(starts, np.full(len(starts), 384))
    assert counts.sum() == starts[-1] + 384

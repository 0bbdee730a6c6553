"""Head and tail, and windows: the NumPy form, and TensorFlow's for graphs."""

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.data import LongTexts
from kerasbert.text import ops
from kerasbert.text.long_texts import first_and_last, in_windows, stack_windows


def test_settings_of_another_mode_and_unknown_ones_are_errors():
    assert LongTexts.of("windows") == LongTexts.of({"mode": "windows"}) == LongTexts("windows")
    assert LongTexts.of(None) == LongTexts() and LongTexts().in_config() == "truncate"
    given = {"mode": "windows", "stride": 64, "pooling": "max"}
    assert LongTexts.of(given).in_config() == given
    for wrong, message in (
        ("tail", "long='tail' is unknown"),
        ({"mode": "head_tail", "max_windows": 3}, "max_windows=3 needs long='windows'"),
        ({"mode": "windows", "head_share": 0.5}, "head_share=0.5 needs long='head_tail'"),
        ({"mode": "head_tail", "head_share": 2}, "head_share=2 must be a number from 0 to 1"),
        ({"mode": "windows", "max_windows": 0}, "max_windows=0 must be a whole number"),
        ({"mode": "windows", "pooling": "sum"}, "pooling='sum' is unknown"),
        ({"mode": "windows", "windows": 3}, "did you mean max_windows"),
        (3, "long=3 must be one of truncate, head_tail, windows"),
    ):
        with pytest.raises(ValueError, match=message):
            LongTexts.of(wrong)


def test_bert_keeps_128_and_382_tokens():
    kept = first_and_last(ops.Ragged.from_lists([list(range(1000))]), [510], 0.25).values
    assert kept.tolist() == [*range(128), *range(1000 - 382, 1000)]


def test_windows_cover_each_text_once_and_are_full():
    rng = np.random.default_rng(0)
    for _ in range(50):
        room, stride = int(rng.integers(2, 9)), int(rng.integers(1, 12))
        long = LongTexts("windows", stride=stride, max_windows=int(rng.integers(1, 6)))
        lengths = rng.integers(0, 40, 4)
        texts = [list(range(100 * i, 100 * i + n)) for i, n in enumerate(lengths)]
        counts, (windows,) = in_windows(long, (ops.Ragged.from_lists(texts),), room, 0)
        windows = iter(windows.to_list())
        for text, count in zip(texts, counts.tolist()):
            own = [next(windows) for _ in range(count)]
            step = min(stride, room)
            covered = text[: room + (long.max_windows - 1) * step]
            assert sorted({token for window in own for token in window}) == covered
            assert count <= long.max_windows
            if count > 1:
                assert {len(window) for window in own} == {room}
        assert next(windows, None) is None


@pytest.mark.parametrize("place", [0, 1])
def test_the_graph_gives_the_same_rows(place):
    lists = ([[1] * 3, [2] * 30, [], [4] * 9], [[5] * 40, [6], [7] * 2, [8] * 12])
    numpy = tuple(map(ops.Ragged.from_lists, lists))
    graph = tuple(tf.ragged.constant(rows, tf.int32) for rows in lists)
    long = LongTexts("windows", max_windows=4)
    counts, wanted = in_windows(long, numpy, 10, place)
    found_counts, found = tf.function(lambda *x: in_windows(long, x, 10, place))(*graph)
    assert found_counts.numpy().tolist() == counts.tolist()
    for one, other in zip(found, wanted):
        assert one.to_list() == other.to_list()
    halves = [len(row) for row in wanted[1 - place].to_list()]
    assert (
        max(halves) == (7, 9)[place]
    )  # The other text of a short divided text gets the rest of the row.
    for share in (0.25, 1.0):
        kept = [min(len(row), 7) for row in lists[0]]
        wanted = first_and_last(numpy[0], kept, share).to_list()
        found = tf.function(first_and_last)(graph[0], tf.constant(kept), share)
        assert found.to_list() == wanted
    rows, counts = np.arange(6, dtype="int32").reshape(3, 2), np.array([1, 2], "int32")
    wanted = stack_windows(rows, counts, 3, 9)
    assert wanted.tolist()[0] == [[0, 1], [9, 9], [9, 9]]
    found = stack_windows(tf.constant(rows), tf.constant(counts), tf.constant(3), 9)
    assert found.numpy().tolist() == wanted.tolist()

"""What is decoded in TensorFlow's graph is what the models decode in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.data import tagging
from kerasbert.data.windows import cut_windows, most_context
from kerasbert.export import decoding
from kerasbert.models import spans

# TensorFlow's graph alone.
pytestmark = pytest.mark.backends("tensorflow")

RNG = np.random.default_rng(0)
ODD = "ab é.,!-\u0301\u200d\0\t\u00a0\u3000\u2028北京ー。한🙂\ufffd\ufdd0\u0600٪"


def random_texts(count):
    return ["".join(RNG.choice(list(ODD), RNG.integers(0, 30))) for _ in range(count)]


def test_words():
    texts = ["", " ", "\u0301", ".\u0301b", " \u0301.\u0301b", "a\u0301.", *random_texts(3000)]
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000, 3)]))
    for batch in (texts, [every, "", "x".join(every[::7])], []):
        points = decoding.code_points(tf.constant(batch, tf.string))
        rows, starts, ends = (x.numpy().tolist() for x in decoding.word_units(points))
        wanted = [(i, *span) for i, text in enumerate(batch) for span in tagging.word_spans(text)]
        assert list(zip(rows, starts, ends)) == wanted


def test_substrings():
    texts = ["größer", "日本語 🙂", "a\0b"]
    points = decoding.code_points(tf.constant(texts))
    found = decoding.substrings(
        points, *(tf.constant(x) for x in ([0, 1, 1, 2, 0], [2, 0, 4, 0, 3], [4, 3, 5, 3, 3]))
    )
    assert [x.decode() for x in found.numpy()] == ["öß", "日本語", "🙂", "a\0b", ""]


@pytest.mark.parametrize("size, stride", [(4, 3), (5, 2), (128, 64), (7, 7)])
def test_most_context(size, stride):
    lengths = RNG.integers(0, 5 * size, 12)
    rows, starts, ends = cut_windows(lengths, size, stride)
    offsets = np.cumsum(lengths) - lengths
    windows, places, chosen = decoding.most_context(
        offsets[rows] + starts, ends - starts, lengths.sum()
    )
    wanted = most_context(rows, starts, ends)
    np.testing.assert_array_equal(chosen.values, wanted)
    window = np.repeat(np.arange(len(rows)), ends - starts)[wanted]
    assert sorted(window.tolist()) == windows.numpy().tolist()
    token = (offsets[rows] + starts)[windows.numpy()] + places.numpy()
    np.testing.assert_array_equal(token, np.arange(lengths.sum()))


@pytest.mark.parametrize(
    "labels, scheme",
    [
        (["PER", "LOC"], "BIO"),
        (["PER", "LOC"], "BIOES"),
        (["PER"], "IO"),
        (["noun", "O", "verb"], None),
        (["B", "I", "O"], None),
    ],
)
def test_entities(labels, scheme):
    names = tagging.tag_names(labels, scheme)
    tags = tagging.TagSet(names)
    sizes = [0, 1, 30, 0, 200]
    classes = RNG.integers(0, len(names), sum(sizes))
    scores = RNG.random(sum(sizes))
    rows = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.concatenate([3 * np.arange(size) for size in sizes])
    kinds, begins, ends, means = decoding.entities(
        *(tf.constant(x) for x in (classes, scores, rows, starts, starts + 2)), names, len(sizes)
    )
    places = np.cumsum(sizes) - sizes
    for i, (place, size) in enumerate(zip(places, sizes)):
        wanted = tags.entities(classes[place : place + size])
        assert [kind.decode() for kind in kinds[i].numpy()] == [kind for kind, _, _ in wanted]
        assert begins[i].numpy().tolist() == [3 * a for _, a, _ in wanted]
        assert ends[i].numpy().tolist() == [3 * b - 1 for _, _, b in wanted]
        means_wanted = [scores[place + a : place + b].mean() for _, a, b in wanted]
        np.testing.assert_allclose(means[i], means_wanted, rtol=1e-6)


@pytest.mark.parametrize("threshold", [None, -1.0, 0.5])
@pytest.mark.parametrize("n_best, max_length, ties", [(20, 30, False), (3, 4, True), (2, 1, True)])
def test_best_spans(threshold, n_best, max_length, ties):
    """Several questions at once, with ties, and some where the best tokens make no span."""
    counts, length, top_k = [1, 3, 1, 2], 24, 4
    logits = RNG.normal(size=(2, sum(counts), length)).astype("float32")
    if ties:
        logits = np.round(logits)
    ends = np.arange(length) >= RNG.integers(3, 9, (sum(counts), 1))
    starts = ends & (RNG.random(ends.shape) < 0.7)
    starts[:, -1] = True  # No context is without a token.
    splits = np.cumsum([0, *counts])
    found, scores, nulls = decoding.best_spans(
        *(tf.constant(x) for x in (*logits, starts, ends)),
        *(tf.constant(splits), n_best, max_length, threshold, top_k),
    )
    for i, (begin, end) in enumerate(zip(splits[:-1], splits[1:])):
        part = slice(begin, end)
        wanted, odds, null = spans.best_spans(
            *(logits[0, part], logits[1, part], starts[part], ends[part]),
            *(n_best, max_length, threshold),
        )
        wanted, odds = wanted[:top_k], odds[:top_k]
        wanted[:, 0] += np.where(wanted[:, 0] < 0, 0, begin)
        np.testing.assert_array_equal(found[i][: len(wanted)], wanted)
        assert (found[i].numpy()[len(wanted) :] == -1).all()
        np.testing.assert_allclose(scores[i][: len(odds)], odds, rtol=1e-5)
        np.testing.assert_allclose(nulls[i], null, rtol=1e-6)

"""Decoding in TensorFlow's graph gives the results of the models' decoding in NumPy."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.export.write_saved_model import compare_answers
from kerasbert.heads.base import decoding, spans
from kerasbert.heads.base.served_models import served
from kerasbert.heads.masked_lm import model as masked_lm
from kerasbert.heads.masked_lm.served import mask_windows
from kerasbert.heads.token_classifier.served import ServedTagger
from kerasbert.lineage.elmo.characters import character_ids, character_ids_in_graph
from kerasbert.metrics.trees import spanning_edges
from kerasbert.models import BertTokenClassifierPreprocessor
from kerasbert.text import tagging
from kerasbert.text.chains import Chains
from kerasbert.text.characters import code_points, substrings
from kerasbert.text.pieces import pieces_as_units, units_of_texts
from kerasbert.tokenizers import RobertaTokenizer
from tests.export import tiny

# Only TensorFlow has this graph.
pytestmark = pytest.mark.backends("tensorflow")

RNG = np.random.default_rng(0)
ODD = "ab é.,!-\u0301\u200d\0\t\u00a0\u3000\u2028北京ー。한🙂\ufffd\ufdd0\u0600٪"


def random_texts(count):
    return ["".join(RNG.choice(list(ODD), RNG.integers(0, 30))) for _ in range(count)]


def test_words():
    texts = ["", " ", "\u0301", ".\u0301b", " \u0301.\u0301b", "a\u0301.", *random_texts(3000)]
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000, 3)]))
    for batch in (texts, [every, "", "x".join(every[::7])], []):
        points = code_points(tf.constant(batch, tf.string))
        rows, starts, ends = (x.numpy().tolist() for x in decoding.word_units(points))
        wanted = [(i, *span) for i, text in enumerate(batch) for span in tagging.word_spans(text)]
        assert list(zip(rows, starts, ends)) == wanted


def test_spaced_words():
    """Words are those of `str.split`, by which ELMo's sentences are split."""
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000, 3)]))
    for batch in (["", " ", "a", *random_texts(1000)], [every, "", "x".join(every[::7])], []):
        points = code_points(tf.constant(batch, tf.string))
        rows, starts, ends = (x.numpy().tolist() for x in decoding.spaced_units(points))
        wanted = [(i, part) for i, text in enumerate(batch) for part in text.split()]
        assert [(i, batch[i][a:b]) for i, a, b in zip(rows, starts, ends)] == wanted


def test_characters_of_words():
    """ELMo's two forms are equal for words of all lengths, and for characters of several bytes."""
    for count, most in ((0, 5), (1, 3), (7, 50), (40, 12)):
        texts = ["x" * RNG.integers(0, 90) + text for text in random_texts(count)]
        sentences = [text.split() for text in texts]
        words = tf.ragged.constant(sentences, dtype=tf.string, ragged_rank=1)
        found = character_ids_in_graph(words, most)
        ids, mask = character_ids(sentences, most)
        if count:  # Without sentences, the graph's result still has a column.
            np.testing.assert_array_equal(found["character_ids"], ids)
            np.testing.assert_array_equal(found["padding_mask"], mask)
        assert found["character_ids"].shape[0] == count


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("most", [2, 5, 10_000])
def test_spanning_trees(size, most):
    """Texts of all lengths in one batch, with many equal distances and with few."""
    counts = RNG.integers(0, size + 1, 9)
    counts[0] = size
    distances = RNG.integers(0, most, (9, size, size)).astype("float32")
    distances = np.minimum(distances, distances.transpose(0, 2, 1))
    first, second = (x.numpy() for x in decoding.spanning_trees(distances, counts))
    assert first.shape == (9, max(size - 1, 1))
    for count, row, a, b in zip(counts, distances, first, second):
        wanted = sorted(spanning_edges(row[:count, :count]))
        assert list(zip(a.tolist(), b.tolist()))[: len(wanted)] == wanted
        assert (a[len(wanted) :] == -1).all() and (b[len(wanted) :] == -1).all()


@pytest.fixture(scope="module")
def tokens():
    """A tokenizer with pieces that contain characters of several words, as byte pairs do."""
    merges = [". .", ".. .", "b .", ", -"]
    return tiny.byte_pairs(RobertaTokenizer, "<s> <pad> </s> <unk> <mask>", merges)


@pytest.mark.parametrize("label_pieces", ["first", "all"])
def test_units_and_their_probabilities(tokens, label_pieces):
    preprocessor = BertTokenClassifierPreprocessor(
        tokens, label_pieces=label_pieces, labels=["PER", "LOC"], scheme="BIO"
    )
    texts = ["", "...", "a...b .,", " \u0301.", *random_texts(500)]
    pieces = preprocessor.read(texts)
    ids, *spans = decoding.with_long_rows(tokens.tokenize_with_offsets(tf.constant(texts)))
    flat = ids.value_rowids(), *(x.flat_values for x in spans)
    whole = label_pieces == "first"
    units = decoding.word_units(code_points(tf.constant(texts)))
    units = units if whole else pieces_as_units(*flat)
    rows, starts, ends, first, count, unit = units_of_texts(flat, tuple(units))
    np.testing.assert_array_equal(ids.values, pieces.ids)
    there = pieces.count > 0
    unit_rows = np.repeat(np.arange(len(texts)), np.diff(pieces.unit_splits))
    wanted = unit_rows, pieces.starts, pieces.ends, pieces.first, pieces.count
    for ours, theirs in zip((rows, starts, ends, first, count), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs[there])
    probabilities = RNG.dirichlet(np.ones(5), len(pieces.ids))
    np.testing.assert_array_equal(unit, pieces.unit)
    found = tagging.unit_probabilities(
        tf.constant(probabilities), first, count, preprocessor.names, label_pieces
    )
    wanted = preprocessor.of_units(pieces, probabilities)[there]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("label_pieces", ["first", "all"])
def test_best_paths_and_marginals(label_pieces):
    """A CRF over units of several pieces, in texts of any number of units, also of none."""
    names = ["O", "B-X", "I-X", "E-X", "S-X"]
    transitions, start, end = RNG.normal(size=(5, 5)), *RNG.normal(size=(2, 5))
    own = Chains(transitions, start, end, names, label_pieces)
    task = types.SimpleNamespace(
        model=types.SimpleNamespace(chains=lambda _: own), preprocessor=None
    )
    decode = tf.function(functools.partial(ServedTagger._best_paths, task), autograph=False)
    for units in (0, 1, 40, 300):
        rows = np.sort(RNG.integers(0, 30, units))
        count = RNG.integers(1, 4, units)
        first = np.cumsum(count) - count
        logits = RNG.normal(size=(count.sum(), 5)).astype("float32")
        found = decode(*map(tf.constant, (logits, first, count, rows)), tf.constant(30, tf.int64))
        labels, odds = own.decode(logits, first, count, rows)
        np.testing.assert_array_equal(found[0], labels)
        np.testing.assert_allclose(found[1], odds[np.arange(units), labels], atol=1e-9)


def test_substrings():
    texts = ["größer", "日本語 🙂", "a\0b"]
    points = code_points(tf.constant(texts))
    found = substrings(
        points, *(tf.constant(x) for x in ([0, 1, 1, 2, 0], [2, 0, 4, 0, 3], [4, 3, 5, 3, 3]))
    )
    assert [x.decode() for x in found.numpy()] == ["öß", "日本語", "🙂", "a\0b", ""]


@pytest.mark.parametrize("room", [1, 4, 9, 30])
def test_mask_windows(room):
    lengths = RNG.integers(0, 40, 60)
    places = [np.flatnonzero(RNG.random(length) < 0.2).tolist() for length in lengths]
    window, rows, begins = (
        x.numpy().tolist()
        for x in mask_windows(
            tf.constant(lengths), tf.ragged.constant(places, dtype=tf.int64), room
        )
    )
    wanted = [
        (row, first, masks)
        for row, length in enumerate(lengths)
        for first, masks in masked_lm.mask_windows(length, places[row], room)
        if masks
    ]
    assert list(zip(rows, begins)) == [(row, first) for row, first, _ in wanted]
    assert window == [i for i, (*_, masks) in enumerate(wanted) for _ in masks]


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


@pytest.mark.parametrize("threshold", [None, -1.0, 0.5, np.inf])
@pytest.mark.parametrize("n_best, max_length, ties", [(20, 30, False), (3, 4, True), (2, 1, True)])
def test_best_spans(threshold, n_best, max_length, ties):
    """Several questions at once, with ties, and with best tokens that do not form a span."""
    counts, length, top_k = [1, 3, 1, 2], 24, 4
    logits = RNG.normal(size=(2, sum(counts), length)).astype("float32")
    if ties:
        logits = np.round(logits)
    ends = np.arange(length) >= RNG.integers(3, 9, (sum(counts), 1))
    starts = ends & (RNG.random(ends.shape) < 0.7)
    starts[:, -1] = True  # Each context has a token.
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


def random_prose(words, more=()):
    """Return words of few letters, with the words of `more` at random places."""
    letters = list("abcdefgh,.")
    found = ["".join(RNG.choice(letters, RNG.integers(1, 6))) for _ in range(words)]
    for word in more:
        found.insert(RNG.integers(0, len(found) + 1), word)
    return " ".join(found)


def random_inputs(name):
    lengths = [1, 3, 8, 20, 40, 90]
    if name == "MaskedLM":
        masks = [["[MASK]"] * RNG.integers(0, 4) for _ in lengths]
        return {"text": [random_prose(n, row) for n, row in zip(lengths, masks)]}
    if name == "TokenClassifier":
        return {"text": [*map(random_prose, lengths), *random_texts(10)]}
    return {
        "question": [random_prose(4) for _ in lengths],
        "context": [*map(random_prose, lengths)],
    }


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize(
    "name, packing, settings, head",
    [
        ("TokenClassifier", {}, {}, {}),
        ("TokenClassifier", {"label_pieces": "all", "stride": 5}, {}, {}),
        ("TokenClassifier", {}, {}, {"crf": True, "scheme": "BIOES"}),
        ("TokenClassifier", {"label_pieces": "all", "stride": 5}, {}, {"crf": True}),
        ("QuestionAnswering", {}, {"top_k": 3, "null_threshold": 0.0}, {}),
        ("MaskedLM", {}, {"top_k": 3}, {}),
    ],
)
def test_whole_answers(name, packing, settings, head):
    """The graph's signature equals the model's method, on rows so short that texts have several."""
    model = tiny.task(name, preprocessor={**packing, "sequence_length": 32}, **head)
    task = served(model, settings=settings)
    task.labels = task.own_labels
    signature = task.signatures()["serving_default"]
    answer = tf.function(signature.function, autograph=False)
    for _ in range(3):
        inputs = random_inputs(name)
        found = answer(**{key: tf.constant(texts) for key, texts in inputs.items()})
        wanted = task.expected("serving_default", inputs)
        wanted = {
            key: np.asarray(x, object if np.asarray(x).dtype.kind in "OSU" else None)
            for key, x in wanted.items()
        }
        assert wanted["clear"].mean() > 0.5
        compare_answers(name, {key: x.numpy() for key, x in found.items()}, wanted)

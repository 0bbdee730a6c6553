"""Pairs, orders and full rows: compared with the published algorithm, and invariants of each."""

import random

import numpy as np
import pytest

from kerasbert.data.sentence_pairs import (
    _target,
    full_sentences,
    next_sentence_pairs,
    pack_rows,
    sentence_order_pairs,
    truncate_pairs,
)
from kerasbert.text.packing import Frame
from tests.data import reference_examples

T, MOST = 64, 61


def block(num_documents=300, seed=0, longest=90):
    """Return offsets of sentences and documents of mixed lengths."""
    rng = np.random.default_rng(seed)
    sizes = rng.geometric(0.06, num_documents)
    lengths = np.minimum(rng.geometric(0.06, sizes.sum()), longest)
    return np.cumsum([0, *lengths]), np.cumsum([0, *sizes])


def as_lists(sentences, documents):
    """Return documents as lists of sentences, whose tokens are their own positions."""
    sentences = [list(range(a, b)) for a, b in zip(sentences[:-1], sentences[1:])]
    return [sentences[a:b] for a, b in zip(documents[:-1], documents[1:])]


def same_distribution(ours, theirs, draws=5.0):
    """Check that two samples have means and quantiles as close as samples of the same
    distribution.
    """
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    error = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs)) + 1e-12
    assert abs(ours.mean() - theirs.mean()) <= draws * error, (ours.mean(), theirs.mean(), error)
    # The Kolmogorov-Smirnov statistic: the largest distance between the two distribution functions.
    at = np.unique(np.concatenate([ours, theirs]))
    shares = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (ours, theirs)]
    bound = 1.95 * np.sqrt((len(ours) + len(theirs)) / (len(ours) * len(theirs)))
    assert np.abs(shares[0] - shares[1]).max() <= 1.5 * bound


def compare_with_reference(sentences, documents, sequence_length, short, seeds):
    """Check that pairs have the distributions of the published ones; return their number.

    All pairs of a document have the same target length, so for documents with many pairs, documents
    are compared instead of pairs.
    """
    most = sequence_length - 3
    texts = as_lists(sentences, documents)
    of_token = np.searchsorted(sentences[documents], np.arange(sentences[-1]), side="right")
    ours, theirs = [], []
    for seed in range(seeds):
        rows = next_sentence_pairs(sentences, documents, most, short, seed)
        kept = truncate_pairs(rows, most, np.random.default_rng(seed))
        a, a_end, b, b_end, label = kept.T
        whole_a, whole_b = rows[:, 1] - rows[:, 0], rows[:, 3] - rows[:, 2]
        places = of_token[a], of_token[b]
        run = np.full(len(a), seed)
        data = whole_a, whole_b, a_end - a, b_end - b, *places, label, run
        ours.append(np.stack(data, axis=1))
        rng = random.Random(1000 + seed)
        for number in range(len(texts)):
            pairs = reference_examples.pairs_of_document(texts, number, sequence_length, rng, short)
            for p in pairs:
                sizes = p.whole_a, p.whole_b, len(p.a), len(p.b)
                places = of_token[p.a[0]], of_token[p.b[0]]
                theirs.append((*sizes, *places, int(p.is_random), seed))
    ours, theirs = np.concatenate(ours), np.array(theirs)
    # B is from another document exactly if it is random.
    for rows in (ours, theirs):
        np.testing.assert_array_equal(rows[:, 4] != rows[:, 5], rows[:, 6] == 1)
    sums = []
    for rows in (ours, theirs):
        document = rows[:, 7] * len(texts) + rows[:, 4]
        weights = (None, *rows[:, [0, 1, 2, 3, 6]].T)
        sums.append([np.bincount(document, weight, seeds * len(texts)) for weight in weights])
    for of_ours, of_theirs in zip(*sums):
        same_distribution(of_ours, of_theirs)
    if len(ours) / len(texts) / seeds > 10:
        return len(ours)
    for column in range(7):
        same_distribution(ours[:, column], theirs[:, column])
    of_label = [[rows[rows[:, 6] == label] for rows in (ours, theirs)] for label in (0, 1)]
    for ours_of_label, theirs_of_label in of_label:
        for column in range(6):
            same_distribution(ours_of_label[:, column], theirs_of_label[:, column])
    return len(ours)


@pytest.mark.parametrize("short", [0.1, 0.7])
def test_next_sentence_pairs_are_distributed_as_the_published_ones(short):
    compare_with_reference(*block(), T, short, seeds=12)


def test_short_sequences_aim_at_any_length():
    drawn = np.bincount([_target(6, 1.0, random.Random(seed).random) for seed in range(2000)])
    assert (drawn[:2] == 0).all() and (abs(drawn[2:] - 400) < 100).all() and len(drawn) == 7
    assert {_target(6, 0.0, random.Random(seed).random) for seed in range(9)} == {6}


def test_pairs_use_each_sentence_and_put_back_what_a_random_one_replaced():
    sentences, documents = block(seed=3)
    rows = next_sentence_pairs(sentences, documents, MOST, seed=5).tolist()
    place = 0
    for a, a_end, b, b_end, label in rows:
        assert a == place and a < a_end and b < b_end
        assert {a, a_end, b, b_end} <= set(sentences.tolist())
        place = a_end if label else b_end
        assert label or b == a_end
    assert place == sentences[-1]


def test_a_random_text_begins_anywhere_and_ends_with_its_document():
    # Two documents; the second has four sentences of 2 tokens.
    rows = [
        next_sentence_pairs([0, 10, 12, 14, 16, 18], [0, 1, 5], 14, 0.0, seed)[0].tolist()
        for seed in range(200)
    ]
    assert {tuple(row[2:4]) for row in rows} == {(10, 14), (12, 16), (14, 18), (16, 18)}


def test_one_document_has_no_other():
    with pytest.raises(ValueError, match="there is only one; end documents with an empty line"):
        next_sentence_pairs([0, 3, 6], [0, 2], 10)


def test_sentence_order():
    sentences, documents = block(seed=1)
    edges = sentences[documents]
    rows = sentence_order_pairs(sentences, documents, MOST, seed=2)
    # in the order of the text
    first = np.where(rows[:, 4:] == 1, rows[:, [2, 3, 0, 1]], rows[:, :4])
    np.testing.assert_array_equal(first[:, 1], first[:, 2])
    assert abs(rows[:, 4].mean() - 0.5) < 4 * 0.5 / np.sqrt(len(rows))
    # Pairs never cross documents, and include all sentences of documents with at least two
    # sentences.
    document = np.searchsorted(edges, first, side="right")
    np.testing.assert_array_equal(document[:, 0], np.searchsorted(edges, first[:, 3], side="left"))
    covered = np.zeros(sentences[-1], bool)
    for begin, _, _, end in first:
        covered[begin:end] = True
    has_two = np.diff(documents) > 1
    expected = np.repeat(has_two, np.diff(edges))
    np.testing.assert_array_equal(covered, expected)
    assert sentence_order_pairs([0, 3, 6], [0, 1, 2], MOST).shape == (0, 5)


def test_full_sentences_hold_all_text_in_order():
    sentences, documents = block(num_documents=60, seed=4, longest=2 * MOST)
    tokens = np.arange(sentences[-1]) + 1
    values, rows = full_sentences(tokens, sentences, documents, MOST, separator=0)
    lengths = rows[:, 1] - rows[:, 0]
    assert lengths.max() <= MOST and lengths.min() > 0 and not rows[:, 2:].any()
    texts = [values[begin:end] for begin, end in rows[:, :2]]
    # Rows contain all tokens in order. Only separators at the beginning or end of a row are left
    # out.
    assert all(text[0] and text[-1] for text in texts)
    joined = np.concatenate(texts)
    np.testing.assert_array_equal(joined[joined > 0], tokens)
    # There is one separator between documents of a row, and none inside a document.
    ends = sentences[documents[1:]]
    for text in texts:
        before, after = text[:-1], text[1:]
        inside = before > 0
        np.testing.assert_array_equal((after == 0)[inside], np.isin(before, ends)[inside])
    # Rows have whole sentences if these fit, and no space is left for the next sentence.
    starts = set((sentences[:-1] + 1).tolist())
    sizes = dict(zip((sentences[:-1] + 1).tolist(), np.diff(sentences).tolist()))
    for text, following in zip(texts[:-1], texts[1:]):
        begin = int(following[0])
        if begin in starts:
            between = int(begin - 1 in ends.tolist())
            assert len(text) + between + min(sizes[begin], MOST) > MOST


def test_full_sentences_short_rows():
    sentences, documents = block(num_documents=60, seed=4)
    tokens = np.arange(sentences[-1])
    for rate, low, high in ((0.0, 0.8, 1.0), (1.0, 0.4, 0.75)):
        _, rows = full_sentences(tokens, sentences, documents, MOST, -1, rate)
        assert low < (rows[:, 1] - rows[:, 0]).mean() / MOST < high


def test_truncation_is_that_of_one_token_after_the_other():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 150, (400, 2))
    rows = np.zeros((len(lengths), 5), "int64")
    rows[:, 1], rows[:, 2] = lengths[:, 0], 1000
    rows[:, 3] = 1000 + lengths[:, 1]
    kept = truncate_pairs(rows, MOST, rng)
    fronts, theirs = [], []
    for (a, b), (a_begin, a_end, b_begin, b_end, _) in zip(lengths.tolist(), kept.tolist()):
        first, second = list(range(a)), list(range(1000, 1000 + b))
        reference_examples.truncate(first, second, MOST, random.Random(a + b))
        assert (a_end - a_begin, b_end - b_begin) == (len(first), len(second))
        fronts += [a_begin, b_begin - 1000]
        theirs += [first[0], second[0] - 1000]
        assert 0 <= a_begin and a_end <= a and 1000 <= b_begin and b_end <= 1000 + b
    same_distribution(fronts, theirs)


@pytest.mark.parametrize("separators", [1, 2])
def test_packing(separators):
    tokens = np.arange(100, 120)
    rows = np.array([[0, 3, 10, 12, 1], [5, 6, 6, 9, 0], [2, 6, 0, 0, 0]])
    packed = pack_rows(tokens, rows, 10, Frame((1,), (2,) * separators, (), (2,)), pad=3)
    middle, rest = [2] * separators, [3] * (3 - separators)
    assert packed["input_ids"].tolist() == [
        [1, 100, 101, 102, *middle, 110, 111, 2, *rest],
        [1, 105, *middle, 106, 107, 108, 2, 3, *rest],
        [1, 102, 103, 104, 105, 2, 3, 3, 3, 3],
    ]
    assert packed["lengths"].tolist() == [7 + separators, 6 + separators, 6]
    assert packed["segment_ids"].sum(axis=1).tolist() == [3, 4, 0]
    assert packed["input_ids"].dtype == "int32"


def test_packing_in_other_frames():
    tokens, rows = np.arange(100, 120), np.array([[0, 3, 10, 12, 1], [2, 6, 0, 0, 0]])
    packed = pack_rows(tokens, rows, 9, Frame((4, 5), (6,), (7,), ()), pad=3)
    assert packed["input_ids"].tolist() == [
        [4, 5, 100, 101, 102, 6, 7, 110, 111],
        [4, 5, 102, 103, 104, 105, 3, 3, 3],
    ]
    assert packed["segment_ids"].astype(int).tolist() == [[0] * 6 + [1] * 3, [0] * 9]
    full = pack_rows(tokens, np.array([[0, 7, 0, 0, 0]]), 9, Frame((4, 5), (6,), (7,), ()), pad=3)
    assert full["lengths"].tolist() == [9] and not full["segment_ids"].any()
    packed = pack_rows(tokens, rows, 6, Frame(), pad=3)
    assert packed["input_ids"].tolist() == [
        [100, 101, 102, 110, 111, 3],
        [102, 103, 104, 105, 3, 3],
    ]
    assert packed["lengths"].tolist() == [5, 4]

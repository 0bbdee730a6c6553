"""Masking: exact counts, the shares of 80/10/10, and the same results everywhere."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.text.masking import (
    UNITS,
    _spans,
    _words,
    check_rates,
    mask_tokens,
    prediction_slots,
    word_starts,
)

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.

MASK, VOCABULARY = 4, 1000


def rows_of(lengths, width=None):
    """Return ids (B, T) above 4 between special tokens, and which may be masked."""
    width = width or max(lengths)
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (len(lengths), width))
    place, last = np.arange(width), np.array(lengths)[:, None] - 1
    ids = np.where(place > last, 0, np.where(place == last, 3, np.where(place == 0, 2, ids)))
    return ids.astype("int32"), (place > 0) & (place < last)


def hide(ids, maskable, seed=(1, 2), **settings):
    settings = {"vocabulary_size": VOCABULARY, "mask_token_id": MASK, **settings}
    hidden = mask_tokens(ids, maskable, seed, **settings)
    tensors = {
        name: tf.constant(x) if isinstance(x, np.ndarray) else x for name, x in settings.items()
    }
    in_graph = mask_tokens(tf.constant(ids), tf.constant(maskable), seed, **tensors)
    for name, value in hidden.items():
        assert value.dtype == in_graph[name].dtype.as_numpy_dtype, name
        np.testing.assert_array_equal(value, in_graph[name].numpy())
    return hidden


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5, 1.0])
def test_exact_counts(rate):
    lengths = [2, 3, 4, 9, 10, 11, 30, 37, 50, 63, 64]
    ids, maskable = rows_of(lengths, 64)
    hidden = hide(ids, maskable, mask_selection_rate=rate, lengths=lengths)
    positions, weights = hidden["mask_positions"], hidden["mask_weights"]
    assert positions.shape == (len(lengths), round(rate * 64)) and positions.dtype == "int32"
    for row, length in enumerate(lengths):
        wanted = min(max(1, round(rate * length)), length - 2)
        used = weights[row] == 1
        # The used slots come first, with distinct positions in order.
        assert used[:wanted].all() and not weights[row, wanted:].any()
        assert (np.diff(positions[row, :wanted]) > 0).all()
        assert maskable[row, positions[row, :wanted]].all()
        assert (positions[row, wanted:] == 0).all() and (
            hidden["mask_ids"][row, wanted:] == 0
        ).all()
        assert (hidden["mask_ids"][row, used] == ids[row, positions[row, used]]).all()
        changed = np.flatnonzero(hidden["token_ids"][row] != ids[row])
        assert set(changed) <= set(positions[row, used])


def test_without_lengths_two_tokens_are_special():
    ids, maskable = rows_of([64, 20])
    given = hide(ids, maskable, lengths=[64, 20])
    np.testing.assert_array_equal(hide(ids, maskable)["mask_positions"], given["mask_positions"])


def test_the_most_in_a_row():
    ids, maskable = rows_of([64, 20, 10])
    hidden = hide(ids, maskable, mask_selection_length=3)
    assert hidden["mask_positions"].shape == (3, 3)
    assert hidden["mask_weights"].sum(axis=1).tolist() == [3, 3, 2]


def test_nothing_to_hide():
    ids, maskable = rows_of([2, 2])
    hidden = hide(ids, maskable)
    np.testing.assert_array_equal(hidden["token_ids"], ids)
    assert not hidden["mask_weights"].any()


@pytest.mark.parametrize("rates", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_shares(rates):
    """80% the mask token, 10% any token, 10% unchanged: within five standard deviations."""
    ids, maskable = rows_of([130] * 800)
    hidden = hide(ids, maskable, mask_token_rate=rates[0], random_token_rate=rates[1])
    used = hidden["mask_weights"] == 1
    assert used.sum() == 800 * round(0.15 * 130)
    seen = np.take_along_axis(hidden["token_ids"], hidden["mask_positions"], axis=1)[used]
    was, count = hidden["mask_ids"][used], used.sum()
    is_mask = seen == MASK
    for found, rate in (
        (is_mask, rates[0]),
        (seen == was, 1 - sum(rates)),
        (~is_mask & (seen != was), rates[1]),
    ):
        # One random token in a thousand is the mask token or the original token.
        tolerance = 5 * (rate * (1 - rate) / count) ** 0.5 + 0.004 * (rates[1] > 0)
        assert abs(found.mean() - rate) <= tolerance
    if rates[1] == 1:
        other = seen[~is_mask]
        assert other.min() == 0 and other.max() == VOCABULARY - 1
        assert abs(other.mean() - VOCABULARY / 2) < 10


def test_every_place_is_as_likely():
    ids, maskable = rows_of([34] * 4000)
    hidden = hide(ids, maskable)
    places = hidden["mask_positions"][hidden["mask_weights"] == 1]
    counts = np.bincount(places, minlength=34)
    assert not counts[[0, 33]].any()
    expected = len(places) / 32
    assert np.abs(counts[1:33] - expected).max() < 5 * expected**0.5


def test_the_seed_decides():
    ids, maskable = rows_of([64, 40, 20])
    first, again, other = (hide(ids, maskable, seed) for seed in ((1, 2), (1, 2), (1, 3)))
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)
    assert (first["mask_positions"] != other["mask_positions"]).any()
    # Neighboring seeds share no numbers.
    same = (first["mask_positions"] == other["mask_positions"]).mean()
    assert same < 0.5


def test_a_graph_gives_the_same():
    ids, maskable = rows_of([64, 40, 20, 2])
    expected = hide(ids, maskable, lengths=[64, 40, 20, 2])

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None), tf.int32),
            tf.TensorSpec((None, None), tf.bool),
            tf.TensorSpec((None,), tf.int32),
            tf.TensorSpec((2,), tf.int64),
        ]
    )
    def graph(ids, maskable, lengths, seed):
        return mask_tokens(
            ids, maskable, seed, vocabulary_size=VOCABULARY, mask_token_id=MASK, lengths=lengths
        )

    found = graph(ids, maskable, np.array([64, 40, 20, 2], "int32"), np.array([1, 2]))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), value)


def test_prediction_slots():
    """Numbers are rounded half to even, as in the reference, and in the same way for ints and
    tensors.
    """
    lengths = np.arange(1, 513)
    for rate in (0.15, 0.25, 0.5):
        expected = [max(1, round(rate * n)) for n in lengths.tolist()]
        assert [prediction_slots(n, rate) for n in lengths.tolist()] == expected
        assert prediction_slots(tf.constant(lengths), rate).numpy().tolist() == expected


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ((1.5, 0.8, 0.1), "mask_selection_rate=1.5 must be a number from 0 to 1"),
        ((0, 0.8, 0.1), "mask_selection_rate=0 leaves nothing to predict"),
        ((0.15, -0.1, 0.1), "mask_token_rate=-0.1 must be a number"),
        ((0.15, 0.8, "0.1"), "random_token_rate='0.1' must be a number"),
        ((0.15, 0.8, 0.3), "mask_token_rate=0.8 and random_token_rate=0.3 add up to more than 1"),
        ((0.15, 0.8, 0.1, 0), "mask_selection_length=0 must be a whole number of at least 1"),
        ((0.15, 0.8, 0.1, None, "words"), "'words' must be one of 'token', 'wo"),
    ],
)
def test_rates_that_make_no_sense(rates, message):
    with pytest.raises(ValueError, match=message):
        check_rates(*rates)


# --- Words, spans and n-grams ---


def rows_of_words(sizes, breaks=()):
    """Return rows of words of these sizes, with a special token before, after and at `breaks`
    (words).

    Returns `(ids, maskable, starts, words)`: `words` (B, T) has the number of each token's word.
    """
    rows = []
    for row in sizes:
        words = [-1]
        for word, size in enumerate(row):
            words += [-1] * (word in breaks) + [word] * size
        rows.append([*words, -1])
    width = max(map(len, rows))
    words = np.array([row + [-1] * (width - len(row)) for row in rows])
    maskable = words >= 0
    ids = np.where(maskable, np.random.default_rng(0).integers(5, VOCABULARY, words.shape), 0)
    starts = maskable & (words != np.roll(words, 1, axis=1))
    return ids.astype("int32"), maskable, starts, words


def random_words(kind, num_rows=24):
    """Return sizes of words, one list per row."""
    random = np.random.default_rng(3)
    odds = {
        "english": ([1, 2, 3, 4], [0.75, 0.13, 0.08, 0.04]),
        "long": ([2, 3, 5, 7], [0.25, 0.25, 0.25, 0.25]),
        "even": ([2, 4, 6], [0.4, 0.3, 0.3]),
    }[kind]
    counts = random.integers(1, 30, num_rows)
    return [random.choice(odds[0], count, p=odds[1]).tolist() for count in counts]


def sums_up_to(sizes, count):
    """Return the largest sum of some of the sizes that is at most `count`."""
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums if total + size <= count}
    return max(sums)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["english", "long", "even"])
@pytest.mark.parametrize("unit", ["word", "span", "ngram"])
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_whole_words_in_exact_numbers(unit, kind, rate):
    sizes = random_words(kind)
    ids, maskable, starts, words = rows_of_words(sizes, breaks=(7,))
    lengths = (words >= 0).sum(axis=1) + 3
    settings = {"unit": unit, "word_starts": starts, "lengths": lengths.astype("int32")}
    for seed in range(2):
        hidden = hide(ids, maskable, (seed, 5), mask_selection_rate=rate, **settings)
        for row, row_sizes in enumerate(sizes):
            used = hidden["mask_weights"][row] == 1
            positions = hidden["mask_positions"][row, used]
            assert (np.diff(positions) > 0).all()
            wanted = min(max(1, round(rate * int(lengths[row]))), sum(row_sizes))
            assert used.sum() == sums_up_to(row_sizes, wanted)
            # Either all pieces of a word are masked, or none.
            chosen = np.bincount(words[row, positions], minlength=len(row_sizes))
            assert set(np.flatnonzero(chosen)) == set(words[row, positions].tolist())
            assert all(n in (0, size) for n, size in zip(chosen, row_sizes, strict=True))
            assert (hidden["mask_ids"][row, used] == ids[row, positions]).all()


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([2, 2, 3], 3, {(2,)}),
        ([2, 2, 3], 4, {(0, 1)}),
        ([5], 1, {()}),
        ([2, 4, 6], 5, {(1,)}),
        ([1, 1, 3], 3, {(2,)}),
        ([3, 1, 1, 1], 3, {(0,), (1, 2, 3)}),
        ([6, 9, 20], 15, {(0, 1)}),
    ],
)
def test_which_words_there_can_be(sizes, most, expected):
    """A word that exceeds the count is skipped, and so is one that leaves an unfillable rest."""
    ids, maskable, starts, words = rows_of_words([sizes] * 40)
    hidden = hide(
        ids,
        maskable,
        unit="word",
        word_starts=starts,
        mask_selection_rate=1.0,
        mask_selection_length=most,
    )
    found = set()
    for row in range(40):
        positions = hidden["mask_positions"][row][hidden["mask_weights"][row] == 1]
        found.add(tuple(sorted(set(words[row, positions].tolist()))))
    assert found == expected


def test_where_greedy_fills_the_row_lookahead_changes_nothing():
    """A row's result does not depend on the other rows."""
    ids, maskable, starts, _ = rows_of_words([[1, 2, 1, 3, 1, 1, 2, 1, 1, 2, 4, 1] * 3, [7]])
    settings = {"unit": "word", "mask_selection_rate": 0.3, "mask_selection_length": 9}
    for seed in range(5):
        both = hide(ids, maskable, (seed, 0), word_starts=starts, **settings)
        assert both["mask_weights"].sum(axis=1).tolist() == [9, 0]
        # Mask again with the same random numbers, but with a second row in which nothing may be
        # masked, so that only the first row is searched.
        other = maskable.copy()
        other[1] = False
        alone = hide(ids, other, (seed, 0), word_starts=starts, **settings)
        np.testing.assert_array_equal(both["mask_positions"][0], alone["mask_positions"][0])


@pytest.mark.parametrize("unit", ["word", "span", "ngram"])
def test_every_word_is_as_likely(unit):
    ids, maskable, starts, _ = rows_of_words([[1] * 40] * 3000)
    hidden = hide(ids, maskable, unit=unit, word_starts=starts)
    places = hidden["mask_positions"][hidden["mask_weights"] == 1]
    assert len(places) == 3000 * round(0.15 * 42)
    counts = np.bincount(places, minlength=42)[1:41]
    # Words of a span are masked together, which increases the variance.
    expected = len(places) / 40
    assert np.abs(counts - expected).max() < 8 * expected**0.5


@pytest.mark.parametrize(("unit", "mean"), [("span", 3.797), ("ngram", 18 / 11), ("word", 1)])
def test_lengths_of_spans(unit, mean):
    draws = tf.random.stateless_uniform((300, 512), (4, 2), alg="philox")
    spans = np.asarray(_spans(UNITS[unit], tf.zeros((300, 512), tf.bool), draws))
    assert (spans[:, 0] == 0).all() and (np.diff(spans, axis=1) >= 0).all()
    lengths = []
    for row in spans:
        row = [len(list(group)) for _, group in itertools.groupby(row)]
        lengths += row[1:-8]  # Spans at the ends are truncated.
    odds = np.array(UNITS[unit]) / sum(UNITS[unit])
    found = np.bincount(lengths, minlength=len(odds) + 1)[1:] / len(lengths)
    assert np.abs(found - odds).max() < 5 * (0.25 / len(lengths)) ** 0.5
    assert np.mean(lengths) == pytest.approx(mean, rel=0.02)
    # A row begins anywhere in a span, so spans begin at all places with equal probability.
    begins = (np.diff(spans, axis=1) > 0).mean(axis=0)
    assert np.abs(begins[:5].mean() - 1 / mean) < 5 * (0.25 / 1500) ** 0.5 + 0.01


def test_a_span_ends_at_a_special_token():
    breaks = np.zeros((50, 20), bool)
    breaks[:, [0, 9]] = True
    draws = tf.random.stateless_uniform((50, 20), (4, 2), alg="philox")
    spans = _spans(UNITS["span"], tf.constant(breaks), draws).numpy()
    assert (spans[:, 9] > spans[:, 8]).all()
    assert (spans[:, 8] == spans[:, 7]).any()


@pytest.mark.parametrize("unit", ["word", "span", "ngram"])
def test_what_shares_its_fate(unit):
    """All tokens of a span get the same treatment (mask, random token or unchanged); the pieces of
    a word are treated independently.
    """
    sizes = random_words("long", 200)
    ids, maskable, starts, _ = rows_of_words(sizes)
    rates = {"mask_token_rate": 0.5, "random_token_rate": 0.0, "mask_selection_rate": 0.5}
    hidden = hide(ids, maskable, (6, 6), unit=unit, word_starts=starts, **rates)
    draws = tf.random.stateless_uniform((4, *ids.shape), (6, 6), alg="philox")
    word, _, breaks = _words(tf.constant(maskable), tf.constant(starts))
    span = tf.gather(_spans(UNITS[unit], breaks, draws[3]), word, batch_dims=1).numpy()
    fates = {}
    for row, place in np.argwhere(hidden["mask_weights"] == 1):
        place = hidden["mask_positions"][row, place]
        is_mask = bool(hidden["token_ids"][row, place] == MASK)
        fates.setdefault((row, span[row, place]), []).append(is_mask)
    mixed = np.mean([len(set(fate)) > 1 for fate in fates.values() if len(fate) > 1])
    assert mixed == 0 if unit == "span" else mixed > 0.5
    everything = np.concatenate(list(fates.values()))
    assert abs(everything.mean() - 0.5) < (0.08 if unit == "span" else 0.04)


def test_tokens_of_a_random_span_differ():
    ids, maskable, starts, _ = rows_of_words([[1] * 60])
    rates = {"mask_token_rate": 0.0, "random_token_rate": 1.0, "mask_selection_rate": 0.5}
    hidden = hide(ids, maskable, unit="span", word_starts=starts, **rates)
    seen = hidden["token_ids"][0, hidden["mask_positions"][0]]
    assert len(set(seen.tolist())) > 25


def test_without_starts_each_token_is_a_word():
    ids, maskable = rows_of([64, 20])
    for unit in ("span", "ngram"):
        given = hide(ids, maskable, unit=unit, word_starts=np.ones_like(maskable))
        found = hide(ids, maskable, unit=unit)
        np.testing.assert_array_equal(found["token_ids"], given["token_ids"])
    with pytest.raises(ValueError, match="unit='word' needs word_starts"):
        hide(ids, maskable, unit="word")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_in_a_graph(unit):
    @tf.function(
        input_signature=[
            *[tf.TensorSpec((None, None), dtype) for dtype in (tf.int32, tf.bool, tf.bool)],
            tf.TensorSpec((2,), tf.int64),
        ]
    )
    def graph(ids, maskable, starts, seed):
        settings = {"unit": unit, "word_starts": starts}
        return mask_tokens(
            ids, maskable, seed, vocabulary_size=VOCABULARY, mask_token_id=MASK, **settings
        )

    for kind in ("english", "even"):
        ids, maskable, starts, _ = rows_of_words(random_words(kind))
        expected = hide(ids, maskable, (1, 2), unit=unit, word_starts=starts)
        for name, found in graph(ids, maskable, starts, np.array([1, 2])).items():
            np.testing.assert_array_equal(found.numpy(), expected[name])
        nothing = graph(ids, np.zeros_like(maskable), starts, np.array([1, 2]))
        assert not nothing["mask_weights"].numpy().any()


def test_word_starts():
    # The four token ids continue a word, begin a word, are a whole word, and end a word.
    edges = np.array([[False, False], [True, False], [True, True], [False, True]])
    ids = np.array([[1, 0, 2, 0, 0, 1], [0, 3, 0, 2, 1, 1]])
    expected = [[True, False, True, True, False, True], [True, False, True, True, True, True]]
    assert word_starts(ids, edges).tolist() == expected
    assert word_starts(tf.constant(ids), edges).numpy().tolist() == expected

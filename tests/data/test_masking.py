"""Masking: exact counts, the shares of 80/10/10, and the same numbers everywhere."""

import numpy as np
import pytest

from kerasbert.data.masking import check_rates, mask_tokens, prediction_slots

tf = pytest.importorskip("tensorflow", reason="masking runs in TensorFlow's graph")

MASK, VOCABULARY = 4, 1000


def rows_of(lengths, width=None):
    """Ids (B, T) above 4 between special tokens, and what may be hidden."""
    width = width or max(lengths)
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (len(lengths), width))
    place, last = np.arange(width), np.array(lengths)[:, None] - 1
    ids = np.where(place > last, 0, np.where(place == last, 3, np.where(place == 0, 2, ids)))
    return ids.astype("int32"), (place > 0) & (place < last)


def hide(ids, maskable, seed=(1, 2), **settings):
    settings = {"vocabulary_size": VOCABULARY, "mask_token_id": MASK, **settings}
    hidden = mask_tokens(ids, maskable, seed, **settings)
    return {name: value.numpy() for name, value in hidden.items()}


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
        # The used slots come first, and name different places in order.
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
    """80% the mask token, 10% any token, 10% as it was: within five standard deviations."""
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
        # One random token in a thousand is the mask token, or the one that was there.
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
    # Neighbouring seeds share no numbers.
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
    """Half to even, as the reference rounds; the same for ints and tensors."""
    lengths = np.arange(1, 513)
    for rate in (0.15, 0.25, 0.5):
        expected = [max(1, round(rate * n)) for n in lengths.tolist()]
        assert [prediction_slots(n, rate) for n in lengths.tolist()] == expected
        assert prediction_slots(tf.constant(lengths), rate).numpy().tolist() == expected


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ((1.5, 0.8, 0.1), "mask_selection_rate=1.5 has to be a number from 0 to 1"),
        ((0, 0.8, 0.1), "mask_selection_rate=0 leaves nothing to predict"),
        ((0.15, -0.1, 0.1), "mask_token_rate=-0.1 has to be a number"),
        ((0.15, 0.8, "0.1"), "random_token_rate='0.1' has to be a number"),
        ((0.15, 0.8, 0.3), "mask_token_rate=0.8 and random_token_rate=0.3 add up to more than 1"),
        ((0.15, 0.8, 0.1, 0), "mask_selection_length=0 has to be a whole number from 1"),
    ],
)
def test_rates_that_make_no_sense(rates, message):
    with pytest.raises(ValueError, match=message):
        check_rates(*rates)

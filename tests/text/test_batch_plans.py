import itertools

import numpy as np
import pytest

from kerasbert.text.batch_plans import (
    BUCKETS,
    bucket_length,
    buckets_up_to,
    cheap_shapes,
    given_batches,
    restore_order,
    similar_length_batches,
    sorted_batches,
)


def test_buckets():
    for length in range(1, 2000):
        bucket = bucket_length(length)
        assert bucket >= length
        assert bucket in BUCKETS or (bucket > 512 and bucket % 256 == 0)
        assert bucket_length(bucket) == bucket
        assert bucket - 256 < length
    assert bucket_length(0) == 8
    assert buckets_up_to(8) == [8]
    assert buckets_up_to(3) == [3]
    assert buckets_up_to(1100) == [*BUCKETS, 768, 1024, 1100]
    assert [b for b in buckets_up_to(2048)] == [*BUCKETS, 768, 1024, 1280, 1536, 1792, 2048]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 1000, 5003])
@pytest.mark.parametrize("batch_size", [1, 32])
def test_every_epoch_is_a_permutation(count, batch_size):
    lengths = np.random.default_rng(count).integers(1, 200, count)
    epochs = [similar_length_batches(lengths, batch_size, 7, epoch) for epoch in range(3)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(count))
        assert len(batches) == -(-count // batch_size)
        assert sum(len(batch) != batch_size for batch in batches) <= 1
        assert all(len(batch) for batch in batches)
    if count >= 1000:
        first, second = (np.concatenate(batches).tolist() for batches in epochs[:2])
        assert first != second
        assert {frozenset(b) for b in map(tuple, epochs[0])} != {
            frozenset(b) for b in map(tuple, epochs[1])
        } or batch_size == 1
    again = similar_length_batches(lengths, batch_size, 7, 2)
    assert all(np.array_equal(a, b) for a, b in zip(again, epochs[2]))
    other = similar_length_batches(lengths, batch_size, 8, 2)
    assert count < 1000 or not np.array_equal(np.concatenate(again), np.concatenate(other))


def padding(batches, lengths):
    """Return the share of padding among the tokens that a model reads."""
    padded = sum(len(batch) * bucket_length(lengths[batch].max()) for batch in batches)
    return 1 - lengths.sum() / padded


def test_similar_lengths_save_padding():
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.1, 0.5, 10_000).astype(int), 3, 128)
    mixed = padding(given_batches(lengths, 32), lengths)
    ours = padding(similar_length_batches(lengths, 32), lengths)
    least = padding(sorted_batches(lengths, 32), lengths)
    assert mixed > 0.6
    assert ours < 0.25
    assert ours < least + 0.01


def test_batches_come_in_no_order_of_length():
    lengths = np.random.default_rng(0).integers(1, 128, 6400)
    means = [lengths[batch].mean() for batch in similar_length_batches(lengths, 32)]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.25


def test_every_few_batches_are_short_and_long():
    lengths = np.random.default_rng(0).integers(1, 128, 6400)
    for epoch in range(5):
        batches = similar_length_batches(lengths, 32, 0, epoch)
        means = np.array([lengths[batch].mean() for batch in batches])
        runs = means.reshape(-1, 8).mean(axis=1)
        assert runs.std() < means.std() / 8 and abs(runs[-1] - lengths.mean()) < 8


def test_company_of_an_example_changes():
    # All lengths are in one bucket, so batches are as random as without sorting.
    lengths = np.random.default_rng(0).integers(2, 16, 320)
    companies = [
        next(set(b) for b in map(tuple, similar_length_batches(lengths, 32, 0, epoch)) if 5 in b)
        for epoch in range(20)
    ]
    shared = [len(a & b) for a, b in zip(companies, companies[1:])]
    assert np.mean(shared) < 8  # 1 + 31 * 31 / 319 by chance


def test_short_batch_keeps_its_bucket():
    lengths = np.random.default_rng(0).integers(2, 128, 1003)
    short = [
        max(lengths[batch])
        for epoch in range(10)
        for batch in similar_length_batches(lengths, 32, 0, epoch)
        if len(batch) < 32
    ]
    assert len({bucket_length(length) for length in short}) == 1


def shapes(batches, lengths, buckets):
    """Return the shape to which each batch is padded."""
    places = [np.searchsorted(buckets, lengths[batch].max()) for batch in batches]
    return [(len(batch), buckets[place]) for batch, place in zip(batches, places, strict=True)]


def cost_of(batches, lengths, buckets, shape_cost):
    padded = shapes(batches, lengths, buckets)
    return shape_cost * len(set(padded)) + sum(rows * length for rows, length in padded)


@pytest.mark.parametrize("count", [1, 20, 640, 650, 1003])
@pytest.mark.parametrize("shape_cost", [0, 100, 2000, 10**6])
def test_no_other_buckets_are_cheaper(count, shape_cost):
    lengths = np.clip(np.random.default_rng(0).lognormal(3, 0.6, count).astype(int), 3, 60)
    buckets, short = cheap_shapes(lengths, 32, shape_cost)
    batches = similar_length_batches(lengths, 32, 0, 0, buckets, short)
    found = cost_of(batches, lengths, buckets, shape_cost)
    *inner, last = buckets_up_to(bucket_length(lengths.max()))
    for size in range(len(inner) + 1):
        for some in itertools.combinations(inner, size):
            others = [*some, last]
            plan = similar_length_batches(lengths, 32, 0, 0, others)
            assert found <= cost_of(plan, lengths, others, shape_cost)
    if shape_cost == 10**6:
        assert buckets == [last] and len(set(shapes(batches, lengths, buckets))) <= 2


def test_few_shapes_are_the_same_in_every_epoch():
    lengths = np.random.default_rng(0).integers(2, 250, 650)
    buckets, short = cheap_shapes(lengths, 32, 8000)
    assert 2 <= len(buckets) <= 5
    epochs = [similar_length_batches(lengths, 32, 3, epoch, buckets, short) for epoch in range(4)]
    assert len({tuple(sorted(shapes(batches, lengths, buckets))) for batches in epochs}) == 1
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(650))


def test_the_only_batch_of_a_length_may_be_the_short_one():
    lengths = np.array([10] * 70 + [100] * 20)
    buckets, short = cheap_shapes(lengths, 32, 1000)
    batches = similar_length_batches(lengths, 32, 0, 0, buckets, short)
    assert sorted(shapes(batches, lengths, buckets)) == [(26, 128), (32, 16), (32, 16)]


def test_sorted_batches_and_back():
    lengths = np.random.default_rng(0).integers(1, 100, 101)
    batches = sorted_batches(lengths, 8)
    order = np.concatenate(batches)
    assert sorted(order) == list(range(101))
    assert (np.diff(lengths[order]) <= 0).all()
    outputs = {"a": lengths[order], "b": np.stack([order, order], 1)}
    restored = restore_order(outputs, order)
    assert np.array_equal(restored["a"], lengths)
    assert np.array_equal(restored["b"][:, 1], np.arange(101))


@pytest.mark.parametrize("cut", [similar_length_batches, sorted_batches, given_batches])
def test_errors(cut):
    with pytest.raises(ValueError, match="no examples"):
        cut([], 32)
    for size in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=f"batch_size={size}"):
            cut([1, 2], size)

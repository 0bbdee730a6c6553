import doctest
import itertools

import numpy as np
import pytest

from kerasbert.text import batching
from kerasbert.text.batching import (
    BUCKETS,
    Batches,
    Spec,
    batch_dataset,
    bucket_length,
    buckets_up_to,
    cheap_shapes,
    given_batches,
    restore_order,
    rows_of_part,
    similar_length_batches,
    sorted_batches,
)


def test_docstrings():
    assert doctest.testmod(batching).failed == 0


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
    """Share of padding among the tokens that a model sees."""
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
    # All in one bucket: batches are as random as without sorting.
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
    """The shape that each batch is padded to."""
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


def test_dataset_plans_every_pass_anew():
    import tensorflow as tf

    lengths = np.random.default_rng(0).integers(1, 100, 100)
    seen = []

    def plan(epoch):
        seen.append(epoch)
        return similar_length_batches(lengths, 8, 0, epoch)

    numbers = tf.constant(lengths)
    dataset = batch_dataset(plan, lambda rows: (rows, tf.gather(numbers, rows)))
    assert len(dataset) == 13
    assert dataset.element_spec[0].shape.as_list() == [None]
    passes = [[(rows.numpy(), got.numpy()) for rows, got in dataset] for _ in range(3)]
    for one in passes:
        assert sorted(np.concatenate([rows for rows, _ in one])) == list(range(100))
        assert all(np.array_equal(lengths[rows], got) for rows, got in one)
    orders = {tuple(np.concatenate([rows for rows, _ in one])) for one in passes}
    assert len(orders) == 3
    assert seen == [0, 0, 1, 2]  # the first to count the batches
    for given, (rows, _) in zip(plan(1), passes[1]):
        assert np.array_equal(given, rows)


def test_batches_in_numpy():
    """Each pass is an epoch of its own, however it is read."""
    made = []

    def make(rows, seed):
        made.append(int(rows[0]))
        return {"x": rows.astype("int32")}, rows * 2.0

    def plan(epoch):
        return [np.array([10 * epoch + number] * 2) for number in range(5)]

    batches = Batches(plan, make, lambda epoch: (7, epoch), first_epoch=3)
    assert batches.cardinality() == len(batches) == 5
    assert batches.element_spec[0]["x"] == Spec((None,), np.dtype("int32"))
    # Keras builds a model on a first batch, and goes on where an epoch of few steps has ended.
    served = [int(batches[number][0]["x"][0]) for number in (0, 0, 1, 2, 3, 4, 0, 1)]
    assert served == [30, 30, 31, 32, 33, 34, 40, 41]
    passes = [[int(y[0]) for _, y in batches] for _ in range(2)]
    assert passes == [[80, 82, 84, 86, 88], [100, 102, 104, 106, 108]]
    weighted = batches.map(lambda x, y: (x, y, y + 1))
    assert float(next(iter(weighted))[2][0]) == 101.0
    with pytest.raises(ZeroDivisionError):
        list(Batches(plan, lambda rows: 1 / 0))
    part = rows_of_part(batches, 1, 2)
    x, y, weight = next(iter(part))
    assert x["x"].tolist() == [50] and weight.tolist() == [1.0]

import numpy as np
import pytest

from kerasbert.text.batch_plans import similar_length_batches
from kerasbert.text.batches import Batches, Spec, batch_dataset, rows_of_part


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
    assert seen == [0, 0, 1, 2]  # Epoch 0 is planned twice, first to count the batches.
    for given, (rows, _) in zip(plan(1), passes[1]):
        assert np.array_equal(given, rows)


def test_batches_in_numpy():
    """Each pass is a new epoch, however it is read."""
    made = []

    def make(rows, seed):
        made.append(int(rows[0]))
        return {"x": rows.astype("int32")}, rows * 2.0

    def plan(epoch):
        return [np.array([10 * epoch + number] * 2) for number in range(5)]

    batches = Batches(plan, make, lambda epoch: (7, epoch), first_epoch=3)
    assert batches.cardinality() == len(batches) == 5
    assert batches.element_spec[0]["x"] == Spec((None,), np.dtype("int32"))
    # Keras builds a model on a first batch, and resumes where an epoch of few steps has ended.
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

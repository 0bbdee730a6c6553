"""Exact search compared with a full product, in each precision, with ties and excluded rows."""

import numpy as np
import pytest

from kerasbert.search import vectors as module
from kerasbert.search.vectors import DTYPES, Vectors, to_bits, unit_vectors


def some(count, width, seed=0):
    return unit_vectors(np.random.default_rng(seed).normal(size=(count, width)).astype("float32"))


def best(scores, count):
    """Return the rows of the highest scores (Q, N), the first of ties: (Q, K)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize("width", [24, 64, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_search(dtype, width, monkeypatch):
    monkeypatch.setattr(module, "_QUERIES", 3)
    values, queries = some(20_000, width), some(7, width, seed=1)
    kept = Vectors(width, dtype, keep_int8=True)
    for part in np.array_split(values, 3):
        kept.append(part)
    alive = np.random.default_rng(2).random(20_000) > 0.3
    found = kept.nearest(queries, 9, alive)
    if dtype == "binary":
        bits = (queries[:, None] > 0) != (values[None] > 0)
        scores = -bits.sum(axis=-1)
    else:
        scores = queries @ kept.take(np.arange(20_000)).T
    expected = best(np.where(alive, scores, -np.inf), 9)
    assert (np.sort(found) == np.sort(expected)).all()
    error = {"float32": 0, "float16": 1e-3}.get(dtype, 0.02)
    assert np.abs(kept.take(np.arange(500)) - values[:500]).max() <= error
    products = np.take_along_axis(queries @ values.T, found, 1)
    np.testing.assert_allclose(kept.scores(queries, found), products, atol=max(2 * error, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_vectors_come_in_order(dtype):
    kept = Vectors(16, dtype)
    kept.append(np.repeat(some(3, 16), [5000, 1, 60_000], axis=0))
    alive = np.ones(65_001, bool)
    alive[:2] = False
    query = some(3, 16)[[0, 2]]
    rows = kept.nearest(query, 4, alive)
    assert np.sort(rows).tolist() == [[2, 3, 4, 5], [5001, 5002, 5003, 5004]]
    alive[3:] = False
    assert np.sort(kept.nearest(query, 4, alive)).tolist() == [[-1, -1, -1, 2]] * 2
    scores = kept.scores(query, np.array([[2, -1], [3, 4]]))
    assert np.isneginf(scores[0, 1]) and scores[1, 0] == scores[1, 1]


def test_counts_of_bits_by_a_table(monkeypatch):
    """NumPy before version 2 needs the table."""
    bits = to_bits(some(50, 130))
    assert bits.shape == (50, 3)
    words = np.ascontiguousarray(bits.T)[1]
    expected = [bin(int(word)).count("1") for word in words]
    assert module._count_bits(words).tolist() == expected
    assert module._count_by_table(words).tolist() == expected


def test_only_bits():
    kept = Vectors(70, "binary", keep_int8=False)
    kept.append(some(10, 70))
    assert sum(column.row_bytes for column in kept.columns.values()) == 16
    expected = np.where(some(10, 70) > 0, 1, -1) / np.sqrt(70)
    np.testing.assert_allclose(kept.take(np.arange(10)), expected, rtol=1e-6)
    np.testing.assert_array_equal(unit_vectors(np.zeros((1, 3), "float32")), np.zeros((1, 3)))


def test_float16_by_its_bits():
    """This tests all values: normal and subnormal numbers, and both zeros."""
    numbers = np.arange(1 << 16, dtype="uint16").view("float16")
    numbers = numbers[np.isfinite(numbers)].reshape(-1, 8)
    found = module._to_float32(numbers, np.empty(numbers.shape, "float32"))
    np.testing.assert_array_equal(found.view("uint32"), numbers.astype("float32").view("uint32"))

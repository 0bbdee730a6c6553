"""Layers of heads: poolings, the mix of layers, unit length."""

import keras
import numpy as np
import pytest

from kerasbert.backend.layers import unit_length
from kerasbert.layers import Pooling, ScalarMix
from tests.contracts import array, assert_close, gradients
from tests.layers.test_layers import MASK, X

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def test_pooling():
    assert_close(Pooling("cls")(X), X[:, 0], atol=0)
    expected = [row[mask > 0].mean(axis=0) for row, mask in zip(X, MASK, strict=True)]
    assert_close(Pooling("mean")(X, padding_mask=MASK), np.stack(expected))
    assert_close(Pooling("mean")(X), X.mean(axis=1))
    expected = [row[mask > 0].max(axis=0) for row, mask in zip(X, MASK, strict=True)]
    assert_close(Pooling("max")(X, padding_mask=MASK), np.stack(expected), atol=0)
    assert_close(Pooling("max")(X), X.max(axis=1), atol=0)
    for mode in ("mean", "max"):
        assert_close(Pooling(mode)(X, padding_mask=0 * MASK), np.zeros((3, 8)), atol=0)
    with pytest.raises(ValueError, match="Unknown pooling mode 'median'"):
        Pooling("median")


def test_scalar_mix(tmp_path):
    states = [X, X + 1, 2 * X]
    mix = ScalarMix()
    assert_close(mix(states), np.mean(states, axis=0))
    assert [weight.path.split("/")[-1] for weight in mix.weights] == ["scalars", "gamma"]
    mix.set_weights([np.log([1.0, 2.0, 5.0]), np.float32(3.0)])
    expected = 3 * (X + 2 * (X + 1) + 5 * 2 * X) / 8
    assert_close(mix(states), expected)
    clone = ScalarMix.from_config(mix.get_config())
    model = keras.Model(symbols := [keras.Input((None, 8)) for _ in states], clone(symbols))
    clone.set_weights(mix.get_weights())
    assert_close(model([state[:1, :2] for state in states]), expected[:1, :2])
    loss, found = gradients(model, states)
    assert {path.split("/")[-1] for path in found} == {"scalars", "gamma"}
    assert all(np.isfinite(value).all() and np.abs(value).min() > 0 for value in found.values())
    half = ScalarMix(dtype="mixed_bfloat16")
    half(states)
    half.set_weights(mix.get_weights())
    assert keras.backend.standardize_dtype(half(states).dtype) == "bfloat16"
    assert_close(half(states), expected, atol=0.1)


def test_unit_length():
    x = np.array([[3.0, 4.0], [0.0, 0.0], [1e-9, 0.0]], "float32")
    assert_close(unit_length(x), np.array([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))
    # The gradient at zero is finite, so a training step leaves finite weights.
    dense = keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3,)), dense, keras.layers.Lambda(unit_length)])
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    model.train_on_batch(np.ones((1, 3)), np.ones((1, 2)))
    assert np.isfinite(array(dense.kernel)).all()

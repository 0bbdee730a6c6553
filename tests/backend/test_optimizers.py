"""Steps of optimizers, compared with the formula."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.backend import optimizers
from tests.backend.test_kernels import normal
from tests.contracts import array, assert_close


def adam(variable, gradient, mean, square):
    """Return Adam's step by its formula: betas 0.9 and 0.99, learning rate 0.1, epsilon 1e-3."""
    mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
    return variable - 0.1 * mean / (np.sqrt(square) + 1e-3), mean, square


def state():
    return normal(4, 3), normal(4, 3), normal(4, 3), np.abs(normal(4, 3))


@pytest.mark.backends("tensorflow")
def test_adam_step():
    variable, gradient, mean, square = arrays = state()
    weights = [keras.Variable(x) for x in (variable, mean, square)]
    gradient = ops.convert_to_tensor(gradient)
    assert optimizers.adam_step(*weights, gradient, 0.9, 0.99, 0.1, 1e-3)
    assert_close(weights, list(adam(*arrays)))


@pytest.mark.backends("torch")
def test_adam_steps():
    import torch

    both = [state(), state()]
    lists = [[torch.from_numpy(x.copy()) for x in xs] for xs in zip(*both, strict=True)]
    variables, gradients, means, squares = lists
    assert optimizers.adam_steps(variables, gradients, 0.9, 0.99, 0.1, 1e-3, means, squares)
    for number, arrays in enumerate(both):
        assert_close([x[number] for x in (variables, means, squares)], list(adam(*arrays)))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("way", ["one pass", "AMSGrad", "transposed", "GPU's"])
def test_adam_steps_in_one_pass(monkeypatch, way):
    """One pass gives the results of several operations, which handle non-contiguous tensors."""
    import torch

    from kerasbert.base import keras_internals

    variable, gradient, mean, square = arrays = [np.float32(x) for x in state()]
    if way == "transposed":
        gradient = np.ascontiguousarray(gradient.T)
    lists = [[torch.from_numpy(x.copy())] for x in (variable, gradient, mean, square)]
    if way == "transposed":
        lists[1] = [lists[1][0].T]
    highest = [torch.full((4, 3), 9.0)] if way == "AMSGrad" else None
    passes = []
    fused = keras_internals.fused_adam()
    counted = lambda *args, **kwargs: passes.append(1) or fused(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(keras_internals, "fused_adam", lambda: counted)
    if way == "GPU's":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    rate, epsilon = torch.tensor(0.1), torch.tensor(1e-3)
    variables, gradients, means, squares = lists
    optimizers.adam_steps(variables, gradients, 0.9, 0.99, rate, epsilon, means, squares, highest)
    assert len(passes) == (way in ("one pass", "AMSGrad"))
    expected = list(adam(*arrays))
    if way == "AMSGrad":
        expected[0] = variable - 0.1 * expected[1] / 3.001
    np.testing.assert_allclose(array(variables[0]), expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(array(means[0]), expected[1], rtol=0, atol=1e-6)


@pytest.mark.backends("torch")
def test_the_norm_of_a_large_table_is_exact():
    import torch

    table, vector = torch.from_numpy(normal(20_000, 64)), torch.tensor(3.0)
    exact = (table.double().square().sum() + 9).sqrt()
    clipped = optimizers.clip_by_global_norm([table, None, vector], 1.0)
    assert clipped[1] is None
    np.testing.assert_allclose(float(clipped[2]), float(3 / exact), rtol=1e-6)
    kept = optimizers.clip_by_global_norm([table, vector], 1e6)
    assert kept[0] is table and kept[1] is vector
    endless = optimizers.clip_by_global_norm([table, vector * np.inf], 1.0)
    assert torch.isnan(endless[0]).all()


@pytest.mark.backends("tensorflow")
def test_decay():
    weights = [keras.Variable(normal(4, 3)) for _ in "ab"]
    expected = [array(weight) * (1 - 0.2 * 0.1) for weight in weights]
    assert optimizers.decay(weights, 0.2, lambda: 0.1)
    assert_close(weights, expected)


def test_who_has_no_step_says_so():
    assert backend.has("adam_step") == (backend.name() == "tensorflow")
    assert optimizers.adam_step.plain(*[None] * 8) is False
    assert optimizers.adam_steps.plain(*[None] * 8) is False
    assert optimizers.decay.plain([], 0.1, lambda: 0.1) is False

"""Kernels of layers: dropout, normalization, positions and dense layers."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.backend import layers
from kerasbert.layers import TokenNorm
from tests.backend.test_kernels import OWN, RANDOM_WEIGHTS, X, normal, value_and_gradients
from tests.contracts import array, assert_close


@pytest.mark.backends("jax")
def test_dropped_shares_are_right_and_masks_independent(as_on_gpu):
    seed = keras.random.SeedGenerator(1)
    masks = [np.array(OWN.keep_mask(OWN._random_bits(seed), 0.1, (200, 50, 50))) for _ in "ab"]
    size = masks[0].size
    for mask in masks:
        assert mask.mean() == pytest.approx(0.9, abs=5 * 0.3 / size**0.5)
        for axis in range(3):
            assert mask.mean(axis).std() == pytest.approx(0.3 / mask.shape[axis] ** 0.5, rel=0.1)
    pairs = [(masks[0], masks[1])]
    pairs += [(masks[0].ravel()[:-lag], masks[0].ravel()[lag:]) for lag in (1, 2, 50, 64, 2500)]
    for first, second in pairs:
        together = ((first - 0.9) * (second - 0.9)).mean() / 0.09
        assert abs(together) < 5 / size**0.5
    dropped = layers.dropout(np.ones((200, 500), "float32"), 0.1, seed)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("form", ["own", "plain"])
def test_dropout(as_on_gpu, form):
    seed = keras.random.SeedGenerator(1)
    dropout = layers.dropout if form == "own" else layers.dropout.plain
    inputs = np.ones((300, 501), "float32")
    outputs, gradient = value_and_gradients(lambda x: dropout(x, 0.1, seed), inputs[:1, :500])
    kept = array(outputs) != 0
    expected = np.where(kept.ravel(), RANDOM_WEIGHTS[: kept.size] / 0.9, 0)
    np.testing.assert_allclose(array(gradient).ravel(), expected, rtol=1e-4)
    outputs = array(dropout(ops.convert_to_tensor(inputs), 0.1, seed))
    np.testing.assert_allclose(outputs[outputs != 0], 1 / 0.9, rtol=1e-4)
    assert (outputs != 0).mean() == pytest.approx(0.9, abs=0.0031)  # Four standard deviations.
    assert (array(dropout(ops.convert_to_tensor(inputs), 1 - 1e-7, seed)) != 0).mean() < 1e-3


@pytest.mark.backends("torch")
def test_dropout_of_pytorch():
    """The masks of a layer without a seed depend on PyTorch's global generator, for each type and
    size.
    """
    import torch

    for size, dtype in ((501, torch.float32), (4, torch.bfloat16), (1, torch.float32)):
        x = torch.ones((300, size), dtype=dtype)
        drawn = []
        for start in (1, 1, 2):
            torch.manual_seed(start)
            drawn.append(layers.dropout(x, 0.1, keras.random.SeedGenerator()))
        assert drawn[0].dtype == dtype and torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
    x = torch.ones((400, 1000), requires_grad=True)
    outputs = layers.dropout(x, 0.1, keras.random.SeedGenerator())
    (gradient,) = torch.autograd.grad(outputs.sum(), x)
    assert torch.equal(gradient, outputs.detach())
    kept = array(outputs) != 0
    np.testing.assert_allclose(array(outputs)[kept], 1 / 0.9, rtol=1e-4)
    assert kept.mean() == pytest.approx(0.9, abs=5 * 0.3 / kept.size**0.5)
    for lag in (1, 2, 3, 4, 1000):
        together = (kept.ravel()[:-lag] - 0.9) * (kept.ravel()[lag:] - 0.9)
        assert abs(together.mean() / 0.09) < 5 / kept.size**0.5
    seeded = keras.random.SeedGenerator(7), keras.random.SeedGenerator(7)
    assert torch.equal(*(layers.dropout(x, 0.1, seed) for seed in seeded))
    assert not layers.dropout(x, 1.0, keras.random.SeedGenerator()).any()


@pytest.mark.backends("torch")
def test_norm_in_bfloat16():
    """The error is at most that of the plain form, which computes in float32, plus one rounding
    error.
    """
    import torch

    x, gamma, beta = (torch.from_numpy(a) for a in (3 * X + 1, normal(16), normal(16)))
    exact = layers.norm.plain(x, gamma, beta, 1e-12)
    half = [a.bfloat16() for a in (x, gamma, beta)]
    own, plain = layers.norm(*half, 1e-12), layers.norm.plain(*half, 1e-12)
    assert own.dtype == torch.bfloat16
    errors = [float((y.float() - exact).abs().mean()) for y in (own, plain)]
    assert errors[0] <= 1.02 * errors[1]


@pytest.mark.backends("tensorflow")  # Only TensorFlow has a fused form.
@pytest.mark.parametrize("shape", [(3, 5, 16), (1, 1, 16), (0, 5, 16), (2, 0, 16)])
def test_fused_norm(shape):
    import tensorflow as tf

    norm = TokenNorm(epsilon=1e-12)
    norm.build((None, None, 16))
    random = np.random.default_rng(0)
    for weight in norm.weights:
        weight.assign(random.normal(size=16))
    x = tf.constant(random.normal(3, 2, shape), tf.float32)
    scale = tf.constant(random.normal(size=shape), tf.float32)

    def value_and_gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
            loss = tf.reduce_sum(y * scale)
        return (y, *tape.gradient(loss, [x, norm.gamma.value, norm.beta.value]))

    traced = tf.function(value_and_gradients)
    compiled = tf.function(value_and_gradients, jit_compile=True)

    def operations(function):
        graph = function.get_concrete_function(x).graph.as_graph_def()
        return {node.op for node in graph.node}

    assert "FusedBatchNormV3" in operations(traced)
    assert "FusedBatchNormV3" not in operations(compiled)
    expected = value_and_gradients(x)
    assert_close(traced(x), expected, atol=2e-5)
    assert_close(compiled(x), expected, atol=2e-5)


@pytest.mark.backends("jax")
def test_positions_for_each_row(as_on_gpu):
    table = normal(9, 16)
    np.testing.assert_array_equal(
        layers.positions(table, 2, X), np.repeat(table[None, 2:7], 2, axis=0)
    )


@pytest.mark.backends("torch")
@pytest.mark.parametrize("trained", range(3))
def test_dense_has_the_gradient_of_what_is_trained(trained):
    """Inputs, weights or the bias have the right gradient if the other two are frozen."""
    shapes = ((4, 3), (3, 5), (5,))
    tensors = [ops.convert_to_tensor(normal(*shape)) for shape in shapes]
    tensors[trained].requires_grad_()
    found = []
    for dense in (layers.dense, layers.dense.plain):
        ops.sum(ops.square(dense(*tensors))).backward()
        found.append(array(tensors[trained].grad))
        tensors[trained].grad = None
    assert_close(*found)

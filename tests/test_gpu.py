"""What runs on a GPU only, on the CPU: the same results as the plain formulas."""

import keras
import numpy as np
import pytest

from kerasbert import backend
from kerasbert.backend import jax as _jax
from kerasbert.backend import torch as _torch
from kerasbert.models import BertPretrainer
from tests.contracts import array, tiny_backbone

RANDOM = np.random.default_rng(0)
MASK = (np.arange(6) < np.array([[6], [4]]))[:, None, None]  # (B, 1, 1, T)


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


QUERY, KEY, VALUE = normal(2, 6, 3, 8), normal(2, 6, 3, 8), normal(2, 6, 3, 8)


def maps(query, key, numbers=np):
    """The formula's, (B, N, T, T)."""
    scores = numbers.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(8)
    odds = numbers.exp(numbers.where(MASK, scores, -1e9))
    return odds / odds.sum(-1, keepdims=True)


@pytest.fixture
def as_on_gpu(monkeypatch):
    monkeypatch.setattr(backend, "on_gpu", lambda: True)


@pytest.mark.backends("jax")
def test_attention_with_dropout_is_the_formula():
    import jax

    def seed():
        return keras.random.SeedGenerator(7)

    keep = _jax.keep_mask(_jax._random_bits(seed()), 0.3, (2, 3, 6, 6))

    def formula(query, key, value):
        kept = jax.numpy.where(keep, maps(query, key, jax.numpy) / 0.7, 0)
        return jax.numpy.einsum("bnts,bsnh->btnh", kept, value)

    def fast(query, key, value):
        return _jax.attention(query, key, value, MASK, 0.3, seed())

    np.testing.assert_allclose(
        fast(QUERY, KEY, VALUE), formula(QUERY, KEY, VALUE), rtol=0, atol=1e-5
    )
    weights = normal(2, 6, 3, 8)
    both = [
        jax.grad(lambda *x, call=call: (call(*x) * weights).sum(), (0, 1, 2))(QUERY, KEY, VALUE)
        for call in (fast, formula)
    ]
    for gradient, expected in zip(*both, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("jax")
@pytest.mark.parametrize("has_beta", (True, False))
def test_layer_norm_is_the_formula(has_beta):
    import jax

    x, gamma, weights = 3 * normal(2, 5, 16) + 1, normal(16), normal(2, 5, 16)
    beta = normal(16) if has_beta else None

    def formula(x, gamma, beta):
        root = jax.numpy.sqrt(x.var(-1, keepdims=True) + 1e-12)
        outputs = (x - x.mean(-1, keepdims=True)) / root * gamma
        return outputs if beta is None else outputs + beta

    def fast(x, gamma, beta):
        return _jax.layer_norm(x, gamma, beta, 1e-12)

    np.testing.assert_allclose(fast(x, gamma, beta), formula(x, gamma, beta), rtol=0, atol=1e-5)
    both = [
        jax.grad(
            lambda *x, call=call: (call(*x) * weights).sum(), (0, 1, 2) if has_beta else (0, 1)
        )
        for call in (fast, formula)
    ]
    for gradient, expected in zip(*(call(x, gamma, beta) for call in both), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("jax")
def test_dropped_shares_are_right_and_masks_independent():
    seed = keras.random.SeedGenerator(1)
    masks = [np.array(_jax.keep_mask(_jax._random_bits(seed), 0.1, (200, 50, 50))) for _ in "ab"]
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
    dropped = _jax.dropout(np.ones((200, 500), "float32"), 0.1, seed)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.backends("jax")
def test_the_mask_of_a_fused_kernel_has_a_row_for_each_query():
    assert _jax.full_mask(MASK, 6).shape == (2, 1, 6, 6)
    assert _jax.full_mask(np.ones((2, 1, 6, 6), bool), 6).shape == (2, 1, 6, 6)


@pytest.mark.backends("jax")
def test_repeated_rows_and_their_gradient():
    import jax

    rows, weights = normal(1, 4, 3), normal(5, 4, 3)
    np.testing.assert_array_equal(_jax.repeat(rows, 5), np.repeat(rows, 5, axis=0))
    gradient = jax.grad(lambda x: (_jax.repeat(x, 5) * weights).sum())(rows)
    np.testing.assert_allclose(gradient, weights.sum(0, keepdims=True), rtol=0, atol=1e-5)


def trained(dropout, remat=False):
    """Losses of two epochs of a tiny model, and its logits before them."""
    keras.utils.set_random_seed(0)
    with keras.RematScope("full" if remat else None):
        model = BertPretrainer(tiny_backbone(dropout=dropout))
    model.compile(keras.optimizers.SGD(0.1), jit_compile=True)
    random = np.random.default_rng(0)
    x = {
        "token_ids": random.integers(5, 20, (8, 12)).astype("int32"),
        "segment_ids": random.integers(0, 2, (8, 12)).astype("int32"),
        "padding_mask": (np.arange(12) < random.integers(5, 13, (8, 1))).astype("int32"),
        "mask_positions": random.integers(0, 5, (8, 3)).astype("int32"),
    }
    y = {"mlm_logits": random.integers(5, 20, (8, 3)), "nsp_logits": random.integers(0, 2, 8)}
    logits = model.predict(x, verbose=0)["mlm_logits"]
    losses = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    return logits, losses


@pytest.mark.backends("jax")
def test_a_model_trains_as_on_a_cpu(as_on_gpu, monkeypatch):
    logits, losses = trained(0.0)
    dropped = trained(0.1)[1]
    assert trained(0.1, remat=True)[1] == pytest.approx(dropped)
    monkeypatch.setattr(backend, "on_gpu", lambda: False)
    expected, expected_losses = trained(0.0)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert dropped != pytest.approx(losses, abs=1e-4) and dropped == pytest.approx(losses, abs=0.5)


@pytest.mark.backends("torch")
def test_attention_of_pytorch():
    import torch

    query, key, value, mask = map(torch.from_numpy, (QUERY, KEY, VALUE, MASK))
    expected = np.einsum("bnts,bsnh->btnh", maps(QUERY, KEY), VALUE)
    outputs = array(_torch.attention(query, key, value, mask))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    keras.utils.set_random_seed(0)
    dropped = [array(_torch.attention(query, key, value, mask, 0.2)) for _ in range(500)]
    assert np.abs(dropped[0] - dropped[1]).max() > 1e-2
    np.testing.assert_allclose(np.mean(dropped, axis=0), expected, rtol=0, atol=0.15)
    nowhere = array(_torch.attention(query, key, value, torch.zeros_like(mask)))
    assert np.isfinite(nowhere).all()


@pytest.mark.backends("torch")
def test_cross_entropy_of_pytorch():
    import torch

    logits, labels = normal(2, 3, 7), RANDOM.integers(0, 7, (2, 3)).astype("int32")
    odds = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(odds, labels[..., None], -1)[..., 0]
    losses = _torch.cross_entropy(torch.from_numpy(labels), torch.from_numpy(logits))
    np.testing.assert_allclose(array(losses), expected, rtol=0, atol=1e-5)

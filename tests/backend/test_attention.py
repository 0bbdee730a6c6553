"""Attention with masks, biases and dropout, compared with the formula."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.backend import attention
from tests.backend.test_kernels import (
    KEY,
    MASK,
    OWN,
    QUERY,
    VALUE,
    normal,
    value_and_gradients,
)
from tests.contracts import array, assert_close


def maps(query, key, numbers=np, bias=0):
    """Return the attention weights by the formula: (B, N, T, T)."""
    scores = numbers.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(8) + bias
    odds = numbers.exp(numbers.where(MASK, scores, -1e9))
    return odds / odds.sum(-1, keepdims=True)


@pytest.mark.parametrize("mask", [None, MASK])
def test_bias_is_added_to_scaled_scores(as_on_gpu, mask):
    bias = 3 * normal(1, 3, 6, 6)
    odds = np.exp(np.einsum("btnh,bsnh->bnts", QUERY, KEY) / np.sqrt(8) + bias)
    odds = np.where(True if mask is None else mask, odds, 0)
    expected = np.einsum("bnts,bsnh->btnh", odds / odds.sum(-1, keepdims=True), VALUE)
    tensors = [ops.convert_to_tensor(x) for x in (QUERY, KEY, VALUE)]
    mask = None if mask is None else ops.convert_to_tensor(mask)
    for form in (attention.heads_attention, attention.heads_attention.plain):
        for dtype, atol in (("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 8e-2)):
            heads = [ops.cast(x, dtype) for x in tensors]
            # The bias may come from a layer in another precision.
            for bias_dtype in {"float32", dtype}:
                outputs, _ = form(*heads, mask, bias=ops.cast(bias, bias_dtype))
                assert keras.backend.standardize_dtype(outputs.dtype) == dtype
                assert_close(outputs, expected, atol)


def test_a_fully_masked_row_is_uniform_with_a_large_bias():
    tensors = [ops.convert_to_tensor(x) for x in (QUERY, KEY, VALUE)]
    mask, bias = np.zeros((2, 1, 1, 6), bool), ops.convert_to_tensor(4e3 * normal(1, 3, 6, 6))
    for form in (attention.heads_attention, attention.heads_attention.plain):
        outputs, _ = form(*tensors, ops.convert_to_tensor(mask), bias=bias)
        assert_close(outputs, np.broadcast_to(VALUE.mean(1, keepdims=True), VALUE.shape))


@pytest.mark.parametrize("bias", [1, 3])
def test_dropout_of_attention_with_a_bias(as_on_gpu, bias):
    """The bias is added, a share of the probabilities is dropped, and the bias has a gradient."""
    bias = 2 * normal(1, bias, 6, 6)
    expected = np.einsum("bnts,bsnh->btnh", maps(QUERY, KEY, bias=bias), VALUE)
    mask, seed = ops.convert_to_tensor(MASK), keras.random.SeedGenerator(3)

    def many(bias):
        heads = [ops.repeat(ops.convert_to_tensor(x), 150, axis=0) for x in (QUERY, KEY, VALUE)]
        rows = ops.repeat(mask, 150, axis=0)
        outputs, _ = attention.heads_attention(*heads, rows, dropout=0.2, seed=seed, bias=bias)
        return ops.mean(ops.reshape(outputs, (2, 150, 6, 3, 8)), axis=1)

    outputs, gradient = value_and_gradients(many, bias)
    assert_close(outputs, expected, 0.3)
    assert np.abs(array(outputs) - expected).max() > 1e-3

    def exact(bias):
        tensors = [ops.convert_to_tensor(x) for x in (QUERY, KEY, VALUE)]
        return attention.heads_attention.plain(*tensors, mask, bias=bias)[0]

    wanted = array(value_and_gradients(exact, bias)[1])
    assert_close(gradient, wanted, 0.25 * np.abs(wanted).max())


@pytest.mark.backends("jax")
@pytest.mark.parametrize("shape", [None, (1, 3, 6, 6), (2, 1, 6, 6), (1, 3, 1, 6)])
def test_attention_with_dropout_is_the_formula(shape):
    import jax

    def seed():
        return keras.random.SeedGenerator(7)

    keep = OWN.keep_mask(OWN._random_bits(seed()), 0.3, (2, 3, 6, 6))
    inputs = [QUERY, KEY, VALUE, *([] if shape is None else [normal(*shape)])]

    def formula(query, key, value, bias=0):
        kept = jax.numpy.where(keep, maps(query, key, jax.numpy, bias) / 0.7, 0)
        return jax.numpy.einsum("bnts,bsnh->btnh", kept, value)

    def fast(query, key, value, bias=None):
        return OWN.dropped_attention(query, key, value, MASK, 0.3, seed(), bias)

    np.testing.assert_allclose(fast(*inputs), formula(*inputs), rtol=0, atol=1e-5)
    weights = normal(2, 6, 3, 8)
    numbers = tuple(range(len(inputs)))
    both = [
        jax.grad(lambda *x, call=call: (call(*x) * weights).sum(), numbers)(*inputs)
        for call in (fast, formula)
    ]
    for gradient, expected in zip(*both, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("jax")
def test_the_mask_of_a_fused_kernel_has_a_row_for_each_query():
    assert OWN.full_mask(MASK, 6, 6).shape == (2, 1, 6, 6)
    assert OWN.full_mask(np.ones((2, 1, 4, 6), bool), 4, 6).shape == (2, 1, 4, 6)


@pytest.mark.backends("torch")
def test_attention_of_pytorch():
    import torch

    query, key, value, mask = map(torch.from_numpy, (QUERY, KEY, VALUE, MASK))
    expected = np.einsum("bnts,bsnh->btnh", maps(QUERY, KEY), VALUE)
    outputs = array(OWN.fused_attention(query, key, value, mask))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    keras.utils.set_random_seed(0)
    dropped = [array(OWN.fused_attention(query, key, value, mask, 0.2)) for _ in range(500)]
    assert np.abs(dropped[0] - dropped[1]).max() > 1e-2
    np.testing.assert_allclose(np.mean(dropped, axis=0), expected, rtol=0, atol=0.15)
    nowhere = array(OWN.fused_attention(query, key, value, torch.zeros_like(mask)))
    assert np.isfinite(nowhere).all()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dtype, most", [("float64", 1e-6), ("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("length", [1, 32])
def test_attention_of_few_tokens(dtype, most, length):
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    values = [torch.randn(3, length, 2, 4, dtype=kind, requires_grad=True) for _ in range(3)]
    masks = torch.rand(3, 1, length, length) < 0.5, torch.zeros(3, 1, 1, length).bool(), None
    for mask in masks:
        few = OWN.short_attention(*values, mask)
        assert few.dtype == kind
        if mask is not None and not mask.any(-1).all():
            assert few.isfinite().all()  # Outputs are finite even if a row is fully masked.
            continue
        many = OWN.fused_attention(*values, mask)
        gradients = [torch.autograd.grad(x.square().sum(), values) for x in (few, many)]
        for one, other in zip((few, *gradients[0]), (many, *gradients[1])):
            torch.testing.assert_close(one, other, rtol=most, atol=10 * most)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "length, dtype, trains, by",
    [
        (32, "float32", True, "short_attention"),
        (33, "float32", True, "fused_attention"),
        (128, "bfloat16", True, "short_attention"),
        (128, "bfloat16", False, "fused_attention"),
        (129, "bfloat16", True, "fused_attention"),
    ],
)
def test_attention_by_length(length, dtype, trains, by, monkeypatch):
    import torch

    called = []
    for name in ("short_attention", "fused_attention"):
        monkeypatch.setattr(OWN, name, lambda query, *rest, name=name: called.append(name))
    values = torch.randn(1, length, 2, 4, dtype=getattr(torch, dtype), requires_grad=True)
    with torch.set_grad_enabled(trains):
        OWN.heads_attention(values, values, values)
    assert called == [by]

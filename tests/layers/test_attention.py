"""Self-attention: its masks, its formula, rotary positions, the fused form."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.layers import AttentionMask, SelfAttention, TransformerBlock
from tests.contracts import array, assert_close
from tests.layers.test_layers import MASK, X

pytestmark = pytest.mark.filterwarnings("error::UserWarning")

EVEN = X[:, :4]  # JAX has no fused attention of an odd number of tokens.


def test_masks():
    mask = array(AttentionMask()(MASK))
    assert mask.shape == (3, 1, 1, 5) and (mask[:, 0, 0] == MASK).all()
    causal = array(AttentionMask(is_causal=True)(MASK))[:, 0]  # (B, T, T)
    window = array(AttentionMask(window=2)(MASK))[:, 0]
    both = array(AttentionMask(is_causal=True, window=2)(MASK))[:, 0]
    for row, tokens in enumerate(MASK):
        for query in range(5):
            for key in range(5):
                near = abs(query - key) <= 1
                assert causal[row, query, key] == (tokens[key] and key <= query)
                assert window[row, query, key] == (tokens[key] and near)
                assert both[row, query, key] == (tokens[key] and near and key <= query)


def test_attention_is_the_formula():
    layer = SelfAttention(num_heads=2)
    outputs, scores = layer(X, attention_mask=MASK[:, None, None], return_attention_scores=True)
    kernel, bias, out_kernel, out_bias = layer.get_weights()
    query, key, value = np.split(X @ kernel + bias, 3, axis=-1)
    expected = np.zeros_like(X)
    for head in (slice(0, 4), slice(4, 8)):
        logits = query[..., head] @ key[..., head].transpose(0, 2, 1) / 2  # (B, T, T)
        weights = np.where(MASK[:, None], np.exp(logits), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        expected[..., head] = weights @ value[..., head]
        assert_close(array(scores)[:, head.start // 4], weights)
    assert_close(outputs, expected @ out_kernel + out_bias)
    assert_close(layer(X, attention_mask=MASK[:, None, None].astype(bool)), outputs)


def test_rotary_sees_only_distances():
    layer = SelfAttention(num_heads=2, rotary_base=50.0)
    shifted = np.concatenate([np.zeros((3, 4, 8), "float32"), X], axis=1)
    mask = np.arange(9)[None, None, None] >= 4
    assert_close(array(layer(shifted, attention_mask=mask))[:, 4:], layer(X))
    plain = SelfAttention(num_heads=2)
    plain.build(X.shape)
    plain.set_weights(layer.get_weights())
    assert np.abs(array(plain(X)) - array(layer(X))).max() > 1e-3


@pytest.fixture
def fused(monkeypatch):
    """Counts the calls of the backend's fused attention, which JAX has on a GPU."""
    module, name = ops, "dot_product_attention"
    if keras.backend.backend() == "torch":
        import torch

        module, name = torch.nn.functional, "scaled_dot_product_attention"
        monkeypatch.setattr("kerasbert.backend.torch_kernels.SHORT", 0)
    calls, original = [], getattr(module, name)

    def spy(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, spy)
    if keras.backend.backend() == "jax":
        monkeypatch.setattr("kerasbert.backend.jax_kernels.on_gpu", lambda: True)
    return calls


@pytest.mark.backends("jax", "torch")
def test_fused_where_attention_dropout_is_not_active(fused):
    layer = SelfAttention(num_heads=2, dropout=0.5)
    layer(EVEN)
    layer(EVEN, training=False)
    SelfAttention(num_heads=2)(EVEN, training=True)
    block = TransformerBlock(2, 12, dropout=0.5, attention_dropout=0.0)
    block(EVEN, training=True)
    assert len(fused) >= 4
    fused.clear()
    layer(EVEN, training=True)
    layer(EVEN, return_attention_scores=True)
    assert not fused


@pytest.mark.backends("jax", "torch")
def test_fused_is_the_formula(fused):
    layer = SelfAttention(num_heads=2)
    mask = AttentionMask()(MASK[:, :4])
    expected, _ = layer(EVEN, attention_mask=mask, return_attention_scores=True)
    assert_close(layer(EVEN, attention_mask=mask), expected, atol=1e-6)
    assert fused


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match="8 is not a multiple of num_heads 3"):
        SelfAttention(num_heads=3)(X)

"""Longformer's attention: the formula, over masks of all pairs and over blocks; global tokens."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.layers import AttentionMask, GlobalAttention, GlobalTokens
from tests.contracts import array, arrays

B, T, D, WINDOW = 3, 23, 8, 6
PADDING = (np.arange(T) < np.array([[T], [17], [9]])).astype("int32")
GLOBAL = np.zeros((B, T), "int32")
GLOBAL[0, [0, 4, 5, 22]] = GLOBAL[1, [11, 20]] = 1  # Token 20 is padding; row 2 has none.


def make():
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(1)
    layer, x = GlobalAttention(num_heads=2), random.normal(size=(B, T, D)).astype("float32")
    layer.build(x.shape)
    for weight in layer.weights:
        weight.assign(random.normal(0, 0.5, weight.shape))
    return layer, x


def expected(layer, x):
    """Compute the attention of all pairs of tokens: the probabilities (B, N, T, T) and outputs."""
    kernel, bias, out_kernel, out_bias, q_kernel, q_bias, kv_kernel, kv_bias = layer.get_weights()
    own = np.split(x @ kernel + bias, 3, axis=-1)
    other = [x @ q_kernel + q_bias, *np.split(x @ kv_kernel + kv_bias, 2, axis=-1)]
    is_global = (GLOBAL * PADDING) > 0
    far = np.abs(np.subtract.outer(np.arange(T), np.arange(T))) > WINDOW // 2
    seen = (~far | is_global[:, None]) & (PADDING[:, None] > 0)
    maps, outputs = [], []
    for head in (slice(0, 4), slice(4, 8)):
        parts = []
        for (q, k, v), mask in ((own, seen), (other, PADDING[:, None] > 0)):
            scores = q[..., head] @ k[..., head].transpose(0, 2, 1) / 2 + np.where(mask, 0, -1e9)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            parts.append((weights, weights @ v[..., head]))
        (local, x_local), (all_, x_all) = parts
        maps.append(np.where(is_global[..., None], all_, local))
        outputs.append(np.where(is_global[..., None], x_all, x_local))
    return np.stack(maps, axis=1), np.concatenate(outputs, axis=-1) @ out_kernel + out_bias


def test_attention_is_the_formula():
    layer, x = make()
    maps, outputs = expected(layer, x)
    real = PADDING > 0
    found = GlobalTokens()(GLOBAL, padding_mask=PADDING)
    keys = {name: found[name] for name in ("is_global", "global_ranks")}
    mask = AttentionMask(window=WINDOW)
    blocks = mask(PADDING, by_blocks=True, **keys)
    assert tuple(blocks.shape) == (B, 4, 1, WINDOW, 2 * WINDOW + 8 * -(-GLOBAL.shape[1] // 8))
    y = array(layer(x, attention_mask=blocks, padding_mask=PADDING, **found))
    assert np.abs(y - outputs)[real].max() < 1e-5
    given = {"attention_mask": mask(PADDING, **keys), "padding_mask": PADDING, **found}
    y, scores = arrays(layer(x, **given, return_attention_scores=True))
    assert np.abs(y - outputs)[real].max() < 1e-5
    assert np.abs(scores - maps).transpose(0, 2, 1, 3)[real].max() < 1e-6


def test_one_first_token():
    """A mask may end before the text; with one column, no token is gathered."""
    layer, x = make()
    mask = AttentionMask(window=WINDOW)
    results = []
    for given in (GLOBAL[:, :1], GLOBAL * (np.arange(T) == 0)):
        found = GlobalTokens()(given, padding_mask=PADDING)
        keys = {name: found[name] for name in ("is_global", "global_ranks")}
        attention_mask = mask(PADDING, by_blocks=True, **keys)
        results.append(
            array(layer(x, attention_mask=attention_mask, padding_mask=PADDING, **found))
        )
    assert np.abs(results[0] - results[1])[PADDING > 0].max() < 1e-5


def test_too_many_global_tokens():
    """Outputs of rows beyond the maximum are NaN, never silently those of local attention."""
    layer, x = make()
    found = GlobalTokens(max_global_tokens=2)(GLOBAL, padding_mask=PADDING)
    keys = {name: found[name] for name in ("is_global", "global_ranks")}
    mask = AttentionMask(window=WINDOW)(PADDING, **keys)
    y = array(layer(x, attention_mask=mask, padding_mask=PADDING, **found))
    assert np.isnan(y).all(axis=(1, 2)).tolist() == [True, False, False]
    assert np.isnan(y).any(axis=(1, 2)).tolist() == [True, False, False]
    with pytest.raises(ValueError, match="max_global_tokens=0 must be a whole number"):
        GlobalTokens(max_global_tokens=0)


@pytest.mark.backends("tensorflow")
def test_config():
    for layer in (GlobalAttention(num_heads=2, dropout=0.2, use_bias=False), GlobalTokens(7)):
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
    symbol = keras.Input((None,), dtype="int32")
    found = GlobalTokens()(symbol, padding_mask=symbol)
    assert found["global_ranks"].shape == (None, None)
    assert ops.shape(found["is_global"])[0] is None

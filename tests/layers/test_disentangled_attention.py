"""DeBERTa's attention: distance buckets, formula, and gradients under rematerialization."""

import json

import keras
import numpy as np
import pytest

from kerasbert.layers import DisentangledAttention, DistanceEmbedding
from kerasbert.layers.disentangled_attention import rows_of_distances
from tests.contracts import array, assert_close, check_gradients, check_lora, tiny_classifier
from tests.layers.test_layers import MASK, X
from tests.peers import torch


@pytest.mark.peers
@pytest.mark.parametrize("most, buckets", [(512, 256), (32, 8), (20, 5), (9, None)])
def test_rows_equal_transformers(most, buckets):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    span = buckets or most
    theirs = torch.arange(-600, 601)
    if buckets is not None:
        theirs = make_log_bucket_position(theirs, buckets, most).long()
    ours = rows_of_distances(600, most, buckets)
    assert (ours == torch.clamp(theirs + span, 0, 2 * span - 1).numpy()).all()


def make():
    keras.utils.set_random_seed(0)
    x = X.astype("float32")
    table = DistanceEmbedding(max_distance=6, bucket_size=2)
    attention = DisentangledAttention(num_heads=2)
    attention(x, **table(x))
    random = np.random.default_rng(1)
    for weight in (*table.weights, *attention.weights):
        weight.assign(array(weight) + random.normal(0, 0.3, weight.shape))
    return table, attention


def test_attention_is_the_formula():
    table, layer = make()
    outputs, scores = layer(
        X, **table(X), attention_mask=MASK[:, None, None], return_attention_scores=True
    )
    rows = array(table.layer_norm(table.embeddings.value[None]))[0]  # (4, D)
    kernel, bias, out_kernel, out_bias = layer.get_weights()
    query, key, value = np.split(X @ kernel + bias, 3, axis=-1)
    far_query, far_key, _ = np.split(rows @ kernel + bias, 3, axis=-1)
    place = np.clip(np.arange(5)[:, None] - np.arange(5)[None], -1, 1) + 2  # (T, T)
    expected = np.zeros_like(X)
    for head in (slice(0, 4), slice(4, 8)):
        by_query = np.einsum("bqh,qkh->bqk", query[..., head], far_key[place][..., head])
        by_key = np.einsum("bkh,qkh->bqk", key[..., head], far_query[place][..., head])
        logits = query[..., head] @ key[..., head].transpose(0, 2, 1) + by_query + by_key
        logits = logits / np.sqrt(3 * 4) + np.where(MASK[:, None], 0, -1e9)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        expected[..., head] = weights @ value[..., head]
        tokens = MASK > 0
        assert_close(array(scores)[:, head.start // 4][tokens], weights[tokens])
    assert_close(outputs, expected @ out_kernel + out_bias)


def test_configs_and_any_length():
    for layer in make():
        config = json.loads(json.dumps(layer.get_config()))
        assert type(layer).from_config(config).get_config() == layer.get_config()
    table, layer = make()
    symbol = keras.Input((None, 8))
    model = keras.Model(symbol, layer(symbol, **table(symbol)))
    for length in (1, 2, 5):
        x = X[:, :length]
        assert_close(model(x), layer(x, **table(x)))
        # The length is unknown in advance, as in a graph.
        assert_close(model.predict(x, verbose=0), layer(x, **table(x)))


def test_gradients(tmp_path):
    """In `RematScope`, the shared table, which the blocks get as an input, has a gradient, too."""
    check_gradients(lambda: tiny_classifier("deberta_v3"), tmp_path)


@pytest.mark.slow_on_tensorflow
def test_lora(tmp_path):
    check_lora(lambda: tiny_classifier("deberta_v3"), tmp_path)

"""Biases by relative position: the buckets, the slopes, and whole encoders that have them."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.backend import attention as kernels
from kerasbert.layers import AlibiBias, RelativePositionBias, SelfAttention
from kerasbert.layers.position_bias import alibi_slopes, buckets_of_distances
from tests.contracts import (
    array,
    arrays,
    assert_close,
    check_gradients,
    tiny_backbone,
    tiny_classifier,
)
from tests.layers.test_layers import MASK, X
from tests.peers import torch

KINDS = ("buckets", "alibi")


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("number, farthest", [(32, 128), (8, 20), (64, 200), (5, 9), (4, 2)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_equal_transformers(number, farthest, bidirectional):
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
    from transformers.models.t5.modeling_t5 import T5Attention

    if not bidirectional and farthest <= number // 2:
        farthest = number
    distances = np.arange(-700, 701)
    ours = buckets_of_distances(distances, number, farthest, bidirectional)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor(-distances), bidirectional, number, farthest
    )
    assert (ours == theirs.numpy()).all()
    if bidirectional:
        theirs = MPNetEncoder.relative_position_bucket(torch.tensor(-distances), number, farthest)
        assert (ours == theirs.numpy()).all()


def test_slopes():
    """The slopes of the paper for 8 heads, and those of Jina-BERT v2 for 12 heads."""
    assert_close(alibi_slopes(8), 0.5 ** np.arange(1, 9), 0)
    more = 0.5 ** np.arange(0.5, 4, 1)
    assert_close(alibi_slopes(12), np.concatenate([alibi_slopes(8), more]), 1e-7)
    assert_close(alibi_slopes(1), np.array([0.5**8]), 0)


def make(kind, bidirectional=True):
    if kind == "alibi":
        return AlibiBias(num_heads=3)
    layer = RelativePositionBias(3, num_buckets=8, max_distance=9, bidirectional=bidirectional)
    layer.build(X.shape)
    layer.embeddings.assign(np.random.default_rng(0).normal(size=(8, 3)))
    return layer


@pytest.mark.parametrize(
    "kind, bidirectional", [("buckets", True), ("buckets", False), ("alibi", True)]
)
def test_between(kind, bidirectional):
    layer = make(kind, bidirectional)
    for queries, keys, first in ((1, 1, 0), (5, 5, 0), (4, 30, 0), (4, 30, 21), (30, 4, 0)):
        found = array(layer.between(queries, keys, first))
        assert_close(layer.between(queries, keys, ops.convert_to_tensor(first)), found, 0)
        distances = first + np.arange(queries)[:, None] - np.arange(keys)  # (S, K)
        if kind == "alibi":
            expected = -alibi_slopes(3)[:, None, None] * np.abs(distances)
        else:
            buckets = buckets_of_distances(distances, 8, 9, bidirectional)
            expected = array(layer.embeddings)[buckets].transpose(2, 0, 1)
        assert_close(found, expected[None].astype("float32"))


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_configs_any_length_and_half_precision(kind):
    layer = make(kind)
    config = json.loads(json.dumps(layer.get_config()))
    assert type(layer).from_config(config).get_config() == layer.get_config()
    half = type(layer).from_config({**config, "dtype": "mixed_bfloat16"})
    half(X)
    half.set_weights(layer.get_weights())
    assert keras.backend.standardize_dtype(half(X).dtype) == "bfloat16"
    assert_close(half(X), layer(X), 0.05)
    attention = SelfAttention(num_heads=3)
    x = np.random.default_rng(0).normal(size=(3, 5, 9)).astype("float32")
    attention.build(x.shape)
    symbol = keras.Input((None, 9))
    model = keras.Model(symbol, attention(symbol, bias=layer(symbol)))
    assert layer.compute_output_spec(symbol).shape == (1, 3, None, None)
    for length in (1, 2, 5):
        expected = attention(x[:, :length], bias=layer(x[:, :length]))
        assert_close(model.predict(x[:, :length], verbose=0), expected)


def test_bias_of_attention():
    """Attention adds the bias, with and without returned attention scores; zeros change nothing."""
    layer, attention = make("buckets"), SelfAttention(num_heads=3)
    x = np.random.default_rng(0).normal(size=(3, 5, 9)).astype("float32")
    mask, bias = MASK[:, None, None] > 0, layer(x)
    outputs, maps = attention(x, mask, return_attention_scores=True, bias=bias)
    assert_close(attention(x, mask, bias=bias), outputs)
    query, key, _ = np.split(x @ array(attention.qkv.kernel) + array(attention.qkv.bias), 3, -1)
    heads = (3, 5, 3, 3)
    scores = np.einsum("btnh,bsnh->bnts", query.reshape(heads), key.reshape(heads)) / 3**0.5
    odds = np.where(mask, np.exp(scores + array(bias)), 0)
    assert_close(maps, odds / odds.sum(-1, keepdims=True))
    assert np.abs(array(attention(x, mask)) - array(outputs)).max() > 1e-3
    assert_close(attention(x, mask, bias=0 * bias), attention(x, mask))


# === Whole encoders ===


def encoder(kind, length=41, **settings):
    given = {"position_bias": kind, "bucket_size": 4, "max_relative_positions": 12}
    model = tiny_backbone(
        "modernbert",
        **{"max_sequence_length": 64, "num_heads": 4, "position_embedding": "none"} | given,
        **settings,
    )
    padding = np.ones((3, length), "int32")
    padding[0, 20:] = padding[1, :6] = padding[2, 9:14] = 0
    ids = np.random.default_rng(0).integers(1, 30, (3, length)).astype("int32")
    return model, {"token_ids": ids, "padding_mask": padding}


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_turns", [False, True])
def test_windows_and_turns_are_as_with_maps(monkeypatch, kind, in_turns):
    """Local layers in blocks and global layers in turns give the outputs of dense attention."""
    if in_turns:
        monkeypatch.setattr(kernels, "LONG", 20)
        monkeypatch.setattr(kernels, "TURN", 8)
    blocks, local = [], kernels.local_attention
    monkeypatch.setattr(
        "kerasbert.layers.attention.local_attention",
        lambda *x, **more: blocks.append(more) or local(*x, **more),
    )
    model, features = encoder(kind)
    found = model(features)["sequence_output"]
    assert [tuple(given["bias"].shape) for given in blocks] == 2 * [(1, 1, 4, 4, 8)]
    outputs = arrays(model.feature_model(output_attentions=True)(features))
    real = features["padding_mask"] == 1
    assert_close(array(found)[real], outputs["sequence_output"][real])
    # No attention reaches beyond the window, and the bias changes the outputs.
    assert outputs["attentions"][1][1, :, 20, 30:].max() == 0
    changed, _ = encoder(None)
    for weight in changed.weights:
        weight.assign({w.path: w for w in model.weights}[weight.path])
    assert np.abs(array(changed(features)["sequence_output"]) - array(found))[real].max() > 1e-3


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, 6])
def test_with_a_cache(kind, window):
    model, features = encoder(kind, is_causal=True, local_window=window)
    ids = features["token_ids"]
    cache = tuple(np.zeros((3, 2, 41, 4, 4), "float32") for _ in model.transformer_layers)
    expected = model({"token_ids": ids})["sequence_output"]
    found, place = [], 0
    for count in (7, 1, 1, 32):
        part, cache = model.call_with_cache(ids[:, place : place + count], cache, place)
        found.append(array(part))
        place += count
    assert_close(np.concatenate(found, axis=1), expected)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, tmp_path):
    """The buckets, which all layers share, have a gradient, too, also in `RematScope`."""
    settings = {"position_bias": kind, "bucket_size": 2, "max_relative_positions": 5}
    check_gradients(lambda **more: tiny_classifier(**settings, **more), tmp_path)


def test_settings():
    model, _ = encoder("buckets")
    config = model.get_config()
    assert config["position_bias"] == "buckets" and config["bucket_size"] == 4
    assert type(model).from_config(config).get_config() == config
    assert "position_bias" not in tiny_backbone().get_config()
    for settings, message in (
        ({"position_bias": "slopes"}, "position_bias='slopes' is unknown; use one of buckets"),
        ({"position_embedding": "disentangled"}, "position_bias='buckets' does not combine"),
        ({"bucket_size": 1}, "bucket_size=1 must be a whole number of at least 2"),
        ({"bucket_size": 16, "max_relative_positions": 8}, "max_distance=8 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny_backbone(**{"position_bias": "buckets", **settings})

"""The contract of every layer, and what each computes."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.layers import (
    AttentionMask,
    BiLSTM,
    Pooling,
    PositionEmbedding,
    ScalarMix,
    SelfAttention,
    TokenDense,
    TokenNorm,
    TransformerBlock,
)
from kerasbert.layers.dense import activation_function
from kerasbert.layers.dropout import TokenDropout
from kerasbert.layers.heads import unit_length
from tests.contracts import array, assert_close, check_layer, gradients

pytestmark = pytest.mark.filterwarnings("error::UserWarning")

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], "int32")
X = np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
IDS = np.arange(15, dtype="int32").reshape(3, 5)
ATTENTION = ("qkv/kernel", "qkv/bias", "output/kernel", "output/bias")
PLAIN_ATTENTION = ("qkv/kernel", "output/kernel")
BLOCK = (
    *(f"attention/{name}" for name in ATTENTION),
    "attention_layer_norm/gamma",
    "attention_layer_norm/beta",
    "intermediate/kernel",
    "intermediate/bias",
    "output/kernel",
    "output/bias",
    "output_layer_norm/gamma",
    "output_layer_norm/beta",
)
PLAIN_BLOCK = tuple(name for name in BLOCK if not name.endswith(("bias", "beta")))

ROWS = {
    "dense": (TokenDense, {"units": 4, "activation": "gelu"}, X, None, ("kernel", "bias")),
    "plain_dense": (TokenDense, {"units": 4, "use_bias": False}, X, None, ("kernel",)),
    "norm": (TokenNorm, {"epsilon": 1e-6}, X, None, ("gamma", "beta")),
    "plain_norm": (TokenNorm, {"epsilon": 1e-6, "center": False}, X, None, ("gamma",)),
    "mask": (AttentionMask, {}, MASK, None, ()),
    "causal_mask": (AttentionMask, {"is_causal": True}, MASK, None, ()),
    "window_mask": (AttentionMask, {"window": 2}, MASK, None, ()),
    "cls": (Pooling, {}, X, "padding_mask", ()),
    "mean": (Pooling, {"mode": "mean"}, X, "padding_mask", ()),
    "max": (Pooling, {"mode": "max"}, X, "padding_mask", ()),
    "bilstm": (
        BiLSTM,
        {"units": 3},
        X,
        "padding_mask",
        tuple(
            f"{direction}/lstm_cell/{name}"
            for direction in ("forward", "backward")
            for name in ("kernel", "recurrent_kernel", "bias")
        ),
    ),
    "positions": (PositionEmbedding, {"sequence_length": 9}, X, None, ("embeddings",)),
    "offset": (PositionEmbedding, {"sequence_length": 9, "offset": 2}, X, None, ("embeddings",)),
    "attention": (SelfAttention, {"num_heads": 2, "dropout": 0.1}, X, "attention_mask", ATTENTION),
    "rotary": (
        SelfAttention,
        {"num_heads": 2, "rotary_base": 100.0, "use_bias": False},
        X,
        "attention_mask",
        PLAIN_ATTENTION,
    ),
    "block": (
        TransformerBlock,
        {"num_heads": 2, "intermediate_dim": 12, "dropout": 0.1, "attention_dropout": 0.2},
        X,
        "attention_mask",
        BLOCK,
    ),
    "norm_first": (
        TransformerBlock,
        {
            "num_heads": 4,
            "intermediate_dim": 12,
            "norm_first": True,
            "gated_mlp": True,
            "use_bias": False,
            "rotary_base": 100.0,
            "activation": "gelu",
        },
        X,
        "attention_mask",
        PLAIN_BLOCK,
    ),
    "first_norm_first": (
        TransformerBlock,
        {"num_heads": 1, "intermediate_dim": 12, "norm_first": True, "attention_norm": False},
        X,
        "attention_mask",
        tuple(name for name in BLOCK if "attention_layer_norm" not in name),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_contract(row):
    layer, settings, inputs, mask_name, weights = ROWS[row]
    mask = MASK if mask_name else None
    check_layer(layer(**settings), inputs, mask, mask_name, weights)


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
    """Counts the calls of the backend's fused attention, which JAX has on accelerators."""
    calls, original = [], ops.dot_product_attention

    def spy(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(ops, "dot_product_attention", spy)
    if keras.backend.backend() == "jax":
        monkeypatch.setattr("kerasbert.backend.jax.on_accelerator", lambda: True)
    return calls


@pytest.mark.backends("jax", "torch")
def test_fused_where_attention_dropout_is_not_active(fused):
    layer = SelfAttention(num_heads=2, dropout=0.5)
    layer(X)
    layer(X, training=False)
    SelfAttention(num_heads=2)(X, training=True)
    block = TransformerBlock(2, 12, dropout=0.5, attention_dropout=0.0)
    block(X, training=True)
    assert len(fused) >= 4
    fused.clear()
    layer(X, training=True)
    layer(X, return_attention_scores=True)
    assert not fused


@pytest.mark.backends("jax", "torch")
def test_fused_is_the_formula(fused):
    layer = SelfAttention(num_heads=2)
    mask = AttentionMask()(MASK)
    expected, _ = layer(X, attention_mask=mask, return_attention_scores=True)
    assert_close(layer(X, attention_mask=mask), expected, atol=1e-6)
    assert fused


@pytest.mark.parametrize("activation", ["gelu", "gelu_approximate", "relu"])
def test_training_of_activations(activation):
    x = np.linspace(-9, 9, 1001, dtype="float32").reshape(7, 11, 13)
    model = keras.Sequential(
        [keras.Input((11, 13)), TokenDense(13, activation=activation_function(activation))]
    )
    model.layers[0].kernel.assign(np.eye(13))
    model.compile(keras.optimizers.SGD(1.0), loss="mse", jit_compile=False)
    y = array(activation_function(activation)(ops.convert_to_tensor(x)))
    assert model.train_on_batch(x, y) <= 1e-12
    # A step at a rate of 1 towards zeros moves the bias by its gradient, here of x = bias.
    step = 1e-3
    up, down = (
        (array(activation_function(activation)(ops.convert_to_tensor(x + d))).astype("float64"))
        for d in (step, -step)
    )
    expected = (2 / x.size * y * (up - down) / (2 * step)).sum(axis=(0, 1))
    model.layers[0].bias.assign(np.zeros(13))
    model.layers[0].kernel.assign(np.eye(13))
    model.train_on_batch(x, np.zeros_like(x))
    np.testing.assert_allclose(array(model.layers[0].bias), -expected, rtol=1e-3)


class Dropped(keras.Model):
    """Drops also where nothing trains."""

    def __init__(self):
        super().__init__()
        self.dropout = TokenDropout(0.1, seed=1)

    def call(self, inputs):
        return self.dropout(inputs, training=True)


def test_dropout_in_a_compiled_model():
    model = Dropped()
    model.compile()
    seen = [model.predict_on_batch(np.ones((300, 501), "float32")) for _ in range(2)]
    for outputs in seen:
        kept = outputs[outputs != 0]
        np.testing.assert_allclose(kept, 1 / 0.9, rtol=1e-4)
        # Four deviations of the share of 150,300.
        assert abs(kept.size / outputs.size - 0.9) < 0.0031
        assert abs((outputs[:, 1:] * outputs[:, :-1] != 0).mean() - 0.81) < 0.006
    assert 0.15 < ((seen[0] == 0) != (seen[1] == 0)).mean() < 0.21


def test_the_two_dropouts_are_apart():
    for dropout, attention_dropout in ((0.5, 0.0), (0.0, 0.5)):
        block = TransformerBlock(2, 12, dropout=dropout, attention_dropout=attention_dropout)
        expected = array(block(X))
        assert_close(block(X, training=False), expected, atol=0)
        first, second = array(block(X, training=True)), array(block(X, training=True))
        assert np.abs(first - second).max() > 1e-3
    block = TransformerBlock(2, 12)
    assert_close(block(X, training=True), block(X))
    attention = SelfAttention(2, dropout=0.5)
    _, scores = attention(X, training=True, return_attention_scores=True)
    assert 0.2 < np.mean(array(scores) == 0) < 0.8


def test_positions():
    layer = PositionEmbedding(sequence_length=6, offset=2)
    table = array(layer(X)[0])
    assert layer.weights[0].shape == (8, 8)
    assert_close(table, array(layer.weights[0])[2:7], atol=0)
    with pytest.raises(ValueError, match="7 tokens a row, but the model has only 6 positions"):
        layer(np.zeros((1, 7, 8), "float32"))


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
    # Its gradient at zero is a number: a step of training leaves numbers.
    dense = keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((3,)), dense, keras.layers.Lambda(unit_length)])
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    model.train_on_batch(np.ones((1, 3)), np.ones((1, 2)))
    assert np.isfinite(array(dense.kernel)).all()


def test_heads_divide_the_width():
    with pytest.raises(ValueError, match="8 is not a multiple of num_heads 3"):
        SelfAttention(num_heads=3)(X)


def test_a_block_alone_in_a_remat_scope():
    def run(scope):
        keras.utils.set_random_seed(0)
        with scope:
            block = TransformerBlock(2, 12, dropout=0.5)
        block.build(X.shape)
        keras.utils.set_random_seed(1)
        return [block(X, training=True), block(X, training=True)]

    expected = run(contextlib.nullcontext())
    assert_close(run(keras.RematScope("full")), expected, atol=0)
    assert np.abs(array(expected[0]) - array(expected[1])).max() > 1e-3

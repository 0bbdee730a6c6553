"""The contract of every layer."""

import numpy as np
import pytest

from kerasbert.layers import (
    AttentionMask,
    BiLSTM,
    Pooling,
    PositionEmbedding,
    SelfAttention,
    TokenDense,
    TokenNorm,
    TokenRMSNorm,
    TransformerBlock,
)
from tests.contracts import check_layer

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
    "rms_norm": (TokenRMSNorm, {"epsilon": 1e-6}, X, None, ("gamma",)),
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
        {"num_heads": 2, "rotary_base": 100.0, "rotary_factor": 1.5, "use_bias": False},
        X,
        "attention_mask",
        PLAIN_ATTENTION,
    ),
    "rotary_value": (
        SelfAttention,
        {"num_heads": 2, "rotary_base": 100.0, "rotary_value": True},
        X,
        "attention_mask",
        ATTENTION,
    ),
    "grouped": (
        SelfAttention,
        {"num_heads": 4, "num_key_value_heads": 2, "rotary_base": 100.0, "rotary_value": True},
        X,
        "attention_mask",
        tuple(
            f"{name}/{part}" for name in ("query", "kv", "output") for part in ("kernel", "bias")
        ),
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


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("row", ROWS)
def test_contract(row):
    layer, settings, inputs, mask_name, weights = ROWS[row]
    mask = MASK if mask_name else None
    check_layer(layer(**settings), inputs, mask, mask_name, weights)

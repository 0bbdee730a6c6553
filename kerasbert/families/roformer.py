"""RoFormer, BERT with rotary positions: Su et al. 2021, arXiv 2104.09864.

transformers rotates pairs of neighboring features, kerasbert the two halves of a head, so features
are reordered when checkpoints are read or written.

transformers' class for multiple choice reads a row's last column, even padding, and is not
supported.
"""

import numpy as np

from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import (
    CONFIG,
    DROPOUT,
    ENCODER,
    HEAD_CONFIG,
    HEADS,
    Table,
    mlm_head,
)

_NOT_ROFORMERS = ("position_embedding", "pooled_dense")


def _orders(settings):
    count = settings["num_heads"]
    half = settings["hidden_dim"] // count // 2
    qkv = (-1, (3, count, half, 2), (0, 1, 3, 2))
    return {
        "/attention/qkv/kernel": qkv,
        "/attention/qkv/bias": qkv,
        "/attention/output/kernel": (0, (count, half, 2), (0, 2, 1)),
    }


def _fixed(settings):
    """Return the sines and cosines of the rotary angles, which transformers stores as weights."""
    width = settings["hidden_dim"] // settings["num_heads"]
    rates = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(settings["max_sequence_length"])[:, None] * rates
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    return {"encoder.embed_positions.weight": table.astype("float32")}


FAMILIES = {
    "roformer": Family(
        encoder={"pooler": False, "position_embedding": "rotary", "max_sequence_length": 1536},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "gelu", "dropout_first": True},
        },
        tokenizer="RoFormerTokenizer",
    ),
}

TABLES = {
    "roformer": Table(
        classes="RoFormer",
        prefix="roformer.",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 50000),
            "embedding_dim": ("embedding_size", None),
            "max_sequence_length": ("max_position_embeddings", 1536),
            "rotary_value": ("rotary_value", False),
        },
        encoder={  # RoFormerModel
            ours: theirs for ours, theirs in ENCODER.items() if ours not in _NOT_ROFORMERS
        },
        heads={
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "token_classifier": HEADS["token_classifier"],
            "question_answering": HEADS["question_answering"],
            "masked_lm": mlm_head(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions",
            ),
        },
        head_config={
            "text_classifier": {**DROPOUT, "head_activation": ("hidden_act", "gelu")},
            "token_classifier": DROPOUT,
            "masked_lm": HEAD_CONFIG["masked_lm"],
        },
        decoder="cls.predictions.decoder",
        has_square_projection=False,
        orders=_orders,
        fixed=_fixed,
    ),
}

"""MPNet: Song et al. 2020, arXiv 2004.09297."""

from kerasbert.families.settings import ERF_GELU, Family
from kerasbert.families.transformers_names import (
    CONFIG,
    DROPOUT,
    ENCODER,
    HEADS,
    Table,
    mlm_head,
    refuse,
)

# Values that are fixed in the code of transformers and must not differ in the configuration: the
# number of buckets of both directions together, and the padding id from which positions count.
_FIXED = {"relative_attention_num_buckets": 32, "pad_token_id": 1}


def _read_mpnet(config, path):
    for key, fine in _FIXED.items():
        if config.get(key) not in (fine, None):
            refuse(path, key, config[key], fine)
    return {}


FAMILIES = {
    "mpnet": Family(
        encoder={
            # Positions count from pad_token_id + 1 = 2.
            "position_offset": 2,
            "num_segments": 0,
            "position_bias": "buckets",
            "bucket_size": 16,
            "max_relative_positions": 128,  # A default of transformers' code.
        },
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "tanh", "dropout_first": True},
            "masked_lm": ERF_GELU,
        },
        tokenizer="MPNetTokenizer",
    ),
}

TABLES = {
    "mpnet": Table(
        classes="MPNet",
        prefix="mpnet.",
        config={
            **{ours: names for ours, names in CONFIG.items() if ours != "num_segments"},
            "vocabulary_size": ("vocab_size", 30527),
        },
        encoder={  # MPNetModel
            **{
                ours: theirs
                for ours, theirs in ENCODER.items()
                if ours not in ("segment_embedding", "embeddings_projection")
            },
            "position_bias": "encoder.relative_attention_bias",
            "transformer_layer_{i}/attention/qkv": "encoder.layer.{i}.attention.attn.[q|k|v]",
            "transformer_layer_{i}/attention/output": "encoder.layer.{i}.attention.attn.o",
            "transformer_layer_{i}/attention_layer_norm": "encoder.layer.{i}.attention.LayerNorm",
        },
        heads={
            **HEADS,
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "masked_lm": mlm_head("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        },
        head_config={
            **dict.fromkeys(("text_classifier", "token_classifier", "multiple_choice"), DROPOUT),
            "masked_lm": {"tie_weights": ("tie_word_embeddings", True)},
        },
        decoder="lm_head.decoder",
        poolers=(None, "multiple_choice"),
        starts_at_padding=True,
        default_ids={},  # Positions count from the padding id.
        read=_read_mpnet,
        write=lambda settings: {"relative_attention_num_buckets": 32},
    ),
}

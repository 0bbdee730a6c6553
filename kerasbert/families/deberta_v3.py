"""DeBERTa-v3: He et al. 2021, arXiv 2111.09543."""

from kerasbert.base.errors import is_whole
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import CONFIG, ENCODER, HEADS, Table

_CONTEXT_POOLER = {"pooling": "cls", "head_activation": "gelu"}

# Keys that change outputs: DeBERTa-v3's only value, and transformers' default.
_DEBERTA = {
    "conv_kernel_size": (0, 0),
    "relative_attention": (True, False),
    "position_biased_input": (False, True),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "type_vocab_size": (0, 0),
}


def _read_deberta(config, path):
    def refuse(key, value, fine):
        raise ValueError(
            f"'{path}' has {key}={value!r}, which kerasbert does not support; only {key}={fine!r} "
            "can be loaded: use a DeBERTa-v3 checkpoint, such as 'deberta_v3_base_en'."
        )

    for key, (fine, default) in _DEBERTA.items():
        value = config.get(key, default)
        if value != fine:
            refuse(key, value, fine)
    terms = config.get("pos_att_type")
    names = terms.lower().split("|") if isinstance(terms, str) else terms
    if not isinstance(names, list) or {str(x).strip() for x in names} != {"p2c", "c2p"}:
        refuse("pos_att_type", terms, ["p2c", "c2p"])
    width, heads = config.get("hidden_size", 1536), config.get("num_attention_heads", 24)
    for key, fine in (
        ("embedding_size", width),
        ("pooler_hidden_size", width),
        ("attention_head_size", width // heads),
    ):
        if config.get(key, fine) != fine:
            refuse(key, config[key], fine)
    found = {}
    for ours, key in (
        ("bucket_size", "position_buckets"),
        ("max_relative_positions", "max_relative_positions"),
    ):
        value = config.get(key, -1)
        if not is_whole(value):
            raise ValueError(f"{key}={value!r} in '{path}' must be a whole number.")
        found[ours] = value if value > 0 else None  # -1 means none.
    return found


def _write_deberta(settings):
    return {
        **{key: fine for key, (fine, _) in _DEBERTA.items()},
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": settings["bucket_size"] or -1,
        "max_relative_positions": settings["max_relative_positions"] or -1,
        "pooler_hidden_size": settings["hidden_dim"],
    }


_NOT_DEBERTAS = (
    "position_embedding",
    "segment_embedding",
    "embeddings_projection",
    "pooled_dense",
)

_DEBERTA_POOLED = {"head_dense": "pooler.dense", "logits": "classifier"}

_DEBERTA_CLASSES = {
    "dropout": ("cls_dropout", None),
    "head_activation": ("pooler_hidden_act", "gelu"),
}

FAMILIES = {
    "deberta_v3": Family(
        encoder={
            "num_segments": 0,
            "layer_norm_epsilon": 1e-7,
            "pooler": False,
            "position_embedding": "disentangled",
        },
        heads={"text_classifier": _CONTEXT_POOLER, "multiple_choice": _CONTEXT_POOLER},
        tokenizer="DebertaV3Tokenizer",
    ),
}

TABLES = {
    "deberta_v3": Table(
        classes="DebertaV2",
        model_type="deberta-v2",
        prefix="deberta.",
        config={
            **{ours: names for ours, names in CONFIG.items() if ours != "num_segments"},
            "vocabulary_size": ("vocab_size", 128100),
            "num_layers": ("num_hidden_layers", 24),
            "num_heads": ("num_attention_heads", 24),
            "hidden_dim": ("hidden_size", 1536),
            "intermediate_dim": ("intermediate_size", 6144),
            "layer_norm_epsilon": ("layer_norm_eps", 1e-7),
        },
        encoder={  # DebertaV2Model
            **{ours: theirs for ours, theirs in ENCODER.items() if ours not in _NOT_DEBERTAS},
            "transformer_layer_{i}/attention/qkv": (
                "encoder.layer.{i}.attention.self.[query_proj|key_proj|value_proj]"
            ),
            "distance_embedding": "encoder.rel_embeddings",
            "distance_embedding/layer_norm": "encoder.LayerNorm",
        },
        # The checkpoints were not trained with transformers' masked-LM class.
        heads={
            **HEADS,
            "text_classifier": _DEBERTA_POOLED,
            "multiple_choice": _DEBERTA_POOLED,
        },
        head_config={
            "text_classifier": _DEBERTA_CLASSES,
            "token_classifier": {"dropout": ("hidden_dropout_prob", 0.1)},
            "multiple_choice": _DEBERTA_CLASSES,
        },
        refused={
            "text_classifier": {"pooler_dropout": 0},
            "multiple_choice": {"pooler_dropout": 0},
        },
        read=_read_deberta,
        write=_write_deberta,
    ),
}

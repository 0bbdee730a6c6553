"""DeBERTa, DeBERTa-v2 and DeBERTa-v3, with disentangled attention.

DeBERTa: He et al. 2021, arXiv 2006.03654; DeBERTa-v3: He et al. 2021, arXiv 2111.09543. DeBERTa-v2
is DeBERTa-v3 with a convolution.
"""

from functools import partial

from kerasbert.base.errors import is_whole
from kerasbert.families.keras_hub_names import DENSE_HEADS, KerasHubTable, encoder_names
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import (
    ACTIVATIONS,
    CONFIG,
    DROPOUT,
    ENCODER,
    HEADS,
    Table,
    mlm_head,
    name_of,
    refuse,
)

_CONTEXT_POOLER = {"pooling": "cls", "head_activation": "gelu"}

# By key that changes outputs: the supported value, and transformers' default.
_ALL = {
    "relative_attention": (True, False),
    "position_biased_input": (False, True),
    "type_vocab_size": (0, 0),
}
_FIRST = {**_ALL, "talking_head": (False, False)}
_LATER = {
    **_ALL,
    "conv_groups": (1, 1),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
}
# A whole number above 0, or -1 for none.
_DISTANCES = {
    "bucket_size": "position_buckets",
    "max_relative_positions": "max_relative_positions",
}

_FIRST_DISTANCES = ["max_relative_positions"]


def _read_deberta(config, path, fixed, distances):
    def unsupported(key, value, fine):
        raise ValueError(
            f"'{path}' has {key}={value!r}, which kerasbert does not support; only {key}={fine!r} "
            "can be loaded: use a DeBERTa-v3 checkpoint, such as 'deberta_v3_base_en'."
        )

    for key, (fine, default) in fixed.items():
        value = config.get(key, default)
        if value != fine:
            unsupported(key, value, fine)
    terms = config.get("pos_att_type")
    names = terms.lower().split("|") if isinstance(terms, str) else terms
    if not isinstance(names, list) or {str(x).strip() for x in names} != {"p2c", "c2p"}:
        unsupported("pos_att_type", terms, ["p2c", "c2p"])
    width, heads = config.get("hidden_size", 1536), config.get("num_attention_heads", 24)
    for key, fine in (
        ("embedding_size", width),
        ("pooler_hidden_size", width),
        ("attention_head_size", width // heads),
    ):
        if config.get(key, fine) != fine:
            unsupported(key, config[key], fine)
    found = {}
    for ours in distances:
        key = _DISTANCES[ours]
        value = config.get(key, -1)
        if not is_whole(value):
            raise ValueError(f"{key}={value!r} in '{path}' must be a whole number.")
        found[ours] = value if value > 0 else None  # In the file, -1 means none.
    return found


def _read_convolution(config, path):
    size, activation = config.get("conv_kernel_size", 0), config.get("conv_act", "tanh")
    if not is_whole(size) or (size > 0 and size % 2 == 0):
        refuse(path, "conv_kernel_size", size, "an odd number or 0")
    if size <= 0:
        return {}
    if activation not in ACTIVATIONS:
        refuse(path, "conv_act", activation, f"one of {', '.join(ACTIVATIONS)}")
    return {"conv_kernel_size": size, "conv_activation": ACTIVATIONS[activation]}


def _write_deberta(settings, fixed, distances):
    return {
        **{key: fine for key, (fine, _) in fixed.items()},
        **{_DISTANCES[ours]: settings[ours] or -1 for ours in distances},
        "pos_att_type": ["p2c", "c2p"],
        "pooler_hidden_size": settings["hidden_dim"],
    }


def _write_later(settings):
    return {
        **_write_deberta(settings, _LATER, _DISTANCES),
        "conv_kernel_size": settings["conv_kernel_size"] or 0,
        "conv_act": name_of(settings["conv_activation"]),
    }


def _verbatim(settings):
    """Return the names of the query and value biases, which transformers has as parameters."""
    return {
        f"transformer_layer_{i}/attention/{part}/bias": (
            f"encoder.layer.{i}.attention.self.{part[0]}_bias"
        )
        for i in range(settings["num_layers"])
        for part in ("query", "value")
    }


def _orders(settings):
    """Return the order in transformers, which stores queries, keys and values head by head."""
    count = settings["num_heads"]
    sizes = (count, 3, settings["hidden_dim"] // count)
    return {"/attention/qkv/kernel": (-1, sizes, (1, 0, 2))}


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

_SETTINGS = {
    "num_segments": 0,
    "layer_norm_epsilon": 1e-7,
    "pooler": False,
    "position_embedding": "disentangled",
}

_CONFIG = {
    **{ours: names for ours, names in CONFIG.items() if ours != "num_segments"},
    "layer_norm_epsilon": ("layer_norm_eps", 1e-7),
}

# Absolute position embeddings, which only pre-training used.
_UNUSED = ("embeddings.position_embeddings.",)

FAMILIES = {
    "deberta": Family(
        encoder={**_SETTINGS, "bucket_size": None, "shares_projections": False},
        heads={"text_classifier": _CONTEXT_POOLER},
        tokenizer="ModernBertTokenizer",
    ),
    "deberta_v3": Family(
        encoder=_SETTINGS,
        heads={"text_classifier": _CONTEXT_POOLER, "multiple_choice": _CONTEXT_POOLER},
        tokenizer="DebertaV3Tokenizer",
    ),
}

KERAS_HUB = {
    "deberta_v3": KerasHubTable(
        classes="DebertaV3",
        settings={"activation": "gelu", "pooler": False},
        encoder={
            **encoder_names(block="disentangled_attention_encoder_layer_{i}"),
            "distance_embedding/layer_norm": "rel_embedding/rel_embeddings_layer_norm",
        },
        verbatim={"distance_embedding/embeddings": "rel_embedding/rel_embedding"},
        heads=DENSE_HEADS,
    ),
}

TABLES = {
    "deberta": Table(
        classes="Deberta",
        prefix="deberta.",
        config={**_CONFIG, "vocabulary_size": ("vocab_size", 50265)},
        encoder={  # DebertaModel
            **{ours: theirs for ours, theirs in ENCODER.items() if ours not in _NOT_DEBERTAS},
            "transformer_layer_{i}/attention/qkv": "encoder.layer.{i}.attention.self.in_proj",
            "transformer_layer_{i}/attention/position_key": (
                "encoder.layer.{i}.attention.self.pos_proj"
            ),
            "transformer_layer_{i}/attention/position_query": (
                "encoder.layer.{i}.attention.self.pos_q_proj"
            ),
            "distance_embedding": "encoder.rel_embeddings",
        },
        heads={
            "text_classifier": _DEBERTA_POOLED,
            "token_classifier": HEADS["token_classifier"],
            "question_answering": HEADS["question_answering"],
            # The head of the checkpoints; transformers' own, with legacy=True, is another one.
            "masked_lm": mlm_head(
                "lm_predictions.lm_head.dense",
                "lm_predictions.lm_head.LayerNorm",
                "lm_predictions.lm_head",
            ),
        },
        head_config={
            "text_classifier": _DEBERTA_CLASSES,
            "token_classifier": DROPOUT,
        },
        refused={"text_classifier": {"pooler_dropout": 0}},
        unused=_UNUSED,
        verbatim=_verbatim,
        orders=_orders,
        read=partial(_read_deberta, fixed=_FIRST, distances=_FIRST_DISTANCES),
        write=partial(_write_deberta, fixed=_FIRST, distances=_FIRST_DISTANCES),
        write_head=lambda task: {"legacy": False},
    ),
    "deberta_v3": Table(
        classes="DebertaV2",
        model_type="deberta-v2",
        prefix="deberta.",
        config={
            **_CONFIG,
            "vocabulary_size": ("vocab_size", 128100),
            "num_layers": ("num_hidden_layers", 24),
            "num_heads": ("num_attention_heads", 24),
            "hidden_dim": ("hidden_size", 1536),
            "intermediate_dim": ("intermediate_size", 6144),
        },
        encoder={  # DebertaV2Model
            **{ours: theirs for ours, theirs in ENCODER.items() if ours not in _NOT_DEBERTAS},
            "transformer_layer_{i}/attention/qkv": (
                "encoder.layer.{i}.attention.self.[query_proj|key_proj|value_proj]"
            ),
            "distance_embedding": "encoder.rel_embeddings",
            "distance_embedding/layer_norm": "encoder.LayerNorm",
            "convolution/conv": "encoder.conv.conv",
            "convolution/layer_norm": "encoder.conv.LayerNorm",
        },
        # There is no masked-LM head: the checkpoints were not trained with that of transformers.
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
        unused=_UNUSED,
        read=lambda config, path: {
            **_read_deberta(config, path, _LATER, _DISTANCES),
            **_read_convolution(config, path),
        },
        write=_write_later,
    ),
}

"""ModernBERT (Warner et al. 2024, arXiv 2412.13663) and its decoder."""

from kerasbert.base.errors import check_fields, check_value
from kerasbert.families.settings import Family, has_bias
from kerasbert.families.transformers_names import HEAD_CONFIG, Table, check_head_width, mlm_head

_HEAD_SETTINGS = {
    "head_activation": "gelu",
    "head_bias": False,
    "head_norm": True,
    "dropout": 0.0,
}

_MODERNBERT = {
    "num_segments": 0,
    "dropout": 0.0,
    "max_sequence_length": 8192,
    "layer_norm_epsilon": 1e-5,
    "position_embedding": "rotary",
    "rotary_base": 160000.0,
    "local_rotary_base": 10000.0,
    "local_window": 128,
    "global_every": 3,
    "norm_first": True,
    "gated_mlp": True,
    "use_bias": False,
    "pooler": False,
}


def _local_attention(config, path):
    """Return the local window in tokens.

    In files of transformers from version 5 on, `sliding_window` is half of it.
    """
    local, half = config.get("local_attention", 128), config.get("sliding_window")
    if half in (None, -1):
        return local
    check_value("sliding_window", half, "whole", path)
    if "local_attention" in config and (local or 0) // 2 != half:
        raise ValueError(
            f"'{path}' has local_attention={local!r} with sliding_window={half!r}, which is not "
            "half of it; remove the one that the model was not trained with."
        )
    return local if "local_attention" in config else 2 * half


def _read_modernbert(config, path):
    keys = {"norm_bias": ["norm"], "attention_bias": ["attention"]}
    keys["mlp_bias"] = ["intermediate", "output"]
    biased = [part for key, parts in keys.items() if config.get(key) for part in parts]
    use_bias = bool(biased) if len(biased) in (0, 4) else biased
    check_head_width(config, path)
    layers = config.get("num_hidden_layers", 22)
    every = config.get("global_attn_every_n_layers", 3)
    types = config.get("layer_types")
    if types is not None:
        if len(types) != layers:
            raise ValueError(
                f"'{path}' has {len(types)} layer_types with num_hidden_layers={layers}; each "
                "layer must have one: remove what the model was not trained with."
            )
        full = [i for i, kind in enumerate(types) if kind == "full_attention"]
        every = full[1] - full[0] if len(full) > 1 else layers
        if full != list(range(0, layers, every)):
            raise ValueError(
                f"'{path}' has global attention in layers {full}; kerasbert supports it only in "
                "every n-th layer from the first."
            )
    ropes = config.get("rope_parameters") or {}
    bases = {}
    for ours, kind, old, default in (
        ("rotary_base", "full_attention", "global_rope_theta", 160000.0),
        ("local_rotary_base", "sliding_attention", "local_rope_theta", 10000.0),
    ):
        rope = ropes.get(kind) or {}
        check_value(f"rope_parameters[{kind!r}]", rope, "object", path)
        check_fields(rope, {"rope_theta": "base?"}, path)
        if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
            raise ValueError(
                f"'{path}' scales its rotary positions ({rope or config['rope_scaling']}); "
                "kerasbert supports only the default form."
            )
        base = rope.get("rope_theta", config.get(old))
        bases[ours] = float(default if base is None else base)
    window = _local_attention(config, path)
    return {**bases, "global_every": every, "use_bias": use_bias, "local_window": window}


def _write_modernbert(settings):
    every = settings["global_every"]
    kinds = ("sliding_attention", "full_attention")
    bases = settings["local_rotary_base"] or settings["rotary_base"], settings["rotary_base"]
    return {
        "norm_bias": has_bias(settings["use_bias"], "norm"),
        "attention_bias": has_bias(settings["use_bias"], "attention"),
        "mlp_bias": has_bias(settings["use_bias"], "output"),
        "embedding_dropout": settings["dropout"],
        "global_attn_every_n_layers": every,
        "layer_types": [kinds[i % every == 0] for i in range(settings["num_layers"])],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(kinds, bases)
        },
        # These keys are those of transformers before version 5.
        "local_rope_theta": bases[0],
        "global_rope_theta": bases[1],
    }


def _read_modernbert_decoder(config, path):
    local = _local_attention(config, path)
    # A decoder's window has half as many tokens as the encoder's, counting the token itself.
    window = None if not local else max(2 * (local // 2 - 1), 1)
    return {**_read_modernbert(config, path), "local_window": window}


def _write_modernbert_decoder(settings):
    window = settings["local_window"]
    local = None if window is None else 2 * (window // 2 + 1)
    return {**_write_modernbert(settings), "local_attention": local}


_MODERNBERT_HEAD = {"head_dense": "head.dense", "head_norm": "head.norm", "logits": "classifier"}

_MODERNBERT_DENSE = {
    "head_activation": ("classifier_activation", "gelu"),
    "head_bias": ("classifier_bias", False),
}

_MODERNBERT_TOKENS = {**_MODERNBERT_DENSE, "dropout": ("classifier_dropout", 0.0)}

_MODERNBERT_POOLED = {
    **_MODERNBERT_TOKENS,
    "pooling": ("classifier_pooling", "cls", {"cls": "cls", "mean": "mean"}),
}

_MODERNBERT_CONFIG = {
    "vocabulary_size": ("vocab_size", 50368),
    "num_layers": ("num_hidden_layers", 22),
    "num_heads": ("num_attention_heads", 12),
    "hidden_dim": ("hidden_size", 768),
    "intermediate_dim": ("intermediate_size", 1152),
    "dropout": ("mlp_dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "max_sequence_length": ("max_position_embeddings", 8192),
    "activation": ("hidden_activation", "gelu"),
    "layer_norm_epsilon": ("norm_eps", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
    "local_window": ("local_attention", 128),
}

_MODERNBERT_IDS = {
    "pad_token_id": 50283,
    "bos_token_id": 50281,
    "eos_token_id": 50282,
    "cls_token_id": 50281,
    "sep_token_id": 50282,
}


def _modernbert(qkv):
    """Return the layers of ModernBERT and its decoder, which differ in one name."""
    return {
        "token_embedding": "embeddings.tok_embeddings",
        "embeddings_layer_norm": "embeddings.norm",
        "transformer_layer_{i}/attention/qkv": f"layers.{{i}}.attn.{qkv}",
        "transformer_layer_{i}/attention/output": "layers.{i}.attn.Wo",
        "transformer_layer_{i}/attention_layer_norm": "layers.{i}.attn_norm",
        "transformer_layer_{i}/intermediate": "layers.{i}.mlp.Wi",
        "transformer_layer_{i}/output": "layers.{i}.mlp.Wo",
        "transformer_layer_{i}/output_layer_norm": "layers.{i}.mlp_norm",
        "final_layer_norm": "final_norm",
    }


FAMILIES = {
    "modernbert": Family(
        encoder=_MODERNBERT,
        heads={
            "text_classifier": {"pooling": "cls", **_HEAD_SETTINGS},
            "token_classifier": _HEAD_SETTINGS,
            "question_answering": _HEAD_SETTINGS,
            "multiple_choice": {"pooling": "cls", **_HEAD_SETTINGS},
            "masked_lm": {"head_activation": "gelu", "head_bias": False},
        },
        tokenizer="ModernBertTokenizer",
    ),
    # Local attention covers 63 earlier tokens in the decoder, and 64 on each side in the encoder.
    "modernbert_decoder": Family(
        encoder={**_MODERNBERT, "local_window": 126, "is_causal": True},
        heads={
            "causal_lm": {"head_activation": "gelu", "head_bias": False, "output_bias": True},
            "text_classifier": {"pooling": "last", "output_bias": False, **_HEAD_SETTINGS},
        },
        tokenizer="ModernBertTokenizer",
    ),
}

TABLES = {
    "modernbert": Table(
        classes="ModernBert",
        prefix="model.",
        config=_MODERNBERT_CONFIG,
        encoder=_modernbert("Wqkv"),  # ModernBertModel
        heads={
            "text_classifier": _MODERNBERT_HEAD,
            "token_classifier": _MODERNBERT_HEAD,
            "question_answering": _MODERNBERT_HEAD,
            "multiple_choice": _MODERNBERT_HEAD,
            "masked_lm": mlm_head("head.dense", "head.norm", "decoder"),
        },
        head_config={
            "text_classifier": _MODERNBERT_POOLED,
            "token_classifier": _MODERNBERT_TOKENS,
            "question_answering": _MODERNBERT_TOKENS,
            "multiple_choice": _MODERNBERT_POOLED,
            "masked_lm": {
                **_MODERNBERT_DENSE,
                **HEAD_CONFIG["masked_lm"],
                "output_bias": ("decoder_bias", True),
            },
        },
        ignored=("position_embedding_type",),  # Positions are always rotary.
        token_ids=tuple(_MODERNBERT_IDS),
        default_ids=_MODERNBERT_IDS,
        read=_read_modernbert,
        write=_write_modernbert,
    ),
    "modernbert_decoder": Table(
        classes="ModernBertDecoder",
        prefix="model.",
        config=_MODERNBERT_CONFIG,
        encoder=_modernbert("[q_proj|k_proj|v_proj]"),  # ModernBertDecoderModel
        heads={
            "text_classifier": _MODERNBERT_HEAD,
            "causal_lm": {
                "lm_head/dense": "lm_head.dense",
                "lm_head/layer_norm": "lm_head.norm",
                "lm_head": "decoder",
                "lm_head/decoder": "decoder",
            },
        },
        head_config={
            "text_classifier": {
                **_MODERNBERT_TOKENS,
                "output_bias": ("classifier_bias", False),
            },
            "causal_lm": {
                **_MODERNBERT_DENSE,
                **HEAD_CONFIG["masked_lm"],
                "output_bias": ("decoder_bias", True),
            },
        },
        endings={"causal_lm": "ForCausalLM"},
        ignored=("position_embedding_type",),
        token_ids=tuple(_MODERNBERT_IDS),
        no_id=-1,
        default_ids=_MODERNBERT_IDS,
        read=_read_modernbert_decoder,
        write=_write_modernbert_decoder,
    ),
}

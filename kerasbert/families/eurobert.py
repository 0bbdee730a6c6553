"""EuroBERT, an encoder with the layers of Llama: Boizard et al. 2025, arXiv 2503.05500."""

from kerasbert.base.errors import check_heads
from kerasbert.families.settings import PRE_NORM, ROTARY, Family, has_bias
from kerasbert.families.transformers_names import Table, read_rotary, write_rotary

_IDS = {"pad_token_id": 128001, "bos_token_id": 128000, "eos_token_id": 128001}
_BIASED = {"attention_bias": ["attention"], "mlp_bias": ["intermediate", "output"]}
_POOLINGS = {"late": "late", "bos": "cls", "mean": "mean"}

_read_positions = read_rotary(10000.0, {})


def _read_eurobert(config, path):
    heads, groups = config.get("num_attention_heads", 12), config.get("num_key_value_heads")
    check_heads(heads, groups or heads, "num_key_value_heads", "num_attention_heads", path)
    biased = [part for key, parts in _BIASED.items() if config.get(key) for part in parts]
    return {**_read_positions(config, path), "use_bias": biased or False}


FAMILIES = {
    "eurobert": Family(
        encoder={
            **ROTARY,
            **PRE_NORM,
            "num_segments": 0,
            "dropout": 0.0,
            "max_sequence_length": 8192,
            "activation": "silu",
            "layer_norm_epsilon": 1e-5,
            "rms_norm": True,
            "rotary_base": 250000.0,
            "use_bias": False,
        },
        heads={
            "text_classifier": {"pooling": "late", "head_activation": "gelu"},
            "masked_lm": {"head_activation": None, "output_bias": False, "tie_weights": False},
        },
        tokenizer="FastTokenizer",
    ),
}

TABLES = {
    "eurobert": Table(
        classes="EuroBert",
        prefix="model.",
        config={
            "vocabulary_size": ("vocab_size", 128256),
            "num_layers": ("num_hidden_layers", 12),
            "num_heads": ("num_attention_heads", 12),
            "num_key_value_heads": ("num_key_value_heads", None),
            "hidden_dim": ("hidden_size", 768),
            "intermediate_dim": ("intermediate_size", 3072),
            "attention_dropout": ("attention_dropout", 0.0),
            "max_sequence_length": ("max_position_embeddings", 8192),
            "activation": ("hidden_act", "silu"),
            "layer_norm_epsilon": ("rms_norm_eps", 1e-5),
            "initializer_range": ("initializer_range", 0.02),
        },
        encoder={  # EuroBertModel
            "token_embedding": "embed_tokens",
            "transformer_layer_{i}/attention/qkv": ("layers.{i}.self_attn.[q_proj|k_proj|v_proj]"),
            # These two replace `qkv` if there are fewer key-value heads than query heads.
            "transformer_layer_{i}/attention/query": "layers.{i}.self_attn.q_proj",
            "transformer_layer_{i}/attention/kv": "layers.{i}.self_attn.[k_proj|v_proj]",
            "transformer_layer_{i}/attention/output": "layers.{i}.self_attn.o_proj",
            "transformer_layer_{i}/attention_layer_norm": "layers.{i}.input_layernorm",
            "transformer_layer_{i}/intermediate": "layers.{i}.mlp.[gate_proj|up_proj]",
            "transformer_layer_{i}/output": "layers.{i}.mlp.down_proj",
            "transformer_layer_{i}/output_layer_norm": "layers.{i}.post_attention_layernorm",
            "final_layer_norm": "norm",
        },
        heads={
            "text_classifier": {"head_dense": "dense", "logits": "classifier"},
            "token_classifier": {"logits": "classifier"},
            "masked_lm": {"mlm_head": "lm_head"},
        },
        head_config={
            "text_classifier": {"pooling": ("classifier_pooling", "late", _POOLINGS)},
            "masked_lm": {
                "tie_weights": ("tie_word_embeddings", False),
                "output_bias": ("mlp_bias", False),
            },
        },
        head_names=("dense.", "classifier.", "lm_head."),
        token_ids=tuple(_IDS),
        default_ids={**_IDS, "mask_token_id": 128002},
        read=_read_eurobert,
        write=lambda settings: {
            "attention_bias": has_bias(settings["use_bias"], "attention"),
            "mlp_bias": has_bias(settings["use_bias"], "output"),
            "head_dim": settings["hidden_dim"] // settings["num_heads"],
            **write_rotary(settings),
        },
    ),
}

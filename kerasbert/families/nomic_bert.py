"""NomicBERT and GTE: BERT with rotary positions and a gated feed-forward.

Sources: Nussbaum et al. 2024, arXiv 2402.01613; Zhang et al. 2024, arXiv 2407.19669.
"""

from kerasbert.base.errors import check_fields
from kerasbert.families.settings import ERF_GELU, POOLED, ROTARY, Family
from kerasbert.families.transformers_names import (
    CONFIG,
    HEAD_CONFIG,
    Table,
    check_head_width,
    mlm_head,
    refuse,
)

# Options of their original code, with the values of all their checkpoints. NomicBERT's
# rotary_scaling_factor only applies beyond max_trained_positions, our last position.
_NOMIC = {
    "activation_function": "swiglu",
    "prenorm": False,
    "parallel_block": False,
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "use_rms_norm": False,
    "num_experts": 0,
}

_GTE = {
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}


def _read_rotary(base, known):
    """Make a reader of rotary positions with one base that refuses values other than `known`."""

    def read(config, path):
        check_head_width(config, path)
        for key, fine in known.items():
            if config.get(key, fine) not in (fine, None):
                refuse(path, key, config[key], repr(fine))
        kind = config.get("position_embedding_type")
        if kind not in (None, "rope", "rotary"):
            refuse(path, "position_embedding_type", kind, "'rope'")
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kinds = {"rope_theta": "base?", "factor": "factor", "partial_rotary_factor": "number"}
        check_fields(rope, kinds, path)
        if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
            refuse(path, "partial_rotary_factor", rope, "1.0")
        theta = rope.get("rope_theta", config.get("rope_theta"))
        if theta is None and config.get("model_type") == "new":  # This type's default differs.
            refuse(path, "rope_theta", theta, "a number")
        theta = float(base if theta is None else theta)
        kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor", 1.0)
        if kind == "default":
            factor = 1.0
        elif kind == "ntk" and rope.get("mixed_b") is None:
            # The original code's larger base, which slows the fastest rotation too.
            width = config.get("hidden_size", 768) // config.get("num_attention_heads", 12)
            theta, factor = theta * factor, factor ** (2 / width)
        elif kind != "linear":
            raise ValueError(
                f"'{path}' scales its rotary positions ({rope}); kerasbert supports only the "
                "rope_type 'default' and 'linear': use a checkpoint with one of these."
            )
        return {"rotary_base": theta, "rotary_factor": float(factor)}

    return read


def _write_rotary(settings):
    factor = settings.get("rotary_factor", 1.0)
    more = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor}
    return {"rope_parameters": {**more, "rope_theta": settings["rotary_base"]}}


_ROTARY_HEADS = {
    "text_classifier": {"head_dense": "pooler.dense", "logits": "classifier"},
    "token_classifier": {"logits": "classifier"},
}

FAMILIES = {
    "nomic_bert": Family(
        encoder={
            **ROTARY,
            "dropout": 0.0,
            "max_sequence_length": 2048,
            "activation": "silu",
            "rotary_base": 1000.0,
            "use_bias": ["norm"],
        },
        heads={"text_classifier": POOLED, "multiple_choice": POOLED},
    ),
    "gte": Family(
        encoder={
            **ROTARY,
            "num_segments": 1,
            "attention_dropout": 0.0,
            "max_sequence_length": 8192,
            "activation": "gelu",
            "rotary_base": 160000.0,
            "use_bias": ["attention", "output", "norm"],
        },
        heads={"text_classifier": POOLED, "multiple_choice": POOLED, "masked_lm": ERF_GELU},
        tokenizer="XLMRobertaTokenizer",
    ),
}

TABLES = {
    # These two use the names in the files; transformers renames them on loading.
    "nomic_bert": Table(
        classes="NomicBert",
        prefix="nomic_bert.",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 30528),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "max_sequence_length": ("max_position_embeddings", 2048),
            "activation": ("hidden_act", "silu"),
        },
        encoder={  # NomicBertModel
            "token_embedding": "embeddings.word_embeddings",
            "segment_embedding": "embeddings.token_type_embeddings",
            "embeddings_layer_norm": "emb_ln",
            "transformer_layer_{i}/attention/qkv": "encoder.layers.{i}.attn.Wqkv",
            "transformer_layer_{i}/attention/output": "encoder.layers.{i}.attn.out_proj",
            "transformer_layer_{i}/attention_layer_norm": "encoder.layers.{i}.norm1",
            "transformer_layer_{i}/intermediate": "encoder.layers.{i}.mlp.[fc12|fc11]",
            "transformer_layer_{i}/output": "encoder.layers.{i}.mlp.fc2",
            "transformer_layer_{i}/output_layer_norm": "encoder.layers.{i}.norm2",
        },
        heads={
            **_ROTARY_HEADS,
            "masked_lm": mlm_head(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.layer_norm",
                "cls.predictions",
            ),
        },
        head_config=HEAD_CONFIG,
        model_type="nomic_bert",
        decoder="cls.predictions.decoder",
        aliases={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "resid_pdrop": "hidden_dropout_prob",
            "attn_pdrop": "attention_probs_dropout_prob",
            "max_trained_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "rotary_emb_base": "rope_theta",
        },
        ignored=("position_embedding_type",),
        inside=("pooler.",),
        read=_read_rotary(1000.0, _NOMIC),
        write=_write_rotary,
    ),
    "gte": Table(
        classes="Gte",
        prefix="gte.",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 250048),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "max_sequence_length": ("max_position_embeddings", 8192),
            "num_segments": ("type_vocab_size", 1),
        },
        encoder={  # GteModel
            "token_embedding": "embeddings.word_embeddings",
            "segment_embedding": "embeddings.token_type_embeddings",
            "embeddings_layer_norm": "embeddings.LayerNorm",
            "transformer_layer_{i}/attention/qkv": "encoder.layer.{i}.attention.qkv_proj",
            "transformer_layer_{i}/attention/output": "encoder.layer.{i}.attention.o_proj",
            "transformer_layer_{i}/attention_layer_norm": "encoder.layer.{i}.attn_ln",
            "transformer_layer_{i}/intermediate": "encoder.layer.{i}.mlp.up_gate_proj",
            "transformer_layer_{i}/output": "encoder.layer.{i}.mlp.down_proj",
            "transformer_layer_{i}/output_layer_norm": "encoder.layer.{i}.mlp_ln",
        },
        heads={
            **_ROTARY_HEADS,
            "masked_lm": mlm_head("lm_head.dense", "lm_head.norm", "lm_head.decoder"),
        },
        head_config=HEAD_CONFIG,
        ignored=("position_embedding_type",),
        inside=("pooler.",),
        may_lack_segments=True,
        swapped="/intermediate",
        read=_read_rotary(160000.0, _GTE),
        write=_write_rotary,
    ),
}

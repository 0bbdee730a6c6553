"""NomicBERT and GTE: BERT with rotary positions and a gated feed-forward.

Sources: Nussbaum et al. 2024, arXiv 2402.01613; Zhang et al. 2024, arXiv 2407.19669.
"""

from kerasbert.families.settings import ERF_GELU, POOLED, ROTARY, Family
from kerasbert.families.transformers_names import (
    CONFIG,
    HEAD_CONFIG,
    Table,
    mlm_head,
    read_rotary,
    write_rotary,
)

# Options of the original code, with the values in all checkpoints of the family. NomicBERT's
# rotary_scaling_factor applies only beyond max_trained_positions, which is our last position.
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
    # These two tables have the names in the files, which transformers renames when it loads them.
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
        read=read_rotary(1000.0, _NOMIC),
        write=write_rotary,
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
        read=read_rotary(160000.0, _GTE),
        write=write_rotary,
    ),
}

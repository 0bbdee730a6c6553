"""XLM: Lample and Conneau 2019, arXiv 1901.07291. FlauBERT: Le et al. 2020, arXiv 1912.05372.

Segments are languages: segment ids are transformers' `langs`, by default 0. Where the language
changes in a row, positions restart, as in XLM's translation language modeling; transformers needs
`position_ids` for this.

A sinusoidal position table is stored and read like a learned one. FlauBERT's LayerDrop is not
applied.

transformers' class for multiple choice has two linear layers in a row, and is not supported.
"""

import dataclasses

from kerasbert.base.errors import check_fields
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import HEAD_CONFIG, HEADS, Table, refuse

# Settings that change outputs, with the only supported values.
_KNOWN = {"asm": False, "is_encoder": True}
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
    "summary_last_dropout": 0,
}
# FlauBERT's pre-norm encoders have no norm after the last layer.
_PRE_NORM = {"norm_first": True, "first_attention_norm": True, "final_norm": False}


def _read(config, path):
    flags = dict.fromkeys(("asm", "is_encoder", "use_lang_emb", "gelu_activation"), "flag")
    check_fields(config, {**flags, "n_langs": "count", "pre_norm": "flag"}, path)
    for key, fine in _KNOWN.items():
        if config.get(key, fine) != fine:
            refuse(path, key, config[key], fine)
    languages = config.get("n_langs", 1) if config.get("use_lang_emb", True) else 1
    has_languages = languages > 1
    return {
        "intermediate_dim": 4 * config.get("emb_dim", 2048),
        "activation": "gelu" if config.get("gelu_activation", True) else "relu",
        "num_segments": languages if has_languages else 0,
        "restarts_positions": has_languages,
    }


def _write(settings):
    languages = settings["num_segments"]
    return {
        "gelu_activation": settings["activation"] == "gelu",
        "n_langs": max(languages, 1),
        "use_lang_emb": languages > 1,
    }


def _read_flaubert(config, path):
    return _read(config, path) | (_PRE_NORM if config.get("pre_norm") else {})


def _write_flaubert(settings):
    return {**_write(settings), "pre_norm": settings["norm_first"]}


_FAMILY = Family(
    encoder={"num_segments": 0, "pooler": False, "activation": "gelu"},
    heads={
        "text_classifier": {"pooling": "cls"},
        "question_answering": {"dropout": 0.0},
        "masked_lm": {"head_activation": None},
    },
    tokenizer="XLMTokenizer",
)

FAMILIES = {
    "xlm": _FAMILY,
    "flaubert": dataclasses.replace(_FAMILY, tokenizer="FlaubertTokenizer"),
}

TABLES = {
    "xlm": Table(
        classes="XLM",
        prefix="transformer.",
        config={
            "vocabulary_size": ("vocab_size", 30145),
            "num_layers": ("n_layers", 12),
            "num_heads": ("n_heads", 16),
            "hidden_dim": ("emb_dim", 2048),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.1),
            "max_sequence_length": ("max_position_embeddings", 512),
            "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
            "is_causal": ("causal", False),
            "initializer_range": ("init_std", 0.02),
        },
        encoder={  # XLMModel
            "token_embedding": "embeddings",
            "position_embedding": "position_embeddings",
            "segment_embedding": "lang_embeddings",
            "embeddings_layer_norm": "layer_norm_emb",
            "transformer_layer_{i}/attention/qkv": "attentions.{i}.[q_lin|k_lin|v_lin]",
            "transformer_layer_{i}/attention/output": "attentions.{i}.out_lin",
            "transformer_layer_{i}/attention_layer_norm": "layer_norm1.{i}",
            "transformer_layer_{i}/intermediate": "ffns.{i}.lin1",
            "transformer_layer_{i}/output": "ffns.{i}.lin2",
            "transformer_layer_{i}/output_layer_norm": "layer_norm2.{i}",
        },
        heads={
            "text_classifier": {"logits": "sequence_summary.summary"},
            "token_classifier": HEADS["token_classifier"],
            "question_answering": HEADS["question_answering"],
            "masked_lm": {"mlm_head": "pred_layer.proj"},
        },
        head_config={
            "text_classifier": {"dropout": ("summary_first_dropout", 0.1)},
            "token_classifier": {"dropout": ("dropout", 0.1)},
            "masked_lm": HEAD_CONFIG["masked_lm"],
        },
        endings={
            "masked_lm": "WithLMHeadModel",
            "question_answering": "ForQuestionAnsweringSimple",
        },
        aliases={
            "hidden_size": "emb_dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
            "n_words": "vocab_size",
            "bos_index": "bos_token_id",
            "eos_index": "eos_token_id",
            "pad_index": "pad_token_id",
        },
        # In published files, `mask_token_id` is 0, but `mask_index` is the mask token's id.
        default_ids={
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "mask_token_id": 0,
        },
        head_names=(
            *("pred_layer.", "sequence_summary.", "logits_proj.", "classifier.", "qa_outputs."),
        ),
        refused={"text_classifier": _SUMMARY},
        may_lack_segments=True,
        read=_read,
        write=_write,
    ),
}
TABLES["flaubert"] = dataclasses.replace(
    TABLES["xlm"], classes="Flaubert", read=_read_flaubert, write=_write_flaubert
)

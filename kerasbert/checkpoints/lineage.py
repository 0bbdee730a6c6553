"""Tables that map the models of `kerasbert.lineage` to transformers, one per model.

Source: `transformers` 5.23.
"""

import os

import numpy as np

from kerasbert.base.errors import check_fields, is_whole
from kerasbert.base.files import json_in
from kerasbert.families.transformers_names import Table, refuse


def _clamp_length(config, default, path):
    """Return our clamp length; 0 or less means none in transformers."""
    clamp = config.get("clamp_len", default)
    if not is_whole(clamp):
        raise ValueError(f"clamp_len={clamp!r} in '{path}' must be a whole number.")
    return clamp if clamp > 0 else None


# === XLNet ===


def _read_xlnet(config, path):
    check_fields(config, {"mem_len": "whole?", "attn_type": "name", "d_head": "count?"}, path)
    for key, fine in {"same_length": False, "bi_data": False, "reuse_len": None}.items():
        if (config.get(key) or fine) != fine:
            refuse(path, key, config[key], repr(fine))
    if config.get("attn_type", "bi") not in ("bi", "uni"):
        refuse(path, "attn_type", config["attn_type"], "'bi' or 'uni'")
    width, heads = config.get("d_model", 1024), config.get("n_head", 16)
    if config.get("d_head") not in (None, width / heads):
        raise ValueError(
            f"'{path}' has d_head={config['d_head']!r} with d_model={width} and n_head={heads}; "
            "all heads together must be as wide as the encoder."
        )
    return {
        "is_causal": config.get("attn_type", "bi") == "uni",
        "clamp_length": _clamp_length(config, -1, path),
        "memory_length": config.get("mem_len", 512) or 0,
    }


def _xlnet_weights(settings):
    found = {"mask_embedding/embedding": "mask_emb"}
    names = {
        "content_bias": "r_w_bias",
        "position_bias": "r_r_bias",
        "segment_bias": "r_s_bias",
        "segment_embedding": "seg_embed",
    }
    for i in range(settings["num_layers"]):
        for ours, theirs in names.items():
            found[f"transformer_layer_{i}/attention/{ours}"] = f"layer.{i}.rel_attn.{theirs}"
    return found


# === Transformer-XL, in transformers up to 4.36 ===


def _read_transformer_xl(config, path):
    kinds = {"tie_projs": "flags", "untie_r": "flag", "d_embed": "count", "cutoffs": "counts"}
    check_fields(config, kinds, path)
    known = {"pre_lnorm": False, "attn_type": 0, "tie_word_embeddings": True}
    for key, fine in known.items():
        if config.get(key, fine) != fine:
            refuse(path, key, config[key], repr(fine))
    width, heads = config.get("d_model", 1024), config.get("n_head", 16)
    if config.get("d_head", 64) != width / heads:
        raise ValueError(
            f"'{path}' has d_head={config.get('d_head', 64)} with d_model={width} and n_head="
            f"{heads}; all heads together must be as wide as the encoder."
        )
    embedding = config.get("d_embed", 1024)
    return {
        "clamp_length": _clamp_length(config, 1000, path),
        "shares_biases": not config.get("untie_r", True),
        "embedding_dim": None if embedding == width else embedding,
        "cutoffs": list(config.get("cutoffs", [20000, 40000, 200000])),
    }


def _transformer_xl_weights(settings):
    found = {}
    for i in range(len(settings["cutoffs"]) + 1):
        found[f"token_embedding/table_{i}"] = f"word_emb.emb_layers.{i}.weight"
        found[f"token_embedding/projection_{i}"] = f"word_emb.emb_projs.{i}.T"
    names = {"content_bias": "r_w_bias", "position_bias": "r_r_bias"}
    for ours, theirs in names.items():
        found[f"context/{ours}"] = theirs
        for i in range(settings["num_layers"]):
            name = f"layers.{i}.dec_attn.{theirs}"
            found[f"transformer_layer_{i}/attention/{ours}"] = name
    return found


def _tied_transformer_xl(settings, config):
    found, division = {}, settings["division"]
    if settings["shares_biases"]:
        for i in range(settings["num_layers"]):
            for name in ("r_w_bias", "r_r_bias"):
                found[f"layers.{i}.dec_attn.{name}"] = name
    # The output layer shares embeddings and, by default, projections.
    clusters = len(settings["cutoffs"]) + 1
    projections = config.get("tie_projs") or [True] * clusters
    for i in range(clusters):
        found[f"crit.out_layers.{i}.weight"] = f"word_emb.emb_layers.{i}.weight"
        if i < len(projections) and projections[i]:
            table = i if division > 1 else 0
            found[f"crit.out_projs.{i}"] = f"word_emb.emb_projs.{table}"
    return found


def _transformer_xl_head(settings):
    found = {"lm_head/cluster_kernel": "crit.cluster_weight"}
    found["lm_head/cluster_bias"] = "crit.cluster_bias"
    for i in range(len(settings["cutoffs"]) + 1):
        found[f"lm_head/bias_{i}"] = f"crit.out_layers.{i}.bias"
        found[f"lm_head/projection_{i}"] = f"crit.out_projs.{i}.T"
    return found


# === Marian, the encoder-decoder of 2017 ===

# Settings that `MarianMTModel` fixes.
_MARIAN_FIXED = {"layer_norm_epsilon": 1e-5, "norm_first": False}
# Fields with only one supported value.
_MARIAN_ONLY = {
    "normalize_before": False,
    "add_final_layer_norm": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}


def _marian_block(ours, theirs, inner):
    return {
        f"{ours}/attention/qkv": f"{theirs}.self_attn.[q_proj|k_proj|v_proj]",
        f"{ours}/attention/output": f"{theirs}.self_attn.out_proj",
        f"{ours}/attention_layer_norm": f"{theirs}.self_attn_layer_norm",
        f"{ours}/intermediate": f"{theirs}.fc1",
        f"{ours}/output": f"{theirs}.fc2",
        f"{ours}/output_layer_norm": f"{theirs}.final_layer_norm",
        **{f"{ours}/{name}": f"{theirs}.{other}" for name, other in inner.items()},
    }


def _read_marian(config, path):
    for key, fine in _MARIAN_ONLY.items():
        if config.get(key, fine) != fine:
            refuse(path, key, config[key], repr(fine))
    return _MARIAN_FIXED


def _read_marian_head(config, path):
    # Newer directories have a generation_config.json.
    written = {**config, **json_in(os.path.dirname(path), "generation_config.json")}
    check_fields(written, {"bad_words_ids": "list?", "forced_eos_token_id": "whole?"}, path)
    words = written.get("bad_words_ids") or []
    if any(not isinstance(x, list) or len(x) != 1 or not is_whole(x[0]) for x in words):
        raise ValueError(
            f"'{path}' has bad_words_ids={words!r}, but kerasbert can only forbid single "
            "tokens, each in a list of its own."
        )
    return {
        "forbidden_token_ids": [word[0] for word in words] or None,
        "forced_end_token_id": written.get("forced_eos_token_id"),
    }


def _marian_generation(task, config):
    written = {key: config[key] for key in LINEAGE_TABLES["marian"].special_ids if key in config}
    written["forced_eos_token_id"] = task.forced_end_token_id
    written["max_length"] = config["max_position_embeddings"]
    if task.forbidden_token_ids:
        written["bad_words_ids"] = [[id] for id in task.forbidden_token_ids]
    return written


# XLNet's head on `<cls>`, and its fields in the config.
_XLNET_SUMMARY = {"head_dense": "sequence_summary.summary", "logits": "logits_proj"}
_XLNET_SUMMARY_CONFIG = {
    "dropout": ("summary_last_dropout", 0.1),
    "head_activation": ("summary_activation", "tanh"),
}

LINEAGE_TABLES = {
    "marian": Table(  # MarianModel
        classes="Marian",
        prefix="model.",
        config={
            "vocabulary_size": ("vocab_size", 58101),
            "num_layers": ("encoder_layers", 12),
            "num_heads": ("encoder_attention_heads", 16),
            "hidden_dim": ("d_model", 1024),
            "intermediate_dim": ("encoder_ffn_dim", 4096),
            "num_decoder_layers": ("decoder_layers", 12),
            "num_decoder_heads": ("decoder_attention_heads", 16),
            "decoder_intermediate_dim": ("decoder_ffn_dim", 4096),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.0),
            "max_sequence_length": ("max_position_embeddings", 1024),
            "activation": ("activation_function", "gelu"),
            "scale_embeddings": ("scale_embedding", False),
        },
        encoder={
            "token_embedding": "shared",
            **_marian_block("encoder_layer_{i}", "encoder.layers.{i}", {}),
            **_marian_block(
                "decoder_layer_{i}",
                "decoder.layers.{i}",
                {
                    "cross_attention/query": "encoder_attn.q_proj",
                    "cross_attention/kv": "encoder_attn.[k_proj|v_proj]",
                    "cross_attention/output": "encoder_attn.out_proj",
                    "cross_attention_layer_norm": "encoder_attn_layer_norm",
                },
            ),
        },
        heads={"seq2seq_lm": {"lm_head": "lm_head"}},
        head_config={"seq2seq_lm": {"forced_end_token_id": ("forced_eos_token_id", None)}},
        endings={"seq2seq_lm": "MTModel"},
        special_ids=("pad_token_id", "eos_token_id", "decoder_start_token_id"),
        token_ids=("pad_token_id", "eos_token_id"),
        default_ids={"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
        head_names=("final_logits_bias",),
        verbatim_head=lambda settings: {"lm_head/bias": "final_logits_bias[0]"},
        tied=lambda settings, config: dict.fromkeys(
            ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
            "shared.weight",
        ),
        read=_read_marian,
        write=lambda settings: {
            "decoder_vocab_size": settings["vocabulary_size"],
            "is_encoder_decoder": True,
            **_MARIAN_ONLY,
        },
        read_head=_read_marian_head,
        generation=_marian_generation,
    ),
    "transformer_xl": Table(  # TransfoXLModel
        classes="TransfoXL",
        prefix="transformer.",
        model_type="transfo-xl",
        config={
            "vocabulary_size": ("vocab_size", 267735),
            "num_layers": ("n_layer", 18),
            "num_heads": ("n_head", 16),
            "hidden_dim": ("d_model", 1024),
            "intermediate_dim": ("d_inner", 4096),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("dropatt", 0.0),
            "division": ("div_val", 4),
            "memory_length": ("mem_len", 1600),
            "same_length": ("same_length", True),
            "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
            "initializer_range": ("init_std", 0.02),
        },
        encoder={
            "token_embedding": "word_emb.emb_layers.0",
            "transformer_layer_{i}/attention/qkv": "layers.{i}.dec_attn.qkv_net",
            "transformer_layer_{i}/attention/position": "layers.{i}.dec_attn.r_net",
            "transformer_layer_{i}/attention/output": "layers.{i}.dec_attn.o_net",
            "transformer_layer_{i}/attention_layer_norm": "layers.{i}.dec_attn.layer_norm",
            "transformer_layer_{i}/intermediate": "layers.{i}.pos_ff.CoreNet.0",
            "transformer_layer_{i}/output": "layers.{i}.pos_ff.CoreNet.3",
            "transformer_layer_{i}/output_layer_norm": "layers.{i}.pos_ff.layer_norm",
        },
        heads={"causal_lm": {"lm_head": "crit"}},
        head_config={"causal_lm": {"tied_projections": ("tie_projs", None)}},
        verbatim=_transformer_xl_weights,
        verbatim_head=_transformer_xl_head,
        tied=_tied_transformer_xl,
        read=_read_transformer_xl,
        write=lambda settings: {
            "d_head": settings["hidden_dim"] // settings["num_heads"],
            "d_embed": settings["embedding_dim"] or settings["hidden_dim"],
            "clamp_len": settings["clamp_length"] or -1,
            "untie_r": not settings["shares_biases"],
            "cutoffs": settings["cutoffs"],
            "pre_lnorm": False,
            "attn_type": 0,
        },
        write_head=lambda task: {
            "tie_projs": task.tied_projections or [True] * (len(task.backbone.cutoffs) + 1)
        },
    ),
    "xlnet": Table(  # XLNetModel
        classes="XLNet",
        prefix="transformer.",
        config={
            "vocabulary_size": ("vocab_size", 32000),
            "num_layers": ("n_layer", 24),
            "num_heads": ("n_head", 16),
            "hidden_dim": ("d_model", 1024),
            "intermediate_dim": ("d_inner", 4096),
            "dropout": ("dropout", 0.1),
            "activation": ("ff_activation", "gelu"),
            "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
            "initializer_range": ("initializer_range", 0.02),
        },
        encoder={
            "token_embedding": "word_embedding",
            "transformer_layer_{i}/attention/qkv": "layer.{i}.rel_attn.[q|k|v]",
            "transformer_layer_{i}/attention/position": "layer.{i}.rel_attn.r",
            "transformer_layer_{i}/attention/output": "layer.{i}.rel_attn.o",
            "transformer_layer_{i}/attention_layer_norm": "layer.{i}.rel_attn.layer_norm",
            "transformer_layer_{i}/intermediate": "layer.{i}.ff.layer_1",
            "transformer_layer_{i}/output": "layer.{i}.ff.layer_2",
            "transformer_layer_{i}/output_layer_norm": "layer.{i}.ff.layer_norm",
        },
        heads={
            "text_classifier": _XLNET_SUMMARY,
            "multiple_choice": _XLNET_SUMMARY,
            "token_classifier": {"logits": "classifier"},
            "question_answering": {"logits": "qa_outputs"},
            "pretrainer": {"lm_head": "lm_loss"},
        },
        head_config={
            "text_classifier": _XLNET_SUMMARY_CONFIG,
            "multiple_choice": _XLNET_SUMMARY_CONFIG,
        },
        aliases={
            "n_token": "vocab_size",
            "hidden_size": "d_model",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
        endings={
            "question_answering": "ForQuestionAnsweringSimple",
            "pretrainer": "LMHeadModel",
        },
        without_class=(),
        refused=dict.fromkeys(
            ("text_classifier", "multiple_choice"),
            {"summary_type": "last", "summary_use_proj": True},
        ),
        token_ids=("pad_token_id", "bos_token_id", "eos_token_id"),
        default_ids={"pad_token_id": 5, "bos_token_id": 1, "eos_token_id": 2},
        split_heads={
            ".rel_attn.q": True,
            ".rel_attn.k": True,
            ".rel_attn.v": True,
            ".rel_attn.r": True,
            ".rel_attn.o": False,
        },
        verbatim=_xlnet_weights,
        tied=lambda settings, config: {"lm_loss.weight": "word_embedding.weight"},
        read=_read_xlnet,
        write=lambda settings: {
            "d_head": settings["hidden_dim"] // settings["num_heads"],
            "attn_type": "uni" if settings["is_causal"] else "bi",
            "clamp_len": settings["clamp_length"] or -1,
            "mem_len": settings["memory_length"] or None,
            "same_length": False,
            "bi_data": False,
            "reuse_len": None,
            "summary_type": "last",
            "summary_use_proj": True,
        },
    ),
}


def split_heads(tensors, table, num_heads):
    """Restore the axis for heads of some matrices; see `Table.split_heads`.

    Args:
        tensors: dict of name to array.
        table: a `Table`.
        num_heads: int. N.
    """
    found = {}
    for name, value in tensors.items():
        for end, into in table.split_heads.items():
            if name.endswith(f"{end}.weight"):
                name = name.removesuffix(".weight")
                shape = (value.shape[int(into)], num_heads, -1)
                value = np.ascontiguousarray((value.T if into else value).reshape(shape))
                break
        found[name] = value
    return found

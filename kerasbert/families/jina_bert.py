"""Jina-BERT v2: BERT with ALiBi and a gated feed-forward, up to 8,192 tokens.

Sources: Günther et al. 2023, arXiv 2310.19923; `jinaai/jina-bert-implementation` on Hugging Face.
"""

import dataclasses

from kerasbert.families import bert
from kerasbert.families.settings import ERF_GELU, Family
from kerasbert.families.transformers_names import CONFIG, HEAD_CONFIG, name_of, refuse

# Names in the original code, which transformers runs with `trust_remote_code=True`.
_CODE = "jinaai/jina-bert-implementation"
_CLASSES = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
}
# Activations of the gated feed-forwards. `hidden_act` is the activation of the masked-LM head.
_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}


def _read_jina(config, path):
    kind = config.get("feed_forward_type", "original")
    if kind not in _ACTIVATIONS:
        refuse(path, "feed_forward_type", kind, " or ".join(map(repr, _ACTIVATIONS)))
    code = str(config.get("_name_or_path")) + str(config.get("auto_map"))
    if "qk-post-norm" in code:
        raise ValueError(
            f"'{path}' names the code jina-bert-v2-qk-post-norm, which normalizes queries and keys "
            "and which kerasbert does not support; use a checkpoint of "
            "jina-bert-implementation, such as jinaai/jina-embeddings-v2-base-en."
        )
    return {"activation": _ACTIVATIONS[kind]}


def _write_jina(settings):
    auto_map = {name: f"{_CODE}--modeling_bert.JinaBert{end}" for name, end in _CLASSES.items()}
    return {
        "feed_forward_type": name_of(settings["activation"], _ACTIVATIONS),
        "position_embedding_type": "alibi",
        "auto_map": {"AutoConfig": f"{_CODE}--configuration_bert.JinaBertConfig", **auto_map},
    }


_BLOCK = {
    "intermediate": "mlp.gated_layers",
    "output": "mlp.wo",
    "output_layer_norm": "mlp.layernorm",
}

FAMILIES = {
    "jina_bert": Family(
        encoder={
            "activation": "gelu",
            "max_sequence_length": 8192,
            "attention_dropout": 0.0,
            "position_embedding": "none",
            "position_bias": "alibi",
            "gated_mlp": True,
            "use_bias": ["attention", "output", "norm"],
        },
        heads={"masked_lm": ERF_GELU},
    ),
}

_BERT = bert.TABLES["bert"]

TABLES = {
    "jina_bert": dataclasses.replace(
        _BERT,
        classes="JinaBert",
        model_type="bert",
        marks={"position_embedding_type": "alibi"},
        ignored=("position_embedding_type",),
        config={
            **{ours: names for ours, names in CONFIG.items() if ours != "activation"},
            "max_sequence_length": ("max_position_embeddings", 8192),
        },
        encoder={  # JinaBertModel
            **{
                ours: theirs
                for ours, theirs in _BERT.encoder.items()
                if ours not in ("position_embedding", "embeddings_projection")
            },
            **{
                f"transformer_layer_{{i}}/{ours}": f"encoder.layer.{{i}}.{theirs}"
                for ours, theirs in _BLOCK.items()
            },
        },
        head_config={
            **HEAD_CONFIG,
            "masked_lm": {**HEAD_CONFIG["masked_lm"], "head_activation": ("hidden_act", "gelu")},
        },
        read=_read_jina,
        write=_write_jina,
    ),
}

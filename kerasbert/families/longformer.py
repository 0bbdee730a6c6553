"""Longformer: RoBERTa with sliding-window attention and global tokens, for 4,096 tokens and more.

Source: Beltagy et al. 2020, arXiv 2004.05150.
"""

import dataclasses

from kerasbert.base.errors import check_value
from kerasbert.families import roberta
from kerasbert.families.transformers_names import DROPOUT

_ROBERTA = roberta.FAMILIES["roberta"]
_TABLE = roberta.TABLES["roberta"]
_SELF = "encoder.layer.{i}.attention.self."


def _read(config, path):
    windows = config.get("attention_window", 512)
    layers = config.get("num_hidden_layers", 12)
    check_value("attention_window", windows, "count(s)", path)
    several = windows if isinstance(windows, list) else [windows]
    if isinstance(windows, list) and len(windows) != layers:
        raise ValueError(
            f"'{path}' has {len(windows)} values in attention_window with num_hidden_layers="
            f"{layers}; each layer must have one: set both to what the model was trained with."
        )
    if any(window % 2 for window in several):
        raise ValueError(
            f"'{path}' has attention_window={windows!r}, which must be even: half of it is on each "
            "side of a token."
        )
    check_value("onnx_export", config.get("onnx_export", False), "flag", path)
    return {}


FAMILIES = {
    "longformer": dataclasses.replace(
        _ROBERTA,
        encoder={
            **_ROBERTA.encoder,
            "max_sequence_length": 4096,
            "local_window": 512,
            "global_every": None,
            "global_tokens": "by_task",
            "sep_token_id": 2,
        },
        heads={
            **_ROBERTA.heads,
            "text_classifier": {**_ROBERTA.heads["text_classifier"], "global_tokens": "first"},
            "question_answering": {"global_tokens": "before_separator"},
            "multiple_choice": {"global_tokens": "after_separator"},
        },
    ),
}

TABLES = {
    "longformer": dataclasses.replace(
        _TABLE,
        classes="Longformer",
        prefix="longformer.",
        config={
            **_TABLE.config,
            "vocabulary_size": ("vocab_size", 30522),
            "local_window": ("attention_window", 512),
            "sep_token_id": ("sep_token_id", 2),
        },
        encoder={  # LongformerModel
            **_TABLE.encoder,
            "transformer_layer_{i}/attention/query_global": f"{_SELF}query_global",
            "transformer_layer_{i}/attention/kv_global": f"{_SELF}[key_global|value_global]",
        },
        # Longformer's classes in transformers do not read classifier_dropout.
        head_config={
            **_TABLE.head_config,
            "text_classifier": DROPOUT,
            "token_classifier": DROPOUT,
        },
        read=_read,
    ),
}

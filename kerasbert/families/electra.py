"""ELECTRA: Clark et al. 2020, arXiv 2003.10555."""

from kerasbert.families.keras_hub_names import KerasHubTable, encoder_names
from kerasbert.families.settings import ERF_GELU, Family
from kerasbert.families.transformers_names import (
    CONFIG,
    ENCODER,
    HEAD_CONFIG,
    HEADS,
    Table,
    mlm_head,
)

FAMILIES = {
    "electra": Family(
        encoder={"pooler": False},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "gelu", "dropout_first": True},
            "multiple_choice": {"pooling": "cls", "head_activation": "gelu"},
            "masked_lm": ERF_GELU,
        },
    ),
}

KERAS_HUB = {
    "electra": KerasHubTable(
        classes="Electra",
        settings={"activation": "gelu_approximate", "pooler": True},
        config={"embedding_dim": 768},
        encoder=encoder_names(),
    ),
}

TABLES = {
    "electra": Table(
        classes="Electra",
        prefix="electra.",
        config={
            **CONFIG,
            "num_heads": ("num_attention_heads", 4),
            "hidden_dim": ("hidden_size", 256),
            "intermediate_dim": ("intermediate_size", 1024),
            "embedding_dim": ("embedding_size", 128),
        },
        encoder=ENCODER,  # ElectraModel
        heads={
            **HEADS,
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "multiple_choice": {"head_dense": "sequence_summary.summary", "logits": "classifier"},
            "replaced_token_detector": {
                "head_dense": "discriminator_predictions.dense",
                "logits": "discriminator_predictions.dense_prediction",
            },
            "masked_lm": mlm_head(
                "generator_predictions.dense",
                "generator_predictions.LayerNorm",
                "generator_lm_head",
            ),
        },
        head_config={
            **HEAD_CONFIG,
            "replaced_token_detector": {"head_activation": ("hidden_act", "gelu")},
            "multiple_choice": {
                "dropout": ("summary_last_dropout", 0.1),
                "head_activation": (
                    "summary_activation",
                    FAMILIES["electra"].heads["multiple_choice"]["head_activation"],
                ),
            },
        },
        has_square_projection=False,
        refused={
            "multiple_choice": {
                "summary_type": "first",
                "summary_use_proj": True,
                "summary_proj_to_labels": False,
            }
        },
    ),
}

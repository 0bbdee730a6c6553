"""BERT: Devlin et al. 2019, arXiv 1810.04805."""

from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import (
    CONFIG,
    ENCODER,
    HEAD_CONFIG,
    HEADS,
    Table,
    mlm_head,
)

FAMILIES = {
    "bert": Family(),
}

TABLES = {
    "bert": Table(
        classes="Bert",
        prefix="bert.",
        config=CONFIG,
        encoder=ENCODER,
        heads={
            **HEADS,
            "text_classifier": {"logits": "classifier"},
            "next_sentence_predictor": {"logits": "cls.seq_relationship"},
            "masked_lm": mlm_head(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions",
            ),
        },
        head_config=HEAD_CONFIG,
        decoder="cls.predictions.decoder",
        poolers=(
            None,
            "text_classifier",
            "next_sentence_predictor",
            "multiple_choice",
            "pretrainer",
        ),
        without_class=(),
    ),
}

"""RoBERTa (Liu et al. 2019, arXiv 1907.11692), XLM-R (Conneau et al. 2020, arXiv 1911.02116)."""

from kerasbert.families.settings import ERF_GELU, Family
from kerasbert.families.transformers_names import (
    CONFIG,
    ENCODER,
    HEAD_CONFIG,
    HEADS,
    Table,
    mlm_head,
)


def _roberta(classes, **config):
    """Make the table of RobertaModel and XLMRobertaModel, which differ only in their vocabulary."""
    return Table(
        classes=classes,
        prefix="roberta.",
        config={**CONFIG, **config},
        encoder=ENCODER,
        heads={
            **HEADS,
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "masked_lm": mlm_head("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        },
        head_config={
            **HEAD_CONFIG,
            "multiple_choice": {"dropout": ("hidden_dropout_prob", 0.1)},
        },
        decoder="lm_head.decoder",
        poolers=(None, "multiple_choice"),
        starts_at_padding=True,
        default_ids={},  # Positions count from the padding id.
    )


FAMILIES = {
    "roberta": Family(
        # Positions count from padding_idx + 1 = 2; there is one segment.
        encoder={"position_offset": 2, "num_segments": 1, "layer_norm_epsilon": 1e-5},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "tanh", "dropout_first": True},
            "masked_lm": ERF_GELU,
        },
        tokenizer="RobertaTokenizer",
    ),
    "xlm_roberta": Family(
        encoder={"position_offset": 2, "num_segments": 1, "layer_norm_epsilon": 1e-5},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "tanh", "dropout_first": True},
            "masked_lm": ERF_GELU,
        },
        tokenizer="XLMRobertaTokenizer",
    ),
}

TABLES = {
    "roberta": _roberta("Roberta", vocabulary_size=("vocab_size", 50265)),
    "xlm_roberta": _roberta("XLMRoberta"),
}

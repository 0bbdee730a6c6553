"""Megatron-BERT: Shoeybi et al. 2019, arXiv 1909.08053."""

import dataclasses

from kerasbert.families import bert
from kerasbert.families.settings import PRE_NORM, Family
from kerasbert.families.transformers_names import CONFIG, DROPOUT, HEAD_CONFIG, pre_norm

FAMILIES = {
    "megatron_bert": Family(encoder=PRE_NORM),
}

TABLES = {
    "megatron_bert": dataclasses.replace(
        bert.TABLES["bert"],
        classes="MegatronBert",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 29056),
            "num_layers": ("num_hidden_layers", 24),
            "num_heads": ("num_attention_heads", 16),
            "hidden_dim": ("hidden_size", 1024),
            "intermediate_dim": ("intermediate_size", 4096),
        },
        encoder=pre_norm("attention.ln", "ln", "encoder.ln"),  # MegatronBertModel
        head_config={
            **dict.fromkeys(("text_classifier", "token_classifier", "multiple_choice"), DROPOUT),
            "masked_lm": HEAD_CONFIG["masked_lm"],
        },
    ),
}

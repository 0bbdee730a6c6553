"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) and models with its heads and positions.

XLM-R: Conneau et al. 2020, arXiv 1911.02116; CamemBERT: Martin et al. 2020, arXiv 1911.03894;
data2vec: Baevski et al. 2022, arXiv 2202.03555; XLM-RoBERTa-XL: Goyal et al. 2021, arXiv
2105.00572; RoBERTa-PreLayerNorm: Ott et al. 2019, arXiv 1904.01038.
"""

from kerasbert.families.keras_hub_names import DENSE_HEADS, KerasHubTable, encoder_names
from kerasbert.families.settings import ERF_GELU, PRE_NORM, Family
from kerasbert.families.transformers_names import (
    CONFIG,
    DROPOUT,
    ENCODER,
    HEAD_CONFIG,
    HEADS,
    Table,
    mlm_head,
    pre_norm,
)


def _family(tokenizer, **encoder):
    return Family(
        # Positions count from padding_idx + 1 = 2; there is one segment.
        encoder={
            "position_offset": 2,
            "num_segments": 1,
            "layer_norm_epsilon": 1e-5,
            **encoder,
        },
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "tanh", "dropout_first": True},
            "masked_lm": ERF_GELU,
        },
        tokenizer=tokenizer,
    )


def _table(classes, prefix="roberta.", encoder=ENCODER, **config):
    """Make the table of RobertaModel, XLMRobertaModel and others, which differ in a few names."""
    return Table(
        classes=classes,
        prefix=prefix,
        config={**CONFIG, **config},
        encoder=encoder,
        heads={
            **HEADS,
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
            "masked_lm": mlm_head("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        },
        head_config={
            **HEAD_CONFIG,
            "multiple_choice": DROPOUT,
        },
        decoder="lm_head.decoder",
        poolers=(None, "multiple_choice"),
        starts_at_padding=True,
        default_ids={},  # Positions count from the padding id.
    )


FAMILIES = {
    "roberta": _family("RobertaTokenizer"),
    "xlm_roberta": _family("XLMRobertaTokenizer"),
    "camembert": _family("CamembertTokenizer"),
    "data2vec_text": _family("RobertaTokenizer"),
    "xlm_roberta_xl": _family("XLMRobertaTokenizer", **PRE_NORM),
    "roberta_prelayernorm": _family("RobertaTokenizer", norm_first=True, first_attention_norm=True),
}


def _keras_hub(classes):
    return KerasHubTable(
        classes=classes,
        # KerasHub's class has no segment embedding, and no unused rows before the first position.
        settings={"activation": "gelu", "position_offset": 0, "num_segments": 0, "pooler": False},
        encoder=encoder_names("embeddings/"),
        heads=DENSE_HEADS,
    )


KERAS_HUB = {"roberta": _keras_hub("Roberta"), "xlm_roberta": _keras_hub("XLMRoberta")}

TABLES = {
    "roberta": _table("Roberta", vocabulary_size=("vocab_size", 50265)),
    "xlm_roberta": _table("XLMRoberta"),
    "camembert": _table("Camembert"),
    "data2vec_text": _table("Data2VecText", "data2vec_text."),
    "xlm_roberta_xl": _table(
        "XLMRobertaXL",
        encoder=pre_norm(  # XLMRobertaXLModel
            "attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm"
        ),
        vocabulary_size=("vocab_size", 250880),
        num_layers=("num_hidden_layers", 36),
        num_heads=("num_attention_heads", 32),
        hidden_dim=("hidden_size", 2560),
        intermediate_dim=("intermediate_size", 10240),
        max_sequence_length=("max_position_embeddings", 514),
        num_segments=("type_vocab_size", 1),
        layer_norm_epsilon=("layer_norm_eps", 1e-5),
    ),
    "roberta_prelayernorm": _table(
        "RobertaPreLayerNorm",
        "roberta_prelayernorm.",
        encoder={  # RobertaPreLayerNormModel
            **pre_norm("attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"),
            "embeddings_layer_norm": ENCODER["embeddings_layer_norm"],
        },
        vocabulary_size=("vocab_size", 50265),
    ),
}

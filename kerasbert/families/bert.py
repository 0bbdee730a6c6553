"""BERT: Devlin et al. 2019, arXiv 1810.04805."""

from kerasbert.families.keras_hub_names import POOLED_HEADS, KerasHubTable, encoder_names
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

KERAS_HUB = {
    "bert": KerasHubTable(
        classes="Bert",
        settings={"activation": "gelu_approximate"},
        encoder=encoder_names(),
        heads=POOLED_HEADS,
    ),
}

# The names in Google's files. Its run_classifier.py and run_squad.py store their matrices
# transposed: (classes, width).
GOOGLE_CONFIG = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "initializer_range": "initializer_range",
    "activation": "hidden_act",
}
_LAYER = "bert/encoder/layer_{i}"
GOOGLE_ENCODER = {
    "token_embedding": "bert/embeddings/word_embeddings",
    "position_embedding": "bert/embeddings/position_embeddings",
    "segment_embedding": "bert/embeddings/token_type_embeddings",
    "embeddings_layer_norm": "bert/embeddings/LayerNorm",
    "transformer_layer_{i}/attention/qkv": f"{_LAYER}/attention/self/[query|key|value]",
    "transformer_layer_{i}/attention/output": f"{_LAYER}/attention/output/dense",
    "transformer_layer_{i}/attention_layer_norm": f"{_LAYER}/attention/output/LayerNorm",
    "transformer_layer_{i}/intermediate": f"{_LAYER}/intermediate/dense",
    "transformer_layer_{i}/output": f"{_LAYER}/output/dense",
    "transformer_layer_{i}/output_layer_norm": f"{_LAYER}/output/LayerNorm",
    "pooled_dense": "bert/pooler/dense",
}
_MASKED_LM = {
    "mlm_head/dense": "cls/predictions/transform/dense",
    "mlm_head/layer_norm": "cls/predictions/transform/LayerNorm",
}
_MASKED_LM_BIAS = {"mlm_head/bias": "cls/predictions/output_bias"}
_NEXT_SENTENCE = {
    "logits/kernel": "cls/seq_relationship/output_weights.T",
    "logits/bias": "cls/seq_relationship/output_bias",
}
# For each kind of head, the names of layers and of weights.
GOOGLE_HEADS = {
    "text_classifier": (
        {},
        {"logits/kernel": "output_weights.T", "logits/bias": "output_bias"},
    ),
    "question_answering": (
        {},
        {
            "logits/kernel": "cls/squad/output_weights.T",
            "logits/bias": "cls/squad/output_bias",
        },
    ),
    "next_sentence_predictor": ({}, _NEXT_SENTENCE),
    "masked_lm": (_MASKED_LM, _MASKED_LM_BIAS),
    "pretrainer": (_MASKED_LM, {**_MASKED_LM_BIAS, **_NEXT_SENTENCE}),
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

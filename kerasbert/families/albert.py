"""ALBERT: Lan et al. 2020, arXiv 1909.11942."""

from kerasbert.families.keras_hub_names import POOLED_HEADS, KerasHubTable, encoder_names
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import CONFIG, HEAD_CONFIG, HEADS, Table, mlm_head

_ALBERT_GROUP = "encoder.albert_layer_groups.{i}.albert_layers.{j}"

_ALBERT_DROPOUT = {"dropout": ("classifier_dropout_prob", 0.1)}

FAMILIES = {
    "albert": Family(
        encoder={"num_groups": 1, "embedding_dim": 128},
        heads={
            "next_sentence_predictor": {"dropout": 0.1, "sentence_order": True},
        },
        tokenizer="AlbertTokenizer",
    ),
}

KERAS_HUB = {
    "albert": KerasHubTable(
        classes="Albert",
        settings={"activation": "gelu_approximate"},
        config={"num_groups": 1, "num_inner_repetitions": 1, "embedding_dim": 128},
        encoder=encoder_names(block="group_{i}_inner_layer_{j}", projection="embedding_projection"),
        heads=POOLED_HEADS,
        head_activation="gelu_approximate",
    ),
}

TABLES = {
    "albert": Table(
        classes="Albert",
        prefix="albert.",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 30000),
            "num_heads": ("num_attention_heads", 64),
            "hidden_dim": ("hidden_size", 4096),
            "intermediate_dim": ("intermediate_size", 16384),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "activation": ("hidden_act", "gelu_new"),
            "embedding_dim": ("embedding_size", 128),
            "num_groups": ("num_hidden_groups", 1),
            "num_inner_repetitions": ("inner_group_num", 1),
        },
        encoder={  # AlbertModel
            "token_embedding": "embeddings.word_embeddings",
            "position_embedding": "embeddings.position_embeddings",
            "segment_embedding": "embeddings.token_type_embeddings",
            "embeddings_layer_norm": "embeddings.LayerNorm",
            "embeddings_projection": "encoder.embedding_hidden_mapping_in",
            "transformer_layer_{i}/attention/qkv": f"{_ALBERT_GROUP}.attention.[query|key|value]",
            "transformer_layer_{i}/attention/output": f"{_ALBERT_GROUP}.attention.dense",
            "transformer_layer_{i}/attention_layer_norm": f"{_ALBERT_GROUP}.attention.LayerNorm",
            "transformer_layer_{i}/intermediate": f"{_ALBERT_GROUP}.ffn",
            "transformer_layer_{i}/output": f"{_ALBERT_GROUP}.ffn_output",
            "transformer_layer_{i}/output_layer_norm": f"{_ALBERT_GROUP}.full_layer_layer_norm",
            "pooled_dense": "pooler",
        },
        heads={
            **HEADS,
            "text_classifier": {"logits": "classifier"},
            # Sentence order, only in AlbertForPreTraining.
            "next_sentence_predictor": {"logits": "sop_classifier.classifier"},
            "masked_lm": mlm_head("predictions.dense", "predictions.LayerNorm", "predictions"),
        },
        head_config={
            "text_classifier": _ALBERT_DROPOUT,
            "token_classifier": _ALBERT_DROPOUT,
            "next_sentence_predictor": _ALBERT_DROPOUT,
            "multiple_choice": _ALBERT_DROPOUT,
            "masked_lm": HEAD_CONFIG["masked_lm"],
        },
        decoder="predictions.decoder",
        poolers=(None, "text_classifier", "multiple_choice", "pretrainer"),
        without_class=("next_sentence_predictor",),
    ),
}

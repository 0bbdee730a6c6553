"""DistilBERT: Sanh et al. 2019, arXiv 1910.01108."""

from kerasbert.families.keras_hub_names import DENSE_HEADS, KerasHubTable, encoder_names
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import HEAD_CONFIG, HEADS, Table, mlm_head

_DISTILBERT_HEAD = {"head_dense": "pre_classifier", "logits": "classifier"}

FAMILIES = {
    "distilbert": Family(
        encoder={"num_segments": 0, "pooler": False},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "relu"},
            "question_answering": {"dropout": 0.1},
            "multiple_choice": {"pooling": "cls", "head_activation": "relu"},
        },
    ),
}

KERAS_HUB = {
    "distilbert": KerasHubTable(
        classes="DistilBert",
        settings={"activation": "gelu"},
        encoder=encoder_names("token_and_position_embedding/"),
        heads=DENSE_HEADS,
    ),
}

TABLES = {
    "distilbert": Table(
        classes="DistilBert",
        prefix="distilbert.",
        config={
            "vocabulary_size": ("vocab_size", 30522),
            "num_layers": ("n_layers", 6),
            "num_heads": ("n_heads", 12),
            "hidden_dim": ("dim", 768),
            "intermediate_dim": ("hidden_dim", 3072),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.1),
            "max_sequence_length": ("max_position_embeddings", 512),
            "activation": ("activation", "gelu"),
            "initializer_range": ("initializer_range", 0.02),
        },
        encoder={  # DistilBertModel
            "token_embedding": "embeddings.word_embeddings",
            "position_embedding": "embeddings.position_embeddings",
            "embeddings_layer_norm": "embeddings.LayerNorm",
            "transformer_layer_{i}/attention/qkv": (
                "transformer.layer.{i}.attention.[q_lin|k_lin|v_lin]"
            ),
            "transformer_layer_{i}/attention/output": "transformer.layer.{i}.attention.out_lin",
            "transformer_layer_{i}/attention_layer_norm": "transformer.layer.{i}.sa_layer_norm",
            "transformer_layer_{i}/intermediate": "transformer.layer.{i}.ffn.lin1",
            "transformer_layer_{i}/output": "transformer.layer.{i}.ffn.lin2",
            "transformer_layer_{i}/output_layer_norm": "transformer.layer.{i}.output_layer_norm",
        },
        heads={
            **HEADS,
            "text_classifier": _DISTILBERT_HEAD,
            "multiple_choice": _DISTILBERT_HEAD,
            "masked_lm": mlm_head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        },
        head_config={
            "text_classifier": {"dropout": ("seq_classif_dropout", 0.2)},
            "token_classifier": {"dropout": ("dropout", 0.1)},
            "question_answering": {"dropout": ("qa_dropout", 0.1)},
            "multiple_choice": {"dropout": ("seq_classif_dropout", 0.2)},
            "masked_lm": HEAD_CONFIG["masked_lm"],
        },
        aliases={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
}

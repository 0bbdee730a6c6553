"""RemBERT, with input embeddings narrower than the output embeddings: Chung et al. 2021.

Source: arXiv 2010.12821. The published checkpoint has no masked-LM head.
"""

import dataclasses

from kerasbert.families import bert
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import CONFIG, ENCODER

_DROPOUT = {"dropout": ("classifier_dropout_prob", 0.1)}


def _write_head(task):
    head = getattr(task, "mlm_head", None)
    return {} if head is None else {"output_embedding_size": head.dense.units}


FAMILIES = {
    "rembert": Family(
        encoder={"embedding_dim": 256, "activation": "gelu", "dropout": 0.0},
        heads={"masked_lm": {"tie_weights": False}},
        tokenizer="RemBertTokenizer",
    ),
}

TABLES = {
    "rembert": dataclasses.replace(
        bert.TABLES["bert"],
        classes="RemBert",
        prefix="rembert.",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 250300),
            "num_layers": ("num_hidden_layers", 32),
            "num_heads": ("num_attention_heads", 18),
            "hidden_dim": ("hidden_size", 1152),
            "intermediate_dim": ("intermediate_size", 4608),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "embedding_dim": ("input_embedding_size", 256),
        },
        # RemBertModel
        encoder={**ENCODER, "embeddings_projection": "encoder.embedding_hidden_mapping_in"},
        heads={
            **{
                kind: layers
                for kind, layers in bert.TABLES["bert"].heads.items()
                if kind != "next_sentence_predictor"
            },
            "masked_lm": {
                "mlm_head/dense": "cls.predictions.dense",
                "mlm_head/layer_norm": "cls.predictions.LayerNorm",
                "mlm_head": "cls.predictions.decoder",
            },
        },
        head_config={
            **dict.fromkeys(("text_classifier", "token_classifier", "multiple_choice"), _DROPOUT),
            "masked_lm": {
                "tie_weights": ("tie_word_embeddings", False),
                "head_dim": ("output_embedding_size", 1664),
            },
        },
        decoder="",
        poolers=(None, "text_classifier", "multiple_choice"),
        without_class=("pretrainer",),
        token_ids=("bos_token_id", "eos_token_id"),
        default_ids={"pad_token_id": 0, "bos_token_id": 312, "eos_token_id": 313},
        # The class never shares the embedding, whatever its configuration says.
        refused={"masked_lm": {"tie_word_embeddings": False}},
        write=lambda settings: {
            "input_embedding_size": settings["embedding_dim"] or settings["hidden_dim"]
        },
        write_head=_write_head,
    ),
}

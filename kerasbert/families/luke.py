"""LUKE without its entities: Yamada et al. 2020, arXiv 2010.01057.

Without entities, LUKE is RoBERTa with BERT's heads. mLUKE (Ri et al. 2022, arXiv 2110.08151) and
the Japanese LUKE have the same classes, with XLM-R's tokenizer. Entities are not read; written
files have one of zeros.
"""

import dataclasses

import numpy as np

from kerasbert.families import roberta
from kerasbert.families.settings import ERF_GELU, Family
from kerasbert.families.transformers_names import HEAD_CONFIG, HEADS

_ENTITIES = ("entity_embeddings.", "entity_predictions.")
_QUERIES = (".w2e_query.", ".e2w_query.", ".e2e_query.")


def _read(config, path):
    names = [name for name in config.get("architectures") or () if "ForEntity" in name]
    if names:
        raise ValueError(
            f"'{path}' is a {names[0]}, which classifies entities, but kerasbert reads only the "
            "words of LUKE; load the checkpoint that it was fine-tuned from."
        )
    return {}


def _fixed(settings):
    """Return the embeddings of an entity of zeros (LukeEntityEmbeddings)."""
    width = settings["hidden_dim"]
    rows = {
        "entity_embeddings": 1,
        "position_embeddings": settings["max_sequence_length"] + settings["position_offset"],
        "token_type_embeddings": settings["num_segments"],
    }
    found = {f"{name}.weight": np.zeros((count, width)) for name, count in rows.items()}
    found |= {"LayerNorm.weight": np.ones(width), "LayerNorm.bias": np.zeros(width)}
    return {f"entity_embeddings.{name}": x.astype("float32") for name, x in found.items()}


FAMILIES = {
    "luke": Family(
        encoder=roberta.FAMILIES["roberta"].encoder,
        heads={"masked_lm": ERF_GELU},
        tokenizer="RobertaTokenizer",
    ),
}

TABLES = {
    "luke": dataclasses.replace(
        roberta.TABLES["roberta"],
        classes="Luke",
        prefix="luke.",
        config={**roberta.TABLES["roberta"].config, "vocabulary_size": ("vocab_size", 50267)},
        heads={
            **HEADS,
            "text_classifier": {"logits": "classifier"},
            "masked_lm": roberta.TABLES["roberta"].heads["masked_lm"],
        },
        head_config=HEAD_CONFIG,
        poolers=(None, "text_classifier", "multiple_choice"),
        # LukeForMaskedLM also predicts entities.
        without_class=("pretrainer", "masked_lm"),
        unused=(*_ENTITIES, *_QUERIES),
        fixed=_fixed,
        read=_read,
        write=lambda settings: {
            "entity_vocab_size": 1,
            "entity_emb_size": settings["hidden_dim"],
            "use_entity_aware_attention": False,
        },
    ),
}

"""BigBird with full attention: Zaheer et al. 2020, arXiv 2007.14062.

Up to 704 tokens, with the default blocks, have full attention in transformers too, which in
training has the embeddings' dropout before their norm, not after it.

transformers' head for question answering has own layers, and is not supported.
"""

import dataclasses

import numpy as np

from kerasbert.base.errors import check_value
from kerasbert.families import bert
from kerasbert.families.settings import Family
from kerasbert.families.transformers_names import CONFIG, ENCODER, HEAD_CONFIG, refuse

_HEADS = bert.TABLES["bert"].heads


def _read(config, path):
    attention = config.get("attention_type", "block_sparse")
    random, size = config.get("num_random_blocks", 3), config.get("block_size", 64)
    check_value("num_random_blocks", random, "count", path)
    check_value("block_size", size, "count", path)
    if attention == "block_sparse":
        raise ValueError(
            f"'{path}' has attention_type='block_sparse', which kerasbert does not support; set it "
            "to 'original_full', which gives the same outputs for rows of up to "
            f"{(5 + 2 * random) * size} tokens, and full attention for longer ones."
        )
    if attention != "original_full":
        refuse(path, "attention_type", attention, "original_full")
    for key, fine in (("use_bias", True), ("rescale_embeddings", False)):
        if config.get(key, fine) != fine:
            refuse(path, key, config[key], fine)
    return {}


def _fixed(settings):
    """Return a pooler of zeros, for classes that have one without using it."""
    width = settings["hidden_dim"]
    shapes = {"pooler.weight": (width, width), "pooler.bias": (width,)}
    return {name: np.zeros(shape, "float32") for name, shape in shapes.items()}


FAMILIES = {
    "big_bird": Family(
        encoder={"activation": "gelu_approximate", "max_sequence_length": 4096},
        heads={
            "text_classifier": {
                "pooling": "cls",
                "head_activation": "gelu_approximate",
                "dropout_first": True,
            },
        },
        tokenizer="DebertaV3Tokenizer",
    ),
}

TABLES = {
    "big_bird": dataclasses.replace(
        bert.TABLES["bert"],
        classes="BigBird",
        config={
            **CONFIG,
            "vocabulary_size": ("vocab_size", 50358),
            "max_sequence_length": ("max_position_embeddings", 4096),
            "activation": ("hidden_act", "gelu_new"),
        },
        encoder={**ENCODER, "pooled_dense": "pooler"},  # BigBirdModel
        heads={
            **{kind: layers for kind, layers in _HEADS.items() if kind != "question_answering"},
            "text_classifier": {"head_dense": "classifier.dense", "logits": "classifier.out_proj"},
        },
        head_config={
            **HEAD_CONFIG,
            "text_classifier": {
                **HEAD_CONFIG["text_classifier"],
                "head_activation": ("hidden_act", "gelu_new"),
            },
        },
        poolers=(None, "multiple_choice", "pretrainer"),
        without_class=("next_sentence_predictor",),
        token_ids=("bos_token_id", "eos_token_id", "sep_token_id"),
        default_ids={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 66},
        model_type="big_bird",
        fixed=_fixed,
        read=_read,
        write=lambda settings: {"attention_type": "original_full"},
    ),
}

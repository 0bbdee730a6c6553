"""Names in KerasHub: `KerasHubTable` for each family, and the names that most families share.

"Their" classes and layers are those of KerasHub. Source: `keras-hub` 0.32.
"""

import dataclasses

_BLOCK = {
    "attention/qkv": "self_attention_layer/[query|key|value]",
    "attention/output": "self_attention_layer/attention_output",
    "attention_layer_norm": "self_attention_layer_norm",
    "intermediate": "feedforward_intermediate_dense",
    "output": "feedforward_output_dense",
    "output_layer_norm": "feedforward_layer_norm",
}


def encoder_names(
    tokens="", block="transformer_layer_{i}", projection="embeddings_projection", attention=""
):
    """Return a family's `KerasHubTable.encoder`.

    Args:
        tokens: prefix of the embeddings of tokens and positions.
        block: name of a layer.
        projection: name of the projection of embeddings.
        attention: name of the attention layer; "" for that of most families.
    """
    parts = {
        ours: its.replace("self_attention_layer/", attention or "self_attention_layer/")
        for ours, its in _BLOCK.items()
    }
    return {
        "token_embedding": f"{tokens}token_embedding",
        "position_embedding": f"{tokens}position_embedding",
        "segment_embedding": "segment_embedding",
        "embeddings_layer_norm": "embeddings_layer_norm",
        "embeddings_projection": projection,
        **{f"transformer_layer_{{i}}/{ours}": f"{block}/{its}" for ours, its in parts.items()},
        "pooled_dense": "pooled_dense",
    }


# The masked-LM head is the same in all families, even in ELECTRA, for which KerasHub has no class.
_MASKED_LM = {
    "masked_lm": (
        {
            "mlm_head/dense": "mlm_head/intermediate_dense",
            "mlm_head/layer_norm": "mlm_head/intermediate_layer_norm",
        },
        {"mlm_head/bias": "mlm_head/output_bias"},
    ),
}
# With a classifier on the pooled output, and with a classifier that has its own dense layer.
POOLED_HEADS = {**_MASKED_LM, "text_classifier": ({"logits": "logits"}, {})}
DENSE_HEADS = {
    **_MASKED_LM,
    "text_classifier": ({"head_dense": "pooled_dense", "logits": "logits"}, {}),
}


@dataclasses.dataclass(frozen=True)
class KerasHubTable:
    """A family's names in KerasHub.

    Args:
        classes: prefix of its class names.
        settings: dict. Our settings that are fixed in the code of its class, not in the preset.
        config: dict of further settings of its class to their defaults there.
        encoder: dict of our layer to theirs; see `kerasbert.checkpoints.name_map`.
        verbatim: dict of our weight to theirs; see `NameMap.verbatim`.
        heads: dict of kind of head to a tuple of two such dicts, of layers and of weights.
        head_activation: activation of the masked-LM head, which is fixed in its code.
    """

    classes: str
    settings: dict
    encoder: dict
    config: dict = dataclasses.field(default_factory=dict)
    verbatim: dict = None
    heads: dict = dataclasses.field(default_factory=lambda: _MASKED_LM)
    head_activation: str = "gelu"

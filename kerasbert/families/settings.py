"""Settings of encoders, and `Family`: the settings in which a family differs from BERT."""

from dataclasses import dataclass, field

from kerasbert.base.errors import check_choice

# Encoder settings and their types; see `kerasbert.base.errors.check_value`.
SETTINGS = {
    "vocabulary_size": "count",
    "num_layers": "count",
    "num_heads": "count",
    "hidden_dim": "count",
    "intermediate_dim": "count",
    "dropout": "share",
    "max_sequence_length": "count",
    "num_segments": "whole",
    "attention_dropout": "share",
    "activation": "name",
    # An epsilon of 0 gives NaN for a row of equal numbers.
    "layer_norm_epsilon": "epsilon",
    "pooler": "flag",
    "embedding_dim": "count?",
    "embeddings_norm": "flag",
    "num_groups": "whole?",
    "num_inner_repetitions": "count",
    "position_embedding": "name",
    "position_offset": "whole",
    "restarts_positions": "flag",
    "position_bias": "name?",
    "bucket_size": "count?",
    "max_relative_positions": "count?",
    "rotary_base": "base",
    "local_rotary_base": "base?",
    "rotary_factor": "factor",
    "rotary_value": "flag",
    "num_key_value_heads": "count?",
    "rms_norm": "flag",
    "shares_projections": "flag",
    "conv_kernel_size": "count?",
    "conv_activation": "name",
    "local_window": "count(s)?",
    "global_every": "count?",
    "global_tokens": "name?",
    "max_global_tokens": "count",
    "sep_token_id": "whole?",
    "norm_first": "flag",
    "first_attention_norm": "flag",
    "final_norm": "flag",
    "gated_mlp": "flag",
    "use_bias": "parts",
    "is_causal": "flag",
    "initializer_range": "spread",
    "finetuning_learning_rate": "rate?",
    "family": "name",
}

# Settings without a default.
NEEDED = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")

POSITION_EMBEDDINGS = ("learned", "rotary", "disentangled", "none")
POSITION_BIASES = ("buckets", "alibi")

# Which tokens have global attention: "by_task" leaves it to the head, "given" reads
# `global_attention_mask`, and the others are rules.
GLOBAL_TOKENS = ("by_task", "given", "none", "first", "before_separator", "after_separator")

# Parts with optional biases: the attention's projections, the two feed-forward projections, and the
# norms.
BIASED = ("attention", "intermediate", "output", "norm")


@dataclass(frozen=True)
class Family:
    """One model family.

    Args:
        encoder: dict. Settings of the encoder.
        heads: dict of kind of head to the settings in which the family's head differs from that
            kind's row in `kerasbert.kinds`.
        tokenizer: string. Class name of the tokenizer; "" if there is none.
        packing: string. Layout of the rows, a key of `PACKINGS`; `None` if no preprocessor makes
            rows for the family.
    """

    encoder: dict = field(default_factory=dict)
    heads: dict = field(default_factory=dict)
    tokenizer: str = "BertTokenizer"
    packing: str | None = "class_first"


# Row layouts that preprocessors produce and families expect.
PACKINGS = {
    "class_first": "`[CLS] A [SEP] B [SEP]`, padded on the right",
    "class_last": "`A <sep> B <sep> <cls>`, padded on the left, with segments of their own for "
    "<cls> and padding",
    "source_target": "a source and a target in separate rows",
    None: "consecutive parts of texts, without special tokens",
}

# Types of the settings that only the encoders of `kerasbert.lineage` have.
LINEAGE_SETTINGS = {
    "clamp_length": "count?",
    "memory_length": "whole",
    "cutoffs": "counts",
    "division": "count",
    "same_length": "flag",
    "shares_biases": "flag",
    "num_decoder_layers": "count",
    "num_decoder_heads": "count",
    "decoder_intermediate_dim": "count",
    "scale_embeddings": "flag",
    "cell": "name",
    "attention": "name",
    "bidirectional": "flag",
}
# BERT's pooler as part of the head, for families whose encoders have none.
POOLED = {"pooling": "cls", "head_activation": "tanh"}

# The head's activation is erf GELU, independent of the encoder's.
ERF_GELU = {"head_activation": "gelu"}

# BERT with rotary positions and a gated feed-forward.
ROTARY = {"pooler": False, "position_embedding": "rotary", "gated_mlp": True}

# Norms before attention and feed-forward, and after the last layer instead of the embeddings.
PRE_NORM = {"norm_first": True, "embeddings_norm": False}

# In causal encoders, only the last token attends to all others.
LAST_TOKEN = {"pooling": "last", "output_bias": False, "dropout": 0.0}


def has_bias(use_bias, part):
    """Return whether a part, one of `BIASED`, has biases.

    `use_bias` is True, False or a list of the parts with biases.

    >>> has_bias(["norm"], "norm"), has_bias(["norm"], "attention"), has_bias(True, "attention")
    (True, False, True)

    Raises:
        ValueError: if the list has an unknown part.
    """
    if not isinstance(use_bias, (list, tuple)):
        return use_bias
    for name in use_bias:
        check_choice("a part in use_bias", name, BIASED)
    return part in use_bias

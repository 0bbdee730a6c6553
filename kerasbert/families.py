"""Table of model families: settings of their encoders and of their published heads.

A row holds the arguments of `kerasbert.models.BertBackbone` in which the family's checkpoints
differ from BERT, and the settings of its published heads. Apart from this table, only the
name tables of `kerasbert.checkpoints` refer to families.

Sources: BERT arXiv 1810.04805, RoBERTa 1907.11692, XLM-R 1911.02116, DistilBERT 1910.01108,
ELECTRA 2003.10555, ALBERT 1909.11942, ModernBERT 2412.13663, DeBERTa-v3 2111.09543, NomicBERT
2402.01613, GTE 2407.19669; GPT Radford et al. 2018, "Improving Language Understanding by Generative
Pre-Training", GPT-2 Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from dataclasses import dataclass, field

from kerasbert.base.errors import check_choice
from kerasbert.kinds import KINDS

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
    # Not 0, which gives NaN for a row of equal numbers.
    "layer_norm_epsilon": "epsilon",
    "pooler": "flag",
    "embedding_dim": "count?",
    "embeddings_norm": "flag",
    "num_groups": "whole?",
    "num_inner_repetitions": "count",
    "position_embedding": "name",
    "position_offset": "whole",
    "bucket_size": "count?",
    "max_relative_positions": "count?",
    "rotary_base": "base",
    "local_rotary_base": "base?",
    "rotary_factor": "factor",
    "local_window": "count?",
    "global_every": "count",
    "norm_first": "flag",
    "gated_mlp": "flag",
    "use_bias": "parts",
    "is_causal": "flag",
    "initializer_range": "spread",
    "finetuning_learning_rate": "rate?",
    "family": "name",
}
# Settings without a default.
NEEDED = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
POSITION_EMBEDDINGS = ("learned", "rotary", "disentangled")
# Parts with optional biases: the attention projections, the two feed-forward projections, norms.
BIASED = ("attention", "intermediate", "output", "norm")


@dataclass(frozen=True)
class Family:
    """One model family.

    Args:
        encoder: dict. Settings of the encoder.
        heads: dict of kinds of heads to the settings that differ from the kind's row in
            `kerasbert.kinds`.
        tokenizer: string. Class name of the tokenizer.
        packing: string. Layout of its rows, a key of `PACKINGS`; `None` if no preprocessor makes
            them.
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

_MODERNBERT_HEAD = {
    "head_activation": "gelu",
    "head_bias": False,
    "head_norm": True,
    "dropout": 0.0,
}
_CONTEXT_POOLER = {"pooling": "cls", "head_activation": "gelu"}
# BERT's pooler as part of the head, for families whose encoders have none.
_POOLED = {"pooling": "cls", "head_activation": "tanh"}
# The head's activation is erf GELU, independent of the encoder's.
_ERF_GELU = {"head_activation": "gelu"}
# Only the last token attends to all others.
_LAST_TOKEN = {"pooling": "last", "output_bias": False, "dropout": 0.0}
_GPT = {
    "num_segments": 0,
    "layer_norm_epsilon": 1e-5,
    "pooler": False,
    "embeddings_norm": False,
    "is_causal": True,
}
_MODERNBERT = {
    "num_segments": 0,
    "dropout": 0.0,
    "max_sequence_length": 8192,
    "layer_norm_epsilon": 1e-5,
    "position_embedding": "rotary",
    "rotary_base": 160000.0,
    "local_rotary_base": 10000.0,
    "local_window": 128,
    "global_every": 3,
    "norm_first": True,
    "gated_mlp": True,
    "use_bias": False,
    "pooler": False,
}
# BERT with rotary positions and a gated feed-forward.
_ROTARY = {"pooler": False, "position_embedding": "rotary", "gated_mlp": True}
# Families of `kerasbert.lineage`, whose encoders are classes of their own.
LINEAGE = {
    "xlnet": Family(
        heads={
            "text_classifier": {"pooling": "last", "head_activation": "tanh", "dropout": 0.1},
        },
        tokenizer="XLNetTokenizer",
        packing="class_last",
    ),
    "transformer_xl": Family(tokenizer="", packing=None),
    "marian": Family(tokenizer="MarianTokenizer", packing="source_target"),
}
# Types of the settings that only these encoders have.
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
}
FAMILIES = {
    "bert": Family(),
    "roberta": Family(
        # Positions count from padding_idx + 1 = 2; there is one segment.
        encoder={"position_offset": 2, "num_segments": 1, "layer_norm_epsilon": 1e-5},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "tanh", "dropout_first": True},
            "masked_lm": _ERF_GELU,
        },
        tokenizer="RobertaTokenizer",
    ),
    "xlm_roberta": Family(
        encoder={"position_offset": 2, "num_segments": 1, "layer_norm_epsilon": 1e-5},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "tanh", "dropout_first": True},
            "masked_lm": _ERF_GELU,
        },
        tokenizer="XLMRobertaTokenizer",
    ),
    "distilbert": Family(
        encoder={"num_segments": 0, "pooler": False},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "relu"},
            "question_answering": {"dropout": 0.1},
            "multiple_choice": {"pooling": "cls", "head_activation": "relu"},
        },
    ),
    "electra": Family(
        encoder={"pooler": False},
        heads={
            "text_classifier": {"pooling": "cls", "head_activation": "gelu", "dropout_first": True},
            "multiple_choice": {"pooling": "cls", "head_activation": "gelu"},
            "masked_lm": _ERF_GELU,
        },
    ),
    "albert": Family(
        encoder={"num_groups": 1, "embedding_dim": 128},
        heads={
            "next_sentence_predictor": {"dropout": 0.1, "sentence_order": True},
        },
        tokenizer="AlbertTokenizer",
    ),
    "deberta_v3": Family(
        encoder={
            "num_segments": 0,
            "layer_norm_epsilon": 1e-7,
            "pooler": False,
            "position_embedding": "disentangled",
        },
        heads={"text_classifier": _CONTEXT_POOLER, "multiple_choice": _CONTEXT_POOLER},
        tokenizer="DebertaV3Tokenizer",
    ),
    "modernbert": Family(
        encoder=_MODERNBERT,
        heads={
            "text_classifier": {"pooling": "cls", **_MODERNBERT_HEAD},
            "token_classifier": _MODERNBERT_HEAD,
            "question_answering": _MODERNBERT_HEAD,
            "multiple_choice": {"pooling": "cls", **_MODERNBERT_HEAD},
            "masked_lm": {"head_activation": "gelu", "head_bias": False},
        },
        tokenizer="ModernBertTokenizer",
    ),
    # Local attention covers 63 earlier tokens, in the encoder 64 on each side.
    "modernbert_decoder": Family(
        encoder={**_MODERNBERT, "local_window": 126, "is_causal": True},
        heads={
            "causal_lm": {"head_activation": "gelu", "head_bias": False, "output_bias": True},
            "text_classifier": {"pooling": "last", "output_bias": False, **_MODERNBERT_HEAD},
        },
        tokenizer="ModernBertTokenizer",
    ),
    "nomic_bert": Family(
        encoder={
            **_ROTARY,
            "dropout": 0.0,
            "max_sequence_length": 2048,
            "activation": "silu",
            "rotary_base": 1000.0,
            "use_bias": ["norm"],
        },
        heads={"text_classifier": _POOLED, "multiple_choice": _POOLED},
    ),
    "gte": Family(
        encoder={
            **_ROTARY,
            "num_segments": 1,
            "attention_dropout": 0.0,
            "max_sequence_length": 8192,
            "activation": "gelu",
            "rotary_base": 160000.0,
            "use_bias": ["attention", "output", "norm"],
        },
        heads={"text_classifier": _POOLED, "multiple_choice": _POOLED, "masked_lm": _ERF_GELU},
        tokenizer="XLMRobertaTokenizer",
    ),
    "gpt2": Family(
        encoder={**_GPT, "max_sequence_length": 1024, "norm_first": True},
        heads={"text_classifier": _LAST_TOKEN},
        tokenizer="GPT2Tokenizer",
    ),
    "gpt": Family(
        encoder=_GPT,
        heads={"text_classifier": _LAST_TOKEN},
        tokenizer="GPTTokenizer",
    ),
}


def get_family(name, families=None):
    """Return the row of a family, by default one of `FAMILIES` or `LINEAGE`.

    >>> get_family("roberta").encoder["position_offset"]
    2

    Raises:
        ValueError: if there is no such family.
    """
    families = FAMILIES | LINEAGE if families is None else families
    if name not in families:
        raise ValueError(f"Unknown family '{name}'; the families are {', '.join(families)}.")
    return families[name]


def has_bias(use_bias, part):
    """Return whether a part of `BIASED` has biases; `use_bias` is True, False or a list of parts.

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


def head_settings(family, kind):
    """Return the settings of a kind of head in a family: the kind's, overridden by the family's.

    A `kind` of `None`, a custom task, has no settings.

    >>> head_settings("roberta", "text_classifier")["pooling"]
    'cls'

    Raises:
        ValueError: if there is no such family.
    """
    if kind is None:
        return {}
    row = KINDS[KINDS[kind].tables]
    settings = dict(row.settings)
    for part in row.parts:
        settings |= head_settings(family, part)
    return settings | get_family(family).heads.get(row.name, {})

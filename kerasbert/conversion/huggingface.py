"""Hugging Face checkpoints: configurations, name tables and tensor files of the seven families.

Facts follow `transformers` 5.23; its classes are named beside the tables.
"""

import functools
import os
import reprlib

from kerasbert import tokenizers
from kerasbert._errors import check_fields, check_value
from kerasbert.conversion.checkpoint import Checkpoint, TensorFiles
from kerasbert.conversion.name_map import NameMap
from kerasbert.families import SETTINGS, get_family
from kerasbert.files import read_json

# transformers' name of an activation: ours. "gelu" is the erf form here, the tanh form in Google's.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_approximate",
    "gelu_fast": "gelu_approximate",
    "gelu_pytorch_tanh": "gelu_approximate",
    "gelu_accurate": "gelu_approximate",
    "gelu_python_tanh": "gelu_approximate",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
    "linear": "linear",
}

# Our argument: (their key, transformers' default).
_BERT_CONFIG = {
    "vocabulary_size": ("vocab_size", 30522),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "hidden_dim": ("hidden_size", 768),
    "intermediate_dim": ("intermediate_size", 3072),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "max_sequence_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "activation": ("hidden_act", "gelu"),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
}
CONFIGS = {
    "bert": _BERT_CONFIG,
    "roberta": {**_BERT_CONFIG, "vocabulary_size": ("vocab_size", 50265)},
    "xlm_roberta": _BERT_CONFIG,
    "distilbert": {
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
    "electra": {
        **_BERT_CONFIG,
        "num_heads": ("num_attention_heads", 4),
        "hidden_dim": ("hidden_size", 256),
        "intermediate_dim": ("intermediate_size", 1024),
        "embedding_dim": ("embedding_size", 128),
    },
    "albert": {
        **_BERT_CONFIG,
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
    "modernbert": {
        "vocabulary_size": ("vocab_size", 50368),
        "num_layers": ("num_hidden_layers", 22),
        "num_heads": ("num_attention_heads", 12),
        "hidden_dim": ("hidden_size", 768),
        "intermediate_dim": ("intermediate_size", 1152),
        "dropout": ("mlp_dropout", 0.0),
        "attention_dropout": ("attention_dropout", 0.0),
        "max_sequence_length": ("max_position_embeddings", 8192),
        "activation": ("hidden_activation", "gelu"),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "initializer_range": ("initializer_range", 0.02),
        "local_window": ("local_attention", 128),
        "use_bias": ("norm_bias", False),
    },
}
# Another name of a field, which wins where both are there.
ALIASES = {
    "distilbert": {
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
}
# Fields of heads, and of all families, and what each can be; see `check_value`.
_FIELDS = {
    "classifier_dropout": "share?",
    "classifier_dropout_prob": "share?",
    "qa_dropout": "share?",
    "seq_classif_dropout": "share?",
    "summary_last_dropout": "share?",
    "summary_type": "name",
    "summary_use_proj": "flag",
    "summary_activation": "name?",
    "norm_bias": "flag",
    "attention_bias": "flag",
    "mlp_bias": "flag",
    "decoder_bias": "flag",
    "classifier_bias": "flag",
    "classifier_pooling": "name",
    "classifier_activation": "name",
    "global_attn_every_n_layers": "count",
    "layer_types": "names?",
    "rope_parameters": "object?",
    "rope_scaling": "object?",
    "global_rope_theta": "positive?",
    "local_rope_theta": "positive?",
    "tie_word_embeddings": "flag",
    "num_labels": "count",
    "id2label": "object?",
    "problem_type": "name?",
    "pad_token_id": "whole?",
    "architectures": "names?",
}
# Ids of special tokens, which some configurations say beside the tokenizer.
TOKEN_IDS = tuple(f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep", "mask"))
# Their learned positions begin at a row above 0.
OFFSET_FAMILIES = ("roberta", "xlm_roberta")
# Where a head's dropout stands, if not under "classifier_dropout"; without it, the encoder's.
DROPOUTS = {
    ("distilbert", "text_classifier"): ("seq_classif_dropout", 0.2),
    ("distilbert", "token_classifier"): ("dropout", 0.1),
    ("distilbert", "question_answering"): ("qa_dropout", 0.1),
    ("distilbert", "multiple_choice"): ("seq_classif_dropout", 0.2),
    ("roberta", "multiple_choice"): ("hidden_dropout_prob", 0.1),
    ("xlm_roberta", "multiple_choice"): ("hidden_dropout_prob", 0.1),
    ("electra", "multiple_choice"): ("summary_last_dropout", 0.1),
    **{
        ("albert", kind): ("classifier_dropout_prob", 0.1)
        for kind in ("text_classifier", "token_classifier", "next_sentence", "multiple_choice")
    },
    **{
        ("modernbert", kind): ("classifier_dropout", 0.0)
        for kind in ("text_classifier", "token_classifier", "question_answering", "multiple_choice")
    },
}
# Where a head's activation stands, if not under "classifier_activation".
ACTIVATION_KEYS = {("electra", "multiple_choice"): "summary_activation"}
# Settings that change the numbers and that no released encoder of these families uses.
_REFUSED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute", None),
    "per_layer_config": (None, {}),
}
# The same of one head.
_REFUSED_OF_HEADS = {
    ("electra", "multiple_choice"): {
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_proj_to_labels": False,
    },
}

_BERT = {  # BertModel
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "embeddings_layer_norm": "embeddings.LayerNorm",
    "embeddings_projection": "embeddings_project",
    "transformer_layer_{i}/attention/qkv": "encoder.layer.{i}.attention.self.[query|key|value]",
    "transformer_layer_{i}/attention/output": "encoder.layer.{i}.attention.output.dense",
    "transformer_layer_{i}/attention_layer_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "transformer_layer_{i}/intermediate": "encoder.layer.{i}.intermediate.dense",
    "transformer_layer_{i}/output": "encoder.layer.{i}.output.dense",
    "transformer_layer_{i}/output_layer_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooled_dense": "pooler.dense",
}
_GROUP = "encoder.albert_layer_groups.{i}.albert_layers.{j}"
ENCODERS = {
    "bert": _BERT,
    "roberta": _BERT,  # RobertaModel
    "xlm_roberta": _BERT,  # XLMRobertaModel
    "electra": _BERT,  # ElectraModel
    "distilbert": {  # DistilBertModel
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
    "albert": {  # AlbertModel
        "token_embedding": "embeddings.word_embeddings",
        "position_embedding": "embeddings.position_embeddings",
        "segment_embedding": "embeddings.token_type_embeddings",
        "embeddings_layer_norm": "embeddings.LayerNorm",
        "embeddings_projection": "encoder.embedding_hidden_mapping_in",
        "transformer_layer_{i}/attention/qkv": f"{_GROUP}.attention.[query|key|value]",
        "transformer_layer_{i}/attention/output": f"{_GROUP}.attention.dense",
        "transformer_layer_{i}/attention_layer_norm": f"{_GROUP}.attention.LayerNorm",
        "transformer_layer_{i}/intermediate": f"{_GROUP}.ffn",
        "transformer_layer_{i}/output": f"{_GROUP}.ffn_output",
        "transformer_layer_{i}/output_layer_norm": f"{_GROUP}.full_layer_layer_norm",
        "pooled_dense": "pooler",
    },
    "modernbert": {  # ModernBertModel
        "token_embedding": "embeddings.tok_embeddings",
        "embeddings_layer_norm": "embeddings.norm",
        "transformer_layer_{i}/attention/qkv": "layers.{i}.attn.Wqkv",
        "transformer_layer_{i}/attention/output": "layers.{i}.attn.Wo",
        "transformer_layer_{i}/attention_layer_norm": "layers.{i}.attn_norm",
        "transformer_layer_{i}/intermediate": "layers.{i}.mlp.Wi",
        "transformer_layer_{i}/output": "layers.{i}.mlp.Wo",
        "transformer_layer_{i}/output_layer_norm": "layers.{i}.mlp_norm",
        "final_layer_norm": "final_norm",
    },
}
# ...ForSequenceClassification
_CLASSIFICATION_HEAD = {"head_dense": "classifier.dense", "logits": "classifier.out_proj"}
TEXT_CLASSIFIERS = {
    "bert": {"logits": "classifier"},
    "roberta": _CLASSIFICATION_HEAD,
    "xlm_roberta": _CLASSIFICATION_HEAD,
    "distilbert": {"head_dense": "pre_classifier", "logits": "classifier"},
    "electra": _CLASSIFICATION_HEAD,
    "albert": {"logits": "classifier"},
    "modernbert": {"head_dense": "head.dense", "head_norm": "head.norm", "logits": "classifier"},
}
# BertForNextSentencePrediction, and sentence order in AlbertForPreTraining
NEXT_SENTENCE_PREDICTORS = {
    "bert": {"logits": "cls.seq_relationship"},
    "albert": {"logits": "sop_classifier.classifier"},
}
_EVERY = ("bert", "roberta", "xlm_roberta", "distilbert", "electra", "albert")
_MODERNBERT_HEAD = TEXT_CLASSIFIERS["modernbert"]
# ...ForTokenClassification
TOKEN_CLASSIFIERS = {
    **{family: {"logits": "classifier"} for family in _EVERY},
    "modernbert": _MODERNBERT_HEAD,
}
# ...ForQuestionAnswering
QUESTION_ANSWERERS = {
    **{family: {"logits": "qa_outputs"} for family in _EVERY},
    "modernbert": _MODERNBERT_HEAD,
}
# ...ForMultipleChoice
MULTIPLE_CHOICES = {
    **{family: {"logits": "classifier"} for family in _EVERY},
    "distilbert": TEXT_CLASSIFIERS["distilbert"],
    "electra": {"head_dense": "sequence_summary.summary", "logits": "classifier"},
    "modernbert": _MODERNBERT_HEAD,
}


def _mlm_head(dense, norm, output):
    return {"mlm_head/dense": dense, "mlm_head/layer_norm": norm, "mlm_head": output}


_LM_HEAD = _mlm_head("lm_head.dense", "lm_head.layer_norm", "lm_head")
# ...ForMaskedLM
MASKED_LMS = {
    "bert": _mlm_head(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"
    ),
    "roberta": _LM_HEAD,
    "xlm_roberta": _LM_HEAD,
    "distilbert": _mlm_head("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    "electra": _mlm_head(
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"
    ),
    "albert": _mlm_head("predictions.dense", "predictions.LayerNorm", "predictions"),
    "modernbert": _mlm_head("head.dense", "head.norm", "decoder"),
}
# Their layer that holds the token embedding and the output bias once more, in older files.
DECODERS = {
    "bert": "cls.predictions.decoder",
    "roberta": "lm_head.decoder",
    "xlm_roberta": "lm_head.decoder",
    "albert": "predictions.decoder",
}


def masked_lm_names(family, tied=True):
    """The table of `...ForMaskedLM`, whose decoder is the token embedding or has its own weights.

    >>> masked_lm_names("electra", tied=False)["mlm_head/decoder"]
    'generator_lm_head'
    """
    names = MASKED_LMS[family]
    if tied:
        return names
    decoder = DECODERS.get(family, names["mlm_head"])
    return {**names, "mlm_head": decoder, "mlm_head/decoder": decoder}


# ...ForPreTraining
PRETRAINERS = {
    family: {**table, **NEXT_SENTENCE_PREDICTORS.get(family, {})}
    for family, table in MASKED_LMS.items()
}
HEADS = {
    "text_classifier": TEXT_CLASSIFIERS,
    "next_sentence": NEXT_SENTENCE_PREDICTORS,
    "token_classifier": TOKEN_CLASSIFIERS,
    "question_answering": QUESTION_ANSWERERS,
    "multiple_choice": MULTIPLE_CHOICES,
    "masked_lm": MASKED_LMS,
    "pretrainer": PRETRAINERS,
}
# First parts of the names of heads: what may stay unread when another class is loaded.
_HEADS = (
    "cls.",
    "classifier.",
    "lm_head.",
    "qa_outputs.",
    "pre_classifier.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "generator_predictions.",
    "generator_lm_head.",
    "discriminator_predictions.",
    "predictions.",
    "sop_classifier.",
    "sequence_summary.",
    "head.",
    "decoder.",
    "pooler.",
)
# Buffers, no weights.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb.")


def is_mine(directory):
    """Whether `config.json` there is one of transformers'."""
    path = os.path.join(directory, "config.json")
    return os.path.exists(path) and not {"model_type", "hidden_size"}.isdisjoint(read_json(path))


def read_checkpoint(directory):
    """Describe a Hugging Face directory.

    Returns:
        A `Checkpoint`.

    Raises:
        ValueError: for a model type that is none of the seven, or a setting that we do not have.
    """
    path = os.path.join(directory, "config.json")
    config = read_config(path)
    # The first ones named no type: all were BERT.
    family = str(config.get("model_type", "bert")).replace("-", "_")
    if family not in ENCODERS:
        known = ", ".join(name.replace("xlm_", "xlm-") for name in ENCODERS)
        raise ValueError(
            f"'{path}' has model_type '{config['model_type']}', which is not of the BERT family; "
            f"kerasbert reads {known}."
        )
    for key, fine in _REFUSED.items():
        if key == "position_embedding_type" and family == "modernbert":
            continue  # Its positions are rotary, by whatever name.
        if config.get(key, fine[0]) not in fine:
            raise ValueError(
                f"'{path}' has {key}={config[key]!r}, which kerasbert does not have; "
                f"only {key}={fine[0]!r} can be loaded."
            )
    kinds = {key: SETTINGS[ours] for ours, (key, _) in CONFIGS[family].items()}
    check_fields(config, _FIELDS | kinds, path)
    tied = config.get("tie_word_embeddings", True)
    tables = {kind: names[family] for kind, names in HEADS.items() if family in names}
    masked_lm = masked_lm_names(family, tied)
    tables |= {kind: tables[kind] | masked_lm for kind in ("masked_lm", "pretrainer")}
    encoder = _encoder_settings(family, config, path)
    return Checkpoint(
        source=directory,
        family=family,
        encoder=encoder,
        tensors=_Tensors(directory, family, tied),
        encoder_map=NameMap(
            ENCODERS[family], "torch", inner=encoder.get("num_inner_repetitions", 1)
        ),
        head_maps={kind: NameMap(names, "torch") for kind, names in tables.items()},
        head=_head_settings(family, config, path),
        classes=functools.partial(_classes, config, path),
        tied=_tied(family) if tied else {},
        is_head=_is_head,
        tokenizer=lambda **settings: tokenizers.tokenizer_from_files(directory, family, **settings),
        refused={
            kind: f"'{path}' has {key}={config[key]!r}, which kerasbert does not have; only {key}="
            f"{fine!r} can be loaded for the head '{kind}'. Pass new_head=True for a new one."
            for (its_family, kind), settings in _REFUSED_OF_HEADS.items()
            for key, fine in settings.items()
            if its_family == family and config.get(key, fine) != fine
        },
        token_ids={key: config[key] for key in TOKEN_IDS if key in config},
    )


def read_config(path):
    """A `config.json` of transformers, with one name for each field."""
    config = read_json(path)
    aliases = ALIASES.get(str(config.get("model_type")), {})
    return {**config, **{ours: config[key] for key, ours in aliases.items() if key in config}}


def _encoder_settings(family, config, path):
    settings = {ours: config.get(key, default) for ours, (key, default) in CONFIGS[family].items()}
    settings["activation"] = _activation(settings["activation"], path)
    if family in OFFSET_FAMILIES:
        # Their positions count from padding_idx + 1, and the table's rows include those before.
        padding = config.get("pad_token_id")
        offset = 2 if padding is None else padding + 1
        if offset >= settings["max_sequence_length"]:
            raise ValueError(
                f"'{path}' has pad_token_id={padding}, and positions count from the next row, but "
                f"max_position_embeddings={settings['max_sequence_length']}; the two do not "
                "belong together."
            )
        settings["position_offset"] = offset
        settings["max_sequence_length"] -= offset
    layers, groups = settings["num_layers"], settings.get("num_groups")
    some = range(min(layers, 1000))  # More is refused where they are counted.
    if groups and any(int(i / (layers / groups)) != i * groups // layers for i in some):
        raise ValueError(
            f"'{path}' has num_hidden_layers={layers} in num_hidden_groups={groups}, of which "
            "transformers rounds a quotient down one group too low; kerasbert does not."
        )
    if family == "electra" and settings["embedding_dim"] == settings["hidden_dim"]:
        settings["embedding_dim"] = None
    if family == "modernbert":
        settings.update(_modernbert_settings(config, path))
    return settings


def _modernbert_settings(config, path):
    biases = [config.get(key, False) for key in ("norm_bias", "attention_bias", "mlp_bias")]
    if len(set(biases)) > 1:
        raise ValueError(
            f"'{path}' has norm_bias, attention_bias, mlp_bias = {biases}; kerasbert has biases "
            "in all three or in none."
        )
    width, heads = config.get("hidden_size", 768), config.get("num_attention_heads", 12)
    if config.get("head_dim") not in (None, width / heads):
        raise ValueError(
            f"'{path}' has head_dim={config['head_dim']!r} beside hidden_size={width} and "
            f"num_attention_heads={heads}; kerasbert turns heads of their whole width only."
        )
    layers = config.get("num_hidden_layers", 22)
    every = config.get("global_attn_every_n_layers", 3)
    types = config.get("layer_types")
    if types is not None:
        full = [i for i, kind in enumerate(types) if kind == "full_attention"]
        every = full[1] - full[0] if len(full) > 1 else layers
        if full != list(range(0, layers, every)):
            raise ValueError(
                f"'{path}' has global attention in layers {full}; kerasbert has it in every n-th "
                "layer from the first."
            )
    ropes = config.get("rope_parameters") or {}
    bases = {}
    for ours, kind, old, default in (
        ("rotary_base", "full_attention", "global_rope_theta", 160000.0),
        ("local_rotary_base", "sliding_attention", "local_rope_theta", 10000.0),
    ):
        rope = ropes.get(kind) or {}
        check_value(f"rope_parameters[{kind!r}]", rope, "object", path)
        check_fields(rope, {"rope_theta": "positive?"}, path)
        if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
            raise ValueError(
                f"'{path}' scales its rotary positions ({rope or config['rope_scaling']}); "
                "kerasbert has the default form only."
            )
        base = rope.get("rope_theta", config.get(old))
        bases[ours] = float(default if base is None else base)
    return {**bases, "global_every": every}


def _activation(name, path):
    if name not in ACTIVATIONS:
        raise ValueError(
            f"'{path}' has the activation '{name}'; kerasbert reads {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def _head_settings(family, config, path):
    """Arguments of each head's class that do not depend on the classes."""

    def dropout(kind):
        key, default = DROPOUTS.get((family, kind), ("classifier_dropout", None))
        value = config.get(key, default)
        if value is None:
            key, default = CONFIGS[family]["dropout"]
            value = config.get(key, default)
        return {"dropout": value}

    shared = {}
    if family == "modernbert":
        shared["head_activation"] = _activation(config.get("classifier_activation", "gelu"), path)
        shared["head_bias"] = config.get("classifier_bias", False)
    pooled = dict(shared)
    if family == "modernbert":
        pooled["pooling"] = config.get("classifier_pooling", "cls")
    masked_lm = {**shared, "tie_weights": config.get("tie_word_embeddings", True)}
    heads = {
        "text_classifier": {**pooled, **dropout("text_classifier")},
        "token_classifier": {**shared, **dropout("token_classifier")},
        "question_answering": shared,
        "multiple_choice": {**pooled, **dropout("multiple_choice")},
        "masked_lm": masked_lm,
    }
    for (its_family, kind), key in ACTIVATION_KEYS.items():
        if its_family == family:
            # Without one there is still the dense layer.
            name = config.get(key, get_family(family).multiple_choice["head_activation"])
            heads[kind]["head_activation"] = _activation(name or "linear", path)
    if family == "modernbert":
        heads["masked_lm"]["output_bias"] = config.get("decoder_bias", True)
    if (family, "question_answering") in DROPOUTS:
        heads["question_answering"] = {**shared, **dropout("question_answering")}
    if family == "albert":
        heads["next_sentence"] = dropout("next_sentence")
    heads["pretrainer"] = {**heads["masked_lm"], **heads.get("next_sentence", {})}
    return heads


def _classes(config, path):
    """Arguments of `BertTextClassifier` that say what its classes are."""
    problem = config.get("problem_type")
    if problem == "regression":
        raise ValueError(
            f"'{path}' has problem_type 'regression': its head gives a number, no classes; load "
            "it with BertTextRegressor, or pass num_classes or labels for a new head."
        )
    names = config.get("id2label")
    if names:
        if any(not str(key).isdecimal() for key in names):
            raise ValueError(
                f"'{path}' has id2label={reprlib.repr(names)}, whose keys have to be the numbers "
                "of the classes; mend it, or pass num_classes or labels for a new head."
            )
        classes = {"labels": [names[key] for key in sorted(names, key=int)]}
    else:
        classes = {"num_classes": config.get("num_labels", 2)}
    return {**classes, "multi_label": problem == "multi_label_classification"}


def _tied(family):
    """Tensors that repeat another one: a dict of name to name."""
    output = MASKED_LMS[family]["mlm_head"]
    decoder = DECODERS.get(family, output)
    tied = {f"{decoder}.weight": ENCODERS[family]["token_embedding"] + ".weight"}
    return tied if decoder == output else {**tied, f"{decoder}.bias": f"{output}.bias"}


def _is_head(name):
    return name.startswith(_HEADS)


class _Tensors(TensorFiles):
    """Weights by their names without the model's prefix ("bert.", "roberta.", "model.", ...)."""

    def __init__(self, directory, family, tied):
        super().__init__(directory)
        self.anchor = ENCODERS[family]["token_embedding"] + ".weight"
        # Where the decoder has weights of its own, its bias is the one that counts.
        self.unused = None
        if not tied and family in DECODERS:
            self.unused = MASKED_LMS[family]["mlm_head"] + ".bias", DECODERS[family] + ".bias"

    def rename(self, names):
        found = [name for name in names if name == self.anchor or name.endswith("." + self.anchor)]
        if len(found) != 1:
            raise ValueError(
                f"'{self.directory}' has {len(found)} tensors named '...{self.anchor}' where an "
                "encoder has one; it holds no encoder of the family its config.json names."
            )
        prefix = found[0].removesuffix(self.anchor)
        renamed = {}
        for name in names:
            if any(part in name for part in _BUFFERS):
                continue
            # Old checkpoints call a norm's weights gamma and beta.
            ours = name.removeprefix(prefix)
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                if ours.endswith(old):
                    ours = ours.removesuffix(old) + new
            renamed[ours] = name
        if self.unused is not None and self.unused[0] in renamed:
            # Files that store both as one have it under the first name alone.
            unused = renamed.pop(self.unused[0])
            renamed.setdefault(self.unused[1], unused)
        return renamed

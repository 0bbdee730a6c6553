"""Hugging Face checkpoints: configurations, name tables and tensor files of the seven families.

Facts follow `transformers` 5.23; its classes are named beside the tables.
"""

import functools
import os

from kerasbert import tokenizers
from kerasbert.conversion.checkpoint import Checkpoint, TensorFiles, read_json
from kerasbert.conversion.name_map import NameMap

# transformers' name of an activation: ours. "gelu" is the erf form here, the tanh form in Google's.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_approximate",
    "gelu_fast": "gelu_approximate",
    "gelu_pytorch_tanh": "gelu_approximate",
    "gelu_accurate": "gelu_approximate",
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
# Settings that change the numbers and that no released encoder of these families uses.
_REFUSED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute", None),
    "inner_group_num": (1,),
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
_GROUP = "encoder.albert_layer_groups.{i}.albert_layers.0"
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
_DECODERS = {
    "bert": "cls.predictions.decoder",
    "roberta": "lm_head.decoder",
    "xlm_roberta": "lm_head.decoder",
    "albert": "predictions.decoder",
}
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
    config = read_json(path)
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
    return Checkpoint(
        source=directory,
        family=family,
        encoder=_encoder_settings(family, config, path),
        tensors=_Tensors(directory, ENCODERS[family]["token_embedding"] + ".weight"),
        encoder_map=NameMap(ENCODERS[family], "torch"),
        head_maps={
            kind: NameMap(tables[family], "torch")
            for kind, tables in HEADS.items()
            if family in tables
        },
        head=_head_settings(family, config, path),
        classes=functools.partial(_classes, config, path),
        tied=_tied(family),
        is_head=_is_head,
        tokenizer=lambda **settings: tokenizers.tokenizer_from_files(directory, family, **settings),
    )


def _encoder_settings(family, config, path):
    settings = {ours: config.get(key, default) for ours, (key, default) in CONFIGS[family].items()}
    settings["activation"] = _activation(settings["activation"], path)
    if family in OFFSET_FAMILIES:
        # Their positions count from padding_idx + 1, and the table's rows include those before.
        padding = config.get("pad_token_id")
        offset = 2 if padding is None else padding + 1
        settings["position_offset"] = offset
        settings["max_sequence_length"] -= offset
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
    heads = {
        "text_classifier": {**pooled, **dropout("text_classifier")},
        "token_classifier": {**shared, **dropout("token_classifier")},
        "question_answering": shared,
        "multiple_choice": {**pooled, **dropout("multiple_choice")},
        "masked_lm": dict(shared),
    }
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
        classes = {"labels": [names[key] for key in sorted(names, key=int)]}
    else:
        classes = {"num_classes": config.get("num_labels", 2)}
    return {**classes, "multi_label": problem == "multi_label_classification"}


def _tied(family):
    """Tensors that repeat another one: a dict of name to name."""
    output = MASKED_LMS[family]["mlm_head"]
    decoder = _DECODERS.get(family, output)
    tied = {f"{decoder}.weight": ENCODERS[family]["token_embedding"] + ".weight"}
    return tied if decoder == output else {**tied, f"{decoder}.bias": f"{output}.bias"}


def _is_head(name):
    return name.startswith(_HEADS)


class _Tensors(TensorFiles):
    """Weights by their names without the model's prefix ("bert.", "roberta.", "model.", ...)."""

    def __init__(self, directory, anchor):
        super().__init__(directory)
        self.anchor = anchor

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
        return renamed

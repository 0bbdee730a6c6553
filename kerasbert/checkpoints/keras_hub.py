"""KerasHub presets: KerasHub's class reads the files, and name tables copy the weights."""

import functools
import os

import keras_hub
from keras import ops

import kerasbert.tokenizers as tokenizers
from kerasbert.base.errors import blames_file, check_fields, check_heads, check_value, first_line
from kerasbert.base.files import json_in, read_json
from kerasbert.base.from_preset import check_content
from kerasbert.base.parts import encoder_of, head_weights
from kerasbert.base.process import check_process
from kerasbert.checkpoints.checkpoint import Checkpoint, Tensors
from kerasbert.checkpoints.name_map import NameMap
from kerasbert.checkpoints.sizes import check_sizes, checked_index, h5_size
from kerasbert.families.settings import SETTINGS as TYPES

# KerasHub's backbones and our families.
FAMILIES = {
    "BertBackbone": "bert",
    "RobertaBackbone": "roberta",
    "XLMRobertaBackbone": "xlm_roberta",
    "DistilBertBackbone": "distilbert",
    "ElectraBackbone": "electra",
    "AlbertBackbone": "albert",
    "DebertaV3Backbone": "deberta_v3",
    "GPT2Backbone": "gpt2",
}
# Settings that are fixed in the code of KerasHub's classes, not in the preset.
SETTINGS = {
    "bert": {"activation": "gelu_approximate"},
    # KerasHub's RoBERTa has neither a segment row nor the two rows before the first position.
    "roberta": {"activation": "gelu", "position_offset": 0, "num_segments": 0, "pooler": False},
    "xlm_roberta": {"activation": "gelu", "position_offset": 0, "num_segments": 0, "pooler": False},
    "distilbert": {"activation": "gelu"},
    "electra": {"activation": "gelu_approximate", "pooler": True},
    "albert": {"activation": "gelu_approximate"},
    "deberta_v3": {"activation": "gelu", "pooler": False},
    "gpt2": {"activation": "gelu_approximate", "pooler": False},
}
_SHARED = (
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "dropout",
    "max_sequence_length",
    "num_segments",
    "bucket_size",
)

# The kinds of values of KerasHub's fields, as for our settings of the same names.
_FIELDS = {
    **{name: TYPES[name] for name in _SHARED},
    **{name: TYPES[name] for name in ("vocabulary_size", "num_groups", "num_inner_repetitions")},
    "vocab_size": "count",
    "embedding_dim": "count",
}

_BLOCK = {
    "attention/qkv": "self_attention_layer/[query|key|value]",
    "attention/output": "self_attention_layer/attention_output",
    "attention_layer_norm": "self_attention_layer_norm",
    "intermediate": "feedforward_intermediate_dense",
    "output": "feedforward_output_dense",
    "output_layer_norm": "feedforward_layer_norm",
}


def _encoder(
    tokens="", block="transformer_layer_{i}", projection="embeddings_projection", attention=""
):
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


ENCODERS = {
    "bert": _encoder(),
    "roberta": _encoder("embeddings/"),
    "xlm_roberta": _encoder("embeddings/"),
    "distilbert": _encoder("token_and_position_embedding/"),
    "electra": _encoder(),
    "albert": _encoder(block="group_{i}_inner_layer_{j}", projection="embedding_projection"),
    "deberta_v3": {
        **_encoder(block="disentangled_attention_encoder_layer_{i}"),
        "distance_embedding/layer_norm": "rel_embedding/rel_embeddings_layer_norm",
    },
    "gpt2": {**_encoder(attention="self_attention/"), "final_layer_norm": "layer_norm"},
}
VERBATIM = {"deberta_v3": {"distance_embedding/embeddings": "rel_embedding/rel_embedding"}}
_PREFIX = "task/"  # Separates a head's names from the encoder's.
TEXT_CLASSIFIERS = {
    "bert": {"logits": f"{_PREFIX}logits"},
    "roberta": {"head_dense": f"{_PREFIX}pooled_dense", "logits": f"{_PREFIX}logits"},
    "xlm_roberta": {"head_dense": f"{_PREFIX}pooled_dense", "logits": f"{_PREFIX}logits"},
    "distilbert": {"head_dense": f"{_PREFIX}pooled_dense", "logits": f"{_PREFIX}logits"},
    "albert": {"logits": f"{_PREFIX}logits"},
    "deberta_v3": {"head_dense": f"{_PREFIX}pooled_dense", "logits": f"{_PREFIX}logits"},
}
# KerasHub has one masked-LM head for all families, and no class for ELECTRA.
MASKED_LM = {
    "mlm_head/dense": f"{_PREFIX}mlm_head/intermediate_dense",
    "mlm_head/layer_norm": f"{_PREFIX}mlm_head/intermediate_layer_norm",
}
MASKED_LM_BIAS = {"mlm_head/bias": f"{_PREFIX}mlm_head/output_bias"}


def is_mine(directory):
    """Return whether a directory is a KerasHub preset."""
    return _class_name(directory, "config.json") is not None


def _class_name(directory, file):
    """Return the KerasHub class that a config file serializes, if any."""
    package, _, name = str(json_in(directory, file).get("registered_name")).rpartition(">")
    return name if package in ("keras_hub", "keras_nlp") else None


def _config(directory, file):
    """Return the settings in one of the preset's JSON files."""
    path = os.path.join(directory, file)
    config = read_json(path).get("config")
    check_value("config", config, "object", path)
    return config


def read_checkpoint(directory):
    """Describe a KerasHub preset; returns a `Checkpoint`.

    Raises:
        ValueError: for a backbone outside the BERT family.
    """
    path = os.path.join(directory, "config.json")
    name = _class_name(directory, "config.json")
    if name not in FAMILIES:
        raise ValueError(
            f"'{path}' holds a {name}, which is not in the BERT family; kerasbert reads "
            f"{', '.join(FAMILIES)}."
        )
    for file in ("config.json", "task.json", "preprocessor.json", "tokenizer.json"):
        check_content(json_in(directory, file))
    family = FAMILIES[name]
    config = _config(directory, "config.json")
    check_fields(config, _FIELDS, path)
    lacks = [
        name
        for name in ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
        if name not in config
    ]
    if lacks:
        raise ValueError(f"'{path}' lacks {', '.join(lacks)}; download it again.")
    check_heads(config["hidden_dim"], config["num_heads"], where=path)
    settings = {**SETTINGS[family], **{key: config[key] for key in _SHARED if key in config}}
    if not {"vocabulary_size", "vocab_size"} & config.keys():
        raise ValueError(f"'{path}' lacks vocabulary_size; download it again.")
    settings["vocabulary_size"] = config.get("vocabulary_size", config.get("vocab_size"))
    if family == "albert":
        defaults = {"num_groups": 1, "num_inner_repetitions": 1, "embedding_dim": 128}
        settings |= {name: config.get(name, default) for name, default in defaults.items()}
    if family == "electra":
        width = config.get("embedding_dim", 768)
        settings["embedding_dim"] = width if width != config["hidden_dim"] else None
    heads = {"masked_lm": NameMap(MASKED_LM, "keras_hub", verbatim=MASKED_LM_BIAS)}
    if family == "gpt2":  # The token embedding is its output layer.
        heads = {"causal_lm": NameMap({}, "keras_hub")}
    # Fixed in KerasHub's code, whatever the encoder has.
    masked_lm = {
        "head_activation": "gelu_approximate" if family == "albert" else "gelu",
        "head_norm_epsilon": 1e-5,
    }
    if family in TEXT_CLASSIFIERS:
        heads["text_classifier"] = NameMap(TEXT_CLASSIFIERS[family], "keras_hub")
    return Checkpoint(
        source=directory,
        family=family,
        encoder=settings,
        tensors=_Tensors(directory, name, settings),
        encoder_map=NameMap(
            ENCODERS[family],
            "keras_hub",
            VERBATIM.get(family),
            inner=settings.get("num_inner_repetitions", 1),
        ),
        head_maps=heads,
        head={
            "masked_lm": masked_lm,
            "text_embedder": functools.partial(_embedder, directory),
        },
        classes=functools.partial(_classes, directory),
        is_head=lambda name: name.startswith((_PREFIX, "pooled_dense/")),
        tokenizer=functools.partial(_tokenizer, directory),
    )


def _task(directory):
    name = _class_name(directory, "task.json")
    return name if name and name.endswith(("TextClassifier", "MaskedLM")) else None


def _classes(directory):
    """Return the arguments of `BertTextClassifier`."""
    if not str(_task(directory)).endswith("TextClassifier"):
        raise ValueError(
            f"'{directory}' has no head for a BertTextClassifier; pass num_classes=2 or "
            "labels=['ham', 'spam'] for a new one."
        )
    path = os.path.join(directory, "task.json")
    config = _config(directory, "task.json")
    check_fields(config, {"num_classes": "count?", "hidden_dim": "count?"}, path)
    hidden = config.get("hidden_dim")
    if hidden not in (None, _config(directory, "config.json").get("hidden_dim")):
        raise ValueError(
            f"'{path}' has a head of hidden_dim={hidden}, not of the encoder's width, which "
            "kerasbert does not support; pass num_classes or labels for a new head."
        )
    settings = ("num_classes", "dropout", "activation")
    return {key: config[key] for key in settings if config.get(key) is not None}


def _embedder(directory):
    """Return the arguments of `BertTextEmbedder`; empty if the preset has another task."""
    if not (_class_name(directory, "task.json") or "").endswith("TextEmbedder"):
        return {}
    config = _config(directory, "task.json")
    return {"pooling": config["pooling_mode"], "normalize": config["normalize"]}


class _Tensors(Tensors):
    """The variables of KerasHub's model."""

    def __init__(self, directory, backbone_name, settings):
        super().__init__(directory)
        self.backbone_name = backbone_name
        self.settings = settings

    def _open(self):
        # float32, so that no default policy rounds the stored values. Without a task's weights,
        # KerasHub would leave the head random.
        has_head = os.path.exists(os.path.join(self.directory, "task.weights.h5"))
        task = _task(self.directory) if has_head else None
        checked_index(self.directory)
        held = h5_size(self.directory, "model")
        check_sizes(self.settings, held, self.directory)
        if task:
            h5_size(self.directory, "task")
            _check_task(self.directory, held)
        check_process()  # KerasHub's class would hang in a forked process.
        name = task or self.backbone_name
        arguments = {"preprocessor": None} if task else {}
        try:
            model = getattr(keras_hub.models, name).from_preset(
                self.directory, dtype="float32", **arguments
            )
        except Exception as error:  # Keras, KerasHub and h5py raise many classes.
            if not blames_file(error):
                raise
            raise ValueError(
                f"KerasHub cannot read the weights in '{self.directory}' ({first_line(error)}); "
                "download them again."
            ) from error
        variables = {weight.path: weight for weight in encoder_of(model).weights}
        return variables | {_PREFIX + weight.path: weight for weight in head_weights(model)}

    def __getitem__(self, name):
        return ops.convert_to_numpy(self.index[name])

    def shape(self, name):
        return tuple(self.index[name].shape)


def _check_task(directory, held):
    """Raise if a task's config needs more than `held` weights, or another encoder."""
    path = os.path.join(directory, "task.json")
    config = _config(directory, "task.json")
    check_fields(
        config, {"num_classes": "count?", "hidden_dim": "count?", "backbone": "object?"}, path
    )
    for name in ("num_classes", "hidden_dim"):
        if (config.get(name) or 0) > held:
            raise ValueError(
                f"'{path}' has {name}={config[name]}, but the preset holds {held} weights; the two "
                "do not belong together: download it again."
            )
    # KerasHub builds the encoder described in task.json, which must be config.json's.
    backbone = (config.get("backbone") or {}).get("config")
    check_value("backbone", backbone, "object", path)
    for name, value in _config(directory, "config.json").items():
        if name in _FIELDS and backbone.get(name, value) != value:
            raise ValueError(
                f"'{path}' has a backbone of {name}={backbone[name]!r}, but config.json has "
                f"{name}={value!r}; the two do not belong together: download it again."
            )


def _tokenizer(directory, **overrides):
    """Load our tokenizer from the files of KerasHub's."""
    name = _class_name(directory, "tokenizer.json")
    if name is None:
        raise ValueError(f"'{directory}' has no KerasHub tokenizer; pass preprocessor=None.")
    config = _config(directory, "tokenizer.json")
    # Byte-pair tokenizers have `unsplittable_tokens` instead.
    finds = config.get("special_tokens_in_strings", bool(config.get("unsplittable_tokens")))
    settings = {"special_tokens_in_strings": finds}
    if name in ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"):
        name = "BertTokenizer"
        # KerasHub lowercases without stripping accents; the checkpoints were trained with both.
        settings["lowercase"] = config.get("lowercase", False)
    tokenizer_class = getattr(tokenizers, name, None)
    if tokenizer_class is None:
        raise ValueError(f"'{directory}' has a {name}, which kerasbert does not support.")
    tokenizer = tokenizer_class(**{**settings, **overrides})
    tokenizer.load_assets(os.path.join(directory, "assets", "tokenizer"))
    return tokenizer

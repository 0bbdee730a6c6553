"""Reader of KerasHub presets, by KerasHub's class and name tables."""

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
from kerasbert.families import KERAS_HUB, TABLES
from kerasbert.families.settings import SETTINGS as TYPES

# KerasHub's backbones and our families.
FAMILIES = {f"{table.classes}Backbone": family for family, table in KERAS_HUB.items()}
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

# Types of KerasHub's fields, the same as those of our settings.
_FIELDS = {
    **{name: TYPES[name] for name in _SHARED},
    **{name: TYPES[name] for name in ("vocabulary_size", "num_groups", "num_inner_repetitions")},
    "vocab_size": "count",
    "embedding_dim": "count",
}

_PREFIX = "task/"  # Separates a head's names from the encoder's.


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
    table = KERAS_HUB[family]
    settings = {**table.settings, **{key: config[key] for key in _SHARED if key in config}}
    if not {"vocabulary_size", "vocab_size"} & config.keys():
        raise ValueError(f"'{path}' lacks vocabulary_size; download it again.")
    settings["vocabulary_size"] = config.get("vocabulary_size", config.get("vocab_size"))
    settings |= {name: config.get(name, default) for name, default in table.config.items()}
    is_square = settings.get("embedding_dim") == config["hidden_dim"]
    if is_square and not TABLES[family].has_square_projection:
        settings["embedding_dim"] = None
    return Checkpoint(
        source=directory,
        family=family,
        encoder=settings,
        tensors=_Tensors(directory, name, settings),
        encoder_map=NameMap(
            table.encoder,
            "keras_hub",
            table.verbatim,
            inner=settings.get("num_inner_repetitions", 1),
        ),
        head_maps={kind: _head_map(*names) for kind, names in table.heads.items()},
        head={
            # These do not depend on the encoder's settings.
            "masked_lm": {"head_activation": table.head_activation, "head_norm_epsilon": 1e-5},
            "text_embedder": functools.partial(_embedder, directory),
        },
        classes=functools.partial(_classes, directory),
        is_head=lambda name: name.startswith((_PREFIX, "pooled_dense/")),
        tokenizer=functools.partial(_tokenizer, directory),
    )


def _head_map(layers, weights):
    layers, weights = (
        {ours: _PREFIX + theirs for ours, theirs in names.items()} for names in (layers, weights)
    )
    return NameMap(layers, "keras_hub", verbatim=weights)


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
    """Return the arguments of `BertTextEmbedder`, empty for another task."""
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
        # In float32, so that no default policy rounds the values. Without stored weights, KerasHub
        # would leave the task's head random.
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
        except Exception as error:  # Keras, KerasHub and h5py raise many.
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
    # KerasHub builds the encoder of task.json, so config.json must describe the same.
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
        # Unlike KerasHub's, our `lowercase` also strips accents, as in pre-training.
        settings["lowercase"] = config.get("lowercase", False)
    tokenizer_class = getattr(tokenizers, name, None)
    if tokenizer_class is None:
        raise ValueError(f"'{directory}' has a {name}, which kerasbert does not support.")
    tokenizer = tokenizer_class(**{**settings, **overrides})
    tokenizer.load_assets(os.path.join(directory, "assets", "tokenizer"))
    return tokenizer

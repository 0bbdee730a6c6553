"""`from_preset`: which kind of checkpoint a name or directory is, and how it becomes a model."""

import contextlib
import difflib
import functools
import hashlib
import inspect
import json
import os
import re
import warnings

import keras
import keras_hub
import numpy as np

from kerasbert import hub, private_names, tokenizers
from kerasbert._errors import check_fields, check_value, first_line
from kerasbert._keywords import check_keyword
from kerasbert.conversion import google, huggingface, sentence_transformers
from kerasbert.conversion import keras_hub as keras_hub_format
from kerasbert.conversion.checkpoint import Checkpoint
from kerasbert.conversion.name_map import check_finite
from kerasbert.conversion.name_map import load_weights as load_named_weights
from kerasbert.conversion.sizes import check_sizes, h5_size, tensors_size
from kerasbert.families import SETTINGS, get_family
from kerasbert.files import check_regular_tree, inside, read_json, settle, write_text
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.task import BertTask, head_weights

# Arguments that say what the classes of a head are.
_CLASSES = ("num_classes", "labels", "scheme", "multi_label")
# Those that make a new head.
_NEW_HEAD = ("num_classes", "labels", "layers")
# What fields of a task's settings can be, of whichever task.
_TASK_FIELDS = {
    "num_classes": "count?",
    "labels": "names?",
    "multi_label": "flag",
    "dropout": "share?",
    "head_activation": "name?",
    "head_bias": "flag?",
    "head_norm": "flag?",
    "head_norm_epsilon": "positive?",
    "dropout_first": "flag?",
    "output_bias": "flag?",
    "tie_weights": "flag?",
    "bilstm_units": "whole?",
    "next_sentence": "flag",
    "sentence_order": "flag?",
    "normalize": "flag",
    "backbone": "object?",
    "preprocessor": "object?",
}
_POOLER = ("pooled_dense/kernel", "pooled_dense/bias")


@functools.cache
def builtin_presets():
    """The presets that the package describes: a dict of name to description.

    >>> builtin_presets()["bert_base_en_uncased"]["handle"]
    'hf://google-bert/bert-base-uncased'
    """
    presets = {}
    for file in sorted(hub.preset_files().iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            preset = json.loads(file.read_text(encoding="utf-8"))
            presets[preset["name"]] = preset
    return presets


@functools.cache
def _keras_hub_presets():
    """KerasHub's names of presets of the BERT family: a dict of name to handle."""
    presets = {}
    for name in keras_hub_format.FAMILIES:
        presets.update(getattr(keras_hub.models, name).presets)
    return {name: preset["kaggle_handle"] for name, preset in presets.items()}


def presets_of(cls):
    """What `cls.presets` gives: for a tokenizer those of its class, else all."""
    presets = builtin_presets()
    if not issubclass(cls, keras_hub.tokenizers.Tokenizer):
        return dict(presets)
    return {
        name: preset
        for name, preset in presets.items()
        if (preset["tokenizer"] or {}).get("class") == cls.__name__
    }


def load(cls, preset, load_weights=True, **kwargs):
    """What `cls.from_preset` runs; see there."""
    if not isinstance(preset, (str, os.PathLike)):
        raise ValueError(f"A preset is a name, a handle or a directory, not {preset!r}.")
    preset = os.fspath(preset)
    _check_arguments(cls, kwargs)
    described = builtin_presets().get(preset)
    is_backbone = issubclass(cls, keras_hub.models.Backbone)
    if described and not load_weights and (is_backbone or "preprocessor" in kwargs):
        # The architecture alone is all in the description.
        checkpoint = Checkpoint(preset, described["family"], _described_encoder(described))
    else:
        weights = load_weights and issubclass(cls, keras.Model)
        directory = resolve(preset, weights)
        if is_own(directory):
            with _whole(directory):
                if issubclass(cls, BertTask):
                    return _own_task(cls, directory, load_weights, **kwargs)
                if is_backbone:
                    return _own_backbone(cls, directory, load_weights, **kwargs)
                return _of_class(cls, cls.from_own_preset(directory, **kwargs), directory)
        checkpoint = read_checkpoint(directory, preset)
        if described:
            _describe(checkpoint, directory, described, weights)
    if issubclass(cls, keras_hub.tokenizers.Tokenizer):
        return _of_class(cls, checkpoint.tokenizer(**kwargs), preset)
    if issubclass(cls, keras_hub.models.Preprocessor):
        return _preprocessor(cls, checkpoint, **kwargs)
    if issubclass(cls, BertTask):
        return _task(cls, checkpoint, load_weights, **kwargs)
    return _backbone(checkpoint, load_weights, **kwargs)


def resolve(preset, weights=True):
    """The local directory of a preset: a name, a handle or a path.

    Args:
        preset: string.
        weights: bool. `False` fetches no weights.

    Raises:
        ValueError: for an unknown one, with the nearest names.
    """
    if preset in builtin_presets():
        return hub.fetch(builtin_presets()[preset]["handle"], weights)
    if "://" in preset:
        return hub.fetch(preset, weights)
    directory = os.path.expanduser(preset)
    if os.path.isdir(directory):
        settle(directory)
        check_regular_tree(directory)
        return directory
    if os.path.isfile(directory):
        raise ValueError(f"'{preset}' is a file; a preset is the directory that holds it.")
    if preset in _keras_hub_presets():
        return hub.fetch(_keras_hub_presets()[preset], weights)
    names = [*builtin_presets(), *_keras_hub_presets()]
    near = difflib.get_close_matches(preset, names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else "`kerasbert presets` lists the names."
    raise ValueError(
        f"Unknown preset '{preset}': no built-in name, no directory, and no handle like "
        f"hf://org/name or kaggle://org/model/keras/name; {hint}"
    )


def check(preset):
    """Raise where a preset cannot be one, before anything is fetched or other work is begun.

    Raises:
        ValueError: for an unknown name, and for a folder that holds no checkpoint.
    """
    preset = os.fspath(preset)
    is_local = os.path.isdir(os.path.expanduser(preset))
    if preset in builtin_presets() or "://" in preset:
        return
    if not is_local and preset in _keras_hub_presets():
        return
    directory = resolve(preset)
    if not is_own(directory):
        read_checkpoint(directory, preset)


def finetuning_learning_rate(preset):
    """The learning rate that a preset records as good for fine-tuning; `None` where it has none.

    >>> finetuning_learning_rate("bert_tiny_demo_en_uncased")
    0.0005
    """
    preset = os.fspath(preset)
    if preset in builtin_presets():
        config = builtin_presets()[preset]["settings"]
    else:
        directory = resolve(preset, weights=False)
        path = os.path.join(directory, "config.json")
        if not is_own(directory) or not os.path.exists(path):
            return None
        config = read_json(path).get("config", {})
    rate = config.get("finetuning_learning_rate")
    check_value("finetuning_learning_rate", rate, "positive?", preset)
    return rate


def record_finetuning_learning_rate(preset, rate=None):
    """Write the learning rate that was found good into a preset; `None` checks that it can be.

    Args:
        preset: string. A directory that `save_to_preset` or `pretrain` wrote.
        rate: float.

    Raises:
        ValueError: for other kinds of presets, which have no place for it.
    """
    check_value("rate", rate, "positive?")
    path = os.path.join(os.path.expanduser(os.fspath(preset)), "config.json")
    if not os.path.exists(path) or not is_own(os.path.dirname(path)):
        raise ValueError(
            f"No learning rate can be recorded in '{preset}': that needs the directory of a preset "
            "of ours, as `pretrain` or save_to_preset writes it."
        )
    if rate is not None:
        config = read_json(path)
        config["config"]["finetuning_learning_rate"] = rate
        write_text(path, json.dumps(config, indent=4))


def read_checkpoint(directory, preset=None):
    """Describe a foreign directory, of whichever kind.

    Raises:
        ValueError: when it is of no known kind.
    """
    for kind in (keras_hub_format, sentence_transformers, huggingface, google):
        if kind.is_mine(directory):
            return kind.read_checkpoint(directory)
    raise ValueError(
        f"'{preset or directory}' is no checkpoint that kerasbert knows: a preset of ours or of "
        "KerasHub's and a Hugging Face one have a config.json, Google's a bert_config.json."
    )


# Built-in names: what their description says wins over the checkpoint's own files.


def _described_encoder(described):
    return {**get_family(described["family"]).encoder, **described["settings"]}


def _describe(checkpoint, directory, described, weights):
    """Put the description of a built-in preset over what its files say."""
    if weights:
        _check_sha256(directory, described)
    checkpoint.encoder.update(described["settings"])
    # Whether there is a pooler does not hang on a look at the weights.
    checkpoint.encoder["pooler"] = _described_encoder(described).get("pooler", True)
    settings = dict(described["tokenizer"] or {})
    name = settings.pop("class", None)

    def tokenizer(**overrides):
        if name is None:
            raise ValueError(
                f"kerasbert has no tokenizer for the vocabulary of '{described['name']}'; load it "
                "with preprocessor=None and pass token ids."
            )
        return getattr(tokenizers, name).from_files(directory, **{**settings, **overrides})

    checkpoint.tokenizer = tokenizer


def _check_sha256(directory, described):
    for name, expected in described["sha256"].items():
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            continue
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise ValueError(
                f"'{path}' is not the file that '{described['name']}' stands for: its sha256 is "
                f"{found}, not {expected}; delete it and fetch it again."
            )


# Arguments


def _arguments(cls):
    return set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs"} | {"name", "dtype"}


def _check_arguments(cls, kwargs):
    known = _arguments(cls)
    if issubclass(cls, BertTask):
        known |= _arguments(cls.backbone_cls) | _preprocessor_arguments(cls)
        takes_new = cls.needs_head and cls.head is not None and not _has_classes(cls)
        known |= {"new_head"} if takes_new else set()
    elif not issubclass(cls, keras_hub.models.Backbone):
        return  # Tokenizers and preprocessors check theirs.
    for name in kwargs:
        check_keyword(cls.__name__, name, known | {"trainable"})


def _preprocessor_arguments(cls):
    """Those of a task's `from_preset` that belong to its preprocessor."""
    others = _arguments(cls) | _arguments(cls.backbone_cls) | {"tokenizer"}
    return _arguments(cls.preprocessor_cls) - others


def _split_arguments(cls, kwargs):
    """A task's arguments: its own, its preprocessor's, and the rest for its encoder."""
    own = _arguments(cls) - {"dtype"} | {"new_head"}
    arguments = {name: kwargs[name] for name in kwargs if name in own}
    its = _preprocessor_arguments(cls)
    preprocessor = {name: kwargs[name] for name in kwargs if name in its}
    encoder = {
        name: kwargs[name] for name in kwargs if name not in arguments and name not in preprocessor
    }
    if encoder and "backbone" in arguments:
        raise ValueError(f"Set {', '.join(encoder)} on the backbone that you pass, not beside it.")
    if preprocessor and "preprocessor" in arguments:
        raise ValueError(
            f"Set {', '.join(preprocessor)} on the preprocessor that you pass, not beside it."
        )
    return arguments, preprocessor, encoder


def _has_classes(cls):
    return "num_classes" in _arguments(cls)


def _wants_new_head(arguments):
    is_given = any(arguments.get(name) is not None for name in _NEW_HEAD)
    # No checkpoint of others has a BiLSTM.
    return arguments.pop("new_head", False) or is_given or bool(arguments.get("bilstm_units"))


class NoHeadError(ValueError):
    """A checkpoint holds no head of the kind that was asked for."""


def _no_head(cls, source):
    if cls.head is None:
        return NoHeadError(f"'{source}' holds no {cls.__name__}; build one and save it first.")
    kind = "classification" if cls.head == "text_classifier" else cls.head.replace("_", "-")
    new = "num_classes=2 or labels=['ham', 'spam']" if _has_classes(cls) else "new_head=True"
    return NoHeadError(f"'{source}' has no {kind} head; pass {new} for a new one.")


def _of_class(cls, made, source):
    if not isinstance(made, cls):
        raise ValueError(
            f"'{source}' has a {type(made).__name__}, not a {cls.__name__}; load it with that."
        )
    return made


def _warn_new(paths):
    if paths:
        warnings.warn(
            f"New, random weights that need training: {', '.join(sorted(paths))}.", stacklevel=5
        )


# Foreign checkpoints


def build_filled(build, fill):
    """`build()` a model, then `fill(model)` by assignment, without drawing the random values.

    Drawing them takes several times as long as reading a checkpoint. On an error in `fill` no
    model comes out.
    """
    if keras.distribution.distribution() is not None:
        model = build()  # Sharded variables draw their values in place.
        fill(model)
        return model
    # In the scope variables have no values yet and take theirs, by their initializer, at its end.
    with keras.StatelessScope() as scope:
        model = build()
        try:
            fill(model)
        except BaseException:
            for weight in model.weights:
                private_names.set_initializer(weight, keras.initializers.Zeros())
            raise
        for weight in model.weights:
            value = scope.state_mapping.pop(id(weight), None)
            if value is not None:
                private_names.set_initializer(weight, lambda shape, dtype, value=value: value)
    return model


def _preprocessor(cls, checkpoint, **kwargs):
    limit = checkpoint.encoder.get("max_sequence_length", 512)
    kwargs = {**checkpoint.preprocessor.get(getattr(cls, "head", None), {}), **kwargs}
    length = inspect.signature(cls.__init__).parameters["sequence_length"].default
    kwargs.setdefault("sequence_length", min(length, limit))
    kwargs.setdefault("num_segments", min(_encoder(checkpoint).get("num_segments", 2), 2))
    return cls(kwargs.pop("tokenizer", None) or checkpoint.tokenizer(), **kwargs)


def _encoder(checkpoint):
    row = get_family(checkpoint.family).encoder
    return {**row, "family": checkpoint.family, **checkpoint.encoder}


def _has_pooler(checkpoint):
    """Whether the weights have one; checkpoints of token-level tasks have none."""
    names = checkpoint.encoder_map.theirs(_POOLER[0])
    return names is not None and names[0] in checkpoint.tensors


def _backbone(checkpoint, load_weights, may_stay_new=(), **kwargs):
    settings = _encoder(checkpoint)
    if load_weights and "pooler" not in {**checkpoint.encoder, **kwargs}:
        settings["pooler"] = _has_pooler(checkpoint)
    settings.update(kwargs)
    if not load_weights:
        return BertBackbone(**settings)

    # Opens them too: KerasHub's class cannot be built in the scope.
    check_sizes(settings, tensors_size(checkpoint.tensors), checkpoint.source)

    def fill(backbone):
        load_named_weights(
            backbone.weights,
            checkpoint.tensors,
            checkpoint.encoder_map,
            checkpoint.source,
            checkpoint.is_head,
            may_stay_new,
        )

    return build_filled(lambda: BertBackbone(**settings), fill)


def _task(cls, checkpoint, load_weights, **kwargs):
    """A task model, with the checkpoint's head unless the caller asks for a new one."""
    arguments, preprocessor_arguments, encoder_arguments = _split_arguments(cls, kwargs)
    new_head = _wants_new_head(arguments)
    head_map = checkpoint.head_maps.get(cls.head)
    settings = checkpoint.head.get(cls.head, {})
    settings = dict(settings() if callable(settings) else settings)
    if cls.needs_head and not new_head:
        if cls.head in checkpoint.refused:
            raise ValueError(checkpoint.refused[cls.head])
        names = head_map and head_map.theirs(cls.output_weight({**settings, **arguments}))
        if not names or (load_weights and names[0] not in checkpoint.tensors):
            raise _no_head(cls, checkpoint.source)
        if _has_classes(cls):
            own = _arguments(cls)
            settings.update((k, v) for k, v in checkpoint.classes().items() if k in own)
            if load_weights:
                _check_classes(checkpoint, settings, names[0])
    arguments = {**settings, **arguments}
    if "preprocessor" not in arguments:
        arguments["preprocessor"] = _preprocessor(
            cls.preprocessor_cls, checkpoint, **preprocessor_arguments
        )
    new = []
    if "backbone" not in arguments:
        row = {**getattr(get_family(checkpoint.family), cls.head), **arguments}
        pooler = encoder_arguments.setdefault("pooler", cls.needs_pooler(row))
        if load_weights and new_head and pooler and not _has_pooler(checkpoint):
            new += _POOLER
        arguments["backbone"] = _backbone(checkpoint, load_weights, new, **encoder_arguments)
    task = cls(**arguments)
    if load_weights and new_head:
        _warn_new([*new, *(weight.path for weight in head_weights(task))])
    elif load_weights and cls.needs_head:
        head = head_weights(task)
        outside = _outside(head, head_map)
        _check_tied(checkpoint, outside)
        load_named_weights(
            head,
            checkpoint.tensors,
            head_map,
            checkpoint.source,
            lambda name: outside(name) or name in checkpoint.tied,
        )
    return task


def _check_classes(checkpoint, settings, name):
    """Raise, before a head is built, where its tensor is of another number of classes."""
    count = settings.get("num_classes") or len(settings.get("labels") or ())
    shape = tuple(checkpoint.tensors.shape(name))
    if count and count not in shape:
        raise ValueError(
            f"The weights of '{checkpoint.source}' do not fit its configuration: {name} {shape}, "
            f"and num_classes={count}; the two do not belong together."
        )


def _outside(head, head_map):
    """A function of a name: whether it does not start as those of the head do."""

    def start(name):
        return re.match(r"(cls[./])?[^./]*", name)[0]  # "cls" holds several heads.

    names = [name for weight in head for name in head_map.theirs(weight.path) or ()]
    starts = {start(name) for name in names}
    return lambda name: start(name) not in starts


def _check_tied(checkpoint, outside):
    """Raise where a tensor of the head is not the one that ours is tied to."""
    tensors = checkpoint.tensors
    for name, original in checkpoint.tied.items():
        if name not in tensors or original not in tensors or outside(name):
            continue
        if not np.array_equal(tensors[name], tensors[original]):
            raise ValueError(
                f"'{checkpoint.source}' has a {name} other than its {original}, and its "
                "config.json says that they are one; set tie_word_embeddings to false there if "
                "both are meant, or load its encoder with new_head=True."
            )


# Presets of ours


def is_own(directory):
    """Whether it is a preset of ours."""
    # A tokenizer or preprocessor that was saved alone comes without config.json.
    for name in ("config.json", "preprocessor.json", "tokenizer.json"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            return str(read_json(path).get("registered_name")).startswith("kerasbert>")
    return False


@contextlib.contextmanager
def _whole(directory):
    """Reword what Keras, KerasHub and h5py say of files that are missing or damaged."""
    try:
        yield
    except (OSError, KeyError, TypeError, AttributeError, RuntimeError, IndexError) as error:
        raise ValueError(
            f"The preset in '{directory}' is not whole ({first_line(error)}); save or fetch it "
            "again."
        ) from error
    except ValueError as error:
        if "\n" not in str(error).strip():
            raise  # A sentence.
        raise ValueError(
            f"The preset in '{directory}' does not fit together ({first_line(error)}); save or "
            "fetch it again."
        ) from error


def own_config(directory, name="config.json"):
    """The settings in a JSON file of a preset of ours, each of its kind."""
    path = os.path.join(directory, name)
    config = read_json(path).get("config")
    check_value("config", config, "object", path)
    check_fields(config, SETTINGS if name == "config.json" else _TASK_FIELDS, path)
    return config


def _own_backbone(cls, directory, load_weights, **kwargs):
    config = own_config(directory)

    def build():
        return cls.from_own_preset(directory, load_weights=False, **kwargs)

    def fill(backbone):
        whole = os.path.join(directory, "model.weights.h5")
        sharded = os.path.join(directory, "model.weights.json")
        if os.path.exists(sharded):
            _check_shards(directory, sharded)
        with _whole(directory):
            backbone.load_weights(sharded if os.path.exists(sharded) else whole)
        _check_finite(backbone.weights, directory)

    if not load_weights:
        return build()
    is_quantized = isinstance(config.get("dtype"), dict) and "Map" in str(config["dtype"])
    held = h5_size(directory, "model", is_quantized)
    check_sizes({**config, **kwargs}, held, directory)
    return build_filled(build, fill)


def _check_finite(weights, directory):
    for weight in weights:
        if keras.backend.is_float_dtype(weight.dtype):
            value = keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))
            check_finite(weight.path, value, directory)


def _check_shards(directory, path):
    """Raise where the index of sharded weights names files outside of its directory."""
    names = read_json(path).get("weight_map")
    for name in names.values() if isinstance(names, dict) else ():
        for shard in name if isinstance(name, list) else [name]:
            inside(directory, shard, path)


def _own_task(cls, directory, load_weights, **kwargs):
    arguments, preprocessor_arguments, encoder_arguments = _split_arguments(cls, kwargs)
    new_head = _wants_new_head(arguments)
    saved_class, config = _task_file(directory)
    if load_weights:
        held = h5_size(directory, "task")
        if (config or {}).get("num_classes", 0) > held > 0:
            raise ValueError(
                f"'{os.path.join(directory, 'task.json')}' has num_classes="
                f"{config['num_classes']}, and task.weights.h5 holds {held} weights; the two do "
                "not belong together: save or fetch the preset again."
            )
    saved = config if issubclass(saved_class, cls) else None
    if saved is None and cls.needs_head and not new_head:
        # A task with more heads than one lends them.
        if cls.head not in getattr(saved_class, "lends", ()):
            raise _no_head(cls, directory)
        return _borrowed_task(cls, saved_class, config, directory, load_weights, **kwargs)
    saved = saved or {}
    if new_head:
        saved = {name: value for name, value in saved.items() if name not in _CLASSES}
    if "preprocessor" not in arguments:
        arguments["preprocessor"] = None
        if saved.get("preprocessor", True) is not None:
            arguments["preprocessor"] = cls.preprocessor_cls.from_own_preset(
                directory, **preprocessor_arguments
            )
    if "backbone" not in arguments:
        arguments["backbone"] = _own_backbone(
            cls.backbone_cls, directory, load_weights, **encoder_arguments
        )
    saved = cls.with_preprocessor_settings(saved, preprocessor_arguments)
    task = cls.from_config({**saved, **arguments})
    if load_weights and new_head:
        _warn_new([weight.path for weight in head_weights(task)])
    elif load_weights and head_weights(task):
        task.load_task_weights(os.path.join(directory, "task.weights.h5"))
        _check_finite(head_weights(task), directory)
    return task


def _task_file(directory):
    """The class and the configuration of the task in a directory; `object` for none."""
    path = os.path.join(directory, "task.json")
    if not os.path.exists(path):
        return object, None
    saved_class = keras.saving.get_registered_object(str(read_json(path).get("registered_name")))
    config = own_config(directory, "task.json")
    return (saved_class if isinstance(saved_class, type) else object), config


def _borrowed_task(cls, lender, config, directory, load_weights, **kwargs):
    """A task with the encoder and the head of one with more heads."""
    arguments, preprocessor_arguments, encoder_arguments = _split_arguments(cls, kwargs)
    if "preprocessor" not in arguments and config.get("preprocessor") is not None:
        arguments["preprocessor"] = cls.preprocessor_cls.from_own_preset(
            directory, **preprocessor_arguments
        )
    given = {"backbone": arguments["backbone"]} if "backbone" in arguments else {}
    whole = _own_task(
        lender, directory, load_weights, preprocessor=None, **given, **encoder_arguments
    )
    shared = (_arguments(cls) & config.keys()) - {"backbone", "preprocessor", "name"}
    settings = {name: config[name] for name in shared}
    task = cls(**{**settings, "backbone": whole.backbone, **arguments})
    weights = {weight.path: weight for weight in whole.weights}
    missing = [weight.path for weight in head_weights(task) if weight.path not in weights]
    if missing:  # The task has that head by a setting, and was saved without.
        raise _no_head(cls, directory)
    for weight in head_weights(task):
        weight.assign(weights[weight.path])
    return task

"""Building of models from checkpoints."""

import inspect
import re
import warnings

import keras
import numpy as np

from kerasbert.base import keras_internals
from kerasbert.base.files import json_in, read_json
from kerasbert.base.keywords import check_keyword, own_class
from kerasbert.base.parts import head_weights
from kerasbert.checkpoints.name_map import check_finite
from kerasbert.checkpoints.name_map import load_weights as load_named_weights
from kerasbert.checkpoints.sizes import check_buildable, check_sizes
from kerasbert.families import LINEAGE, head_settings
from kerasbert.kinds import KINDS, kind_of, tables_of

# Arguments that describe the classes of a head.
_CLASSES = ("num_classes", "labels", "scheme", "multi_label", "temperature", "null_threshold")
# Arguments that request a new head.
_NEW_HEAD = ("num_classes", "labels", "layers", "projection_dim")
# Settings of layers that a head may have besides its dense layers.
_LAYERS = ("bilstm_units", "crf")
_POOLER = ("pooled_dense/kernel", "pooled_dense/bias")


# Arguments


def arguments_of(cls):
    """Return the names of a constructor's arguments, including those of its base classes."""
    names, own = {"name", "dtype"}, own_class(cls) or cls
    for base in inspect.getmro(cls):
        if "__init__" in vars(base):
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
            names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
            if issubclass(own, base) or all(p.kind is not p.VAR_KEYWORD for p in parameters):
                break
    return names


def check_arguments(cls, kwargs):
    """Raise for an argument of `from_preset` that neither an encoder nor a task takes."""
    known = arguments_of(cls) | {"trainable"}
    if hasattr(getattr(cls, "preprocessor_cls", None), "normalize"):
        known |= {"normalize"}
    if hasattr(cls, "kind") and cls.backbone_cls is not None:
        known |= arguments_of(cls.backbone_cls) | _preprocessor_arguments(cls)
        takes_new = cls.needs_head and _is_single(cls) and not _has_classes(cls)
        known |= {"new_head"} if takes_new else set()
    for name in kwargs:
        check_keyword(cls.__name__, name, known)


def _preprocessor_arguments(cls):
    """Return the names of a preprocessor's arguments of a task's `from_preset`."""
    if cls.preprocessor_cls is None:
        return set()
    others = arguments_of(cls) | arguments_of(cls.backbone_cls) | {"tokenizer"}
    its = arguments_of(cls.preprocessor_cls)
    return its - others | ({"special_tokens_in_strings"} if "tokenizer" in its else set())


def _split_arguments(cls, kwargs):
    """Split arguments into those of the task, of its preprocessor, and of its encoder."""
    own = arguments_of(cls) - {"dtype"} | {"new_head"}
    arguments = {name: kwargs[name] for name in kwargs if name in own}
    its = _preprocessor_arguments(cls)
    if hasattr(cls.preprocessor_cls, "normalize"):
        # `normalize` is the preprocessor's Unicode form if a string, and an embedder's own if a
        # bool.
        if "normalize" not in own or isinstance(kwargs.get("normalize"), str):
            its = its | {"normalize"}
            arguments.pop("normalize", None)
    preprocessor = {name: kwargs[name] for name in kwargs if name in its}
    encoder = {
        name: kwargs[name] for name in kwargs if name not in arguments and name not in preprocessor
    }
    if encoder and "backbone" in arguments:
        raise ValueError(
            f"Set {', '.join(encoder)} on the backbone that you pass, not as an argument."
        )
    if preprocessor and "preprocessor" in arguments:
        raise ValueError(
            f"Set {', '.join(preprocessor)} on the preprocessor that you pass, not as an argument."
        )
    return arguments, preprocessor, encoder


def _is_single(cls):
    """Return whether foreign checkpoints may have the task's head, unlike a user-defined one."""
    return cls.kind in KINDS and KINDS[cls.kind].single


def _has_classes(cls):
    return "num_classes" in arguments_of(cls)


def _wants_new_head(arguments):
    is_given = any(arguments.get(name) is not None for name in _NEW_HEAD)
    # Foreign checkpoints have no such layers.
    is_other = any(map(arguments.get, _LAYERS))
    return arguments.pop("new_head", False) or is_given or is_other


class NoHeadError(ValueError):
    """A checkpoint has no head of the requested kind, or no pooler that the head needs."""


def _no_head(cls, source, is_read=True):
    """Return a `NoHeadError`.

    `is_read`: heads of that kind can be loaded from the family's checkpoints.
    """
    if not _is_single(cls):
        return NoHeadError(f"'{source}' has no {cls.__name__}; build one and save it first.")
    theirs = json_in(source, "config.json").get("architectures") or ()
    end = KINDS[tables_of(cls)].huggingface
    held = [name for name in theirs if end and end in name]
    if held:
        why = (
            "but its weights are not those of the head that kerasbert expects"
            if is_read
            else "a head that kerasbert does not support in this family"
        )
        return NoHeadError(
            f"'{source}' is a {held[0]}, {why}; pass {_new_head_of(cls)} for a new head."
        )
    return NoHeadError(
        f"'{source}' has no head for a {cls.__name__}; pass {_new_head_of(cls)} for a new head."
    )


def _new_head_of(cls):
    return "num_classes=2 or labels=['ham', 'spam']" if _has_classes(cls) else "new_head=True"


def _warn_new(paths):
    if paths:
        warnings.warn(
            f"New, random weights that need training: {', '.join(sorted(paths))}.", stacklevel=5
        )


# Foreign checkpoints


def build_filled(build, fill):
    """Return the model that `build()` makes, with the weights that `fill(model)` assigns.

    Random initialization would take several times as long as reading a checkpoint.
    """
    if keras.distribution.distribution() is not None:
        model = build()  # Sharded variables must be initialized on their devices.
        fill(model)
        return model
    # Initializers run when the scope ends.
    with keras.StatelessScope() as scope:
        model = build()
        try:
            fill(model)
        except BaseException:
            for weight in model.weights:
                keras_internals.set_initializer(weight, keras.initializers.Zeros())
            raise
        for weight in model.weights:
            value = scope.state_mapping.pop(id(weight), None)
            if value is not None:
                keras_internals.set_initializer(weight, lambda shape, dtype, value=value: value)
    return model


def _has_pooler(checkpoint):
    """Return whether a checkpoint's weights include a pooler."""
    names = checkpoint.encoder_map.theirs(_POOLER[0])
    return names is not None and names[0] in checkpoint.tensors


def backbone_of(cls, checkpoint, load_weights, may_stay_new=(), **kwargs):
    """Build the encoder of a foreign checkpoint; see `BertBackbone.from_preset`."""
    settings = checkpoint.encoder_settings()
    _check_family(cls, checkpoint)
    has_pooler = "pooler" in arguments_of(cls)
    if load_weights and has_pooler and "pooler" not in {**checkpoint.encoder, **kwargs}:
        settings["pooler"] = _has_pooler(checkpoint)
    settings.update(kwargs)
    if not load_weights:
        check_buildable(settings, checkpoint.source)
        return cls(**settings)

    # `tensors.size` opens the files, which for a KerasHub preset builds a model, outside of the
    # scope of `build_filled`.
    check_sizes(settings, checkpoint.tensors.size(), checkpoint.source)

    def fill(backbone):
        _check_tied(checkpoint, checkpoint.is_head, "kerasbert has one table for both.")
        load_named_weights(
            backbone.weights,
            checkpoint.tensors,
            checkpoint.encoder_map,
            checkpoint.source,
            lambda name: checkpoint.is_head(name) or name in checkpoint.tied,
            may_stay_new,
        )

    return build_filled(lambda: cls(**settings), fill)


def _check_family(cls, checkpoint, task=None):
    """Raise for a family that the encoder's class does not build.

    `BertBackbone` builds every family outside `lineage`.
    """
    own = getattr(cls, "family", None)
    if checkpoint.family in LINEAGE if own is None else checkpoint.family != own:
        room = "lineage" if checkpoint.family in LINEAGE else "models"
        source = f"'{checkpoint.source}' is of the family '{checkpoint.family}'"
        if task is None:
            raise ValueError(
                f"{source}, which {cls.__name__} does not support; load it with its class in "
                f"kerasbert.{room}."
            )
        heads = ", ".join(sorted(checkpoint.head_maps)) or "none"
        raise ValueError(
            f"{source}, which {task.__name__} does not support; kerasbert has these heads of the "
            f"family: {heads}, with classes in kerasbert.{room}."
        )


def task_of(cls, checkpoint, load_weights, **kwargs):
    """Build a task model of a foreign checkpoint, with its head or a requested new one."""
    _check_family(cls.backbone_cls, checkpoint, cls)
    arguments, preprocessor_arguments, encoder_arguments = _split_arguments(cls, kwargs)
    new_head = _wants_new_head(arguments)
    head_map = checkpoint.head_maps.get(tables_of(cls))
    settings = checkpoint.head.get(tables_of(cls), {})
    settings = dict(settings() if callable(settings) else settings)
    if cls.kind != tables_of(cls):
        # On top of those of the kind with the same weights (`like`).
        own = checkpoint.head.get(cls.kind, {})
        settings |= own() if callable(own) else own
    if cls.needs_head and not new_head:
        if tables_of(cls) in checkpoint.refused:
            raise ValueError(checkpoint.refused[tables_of(cls)])
        row = head_settings(checkpoint.family, cls.kind)
        weight = cls.output_weight({**row, **settings, **arguments})
        names = head_map and weight and head_map.theirs(weight)
        # A head without weights exists if its kind is supported.
        has_head = head_map if weight is None else names
        if not has_head or (load_weights and names and names[0] not in checkpoint.tensors):
            raise _no_head(cls, checkpoint.source, head_map is not None)
        if cls.kind in checkpoint.refused:
            raise ValueError(checkpoint.refused[cls.kind])
        if _has_classes(cls):
            own = arguments_of(cls)
            settings.update((k, v) for k, v in checkpoint.classes().items() if k in own)
            if load_weights:
                _check_classes(checkpoint, settings, names[0])
    arguments = {**settings, **arguments}
    if "preprocessor" not in arguments:
        arguments["preprocessor"] = cls.preprocessor_cls.from_checkpoint(
            checkpoint, **preprocessor_arguments
        )
    new = []
    if "backbone" not in arguments:
        row = {**head_settings(checkpoint.family, cls.kind), **arguments}
        if "pooler" in arguments_of(cls.backbone_cls):
            encoder_arguments.setdefault("pooler", cls.needs_pooler(row))
        pooler = encoder_arguments.get("pooler", False)
        if load_weights and new_head and pooler and not _has_pooler(checkpoint):
            new += _POOLER
        arguments["backbone"] = backbone_of(
            cls.backbone_cls, checkpoint, load_weights, new, **encoder_arguments
        )
    task = cls(**arguments)
    if load_weights and new_head:
        _warn_new([*new, *(weight.path for weight in head_weights(task))])
    elif load_weights and (cls.needs_head or head_map):
        head = head_weights(task)
        outside = _outside(head, head_map)
        _check_tied(
            checkpoint,
            outside,
            "its config.json ties them; set tie_word_embeddings to false there if both are "
            "intended, or load its encoder with new_head=True.",
        )
        load_named_weights(
            head,
            checkpoint.tensors,
            head_map,
            checkpoint.source,
            lambda name: outside(name) or name in checkpoint.tied,
        )
    return task


def _check_classes(checkpoint, settings, name):
    """Raise if the head's tensor has another number of classes."""
    count = settings.get("num_classes") or len(settings.get("labels") or ())
    shape = tuple(checkpoint.tensors.shape(name))
    if count and count not in shape:
        raise ValueError(
            f"The weights of '{checkpoint.source}' do not fit its configuration: {name} has the "
            f"shape {shape}, but num_classes={count}; download it again."
        )


def _outside(head, head_map):
    """Return a function of a tensor's name: is it outside of the head, by prefix."""

    def start(name):
        return re.match(r"(cls[./])?[^./]*", name)[0]  # Several heads have names with "cls".

    names = [name for weight in head for name in head_map.theirs(weight.path) or ()]
    starts = {start(name) for name in names}
    return lambda name: start(name) not in starts


def _check_tied(checkpoint, outside, why):
    """Raise if a stored tensor differs from the tensor that kerasbert ties it to."""
    tensors = checkpoint.tensors
    for name, original in checkpoint.tied.items():
        if name not in tensors or original not in tensors or outside(name):
            continue
        if not np.array_equal(tensors[name], tensors[original]):
            raise ValueError(
                f"'{checkpoint.source}' has a {name} that differs from its {original}, but {why}"
            )


# Presets of kerasbert


def own_backbone(cls, preset, load_weights, new=None, **kwargs):
    """Build the encoder of an `OwnPreset`.

    Paths of weights that the preset lacks are added to `new`.
    """
    config = preset.config()
    lacks_pooler = kwargs.get("pooler") and config.get("pooler") is False
    if lacks_pooler and load_weights and new is None:
        raise NoHeadError(
            f"The encoder in '{preset.directory}' has no pooler; remove pooler=True, or load a "
            "task with a new head, which may also get a new pooler."
        )

    def build():
        return cls.from_own_preset(preset.directory, load_weights=False, **kwargs)

    def fill(backbone):
        if lacks_pooler:
            held = own_backbone(cls, preset, load_weights, **{**kwargs, "pooler": False})
            held = {weight.path: weight for weight in held.weights}
            for weight in backbone.weights:
                if weight.path in held:
                    weight.assign(held[weight.path])
                else:
                    new.append(weight.path)
            return
        path = preset.encoder_weights()
        with preset.whole():
            backbone.load_weights(path)
        _check_finite(backbone.weights, preset.directory)

    if not load_weights:
        check_buildable({**config, **kwargs}, preset.directory)
        return build()
    check_sizes({**config, **kwargs}, preset.encoder_size(), preset.directory)
    return build_filled(build, fill)


def _check_finite(weights, directory):
    for weight in weights:
        if keras.backend.is_float_dtype(weight.dtype):
            value = keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))
            check_finite(weight.path, value, directory)


def own_task(cls, preset, load_weights, **kwargs):
    """Build a task of an `OwnPreset`.

    Its head is the preset's, one of its several heads, or new.
    """
    arguments, preprocessor_arguments, encoder_arguments = _split_arguments(cls, kwargs)
    saved_class, config = preset.task(cls)
    saved = config if issubclass(saved_class or object, cls) else None
    held = {name: (saved or {}).get(name) for name in _LAYERS}
    # A saved layer requests no new head.
    arguments = {x: v for x, v in arguments.items() if x not in held or v != held[x]}
    new_head = _wants_new_head(arguments)
    lost = [name for name in _LAYERS if held[name] and name in arguments]
    if lost and load_weights and not new_head:
        raise ValueError(
            f"{lost[0]}={arguments[lost[0]]!r} would leave out weights of the head in "
            f"'{preset.directory}', which has {lost[0]}={held[lost[0]]!r}; omit it, or pass "
            "new_head=True with the classes."
        )
    if load_weights:
        preset.check_classes(config)
    if saved_class is None and not new_head:
        name = read_json(preset.path("task.json")).get("registered_name")
        raise NoHeadError(
            f"'{preset.directory}' was saved by the class {name!r}, which is not registered with "
            "Keras in this process; import the module that registers it, or load the preset with "
            "that class."
        )
    if saved is None and cls.needs_head and not new_head:
        # A task of several heads, such as a pretrainer, can provide one.
        lender = kind_of(saved_class or object)
        if lender is None or cls.kind not in lender.parts:
            raise _no_head(cls, preset.directory)
        return _borrowed_task(cls, saved_class, config, preset, load_weights, **kwargs)
    saved = saved or {}
    if new_head:
        saved = {name: value for name, value in saved.items() if name not in _CLASSES}
    if "preprocessor" not in arguments:
        arguments["preprocessor"] = None
        if saved.get("preprocessor", True) is not None:
            arguments["preprocessor"] = cls.preprocessor_cls.from_own_preset(
                preset.directory, **preprocessor_arguments
            )
    new = [] if new_head else None
    if "backbone" not in arguments:
        arguments["backbone"] = own_backbone(
            cls.backbone_cls, preset, load_weights, new, **encoder_arguments
        )
    saved = cls.with_preprocessor_settings(saved, preprocessor_arguments)
    task = cls.from_config({**saved, **arguments})
    if load_weights and new_head:
        _warn_new([*new, *(weight.path for weight in head_weights(task))])
    elif load_weights and head_weights(task):
        task.load_task_weights(preset.path("task.weights.h5"))
        _check_finite(head_weights(task), preset.directory)
    return task


def _borrowed_task(cls, lender, config, preset, load_weights, **kwargs):
    """Build a task with the encoder and a head of a task of several heads."""
    arguments, preprocessor_arguments, encoder_arguments = _split_arguments(cls, kwargs)
    if "preprocessor" not in arguments and config.get("preprocessor") is not None:
        arguments["preprocessor"] = cls.preprocessor_cls.from_own_preset(
            preset.directory, **preprocessor_arguments
        )
    given = {"backbone": arguments["backbone"]} if "backbone" in arguments else {}
    whole = own_task(lender, preset, load_weights, preprocessor=None, **given, **encoder_arguments)
    shared = (arguments_of(cls) & config.keys()) - {"backbone", "preprocessor", "name"}
    task = cls(**{**{x: config[x] for x in shared}, "backbone": whole.backbone, **arguments})
    weights = {weight.path: weight for weight in whole.weights}
    missing = [weight.path for weight in head_weights(task) if weight.path not in weights]
    if missing:  # The combined task lacks this optional head.
        raise _no_head(cls, preset.directory)
    for weight in head_weights(task):
        weight.assign(weights[weight.path])
    return task

"""Presets with user-defined subclasses of models, preprocessors and tokenizers.

Such a preset names the base class, to load where the subclass is unknown, and beside it the
subclass with its additional settings.
"""

import functools
import json
import os

import keras
import numpy as np

from kerasbert.base import keras_internals
from kerasbert.base.errors import first_line
from kerasbert.base.files import read_json, write_text
from kerasbert.base.keywords import arguments, config_of, own_class
from kerasbert.base.parts import head_weights
from kerasbert.base.strict_json import to_json

# Methods that a subclass may override without changing its tokens.
_SAME_TOKENS = {"__init__", "get_config", "from_config"}


def own_object(name):
    """Return the registered class of a name, if of this package or a subclass, or `None`."""
    found = keras.saving.get_registered_object(name) if isinstance(name, str) else None
    return found if isinstance(found, type) and own_class(found) else None


# Saving


def rename_in(folder, saved):
    """Replace users' subclasses by their base classes in a saved JSON file.

    One that cannot be replaced stays if registered with Keras.

    Raises:
        ValueError: if subclasses share a registered name, or a base class cannot replace an
            unregistered one.
    """
    layers = [*keras_internals.flatten_layers(saved, include_self=False), saved]
    layers = [*getattr(saved, "tasks", {}).values(), *layers]
    users = [one for one in layers if own_class(type(one)) not in (None, type(one))]
    names = {}

    @functools.cache
    def twin(layer):
        return _twin(layer, own_class(type(layer)), names)

    for one in users:
        cls, name = type(one), keras.saving.get_registered_name(type(one))
        if type(names.get(name, one)) is not cls:
            raise ValueError(f"Two classes are registered as '{name}'; rename one of them.")
        if name not in names and hasattr(one, "save_to_preset") and _may_be_renamed(one, twin):
            names[name] = one
    if not names:
        return
    default = "task.json" if hasattr(saved, "backbone") else "config.json"
    path = os.path.join(folder, getattr(saved, "config_file", default))
    config = read_json(path)
    if saved in names.values():
        whole = {**config_of(saved), **own_class(type(saved)).get_config(saved)}
        config["config"] = _serialized(whole)
    write_text(path, to_json(_renamed(config, names), indent=4))
    if any(task in names.values() for task in getattr(saved, "tasks", {}).values()):
        _copy_weights(head_weights(saved), head_weights(twin(saved)))
        twin(saved).save_task_weights(os.path.join(folder, "task.weights.h5"))


def _serialized(config):
    # KerasHub does not save the configs of `compile` and `build` either.
    plain = {name: keras.saving.serialize_keras_object(value) for name, value in config.items()}
    return json.loads(to_json(_without_build(plain)))


def _without_build(config):
    if isinstance(config, dict):
        left_out = ("compile_config", "build_config")
        return {k: _without_build(v) for k, v in config.items() if k not in left_out}
    return [_without_build(v) for v in config] if isinstance(config, (list, tuple)) else config


def _renamed(saved, names):
    """Replace subclasses in a serialized object by their base classes.

    `names` is a dict of registered name to an instance.
    """
    if isinstance(saved, list):
        return [_renamed(part, names) for part in saved]
    if not isinstance(saved, dict):
        return saved
    saved = {name: _renamed(part, names) for name, part in saved.items()}
    layer = names.get(saved.get("registered_name"))
    if layer is None or not isinstance(saved.get("config"), dict):
        return saved
    own, config = own_class(type(layer)), saved["config"]
    known = arguments(own) | own.get_config(layer).keys()
    kept = {
        "registered_name": keras.saving.get_registered_name(own),
        "config": {name: value for name, value in config.items() if name in known},
    }
    if "class_name" not in saved:
        # Tasks of a multi-task model are saved as their base class, by which Keras names weights.
        return {**saved, **kept}
    more = {name: value for name, value in config.items() if name not in known}
    subclass = {"registered_name": saved["registered_name"], "config": more}
    named = {"module": own.__module__, "class_name": own.__name__}
    return {**saved, **named, **kept, "subclass": subclass}


def _may_be_renamed(layer, twin):
    """Return whether the base class can replace a subclass; raise for other unregistered ones."""
    cls = type(layer)
    own, name = own_class(cls), keras.saving.get_registered_name(cls)
    reason = _difference(layer, cls, own, twin)
    if reason and keras.saving.get_registered_object(name) is not cls:
        raise ValueError(
            f"{cls.__name__} cannot be saved as its base class {own.__name__}: {reason}. Register "
            "it with @keras.saving.register_keras_serializable(), and load the preset where it is "
            "registered."
        )
    return not reason


def _difference(layer, cls, own, twin):
    """Return why the copy `twin(layer)` of the base class would behave differently, or ""."""
    if not isinstance(layer, keras.Model):
        between = cls.__mro__[: cls.__mro__.index(own)]
        changed = {name for one in between for name in vars(one) if callable(getattr(one, name))}
        changed = sorted(name for name in changed - _SAME_TOKENS if hasattr(own, name))
        return f"it overrides {', '.join(changed)}" if changed else ""
    held = head_weights(layer) if hasattr(layer, "backbone") else layer.weights
    try:
        made = twin(layer)
    except (TypeError, ValueError) as error:
        return f"its settings do not build one ({first_line(error)})"
    new = head_weights(made) if hasattr(layer, "backbone") else made.weights
    own_shapes = {weight.path: tuple(weight.shape) for weight in new}
    more = [w.path for w in held if own_shapes.pop(w.path, None) != tuple(w.shape)]
    if more or own_shapes:
        return f"it has other weights ({', '.join([*more, *own_shapes][:5])})"
    if cls.call is not own.call and not _same_outputs(layer, made, held, new):
        return "its call() returns other outputs"
    return ""


def _twin(layer, own, names):
    """Build a model of the base class `own` with the settings and the encoder of a subclass."""
    config = _renamed(own.get_config(layer), names)
    if hasattr(layer, "backbone"):
        config |= {"backbone": layer.backbone, "preprocessor": layer.preprocessor}
    return own.from_config(config)


def _copy_weights(held, new):
    for weight, own in zip(new, held, strict=True):
        weight.assign(keras.ops.convert_to_numpy(own))


def _same_outputs(layer, twin, held, new):
    _copy_weights(held, new)
    inputs = {
        x.name: np.ones([size or 4 for size in x.shape], keras.backend.standardize_dtype(x.dtype))
        for x in keras.tree.flatten(layer.input)
    }
    pairs = zip(
        keras.tree.flatten(layer(inputs, training=False)),
        keras.tree.flatten(twin(inputs, training=False)),
        strict=True,
    )
    arrays = [[keras.ops.convert_to_numpy(one) for one in pair] for pair in pairs]
    return all(np.allclose(*pair, atol=1e-5) for pair in arrays)


# Loading


def with_known(saved):
    """Restore registered subclasses in a serialized object, at any depth."""
    if isinstance(saved, list):
        return [with_known(part) for part in saved]
    if not isinstance(saved, dict):
        return saved
    saved = {name: with_known(part) for name, part in saved.items()}
    subclass = saved.pop("subclass", None)
    known = isinstance(subclass, dict) and own_object(subclass.get("registered_name"))
    if not known or own_class(known) is not own_object(saved.get("registered_name")):
        return saved
    return {
        **saved,
        "module": known.__module__,
        "class_name": known.__name__,
        "registered_name": subclass["registered_name"],
        "config": {**saved["config"], **_more(subclass)},
    }


def as_called(saved, cls):
    """Return `(class, config)` of a serialized object for `cls.from_preset`.

    For different subclasses of one base class, the config has the additional settings that `cls`
    takes.
    """
    plain, known = with_known({**saved, "subclass": None}), with_known(saved)
    name = saved.get("registered_name")
    own = own_class(cls)
    if cls is not own and name == keras.saving.get_registered_name(cls):
        # A preset names the subclass if an earlier version wrote it, or if the base class cannot
        # replace it.
        return cls, plain.get("config")
    found = own_object(known.get("registered_name"))
    if cls in (own, found) or found is None or own_class(found) is not own:
        return found, known.get("config")
    more = {k: v for k, v in _more(saved.get("subclass")).items() if k in arguments(cls)}
    return cls, {**plain["config"], **more}


def _more(subclass):
    config = subclass.get("config") if isinstance(subclass, dict) else None
    return config if isinstance(config, dict) else {}

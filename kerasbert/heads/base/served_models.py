"""The `Served` of a model, and presets of `Served.save`."""

import os

import keras

from kerasbert.base import keras_internals
from kerasbert.base.files import read_json
from kerasbert.base.lazy import load_models
from kerasbert.heads.base.task import BertTask
from kerasbert.kinds import ENCODER, KINDS, SEARCH_INDEX, SERVED, kind_of, kinds_with


def served(model, preprocessor=None, labels=None, settings=None, call="export_serving"):
    """Return the `Served` of a model.

    Raises:
        TypeError: for a model that cannot be served.
    """
    # Besides tasks, only the encoder can be exported as a graph that takes token ids.
    others = SERVED if call == "export_serving" else (ENCODER,)
    # By class name: tasks of `lineage` may lack the methods of their kind's class.
    known = {row.model: row for row in (*KINDS.values(), *others) if row.served}
    # Only classes of this package count, because KerasHub has the same names.
    is_task = isinstance(model, BertTask)
    classes = type(model).__mro__
    names = [x.__name__ for x in classes if is_task or x.__module__.startswith("kerasbert.")]
    kind = next((known[name] for name in names if name in known), None)
    is_class = isinstance(model, type)
    if SEARCH_INDEX in others and getattr(model, "kind", None) == SEARCH_INDEX.name:
        kind = None if is_class else SEARCH_INDEX  # Results of `ServedIndex.read`.
    if kind is None:
        wrong = f"the class {model.__name__}" if is_class else f"a {type(model).__name__}"
        names = ", ".join(row.model for row in (*kinds_with("served"), *others))
        raise TypeError(f"{call} supports {names}, got {wrong}.")
    if hasattr(model, "check_export"):
        model.check_export()
    return kind.load("served")(model, preprocessor, labels, settings)


def saved_class(model):
    """Return the registered name of a model's kerasbert class."""
    if getattr(model, "kind", None) == SEARCH_INDEX.name:
        return SEARCH_INDEX.name
    kind = kind_of(model)
    own = kind and kind.model and keras.saving.get_registered_name(kind.load("model"))
    names = map(keras.saving.get_registered_name, type(model).__mro__)
    return next(name for name in names if name == own or name.startswith("kerasbert>"))


def load(preset, name, mode=None):
    """Return `(model, preprocessor)` of a preset, in float32 unless it is quantized.

    The preprocessor is `None` if the model has its own.
    """
    if name == SEARCH_INDEX.name:
        return SEARCH_INDEX.load("served").read(preset), None
    load_models()
    cls = keras.saving.get_registered_object(name)
    model = cls.from_preset(preset, **({} if mode else {"dtype": "float32"}))
    preprocessor, own = None, os.path.join(preset, "preprocessor")
    if os.path.exists(own):
        name = read_json(os.path.join(own, "preprocessor.json"))["registered_name"]
        preprocessor = keras.saving.get_registered_object(name).from_preset(own)
    return model, preprocessor


def quantization_modes(model):
    """Return the set of a model's quantization modes."""
    policies = [layer.dtype_policy for layer in keras_internals.flatten_layers(model)]
    return {getattr(policy, "quantization_mode", None) for policy in policies} - {None}

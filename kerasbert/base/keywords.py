"""Reject unknown keyword arguments and suggest the closest known one."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import keras

from kerasbert.base import keras_internals
from kerasbert.base.errors import did_you_mean

if TYPE_CHECKING:
    from typing import Any

# Keywords that KerasHub and Keras consume themselves.
_TAKEN_OUT = {
    "config_file",
    keras_internals.PYTHON_WORKFLOW,
    "input_shape",
    "input_dim",
    "rms_scaling",
}


def check_keyword(owner, name, known):
    """Raise a `ValueError` for an unknown keyword."""
    if name in known:
        return
    hint = did_you_mean(name, known, f"; it takes {', '.join(sorted(known))}.")
    raise ValueError(f"{owner} has no argument '{name}'{hint}")


class ChecksKeywords:
    """Mixin that rejects unknown keywords; must be the first base class.

    Keras' models ignore them; layers and optimizers raise without a suggestion.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        for name in kwargs.keys() - arguments(cls) - _TAKEN_OUT:
            _check_parts(cls, name)
            check_keyword(cls.__name__, name, arguments(cls) - {"inputs", "outputs"})
        super().__init__(*args, **kwargs)


@functools.cache
def arguments(cls):
    """Return a constructor's arguments, with those of base classes except `replaced_bases`.

    >>> from kerasbert.layers import Pooling
    >>> sorted(arguments(Pooling))
    ['activity_regularizer', 'autocast', 'dtype', 'mode', 'name', 'trainable']
    """
    names = set()
    for base in inspect.getmro(cls):
        if base is keras.Model:
            # A functional model ignores other arguments.
            return names | {"inputs", "outputs", "name", "trainable"}
        passed_over = (object, ChecksKeywords, *getattr(cls, "replaced_bases", ()))
        if "__init__" in vars(base) and base not in passed_over:
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            names |= {p.name for p in parameters if p.kind in kinds}
    return names


# Arguments of `from_preset` itself.
_OF_FROM_PRESET = ("load_weights", "new_head", "preset")


def _check_parts(cls, name):
    """Raise, with its owner, for an argument of a task's part or of `from_preset`."""
    is_task = issubclass(cls, keras.Model)
    parts = {
        "backbone": getattr(cls, "backbone_cls", None) if is_task else None,
        "preprocessor": getattr(cls, "preprocessor_cls", None) if is_task else None,
    }
    parts["tokenizer"] = getattr(parts["preprocessor"] or cls, "usual_tokenizer", None)
    for role, part in parts.items():
        if part not in (None, cls) and name in arguments(part):
            raise ValueError(
                f"{cls.__name__} has no argument '{name}', which is its {role}'s; pass it to "
                f"{part.__name__}."
            )
    if name in _OF_FROM_PRESET and hasattr(cls, "from_preset"):
        raise ValueError(
            f"{cls.__name__} has no argument '{name}', which is one of from_preset: "
            f"{cls.__name__}.from_preset(preset, ...)."
        )


def own_class(cls):
    """Return the nearest class in the MRO that this package registers, or `None`.

    >>> from kerasbert.layers import Pooling
    >>> own_class(type("Mine", (Pooling,), {})).__name__
    'Pooling'
    """
    for one in inspect.getmro(cls):
        name = keras.saving.get_registered_name(one)
        if one.__module__.startswith("kerasbert.") and name.startswith("kerasbert>"):
            return one
    return None


def config_of(layer):
    """Return a layer's config, also without `get_config` of a subclass.

    Omitted constructor arguments are read from attributes.

    Raises:
        ValueError: for an argument that is neither in `get_config()` nor an attribute.
    """
    config, cls = layer.get_config(), type(layer)
    own = own_class(cls)
    if own in (None, cls):
        return config
    for name in sorted(arguments(cls) - arguments(own) - config.keys()):
        if not hasattr(layer, name):
            raise ValueError(
                f"{cls.__name__} takes the argument '{name}', which is neither in its get_config() "
                "nor an attribute of that name; add it to get_config()."
            )
        config = {**config, name: getattr(layer, name)}
    return config

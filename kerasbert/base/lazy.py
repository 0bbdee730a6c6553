"""Lazy imports, for circular imports and for modules that are slow to import."""

import importlib
import warnings


def load_module(name):
    """Import a module of this package by its path below `kerasbert`, such as "search.index"."""
    importlib.import_module("kerasbert.base.host")
    return importlib.import_module(f"kerasbert.{name}")


def load_models():
    """Import all classes that this package registers with Keras.

    `keras.models.load_model` and KerasHub's loader find only these. Models import layers, losses
    and optimizers.
    """
    load_module("models")
    load_module("lineage")


def deprecated(module, homes):
    """Return a `__getattr__` that finds moved names, with a deprecation warning.

    Args:
        module: the module's full name.
        homes: dict of name to new module below `kerasbert`; "" is the package.
    """

    def find(name):
        if name not in homes:
            raise AttributeError(f"module '{module}' has no attribute {name!r}")
        home = f"kerasbert.{homes[name]}".rstrip(".")
        warnings.warn(
            f"{module}.{name} is deprecated and will be removed; use {home}.{name}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(home), name)

    return find

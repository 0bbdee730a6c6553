"""Imports by name, of modules that import the one that needs them, or that are slow to import."""

import importlib
import warnings


def load_module(name):
    """Import a module of this package by its path below `kerasbert`, such as "search.index"."""
    return importlib.import_module(f"kerasbert.{name}")


def load_models():
    """Import every class that is registered with Keras, which a test checks.

    `keras.models.load_model` and KerasHub's loader know only registered classes. `lineage` imports
    `models`, and with them the layers, losses and optimizers.
    """
    load_module("lineage")


def deprecated(module, homes):
    """Return the `__getattr__` of a module for names that are no longer public in it.

    Args:
        module: string. The module's full name.
        homes: dict of each name to the module that has it now, below `kerasbert`; "" is the
            package itself.
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

"""Imports by name, of modules that import the one that needs them, or that are slow to import."""

import importlib


def load_module(name):
    """Import a module of this package by its path below `kerasbert`, such as "search.index"."""
    return importlib.import_module(f"kerasbert.{name}")


def load_models():
    """Import every class that is registered with Keras, which a test checks.

    `keras.models.load_model` and KerasHub's loader know only registered classes. `lineage` imports
    `models`, and with them the layers, losses and optimizers.
    """
    load_module("lineage")

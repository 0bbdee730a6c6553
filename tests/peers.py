"""Packages for comparison in tests marked `peers`, imported when first used.

README's test command installs none of them, but collects these files.
"""

import importlib


class Peer:
    """A package by name; the first attribute access imports it, or fails."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("__"):  # Pytest looks for some attributes during collection.
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)

    def __dir__(self):
        return dir(importlib.import_module(self._name))


torch = Peer("torch")
transformers = Peer("transformers")
safetensors_torch = Peer("safetensors.torch")
onnx = Peer("onnx")
onnxruntime = Peer("onnxruntime")
nbformat = Peer("nbformat")
keras_rs = Peer("keras_rs")
sentence_transformers = Peer("sentence_transformers")

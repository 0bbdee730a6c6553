"""Deferred import of the models, so that `import kerasbert` does not import Keras.

`keras.models.load_model` needs the modules of the classes in a file, so these are imported together
with Keras, whether it comes before or after kerasbert.
"""

import importlib.util
import sys
import threading

# Importing these registers all serializable classes, which a test checks.
_MODELS = ("kerasbert.models", "kerasbert.lineage")


def load_with_keras():
    """Import the models now if Keras is imported, otherwise as soon as it is."""
    if "keras" in sys.modules:
        _load()
    else:
        sys.meta_path.insert(0, _Finder())


def _load():
    for name in _MODELS:
        importlib.import_module(name)


class _Finder:
    """Import hook that imports the models after Keras.

    If KerasHub or a module of this package imports Keras, it is incomplete itself, so the hook
    waits for the outermost of these imports.
    """

    def __init__(self):
        self._thread = threading.local()

    def find_spec(self, name, path=None, target=None):
        if name not in ("keras", "keras_hub") and not name.startswith("kerasbert."):
            return None
        if getattr(self._thread, "is_looking", False):
            return None
        self._thread.is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._thread.is_looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def run(self, load):
        """Load a module, and then the models if it was the outermost one."""
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        try:
            load()
        finally:
            self._thread.depth = depth
        if depth == 0 and "keras" in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            _load()


class _Loader:
    """Wrapper of a module's own loader, which the module gets back on execution."""

    def __init__(self, loader, finder):
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._loader, name)  # `python -m` needs further methods of the loader.

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._finder.run(lambda: self._loader.exec_module(module))

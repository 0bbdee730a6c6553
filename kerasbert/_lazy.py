"""What `import kerasbert` puts off: its own modules, which bring Keras and TensorFlow along.

Keras finds the classes in a `.keras` file by their registered names, which it knows once the
modules that hold them are imported. So these are imported with Keras, whichever comes first.
"""

import importlib.util
import sys
import threading

# With all that it imports it registers everything; a test compares.
_MODELS = ("kerasbert.models", "kerasbert.lineage")


def load_with_keras():
    """Import the models now if Keras is there, or else as soon as it is."""
    if "keras" in sys.modules:
        _load()
    else:
        sys.meta_path.insert(0, _Finder())


def _load():
    for name in _MODELS:
        importlib.import_module(name)


class _Finder:
    """Notes when the import of Keras, or of a module of ours, is over.

    KerasHub or a module of ours may be what imports Keras, and then is not whole yet: the models
    wait until the outermost of them is.
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
        """Load a module; the models after it, where it was the outermost."""
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
    """A module's own loader, which the module keeps."""

    def __init__(self, loader, finder):
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._loader, name)  # `python -m` asks for more than an import does.

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._finder.run(lambda: self._loader.exec_module(module))

"""`import kerasbert` is cheap, and Keras knows its classes as soon as both are imported."""

import os
import subprocess
import sys

import pytest

import kerasbert

# A process for each: the backend does not matter.
pytestmark = pytest.mark.backends("torch")


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_package_alone_loads_no_library():
    heavy = {"keras", "keras_hub", "tensorflow", "torch", "jax", "numpy", "h5py", "transformers"}
    code = "import sys, kerasbert, kerasbert.cli; print(*sys.modules)"
    assert not heavy & set(run(code).split())


KNOWN = "import keras; assert keras.saving.get_registered_object('kerasbert>BertTextClassifier')"

IN_A_THREAD = """
import threading, kerasbert
thread = threading.Thread(target=__import__, args=("keras",))
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    "first",
    [
        "import kerasbert",
        pytest.param("import keras, kerasbert", marks=pytest.mark.slow),
        pytest.param("import kerasbert, keras_hub", marks=pytest.mark.slow),
        # What imports Keras here is not whole yet while it does.
        "from kerasbert.tokenizers.wordpiece import BertTokenizer",
        pytest.param(IN_A_THREAD, marks=pytest.mark.slow),
    ],
)
def test_keras_knows_the_classes(first):
    run(f"{first}\n{KNOWN}")


@pytest.mark.slow
def test_the_models_bring_all_that_is_registered():
    code = """
import pkgutil, keras, kerasbert.models
names = set(keras.saving.get_custom_objects())
for module in pkgutil.walk_packages(kerasbert.__path__, "kerasbert."):
    __import__(module.name)
print(*set(keras.saving.get_custom_objects()) - names, sep="\\n")
"""
    assert not [name for name in run(code).split() if name.startswith("kerasbert>")]


@pytest.mark.slow
def test_modules_keep_their_loaders():
    code = """
import importlib.resources, inspect, kerasbert, keras, kerasbert.layers.norm as norm
assert "def " in inspect.getsource(keras.Model) and "class " in inspect.getsource(norm)
assert type(keras.__loader__) is type(norm.__loader__) is type(inspect.__loader__)
assert (importlib.resources.files("keras") / "__init__.py").is_file()
"""
    run(code)


def test_names():
    assert set(kerasbert.__all__) <= set(dir(kerasbert))
    assert all(
        getattr(kerasbert, name).__name__.split(".")[-1] == name for name in kerasbert.__all__
    )
    with pytest.raises(AttributeError, match="module 'kerasbert' has no attribute 'converts'"):
        kerasbert.converts  # noqa: B018

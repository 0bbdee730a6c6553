"""`import kerasbert` is cheap, and Keras knows its classes as soon as both are imported."""

import json
import os
import subprocess
import sys

import pytest

import kerasbert

# In processes of their own: the backend does not matter.
pytestmark = pytest.mark.backends("torch")


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    sys.stderr.write(done.stderr)
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
FIRST = [
    "import kerasbert",
    "import keras, kerasbert",
    "import kerasbert, keras_hub",
    # What imports Keras here is not whole yet while it does.
    "from kerasbert.tokenizers.wordpiece import BertTokenizer",
    IN_A_THREAD,
]
ALL_MODULES = """
import pkgutil, keras, kerasbert.models
names = set(keras.saving.get_custom_objects())
for module in pkgutil.walk_packages(kerasbert.__path__, "kerasbert."):
    __import__(module.name)
more = set(keras.saving.get_custom_objects()) - names
assert not [name for name in more if name.startswith("kerasbert>")], more
"""
LOADERS = """
import importlib.resources, inspect, kerasbert, keras, kerasbert.layers.norm as norm
assert "def " in inspect.getsource(keras.Model) and "class " in inspect.getsource(norm)
assert type(keras.__loader__) is type(norm.__loader__) is type(inspect.__loader__)
assert (importlib.resources.files("keras") / "__init__.py").is_file()
"""
# What takes longest to import, and knows neither Keras nor us, is there before the forks.
FORKS = """
import json, os, sys, traceback
import triton, torch, numpy, scipy.stats, sklearn.metrics, h5py
assert not {"keras", "keras_hub", "kerasbert"} & set(sys.modules)
failed = []
for number, code in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if child == 0:
        try:
            exec(code, {"__name__": "__main__"})
            end = 0
        except BaseException:
            traceback.print_exc()
            end = 1
        sys.stderr.flush()
        os._exit(end)
    if os.waitpid(child, 0)[1]:
        failed.append(number)
print("failed:", failed)
"""


@pytest.fixture(scope="module")
def failed():
    """Which codes fail, each in a process that imported neither Keras nor the package before."""
    codes = [*(f"{first}\n{KNOWN}" for first in FIRST), ALL_MODULES, LOADERS]
    found = json.loads(run(FORKS, json.dumps(codes)).splitlines()[-1].removeprefix("failed: "))
    return [codes[number] for number in found]


@pytest.mark.peers
@pytest.mark.parametrize("first", FIRST)
def test_keras_knows_the_classes(failed, first):
    assert f"{first}\n{KNOWN}" not in failed


@pytest.mark.peers
def test_the_models_bring_all_that_is_registered(failed):
    assert ALL_MODULES not in failed


@pytest.mark.peers
def test_modules_keep_their_loaders(failed):
    assert LOADERS not in failed


def test_names():
    assert set(kerasbert.__all__) <= set(dir(kerasbert))
    assert all(
        getattr(kerasbert, name).__name__.split(".")[-1] == name for name in kerasbert.__all__
    )
    with pytest.raises(AttributeError, match="module 'kerasbert' has no attribute 'converts'"):
        kerasbert.converts  # noqa: B018

"""`import kerasbert` is cheap, and any use of it registers its classes with Keras."""

import ast
import importlib
import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest

import kerasbert

# In separate processes, so the backend does not matter.
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

FIRST = [
    "import keras, kerasbert",
    "import kerasbert; kerasbert.losses",
    "import kerasbert.models",
    "from kerasbert import SearchIndex",
]
ALL_MODULES = """
import pkgutil, keras, kerasbert.models
names = set(keras.saving.get_custom_objects())
for module in pkgutil.walk_packages(kerasbert.__path__, "kerasbert."):
    __import__(module.name)
more = set(keras.saving.get_custom_objects()) - names
assert not [name for name in more if name.startswith("kerasbert>")], more
"""
# A preset also names its encoder, so `from_preset` registers the models.
TOKENIZER = """
from kerasbert.text.wordpiece import BertTokenizer
assert len(BertTokenizer.from_preset("bert_tiny_demo_en_uncased")("good")) == 1
"""
# The slowest imports, which involve neither Keras nor kerasbert, are done before the forks.
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
    """Return which programs fail, each in a process that imported neither Keras nor the package
    before.
    """
    codes = [*(f"{first}\n{KNOWN}" for first in FIRST), ALL_MODULES, TOKENIZER]
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
def test_a_tokenizer_alone_loads_presets(failed):
    assert TOKENIZER not in failed


@pytest.mark.parametrize(
    "module, name, home",
    [
        ("losses", "TokenMean", "kerasbert.losses.logits"),
        ("layers", "ChoicesToRows", "kerasbert.layers.heads"),
        ("lineage", "MarianTokenizer", "kerasbert.tokenizers"),
        ("presets", "builtin_presets", "kerasbert"),
        ("search", "SearchIndex", "kerasbert"),
    ],
)
def test_deprecated_names(module, name, home):
    module = getattr(kerasbert, module)
    assert name not in module.__all__
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated .* use {home}.{name}"):
        found = getattr(module, name)
    assert found is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="has no attribute 'Foo'"):
        module.Foo  # noqa: B018


HOST = """
import ctypes, os, sys
KERAS
load, loaded = ctypes.CDLL, []
ctypes.CDLL = lambda name, *more, **named: loaded.append(name) or load(name, *more, **named)
before = dict(os.environ), list(sys.meta_path)
import kerasbert
assert (dict(os.environ), sys.meta_path) == before
assert None not in loaded  # Options of glibc's allocator are set through it.
import kerasbert.models
BertBackbone = kerasbert.models.BertBackbone
assert None not in loaded
BertBackbone(vocabulary_size=7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4)
assert os.name != "posix" or sys.platform != "linux" or None in loaded
"""


@pytest.mark.parametrize("keras", ["", "import keras"])
def test_the_host_process_stays_as_it_is(keras):
    """Until a model is built, the package sets no variable or allocator option, and installs no
    import hook.
    """
    run(HOST.replace("KERAS", keras))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_openmp_is_set_for_pytorch_alone(backend):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    code = f"import os; os.environ['KERAS_BACKEND'] = '{backend}'; "
    code += f"[os.environ.pop(name, None) for name in {names}]; "
    code += f"from kerasbert.base import host; print([n for n in {names} if n in os.environ])"
    assert run(code).splitlines()[-1] == str(list(names) if backend == "torch" else [])


def test_public_rooms_prepare_before_keras():
    """Each public package imports `base.host` before any module that may import Keras."""
    package = pathlib.Path(kerasbert.__file__).parent
    rooms = {n for n in kerasbert.__all__ if inspect.ismodule(getattr(kerasbert, n))} | {"export"}
    for room in rooms:
        path = package / room / "__init__.py"
        path = path if path.exists() else package / f"{room}.py"
        tree = ast.parse(path.read_text())
        imports = [x for x in tree.body if isinstance(x, (ast.Import, ast.ImportFrom))]
        roots = [ast.unparse(x) for x in imports]
        first = roots.index("from kerasbert.base import host")
        before = {x.split()[1].partition(".")[0] for x in roots[:first]}
        assert before <= {"__future__", *sys.stdlib_module_names}, path


def test_type_checkers_see_the_same_names():
    """The package's imports for them match its imports on first use."""
    tree = ast.parse(pathlib.Path(kerasbert.__file__).read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    shown = {name.name: f"{line.module}.{name.name}" for line in block.body for name in line.names}
    functions = {n: f"kerasbert.{module}.{n}" for n, module in kerasbert._FUNCTIONS.items()}
    assert shown == {**{name: f"kerasbert.{name}" for name in kerasbert.__all__}, **functions}


def test_names():
    assert set(kerasbert.__all__) <= set(dir(kerasbert))
    assert all(
        getattr(kerasbert, name).__name__.split(".")[-1] == name for name in kerasbert.__all__
    )
    with pytest.raises(AttributeError, match="module 'kerasbert' has no attribute 'converts'"):
        kerasbert.converts  # noqa: B018

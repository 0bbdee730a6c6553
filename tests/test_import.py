"""`import kerasbert` is cheap, and any use of it registers its classes with Keras."""

import ast
import importlib
import os
import pathlib
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


@pytest.mark.parametrize(
    "first",
    [
        "import keras, kerasbert",
        "import kerasbert; kerasbert.losses",
        pytest.param("import kerasbert.models", marks=pytest.mark.slow),
        pytest.param("from kerasbert import SearchIndex", marks=pytest.mark.slow),
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
def test_a_tokenizer_alone_loads_presets():
    """A preset names its encoder too, so `from_preset` registers the models."""
    code = """
from kerasbert.tokenizers.wordpiece import BertTokenizer
assert len(BertTokenizer.from_preset("bert_tiny_demo_en_uncased")("good")) == 1
"""
    run(code)


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


def test_no_import_hook():
    run(
        "import sys; before = list(sys.meta_path); import kerasbert; assert sys.meta_path == before"
    )


def test_type_checkers_see_the_same_names():
    """Those that the top imports for them are those that it imports on first use."""
    tree = ast.parse(pathlib.Path(kerasbert.__file__).read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
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

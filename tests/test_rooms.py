"""What import-linter cannot see: imports by a name in a string, and walks through the house."""

import ast
import importlib
import pathlib
import re
import sys

import pytest

import kerasbert
from kerasbert.kinds import kinds_with
from kerasbert.models import (
    BertBackbone,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)

PACKAGE = pathlib.Path(kerasbert.__file__).parent
HERE = pathlib.Path(__file__).parent
CONTRIBUTING = PACKAGE.parent / "CONTRIBUTING.md"
# They hold public names alone.
PUBLIC = {"models", "preprocessors", "tokenizers"}
# Not on the way of a text: checks, settings, the optimizer's step, and what makes a model once.
BESIDE = re.compile(
    r"base/(aliases|errors|finite|from_preset|host|keras_internals|keywords|lazy|memory|parts)\.py"
    r"|base/(process|strict_json|triton)\.py|families/.*|kinds\.py|optimizers/.*|metrics/.*"
    r"|text/(class_numbers|text_warnings|label_warnings)\.py|heads/base/(compiling|head_metrics)\.py"
    r"|encoder/(building|feature_model|functional|keras_export)\.py"
)
# Public names and models on first use, kinds, the backend, and other packages.
MAY_IMPORT_BY_NAME = {
    "__init__.py",
    "base/lazy.py",
    "base/process.py",
    "backend/__init__.py",
    "backend/tensorflow.py",
    "heads/base/served.py",
    "measuring/contestant.py",
    "data/corpus.py",
    "data/text_files.py",
    "base/from_preset.py",
    "kinds.py",
}


def test_each_room_has_its_tests():
    """A folder of the package has one of the same name here."""
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    tested = {path.relative_to(HERE).parts[0] for path in HERE.glob("*/**/test_*.py")}
    assert tested - {"campaigns", "examples", "trials"} == rooms - PUBLIC


def calls(tree):
    return {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }


def test_few_files_import_by_name():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if {"import_module", "__import__", "load_module", "load_models"} & calls(
            ast.parse(path.read_text())
        ):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == MAY_IMPORT_BY_NAME


def test_lower_rooms_do_not_ask_the_package_for_public_modules():
    """Its `__getattr__` imports the models, which import these rooms and find them half loaded."""
    above = {"cli", "converter.py", "play", "training"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "kerasbert":
                if set(kerasbert.__all__) & {name.name for name in node.names}:
                    found.add(path.relative_to(PACKAGE).parts[0])
    assert found - {"__init__.py"} <= above


@pytest.mark.parametrize("part, base", [("model", "Backbone"), ("preprocessor", "Preprocessor")])
def test_the_public_classes_of_each_kind(part, base):
    """Those that `kinds` names are those that the public room has, but for the base and imports."""
    public = vars(importlib.import_module(f"kerasbert.{part}s"))
    others = set(kerasbert.tokenizers.__all__)
    if part == "model":
        others |= set(kerasbert.preprocessors.__all__)
    own = set(public["__all__"]) - others
    assert {getattr(kind, part) for kind in kinds_with(part)} | {f"Bert{base}"} == own


def test_public_rooms_only_import():
    """They have imports, `__all__` and tables of classes, but no code to test."""
    for room in PUBLIC:
        tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
        allowed = (ast.ImportFrom, ast.Assign, ast.Expr)
        assert all(isinstance(node, allowed) for node in tree.body), room
        assert [path.name for path in (PACKAGE / room).glob("*.py")] == ["__init__.py"]


def imported():
    """What our files import from our own packages: file, line, module and name."""
    for folder in ("kerasbert", "tests", "benchmarks", "examples", "docs"):
        for path in (PACKAGE.parent / folder).rglob("*.py"):
            # These are of a kind of model that a test puts into a copy of the package.
            if "trials" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or not node.module:
                    continue
                if node.module.startswith("kerasbert."):
                    for name in node.names:
                        yield path, node.lineno, node.module, name.name


def test_what_is_imported_is_there():
    """Within functions too, which run in slow tests and benchmarks alone."""
    missing = []
    for path, line, module, name in imported():
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            # A package of an extra may be missing; a module of ours may not.
            if error.name.startswith("kerasbert"):
                missing.append(f"{path}:{line} {module}.{name}")
    assert missing == []


def entered(function):
    """The files of the package that a call enters, in the order of their first function."""
    found = {}

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{PACKAGE}/"):
            found[path.removeprefix(f"{PACKAGE}/")] = None

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return list(found)


@pytest.mark.backends("torch")  # Which runs its Python at each step.
def test_the_walk_of_a_text_is_as_described():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    walk = text[
        text.index("**From a text to its loss**") : text.index("**From text files to a preset**")
    ]
    stations = re.findall(r"^\d+\. `([^`]+)`", walk, re.M)
    tools = re.findall(r"`((?:\w+/)+\w*\.?\w*)`", walk.partition("files use tools")[2])
    assert len(stations) <= 10

    def train():
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
        sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
        model = BertTextClassifier(
            BertBackbone(vocabulary_size=7, **sizes),
            labels=["no", "yes"],
            preprocessor=BertTextClassifierPreprocessor(BertTokenizer(tokens)),
        )
        model.fit(["good", "bad good"], ["yes", "no"], verbose=0)

    files = entered(train)
    assert set(stations) <= set(files)
    others = [file for file in files if file not in stations and not BESIDE.fullmatch(file)]
    assert [file for file in others if not file.startswith(tuple(tools))] == []

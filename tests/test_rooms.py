"""The structure, beyond import-linter: imports by name in strings, and the walkthroughs."""

import ast
import importlib
import pathlib
import re
import sys

import pytest

import kerasbert
from kerasbert.kinds import KINDS, SEARCH_INDEX, kinds_with
from kerasbert.models import (
    BertBackbone,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)

PACKAGE = pathlib.Path(kerasbert.__file__).parent
HERE = pathlib.Path(__file__).parent
CONTRIBUTING = PACKAGE.parent / "CONTRIBUTING.md"
# Folders that contain only public names.
PUBLIC = {"models", "preprocessors", "tokenizers"}
# Modules that the walkthrough leaves out because they only check, configure, select or update
# weights, or create a model.
BESIDE = re.compile(
    r"base/(aliases|errors|files|finite|from_preset|host|keras_internals|keywords|lazy|memory)\.py"
    r"|base/(parts|process|strict_json)\.py|families/.*|kinds\.py|optimizers/.*|metrics/.*"
    r"|text/(class_numbers|text_warnings|label_warnings)\.py|heads/base/(compiling|head_metrics|preset_task)\.py"
    r"|encoder/(building|feature_model|functional|inputs|keras_export|layers)\.py"
)
# Modules that may import by name: public names on first use, classes of kinds, the backend's file,
# or other packages.
MAY_IMPORT_BY_NAME = {
    "__init__.py",
    "base/lazy.py",
    "base/process.py",
    "backend/__init__.py",
    "backend/tensorflow.py",
    "heads/base/served_models.py",
    "measuring/contestant.py",
    "data/text_files.py",
    "base/from_preset.py",
    "kinds.py",
}


def test_each_room_has_its_tests():
    """Each folder of the package has a folder of the same name here."""
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
    """`__getattr__` of the package imports the models, which would import these modules while they
    are only partly loaded.
    """
    above = {"cli", "converter.py", "play", "training"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "kerasbert":
                if set(kerasbert.__all__) & {name.name for name in node.names}:
                    found.add(path.relative_to(PACKAGE).parts[0])
    assert found - {"__init__.py"} <= above


def compared_names(tree):
    """Yield the strings that a file compares with other values, and the classes whose kind it
    compares.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Compare, ast.MatchValue)):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant):
                    yield part.value
                elif isinstance(part, ast.Attribute) and part.attr == "kind":
                    yield getattr(part.value, "id", None)


def test_no_code_branches_on_the_name_of_a_kind():
    """Code must read a field of the kind's row, or ask the model; only families may name kinds."""
    names = {SEARCH_INDEX.name, *KINDS, *(kind.model for kind in kinds_with("model"))}
    found = []
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        if file != "kinds.py" and not file.startswith("families/"):
            tree = ast.parse(path.read_text())
            found += [(file, name) for name in compared_names(tree) if name in names]
    assert found == []


@pytest.mark.parametrize("part, base", [("model", "Backbone"), ("preprocessor", "Preprocessor")])
def test_the_public_classes_of_each_kind(part, base):
    """The class names in `kinds` are the names of the public module, except for the base class and
    imported names.
    """
    public = vars(importlib.import_module(f"kerasbert.{part}s"))
    others = set(kerasbert.tokenizers.__all__)
    if part == "model":
        others |= set(kerasbert.preprocessors.__all__)
    own = set(public["__all__"]) - others
    assert {getattr(kind, part) for kind in kinds_with(part)} | {f"Bert{base}"} == own


def test_public_rooms_only_import():
    """The public folders have imports, `__all__` and tables of classes, but no code to test."""
    for room in PUBLIC:
        tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
        allowed = (ast.ImportFrom, ast.Assign, ast.Expr)
        assert all(isinstance(node, allowed) for node in tree.body), room
        assert [path.name for path in (PACKAGE / room).glob("*.py")] == ["__init__.py"]


def imported():
    """Return our files' imports from our own packages: file, line, module and name."""
    for folder in ("kerasbert", "tests", "benchmarks", "tools", "examples", "docs"):
        for path in (PACKAGE.parent / folder).rglob("*.py"):
            # These belong to a kind of model that a test adds to a copy of the package.
            if "trials" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or not node.module:
                    continue
                if node.module.startswith("kerasbert."):
                    for name in node.names:
                        yield path, node.lineno, node.module, name.name


@pytest.mark.slow
def test_what_is_imported_is_there():
    """Also within functions, which only run in slow tests and benchmarks."""
    missing = []
    for path, line, module, name in imported():
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            # A package of an extra may be missing, but no module of ours.
            if error.name.startswith("kerasbert"):
                missing.append(f"{path}:{line} {module}.{name}")
    assert missing == []


def entered(function):
    """Return the package's files whose code a call runs, in the order in which they first run."""
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


@pytest.mark.backends("torch")  # Eager, so that Python runs at each step.
def test_the_walk_of_a_text_is_as_described():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    walk = text[
        text.index("**From a text to its loss**") : text.index("**From text files to a preset**")
    ]
    stations = re.findall(r"^\d+\. `([^`]+)`", walk, re.M)
    tools = re.findall(r"`((?:\w+/)+\w*\.?\w*)`", walk.partition("the following helpers")[2])
    assert len(stations) <= 10

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    model = BertTextClassifier(
        BertBackbone(vocabulary_size=7, **sizes),
        labels=["no", "yes"],
        preprocessor=BertTextClassifierPreprocessor(BertTokenizer(tokens)),
    )
    files = entered(lambda: model.fit(["good", "bad good"], ["yes", "no"], verbose=0))
    assert set(stations) <= set(files)
    others = [file for file in files if file not in stations and not BESIDE.fullmatch(file)]
    assert [file for file in others if not file.startswith(tuple(tools))] == []

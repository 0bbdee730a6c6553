"""Type checkers and editors know every public name, its arguments and its result."""

import importlib
import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest

import kerasbert

HERE = pathlib.Path(__file__).parent
# Annotations are the same on each backend.
pytestmark = pytest.mark.backends("tensorflow")


def public_modules():
    """Return the package and its public modules: a dict of name to module."""
    found = {name: getattr(kerasbert, name) for name in kerasbert.__all__}
    modules = {f"kerasbert.{name}": value for name, value in found.items()}
    modules = {name: value for name, value in modules.items() if inspect.ismodule(value)}
    return {"kerasbert": kerasbert, **modules}


def functions_of(value):
    """Return the functions of a public name: itself, or the public methods of a class and its
    bases.
    """
    if inspect.isfunction(value):
        return {value.__qualname__: inspect.unwrap(value)}
    found = {}
    for cls in inspect.getmro(value) if inspect.isclass(value) else ():
        if not cls.__module__.startswith("kerasbert."):
            continue
        for name, method in vars(cls).items():
            method = method.fget if isinstance(method, property) else method
            method = inspect.unwrap(getattr(method, "__func__", method))
            is_ours = inspect.isfunction(method) and method.__module__.startswith("kerasbert.")
            # The constructor of a dataclass is made from its annotations and has no source file.
            is_ours = is_ours and method.__code__.co_filename == inspect.getfile(cls)
            if is_ours and (not name.startswith("_") or name in ("__init__", "__call__")):
                found[f"{cls.__qualname__}.{name}"] = method
    return found


def test_public_functions_are_annotated():
    functions = {}
    for value in public_modules().values():
        for name in value.__all__:
            for path, function in functions_of(getattr(value, name)).items():
                functions[f"{function.__module__}.{path}"] = function
    assert len(functions) > 800
    missing = []
    for path, function in functions.items():
        names = list(inspect.signature(function).parameters)
        known = inspect.get_annotations(function)
        names = names[1:] if names[:1] in (["self"], ["cls"]) else names
        missing += [f"{path}({name})" for name in names if name not in known]
        missing += [] if "return" in known else [f"{path} ->"]
    assert missing == []


@pytest.mark.slow
@pytest.mark.peers
def test_pyright_resolves_all_names_and_calls(tmp_path):
    """Pyright runs in basic mode, as if the package were installed, and uses `py.typed` and the
    annotations.
    """
    lines = [f"from {name} import {', '.join(m.__all__)}" for name, m in public_modules().items()]
    (tmp_path / "names.py").write_text("\n".join(lines))
    (tmp_path / "calls.py").write_text((HERE / "typed_calls.py").read_text())
    wrong = ["from kerasbert import converts", "from kerasbert.losses import Foo, TokenMean"]
    wrong += ["from kerasbert import finetune", "finetune('rte', 'a', output='b', epoch=3)"]
    (tmp_path / "wrong.py").write_text("\n".join(wrong))
    config = {"typeCheckingMode": "basic", "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [(one["file"], one["message"]) for one in json.loads(done.stdout)["generalDiagnostics"]]
    assert [one for one in found if not one[0].endswith("wrong.py")] == []
    assert len(found) == 4


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("name", ["kerasbert", "kerasbert.models", "kerasbert.preprocessors"])
def test_jedi_completes_all_names(name):
    import jedi

    code = f"import {name}\n{name}."
    project = jedi.Project(HERE.parent)
    found = {one.name for one in jedi.Script(code, project=project).complete(2, len(name) + 1)}
    assert set(importlib.import_module(name).__all__) <= found

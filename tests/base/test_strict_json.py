"""The package writes standard JSON, which every reader accepts."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import kerasbert
from kerasbert.base.files import read_json, write_json
from kerasbert.base.strict_json import to_json

NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


def strictly(text):
    """Parse JSON as its standard defines it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_numbers_that_are_not_finite_are_null(tmp_path):
    value = {"loss": NOT_FINITE, "kept": [1.5, None, "NaN"], "deep": ({"x": np.float64("nan")},)}
    expected = {"loss": [None] * 3, "kept": [1.5, None, "NaN"], "deep": [{"x": None}]}
    assert strictly(to_json(value)) == expected
    path = str(tmp_path / "a.json")
    write_json(path, value)
    assert strictly(Path(path).read_text("utf-8")) == expected == read_json(path)
    assert strictly(to_json({"x": {1}}, default=lambda given: NOT_FINITE[0])) == {"x": None}
    round_about = []
    round_about.append(round_about)
    with pytest.raises(ValueError, match="[Cc]ircular"):
        to_json(round_about)


def test_all_that_is_finite_is_as_python_writes_it():
    value = {"a": [1, 2.5, True, None], "ö": "日本"}
    for settings in ({}, {"ensure_ascii": False, "indent": 1}, {"separators": (",", ":")}):
        assert to_json(value, **settings) == json.dumps(value, **settings)


def test_nothing_else_writes_json():
    """Only `to_json` writes JSON, except for plans, which hold no floats, and where rows of a file
    are passed on inside the package.
    """
    package = Path(kerasbert.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("dump", "dumps"):
                if getattr(node.value, "id", None) == "json":
                    found.add(path.relative_to(package).as_posix())
    assert found == {"base/moves.py", "base/strict_json.py", "data/corpus_files.py"}

"""The page of `doctor`: what works, what does not and what is not installed."""

import json

import pytest
from typer.testing import CliRunner

from kerasbert.cli import app
from kerasbert.measuring import doctor

pytestmark = pytest.mark.backends("torch")


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_all_works_here():
    done = run("--no-export", "--json")
    found = json.loads(done.stdout)
    assert {row["result"] for row in found["checks"]} == {"pass"}, found["checks"]
    assert found["checks"][0]["note"] == "torch" and found["installed"]["kerasbert"]
    assert done.exit_code == 0


def fails(made, folder):
    raise ValueError("the disk\nhas vanished")


def test_what_fails_and_what_is_left_out(monkeypatch):
    checks = {"one": lambda *_: "fine", "two": fails, "three": doctor._save}
    monkeypatch.setattr(doctor, "_CHECKS", checks)
    monkeypatch.setattr(doctor, "is_installed", lambda package: package == "onnx")
    monkeypatch.setattr(doctor, "_EXPORTS", {"onnx": lambda *_: doctor._need_packages("tf2onnx")})
    done = run()
    lines = done.stdout.splitlines()
    assert "pass  one (0.0 s): fine" in lines
    assert "fail  two (0.0 s): ValueError: the disk" in lines
    assert "skip  three (0.0 s): an earlier check failed" in lines
    assert "skip  onnx (0.0 s): not installed: tf2onnx" in lines
    assert lines[-1] == "1 of 4 checks failed." and done.exit_code == 1

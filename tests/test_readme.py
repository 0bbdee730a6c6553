"""README's Python code runs, and its commands have the options that it uses."""

import json
import pathlib
import re

import pytest

from kerasbert.checkpoints import hub
from tests.pages import ROOT, blocks, check_options, run


@pytest.mark.slow
def test_readme_python(tmp_path, monkeypatch):
    names = run(tmp_path, monkeypatch, "README.md", "python")
    assert names["classifier"].labels == ["ham", "spam"]
    assert set(names["classifier"].classify("You won")["probabilities"]) == {"ham", "spam"}
    assert (tmp_path / "served" / "spam" / "1" / "saved_model.pb").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "file, labels", [("README.ko.md", {"부정", "긍정"}), ("README.ja.md", {"否定", "肯定"})]
)
def test_python_of_other_languages(file, labels, tmp_path, monkeypatch):
    """Offline, with the packaged preset."""
    for name in ("_huggingface", "_kaggle"):
        monkeypatch.setattr(hub, name, None)
    names = run(tmp_path, monkeypatch, file, "python")
    assert set(names["classifier"].classify(names["texts"][0])["probabilities"]) == labels
    assert len(names["words"]) == 3
    assert pathlib.Path(names["path"], "saved_model.pb").is_file()


def test_first_commands_name_what_is_there():
    first = [block for _, block in blocks("README.md", "bash")][:2]
    for path in re.findall(r"examples/\S+\.py", " ".join(first)):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("file", ["README.md", "README.ko.md", "README.ja.md"])
def test_commands_have_the_options_that_are_shown(file):
    names = {line.split()[1] for line in check_options(file)}
    assert names >= {"pretrain", "finetune", "predict"}


def test_presets_command(capsys):
    from typer.testing import CliRunner

    from kerasbert.cli import app

    runner = CliRunner()
    result = runner.invoke(app, ["presets", "klue", "--json"])
    assert result.exit_code == 0
    names = [preset["name"] for preset in json.loads(result.output)]
    assert names and all("klue" in name for name in names)
    listing = runner.invoke(app, ["presets", "ja"])
    assert listing.exit_code == 0 and "tohoku" in listing.output
    found = json.loads(runner.invoke(app, ["presets", "JA embed", "--json"]).output)
    assert found and all("ja" in preset["languages"] for preset in found)
    assert all("embedding" in preset["description"].lower() for preset in found)
    assert runner.invoke(app, ["presets", "nothing-like-it"]).exit_code == 2

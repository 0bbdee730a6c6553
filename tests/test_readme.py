"""README's Python runs as it stands; what others download is replaced by a tiny checkpoint."""

import json
import pathlib
import re

import numpy as np
import pytest

import kerasbert
from kerasbert.loading import hub

ROOT = pathlib.Path(__file__).parent.parent


def save_tiny(directory, words, **settings):
    """Write a directory as the hub would bring it: random weights, a small vocabulary."""
    words = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    backbone = kerasbert.models.BertBackbone(
        vocabulary_size=len(words), num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    tokenizer = kerasbert.tokenizers.BertTokenizer(words, **settings)
    preprocessor = kerasbert.models.BertPretrainerPreprocessor(tokenizer)
    kerasbert.models.BertPretrainer(backbone, preprocessor).save_to_preset(str(directory))
    return str(directory)


def run_python_blocks(file, tmp_path, monkeypatch):
    """Run the blocks of a file, one after the other; returns their names."""
    monkeypatch.chdir(tmp_path)
    names = {}
    text = (ROOT / file).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        exec(compile(block, file, "exec"), names)
    assert len(blocks) >= 3
    return names


@pytest.mark.slow
def test_python_blocks(tmp_path, monkeypatch):
    names = run_python_blocks("README.md", tmp_path, monkeypatch)
    assert names["classifier"].labels == ["ham", "spam"]
    assert set(names["classifier"].classify("You won")["probabilities"]) == {"ham", "spam"}
    assert (tmp_path / "served" / "spam" / "1" / "saved_model.pb").exists()
    assert [set(word) for word in names["words"]] == [{"token", "token_id", "score", "text"}] * 3
    assert 0 < names["probability"] < 1 and isinstance(names["number"], float)
    for entity in names["entities"]:
        assert "Lunch at noon?"[entity["start"] : entity["end"]] == entity["text"]
    for answer in names["answers"]:
        assert names["context"][answer["start"] : answer["end"]] == answer["answer"]
    assert names["best"]["choice"] in ("prize", "station")
    np.testing.assert_allclose(np.linalg.norm(names["vectors"], axis=1), 1, atol=1e-5)
    assert (tmp_path / "for_transformers" / "model.safetensors").exists()
    assert (tmp_path / "for_google" / "bert_model.ckpt.index").exists()
    assert len(names["ids"][0]) == len(names["starts"][0]) == len(names["ends"][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "file, labels", [("README.ko.md", {"부정", "긍정"}), ("README.ja.md", {"否定", "肯定"})]
)
def test_python_blocks_of_other_languages(file, labels, tmp_path, monkeypatch):
    """Offline, with the preset that comes along."""
    for name in ("_huggingface", "_kaggle"):
        monkeypatch.setattr(hub, name, None)
    names = run_python_blocks(file, tmp_path, monkeypatch)
    assert set(names["classifier"].classify(names["texts"][0])["probabilities"]) == labels
    assert len(names["words"]) == 3
    for entity in names["entities"]:
        # Of a list of words (letters in the Japanese one) the text has spaces between.
        found = names["text"][entity["start"] : entity["end"]]
        assert (" " if file == "README.ja.md" else "").join(found) == entity["text"]
    assert str(names["shown"]).count("<mark") == len(names["entities"])
    assert names["hits"][0]["text"] in names["answers"]
    assert (tmp_path / "faq_index").is_dir()
    assert pathlib.Path(names["path"], "saved_model.pb").is_file()


def bash_blocks(file="README.md"):
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


def test_first_commands_name_what_is_there():
    for path in re.findall(r"examples/\S+\.py", " ".join(bash_blocks()[:2])):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("file", ["README.md", "README.ko.md", "README.ja.md"])
def test_commands_have_the_options_that_are_shown(file):
    import typer

    from kerasbert.cli import app

    known = typer.main.get_command(app).commands
    lines = [line for block in bash_blocks(file) for line in block.splitlines()]
    lines = [line for line in lines if not line.startswith("python3 -m venv")]
    assert {line.split()[1] for line in lines} >= {"vocab", "pretrain", "finetune", "predict"}
    for line in lines:
        program, name, *words = line.partition("  #")[0].split()
        options = {option for part in known[name].params for option in part.opts}
        assert program == "kerasbert"
        assert {word for word in words if word.startswith("--")} <= options, line


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
    assert runner.invoke(app, ["presets", "nothing-like-it"]).exit_code == 2

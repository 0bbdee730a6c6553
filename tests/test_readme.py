"""README's Python runs as it stands; only the download is replaced by a tiny local checkpoint."""

import json
import pathlib
import re

import numpy as np
import pytest

import kerasbert
from kerasbert import hub
from tests.contracts import only_tensorflow_is_fast

ROOT = pathlib.Path(__file__).parent.parent
WORDS = "lunch at noon ? winner ! claim your prize now i m the station free entry , text win ' a"


@pytest.fixture
def tiny_checkpoint(tmp_path):
    """A directory as the hub would bring it: random weights, a small vocabulary."""
    backbone = kerasbert.models.BertBackbone(
        vocabulary_size=60, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
    words = list(dict.fromkeys(words + [f"##{chr(97 + i)}" for i in range(26)]))[:60]
    tokenizer = kerasbert.tokenizers.BertTokenizer(words, lowercase=True)
    directory = tmp_path / "tiny"
    preprocessor = kerasbert.models.BertPretrainerPreprocessor(tokenizer)
    kerasbert.models.BertPretrainer(backbone, preprocessor).save_to_preset(str(directory))
    return str(directory)


@only_tensorflow_is_fast
def test_python_blocks(tiny_checkpoint, tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(hub, "fetch", lambda handle, *_: fetched.append(handle) or tiny_checkpoint)
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) >= 3
    assert set(fetched) == {"hf://google/bert_uncased_L-2_H-128_A-2"}
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


def bash_blocks():
    return re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_first_commands_name_what_is_there():
    for path in re.findall(r"examples/\S+\.py", " ".join(bash_blocks()[:2])):
        assert (ROOT / path).exists(), path


def test_commands_have_the_options_that_are_shown():
    import typer

    from kerasbert.cli import app

    known = typer.main.get_command(app).commands
    lines = [line for block in bash_blocks()[2:] for line in block.splitlines()]
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

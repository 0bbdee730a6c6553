"""`tools/verify_hub.py`: published checkpoints compared with transformers, from a local hub."""

import json

import numpy as np
import pytest
import typer
import verify_hub

from tests.peers import transformers
from tests.stand_in import COMMIT, OTHER, files_of, hub_stand_in

# The script starts processes, each with a backend of its own.
pytestmark = pytest.mark.backends("tensorflow")

hub = pytest.fixture(hub_stand_in)
WORDS = "the cat sat on mat , . ! ? a c f e 1 2 ##a ##b ##c ##1 東 京 한 글".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCABULARY += [f"w{i}" for i in range(99 - len(VOCABULARY))]


def test_gaps_are_relative():
    assert verify_hub.gap([1.0, 3.0], [1.0, 1.0]) == 1
    assert verify_hub.gap([np.nan], [1.0]) == 1e9
    before = {"a": np.zeros(2), "b": np.zeros(2)}
    after = {"a": np.ones(2), "b": np.full(2, 0.01)}
    assert verify_hub.step_gap(after, after, before)[0] == 0
    worst = verify_hub.step_gap({**after, "b": np.full(2, 0.03)}, after, before)
    assert worst == (pytest.approx(1.0), "b")


def test_the_table_names_known_families_and_heads():
    from kerasbert.families import FAMILIES

    rows = verify_hub.table()
    assert len({name for name, *_ in rows}) == len(rows) >= 50
    assert {family for _, family, *_ in rows} <= FAMILIES.keys()
    assert {head for _, _, head, _ in rows} <= verify_hub.STEPS.keys()


def test_rows_are_replaced_and_sorted(tmp_path):
    path = tmp_path / "verified.json"
    for name, verdict in (("b", "failed"), ("a", "equal"), ("b", "equal")):
        verify_hub.write(path, {"name": name, "backend": "jax", "verdict": verdict})
    found = [(row["name"], row["verdict"]) for row in verify_hub.read(path)]
    assert found == [("a", "equal"), ("b", "equal")]


@pytest.mark.slow
@pytest.mark.peers
def test_equal_different_and_failed(reference, hub, tmp_path, monkeypatch, capsys):
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, model_max_length=32)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    files = files_of(theirs.directory) | files_of(tmp_path / "tokenizer")
    config = json.loads(files["config.json"]) | {"layer_norm_eps": 0.01}
    other = {**files, "config.json": json.dumps(config).encode()}
    hub.repositories["org/same"] = dict.fromkeys(("main", COMMIT), (COMMIT, files))
    hub.repositories["org/other"] = dict.fromkeys(("main", OTHER), (OTHER, other))
    url = f"http://127.0.0.1:{hub.server_port}"
    for name, value in {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "verified.json"

    def run(*names, **arguments):
        arguments = {"backend": "torch", "out": out, "timeout": 900, **arguments}
        verify_hub.main(only=names, **arguments)

    # A failure does not stop the others.
    with pytest.raises(typer.Exit):
        run("org/missing", "org/same")
    failed, same = verify_hub.read(out)
    assert failed["verdict"] == "failed" and "org/missing" in failed["error"]
    assert (same["verdict"], same["revision"], same["head"]) == ("equal", COMMIT, "text_classifier")
    assert same["differences"].keys() == verify_hub.TOLERANCE.keys()
    # The weights are the same, but another epsilon changes all outputs.
    with pytest.raises(typer.Exit):
        run("org/other", against="org/same")
    other = next(row for row in verify_hub.read(out) if row["name"] == "org/other")
    assert other["verdict"] == "different" and other["differences"]["ids"] == 0
    assert other["different"] == ["hidden_states", "logits", "loss", "weights"]
    assert other["differences"]["hidden_states"] > 0.01
    # Finished rows are skipped.
    fetched, before = len(hub.fetched), out.read_bytes()
    run("org/same")
    assert "org/same: done before" in capsys.readouterr().out
    assert (len(hub.fetched), out.read_bytes()) == (fetched, before)

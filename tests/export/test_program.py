"""`answer.py` beside an exported graph: raw texts without Keras and TensorFlow."""

import ast
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from kerasbert.export import export_litert, export_onnx, export_openvino, token_graphs, write_graph
from kerasbert.export.served import LONG, PROSE, SHORT
from kerasbert.tokenizers import RobertaTokenizer
from tests.export import tiny

pytestmark = [pytest.mark.peers, pytest.mark.backends("tensorflow")]

TEXTS = [
    *SHORT,
    *LONG,
    PROSE,
    "ﬁ Ⅳ ½ e\u0301 e",
    "中 文字\u3000한국",
    "a" * 99 + " " + "b" * 101,
    "\t\r\n",
]
# A process that has nothing of ours: it imports each folder's program as a module.
ASK = """
import importlib.util, json, sys
texts, folders = json.load(sys.stdin)
found = []
for folder in folders:
    spec = importlib.util.spec_from_file_location("answer", folder + "/answer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answers = module.answer(texts)
    answers = answers.tolist() if hasattr(answers, "tolist") else answers
    ids = [row.ids for row in module.tokenizer.encode_batch(texts)]
    found.append([ids, answers])
loaded = {"tensorflow", "keras", "torch", "jax", "transformers", "kerasbert"} & set(sys.modules)
print(json.dumps([found, sorted(loaded)]))
"""


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The work of the child process in this one."""
    main = write_graph.main
    monkeypatch.setattr(token_graphs, "run_child", lambda module, folder, _: main(folder))


def ask(folders, texts):
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([texts, [str(folder) for folder in folders]]),
        capture_output=True,
        text=True,
        env={name: x for name, x in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    found, loaded = json.loads(done.stdout)
    assert loaded == []
    return found


def without_padding(ids, pad_id=0):
    return [[x for x in row if x != pad_id] for row in np.asarray(ids).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("export", [export_onnx, export_openvino, export_litert])
def test_programs_answer_as_the_models_do(export, tmp_path):
    names = ("TextClassifier", "TextEmbedder", "TokenClassifier", "TextRegressor")
    models = {name: tiny.task(name) for name in names}
    multi = tiny.task("TextClassifier", multi_label=True)
    for name, model in {**models, "multi": multi}.items():
        export(model, tmp_path / name)
    found = ask([tmp_path / name for name in (*names, "multi")], TEXTS)
    features = models["TextClassifier"].preprocessor(TEXTS)
    for ids, _ in found:
        assert without_padding(ids) == without_padding(features["token_ids"])
    classified, embedded, tagged, scored, several = (answers for _, answers in found)
    for model, answers in ((models["TextClassifier"], classified), (multi, several)):
        logits = model.predict(TEXTS, verbose=0)
        odds = 1 / (1 + np.exp(-logits)) if model.multi_label else np.exp(logits)
        odds /= 1 if model.multi_label else odds.sum(axis=-1, keepdims=True)
        for row, expected in zip(answers, odds, strict=True):
            assert [label for label, _ in row] == [tiny.LABELS[i] for i in np.argsort(-expected)]
            np.testing.assert_allclose([x for _, x in row], np.sort(expected)[::-1], atol=1e-5)
    np.testing.assert_allclose(embedded, models["TextEmbedder"].embed(TEXTS), atol=2e-5)
    np.testing.assert_allclose(scored, models["TextRegressor"].score(TEXTS), atol=2e-5)
    tagger = models["TokenClassifier"]
    rows = zip(np.asarray(tagger(features)), np.asarray(features["padding_mask"]))
    for row, (logits, mask) in zip(tagged, rows):
        best = logits[: mask.sum()].argmax(axis=-1)[1:-1]
        assert [label for *_, label in row] == [tagger.label_names[i] for i in best]


@pytest.mark.slow
def test_pairs_and_other_tokenizers(tmp_path):
    pairs = [[a, b] for a, b in zip(SHORT, SHORT[::-1])]
    follows = tiny.task("NextSentencePredictor")
    export_onnx(follows, tmp_path / "follows")
    tokens = tiny.byte_pairs(RobertaTokenizer, "<s> <pad> </s> <unk> <mask>")
    settings = {"encoder_settings": {"family": "roberta", "num_segments": 1, "position_offset": 2}}
    roberta = tiny.task("TextClassifier", tokens, **settings)
    export_onnx(roberta, tmp_path / "roberta")
    for model, name in ((follows, "follows"), (roberta, "roberta")):
        ((ids, answers),) = ask([tmp_path / name], pairs)
        features = model.preprocessor(tuple(zip(*pairs)))
        pad_id = model.preprocessor.tokenizer.pad_token_id
        assert without_padding(ids, pad_id) == without_padding(features["token_ids"], pad_id)
        if name == "follows":
            np.testing.assert_allclose(answers, follows.follows(*zip(*pairs)), atol=1e-5)


def test_the_program_runs_by_itself_and_others_have_none(tmp_path):
    model = tiny.task("TextClassifier")
    export_onnx(model, tmp_path / "spam")
    done = subprocess.run(
        [sys.executable, tmp_path / "spam" / "answer.py", "win a prize", "größe"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    best = [row["label"] for row in model.classify(["win a prize", "größe"])]
    assert [ast.literal_eval(line)[0][0] for line in done.stdout.splitlines()] == best
    export_onnx(tiny.task("QuestionAnswering"), tmp_path / "reader")
    assert "answer.py" not in os.listdir(tmp_path / "reader")

"""Existing models, on their own or other data."""

import json
import shutil
import sys

import pytest

import kerasbert
from kerasbert.models import (
    BertTextClassifier,
    BertTokenClassifier,
    BertTokenClassifierPreprocessor,
)
from kerasbert.tasks import get_task
from kerasbert.tasks.own import model_task
from kerasbert.training import evaluation


@pytest.fixture(scope="module")
def model(tiny_preset):
    return BertTextClassifier.from_preset(tiny_preset)


def lines(path, *rows):
    path.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.backends("torch")
def test_a_model_on_a_file(model, tmp_path):
    path = lines(tmp_path / "a.csv", ("text", "label"), ("good", "yes"), ("bad film", "no"))
    right = [model.classify(text)["label"] for text in ("good", "bad film")]
    result = kerasbert.evaluate(model, path)
    assert result["scores"]["accuracy"] == ((right[0] == "yes") + (right[1] == "no")) / 2
    assert (result["task"], result["split"], result["published"]) == ("own", "a.csv", [])
    assert kerasbert.evaluate(model, path, limit=1)["examples"] == 1
    unlabeled = lines(tmp_path / "b.csv", ("review",), ("good",), ("bad film",))
    said = kerasbert.predict(model, unlabeled, tmp_path / "out", columns=["review"])
    assert said["predictions"] == right and said["ids"] == [0, 1]
    (path,) = said["files"]
    with open(path, encoding="utf-8") as file:
        assert file.read() == f"index\tprediction\n0\t{right[0]}\n1\t{right[1]}\n"
    with pytest.raises(ValueError, match="has no column 'label' for the labels of 'own'"):
        kerasbert.evaluate(model, unlabeled, columns=["review"])


@pytest.mark.backends("torch")
def test_classes_without_names_are_numbers(model, tmp_path):
    unnamed = BertTextClassifier(model.backbone, 2, preprocessor=model.preprocessor)
    path = lines(tmp_path / "a.csv", ("text", "label"), ("good", "1"), ("bad film", "0"))
    scores = kerasbert.evaluate(unnamed, path)["scores"]
    classes = unnamed.predict_proba(["good", "bad film"]).argmax(-1)
    assert scores["accuracy"] == sum(classes == [1, 0]) / 2


@pytest.mark.backends("torch")
def test_parts_behind_a_progress_bar(model, monkeypatch, tmp_path, capsys):
    rows = [(f"film {'good ' * (i % 7)}", "yes") for i in range(10)]
    task = model_task(model)
    path = lines(tmp_path / "a.csv", ("text", "label"), *rows)
    data = task.with_files(dev=path).read("dev")
    expected = task.predict(model, data)
    monkeypatch.setattr(evaluation, "_CHUNK", 3)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert evaluation.answer_all(task, model, data)[0] == expected
    # In a file or pipe, lines replace it.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(evaluation.Pulse, "EVERY", 0.0)
    capsys.readouterr()
    assert evaluation.answer_all(task, model, data)[0] == expected
    said = capsys.readouterr().err.splitlines()
    assert said == [f"predicting, {share} done" for share in ("0%", "25%", "50%", "75%")]


@pytest.mark.backends("torch")
def test_the_threshold_of_answers_is_kept(tiny_preset, tmp_path, monkeypatch):
    record = {"task": get_task("rte").as_dict(), "scores": {"best_f1_threshold": -1.5}}
    shutil.copytree(tiny_preset, tmp_path, dirs_exist_ok=True)
    (tmp_path / "finetuning.json").write_text(json.dumps(record))
    monkeypatch.setattr(type(get_task("rte")), "check_model", lambda *_: None)
    _, task, threshold = evaluation.open_model(str(tmp_path))
    assert task == get_task("rte") and threshold == -1.5


@pytest.mark.backends("torch")
def test_models_without_a_task(model):
    many = BertTextClassifier(model.backbone, labels=["a", "b"], multi_label=True)
    assert model_task(many).metrics == ("macro_f1", "accuracy")
    with pytest.raises(ValueError, match="The model predicts any number of classes per text, but"):
        model_task(BertTextClassifier(model.backbone, labels=["a", "b"])).check_model(many)
    with pytest.raises(ValueError, match="label=.'a', 'b'. names a column per class"):
        evaluation.read_data(model_task(model), None, None, "dev", None, ["a", "b"], None, None)
    with pytest.raises(ValueError, match="A BertNextSentencePredictor makes no predictions"):
        model_task(kerasbert.models.BertNextSentencePredictor(model.backbone))
    task = get_task("rte")
    with pytest.raises(ValueError, match="The model's classes are no, yes, but those of 'rte'"):
        kerasbert.evaluate(model, task=task)


@pytest.mark.backends("torch")
def test_a_tagger_on_lines_of_text(model, tmp_path):
    tagger = BertTokenClassifier(
        model.backbone,
        preprocessor=BertTokenClassifierPreprocessor(
            model.preprocessor.tokenizer, sequence_length=16
        ),
        labels=["PER"],
        scheme="BIO",
    )
    texts = ["good film\n", "a bad film\n", "\n", "good\n"]
    (tmp_path / "texts.txt").write_text("".join(texts))
    said = kerasbert.predict(tagger, str(tmp_path / "texts.txt"))
    words = [text.split() for text in texts if text.split()]
    assert said["predictions"] == tagger.predict_labels(words)
    # Words with tags stay words with tags, even if one tag is wrong.
    (tmp_path / "tagged.txt").write_text("good B-PER\nfilm O\n\nbad O\n")
    (row, _) = kerasbert.predict(tagger, str(tmp_path / "tagged.txt"))["predictions"]
    assert len(row) == 2
    (tmp_path / "wrong.txt").write_text("good B-PRE\nfilm I-PRE\n")
    with pytest.raises(ValueError, match="line 1: the tag 'B-PRE' is unknown"):
        kerasbert.predict(tagger, str(tmp_path / "wrong.txt"))

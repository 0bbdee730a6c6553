"""Ensembles: combined outputs, members with different tokenizers, presets and bad input."""

import json
import os
import re
import shutil

import keras
import numpy as np
import pytest

from kerasbert import convert, export_onnx, export_serving
from kerasbert.heads.base.served_models import served
from kerasbert.heads.ensemble.model import class_of
from kerasbert.models import (
    BertBackbone,
    BertEnsemble,
    BertMultipleChoice,
    BertMultipleChoicePreprocessor,
    BertQuestionAnswering,
    BertQuestionAnsweringPreprocessor,
    BertReranker,
    BertRerankerPreprocessor,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTextEmbedder,
    BertTextRegressor,
    BertTextRegressorPreprocessor,
    BertTokenClassifier,
    BertTokenClassifierPreprocessor,
)
from kerasbert.tasks import Examples, get_task
from kerasbert.tasks.own import model_task
from kerasbert.training.evaluation import open_model
from kerasbert.visualize import attention, attributions
from tests.contracts import assert_close, bert_tokenizer, tiny_backbone

# The code is the same on each backend, and PyTorch compiles nothing.
pytestmark = pytest.mark.backends("torch")
EVERY_BACKEND = pytest.mark.backends("tensorflow", "jax", "torch")

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
OTHERS = [*TOKENS[:5], *TOKENS[:4:-1]]  # The same words with other ids.
TEXTS = ["good film", "bad", "it was very very dull", "a film"]
LABELS = ["dull", "fun", "odd"]
CLASSES = {
    "classes": (BertTextClassifier, BertTextClassifierPreprocessor, {"labels": LABELS}),
    "several": (
        BertTextClassifier,
        BertTextClassifierPreprocessor,
        {"labels": LABELS, "multi_label": True},
    ),
    "numbers": (BertTextRegressor, BertTextRegressorPreprocessor, {}),
    "tags": (
        BertTokenClassifier,
        BertTokenClassifierPreprocessor,
        {"labels": ["PER", "LOC"], "scheme": "BIO"},
    ),
    "answers": (BertQuestionAnswering, BertQuestionAnsweringPreprocessor, {}),
    "choices": (BertMultipleChoice, BertMultipleChoicePreprocessor, {}),
    "pairs": (BertReranker, BertRerankerPreprocessor, {}),
}


def member(kind, seed=0, tokens=TOKENS, length=16, raw=True, **settings):
    cls, packer, own = CLASSES[kind]
    more = {"max_query_length": 4, "doc_stride": 3} if kind == "answers" else {}
    preprocessor = packer(bert_tokenizer(tokens), sequence_length=length, **more) if raw else None
    backbone = tiny_backbone(dropout=0.0)
    model = cls(backbone, preprocessor=preprocessor, **{**own, **settings})
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        value = keras.ops.convert_to_numpy(weight.value)
        weight.assign(value + 0.3 * rng.standard_normal(value.shape).astype("float32"))
    return model


def ensemble(kind, *others):
    return BertEnsemble([member(kind), *(member(kind, **other) for other in others)])


SAME = ({"seed": 1}, {"seed": 2})
UNLIKE = ({"seed": 1, "tokens": OTHERS}, {"seed": 2, "length": 12})


def softmax(x):
    odds = np.exp(x - x.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


# === Combined outputs ===


@pytest.mark.slow
@EVERY_BACKEND
@pytest.mark.parametrize("others", [SAME, UNLIKE], ids=["same", "unlike"])
@pytest.mark.parametrize("kind", ["classes", "several"])
def test_probabilities_of_classes_are_averaged(kind, others):
    model = ensemble(kind, *others)
    wanted = np.mean([one.predict_proba(TEXTS) for one in model.members], axis=0)
    assert_close(model.predict_proba(TEXTS), wanted, 1e-5)
    row = model.classify(TEXTS)[1]
    assert row["probabilities"] == pytest.approx(dict(zip(LABELS, wanted[1])), abs=1e-5)
    if kind == "classes":
        assert row["label"] == LABELS[wanted[1].argmax()] == model.classify(TEXTS[1])["label"]
    assert isinstance(model, BertTextClassifier) and model.label_names == LABELS


def test_members_with_an_activation():
    """Probabilities and logits may be mixed; the ensemble returns logits."""
    model = BertEnsemble([member("classes"), member("classes", 1, activation="softmax")])
    wanted = np.mean([one.predict_proba(TEXTS) for one in model.members], axis=0)
    assert model.gives_logits()
    assert_close(softmax(model.predict(TEXTS, verbose=0)), wanted, 1e-5)
    several = [member("several"), member("several", 1, activation="sigmoid")]
    wanted = np.mean([one.predict_proba(TEXTS) for one in several], axis=0)
    assert_close(BertEnsemble(several).predict_proba(TEXTS), wanted, 1e-5)


@pytest.mark.parametrize("kind", ["classes", "several"])
def test_calibrated_members(kind):
    """The ensemble averages the probabilities that the members' temperatures give."""
    odds = "softmax" if kind == "classes" else "sigmoid"
    members = [
        member(kind, temperature=3.0),
        member(kind, 1, temperature=0.5, activation=odds),
        member(kind, 2),
    ]
    model = BertEnsemble(members)
    for temperature in (3.0, 0.7):  # A member may be calibrated again.
        members[0].temperature = temperature
        wanted = np.mean([one.predict_proba(TEXTS) for one in members], axis=0)
        assert_close(model.predict_proba(TEXTS), wanted, 1e-5)


@pytest.mark.parametrize("others", [SAME, UNLIKE], ids=["same", "unlike"])
def test_numbers_are_averaged(others):
    model = ensemble("numbers", *others)
    wanted = np.mean([one.score(TEXTS) for one in model.members], axis=0)
    assert_close(model.score(TEXTS), wanted, 1e-5)


@pytest.mark.parametrize("others", [SAME, UNLIKE], ids=["same", "unlike"])
def test_logits_of_choices_are_averaged(others):
    model = ensemble("choices", *others)
    prompts, choices = ["it was", "a"], [["good", "bad", "very dull"], ["film", "fun"]]
    logits = [one.predict((prompts, choices), verbose=0) for one in model.members]
    wanted = softmax(np.mean(logits, axis=0))
    rows = model.choose(prompts, choices)
    assert_close(np.array(rows[0]["scores"]), wanted[0], 1e-5)
    assert_close(np.array(rows[1]["scores"]), wanted[1, :2], 1e-5)


@pytest.mark.parametrize("others", [SAME, UNLIKE], ids=["same", "unlike"])
def test_logits_of_pairs_are_averaged(others):
    model = ensemble("pairs", *others)
    logits = [one.predict((["film"] * 4, TEXTS), verbose=0) for one in model.members]
    wanted = np.mean(logits, axis=0)
    ranked = model.rank("film", TEXTS)
    assert [row["corpus_id"] for row in ranked] == np.argsort(-wanted).tolist()
    wanted = 1 / (1 + np.exp(-wanted))
    assert_close(model.score((["film"] * 4, TEXTS)), wanted.astype("float32"), 1e-5)
    (row,) = model.score((["film"], [TEXTS]))
    assert_close(row, wanted.astype("float32"), 1e-5)


@pytest.mark.parametrize("others", [SAME, UNLIKE], ids=["same", "unlike"])
def test_probabilities_of_words_are_averaged(others):
    model = ensemble("tags", *others)
    words = [text.split() for text in TEXTS] + [["word3"] * 40]
    found = [one.predict_proba(words) for one in model.members]
    for ours, *rows in zip(model.predict_proba(words), *found):
        assert_close(ours, np.mean(rows, axis=0), 1e-5)
    names = model.label_names
    best = np.mean([rows[2] for rows in found], axis=0).argmax(-1)
    assert model.predict_labels(words)[2] == [names[i] for i in best]
    assert model.tag(TEXTS[2]) == model.tag([TEXTS[2]])[0]


CONTEXT = "it was a very good film word1 word2 word3 word4 word5 word6 fun word7 word8 bad word9"


def test_answers_of_the_same_windows():
    model = ensemble("answers", *SAME)
    x = ["word1 was", "a film"], [CONTEXT, "very dull"]
    rows = [one.predict(x, verbose=0) for one in model.members]
    ours = model.predict(x, verbose=0)
    for name in ("start_logits", "end_logits"):
        assert_close(ours[name], np.mean([row[name] for row in rows], axis=0), 1e-4)
    nulls = [row[0]["null_score"] for row in model.answer(*x)]
    assert np.isfinite(nulls).all()


def test_answers_of_different_windows_are_merged_by_their_spans():
    model = ensemble("answers", *UNLIKE)
    found = [one.answer("word1 was", CONTEXT, top_k=20) for one in model.members]
    wanted = {}
    for row in (row for rows in found for row in rows):
        span = row["start"], row["end"]
        wanted[span] = wanted.get(span, 0) + row["score"] / 3
    rows = model.answer("word1 was", CONTEXT, top_k=100)
    assert {(row["start"], row["end"]): row["score"] for row in rows} == pytest.approx(wanted)
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert all(row["answer"] == CONTEXT[row["start"] : row["end"]] for row in rows)
    null_score = np.mean([rows[0]["null_score"] for rows in found])
    assert rows[0]["null_score"] == pytest.approx(null_score)
    # With a threshold, "no answer" is merged like a span, and all probabilities sum to 1.
    for threshold, first in ((null_score - 1, ""), (null_score + 1, rows[0]["answer"])):
        (batch,) = model.answer(["word1 was"], [CONTEXT], 100, threshold)
        assert batch[0]["answer"] == first
        if not first:
            assert (batch[0]["start"], batch[0]["end"]) == (None, None)
            assert sum(row["score"] for row in batch) == pytest.approx(1.0)


def test_zero_shot_classes():
    model = BertEnsemble(
        [
            member("classes", seed, labels=["entailment", "neutral", "contradiction"])
            for seed in (0, 1)
        ]
    )
    assert model.classify("good film", labels=["fun", "dull"])["label"] in ("fun", "dull")


# === Keras' methods ===


@pytest.mark.slow
@EVERY_BACKEND
@pytest.mark.parametrize("kind", CLASSES)
def test_arrays(kind):
    """`predict` and `evaluate` run all members in one graph."""
    model = BertEnsemble([member(kind, seed, raw=False) for seed in (0, 1)])
    shape = (3, 2, 5) if kind == "choices" else (3, 5)
    ids = np.random.default_rng(0).integers(5, 30, shape).astype("int32")
    outputs = model.predict({"token_ids": ids}, verbose=0)
    own = [one.predict({"token_ids": ids}, verbose=0) for one in model.members]
    if kind in ("numbers", "choices", "pairs"):
        assert_close(outputs, np.mean(own, axis=0), 1e-4)
    elif kind == "answers":
        assert_close(
            outputs["start_logits"], np.mean([x["start_logits"] for x in own], axis=0), 1e-4
        )
    elif kind != "several":
        assert_close(np.exp(outputs), np.mean([softmax(x) for x in own], axis=0), 1e-5)
    y = {
        "classes": np.array([0, 1, 2]),
        "several": np.eye(3, dtype="float32"),
        "numbers": np.ones(3, "float32"),
        "tags": np.ones((3, 5), "int32"),
        "answers": {name: np.array([1, 2, 3]) for name in ("start_logits", "end_logits")},
        "choices": np.array([0, 1, 1]),
        "pairs": np.array([0.0, 1.0, 1.0], "float32"),
    }[kind]
    found = model.evaluate({"token_ids": ids}, y, verbose=0, return_dict=True)
    assert np.isfinite(found["loss"])
    assert len(model.weights) == sum(len(one.weights) for one in model.members)


def test_evaluate_on_texts():
    model = ensemble("classes", *SAME)
    y = ["fun", "dull", "odd", "fun"]
    found = model.evaluate(TEXTS, y, verbose=0, return_dict=True)
    rows = model.predict_proba(TEXTS)
    wanted = -np.mean(np.log(rows[np.arange(4), [LABELS.index(name) for name in y]]))
    assert found["loss"] == pytest.approx(wanted, abs=1e-4)
    assert found["accuracy"] == np.mean([LABELS[i] for i in rows.argmax(-1)] == np.array(y))


def test_quantized_members():
    model = ensemble("classes", *SAME)
    before = model.predict_proba(TEXTS)
    model.quantize("int8")
    wanted = np.mean([one.predict_proba(TEXTS) for one in model.members], axis=0)
    assert_close(model.predict_proba(TEXTS), wanted, 1e-5)
    assert 0 < np.abs(wanted - before).max() < 0.2


def test_members_that_share_an_encoder_are_quantized_once():
    first = member("classes")
    second = BertTextClassifier(first.backbone, labels=LABELS, preprocessor=first.preprocessor)
    model = BertEnsemble([first, second])
    model.quantize("int8")
    assert first.backbone.token_embedding.quantization_mode == "int8"
    assert model.predict_proba(TEXTS).shape == (4, 3)


def test_scores_of_a_task():
    task = model_task(ensemble("classes", *UNLIKE))
    data = Examples(TEXTS, ["fun"] * 4, list(range(4)), gold=["fun"] * 4)
    model = ensemble("classes", *UNLIKE)
    assert set(task.score(data, task.predict(model, data))) == set(task.metrics)
    squad = get_task("squad")
    data = Examples((["word1"], [CONTEXT]), None, ["q"])
    assert squad.predict(ensemble("answers", *UNLIKE), data)[0]["answer"] in CONTEXT


# === Files ===


@pytest.mark.parametrize("others", [SAME, UNLIKE], ids=["same", "unlike"])
def test_presets(tmp_path, others):
    model = ensemble("classes", *others)
    model.save_to_preset(tmp_path / "both")
    assert sorted(os.listdir(tmp_path / "both" / "members")) == ["0", "1", "2"]
    wanted = model.predict_proba(TEXTS)
    for cls in (BertEnsemble, BertTextClassifier, class_of("text_classifier")):
        again = cls.from_preset(tmp_path / "both")
        assert type(again) is type(model) and len(again.members) == 3
        assert again.shares_inputs == model.shares_inputs
        assert_close(again.predict_proba(TEXTS), wanted, 1e-5)
    half = BertEnsemble.from_preset(tmp_path / "both", dtype="bfloat16", sequence_length=8)
    assert {one.preprocessor.sequence_length for one in half.members} == {8}
    assert {one.backbone.compute_dtype for one in half.members} == {"bfloat16"}
    one = BertTextClassifier.from_preset(tmp_path / "both" / "members" / "1")
    assert_close(one.predict_proba(TEXTS), model.members[1].predict_proba(TEXTS), 1e-5)
    opened, task, _ = open_model(str(tmp_path / "both"))
    assert isinstance(opened, BertEnsemble) and task.labels == tuple(LABELS)
    assert not [name for name in os.listdir(tmp_path) if name != "both"]


def test_nothing_half_written(tmp_path, monkeypatch):
    model = ensemble("numbers", *SAME)

    def fails(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(model.members[2], "save_to_preset", fails, raising=False)
    with pytest.raises(OSError, match="the disk is full"):
        model.save_to_preset(tmp_path / "new")
    assert os.listdir(tmp_path) == []


# === Bad input ===


def test_members_that_do_not_match():
    classes = member("classes", raw=False)
    for members, message in (
        ([], "members must be a list of task models, got []"),
        (classes, "members must be a list of task models, got <"),
        ([classes, member("numbers", raw=False)], "position 1 is a BertTextRegressor, but the"),
        ([classes, classes], "position 1 occurs twice"),
        (
            [classes, member("classes", raw=False, labels=["fun", "dull", "odd"])],
            "position 1 has the class 'fun' at index 0, but the first has 'dull'",
        ),
        (
            [classes, member("classes", raw=False, labels=LABELS[:2])],
            "position 1 has 2 classes, but the first has 3",
        ),
        ([classes, member("several", raw=False)], "multi_label=True, but the first has False"),
        (
            [member("tags", raw=False), member("tags", raw=False, scheme="BIOES")],
            "position 1 has 9 classes, but the first has 5",
        ),
        (
            [member("pairs", raw=False), member("pairs", raw=False, activation=None)],
            "position 1 has activation='linear', but the first has 'sigmoid'",
        ),
        ([member("tags", raw=False, crf=True)], "position 0 has crf=True, whose class scores"),
        ([BertTextEmbedder(tiny_backbone())], "position 0 is a BertTextEmbedder; an ensemble has"),
        ([BertEnsemble([classes])], "position 0 is a BertEnsemble; an ensemble has"),
        ([3], "position 0 is a int; an ensemble has"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            BertEnsemble(members)


def test_what_an_ensemble_cannot_do(tmp_path):
    model = ensemble("classes", *UNLIKE)
    with pytest.raises(ValueError, match="train its members, one by one"):
        model.fit(TEXTS, LABELS)
    with pytest.raises(ValueError, match="saved as a folder; use save_to_preset"):
        model.save(tmp_path / "model.keras")
    difference = "the member at position 1 has another tokenizer than the first"
    with pytest.raises(ValueError, match=f"one graph, but {difference}"):
        export_serving(model, tmp_path / "served")
    with pytest.raises(ValueError, match=f"batches for all members, but {difference}; use"):
        model.evaluate(TEXTS, LABELS)
    with pytest.raises(ValueError, match=r"use classify\(\) with texts"):
        model.predict({"token_ids": np.ones((2, 3), "int32")})
    length = BertEnsemble([member("tags"), member("tags", length=12)])
    with pytest.raises(
        ValueError, match="position 1 has sequence_length=12 where the first has 16"
    ):
        served(length)
    with pytest.raises(ValueError, match=r"use tag\(\) with texts"):
        length.predict(TEXTS)
    with pytest.raises(ValueError, match="does not write an ensemble; convert each of its 3"):
        convert(model, tmp_path / "converted")
    assert os.listdir(tmp_path) == []
    for explain in (attributions, attention):
        with pytest.raises(ValueError, match=r"a single model; pass .* ensemble.members\[0\]"):
            explain(model, "good film")
    for copies in (model.get_config, lambda: model.with_layers([0])):
        with pytest.raises(ValueError, match="no config; use save_to_preset and from_preset"):
            copies()


def test_presets_that_are_no_ensembles(tmp_path):
    model = ensemble("classes", *SAME)
    model.save_to_preset(tmp_path / "both")
    with pytest.raises(ValueError, match="labels=.* cannot be set on the ensemble .*members"):
        BertTextClassifier.from_preset(tmp_path / "both", labels=["a", "b"])
    with pytest.raises(
        ValueError, match="ensemble of a BertTextClassifier, not a BertTextRegressor"
    ):
        BertTextRegressor.from_preset(tmp_path / "both")
    with pytest.raises(ValueError, match="is not an ensemble; load tasks with their own class"):
        BertEnsemble.from_preset(tmp_path / "both" / "members" / "0")
    with pytest.raises(ValueError, match="ensemble, which has no encoder .* load a member"):
        BertBackbone.from_preset(tmp_path / "both")
    with pytest.raises(ValueError, match="does not write an ensemble"):
        convert(tmp_path / "both", tmp_path / "converted")
    path = tmp_path / "both" / "task.json"
    saved = json.loads(path.read_text())
    for count, message in (
        (0, "members in .*task.json"),
        ("../..", "members in .*task.json"),
        (4, "members.3"),
        (10**15, "members.3"),
    ):
        path.write_text(json.dumps({**saved, "config": {"members": count}}))
        with pytest.raises(ValueError, match=message):
            BertEnsemble.from_preset(tmp_path / "both")
    path.write_text(json.dumps(saved))
    shutil.move(tmp_path / "both" / "members" / "1", tmp_path / "one")
    member("numbers").save_to_preset(tmp_path / "both" / "members" / "1")
    with pytest.raises(ValueError, match="incomplete: .*1' is not a BertTextClassifier"):
        BertTextClassifier.from_preset(tmp_path / "both")
    os.rename(tmp_path / "both" / "members" / "0", tmp_path / "both" / "members" / "9")
    with pytest.raises(ValueError, match="incomplete: .*0' is not a task"):
        BertEnsemble.from_preset(tmp_path / "both")


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("kind", CLASSES)
def test_one_saved_model(tmp_path, kind):
    """The export compares its answers with the model's."""
    path = export_serving(ensemble(kind, *SAME), tmp_path / "served")
    assert os.path.exists(os.path.join(path, "saved_model.pb"))


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("torch")
def test_one_onnx_graph(tmp_path):
    """The export compares the graph's outputs with the model's."""
    path = export_onnx(ensemble("classes", *SAME), tmp_path / "onnx")
    assert os.path.exists(path)

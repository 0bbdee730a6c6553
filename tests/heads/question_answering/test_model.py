"""Extractive question answering: contract, comparison with `transformers`, training, answers."""

import functools
import math

import keras
import numpy as np
import pytest

import kerasbert.heads.question_answering.model as question_answering
from kerasbert.heads.base.spans import MASKED
from kerasbert.models import (
    BertQuestionAnswering,
    BertQuestionAnsweringPreprocessor,
    BertTextClassifier,
)
from tests.contracts import (
    array,
    arrays,
    batch,
    bert_tokenizer,
    model_contract,
    perturb,
    tiny_backbone,
    with_head,
)

HEAD = "ForQuestionAnswering"
PEOPLE = "ann bob".split()
PLACES = "kew rome".split()
FILLERS = "the a was in of it and on so".split()
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] who where old new".split() + PEOPLE + PLACES + FILLERS
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]


def make(family="bert", **settings):
    return perturb(BertQuestionAnswering(tiny_backbone(family, **settings)))


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


# === Against transformers ===


def load(directory, **arguments):
    return BertQuestionAnswering.from_preset(directory, preprocessor=None, **arguments)


def of_transformers(theirs, inputs, y=None):
    """Return outputs of the reference for our inputs and labels."""
    import torch

    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
    }
    arguments = {names[name]: torch.tensor(value).long() for name, value in inputs.items()}
    for name, value in (y or {}).items():
        arguments[name.replace("logits", "positions")] = torch.tensor(value).long()
    with torch.no_grad():
        return theirs.model(**arguments)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", with_head("question_answering"))
def test_logits_and_loss_equal_transformers(reference, family):
    theirs = reference(family, HEAD)
    model = load(theirs.directory)
    assert not model.backbone.pooler
    for length in (1, 32):
        inputs = theirs.inputs(length)
        is_token = inputs["padding_mask"] == 1
        expected = of_transformers(theirs, inputs)
        ours = {name: x for name, x in inputs.items() if name in model.backbone.input}
        for name, found in arrays(model(ours)).items():
            assert found.shape == (3, length) and found.dtype == "float32"
            gap = found - expected[name].numpy()
            assert np.abs(gap[is_token]).max() <= 1e-5
            assert (found[~is_token] == MASKED).all()
            # Outputs must differ enough to reveal errors.
            assert length == 1 or np.ptp(found[is_token]) > 0.1
    # The same loss without padding.
    y = {"start_logits": np.array([3, 0, 30]), "end_logits": np.array([5, 0, 31])}
    whole = [0, 2]
    part = {name: x[whole] for name, x in inputs.items()}
    labels = {name: x[whole] for name, x in y.items()}
    loss = of_transformers(theirs, part, labels).loss.item()
    part = {name: x[whole] for name, x in ours.items()}
    assert abs(model.evaluate(part, labels, verbose=0)[0] - loss) <= 1e-5
    # Theirs counts padding as possible answers, so ours with padding equals that of single
    # rows.
    alone = []
    for row in range(3):
        count = is_token[row].sum()
        cut = {name: x[row : row + 1, :count] for name, x in inputs.items()}
        label = {name: x[row : row + 1] for name, x in y.items()}
        alone.append(of_transformers(theirs, cut, label).loss.item())
    assert is_token[1].sum() < 32
    assert abs(model.evaluate(ours, y, verbose=0)[0] - np.mean(alone)) <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_settings_of_the_head_are_read(reference):
    theirs = reference("modernbert", HEAD, classifier_activation="relu", classifier_bias=True)
    model = load(theirs.directory)
    assert (model.head_activation, model.head_bias) == ("relu", True)
    inputs = theirs.inputs(13)
    gap = array(model(inputs)["end_logits"]) - of_transformers(theirs, inputs)["end_logits"].numpy()
    assert np.abs(gap[inputs["padding_mask"] == 1]).max() <= 1e-5
    assert load(reference("distilbert", HEAD, qa_dropout=0.3).directory).dropout == 0.3


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_a_new_head_is_asked_for(reference):
    theirs = reference("bert", "ForSequenceClassification", num_labels=3)
    with pytest.raises(ValueError, match="no head for a .*; pass new_head=True"):
        load(theirs.directory)
    with pytest.warns(UserWarning, match="New, random weights .* logits/bias, logits/kernel"):
        load(theirs.directory, new_head=True)


# === Answers of given logits ===


def given_logits(model, windows, *args, **kwargs):
    features = model.preprocessor.pack(windows.rows)
    features = {name: np.asarray(rows) for name, rows in features.items()}
    logits = np.where(features["token_ids"] == TOKENS.index("kew"), 6.0, 0.0)
    logits[:, 0] = 2.0
    logits = np.where(features["padding_mask"], logits, MASKED)
    return {"start_logits": logits, "end_logits": logits}


@functools.cache
def tiny_model():
    settings = {"sequence_length": 24, "max_query_length": 4, "doc_stride": 8}
    preprocessor = BertQuestionAnsweringPreprocessor(bert_tokenizer(TOKENS), **settings)
    backbone = tiny_backbone(max_sequence_length=24)
    return BertQuestionAnswering(backbone, preprocessor=preprocessor)


@pytest.fixture
def given(monkeypatch):
    """A model whose logits mark only the token "kew" as the answer, or "no answer" if the token is
    missing.
    """
    monkeypatch.setattr(question_answering, "predict_texts", given_logits)
    return tiny_model()


@pytest.mark.backends("tensorflow", "torch")
def test_an_answer_far_in_a_long_context(given):
    random = np.random.default_rng(0)
    words = random.choice(FILLERS, 1000)
    for place in (0, 1, 456, 998, 999):
        context = "  ".join([*words[:place], "Kéw", *words[place + 1 :]])
        (best, second) = given.answer("Where was it?", context, top_k=2)
        start = context.index("Kéw")
        assert (best["answer"], best["start"], best["end"]) == ("Kéw", start, start + 3)
        assert context[second["start"] : second["end"]] == second["answer"] != "Kéw"
        # The answer's score of 12 is compared with 19 spans of score 6 that share one of its ends.
        assert 1 > best["score"] > 0.5 > second["score"] > 0
        assert best["null_score"] == 4.0 - 12.0


@pytest.mark.backends("tensorflow", "torch")
def test_no_answer(given):
    contexts = ["it was in kew", "it was in the old and new", "it " * 50 + "kew"]
    for threshold, expected in (
        (None, ["kew", "", "kew"]),
        (0.0, ["kew", "", "kew"]),
        (4.0, ["kew", "it", "kew"]),
        (-9.0, ["", "", ""]),
    ):
        found = given.answer(["where"] * 3, contexts, null_threshold=threshold)
        texts = [answers[0]["answer"] for answers in found]
        if threshold is None:
            assert texts[1] != ""
            texts[1] = ""
        assert texts == expected
        for (answer,), context in zip(found, contexts, strict=True):
            if answer["answer"] == "":
                assert answer["start"] is answer["end"] is None
            else:
                assert context[answer["start"] : answer["end"]] == answer["answer"]
            assert answer["null_score"] == (-8.0 if "kew" in context else 4.0)
            assert 0 < answer["score"] <= 1
    # One list per question, best first.
    answers = given.answer("where", contexts[1], top_k=3, null_threshold=0)
    assert [answer["answer"] == "" for answer in answers] == [True, False, False]
    answers = given.answer("where", contexts[0], top_k=99, null_threshold=0)
    scores = [answer["score"] for answer in answers]
    assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1)
    assert [answer["answer"] for answer in answers].index("") > 0


@pytest.mark.backends("torch")
def test_the_models_own_threshold(given, tmp_path, monkeypatch):
    context = "it was in the old and new"
    sure = given.answer("where", context)[0]
    monkeypatch.setattr(given, "null_threshold", 0.0)
    found = given.answer("where", context)
    assert found == given.answer("where", context, null_threshold=0.0) and found[0]["answer"] == ""
    # An answer at any price is not certain any more.
    forced = given.answer("where", context, null_threshold=math.inf)[0]
    assert forced["answer"] == sure["answer"] and sure["score"] == pytest.approx(1 / 20)
    assert forced["score"] == pytest.approx(1 / (20 + math.exp(4)))
    given.save_to_preset(str(tmp_path))
    assert BertQuestionAnswering.from_preset(str(tmp_path)).null_threshold == 0.0
    monkeypatch.setattr(given, "null_threshold", 2.5)
    with pytest.warns(UserWarning, match="Training resets the null_threshold of 2.5"):
        given.forget_calibration()
    with pytest.raises(ValueError, match="null_threshold must be a number or None, got nan"):
        given.answer("where", context, null_threshold=math.nan)


@pytest.mark.backends("tensorflow", "torch")
def test_longest_answer(given):
    for most in (1, 3):
        answers = given.answer("where", "it was in rome and on so", 30, max_answer_length=most)
        assert max(len(answer["answer"].split()) for answer in answers) == most


# === Training ===


def stories(count, seed=0):
    """Return contexts of up to three windows that name a person and a place, or only one of them.

    Questions ask for either; some have no answer.
    """
    random = np.random.default_rng(seed)
    questions, contexts, answers = [], [], []
    for _ in range(count):
        question = str(random.choice(["who", "where"]))
        named = {"who": str(random.choice(PEOPLE)), "where": "old " + str(random.choice(PLACES))}
        answer = named[question]
        if random.random() < 0.25:
            answer = named.pop(question) and None
        words = random.choice(FILLERS, random.integers(4, 24)).tolist()
        for name in named.values():
            words.insert(random.integers(0, len(words) + 1), name)
        context = " ".join(words)
        start = f" {context} ".index(f" {answer} ") if answer else 0
        questions.append(question)
        contexts.append(context)
        answers.append((start, start + len(answer)) if answer else None)
    return (questions, contexts), answers


def trained():
    keras.utils.set_random_seed(0)
    preprocessor = BertQuestionAnsweringPreprocessor(
        bert_tokenizer(TOKENS),
        sequence_length=16,
        max_query_length=3,
        doc_stride=6,
    )
    backbone = tiny_backbone(max_sequence_length=16, dropout=0.0)
    return BertQuestionAnswering(backbone, preprocessor=preprocessor)


@pytest.mark.slow
def test_fit_on_stories(tmp_path):
    model = trained()
    model.optimizer.learning_rate = 0.02
    x, y = stories(288)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    history = model.fit(x, y, epochs=18, batch_size=32, validation_split=1 / 9, verbose=0).history
    # As one batch, because Keras weights batches of unknown size differently from a sum.
    after = model.evaluate(*stories(64, seed=1), batch_size=256, verbose=0, return_dict=True)
    assert set(after) == {
        "loss",
        "start_logits_loss",
        "end_logits_loss",
        "start_logits_accuracy",
        "end_logits_accuracy",
    }
    parts = (after["start_logits_loss"] + after["end_logits_loss"]) / 2
    assert after["loss"] == pytest.approx(parts, abs=1e-4)
    assert after["loss"] < before["loss"] / 4
    assert min(after["start_logits_accuracy"], history["val_end_logits_accuracy"][-1]) > 0.9

    (questions, contexts), spans = stories(64, seed=2)
    assert model.null_threshold == 0.0  # Some of the questions have no answer.
    found = model.answer(questions, contexts)
    expected = [None if span is None else span for span in spans]
    right = [
        (answers[0]["start"], answers[0]["end"]) == (span or (None, None))
        for answers, span in zip(found, expected, strict=True)
    ]
    assert np.mean(right) > 0.9
    # The answer is late in a long context.
    context = " ".join(["the of"] * 40 + ["Old  Rome"] + ["it"] * 50)
    assert model.answer("Where?", context)[0]["answer"] == "Old  Rome"

    # The preset stores everything.
    model.save_to_preset(str(tmp_path))
    loaded = BertQuestionAnswering.from_preset(str(tmp_path))
    assert loaded.preprocessor.doc_stride == 6
    again = loaded.answer(questions[:3], contexts[:3])
    for ours, theirs in zip(found, again):
        assert ours[0]["answer"] == theirs[0]["answer"]
        assert ours[0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-4)
    # A preset of another task provides its encoder and tokenizer.
    with pytest.raises(ValueError, match="no head for a .*"):
        BertTextClassifier.from_preset(str(tmp_path))


@pytest.mark.backends("torch")
def test_predict_returns_a_row_a_window():
    import tensorflow as tf

    model = trained()
    x = ["who", "where was", "who"], ["it was ann", "on and on " * 11, "bob"]
    features = arrays(model.preprocessor(x))
    expected = model.predict(features, verbose=0)
    seen = []
    callback = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda i, logs: seen.append(i))
    for found in (
        # The short contexts are in a separate batch.
        model.predict(x, batch_size=5, verbose=0, callbacks=[callback]),
        model.predict(tf.data.Dataset.from_tensor_slices((x,)).batch(3), verbose=0),
    ):
        for name, logits in found.items():
            assert logits.dtype == "float32"
            np.testing.assert_allclose(logits, expected[name], atol=1e-5)
            assert len(logits) == len(model.preprocessor.windows(x).examples) == 7
    assert seen == [0, 1]


@pytest.mark.backends("jax", "torch")
def test_fit_on_a_dataset_and_on_arrays():
    import tensorflow as tf

    model = trained()
    x, y = stories(16)
    rows = np.array([(-1, -1) if span is None else span for span in y])
    dataset = tf.data.Dataset.from_tensor_slices((x, rows)).batch(8)
    features, labels = arrays(model.preprocessor(x, y))
    model.fit(dataset, epochs=1, verbose=0)
    evaluate = functools.partial(model.evaluate, batch_size=8, verbose=0)
    loss = evaluate(x, y)[0]
    assert model.evaluate(dataset, verbose=0)[0] == pytest.approx(loss, abs=1e-4)
    assert evaluate(features, labels)[0] == pytest.approx(loss, abs=1e-4)
    weights = np.ones(16)
    weights[8:] = 0
    half = evaluate(x, y, sample_weight=weights, return_dict=True)
    part = tuple(column[:8] for column in x), y[:8]
    expected = evaluate(*part, return_dict=True)
    assert half["end_logits_accuracy"] == pytest.approx(expected["end_logits_accuracy"], abs=1e-5)
    # By batch, raw and preprocessed.
    count = len(model.preprocessor.windows(part[0]).examples)  # The first two of 8 questions.
    ready = ({name: value[:count] for name, value in one.items()} for one in (features, labels))
    for batch_of_8 in (part, tuple(ready)):
        found = model.test_on_batch(*batch_of_8, return_dict=True)["loss"]
        assert found == pytest.approx(expected["loss"], abs=1e-4)
        assert model.predict_on_batch(batch_of_8[0])["end_logits"].shape == (count, 16)
    first = model.train_on_batch(*part, return_dict=True)["loss"]
    assert model.train_on_batch(*batch_of_8, return_dict=True)["loss"] < first


def test_bad_questions(given):
    for arguments, message in (
        ({"question": ["who"], "context": "it"}, "one text and one list"),
        ({"question": [], "context": []}, "list of texts is empty"),
        ({"question": "who", "context": ""}, "context at position 0 has no tokens"),
        ({"question": ["who"], "context": ["it", "was"]}, "have 1 and 2 texts"),
        ({"top_k": 0}, "top_k=0 must be a whole number of at least 1"),
        ({"n_best": 2.5}, "n_best=2.5 must be"),
        ({"max_answer_length": -1}, "max_answer_length=-1 must be"),
        ({"null_threshold": "0"}, "null_threshold must be a number .* got '0'"),
    ):
        with pytest.raises(ValueError, match=message):
            given.answer(**{"question": "who", "context": "it", **arguments})


def test_without_a_preprocessor():
    model = BertQuestionAnswering(tiny_backbone(num_layers=1))
    with pytest.raises(ValueError, match=r"answer\(\) takes texts, but this model has no prep"):
        model.answer("who", "it")
    features = batch(model)
    assert model.predict(features, verbose=0)["start_logits"].shape == (3, 7)

"""A few texts run batch by batch, without a pipeline: the same answers, results and callbacks."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from kerasbert.heads.base import inputs
from tests.export import tiny

TEXTS = [
    "it was a good film.",
    "bad.",
    "the city by night, the train by day.",
    "ann went home by train",
    "",
    "bob went by day. it was a bad bad film, a bad film.",
]
LABELS = [1, 0, 0, 1, 1, 0]


@pytest.fixture
def as_many(monkeypatch):
    """Use the pipeline for many texts."""
    defaults = (None, None, None, 0, None)  # `few` is 0.
    return lambda: monkeypatch.setattr(inputs.sorted_batches, "__defaults__", defaults)


def same(few, many, atol):
    def compare(one, other):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=atol)

    keras.tree.map_structure(compare, few, many)


def model_of(name, **settings):
    return tiny.task(name, **settings)


def classifier(**encoder):
    encoder = {"num_layers": 1, **encoder}
    return model_of("TextClassifier", labels=["ham", "spam"], encoder_settings=encoder)


@pytest.fixture(scope="module")
def model():
    return classifier()


ASKED = {
    "TextClassifier": (
        {"labels": ["ham", "spam"]},
        lambda model: model.predict(TEXTS, batch_size=4, verbose=0),
    ),
    "TextRegressor": ({}, lambda model: model.score((TEXTS, TEXTS[::-1]))),
    "TextEmbedder": ({"pooling": "tokens"}, lambda model: model.embed(TEXTS)),
    "TokenClassifier": (
        {"labels": ["PER"], "scheme": "BIO"},
        lambda model: model.predict(TEXTS, batch_size=4, verbose=0),
    ),
    "QuestionAnswering": (
        {},
        lambda model: model.predict((TEXTS[:2], [TEXTS[0], TEXTS[2] * 40]), verbose=0),
    ),
    "MultipleChoice": (
        {},
        lambda model: model.predict((TEXTS[:2], [TEXTS[:3], TEXTS[2:]]), batch_size=3, verbose=0),
    ),
    "NextSentencePredictor": ({}, lambda model: model.follows(TEXTS, TEXTS[::-1])),
    "MaskedLM": ({}, lambda model: model.predict(TEXTS[:3], verbose=0)),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ASKED)
def test_the_same_outputs(name, as_many):
    settings, ask = ASKED[name]
    model = model_of(name, **settings)
    few = [ask(model) for _ in range(66)]  # 66 calls, because frequent shapes get a separate graph.
    as_many()
    many = ask(model)
    for one in few:
        same(one, many, 5e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_the_same_results(model, as_many):
    weights = [1.0, 2.0, 0.5, 1.0, 1.0, 3.0]
    ways = (
        lambda: model.evaluate(TEXTS, LABELS, batch_size=4, verbose=0),
        lambda: model.evaluate(TEXTS, LABELS, sample_weight=weights, verbose=0, return_dict=True),
    )
    few = [way() for way in (*ways, *ways)]
    assert few[:2] == few[2:]  # Each call resets the metrics.
    as_many()
    for one, other in zip(few, [way() for way in ways]):
        same(one, other, 0)


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_predict_begin(self, logs=None):
        self.seen.append("begin")

    def on_predict_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["outputs"].shape))

    def on_predict_end(self, logs=None):
        self.seen.append("end")

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append((batch, sorted(logs)))

    def on_test_end(self, logs=None):
        self.seen.append(sorted(logs))


def test_callbacks_and_steps(model):
    calls = Calls()
    model.predict(TEXTS, batch_size=4, verbose=0, callbacks=[calls])
    assert calls.seen == ["begin", (0, (4, 2)), (1, (2, 2)), "end"]
    calls.seen.clear()
    model.evaluate(TEXTS, LABELS, batch_size=4, verbose=0, callbacks=[calls], steps=1)
    assert calls.seen == [(0, ["accuracy", "loss"]), ["accuracy", "loss"]]


def test_nobody_listens(model, monkeypatch):
    """Without callbacks and progress bar, no `CallbackList` is made, as it would start a thread."""
    expected = model.classify(TEXTS)
    monkeypatch.setattr(keras.callbacks, "CallbackList", None)
    assert model.classify(TEXTS) == expected


def test_the_bar_shows(model, capsys):
    model.predict(TEXTS, batch_size=4)
    assert "2/2" in capsys.readouterr().out
    model.evaluate(TEXTS, LABELS, batch_size=4)
    assert "2/2" in capsys.readouterr().out


def test_a_setting_changed_meanwhile():
    model = classifier()
    long = " ".join(TEXTS * 5)
    before = [model.predict([long], verbose=0) for _ in range(4)][-1]
    model.preprocessor.sequence_length = 8
    after = model.predict([long], verbose=0)
    assert np.abs(before - after).max() > 1e-4
    ids = model.preprocessor([long])
    np.testing.assert_allclose(after, model.predict(ids, verbose=0), rtol=1e-5, atol=1e-6)


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_weights_changed_meanwhile():
    """Graphs made for a shape use the current weights."""
    model = classifier()
    before = [model.predict(TEXTS[:1], verbose=0) for _ in range(4)][-1]
    model.output_dense.bias.assign(model.output_dense.bias + 1)
    np.testing.assert_allclose(model.predict(TEXTS[:1], verbose=0), before + 1, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("how", ["mixed_bfloat16", "int8", "lora"])
def test_other_computing(how):
    model = classifier()
    texts = TEXTS[:1]
    first = [model.predict(texts, verbose=0) for _ in range(4)][-1]
    if how == "int8":
        model.quantize("int8")
    elif how == "lora":
        model.backbone.enable_lora(2)
        for weight in model.backbone.trainable_weights:
            weight.assign(weight + 0.1)
        model.compile()
    else:
        model = classifier(dtype="mixed_bfloat16")
    found = [model.predict(texts, verbose=0) for _ in range(5)]
    # bfloat16 rounding depends on what a graph fuses.
    atol = 0.25 if how == "mixed_bfloat16" else 1e-5
    same(found[0], found[-1], atol)
    assert np.abs(found[0] - first).max() > 1e-5
    # Keras' own `predict_on_batch` gives the same for a batch of arrays.
    features = {name: np.asarray(x) for name, x in model.preprocessor(texts).items()}
    same(found[-1], keras.Model.predict_on_batch(model, features), atol)


def test_threads_of_new_shapes(model):
    """Graphs are made while other threads compute."""
    texts = [" ".join(["good film"] * count) for count in (1, 4, 9, 15, 22)]
    alone = [model.classify(text) for text in texts]
    model = classifier()

    def ask(number):
        return [model.classify(texts[(number + i) % len(texts)]) for i in range(10)]

    with ThreadPoolExecutor(4) as pool:
        for number, answers in enumerate(pool.map(ask, range(4))):
            for i, answer in enumerate(answers):
                expected = alone[(number + i) % len(texts)]
                assert answer["label"] == expected["label"]
                assert answer["score"] == pytest.approx(expected["score"], abs=1e-5)

"""`fit`, `evaluate` and `predict` of a task model, on strings and on arrays."""

import functools
import logging

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from kerasbert.base.keywords import arguments
from kerasbert.converter import tasks
from kerasbert.lineage import ElmoBackbone
from kerasbert.models import BertBackbone, BertTextClassifier
from tests.contracts import array, assert_close, batch, tiny_backbone, tiny_classifier
from tests.heads.text_classifier.test_model import raw_classifier

# Warnings of Keras would annoy users.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

TEXTS = ["good film", "a dull film", "it was very good", "bad", "fun", "it was bad", "good", "dull"]
LABELS = ["good", "bad", "good", "bad", "good", "bad", "good", "bad"]
Y = np.array([1, 0] * 4)


class Steps(keras.callbacks.Callback):
    """Records the number of steps that a progress bar gets."""

    def on_train_begin(self, logs=None):
        self.steps = self.params["steps"]


@pytest.fixture(scope="module")
def model():
    """One compiled model for the tests that change nothing else; `reset` undoes training."""
    classifier = raw_classifier(dropout=0.0)
    classifier.compile(keras.optimizers.SGD(1e-3), run_eagerly=True)
    classifier.initial = classifier.get_weights()
    classifier.expected = classifier.predict(TEXTS, batch_size=4, verbose=0)
    classifier.scores = scores(classifier, TEXTS, LABELS, batch_size=4)
    return classifier


def scores(model, *args, **kwargs):
    return np.array(model.evaluate(*args, verbose=0, **kwargs))


def reset(model):
    model.set_weights(model.initial)
    keras.utils.set_random_seed(0)


@pytest.mark.backends("torch")
def test_learns():
    # At this learning rate, dropout in such a small encoder sometimes undoes what was learned.
    classifier = raw_classifier(dropout=0.0)
    classifier.compile(keras.optimizers.Adam(0.01))
    history = classifier.fit(TEXTS, LABELS, batch_size=4, epochs=24, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    loss, accuracy = classifier.evaluate(TEXTS, LABELS, batch_size=4, verbose=0)
    assert accuracy == 1.0 and loss < 0.3
    assert [result["label"] for result in classifier.classify(TEXTS)] == LABELS
    # The outputs of `predict` give the same numbers.
    logits = classifier.predict(TEXTS, batch_size=4, verbose=0)
    expected = keras.ops.sparse_categorical_crossentropy(Y, logits, from_logits=True)
    np.testing.assert_allclose(loss, array(expected).mean(), atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
def test_default_compile():
    classifier = raw_classifier()
    classifier.run_eagerly = True
    history = classifier.fit(TEXTS, LABELS, epochs=1, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    optimizer = classifier.optimizer
    assert isinstance(optimizer, keras.optimizers.AdamW)
    np.testing.assert_allclose(float(optimizer.learning_rate), 3e-5, rtol=1e-6)


def kinds_of_text():
    yield "list", TEXTS, LABELS
    yield "tuple_labels", TEXTS, tuple(LABELS)
    yield "numpy", np.array(TEXTS), Y
    yield "objects", np.array(TEXTS, object), np.array(LABELS, object)
    yield "bytes", [text.encode() for text in TEXTS], Y.tolist()
    yield "pandas", pandas.Series(TEXTS, index=range(5, 13)), pandas.Series(LABELS)
    yield "tensor", tf.constant(TEXTS), tf.constant(Y)
    yield "dict", {"text": TEXTS}, LABELS


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", kinds_of_text(), ids=lambda kind: kind[0])
def test_every_kind_of_text(model, kind):
    _, x, y = kind
    reset(model)
    assert_close(model.predict(x, batch_size=4, verbose=0), model.expected)
    assert_close(scores(model, x, y, batch_size=4), model.scores)
    steps = Steps()
    history = model.fit(x, y, batch_size=4, verbose=0, callbacks=[steps]).history
    assert steps.steps == 2 and np.isfinite(history["loss"]).all()


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_datasets(model):
    reset(model)
    expected = model.expected
    texts = tf.data.Dataset.from_tensor_slices(TEXTS).batch(4)
    assert_close(model.predict(texts, verbose=0), expected)
    for y in (LABELS, Y):
        dataset = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(4)
        assert_close(scores(model, dataset), model.scores)
    steps = Steps()
    model.fit(dataset, verbose=0, callbacks=[steps], validation_data=dataset)
    assert steps.steps == 2
    # A preprocessed dataset gives the same.
    reset(model)
    ready = dataset.map(model.preprocessor)
    assert_close(scores(model, ready), model.scores)
    weighted = tf.data.Dataset.from_tensor_slices(({"text": TEXTS}, Y, np.ones(8))).batch(4)
    assert_close(scores(model, weighted), model.scores)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_pairs(model):
    reset(model)
    other = TEXTS[::-1]
    expected = model.predict((TEXTS, other), batch_size=4, verbose=0)
    table = pandas.DataFrame({"a": TEXTS, "b": other})
    pairs = list(map(list, zip(TEXTS, other, strict=True)))
    dataset = tf.data.Dataset.from_tensor_slices(((TEXTS, other), Y)).batch(4)
    for x in (table, pairs, {"text": TEXTS, "text_b": other}, dataset):
        assert_close(model.predict(x, batch_size=4, verbose=0), expected)
    assert np.abs(model.expected - expected).max() > 1e-4
    for x in ((TEXTS, other), table):
        history = model.fit(x, LABELS, batch_size=4, verbose=0, validation_split=0.5).history
        assert "val_loss" in history


@pytest.mark.backends("torch")
def test_validation(model):
    reset(model)
    last = model.fit(TEXTS[:4], LABELS[:4], batch_size=4, verbose=0).history
    expected = model.evaluate(TEXTS[4:], LABELS[4:], batch_size=4, verbose=0)
    for x, y, settings in (
        (TEXTS[:4], LABELS[:4], {"validation_data": (TEXTS[4:], LABELS[4:])}),
        (TEXTS, LABELS, {"validation_split": 0.5}),
        (pandas.Series(TEXTS), pandas.Series(LABELS), {"validation_split": 0.5}),
    ):
        reset(model)
        first = model.fit(x, y, batch_size=4, verbose=0, **settings).history
        np.testing.assert_allclose(first["val_loss"], expected[0], atol=1e-2)
        np.testing.assert_allclose(first["loss"], last["loss"], atol=1e-2)
    with pytest.raises(ValueError, match="leaves one side empty"):
        model.fit(TEXTS, LABELS, validation_split=0.999)


@pytest.mark.backends("torch")
def test_weights(model):
    reset(model)
    weights = np.array([1.0, 0.25] * 4)
    loss = model.evaluate(TEXTS, LABELS, batch_size=8, sample_weight=weights, verbose=0)[0]
    logits = model.expected
    each = array(keras.ops.sparse_categorical_crossentropy(Y, logits, from_logits=True))
    np.testing.assert_allclose(loss, (each * weights).sum() / 8, atol=1e-5)
    reset(model)
    by_sample = model.fit(TEXTS, LABELS, batch_size=8, sample_weight=weights, verbose=0).history
    reset(model)
    by_class = model.fit(
        TEXTS, LABELS, batch_size=8, class_weight={0: 0.25, 1: 1.0}, verbose=0
    ).history
    np.testing.assert_allclose(by_class["loss"], by_sample["loss"], atol=1e-5)


@pytest.mark.backends("torch")
def test_predict_restores_the_order(model):
    reset(model)
    random = np.random.default_rng(0)
    words = np.array("good bad film a the was very dull fun it".split())
    texts = [" ".join(random.choice(words, random.integers(1, 13))) for _ in range(21)]
    found = model.predict(texts, batch_size=4, verbose=0)
    alone = [array(model(model.preprocessor([text])))[0] for text in texts]
    assert_close(found, np.stack(alone))
    assert_close(model.predict(texts, batch_size=32, verbose=0), found)


@pytest.mark.slow
def test_arrays(model):
    reset(model)
    features, y = batch(model, (7, 4, 5, 6)), np.array([0, 1, 1, 0])
    fit = functools.partial(model.fit, features, y, batch_size=4, verbose=0)
    history = fit(epochs=2, class_weight={0: 1.0, 1: 2.0}, validation_data=(features, y)).history
    assert len(history["val_loss"]) == 2
    assert "val_loss" in fit(validation_split=0.5).history
    model.evaluate(features, y, batch_size=4, sample_weight=np.ones(4), verbose=0)
    only_ids = {"token_ids": features["token_ids"]}
    assert model.predict(only_ids, batch_size=2, verbose=0).shape == (4, 2)
    # A model without a preprocessor gives the same.
    plain = BertTextClassifier(tiny_backbone(dropout=0.0), num_classes=2)
    plain.set_weights(model.get_weights())
    plain.compile("sgd", run_eagerly=True)
    expected = model.predict(features, batch_size=4, verbose=0)
    assert_close(plain.predict(features, batch_size=2, verbose=0), expected)
    plain.fit(features, y, batch_size=4, verbose=0)


@pytest.mark.backends("torch")
def test_many_labels():
    classifier = raw_classifier(labels=["good", "bad"], multi_label=True, dropout=0.0)
    classifier.compile(keras.optimizers.Adam(0.03), run_eagerly=True)
    names = [[name] for name in LABELS]
    rows = np.stack([Y, 1 - Y], axis=1).astype("float32")
    assert_close(
        classifier.evaluate(TEXTS, names, verbose=0), classifier.evaluate(TEXTS, rows, verbose=0)
    )
    classifier.compile(keras.optimizers.Adam(0.03), run_eagerly=True)
    history = classifier.fit(TEXTS, names, epochs=5, verbose=0).history
    assert set(history) == {"loss", "accuracy"} and history["loss"][-1] < history["loss"][0]
    logits = classifier.predict(TEXTS, verbose=0)
    each = np.log1p(np.exp(logits)) - rows * logits
    loss, accuracy = classifier.evaluate(TEXTS, rows, verbose=0)
    np.testing.assert_allclose(loss, each.mean(), atol=1e-5)
    np.testing.assert_allclose(accuracy, ((logits > 0) == (rows > 0)).mean(), atol=1e-6)


@pytest.mark.backends("torch")
def test_seeds_make_runs_repeat():
    def train():
        keras.utils.set_random_seed(7)
        classifier = raw_classifier()
        classifier.compile("sgd", run_eagerly=True)
        keras.utils.set_random_seed(7)
        classifier.fit(TEXTS, LABELS, batch_size=4, epochs=1, verbose=0)
        return classifier.get_weights()

    first, second = train(), train()
    assert_close(first, second, atol=0)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "list of texts is empty"),
        (["good", None], ["good", "bad"], "text at position 1 is None"),
        (["good", 3.5], ["good", "bad"], "text at position 1 is 3.5"),
        (["good", float("nan")], ["good", "bad"], "text at position 1 is missing"),
        (["good", "bad"], ["good", "goof"], "'goof'"),
        (["good", "bad"], [0, 2], "2"),
        (["good", "bad"], ["good"], "2 texts but 1 labels"),
        (np.ones((2, 3)), [0, 1], "two strings"),
        ("good", "good", "where a list is needed"),
    ],
)
def test_errors_come_through(model, x, y, message):
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=message):
            method(x, y, verbose=0)


@pytest.mark.backends("torch")
def test_encoders_of_other_kinds():
    other = ElmoBackbone(1, 4, 2, [(1, 2)])
    for cls in set(tasks().values()) - {BertBackbone}:
        settings = {"num_classes": 2} if "num_classes" in arguments(cls) else {}
        with pytest.raises((TypeError, ValueError), match="backbone is a ElmoBackbone, .* needs a"):
            cls(other, **settings)


@pytest.mark.backends("torch")
def test_errors_of_predict(model):
    for x, message in (([], "empty"), ([None], "position 0 is None"), ([1], "position 0 is 1")):
        for method in (model.predict, model.classify, model.predict_proba):
            with pytest.raises(ValueError, match=message):
                method(x)
    with pytest.raises(ValueError, match="position 0 is None"):
        model.fit(TEXTS, LABELS, validation_data=([None], ["good"]), verbose=0)
    without = tiny_classifier()
    with pytest.raises(ValueError, match="preprocessor"):
        without.predict(TEXTS)
    with pytest.raises(ValueError, match="preprocessor"):
        without.fit(TEXTS, Y)


@pytest.mark.backends("torch")
def test_a_frozen_encoder_stays():
    classifier = raw_classifier()
    classifier.backbone.trainable = False
    classifier.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
    before = [array(weight) for weight in classifier.backbone.weights]
    classifier.fit(TEXTS, LABELS, batch_size=8, verbose=0)
    assert_close(list(classifier.backbone.weights), before, atol=0)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_lengths_are_traced_without_a_warning():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        for length in range(2, 6):  # As in notebooks: a model, a text, the next model.
            small = tiny_classifier(num_layers=1)
            small.predict({"token_ids": np.ones((1, length), "int32")}, verbose=0)
            small.predict_on_batch({"token_ids": np.ones((1, length + 1), "int32")})
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    assert not [message for message in said if "retracing" in message]


@pytest.mark.backends("jax")
def test_the_progress_line_says_what_is_compiled(capsys):
    classifier = raw_classifier()
    classifier.compile()
    for verbose in (0, 1, 1):
        classifier.fit(TEXTS, LABELS, batch_size=4, verbose=verbose)
        said = capsys.readouterr().out
        # The step was compiled in the first epoch, which had no output.
        assert "compiling" not in said
    classifier.fit(TEXTS, LABELS, batch_size=2, verbose=1)
    assert "\rcompiling 2 x " in capsys.readouterr().out
    assert "train_step" not in vars(classifier)


@pytest.mark.backends("torch")
def test_compiling_without_a_compiler_is_refused(monkeypatch):
    classifier = raw_classifier()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="jit_compile=True .* 'no-such-compiler' was not found"):
        classifier.compile(jit_compile=True)
    classifier.compile(jit_compile=False)
    classifier.compile()

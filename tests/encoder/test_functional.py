"""Base classes stay fixed while other threads use models, and weights survive failing loops."""

import os
import signal
import threading
import time

import keras
import keras_hub
import numpy as np
import pytest

from kerasbert import models
from kerasbert.base import keras_internals
from tests.campaigns import calls
from tests.contracts import bert_tokenizer
from tests.export import tiny

TEXTS = ["a good film", "bob went home by train", "it was a bad day"] * 16
LABELS = [0, 1, 0] * 16


def classifier():
    return tiny.task(
        "TextClassifier",
        bert_tokenizer([*calls.SPECIAL, *calls.WORDS]),
        labels=["ham", "spam"],
        encoder_settings={"num_layers": 1},
    )


@pytest.fixture(scope="module")
def model():
    return classifier()


def keras_hub_classifier():
    encoder = keras_hub.models.BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    return keras_hub.models.BertTextClassifier(encoder, num_classes=2)


# === Classes ===


def test_bases_do_not_depend_on_what_was_built():
    names = ("BertBackbone", "BertTextClassifier", "BertMultiTask", "BertDistiller")
    before = {name: getattr(models, name).__mro__ for name in names}
    for name, bases in before.items():
        assert keras_internals.functional() in bases, name
    model = classifier()
    keras_hub_classifier()
    assert {name: getattr(models, name).__mro__ for name in names} == before
    models.BertMultiTask({"one": model})
    assert {name: getattr(models, name).__mro__ for name in names} == before


def test_building_leaves_models_of_keras_hub_functional(model):
    theirs = keras_hub_classifier()
    ids = {
        "token_ids": np.ones((1, 4), "int32"),
        "segment_ids": np.zeros((1, 4), "int32"),
        "padding_mask": np.ones((1, 4), "int32"),
    }
    assert theirs(ids).shape == (1, 2)
    pipeline = keras_internals.pipeline_model()
    before = pipeline.__bases__
    try:
        # KerasHub temporarily changes the base classes of each of its tasks in this way.
        pipeline.__bases__ = (keras.Model,)
        assert model.classify("a good film") and model.output.shape[-1] == 2
    finally:
        pipeline.__bases__ = before


def test_first_models_of_a_class_in_several_threads():
    class Own(models.BertBackbone):
        pass

    failures, start = [], threading.Barrier(4)

    def build():
        start.wait()
        try:
            Own(vocabulary_size=9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4)
        except Exception as error:
            failures.append(error)

    builders = [threading.Thread(target=build) for _ in range(4)]
    for one in builders:
        one.start()
    for one in builders:
        one.join()
    assert failures == []


# === Failing loops ===


class Stops(keras.callbacks.Callback):
    """Callback that calls a function at a given moment of a loop."""

    def __init__(self, moment, function):
        super().__init__()
        setattr(self, moment, lambda *args, **kwargs: function())


def fail():
    raise LookupError("on purpose")


def interrupt():
    signal.raise_signal(signal.SIGINT)
    time.sleep(1)


def rows(model, count=48):
    arrays = model.preprocessor(TEXTS[:count])
    return {name: keras.ops.convert_to_numpy(x) for name, x in arrays.items()}


def failing_batches(*batch):
    yield batch
    yield batch
    fail()


LOOPS = {
    "predict arrays": lambda model, **settings: model.predict(rows(model), **settings),
    "predict texts": lambda model, **settings: model.predict(TEXTS * 30, **settings),
    "evaluate arrays": lambda model, **settings: model.evaluate(
        rows(model), np.array(LABELS), **settings
    ),
    "evaluate texts": lambda model, **settings: model.evaluate(TEXTS * 30, LABELS * 30, **settings),
    "fit arrays": lambda model, **settings: model.fit(rows(model), np.array(LABELS), **settings),
    "fit texts": lambda model, **settings: model.fit(TEXTS, LABELS, **settings),
    "validate": lambda model, **settings: model.fit(
        TEXTS, LABELS, validation_data=(TEXTS * 30, LABELS * 30), **settings
    ),
}
KIND = {"predict": "predict", "evaluate": "test", "fit": "train", "validate": "test"}


def check_whole(model, before=None):
    """Check that all weights are finite, and that the model answers, as before if given."""
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    answer = model.classify("a good film")
    assert before is None or answer == before


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("moment, function", [("batch_begin", interrupt), ("batch_end", fail)])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_stopped_loop_leaves_the_model_whole(model, loop, moment, function):
    method = loop.split()[0]
    before = None if method in ("fit", "validate") else model.classify("a good film")
    stop = Stops(f"on_{KIND[method]}_{moment}", function)
    with pytest.raises((LookupError, KeyboardInterrupt)):
        LOOPS[loop](model, callbacks=[stop], verbose=0)
    check_whole(model, before)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("method", ["predict", "evaluate", "fit"])
def test_failing_data_leaves_the_model_whole(model, method):
    before = None if method == "fit" else model.classify("a good film")
    batch = (rows(model, 8),) if method == "predict" else (rows(model, 8), np.array(LABELS[:8]))
    with pytest.raises(Exception, match="on purpose"):
        getattr(model, method)(failing_batches(*batch), verbose=0)
    check_whole(model, before)


def test_a_stopped_loop_leaves_the_encoder_whole(model):
    encoder = model.backbone
    before = encoder.predict(rows(model, 4), verbose=0)["sequence_output"]
    stop = Stops("on_predict_batch_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        encoder.predict(rows(model), callbacks=[stop], verbose=0)
    after = encoder.predict(rows(model, 4), verbose=0)["sequence_output"]
    np.testing.assert_array_equal(before, after)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch"])
def test_an_interrupt_waits_until_the_step_has_run(method):
    """TensorFlow may crash later if an exception ends a trace."""
    model = classifier()
    loss = model.compute_loss

    def interrupting(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return loss(*args, **kwargs)

    model.__dict__["compute_loss"] = interrupting
    with pytest.raises(KeyboardInterrupt):
        getattr(model, method)(rows(model), np.array(LABELS))
    assert int(model.optimizer.iterations) == (0 if method == "evaluate" else 1)
    check_whole(model)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_interrupts_at_random_moments(tmp_path, model, seed):
    arrays, labels = rows(model), np.array(LABELS)
    method = ("fit", "predict", "evaluate", "train_on_batch")[seed % 4]
    delay = np.random.default_rng(seed).uniform(0.05, 0.5)
    sent = threading.Event()

    def interrupted():
        sent.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(delay, interrupted)
    before = model.classify("a good film") if method in ("predict", "evaluate") else None
    timer.start()
    try:
        while timer.is_alive():
            targets = () if method == "predict" else (labels,)
            settings = {} if method == "train_on_batch" else {"verbose": 0}
            getattr(model, method)(arrays, *targets, **settings)
    except (KeyboardInterrupt, Exception):
        # TensorFlow wraps an interrupt during tracing in its own error; Python drops one in a
        # destructor.
        assert sent.is_set()
    timer.join()
    check_whole(model, before)
    model.save_to_preset(tmp_path / "saved")
    assert models.BertTextClassifier.from_preset(tmp_path / "saved").classify("a good film")


@pytest.mark.backends("jax")
def test_a_step_of_evaluate_keeps_newer_weights(model):
    """`fit` may assign weights in another thread while `evaluate` computes from older ones."""
    arrays, weight = rows(model, 8), model.trainable_weights[-1]
    model.evaluate(arrays, np.array(LABELS[:8]), verbose=0)
    groups = ("trainable_variables", "non_trainable_variables", "metrics_variables")
    state = model._get_jax_state(**dict.fromkeys(groups, True))
    newer = keras.ops.convert_to_numpy(weight) + 1
    weight.assign(newer)
    model.test_function(state, iter([(arrays, np.array(LABELS[:8]))]))
    np.testing.assert_array_equal(weight, newer)
    weight.assign(newer - 1)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_threads_predict_while_the_model_trains(model):
    arrays, failures = rows(model), []
    done = threading.Event()

    def ask():
        while not done.is_set():
            try:
                model.predict(arrays, verbose=0)
                model.classify("a good film")
            except Exception as error:
                failures.append(error)
                return

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for one in asking:
        one.start()
    model.fit(arrays, np.array(LABELS), epochs=3, batch_size=8, verbose=0)
    model.evaluate(arrays, np.array(LABELS), verbose=0)
    done.set()
    for one in asking:
        one.join()
    assert failures == []

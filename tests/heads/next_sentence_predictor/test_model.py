"""The next-sentence predictor: contract, training, `follows`."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.models import BertNextSentencePredictor, BertNextSentencePredictorPreprocessor
from tests.contracts import (
    MODEL_CHECKS,
    array,
    batch,
    bert_tokenizer,
    check_preprocessor,
    model_contract,
    perturb,
    tiny_backbone,
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]


def make(family="bert", **settings):
    return perturb(BertNextSentencePredictor(tiny_backbone(family, pooler=True, **settings)))


def make_preprocessor():
    return BertNextSentencePredictorPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)


def make_raw():
    keras.utils.set_random_seed(0)
    return BertNextSentencePredictor(tiny_backbone(dropout=0.0), preprocessor=make_preprocessor())


@model_contract("bert", slow=MODEL_CHECKS)
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


def test_preprocessor_contract(tmp_path):
    texts = ["good film", "a", "it was very very very very dull", "bad"]
    check_preprocessor(make_preprocessor(), (texts, texts[::-1]), [0, 1, 1, 0], tmp_path)


@pytest.mark.backends("torch")
def test_follows():
    predictor = make_raw()
    predictor.optimizer.learning_rate = 0.01
    a, b = ["good", "good", "bad", "bad"] * 8, ["fun", "dull", "fun", "dull"] * 8
    y = [0, 1, 0, 1] * 8
    history = predictor.fit((a, b), y, epochs=15, batch_size=8, verbose=0).history
    assert history["accuracy"][-1] > 0.9
    scores = predictor.follows(["good", "good"], ["fun", "dull"])
    assert scores[0] > 0.5 > scores[1]
    assert predictor.follows("good", "fun") == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.backends("torch")
def test_compile_without_metrics():
    predictor = make()
    predictor.compile("sgd", "mse", metrics=None)
    features = batch(predictor)
    # These targets do not suit the accuracy metric.
    targets = np.zeros((3, 2), "float32")
    assert set(predictor.evaluate(features, targets, verbose=0, return_dict=True)) == {"loss"}


def test_bad_pairs():
    predictor = make_raw()
    with pytest.raises(ValueError, match="single texts where pairs are needed"):
        predictor.predict(["good"], verbose=0)
    with pytest.raises(ValueError, match="label 2 at position 0 is outside 0 to 1"):
        predictor.fit((["good"], ["bad"]), [2], verbose=0)
    with pytest.raises(ValueError, match="needs an encoder with a pooler"):
        BertNextSentencePredictor(tiny_backbone("distilbert"))


@pytest.mark.backends("tensorflow", "torch")
def test_outputs():
    model = make(num_layers=1, dtype="mixed_bfloat16")
    outputs = model(batch(model))
    assert tuple(outputs.shape) == (3, 2)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert np.isfinite(array(outputs)).all()

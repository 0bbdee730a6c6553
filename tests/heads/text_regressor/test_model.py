"""The regressor: contract, training, `score`."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.models import BertTextRegressor, BertTextRegressorPreprocessor
from tests.contracts import (
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
    return perturb(BertTextRegressor(tiny_backbone(family, **settings)))


def make_preprocessor():
    return BertTextRegressorPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)


def make_raw():
    keras.utils.set_random_seed(0)
    return BertTextRegressor(tiny_backbone(dropout=0.0), preprocessor=make_preprocessor())


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


def test_preprocessor_contract(tmp_path):
    texts = ["good film", "a", "it was very very very very dull", "bad"]
    check_preprocessor(make_preprocessor(), texts, [1.5, 0.0, -2.0, 7.0], tmp_path)


@pytest.mark.backends("torch")
def test_score():
    regressor = make_raw()
    regressor.optimizer.learning_rate = 0.01
    texts, y = ["good film", "bad film", "very good", "very bad"] * 8, [4.0, 1.0, 5.0, 0.0] * 8
    first = regressor.evaluate(texts, y, verbose=0)
    regressor.fit(texts, y, epochs=25, batch_size=8, verbose=0)
    loss, mae = regressor.evaluate(texts, y, verbose=0)
    assert loss < first[0] / 2 and mae < first[1]
    scores = regressor.score(["very good", "bad film"])
    assert scores.shape == (2,) and scores.dtype == "float32" and scores[0] > scores[1]
    assert regressor.score("very good") == pytest.approx(scores[0], abs=1e-5)
    assert regressor.score(("very", "good")) == regressor.score((["very"], ["good"]))[0]


@pytest.mark.backends("torch")
def test_weights_of_numbers():
    regressor = make()
    features, y = batch(regressor), np.array([1.0, 2.0, 4.0], "float32")
    found = array(regressor(features))
    weights = np.array([0.0, 1.0, 3.0], "float32")
    loss, mae = regressor.evaluate(features, y, sample_weight=weights, verbose=0)
    assert loss == pytest.approx(np.mean(weights * (found - y) ** 2), rel=1e-5)
    assert mae == pytest.approx(np.sum(weights * np.abs(found - y)) / weights.sum(), rel=1e-5)
    regressor.fit(features, y, sample_weight=weights, verbose=0)


def test_bad_numbers():
    regressor = make_raw()
    for y, message in (
        ([1.0, "two"], "label at position 1 is 'two'; pass one finite number"),
        ([1.0, float("nan")], "label at position 1 is nan"),
        ([[1.0, 2.0], [3.0, 4.0]], r"label at position 0 is \[1.0, 2.0\]"),
        ([1.0], "2 texts but 1 labels"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor.fit(["good", "bad"], y, verbose=0)


@pytest.mark.backends("tensorflow", "torch")
def test_without_a_preprocessor():
    regressor = make()
    assert array(regressor(batch(regressor))).shape == (3,)
    with pytest.raises(ValueError, match=r"score\(\) takes texts, but this model has no prep"):
        regressor.score("good")

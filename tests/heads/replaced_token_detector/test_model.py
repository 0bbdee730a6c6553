"""Replaced-token detection: ELECTRA's discriminators with their head, texts, words, training."""

import functools

import keras
import numpy as np
import pytest

from kerasbert import convert
from kerasbert.models import (
    BertReplacedTokenDetector,
    BertReplacedTokenDetectorPreprocessor,
)
from tests.contracts import array, bert_tokenizer, model_contract, perturb, tiny_backbone
from tests.peers import torch

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the dog ##s bark at cat . sleep 日 本".split()
TOKENS += [f"w{i}" for i in range(30 - len(TOKENS))]


def make(family="electra", **settings):
    return perturb(BertReplacedTokenDetector(tiny_backbone(family, **settings)))


def make_raw(sequence_length=16, **settings):
    packer = BertReplacedTokenDetectorPreprocessor(
        bert_tokenizer(TOKENS), sequence_length, **settings
    )
    return perturb(BertReplacedTokenDetector(tiny_backbone("electra"), packer))


@pytest.fixture(scope="module")
def model():
    return make_raw()


@pytest.mark.slow
@model_contract("electra")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


@pytest.mark.peers
def test_equals_transformers(reference, tmp_path):
    theirs = reference("electra", "ForPreTraining")
    model = BertReplacedTokenDetector.from_preset(theirs.directory, preprocessor=None)
    inputs = theirs.inputs(13)
    there = inputs["padding_mask"] == 1
    expected = theirs(inputs)["logits"]
    assert np.abs(expected).max() > 0.1
    assert np.abs(array(model(inputs)) - expected)[there].max() <= 1e-5
    labels = np.random.default_rng(0).integers(0, 2, there.shape)
    loss = model.evaluate(inputs, labels, sample_weight=there.astype("float32"), verbose=0)[0]
    assert abs(loss - theirs.loss(inputs, torch.tensor(labels))) <= 1e-5
    convert(theirs.directory, str(tmp_path / "again"), format="huggingface", tokenizer=False)
    again = type(theirs.model).from_pretrained(tmp_path / "again")
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def odds(model, ids):
    """Return probabilities of a row of ids, without the special tokens."""
    tokenizer = model.preprocessor.tokenizer
    row = np.array([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]], "int32")
    return 1 / (1 + np.exp(-array(model({"token_ids": row}))[0, 1:-1]))


def test_detect(model):
    text = "The dogs bark; 日本."
    found = model.detect(text)
    assert [one["text"] for one in found] == ["The", "dog", "s", "bark", ";", "日", "本", "."]
    for one in found:
        assert text[one["start"] : one["end"]] == one["text"]
    wanted = odds(model, model.preprocessor.tokenizer(text))
    np.testing.assert_allclose([one["score"] for one in found], wanted, atol=1e-5)
    assert model.detect([text, "", "cat"])[1] == []
    logits = model.predict([text], verbose=0)[0]
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), wanted, atol=1e-5)
    # A word gets the mean of its pieces.
    (words,) = model.detect([["the", "dogs", "bark"]])
    pieces = odds(model, model.preprocessor.tokenizer("the dogs bark"))
    assert [(one["text"], one["start"], one["end"]) for one in words] == [
        ("the", 0, 1),
        ("dogs", 1, 2),
        ("bark", 2, 3),
    ]
    wanted = [pieces[0], pieces[1:3].mean(), pieces[3]]
    np.testing.assert_allclose([one["score"] for one in words], wanted, atol=1e-5)
    with pytest.raises(ValueError, match="has no preprocessor"):
        BertReplacedTokenDetector(model.backbone).detect("the")


def test_long_texts(model):
    text = " ".join(["the dogs bark at the cat ."] * 6)
    found = model.detect(text)
    assert len(found) == len(model.preprocessor.tokenizer(text))
    first = odds(model, model.preprocessor.tokenizer(text)[:14])
    np.testing.assert_allclose([one["score"] for one in found[:7]], first[:7], atol=1e-5)


def test_labels_of_words_and_spans():
    packer = BertReplacedTokenDetectorPreprocessor(bert_tokenizer(TOKENS), 16)
    _, y, weights = packer([["the", "dogs", "bark"]], [[0, 1, None]])
    assert array(y)[0, :6].tolist() == [0, 0, 1, 1, 0, 0]
    assert array(weights)[0, :6].tolist() == [0, 1, 1, 1, 0, 0]
    _, y, weights = packer(["the dogs bark"], [[(4, 8)]])
    assert array(y)[0, :6].tolist() == [0, 0, 1, 1, 0, 0]
    assert array(weights)[0, :6].tolist() == [0, 1, 1, 1, 1, 0]
    for labels, wrong in (
        ([[(4, 40)]], "is not within its text"),
        ([[(0, 5), (4, 8)]], "overlap"),
        ([[3]], "is not a span"),
    ):
        with pytest.raises(ValueError, match=wrong):
            packer(["the dogs bark"], labels)
    with pytest.raises(ValueError, match="2"):
        packer([["the"]], [[2]])


@pytest.mark.backends("torch")
def test_learns(tmp_path):
    keras.utils.set_random_seed(0)
    model = make_raw()
    model.compile(keras.optimizers.Adam(1e-2))
    words = [["the", "dogs", "bark"], ["the", "cat", "sleep"], ["dogs", "sleep", "the"]] * 4
    labels = [[word == "sleep" for word in row] for row in words]
    labels = [[int(label) for label in row] for row in labels]
    model.fit(words, labels, epochs=15, verbose=0)
    assert model.evaluate(words, labels, return_dict=True, verbose=0)["accuracy"] == 1
    found = {one["text"]: one["score"] for one in model.detect("the dog sleep")}
    assert found["sleep"] > 0.5 > max(found["the"], found["dog"])
    model.save_to_preset(tmp_path)
    again = BertReplacedTokenDetector.from_preset(str(tmp_path))
    assert again.detect("the dog sleep") == model.detect("the dog sleep")

"""The differences from KerasHub and transformers on the pages: each line is tested."""

import os

import keras
import keras_hub
import numpy as np
import pytest

from kerasbert import models
from kerasbert.tokenizers import BertTokenizer, GPT2Tokenizer
from tests.contracts import array, bert_tokenizer, tiny_backbone
from tests.export.tiny import byte_pairs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] who me ? !".split()
SIZES = {"vocabulary_size": 9, "num_layers": 1, "hidden_dim": 4, "intermediate_dim": 8}
HUB, OURS = keras_hub.models, models


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def preprocessor(room, name="TextClassifier", **settings):
    own = bert_tokenizer(TOKENS) if room is OURS else HUB.BertTokenizer(TOKENS, lowercase=True)
    return getattr(room, f"Bert{name}Preprocessor")(own, **settings)


def encoder(room, **settings):
    return room.BertBackbone(**{**SIZES, "num_heads": 2, **settings})


def classifier(room, **settings):
    return room.BertTextClassifier(encoder(room, dropout=0.25), num_classes=2, **settings)


def symbols():
    text = keras.Input((), dtype="string")
    assert preprocessor(HUB, sequence_length=8)(text)["token_ids"].shape == (None, 8)
    with pytest.raises(ValueError, match="is not text"):
        preprocessor(OURS, sequence_length=8)(text)


def truncation():
    found = [preprocessor(room).truncate for room in (HUB, OURS)]
    assert found == ["round_robin", "longest_first"]
    assert preprocessor(OURS, truncate="round_robin").truncate == "round_robin"


def length_of_embedders():
    rooms = (HUB, OURS)
    assert [preprocessor(x, "TextEmbedder").sequence_length for x in rooms] == [256, 512]


def keywords():
    encoder(HUB, num_layer=1)
    with pytest.raises(ValueError, match="no argument 'num_layer'; did you mean num_layers"):
        encoder(OURS, num_layer=1)


def heads():
    encoder(HUB, num_heads=3)
    with pytest.raises(ValueError, match="hidden_dim=4 is not a multiple of num_heads=3"):
        encoder(OURS, num_heads=3)


def optimizers():
    found = [classifier(room).optimizer for room in (HUB, OURS)]
    assert [type(one).__name__ for one in found] == ["Adam", "AdamW"]
    rates = [float(array(one.learning_rate)) for one in found]
    np.testing.assert_allclose(rates, [5e-5, 3e-5], rtol=1e-6)


def metrics():
    x = {name: np.ones((2, 4), "int32") for name in ("token_ids", "segment_ids", "padding_mask")}
    names = []
    for room in (HUB, OURS):
        model = classifier(room, preprocessor=None)
        model.run_eagerly = True
        names.append({*model.evaluate(x, np.array([0, 1]), return_dict=True, verbose=0)})
    assert names == [{"loss", "sparse_categorical_accuracy"}, {"loss", "accuracy"}]


def labels():
    assert preprocessor(HUB)(["who"], ["x"])[1] == ["x"]
    with pytest.raises(ValueError, match="the name 'x', but the preprocessor has no class names"):
        preprocessor(OURS)(["who"], ["x"])
    assert array(preprocessor(OURS, labels=["w", "x"])(["who"], ["x"])[1]).tolist() == [1]


def dropout():
    assert [classifier(room).dropout for room in (HUB, OURS)] == [0.1, 0.25]


def pairs():
    rows = [["who", "me"], ["?", "!"]]
    with pytest.raises(Exception, match="sequence"):
        preprocessor(HUB, sequence_length=8)(rows)
    found = preprocessor(OURS, sequence_length=8)(rows)["token_ids"]
    assert array(found)[0].tolist() == [2, 5, 3, 6, 3, 0, 0, 0]


def padding():
    shapes = [preprocessor(x, sequence_length=64)(["who"])["token_ids"].shape for x in (HUB, OURS)]
    assert [shape[1] for shape in shapes] == [64, 8]


def copies():
    for room, is_same in ((HUB, True), (OURS, False)):
        given = preprocessor(room, sequence_length=64)
        task = classifier(room, preprocessor=given)
        assert (task.preprocessor is given) == is_same
        assert task.preprocessor.tokenizer is given.tokenizer


def masks():
    given = [preprocessor(x, "MaskedLM", sequence_length=64)(["who me"])[0] for x in (HUB, OURS)]
    assert [one["mask_positions"].shape[1] for one in given] == [96, 1]


def normalization():
    assert HUB.BertTextEmbedder(encoder(HUB)).normalize
    assert not OURS.BertTextEmbedder(encoder(OURS)).normalize
    assert OURS.BertTextEmbedder(encoder(OURS), pooling_mode="mean").normalize


# Tests by the beginning of the line that they test.
KERAS_HUB = {
    "`BertTextEmbedder(backbone)` normalizes": normalization,
    "rows are padded to `sequence_length`": padding,
    "a list of two-item lists is rejected": pairs,
    "`mask_selection_length=96` in the masker": masks,
    "`task.preprocessor` is the object": copies,
    "preprocessors take a symbolic `keras.Input`": symbols,
    '`truncate="round_robin"`': truncation,
    "`BertTextEmbedderPreprocessor` packs 256": length_of_embedders,
    "unknown keywords of models are ignored": keywords,
    "`num_heads` need not divide": heads,
    "tasks are compiled with Adam": optimizers,
    "the metric is called": metrics,
    "labels are not checked": labels,
    "`dropout=0.1` of a classifier": dropout,
}


@pytest.mark.slow
@pytest.mark.parametrize("line", KERAS_HUB)
def test_where_keras_hub_differs(line):
    assert f"| {line}" in read("CONTRIBUTING.md").partition("## Where KerasHub differs")[2]
    KERAS_HUB[line]()


def test_arguments_of_keras_hub_are_all_here():
    """For classes of the same name; differing defaults are tested above."""
    from inspect import signature

    names = [name for name in models.__all__ if hasattr(HUB, name)]
    assert len(names) > 10
    for name in names:
        theirs, ours = (signature(getattr(x, name).__init__).parameters for x in (HUB, OURS))
        assert theirs.keys() - ours.keys() <= {"args"}, name


def test_where_transformers_differs():
    page = read("docs", "guides", "from_transformers.md").partition("Where they differ:")[2]
    assert "Classifiers and embedders on GPT and GPT-2 put the start and the end token" in page
    tokenizer = byte_pairs(GPT2Tokenizer, "<|endoftext|>")
    packer = models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8, num_segments=0)
    (row,) = array(packer(["lo"])["token_ids"]).tolist()
    end = tokenizer.end_token_id
    assert row[0] == row[2] == end and tokenizer("lo") == [row[1]]
    assert "Texts are truncated at" in page
    assert array(packer(["lo " * 40])["token_ids"]).shape == (1, 8)
    assert "RoBERTa and XLM-R compute other positions than in transformers" in page
    x = {"token_ids": np.ones((1, 2), "int32"), "padding_mask": np.array([[0, 1]])}
    with pytest.warns(UserWarning, match="pad on the right"):
        tiny_backbone("roberta")(x)
    assert "belongs to the first of them; transformers returns it twice" in page
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] [E1] the".split()
    added = [{"content": "[E1]", "rstrip": True}, {"content": "  "}]
    tokenizer = BertTokenizer([*words, "  "], lowercase=True, added_tokens=added)
    assert [tokenizer.id_to_token(id) for id in tokenizer("[E1]  the")] == ["[E1]", "the"]
    assert tokenizer.token_to_id("  ") in tokenizer("the  [E1]")
    assert "`predict` gives logits as a NumPy array" in page
    model = models.BertTextClassifier(tiny_backbone(), num_classes=3)
    model.run_eagerly = True
    assert isinstance(model.predict({"token_ids": x["token_ids"]}, verbose=0), np.ndarray)

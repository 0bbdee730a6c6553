"""The token classifier: contract, training on words and spans, windows, inference methods."""

import functools
import re

import keras
import numpy as np
import pytest

from kerasbert.models import (
    BertTextClassifier,
    BertTokenClassifier,
    BertTokenClassifierPreprocessor,
)
from tests.contracts import (
    array,
    assert_close,
    batch,
    bert_tokenizer,
    check_roundtrip,
    model_contract,
    perturb,
    tiny_backbone,
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] ann ##a bob rome in lives and . , new york".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
SENTENCES = [
    "Anna lives in Rome.",
    "Bob lives in New York.",
    "Rome and New York",
    "Anna, Bob and Anna",
    "In Rome lives Bob.",
]


def make(family="bert", **settings):
    return perturb(BertTokenClassifier(tiny_backbone(family, **settings), num_classes=3))


def raw_tagger(preprocessor=(), **settings):
    keras.utils.set_random_seed(0)
    settings = {"labels": ["PER", "LOC"], "scheme": "BIO", **settings}
    preprocessor = BertTokenClassifierPreprocessor(
        bert_tokenizer(TOKENS), **{"sequence_length": 16, **dict(preprocessor)}
    )
    backbone = tiny_backbone(dropout=0.0, num_layers=1)
    return BertTokenClassifier(backbone, preprocessor=preprocessor, **settings)


def spans_of(text):
    names = [("PER", "Anna|Bob"), ("LOC", "Rome|New York")]
    return sorted((*m.span(), label) for label, words in names for m in re.finditer(words, text))


def found(entities):
    return [(entity["start"], entity["end"], entity["label"]) for entity in entities]


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


@pytest.fixture(scope="module")
def tagger():
    """A tagger that was trained on spans, in windows of 8 tokens that overlap by half."""
    tagger = raw_tagger({"sequence_length": 8})
    tagger.optimizer.learning_rate = 0.01
    texts = SENTENCES * 8
    y = [spans_of(text) for text in texts]
    history = tagger.fit(texts, y, epochs=10, batch_size=8, validation_split=0.2, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] / 5 and history["val_accuracy"][-1] == 1.0
    loss, accuracy = tagger.evaluate(SENTENCES, y[:5], verbose=0)
    assert accuracy == 1.0 and loss < 0.1
    return tagger


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_tag(tagger):
    results = tagger.tag(SENTENCES)
    for text, entities in zip(SENTENCES, results, strict=True):
        assert found(entities) == spans_of(text)
        assert [e["text"] for e in entities] == [text[a:b] for a, b, _ in spans_of(text)]
        assert all(0.5 < e["score"] <= 1.0 and list(e)[0] == "label" for e in entities)
    single = tagger.tag(SENTENCES[1])
    assert found(single) == found(results[1])
    # The score is the mean over the words.
    (probabilities,) = tagger.predict_proba([SENTENCES[1]])
    best = probabilities.max(axis=-1)
    assert probabilities.shape == (6, 5)
    assert single[1]["score"] == pytest.approx(best[3:5].mean(), abs=1e-6)
    assert tagger.tag(["", " \u200b", "Bob"])[:2] == [[], []] and tagger.tag("") == []
    # The entities that `tag` returns can be passed as labels.
    tagger.evaluate(SENTENCES, results, verbose=0)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_words(tagger):
    words = [["Anna", "\u200b", "lives", "in", "New", "York", "."], [], ["Bob"], ["\u200b"]]
    expected = ["B-PER", "O", "O", "O", "B-LOC", "I-LOC", "O"]
    assert tagger.predict_labels(words) == [expected, [], ["B-PER"], ["O"]]
    results = tagger.tag(words)
    assert found(results[0]) == [(0, 1, "PER"), (4, 6, "LOC")]
    assert [e["text"] for e in results[0]] == ["Anna", "New York"]
    assert found(results[2]) == [(0, 1, "PER")] and results[1] == results[3] == []
    accuracy = tagger.evaluate([words[0]], [expected], verbose=0)[1]
    assert accuracy == 1.0
    # Pairs of words around a gap that the tokenizer deletes are one entity.
    assert found(tagger.tag([["New", "\u200b", "York"]])[0]) == [(0, 3, "LOC")]


@pytest.mark.backends("tensorflow", "torch")
def test_a_long_text_is_tagged_in_windows(tagger):
    random = np.random.default_rng(0)
    text = "  ".join(random.choice(SENTENCES, 60))
    words = re.findall(r"\w+|[.,]", text)
    assert found(tagger.tag(text)) == spans_of(text)
    (labels,) = tagger.predict_labels([words])
    assert len(labels) == len(words) > 250
    names = {"Anna": "B-PER", "Bob": "B-PER", "Rome": "B-LOC", "New": "B-LOC"}
    assert labels == [{**names, "York": "I-LOC"}.get(word, "O") for word in words]


@pytest.mark.backends("torch")
def test_predict_takes_each_piece_from_the_window_with_most_context():
    tagger = raw_tagger({"sequence_length": 8, "stride": 2})
    perturb(tagger)
    texts = [" ".join(SENTENCES), "Bob", "", "Anna and Bob in New York, Rome"]
    outputs = tagger.predict(texts, batch_size=3, verbose=0)
    tokenizer = tagger.preprocessor.tokenizer
    for text, logits in zip(texts, outputs, strict=True):
        ids = tokenizer(text)
        assert logits.shape == (len(ids), 5) and logits.dtype == "float32"
        best = [(-1, None)] * len(ids)
        for start in range(0, max(len(ids) - 6, 0) + 2, 2):
            window = [tokenizer.cls_token_id, *ids[start : start + 6], tokenizer.sep_token_id]
            rows = tagger.predict({"token_ids": np.array([window], "int32")}, verbose=0)[0]
            for i, row in enumerate(rows[1:-1]):
                context = min(i, len(window) - 3 - i)
                if context > best[start + i][0]:
                    best[start + i] = context, row
        for row, (_, expected) in zip(logits, best, strict=True):
            np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_parts_of_speech_and_all_pieces():
    labels = ["NOUN", "VERB", "ADP", "X"]
    tagger = raw_tagger({"label_pieces": "all"}, labels=labels, scheme=None)
    tagger.optimizer.learning_rate = 0.01
    words = [["Anna", "lives", "in", "Rome"], ["Bob", "and", "Anna"], ["in", "New", "York"]] * 8
    y = [[0, 1, 2, 0], [0, 3, 0], [2, 0, 0]] * 8
    tagger.fit(words, y, epochs=10, batch_size=8, verbose=0)
    assert tagger.evaluate(words, y, verbose=0)[1] == 1.0
    assert tagger.predict_labels(words[:2]) == [
        ["NOUN", "VERB", "ADP", "NOUN"],
        ["NOUN", "X", "NOUN"],
    ]
    entities = tagger.tag([["Bob", "Anna", "\u200b"]])[0]
    assert found(entities) == [(0, 1, "NOUN"), (1, 2, "NOUN")]
    assert tagger.predict_labels([["\u200b", "Bob"]]) == [[None, "NOUN"]]
    (units,) = tagger.predict_proba([["Anna", "lives"]])
    np.testing.assert_allclose(units.sum(axis=-1), 1.0, atol=1e-6)
    # The units are pieces, so `tag` finds pieces in a text.
    assert found(tagger.tag("Anna lives")) == [(0, 3, "NOUN"), (3, 4, "NOUN"), (5, 10, "VERB")]


@pytest.mark.backends("jax", "torch")
def test_fit_on_arrays_and_weights():
    tagger = make()
    features, y = batch(tagger), np.zeros((3, 7), "int32")
    counted = features["padding_mask"].astype("float32")
    loss, _ = tagger.evaluate(features, y, sample_weight=counted, verbose=0)
    logits = array(tagger(features)).astype("float64")
    expected = np.log(np.exp(logits).sum(-1)) - logits[..., 0]
    assert abs(loss - expected[counted > 0].mean()) <= 1e-5
    assert tagger.evaluate(features, y, sample_weight=0 * counted, verbose=0)[0] == 0.0
    tagger.optimizer.learning_rate = 0.01
    tagger.fit(features, y, sample_weight=counted, epochs=3, verbose=0)
    assert tagger.evaluate(features, y, sample_weight=counted, verbose=0)[0] < loss


@pytest.mark.backends("torch")
def test_fit_on_a_dataset():
    import tensorflow as tf

    tagger = raw_tagger()
    words = [["Anna", "lives", "in", "Rome"], ["Bob"]]
    y = [["B-PER", "O", "O", "B-LOC"], ["B-PER"]]
    slices = tf.ragged.constant(words * 4), tf.ragged.constant(y * 4)
    dataset = tf.data.Dataset.from_tensor_slices(slices).batch(4)
    assert_close(
        tagger.evaluate(dataset, verbose=0), tagger.evaluate(words, y, verbose=0), atol=1e-5
    )
    tagger.fit(dataset, verbose=0)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_preset_keeps_names_and_preprocessor(tmp_path):
    tagger = raw_tagger({"sequence_length": 8, "stride": 2, "label_pieces": "all"})
    tagger.compile(run_eagerly=True)
    loaded = check_roundtrip(tagger, batch(tagger), tmp_path)
    loaded.compile(run_eagerly=True)
    assert loaded.labels == loaded.preprocessor.labels == ["PER", "LOC"]
    assert loaded.label_names == loaded.preprocessor.names == tagger.label_names
    assert loaded.preprocessor.get_config()["stride"] == 2
    assert loaded.preprocessor.label_pieces == "all"
    assert_close(loaded.predict(SENTENCES, verbose=0), tagger.predict(SENTENCES, verbose=0))
    other = BertTokenClassifier.from_preset(tmp_path / "preset", sequence_length=16, stride=5)
    assert (other.preprocessor.sequence_length, other.preprocessor.stride) == (16, 5)
    with pytest.warns(UserWarning, match="New, random weights"):
        other = BertTokenClassifier.from_preset(tmp_path / "preset", labels=["NOUN", "VERB"])
    assert other.label_names == other.preprocessor.names == ["NOUN", "VERB"]
    with pytest.warns(UserWarning, match="New, random weights"):
        BertTextClassifier.from_preset(tmp_path / "preset", num_classes=2)


@pytest.mark.backends("torch")
def test_progress_and_callbacks(tagger):
    class Count(keras.callbacks.Callback):
        begun, ended, batches = 0, 0, ()

        def on_predict_begin(self, logs=None):
            self.begun += 1

        def on_predict_batch_end(self, batch, logs=None):
            self.batches += (logs["outputs"].shape[0],)

        def on_predict_end(self, logs=None):
            self.ended += 1

    count = Count()
    outputs = tagger.predict(SENTENCES, batch_size=2, verbose=0, callbacks=[count])
    assert (count.begun, count.batches, count.ended) == (1, (2, 2, 2), 1)
    # The text with 7 words has two windows.
    assert [len(rows) for rows in outputs] == [6, 6, 4, 7, 5]


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone(num_layers=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "pass num_classes=2, or labels="),
        ({"labels": "PER"}, "labels='PER' is one string"),
        ({"labels": ["PER", "PER"]}, "without repetitions"),
        ({"labels": ["PER"], "scheme": "BIOS"}, "scheme='BIOS' is unknown; use one of BIO"),
        ({"labels": ["PER"], "scheme": "BIO", "num_classes": 2}, "2, but labels has 3 names"),
    ],
)
def test_bad_settings(backbone, settings, message):
    with pytest.raises(ValueError, match=message):
        BertTokenClassifier(backbone, **settings)


def test_bad_calls(tagger, backbone):
    with pytest.raises(ValueError, match=r"predict_labels\(\) takes lists of words"):
        tagger.predict_labels(["Bob"])
    with pytest.raises(ValueError, match="The list of texts is empty"):
        tagger.tag([])
    with pytest.raises(ValueError, match="at position 0 have 'Bob', which is not a span"):
        tagger.fit(["Bob"], [["Bob"]], verbose=0)
    model = BertTokenClassifier(backbone, num_classes=3)
    for call in (model.tag, model.predict_labels, model.predict_proba):
        with pytest.raises(ValueError, match="this model has no preprocessor"):
            call(["Bob"])
    assert model.label_names == ["LABEL_0", "LABEL_1", "LABEL_2"]

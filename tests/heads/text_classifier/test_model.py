"""The classifier: the contract of its head in every family, its settings and its names."""

import functools
import json
import shutil
import warnings

import keras
import numpy as np
import pytest

from kerasbert.families import FAMILIES
from kerasbert.models import (
    BertBackbone,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTextEmbedder,
)
from tests.contracts import (
    FAMILY_SETTINGS,
    SETTINGS,
    array,
    arrays,
    assert_close,
    batch,
    bert_tokenizer,
    check_gradients,
    check_preprocessor,
    check_roundtrip,
    feed_forward_tokens,
    model_contract,
    tiny_backbone,
    tiny_classifier,
)

# Warnings of Keras would annoy users.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]


# Encoders that no test changes.
encoder = functools.cache(tiny_backbone)


def make_preprocessor(**settings):
    return BertTextClassifierPreprocessor(
        bert_tokenizer(TOKENS), **{"sequence_length": 16, **settings}
    )


def raw_classifier(backbone=None, **settings):
    """Return a classifier with a preprocessor, on a new encoder if none is given."""
    settings.setdefault("labels", ["bad", "good"])
    if backbone is None:
        backbone = tiny_backbone(dropout=settings.get("dropout", 0.1))
    return BertTextClassifier(backbone, preprocessor=make_preprocessor(), **settings)


@pytest.mark.slow
@model_contract("bert", slow=(check_gradients,))
def test_contract(family, check, tmp_path):
    check(functools.partial(tiny_classifier, family), tmp_path)


def test_preprocessor_contract(tmp_path):
    texts = ["good film", "a", "it was very very very very dull", "bad"]
    labels = ["good", "good", "bad", "bad"]
    preprocessor = make_preprocessor(labels=["bad", "good"])
    check_preprocessor(preprocessor, texts, labels, tmp_path)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_head_of_the_family(family):
    settings = {**SETTINGS, **FAMILY_SETTINGS[family], "num_layers": 2}
    classifier = BertTextClassifier(BertBackbone.from_family(family, **settings), num_classes=3)
    row = FAMILIES[family].heads.get("text_classifier", {})
    for name, value in row.items():
        assert getattr(classifier, name) == value
    paths = [weight.path for weight in classifier.weights]
    assert ("head_dense/kernel" in paths) == ("head_activation" in row)
    assert ("head_dense/bias" in paths) == ("head_activation" in row and row.get("head_bias", True))
    assert ("head_norm/gamma" in paths) == family.startswith("modernbert")
    bias = ["logits/bias"] if row.get("output_bias", True) else []
    assert [path for path in paths if path.startswith("logits/")] == ["logits/kernel", *bias]
    if family == "modernbert":  # The caller's arguments override the family's.
        plain = BertTextClassifier(classifier.backbone, num_classes=2, pooling="mean", dropout=0.3)
        assert plain.pooling == "mean" and plain.dropout == 0.3


def test_a_head_on_vectors_of_length_one(tmp_path):
    """The head reads normalized embeddings, as an embedder with `normalize` returns, without the
    family's dense layer.
    """
    settings = {"pooling": "mean", "normalize": True, "head_activation": "none"}
    classifier = BertTextClassifier(encoder("roberta"), num_classes=2, **settings)
    embedder = BertTextEmbedder(classifier.backbone, normalize=True)
    inputs = batch(classifier)
    kernel, bias = map(array, classifier.output_dense.weights)
    assert_close(classifier(inputs), array(embedder(inputs)) @ kernel + bias)
    again = BertTextClassifier.from_config(classifier.get_config())
    assert again.normalize and again.head_dense is None


@pytest.mark.backends("torch")
def test_a_pooler_that_is_not_used_does_not_train():
    backbone = tiny_backbone("roberta")
    assert backbone.pooled_dense.trainable_weights
    classifier = BertTextClassifier(backbone, num_classes=2)
    assert not any("pooled_dense" in weight.path for weight in classifier.trainable_weights)
    assert any("pooled_dense" in weight.path for weight in tiny_classifier().trainable_weights)


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
def test_pooling(pooling, monkeypatch):
    classifier = BertTextClassifier(encoder(), num_classes=2, pooling=pooling)
    features = batch(classifier)
    mask = features["padding_mask"][:, :, None]
    encoded = arrays(classifier.backbone(features))
    states = encoded["sequence_output"]
    pooled = {
        "pooler": encoded["pooled_output"],
        "cls": states[:, 0],
        "mean": (states * mask).sum(1) / mask.sum(1),
    }[pooling]
    rows = feed_forward_tokens(monkeypatch)
    kernel, bias = classifier.output_dense.get_weights()
    assert_close(classifier(features), pooled @ kernel + bias)
    # The last layer skips tokens that nothing reads.
    assert len(rows) == 2 and rows[0] == 7 and (rows[1] == 7) == (pooling == "mean")


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_many_labels_and_their_preset(tmp_path):
    classifier = raw_classifier(encoder(), multi_label=True, labels=["dull", "fun", "long"])
    classifier.compile(run_eagerly=True)
    loaded = check_roundtrip(classifier, batch(classifier), tmp_path)
    loaded.compile(run_eagerly=True)
    assert loaded.labels == loaded.preprocessor.labels == ["dull", "fun", "long"]
    assert loaded.multi_label and loaded.preprocessor.multi_label
    assert loaded.preprocessor.sequence_length == 16
    texts = ["good film", "it was dull"]
    results = classifier.classify(texts)
    assert loaded.classify(texts) == results
    for result, row in zip(results, classifier.predict(texts, verbose=0), strict=True):
        probabilities = list(result["probabilities"].values())
        np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-row)), atol=1e-6)
        assert result["labels"] == [n for n, v in zip(loaded.labels, row, strict=True) if v > 0]
    assert set(classifier.classify(texts[0])) == {"labels", "probabilities"}


@pytest.mark.backends("torch")
def test_training_goes_on_after_a_keras_file(tmp_path):
    classifier = tiny_classifier()
    features, y = batch(classifier), np.array([0, 1, 2])
    classifier.compile(run_eagerly=True)
    classifier.train_on_batch(features, y)
    classifier.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert int(array(loaded.optimizer.iterations)) == 1
    decays = [
        {w.path for w in model.trainable_weights if model.optimizer._use_weight_decay(w)}
        for model in (classifier, loaded)
    ]
    assert decays[0] == decays[1] and decays[0]
    assert not any(path.endswith(("bias", "beta", "gamma")) for path in decays[1])
    assert_close(
        [v.value for v in loaded.optimizer.variables],
        [v.value for v in classifier.optimizer.variables],
        atol=0,
    )


@pytest.mark.backends("tensorflow", "torch")
def test_classify():
    classifier = raw_classifier(encoder())
    classifier.compile(run_eagerly=True)
    texts = ["good film", "it was very dull", "fun", "bad"]
    results = classifier.classify(texts)
    logits = classifier.predict(texts, verbose=0)
    for result, row in zip(results, logits, strict=True):
        expected = np.exp(row) / np.exp(row).sum()
        assert list(result["probabilities"]) == ["bad", "good"]
        np.testing.assert_allclose(list(result["probabilities"].values()), expected, atol=1e-6)
        assert result["label"] == ("bad", "good")[int(row.argmax())]
        assert result["score"] == max(result["probabilities"].values())
    single = classifier.classify(texts[0])
    assert single["label"] == results[0]["label"]
    np.testing.assert_allclose(single["score"], results[0]["score"], atol=1e-5)
    pairs = classifier.classify((texts, texts))
    assert len(pairs) == 4 and classifier.classify(("good", "film"))["label"] in ("bad", "good")
    # Probabilities stay unchanged if the model returns them.
    with_softmax = raw_classifier(encoder(), activation="softmax")
    with_softmax.compile(run_eagerly=True)
    with_softmax.output_dense.set_weights(classifier.output_dense.get_weights())
    proba = with_softmax.predict_proba(texts)
    np.testing.assert_allclose(proba, classifier.predict_proba(texts), atol=1e-6)
    assert BertTextClassifier(encoder(), 2).label_names == ["LABEL_0", "LABEL_1"]


NLI = ["contradiction", "neutral", "entailment"]


@pytest.mark.peers
@pytest.mark.parametrize("multi_label", [False, True])
def test_labels_nobody_trained_equal_transformers(reference, tmp_path, multi_label):
    warnings.filterwarnings("ignore", ".* in a sample of the texts")
    import transformers

    made = reference("bert", "ForSequenceClassification", num_labels=3, vocab_size=len(TOKENS))
    folder = tmp_path / "nli"
    shutil.copytree(made.directory, folder)
    (folder / "vocab.txt").write_text("\n".join(TOKENS), encoding="utf-8")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["id2label"] = dict(enumerate(NLI))
    config["label2id"] = {name: i for i, name in enumerate(NLI)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"))
    theirs = transformers.pipeline(
        "zero-shot-classification",
        transformers.BertForSequenceClassification.from_pretrained(folder),
        tokenizer=tokenizer,
    )
    ours = BertTextClassifier.from_preset(str(folder))
    labels, texts = ["fun", "dull", "the film"], ["a good film", "bad, bad film, very bad"]
    asked = {"multi_label": multi_label}
    found = ours.classify(texts, labels=labels, template="it was {}", **asked)
    expected = theirs(texts, labels, hypothesis_template="it was {}", **asked)
    for own, other in zip(found, expected, strict=True):
        scores = dict(zip(other["labels"], other["scores"], strict=True))
        assert own["probabilities"] == pytest.approx(scores, abs=1e-6)
    one = ours.classify(texts[0], labels=labels, template="it was {}", **asked)
    assert one["probabilities"] == pytest.approx(found[0]["probabilities"], abs=1e-6)


def test_labels_that_cannot_be_asked():
    nli = raw_classifier(encoder(), labels=NLI)
    for classifier, asked, message in (
        (
            raw_classifier(encoder()),
            {"labels": ["fun"]},
            "classes named 'entailment' .* are bad, good",
        ),
        (
            raw_classifier(encoder(), labels=["entailment", "other", "more"]),
            {"labels": ["fun"]},
            "classes named 'entailment'",
        ),
        (nli, {"labels": []}, "at least one name"),
        (nli, {"labels": ["a", "a"]}, "without repetitions"),
        (nli, {"labels": "fun"}, "is one string"),
        (nli, {"labels": ["fun", None]}, r"labels\[1\] is None; give every class a name"),
        (nli, {"labels": ["a"], "template": "it is"}, r"template='it is' must contain '{}'"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.classify(["good film"], **asked)
    with pytest.raises(ValueError, match="takes single texts, got pairs"):
        nli.classify((["a"], ["b"]), labels=["a"])


def test_two_classes_of_entailment():
    classifier = raw_classifier(encoder(), labels=["entailment", "not_entailment"])
    classifier.compile(run_eagerly=True)
    found = classifier.classify("good film", labels=["fun"], template="{} film")
    logits = classifier.predict((["good film"], ["fun film"]), verbose=0)[0]
    assert found["score"] == pytest.approx(1 / (1 + np.exp(logits[1] - logits[0])), abs=1e-6)
    classifier.temperature = 3.0
    found = classifier.classify("good film", labels=["fun"], template="{} film")
    assert found["score"] == pytest.approx(1 / (1 + np.exp((logits[1] - logits[0]) / 3)), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "pass num_classes=2, or labels="),
        ({"num_classes": 0}, "num_classes=0 must be a whole number"),
        ({"num_classes": 2.5}, "num_classes=2.5 must be a whole number"),
        ({"labels": ["a", "a"]}, "without repetitions"),
        ({"labels": []}, "at least one name"),
        ({"labels": "spam"}, "labels='spam' is one string"),
        ({"labels": ["a", "b"], "num_classes": 3}, "num_classes=3, but labels has 2 names"),
        ({"num_classes": 2, "pooling": "sum"}, "Unknown pooling mode 'sum'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BertTextClassifier(encoder(), **settings)


@pytest.mark.backends("tensorflow", "torch")
def test_what_does_not_fit():
    with pytest.raises(ValueError, match="needs an encoder with a pooler"):
        BertTextClassifier(encoder("electra"), num_classes=2, pooling="pooler")
    with pytest.raises(ValueError, match="sequence_length 17 exceeds the encoder's 16 positions"):
        BertTextClassifier(encoder(), 2, make_preprocessor(sequence_length=17))
    with pytest.raises(ValueError, match="tokenizer has 30 tokens, but .* vocabulary_size is 20"):
        BertTextClassifier(encoder(vocabulary_size=20), 2, make_preprocessor())
    with pytest.warns(UserWarning, match="only 30 tokens for the encoder's vocabulary_size of 60"):
        BertTextClassifier(encoder(vocabulary_size=60), 2, make_preprocessor())
    with pytest.raises(ValueError, match="has no preprocessor"):
        BertTextClassifier(encoder(), 2).classify("good")

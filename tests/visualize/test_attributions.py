"""Attributions: sums, cases computed by hand, words, every family and task, and captum."""

import functools
import sys
import threading

import keras
import numpy as np
import pytest

from kerasbert import models, visualize
from kerasbert.base.parts import encoder_of
from kerasbert.visualize.attributions import Attributions, giving
from kerasbert.visualize.tokens import read_text
from tests.contracts import ENCODERS, bert_tokenizer, perturb, tiny_backbone
from tests.peers import Peer

captum_attr = Peer("captum.attr")

SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
WORDS = "good bad film play ##ed ##s the , . 東 京 ann rome lives in where is".split()
TOKENS = [*SPECIAL, *WORDS, *"a b c d e f g h".split()]
TEXT = "The film played, good"
LABELS = {"TextClassifier": ["no", "yes", "perhaps"], "TokenClassifier": ["O", "B-LOC"]}


def task(name, family="bert", encoder=None):
    """Return a task of random weights in which each matters."""
    cls = getattr(models, f"Bert{name}")
    more = {"max_query_length": 4} if name == "QuestionAnswering" else {}
    settings = {"labels": LABELS[name]} if name in LABELS else {}
    preprocessor = cls.preprocessor_cls(bert_tokenizer(TOKENS), sequence_length=16, **more)
    backbone = tiny_backbone(family, **(encoder or {}))
    return perturb(cls(backbone, preprocessor=preprocessor, **settings))


@functools.cache
def bert(name="TextClassifier"):
    """The task on BERT, for tests that do not change it; it runs eagerly, so no test waits for
    compilation.
    """
    model = task(name)
    model.run_eagerly = True
    return model


def test_words_and_sums():
    model = bert()
    found = visualize.attributions(model, TEXT, target="yes")
    assert found.words == ["The", "film", "played", ",", "good"]
    assert [TEXT[start:end] for _, start, end in found.spans] == found.words
    assert found.tokens == ["[CLS]", "The", "film", "play", "##ed", ",", "good", "[SEP]"]
    assert found.token_scores[[0, -1]].tolist() == [0, 0]
    np.testing.assert_allclose(found.scores[2], found.token_scores[3:5].sum())
    np.testing.assert_allclose(found.output, model.predict([TEXT], verbose=0)[0, 1], atol=1e-5)
    # If these tokens are typed in a text, they are not masks.
    blank = model.predict(["[MASK]"], verbose=0)
    read = read_text(model, "[MASK] [MASK] [MASK] [MASK] [MASK] [MASK]", "test")
    blank = keras.ops.convert_to_numpy(model(read.features))[0, 1]
    np.testing.assert_allclose(found.baseline_output, blank, atol=1e-5)
    # The remaining error is rounding.
    assert found.error < 2e-5 < abs(found.output - found.baseline_output)
    np.testing.assert_allclose(
        found.scores.sum(), found.output - found.baseline_output, rtol=0, atol=2e-5
    )
    rough = visualize.attributions(model, TEXT, target="yes", steps=2)
    assert rough.error > 10 * found.error
    assert found.target == "yes" and visualize.attributions(model, TEXT, target=1).target == "yes"
    best = int(model.predict([TEXT], verbose=0)[0].argmax())
    assert visualize.attributions(model, TEXT).target == model.labels[best]


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_a_linear_model_by_hand():
    """Without layers, norms and positions, a class's weights are applied to a mean of
    embeddings.
    """
    backbone = models.BertBackbone(
        vocabulary_size=len(TOKENS),
        num_layers=1,
        num_heads=1,
        hidden_dim=4,
        intermediate_dim=4,
        dropout=0.0,
        embeddings_norm=False,
        norm_first=True,
        pooler=False,
    )
    preprocessor = models.BertTextClassifierPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    model = models.BertTextClassifier(
        backbone, labels=["no", "yes"], preprocessor=preprocessor, pooling="mean", dropout=0.0
    )
    for weight in backbone.transformer_layers[0].weights:
        weight.assign(np.zeros(weight.shape))  # Only the residual connection remains.
    # The norm keeps gain and bias; a huge epsilon makes its divisor the same for all tokens.
    backbone.final_layer_norm.epsilon = 1e12
    backbone.final_layer_norm.gamma.assign(np.full(4, 1e6))
    table = np.array(backbone.token_embedding.embeddings)
    table -= table.mean(-1, keepdims=True)
    backbone.token_embedding.embeddings.assign(table)
    read = read_text(model, TEXT, "test")
    weights = np.array(model.output_dense.kernel)[:, 1]
    own = (table[read.ids] - table[TOKENS.index("[MASK]")]) @ weights / len(read.ids)
    found = visualize.attributions(model, TEXT, target="yes", steps=1)
    expected = np.where(read.framing(), 0, own)
    np.testing.assert_allclose(found.token_scores, expected, rtol=1e-3, atol=1e-6)
    assert found.error < 1e-5
    # The gradient is constant, so gradient times input is exact, too.
    cheap = visualize.attributions(model, TEXT, target="yes", method="gradient_x_input")
    own = table[read.ids] @ weights / len(read.ids)
    np.testing.assert_allclose(cheap.token_scores, own, rtol=1e-3, atol=1e-6)
    zero = visualize.attributions(model, TEXT, target="yes", baseline="zero", steps=1)
    np.testing.assert_allclose(
        zero.token_scores, np.where(read.framing(), 0, own), rtol=1e-3, atol=1e-6
    )
    assert cheap.error is None and cheap.baseline_output is None


@pytest.mark.backends("torch")  # Other backends would compile a function for each family.
@pytest.mark.parametrize("family", ENCODERS)
def test_every_family(family):
    found = visualize.attributions(task("TextClassifier", family), TEXT, steps=24)
    assert found.words == ["The", "film", "played", ",", "good"]
    # DistilBERT's ReLU has a kink, so more steps are needed for a small error.
    assert found.error < 5e-3
    assert np.abs(found.scores).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, text, arguments, target",
    [
        ("TextRegressor", ("good film", "bad"), {}, "score"),
        ("Reranker", ("good film", "bad"), {}, "score"),
        ("NextSentencePredictor", ("good film", "bad"), {"target": 1}, "does not follow"),
        ("TokenClassifier", "Ann lives in Rome", {"at": 13, "target": "B-LOC"}, "B-LOC at 'Rome'"),
        ("MaskedLM", "the [MASK] is [MASK]", {"at": 1, "target": "good"}, "good"),
        ("Pretrainer", "the [MASK] is [MASK]", {"target": "bad"}, "bad"),
        ("QuestionAnswering", ("where is ann", "Ann lives in Rome"), {"at": (10, 17)}, "in Rome"),
    ],
)
def test_every_task(name, text, arguments, target):
    model = bert(name)
    found = visualize.attributions(model, text, **arguments)
    assert found.target == target
    assert found.error < 1e-3 and abs(found.output - found.baseline_output) > 1e-3
    spans = [found.texts[of][start:end] for of, start, end in found.spans]
    assert spans == found.words and len(found.words) == len(found.scores)
    # Without a target, the best one is explained.
    best = visualize.attributions(model, text, method="gradient_x_input")
    if name in ("TokenClassifier", "QuestionAnswering", "MaskedLM"):
        assert best.output >= visualize.attributions(model, text, steps=1).output - 1e-5
    rollout = visualize.attributions(model, text, method="attention_rollout")
    np.testing.assert_allclose(rollout.token_scores.sum(), 1, rtol=1e-6)
    assert (rollout.token_scores > 0).all() and rollout.output is None


def test_the_right_mask_is_read():
    model = bert("MaskedLM")
    text = "the [MASK] is [MASK]"
    found = visualize.attributions(model, text, at=1, target="good")
    logits = model({"token_ids": [[2, TOKENS.index("the"), 4, TOKENS.index("is"), 4, 3]]})
    logits = keras.ops.convert_to_numpy(logits)
    np.testing.assert_allclose(found.output, logits[0, 4, TOKENS.index("good")], atol=1e-5)
    # The baseline also consists of masks.
    assert found.words == ["the", "[MASK]", "is", "[MASK]"] and not found.scores[[1, 3]].any()


def test_rollout_by_hand():
    model = bert()
    attention = visualize.attention(model, "good film")
    found = visualize.attributions(model, "good film", method="attention_rollout")
    first, second = (0.5 * x.mean(0) + 0.5 * np.eye(4) for x in attention.weights)
    np.testing.assert_allclose(found.token_scores, (second @ first)[0], atol=1e-6)


def test_japanese_and_empty_texts():
    found = visualize.attributions(bert(), ("東京 good", ""))
    assert found.words == ["東", "京", "good"] and found.error < 1e-3
    nothing = visualize.attributions(bert(), "")
    assert nothing.words == [] and nothing.error < 1e-6
    assert "<script" not in nothing._repr_html_()
    with pytest.raises(ValueError, match="text is empty"):
        visualize.attribution_bars(nothing)


def test_long_texts_are_computed_in_parts(monkeypatch):
    model = bert()
    expected = visualize.attributions(model, TEXT, target="no", steps=7)
    monkeypatch.setattr(
        sys.modules["kerasbert.visualize.attributions"], "_TOKENS", 40
    )  # 2 rows of 16.
    found = visualize.attributions(model, TEXT, target="no", steps=7)
    np.testing.assert_allclose(found.token_scores, expected.token_scores, atol=1e-6)
    assert abs(found.output - expected.output) < 1e-5


@pytest.mark.backends("torch")
def test_quantized_and_half_precision():
    model = task("TextClassifier")
    exact = visualize.attributions(model, TEXT, target="yes")
    half = task("TextClassifier", encoder={"dtype": "mixed_bfloat16"})
    model.quantize("int8")
    for other in (half, model):
        found = visualize.attributions(other, TEXT, target="yes")
        most = np.abs(exact.scores).max()
        np.testing.assert_allclose(found.scores, exact.scores, atol=0.15 * most)


def test_the_embedding_is_as_before():
    """The embedding layer is unchanged for another thread at the same time, and after an error."""
    model = bert()
    embedding = encoder_of(model).token_embedding
    ids = np.array([[2, 5, 3]], "int32")
    before = keras.ops.convert_to_numpy(embedding(ids))
    seen = []
    with pytest.raises(ZeroDivisionError), giving(embedding, np.zeros((1, 3, 16), "float32")):
        assert not keras.ops.convert_to_numpy(embedding(ids)).any()
        other = threading.Thread(target=lambda: seen.append(embedding(ids)))
        other.start()
        other.join()
        raise ZeroDivisionError
    for now in (embedding(ids), seen[0]):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(now), before)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "name, text, arguments, message",
    [
        ("TextClassifier", TEXT, {"target": "yess"}, "yess.*yes"),
        ("TextClassifier", TEXT, {"target": 3}, "target=3 is not a class; .* no, yes, perhaps"),
        ("TextClassifier", TEXT, {"at": 1}, "at=1: this model has one output"),
        ("TextClassifier", TEXT, {"method": "gradients"}, "method"),
        ("TextClassifier", TEXT, {"baseline": "noise"}, "baseline"),
        ("TextClassifier", TEXT, {"steps": 0}, "steps"),
        ("TextClassifier", 7, {}, "text=7 must be a string"),
        ("TextClassifier", ("a", "b", "c"), {}, "or a pair of strings"),
        ("TextRegressor", TEXT, {"target": "yes"}, "target='yes'.* one output; omit"),
        ("TokenClassifier", TEXT, {"at": 99}, "at=99: no token"),
        ("TokenClassifier", TEXT, {"at": "film"}, "at='film' must be a character position"),
        ("MaskedLM", "good", {}, r"at=0: the text has 0 mask.* put \[MASK\]"),
        ("MaskedLM", "[MASK]", {"at": 1}, "at=1: the text has 1 mask"),
        ("MaskedLM", "[MASK]", {"target": "good film"}, "is 2 tokens"),
        ("MaskedLM", "[MASK]", {"target": 999}, "999"),
        ("QuestionAnswering", TEXT, {}, "takes a pair of texts, got one"),
        ("Reranker", TEXT, {}, "takes a pair of texts, got one"),
        ("QuestionAnswering", ("a", "b"), {"at": 3}, "at=3 must be a pair"),
        ("QuestionAnswering", ("a", "b"), {"at": (50, 60)}, r"no tokens at=\(50, 60\)"),
        ("QuestionAnswering", ("a", ""), {}, "no tokens"),
        ("TextEmbedder", TEXT, {}, "not support a BertTextEmbedder.*'attention_rollout'"),
    ],
)
def test_what_is_not_there_is_named(name, text, arguments, message):
    with pytest.raises(ValueError, match=message):
        visualize.attributions(bert(name), text, **arguments)


@pytest.mark.backends("tensorflow")
def test_pictures():
    text = "<b>&fine</b> bad"
    found = Attributions(
        (text,),
        ["<b>&fine</b>", "bad"],
        np.array([[0, 0, 12], [0, 13, 16]]),
        np.array([2.0, -1.0]),
        [],
        np.array([]),
        "<i>yes",
        "integrated_gradients",
        *(3.0, 1.9, 0.1),
    )
    shown = found._repr_html_()
    assert "<b>" not in shown and "<i>" not in shown and "&lt;b&gt;&amp;fine" in shown
    assert 'title="+2.0000"' in shown and "error 1.0e-01" in shown
    axes = visualize.attribution_bars(found, top=1).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["<b>&fine</b>"]
    assert visualize.attribution_bars(found)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "modernbert"])
def test_as_captum(reference, family):
    """On the same weights in transformers, with the same steps."""
    import torch

    theirs = reference(family, "ForSequenceClassification", num_labels=3)
    count = theirs.model.config.vocab_size
    tokens = [*TOKENS, *(f"w{i}" for i in range(count - len(TOKENS)))]
    preprocessor = models.BertTextClassifierPreprocessor(bert_tokenizer(tokens), sequence_length=16)
    model = models.BertTextClassifier.from_preset(theirs.directory, preprocessor=preprocessor)
    text = ("The film played, good", "bad film") if family == "bert" else TEXT
    read = read_text(model, text, "test")
    length = len(read.tokens)
    ids = torch.tensor(read.ids[None]).long()
    blank = torch.where(torch.tensor(read.framing()), ids, TOKENS.index("[MASK]"))
    more = {}
    if family == "bert":
        more["token_type_ids"] = torch.tensor(read.features["segment_ids"][:, :length]).long()

    def forward(ids):
        segments = {name: x.expand(len(ids), -1) for name, x in more.items()}
        return theirs.model(ids, **segments).logits

    layer = theirs.model.base_model.embeddings
    layer = getattr(layer, "word_embeddings", None) or layer.tok_embeddings
    for target in (0, 2):
        expected = captum_attr.LayerIntegratedGradients(forward, layer).attribute(
            ids, blank, target=target, n_steps=20, method="gausslegendre"
        )
        expected = expected.sum(-1)[0].detach().numpy()
        found = visualize.attributions(model, text, target=target, steps=20)
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(found.token_scores, expected, rtol=0, atol=1e-5)
        expected = captum_attr.LayerGradientXActivation(forward, layer).attribute(
            ids, target=target
        )
        expected = expected.sum(-1)[0].detach().numpy()
        found = visualize.attributions(model, text, target=target, method="gradient_x_input")
        np.testing.assert_allclose(found.token_scores, expected, rtol=0, atol=1e-5)

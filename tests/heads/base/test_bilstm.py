"""The BiLSTM between encoder and head: an ablation of the paper, and a setting of every task."""

import functools
import warnings

import keras
import numpy as np
import pytest

from kerasbert import convert
from kerasbert.models import (
    BertBackbone,
    BertMultipleChoice,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextRegressor,
    BertTokenClassifier,
)
from tests.contracts import (
    BACKENDS,
    COMPUTED,
    MODEL_CHECKS,
    SLOW,
    array,
    assert_close,
    batch,
    check_padding,
    check_saving,
    perturb,
    tiny_backbone,
)

TASKS = {
    BertTextClassifier: {"num_classes": 3},
    BertTextRegressor: {},
    BertTokenClassifier: {"num_classes": 3},
    BertQuestionAnswering: {},
    BertMultipleChoice: {},
}
WEIGHTS = {
    f"bilstm/{direction}/lstm_cell/{name}"
    for direction in ("forward", "backward")
    for name in ("kernel", "recurrent_kernel", "bias")
}


def make(cls, **settings):
    # Left to right, as in the paper.
    backbone = tiny_backbone(**{"is_causal": True, **settings})
    return perturb(cls(backbone, bilstm_units=3, **TASKS[cls]))


def rows():
    for cls in TASKS:
        for check in MODEL_CHECKS:
            whole = cls is BertTextClassifier
            if not whole and check not in (check_padding, check_saving):
                continue
            where = (
                BACKENDS if check in COMPUTED and (whole or check is check_padding) else ("torch",)
            )
            marks = [pytest.mark.backends(*where)] + [pytest.mark.slow] * (check in SLOW)
            yield pytest.param(cls, check, id=f"{cls.__name__}-{check.__name__}", marks=marks)


@pytest.fixture(scope="module")
def tagger():
    return make(BertTokenClassifier)


@pytest.fixture(scope="module")
def classifier():
    return make(BertTextClassifier, is_causal=False)


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "check"), list(rows()))
def test_contract(cls, check, tmp_path):
    check(functools.partial(make, cls), tmp_path)


@pytest.mark.backends("tensorflow", "torch")
def test_numbers(tagger):
    """The tagger's logits, from the encoder's states and the LSTM's equations."""
    features = batch(tagger)
    states = array(tagger.backbone(features)["sequence_output"]).astype("float64")
    kernel, bias = tagger.output_dense.get_weights()

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def run(lstm, rows):
        w, u, b = lstm.get_weights()
        h = c = np.zeros(3)
        for row in rows:
            i, f, g, o = np.split(row @ w + h @ u + b, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            yield h

    logits = array(tagger(features))
    for row, found, length in zip(states, logits, features["padding_mask"].sum(1), strict=True):
        forward = list(run(tagger.bilstm.forward_lstm, row[:length]))
        backward = list(run(tagger.bilstm.backward_lstm, row[:length][::-1]))[::-1]
        expected = np.concatenate([forward, backward], axis=1) @ kernel + bias
        np.testing.assert_allclose(found[:length], expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_it_makes_the_first_token_see_what_follows(tagger):
    """In a causal encoder alone, the first token cannot."""
    plain = BertTokenClassifier(tiny_backbone(is_causal=True), num_classes=3)
    features = batch(tagger)
    other = {**features, "token_ids": features["token_ids"].copy()}
    other["token_ids"][:, 3] += 1
    assert_close(plain(features)[:, 0], plain(other)[:, 0], atol=0)
    assert np.abs(array(tagger(features)[:, 0]) - array(tagger(other)[:, 0])).max() > 1e-5


def test_defaults(classifier):
    assert classifier.pooling == "mean" and classifier.bilstm_units == 3
    assert not any("pooled_dense" in weight.path for weight in classifier.trainable_weights)
    off = BertTextClassifier(classifier.backbone, num_classes=2, bilstm_units=0)
    assert off.bilstm is None and off.pooling == "pooler" and off.get_config()["bilstm_units"] == 0
    assert [w.path for w in off.weights if "bilstm" in w.path] == []


@pytest.mark.backends("torch")
def test_it_trains():
    """The model learns the order of two tokens, which a mean or a bag of embeddings lacks."""
    keras.utils.set_random_seed(0)
    model = BertTextClassifier(tiny_backbone(dropout=0.0), num_classes=2, bilstm_units=8)
    model.backbone.trainable = False
    x = np.array([[2, 7, 8, 3], [2, 8, 7, 3]] * 8)
    y = np.array([0, 1] * 8)
    model.compile(keras.optimizers.Adam(0.03), jit_compile=keras.backend.backend() != "torch")
    history = model.fit({"token_ids": x}, y, epochs=12, batch_size=16, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]


@pytest.mark.backends("tensorflow", "torch")
def test_presets(tmp_path):
    """A warning names the weights of a new BiLSTM; presets save and load it, and it is created
    again on request.
    """
    encoder = str(tmp_path / "encoder")
    tiny_backbone(num_layers=1).save_to_preset(encoder)
    arguments = {"labels": ["a", "b"], "preprocessor": None}
    with pytest.warns(UserWarning, match="New, random weights") as warned:
        model = BertTextClassifier.from_preset(encoder, bilstm_units=3, **arguments)
    message = next(text for text in (str(w.message) for w in warned) if text.startswith("New"))
    assert all(path in message for path in WEIGHTS) and "logits/kernel" in message
    saved = str(tmp_path / "saved")
    model.save_to_preset(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = BertTextClassifier.from_preset(saved)
    features = batch(model)
    assert again.bilstm_units == 3
    assert_close(again(features), model(features), atol=0)
    with pytest.warns(UserWarning, match="bilstm/forward"):
        other = BertTextClassifier.from_preset(saved, bilstm_units=5, **arguments)
    assert other.bilstm_units == 5


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_foreign_encoder_gets_one(tmp_path, reference):
    """A tagger of another package cannot have a BiLSTM, but a new head on its encoder can."""
    checkpoint = reference("bert", "ForQuestionAnswering")
    with pytest.warns(UserWarning, match="New, random weights.*bilstm/backward"):
        model = BertQuestionAnswering.from_preset(
            checkpoint.directory, preprocessor=None, bilstm_units=4
        )
    backbone = BertBackbone.from_preset(checkpoint.directory)
    inputs = checkpoint.inputs(5)
    assert_close(
        model.backbone(inputs)["sequence_output"], backbone(inputs)["sequence_output"], atol=1e-6
    )


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("format", ["huggingface", "google", "keras_hub"])
def test_other_formats_refuse_it(classifier, format, tmp_path):
    message = rf"'{format}' has no place for the BiLSTM .*bilstm_units=3.*format='kerasbert'"
    with pytest.raises(ValueError, match=message):
        convert(classifier, tmp_path / "there", format=format)
    assert not (tmp_path / "there").exists()


@pytest.mark.backends("tensorflow", "torch")
def test_our_format_holds_it(tagger, tmp_path):
    convert(tagger, tmp_path / "there", format="kerasbert")
    again = BertTokenClassifier.from_preset(str(tmp_path / "there"), preprocessor=None)
    assert_close(again(batch(tagger)), tagger(batch(tagger)), atol=0)


@pytest.mark.backends("tensorflow", "torch")
def test_left_to_right_every_token_counts():
    backbone = tiny_backbone(is_causal=True)
    for settings, expected in (({}, "mean"), ({"pooling": "cls"}, "cls")):
        model = BertTextClassifier(backbone, num_classes=2, **settings)
        assert model.pooling == expected
        features = batch(model, (5, 5))
        before = array(model(features))
        features["token_ids"][:, 3] += 1
        changed = np.abs(array(model(features)) - before).max() > 1e-4
        assert changed == (expected == "mean")


def test_bad_settings(classifier):
    backbone = classifier.backbone
    with pytest.raises(ValueError, match="pooling='pooler' uses .* bypasses the BiLSTM"):
        BertTextClassifier(backbone, num_classes=2, pooling="pooler", bilstm_units=2)
    for bad in (-1, 1.5, "8"):
        with pytest.raises(ValueError, match=f"bilstm_units={bad!r} must be a whole number"):
            BertTextClassifier(backbone, num_classes=2, bilstm_units=bad)

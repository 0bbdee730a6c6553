"""Loss, accuracy and perplexity over a vocabulary, compared with Keras' own and with the
formulas.
"""

import keras
import numpy as np
import pytest

from kerasbert.losses import Perplexity, TokenAccuracy, TokenCrossEntropy
from kerasbert.losses.logits import ClassCrossEntropy
from tests.contracts import array

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(0, 4, (3, 5, 11)).astype("float32")
LABELS = RANDOM.integers(0, 11, (3, 5))
WEIGHTS = RANDOM.integers(0, 2, (3, 5)).astype("float32")


def cross_entropies():
    logits = LOGITS.astype("float64")
    odds = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(odds, LABELS[..., None], -1)[..., 0]


def test_loss_and_its_gradient():
    expected = (cross_entropies() * WEIGHTS).sum() / WEIGHTS.sum()
    loss = TokenCrossEntropy()
    assert float(array(loss(LABELS, LOGITS, WEIGHTS))) == pytest.approx(expected, abs=1e-6)
    assert float(array(loss(LABELS, LOGITS + 1e4, WEIGHTS))) == pytest.approx(expected, abs=1e-2)
    # A step of SGD with a learning rate of 1 moves logits by their gradient.
    labels, weights = LABELS[:1], np.ones((1, 5), "float32")
    model = keras.Sequential([keras.Input((5, 11)), Logits()])
    model.compile(keras.optimizers.SGD(1.0), loss=TokenCrossEntropy(), jit_compile=False)
    model.layers[0].logits.assign(LOGITS[0])
    model.train_on_batch(np.zeros_like(LOGITS[:1]), labels, sample_weight=weights)
    odds = np.exp(LOGITS[0] - LOGITS[0].max(-1, keepdims=True))
    gradient = (odds / odds.sum(-1, keepdims=True) - np.eye(11)[labels[0]]) / 5
    np.testing.assert_allclose(LOGITS[0] - array(model.layers[0].logits), gradient, atol=1e-6)


class Logits(keras.layers.Layer):
    def build(self, shape):
        self.logits = self.add_weight(shape=(5, 11))

    def call(self, inputs):
        return inputs + self.logits


def in_graph(function):
    """Return `function`, traced on TensorFlow if it has another path in graphs."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.function(function)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("traced", [False, True])
def test_metrics(traced):
    for metric, expected in (
        (TokenAccuracy(), LOGITS.argmax(-1) == LABELS),
        (Perplexity(), cross_entropies()),
    ):
        update = in_graph(metric.update_state) if traced else metric.update_state
        for rows in (slice(0, 2), slice(2, 3)):  # Each batch counts in proportion to its weights.
            update(LABELS[rows], LOGITS[rows], WEIGHTS[rows])
        value = (expected * WEIGHTS).sum() / WEIGHTS.sum()
        value = np.exp(value) if isinstance(metric, Perplexity) else value
        assert float(array(metric.result())) == pytest.approx(value, rel=1e-5)
        copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
        assert type(copy) is type(metric) and copy.name == metric.name


@pytest.mark.parametrize("traced", [False, True])
def test_of_equal_logits_the_first_counts(traced):
    logits = np.array([[[1.0, 3.0, 3.0], [-5.0, -5.0, -6.0], [0.0, 0.0, 1e-20]]], "float32")
    for labels, expected in (([[1, 0, 0]], 1), ([[2, 1, 1]], 0)):
        metric = TokenAccuracy()
        update = in_graph(metric.update_state) if traced else metric.update_state
        update(np.array(labels), logits, np.array([[1.0, 1.0, 0.0]]))
        assert float(array(metric.result())) == expected


@pytest.mark.parametrize("metric", [TokenAccuracy(), Perplexity()], ids=lambda one: one.name)
def test_tokens_of_all_batches_count_alike(metric):
    """With batches of different row lengths, metrics are the same as if all tokens were in
    one row.
    """
    random = np.random.default_rng(0)
    parts = []
    for shape in ((2, 3), (3, 11)):
        logits, labels = random.normal(size=(*shape, 5)), random.integers(0, 5, shape)
        weights = random.integers(0, 2, shape)
        parts.append((labels, logits.astype("float32"), weights))
        metric.update_state(*parts[-1])
    found = float(metric.result())
    metric.reset_state()
    metric.update_state(
        *(np.concatenate([x.reshape(1, -1, *x.shape[2:]) for x in one], 1) for one in zip(*parts))
    )
    assert found == pytest.approx(float(metric.result()), rel=1e-6)
    metric.reset_state()
    labels, logits, _ = parts[1]
    metric.update_state(labels, logits, [1, 0, 0])  # One weight per row.
    one_row = float(metric.result())
    metric.reset_state()
    metric.update_state(labels[:1], logits[:1])
    assert one_row == pytest.approx(float(metric.result()), rel=1e-6)


def test_label_smoothing_of_classes():
    logits, labels = LOGITS[0], LABELS[0]
    rows = 0.7 * np.eye(11)[labels] + 0.3 / 11
    odds = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    expected = -(rows * odds).sum(-1).mean()
    loss = ClassCrossEntropy(from_logits=True, label_smoothing=0.3)
    loss = ClassCrossEntropy.from_config(loss.get_config())
    for given in (labels, labels[:, None], np.eye(11, dtype="float32")[labels]):
        assert float(array(loss(given, logits))) == pytest.approx(expected, rel=1e-5)
    of_odds = ClassCrossEntropy(label_smoothing=0.3)(labels, np.exp(odds))
    assert float(array(of_odds)) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="cannot be combined with ignore_class=99; give these"):
        ClassCrossEntropy(label_smoothing=0.3, ignore_class=99)
    assert "label_smoothing" not in ClassCrossEntropy().get_config()
    with pytest.raises(ValueError, match="label_smoothing=1.0 must be a number of at least 0"):
        ClassCrossEntropy(label_smoothing=1.0)

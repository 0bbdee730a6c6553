"""`ChainCrossEntropy`: masks, weights and reductions."""

import keras
import numpy as np
import pytest

from kerasbert.losses import ChainCrossEntropy
from tests.contracts import array
from tests.layers.test_crf import MASK, random_crf, random_row


def test_mean_over_tokens_with_weights():
    layer, *_ = random_crf()
    emissions, labels = random_row(MASK.shape)
    losses, loss = array(layer.losses_of_tokens(emissions, labels, MASK)), ChainCrossEntropy(layer)
    mean = losses.sum() / MASK.sum()
    assert float(loss(labels, emissions, MASK)) == pytest.approx(mean, abs=1e-6)
    # Labels below 0 leave out a token, too, with or without weights, in both shapes.
    given = np.where(MASK, labels, -100)
    for y, weights in ((given, None), (given[..., None], None), (given, np.ones(4))):
        assert float(loss(y, emissions, weights)) == pytest.approx(mean, abs=1e-6)
    # The weight of a text is that of its tokens; a text of weight 0 does not count.
    texts = np.array([1.0, 0.0, 3.0, 0.5])
    weights = texts[:, None] * MASK
    expected = (losses * weights).sum() / weights.sum()
    assert float(loss(labels, emissions, weights)) == pytest.approx(expected, abs=1e-6)
    assert float(loss(given, emissions, texts)) == pytest.approx(expected, abs=1e-6)
    found = array(ChainCrossEntropy(layer, reduction="none")(given, emissions))
    np.testing.assert_allclose(found, losses, atol=1e-6)


def test_without_labels():
    layer, *_ = random_crf()
    emissions, labels = random_row(MASK.shape)
    loss = ChainCrossEntropy(layer)
    for weights in (0 * MASK, np.zeros(4)):
        assert float(loss(labels, emissions, weights)) == 0.0
    assert float(loss(0 * labels - 100, emissions)) == 0.0


def test_soft_labels_are_refused():
    layer, *_ = random_crf()
    emissions, _ = random_row(MASK.shape)
    with pytest.raises(ValueError, match=r"class indices \(B, T\) .* got distributions"):
        ChainCrossEntropy(layer)(emissions, emissions)


def test_config():
    loss = ChainCrossEntropy(random_crf()[0], reduction="sum", name="x")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert (again.crf, again.reduction, again.name) == (None, "sum", "x")

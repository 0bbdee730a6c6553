"""Rows computed in chunks: the results and gradients of a single batch, also with dropout."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.layers.remat import in_chunks
from tests.contracts import perturb, tiny_backbone


def inputs(count, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(6) < rng.integers(1, 7, (count, 1))
    return {"token_ids": rng.integers(5, 30, (count, 6)).astype("int32"), "padding_mask": mask}


class OneStep(keras.Model):
    """Trains an encoder on the sum of squares of its outputs, in chunks or not."""

    def __init__(self, encoder, size):
        super().__init__()
        self.encoder, self.size = encoder, size

    def call(self, x, training=None):
        def vectors(x):
            return self.encoder(x, training=training)["sequence_output"][:, 0]

        if self.size is None:
            return vectors(x)
        return in_chunks(vectors, self.encoder.layers, x, self.size)


def step(size, count=5, **settings):
    keras.utils.set_random_seed(0)
    encoder = perturb(tiny_backbone(**settings))
    model = OneStep(encoder, size)

    def loss(y, x):
        return ops.mean(ops.square(x), axis=-1)

    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    x = encoder.fill_in(inputs(count))
    keras.utils.set_random_seed(1)
    losses = [float(model.train_on_batch(x, np.zeros(count))) for _ in range(2)]
    return losses, [ops.convert_to_numpy(weight) for weight in encoder.weights]


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_as_all_at_once(size):
    expected, found = step(None, dropout=0.0), step(size, dropout=0.0)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.slow_on_tensorflow
def test_dropout_is_the_same_for_the_gradient(monkeypatch):
    found = step(2, dropout=0.3)
    assert found[0][0] != found[0][1]
    monkeypatch.setattr(keras, "remat", lambda function: function)
    expected = step(2, dropout=0.3)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert step(2, dropout=0.0)[0][0] != pytest.approx(found[0][0], rel=1e-3)


def test_each_chunk_has_masks_of_its_own():
    layer = keras.layers.Dropout(0.5)

    def rows():
        x = {"x": np.ones((4, 99))}
        return ops.convert_to_numpy(
            in_chunks(lambda x: layer(x["x"], training=True), [layer], x, 2)
        )

    first, second = rows(), rows()
    for x, y in ((first[:2], first[2:]), (first, second)):
        assert not np.array_equal(x, y)

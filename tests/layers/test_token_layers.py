"""Gradients of activations in dense layers, and dropout in a compiled model."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.layers import TokenDense
from kerasbert.layers.token_layers import TokenDropout, activation_function
from tests.contracts import array

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


@pytest.mark.parametrize("activation", ["gelu", "gelu_approximate", "relu"])
def test_training_of_activations(activation):
    x = np.linspace(-9, 9, 1001, dtype="float32").reshape(7, 11, 13)
    model = keras.Sequential(
        [keras.Input((11, 13)), TokenDense(13, activation=activation_function(activation))]
    )
    model.layers[0].kernel.assign(np.eye(13))
    model.compile(keras.optimizers.SGD(1.0), loss="mse", jit_compile=False)
    y = array(activation_function(activation)(ops.convert_to_tensor(x)))
    assert model.train_on_batch(x, y) <= 1e-12
    # Training toward zeros with a learning rate of 1 moves the bias by its gradient; here the bias
    # takes the values of x.
    step = 1e-3
    up, down = (
        (array(activation_function(activation)(ops.convert_to_tensor(x + d))).astype("float64"))
        for d in (step, -step)
    )
    expected = (2 / x.size * y * (up - down) / (2 * step)).sum(axis=(0, 1))
    model.layers[0].bias.assign(np.zeros(13))
    model.layers[0].kernel.assign(np.eye(13))
    model.train_on_batch(x, np.zeros_like(x))
    np.testing.assert_allclose(array(model.layers[0].bias), -expected, rtol=1e-3)


class Dropped(keras.Model):
    """Applies dropout also at inference."""

    def __init__(self):
        super().__init__()
        self.dropout = TokenDropout(0.1, seed=1)

    def call(self, inputs):
        return self.dropout(inputs, training=True)


def test_dropout_in_a_compiled_model():
    model = Dropped()
    model.compile()
    seen = [model.predict_on_batch(np.ones((300, 501), "float32")) for _ in range(2)]
    for outputs in seen:
        kept = outputs[outputs != 0]
        np.testing.assert_allclose(kept, 1 / 0.9, rtol=1e-4)
        # Four standard deviations of the share of 150,300.
        assert abs(kept.size / outputs.size - 0.9) < 0.0031
        assert abs((outputs[:, 1:] * outputs[:, :-1] != 0).mean() - 0.81) < 0.006
    assert 0.15 < ((seen[0] == 0) != (seen[1] == 0)).mean() < 0.21

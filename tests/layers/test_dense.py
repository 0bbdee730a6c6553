"""Activations of dense layers, and their gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.layers import TokenDense
from kerasbert.layers.dense import activation_function
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
    # A step at a rate of 1 towards zeros moves the bias by its gradient, here of x = bias.
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

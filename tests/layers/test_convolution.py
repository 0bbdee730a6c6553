"""The convolution beside an encoder's first layer."""

import functools

import numpy as np
import pytest

from kerasbert.layers import TokenConvolution
from tests.contracts import (
    array,
    assert_close,
    batch,
    check_gradients,
    check_padding,
    check_saving,
    tiny_backbone,
    tiny_classifier,
)
from tests.layers.test_layers import MASK, X


def test_formula():
    layer = TokenConvolution(kernel_size=3, activation="relu")
    outputs = array(layer(X, padding_mask=MASK, residual=X))
    kernel, bias, gamma, beta = layer.get_weights()
    tokens = np.pad(X * MASK[:, :, None], [(0, 0), (1, 1), (0, 0)])
    x = sum(tokens[:, i : i + 5] @ kernel[i] for i in range(3)) + bias
    x = X + np.maximum(x, 0)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7)
    assert_close(outputs, x * gamma + beta)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("check", [check_padding, check_saving, check_gradients])
def test_encoder(check, tmp_path):
    settings = {"conv_kernel_size": 3, "conv_activation": "gelu"}
    make = tiny_classifier if check is check_gradients else tiny_backbone
    check(functools.partial(make, "deberta_v3", **settings), tmp_path)


def test_tokens_at_positions():
    """Also of a single layer, where the convolution needs all tokens."""
    encoder = tiny_backbone("deberta_v3", conv_kernel_size=3, num_layers=1)
    features = batch(encoder)
    expected = array(encoder(features)["sequence_output"])
    places = np.array([[0, 2], [3, 1], [1, 1]], "int32")
    found = array(encoder(features, positions=places)["sequence_output"])
    assert_close(found, np.take_along_axis(expected, places[:, :, None], axis=1))


def test_mistakes():
    with pytest.raises(ValueError, match="must be odd, got 4"):
        TokenConvolution(kernel_size=4)
    with pytest.raises(ValueError, match="conv_kernel_size=3 needs is_causal=False"):
        tiny_backbone("gpt2", conv_kernel_size=3)

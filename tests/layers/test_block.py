"""A transformer layer: its two dropouts, and `keras.RematScope`."""

import contextlib

import keras
import numpy as np
import pytest

from kerasbert.layers import SelfAttention, TransformerBlock
from tests.contracts import array, assert_close
from tests.layers.test_layers import X

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def test_the_two_dropouts_are_apart():
    for dropout, attention_dropout in ((0.5, 0.0), (0.0, 0.5)):
        block = TransformerBlock(2, 12, dropout=dropout, attention_dropout=attention_dropout)
        expected = array(block(X))
        assert_close(block(X, training=False), expected, atol=0)
        first, second = array(block(X, training=True)), array(block(X, training=True))
        assert np.abs(first - second).max() > 1e-3
    block = TransformerBlock(2, 12)
    assert_close(block(X, training=True), block(X))
    attention = SelfAttention(2, dropout=0.5)
    _, scores = attention(X, training=True, return_attention_scores=True)
    assert 0.2 < np.mean(array(scores) == 0) < 0.8


def test_a_block_alone_in_a_remat_scope():
    def run(scope):
        keras.utils.set_random_seed(0)
        with scope:
            block = TransformerBlock(2, 12, dropout=0.5)
        block.build(X.shape)
        keras.utils.set_random_seed(1)
        return [block(X, training=True), block(X, training=True)]

    expected = run(contextlib.nullcontext())
    assert_close(run(keras.RematScope("full")), expected, atol=0)
    assert np.abs(array(expected[0]) - array(expected[1])).max() > 1e-3

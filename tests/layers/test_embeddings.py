"""Learned positions."""

import numpy as np
import pytest

from kerasbert.layers import PositionEmbedding
from tests.contracts import array, assert_close
from tests.layers.test_layers import X

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def test_positions():
    layer = PositionEmbedding(sequence_length=6, offset=2)
    table = array(layer(X)[0])
    assert layer.weights[0].shape == (8, 8)
    assert_close(table, array(layer.weights[0])[2:7], atol=0)
    with pytest.raises(ValueError, match="7 tokens per row, but the model has only 6 positions"):
        layer(np.zeros((1, 7, 8), "float32"))

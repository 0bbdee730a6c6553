"""Dropout as often as asked, in a compiled model too."""

import keras
import numpy as np
import pytest

from kerasbert.layers.dropout import TokenDropout

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


class Dropped(keras.Model):
    """Drops also where nothing trains."""

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
        # Four deviations of the share of 150,300.
        assert abs(kept.size / outputs.size - 0.9) < 0.0031
        assert abs((outputs[:, 1:] * outputs[:, :-1] != 0).mean() - 0.81) < 0.006
    assert 0.15 < ((seen[0] == 0) != (seen[1] == 0)).mean() < 0.21

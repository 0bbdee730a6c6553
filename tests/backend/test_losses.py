"""Kernels of losses and metrics."""

import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.backend import losses
from tests.backend.test_kernels import LOGITS
from tests.contracts import assert_close


@pytest.mark.parametrize("traced", [False, True])
def test_first_choice(traced):
    logits = np.concatenate([LOGITS, np.array([[[1.0, 3, 3, 2, 0, 0, 0]] * 3], "float32")])
    kernel = losses.first_choice
    if traced and backend.name() == "tensorflow":
        import tensorflow as tf

        kernel = tf.function(kernel)
    for form in (kernel, losses.first_choice.plain):
        assert_close(form(ops.convert_to_tensor(logits)), logits.argmax(-1).astype("int32"), 0)

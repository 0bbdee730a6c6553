"""Checkpoints of any type of weights, and what is kept beside them."""

import keras
import numpy as np

from kerasbert.training.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint
from tests.contracts import array


def make():
    """A frozen layer in int8, as under adapters, and one in bfloat16."""
    frozen = keras.layers.Dense(4, name="frozen")
    model = keras.Sequential(
        [keras.Input((3,)), frozen, keras.layers.Dense(2, dtype="bfloat16", name="trained")],
        name="model",  # It is part of the names of weights.
    )
    frozen.quantize("int8")
    frozen.trainable = False
    model.compile(keras.optimizers.Adam(0.1), loss="mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


def test_every_type_comes_back(tmp_path):
    model = make()
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 2)))
    best = [np.arange(4, dtype="float32"), np.ones((2, 2), "int32")]
    assert {weight.dtype for weight in model.weights} >= {"int8", "bfloat16"}
    for step in (1, 2):
        save_checkpoint(tmp_path, model, step, best, said=["so"])
    assert len(list(tmp_path.iterdir())) == 1
    other = make()
    facts, kept = load_checkpoint(find_checkpoint(tmp_path), other)
    assert facts == {"step": 2, "said": ["so"]}
    for value, expected in zip(kept, best, strict=True):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == expected.dtype
    variables = [*model.weights, *model.optimizer.variables]
    for variable, copy in zip(variables, [*other.weights, *other.optimizer.variables], strict=True):
        np.testing.assert_array_equal(array(copy), array(variable))

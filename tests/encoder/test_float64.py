"""A float64 policy: every layer computes in float64, and every head can be trained."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import SETTINGS, batch, tiny_backbone
from tests.heads.base.test_shared_parts import WITH, WITHOUT, train


@pytest.fixture(autouse=True)
def _jax_has_float64():
    """JAX supports float64 only if it is enabled."""
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "jax":
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
def test_an_encoder_in_float64(family):
    backbone = tiny_backbone(family, dtype="float64", dropout=0.0)
    model, features = backbone.feature_model(output_attentions=True), batch(backbone)
    outputs = model(features)
    states, maps = outputs["sequence_output"], outputs["attentions"]
    assert keras.backend.standardize_dtype(states.dtype) == "float64"
    # With float32 intermediates, attention weights would not sum to 1 as closely. Keras' own
    # products are float32 on JAX and PyTorch, for inputs of any type.
    closest = 1e-13 if keras.backend.backend() == "tensorflow" else 1e-6
    for scores in maps:
        total = ops.convert_to_numpy(ops.sum(scores, axis=-1))
        assert np.abs(total - 1).max() < closest
    single = tiny_backbone(family, dropout=0.0)
    single.set_weights([w.astype("float32") for w in backbone.get_weights()])
    expected = ops.convert_to_numpy(single(features)["sequence_output"])
    is_token = features["padding_mask"] == 1  # At padding, a local layer may have no visible token.
    difference = np.abs(ops.convert_to_numpy(states) - expected)[is_token].max()
    assert difference < 1e-5


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", [*WITH.values(), *WITHOUT.values()])
def test_heads_on_float64(make):
    backbone = tiny_backbone(dtype="float64", dropout=0.1)
    model = make(backbone)
    features = batch(model)
    for output in keras.tree.flatten(model(features)):
        assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert train(model)


def test_a_float64_floatx():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        backbone = tiny_backbone(dropout=0.1, is_causal=True, local_window=4)
        model = WITHOUT["masked_lm"](backbone)
        assert backbone.compute_dtype == "float64" and SETTINGS["num_layers"] == 2
        assert train(model)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")

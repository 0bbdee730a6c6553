"""Every family and head compared with transformers, recorded in `golden/peers.npz`."""

import functools

import keras
import numpy as np
import pytest

from kerasbert import models
from tests.golden import peers

RECORDED = functools.cache(peers.recorded)


@pytest.mark.slow
@pytest.mark.parametrize("case", [f"{family}/{head}" for family, head in peers.cases()])
def test_equals_what_was_recorded(tmp_path, monkeypatch, case):
    family, head = case.split("/")
    monkeypatch.setattr(peers, "recorded", RECORDED)  # The file is read once.
    peers.write(case, tmp_path)
    cls = getattr(models, peers.HEADS[head][2])
    settings = {} if head == "encoder" else {"preprocessor": None}
    model = cls.from_preset(str(tmp_path), **settings)
    inputs = peers.inputs(family, head)
    found = model({name: value for name, value in inputs.items() if name in model.input})
    if not isinstance(found, dict):
        found = {"logits": found}
    expected = RECORDED()[0][case][1]
    assert expected
    for name, wanted in expected.items():
        value = keras.ops.convert_to_numpy(found[name])
        if value.shape[:2] == inputs["padding_mask"].shape:
            value = value[inputs["padding_mask"] == 1]
        assert np.abs(wanted).max() > 0.1  # Outputs must differ enough to reveal errors.
        # The tolerance is relative for large values.
        most = 1e-5 * max(1, np.abs(wanted).max())
        assert np.abs(value.reshape(wanted.shape) - wanted).max() <= most


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_made_anew():
    """The installed transformers gives the recorded outputs."""
    recorded, versions = RECORDED()
    made, _ = peers.record()
    assert made.keys() == recorded.keys()
    for case, (said, outputs) in made.items():
        assert {k: list(v) for k, v in said["shapes"].items()} == recorded[case][0]["shapes"], case
        for name, value in outputs.items():
            scale = max(1, np.abs(value).max())
            assert np.abs(value - recorded[case][1][name]).max() <= 1e-5 * scale, (case, versions)

"""Settings of `pretrain`: defaults, checks and masking rates that change."""

import dataclasses

import pytest

from kerasbert.training.pretrain_settings import PretrainSettings

pytestmark = pytest.mark.backends("tensorflow")  # Settings do not depend on the backend.


def test_a_chosen_value_stays():
    settings = PretrainSettings("a", "b", steps=1000, encoder={}, log_every=7)
    assert settings.evaluate_every == 49 and settings.encoder is None
    again = dataclasses.replace(settings, seed=1)
    assert again.phases == settings.phases and again != settings


def test_shares_that_are_none():
    for given in (
        {"schedule": "wsd", "decay_share": 0},
        {"schedule": "wsd", "decay_share": 1.5},
        {"schedule": "wsd", "decay_share": True},
        {"ema_momentum": -0.1},
        {"held_out": 1},
        {"held_out": -0.1},
    ):
        with pytest.raises(ValueError, match=f"{[*given][-1]}=.* must be a share"):
            PretrainSettings("a", "b", steps=1000, **given)


def test_a_rate_of_hiding_goes_on_from_phase_to_phase():
    masker = {"mask_selection_rate": (0.4, 0.2), "unit": "word"}
    settings = PretrainSettings(
        "a", "b", phases=[(16, 30, 8), (32, 10, 4)], accumulate=2, masker=masker
    )
    found = [settings.hiding_in(number) for number in (0, 1)]
    assert found[0] == {"mask_selection_rate": (0.4, pytest.approx(0.25), 60), "unit": "word"}
    assert found[1]["mask_selection_rate"] == (pytest.approx(0.25), 0.2, 20)
    assert settings.hiding == {"mask_selection_rate": 0.2, "unit": "word"}
    assert PretrainSettings("a", "b").hiding_in(0) is None

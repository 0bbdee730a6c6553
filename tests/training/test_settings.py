"""The loops' settings: as keywords, with the same defaults in Python and on the command line."""

import dataclasses
import inspect

import pytest

import kerasbert
from kerasbert.cli import advise as advising
from kerasbert.cli import pretraining, tasks
from kerasbert.tasks import Task
from kerasbert.training.settings import (
    METHODS,
    AdviseSettings,
    FinetuneSettings,
    PretrainSettings,
)


@pytest.mark.parametrize(
    ("kind", "loop", "command"),
    [
        (PretrainSettings, kerasbert.pretrain, pretraining.pretrain),
        (FinetuneSettings, kerasbert.finetune, tasks.finetune),
        (AdviseSettings, kerasbert.advise, advising.advise),
    ],
)
def test_the_same_defaults(kind, loop, command):
    names = [field.name for field in dataclasses.fields(kind)]
    keywords = inspect.signature(loop).parameters
    assert [x.name for x in keywords.values() if x.kind == x.KEYWORD_ONLY] == names
    options = inspect.signature(command).parameters
    seen = 0
    for field in dataclasses.fields(kind):
        assert keywords[field.name].default == field.default
        if field.name in options and field.name not in ("precision", "seeds", "shares"):
            assert options[field.name].default == field.default, field.name
            seen += 1
    assert seen > 10


def test_unknown_keywords(tmp_path):
    for loop, given in (
        (kerasbert.pretrain, ["a"]),
        (kerasbert.finetune, ["rte", "b"]),
        (kerasbert.advise, ["a.csv", None]),
    ):
        with pytest.raises(TypeError, match=rf"{loop.__name__}\(\) got .* keyword .*'layers'"):
            loop(*given, str(tmp_path / "out"), layers=2)


def test_a_chosen_value_stays():
    settings = PretrainSettings(steps=1000, encoder={}, log_every=7)
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
            PretrainSettings(steps=1000, **given)


def test_a_rate_of_hiding_goes_on_from_phase_to_phase():
    masker = {"mask_selection_rate": (0.4, 0.2), "unit": "word"}
    settings = PretrainSettings(phases=[(16, 30, 8), (32, 10, 4)], accumulate=2, masker=masker)
    found = [settings.hiding_in(number) for number in (0, 1)]
    assert found[0] == {"mask_selection_rate": (0.4, pytest.approx(0.25), 60), "unit": "word"}
    assert found[1]["mask_selection_rate"] == (pytest.approx(0.25), 0.2, 20)
    assert settings.hiding == {"mask_selection_rate": 0.2, "unit": "word"}
    assert PretrainSettings().hiding_in(0) is None


def test_numbers_of_a_grid():
    with pytest.raises(ValueError, match="seeds=None must be a whole number"):
        FinetuneSettings(seeds=None)
    with pytest.raises(ValueError, match="epochs is empty"):
        FinetuneSettings(epochs=[])


def test_methods_and_what_they_alone_have():
    assert [str(name) for name in tasks.Method] == list(METHODS)
    assert FinetuneSettings(method="setfit").pairs == 20
    assert FinetuneSettings().method == "full" and FinetuneSettings().lora_rank is None
    with pytest.raises(ValueError, match="method='setfi' is unknown; use one of full, lora, froz"):
        FinetuneSettings(method="setfi")
    with pytest.raises(ValueError, match="pairs=0 must be a whole number"):
        FinetuneSettings(method="setfit", pairs=0)
    with pytest.raises(ValueError, match="lora_rank=4 needs method='lora'; leave it out"):
        FinetuneSettings(method="frozen", lora_rank=4)
    with pytest.raises(ValueError, match="record_rate=True .* whole models"):
        FinetuneSettings(method="setfit", record_rate=True)


@pytest.mark.parametrize(
    ("method", "head", "grid"),
    [
        ("full", "text_classifier", ((16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4))),
        ("setfit", "text_classifier", ((16,), (2e-5,), (1,))),
        ("frozen", "text_classifier", ((32,), (0.0,), (1,))),
        ("frozen", "token_classifier", ((16, 32), (1e-3,), (2, 3, 4))),
    ],
)
def test_what_a_method_takes_by_default(method, head, grid):
    task = Task("t", "T", head, ("text",), ("accuracy",))
    names = ("batch_sizes", "learning_rates", "epochs")
    found = FinetuneSettings(method=method).of(task).settings
    assert tuple(getattr(found, name) for name in names) == grid
    found = FinetuneSettings(method=method, batch_sizes=7).of(task).settings
    assert found.batch_sizes == (7,) and found.epochs == grid[2]


def test_a_head_found_at_once_has_no_epochs():
    task = Task("t", "T", "text_classifier", ("text",), ("accuracy",))
    with pytest.raises(ValueError, match=r"epochs=\[3\] has no effect with method='frozen'"):
        FinetuneSettings(method="frozen", epochs=3).of(task)

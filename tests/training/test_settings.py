"""The loops' settings: as keywords, with the same defaults in Python and on the command line."""

import dataclasses
import inspect

import pytest

import kerasbert
from kerasbert.cli import advising, pretraining, tasks
from kerasbert.training.settings import AdviseSettings, FinetuneSettings, PretrainSettings


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


def test_numbers_of_a_grid():
    with pytest.raises(ValueError, match="seeds=None has to be a whole number"):
        FinetuneSettings(seeds=None)
    with pytest.raises(ValueError, match="epochs is empty"):
        FinetuneSettings(epochs=[])

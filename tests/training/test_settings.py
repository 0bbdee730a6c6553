"""Settings of trainings: as keywords, with the same defaults in Python and on the command line."""

import inspect

import pytest

import kerasbert
from kerasbert.cli import advise as advising
from kerasbert.cli import pretraining, tasks
from kerasbert.training.advise_settings import AdviseSettings
from kerasbert.training.finetune_settings import FinetuneSettings
from kerasbert.training.pretrain_settings import PretrainSettings
from kerasbert.training.settings import settings_in

pytestmark = pytest.mark.backends("tensorflow")  # Settings do not depend on the backend.

_AS_TEXT = ("precision", "seeds", "shares")


@pytest.mark.parametrize(
    ("kind", "loop", "command"),
    [
        (PretrainSettings, kerasbert.pretrain, pretraining.pretrain),
        (FinetuneSettings, kerasbert.finetune, tasks.finetune),
        (AdviseSettings, kerasbert.advise, advising.advise),
    ],
)
def test_the_same_defaults(kind, loop, command):
    names = [field.name for field in settings_in(kind)]
    keywords = inspect.signature(loop).parameters
    assert [x.name for x in keywords.values() if x.kind == x.KEYWORD_ONLY] == names
    options = inspect.signature(command).parameters
    seen = 0
    for field in settings_in(kind):
        assert keywords[field.name].default == field.default
        # A flag is named after the opposite of the default, so its own default differs.
        is_flag = field.type is bool or field.metadata.get("value") or "type" in field.metadata
        if field.name in options and not is_flag and field.name not in _AS_TEXT:
            assert options[field.name].default == field.default, field.name
            seen += 1
    assert seen > 10


def test_each_setting_is_described_once():
    """The docstring and the help of the option come from the setting's text."""
    for kind, loop, command in (
        (PretrainSettings, kerasbert.pretrain, pretraining.pretrain),
        (FinetuneSettings, kerasbert.finetune, tasks.finetune),
        (AdviseSettings, kerasbert.advise, advising.advise),
    ):
        text = inspect.getdoc(loop)
        described = text[text.index("\nArgs:") : text.index("\nReturns:")]
        options = inspect.signature(command).parameters
        for field in settings_in(kind):
            assert f"\n    {field.name}: {field.metadata['text']}\n" in described
            assert described.count(f"\n    {field.name}: ") == 1
            assert not field.metadata["option"] or field.name in options
    option = inspect.signature(pretraining.pretrain).parameters["checkpoint_every"]
    assert option.annotation.__metadata__[0].help == (
        "Steps between checkpoints; defaults to --evaluate-every, at most 1,000."
    )


def test_unknown_keywords(tmp_path):
    for loop, given in (
        (kerasbert.pretrain, ["a"]),
        (kerasbert.finetune, ["rte", "b"]),
        (kerasbert.advise, ["a.csv", None]),
    ):
        with pytest.raises(TypeError, match=rf"{loop.__name__}\(\) got .* keyword .*'layers'"):
            loop(*given, str(tmp_path / "out"), layers=2)

"""Loading presets while the page is there already."""

import pytest

from kerasbert.play.loaded import DEFAULTS, Loaded
from kerasbert.presets import builtin_presets
from tests.play import presets

pytestmark = pytest.mark.backends("tensorflow")


def test_presets_come_one_after_the_other(tmp_path):
    (path,) = presets.save(tmp_path, ["deberta"])
    started = []
    loaded = Loaded([path, "no_such_preset", path], lambda: started.append(1))
    assert [state["state"] for state in loaded.states()] == ["waiting", "waiting"]
    with pytest.raises(ValueError, match="deberta' is not there: waiting"):
        loaded.use(0, lambda model: model)
    loaded.load()
    good, bad = loaded.states()
    assert good["state"] == "ready" and good["panels"][0] == "classify" and good["seconds"] >= 0
    assert bad["state"] == "failed" and "Unknown preset 'no_such_preset'" in bad["error"]
    assert good["name"] == f"{tmp_path.name}/deberta"
    assert loaded.use(0, lambda model: model.label_names) == ["no", "yes"] and started == [1]
    with pytest.raises(ValueError, match="not there: Unknown preset"):
        loaded.use(1, lambda model: model)
    for place in (2, -1, True, "0", None):
        with pytest.raises(ValueError, match="There is no model"):
            loaded.use(place, lambda model: model)


def test_keras_that_does_not_start():
    def start():
        raise ValueError("The backend flux is not installed.")

    loaded = Loaded(["one", "two"], start)
    loaded.load()
    assert [state["error"] for state in loaded.states()] == [
        "The backend flux is not installed."
    ] * 2


def test_an_encoder_by_itself_and_the_defaults(tmp_path):
    backbone = presets.make("masked")
    backbone.backbone.save_to_preset(str(tmp_path))
    backbone.preprocessor.tokenizer.save_to_preset(str(tmp_path))
    loaded = Loaded([str(tmp_path)])
    loaded.load()
    assert loaded.states()[0].get("error") is None
    assert loaded.states()[0]["panels"] == ["similar", "search", "attention", "tokens"]
    assert set(DEFAULTS) <= set(builtin_presets())

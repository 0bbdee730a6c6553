"""How a model's `Served` is found, also for a kind of head that is not in the package."""

import sys
import types

import keras
import numpy as np
import pytest

from kerasbert.export import export_onnx, export_serving
from kerasbert.heads.base.served_models import saved_class, served
from kerasbert.heads.base.served_texts import ServedTexts
from kerasbert.kinds import KINDS, Kind, kinds_with
from kerasbert.models import BertBackbone, BertDistiller, BertTextRegressor
from tests.export import tiny


@keras.saving.register_keras_serializable(package="test_served")
class Doubter(BertTextRegressor):
    kind = "doubter"


class ServedDoubter(ServedTexts):
    output = "doubt"

    def decode(self, outputs, features):
        return {"doubt": 1 - outputs["doubt"]}


@pytest.fixture
def doubter(monkeypatch):
    """A model of a kind that has a row and two files."""
    row = Kind("doubter", model="Doubter", served="ServedDoubter", like="text_regressor")
    monkeypatch.setitem(KINDS, "doubter", row)
    for part, cls in (("model", Doubter), ("served", ServedDoubter)):
        module = types.SimpleNamespace(**{cls.__name__: cls})
        monkeypatch.setitem(sys.modules, f"kerasbert.heads.doubter.{part}", module)
    model = tiny.task("TextRegressor")
    return tiny.shake(Doubter(model.backbone, preprocessor=model.preprocessor))


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", [kind.name for kind in kinds_with("served")])
def test_each_kind_has_its_class(name):
    cls = KINDS[name].load("served")
    assert cls.__module__ == f"kerasbert.heads.{name}.served" and cls.__doc__


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_a_new_kind_is_served(doubter, export):
    import tensorflow as tf

    path = export(doubter, signatures=["serving_default"])
    loaded = tf.saved_model.load(path).signatures["serving_default"]
    texts = ["Who is it?", "Nobody."]
    found = loaded(text=tf.constant(texts))
    np.testing.assert_allclose(found["doubt"], 1 - np.array(doubter.score(texts)), atol=1e-5)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_a_new_kind_becomes_a_graph(doubter, tmp_path, monkeypatch):
    tiny.write_here(monkeypatch)
    path = export_onnx(doubter, tmp_path / "graph")
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    assert [output.name for output in session.get_outputs()] == ["doubt"]


@pytest.mark.backends("tensorflow")
def test_a_kind_that_nothing_serves():
    with pytest.raises(TypeError, match="got a BertDistiller"):
        teacher, student = (tiny.task("TextClassifier") for _ in range(2))
        export_serving(BertDistiller(teacher, student), "nowhere")


@pytest.mark.backends("tensorflow")
def test_a_class_of_ones_own_is_served_as_what_it_refines():
    class Mine(BertTextRegressor):
        pass

    model = tiny.task("TextRegressor")
    mine = Mine(model.backbone)
    assert type(served(mine)) is type(served(model))
    assert saved_class(mine) == "kerasbert>BertTextRegressor"
    assert saved_class(model.backbone) == keras.saving.get_registered_name(BertBackbone)

"""The name tables: two-way and strict."""

import re

import keras
import numpy as np
import pytest

from kerasbert.checkpoints.huggingface import encoder_map
from kerasbert.checkpoints.name_map import NameMap, load_weights
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import FAMILIES, KERAS_HUB, TABLES
from kerasbert.families.bert import GOOGLE_HEADS
from kerasbert.heads.text_classifier.model import BertTextClassifier

# Settings with which a family has further layers.
FURTHER = {"eurobert": {"num_key_value_heads": 1}, "deberta_v3": {"conv_kernel_size": 3}}
ENCODERS = [
    *((family, "torch", {}) for family in TABLES),
    *((family, "torch", settings) for family, settings in FURTHER.items()),
    *((family, "keras_hub", table.settings) for family, table in KERAS_HUB.items()),
]


class Arrays(dict):
    def shape(self, name):
        return self[name].shape


def tiny(family, **settings):
    sizes = {"vocabulary_size": 7, "num_layers": 2, "num_heads": 2, "hidden_dim": 4}
    return BertBackbone.from_family(family, **sizes, intermediate_dim=6, **settings)


def perturbed(weight):
    rng = np.random.default_rng(sum(map(ord, weight.path)))
    return rng.normal(size=weight.shape).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("family, layout, settings", ENCODERS)
def test_every_weight_goes_there_and_back(family, layout, settings):
    encoder = tiny(family, **settings)
    if layout == "torch":
        name_map = encoder_map(TABLES[family], encoder.get_config())
    else:
        name_map = NameMap(KERAS_HUB[family].encoder, layout, KERAS_HUB[family].verbatim)
    theirs = Arrays()
    for weight in encoder.weights:
        written = name_map.write(weight.path, perturbed(weight))
        assert not theirs.keys() & written.keys()
        theirs.update(written)
    assert load_weights(encoder.weights, theirs, name_map, "here", lambda name: False) == []
    for weight in encoder.weights:
        value = keras.ops.convert_to_numpy(weight.value)
        np.testing.assert_array_equal(value, perturbed(weight))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_table_is_used_up(family):
    """Every line of a table names a layer of some model."""
    layers = set()
    for settings in {}, FURTHER.get(family, {}):
        classifier = BertTextClassifier(tiny(family, **settings), num_classes=2)
        layers |= {weight.path.rpartition("/")[0] for weight in classifier.weights}
    paths = {re.sub(r"_\d+/", "_{i}/", layer) for layer in layers}
    optional = {"embeddings_projection", "segment_embedding", "pooled_dense"}
    assert TABLES[family].encoder.keys() - optional <= paths
    assert TABLES[family].of_head("text_classifier").keys() <= paths


def test_layouts():
    fused = NameMap({"layer_{i}/qkv": "h.{i}.[q|k|v]"}, "torch")
    value = np.arange(12.0).reshape(2, 6)
    written = fused.write("layer_10/qkv/kernel", value)
    assert list(written) == ["h.10.q.weight", "h.10.k.weight", "h.10.v.weight"]
    np.testing.assert_array_equal(written["h.10.k.weight"], value[:, 2:4].T)
    np.testing.assert_array_equal(fused.read("layer_10/qkv/kernel", (2, 6), written), value)
    assert fused.theirs("layer_x/qkv/kernel") is None
    assert fused.theirs("layer_1/qkv/other") is None
    head = NameMap({}, "google", verbatim=GOOGLE_HEADS["text_classifier"][1])
    assert head.write("logits/kernel", value)["output_weights"].shape == (6, 2)


def variables():
    layer = keras.layers.Dense(3, name="dense")
    layer.build((None, 2))
    return layer.weights


@pytest.mark.parametrize(
    "tensors, message",
    [
        (
            {"d.weight": (3, 2)},
            r"Missing, ours \(theirs\): dense/bias \(d.bias\). Left.* none",
        ),
        (
            {"d.weight": (3, 2), "d.bias": (3,), "e": (1,)},
            r"\(theirs\): none. Left over, .*: e",
        ),
        ({"d.weight": (2, 3), "d.bias": (3,)}, r"d.weight \(2, 3\), but our dense/kernel is"),
        ({"d.weight": (3, 2), "d.bias": (4,)}, r"d.bias \(4,\), but our dense/bias is \(3,\)"),
        ({f"x{i}": (1,) for i in range(20)}, "x11 and 8 more"),
    ],
)
def test_all_or_nothing(tensors, message):
    weights = variables()
    before = [keras.ops.convert_to_numpy(weight) for weight in weights]
    tensors = Arrays({name: np.ones(shape) for name, shape in tensors.items()})
    name_map = NameMap({"dense": "d"}, "torch")
    with pytest.raises(ValueError, match=message):
        load_weights(weights, tensors, name_map, "here", lambda name: False)
    for weight, value in zip(weights, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), value)


def test_weights_that_may_stay_new():
    weights = variables()
    tensors = Arrays({"d.weight": np.ones((3, 2))})
    name_map = NameMap({"dense": "d"}, "torch")
    new = load_weights(weights, tensors, name_map, "here", lambda name: False, ["dense/bias"])
    assert new == ["dense/bias"]
    assert keras.ops.convert_to_numpy(weights[0]).min() == 1

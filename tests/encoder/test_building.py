"""Loading of checkpoints by classes without a row in `kinds`."""

import keras
import numpy as np
import pytest

from kerasbert.heads.base.task import BertTask
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertPretrainer,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
)

PRESET = "bert_tiny_demo_en_uncased"


class Doubler(BertTask):
    """A user's task: twice the first token's embedding."""

    backbone_cls = BertBackbone
    preprocessor_cls = BertTextClassifierPreprocessor
    needs_head = False

    def __init__(self, backbone, preprocessor=None, **kwargs):
        self.backbone, self.preprocessor = backbone, preprocessor
        outputs = 2 * backbone(backbone.input)["sequence_output"][:, 0]
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def default_loss(self):
        return keras.losses.MeanSquaredError()

    def default_metrics(self):
        return []


@pytest.mark.slow
def test_a_task_of_the_users_own():
    encoder = BertBackbone.from_preset(PRESET)
    model = Doubler.from_preset(PRESET, preprocessor=None)
    inputs = {"token_ids": np.array([[2, 7, 3]], "int32")}
    expected = 2 * keras.ops.convert_to_numpy(encoder(inputs)["sequence_output"])[:, 0]
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(
        ValueError, match="Doubler has no argument .truncates.; did you mean truncate"
    ):
        Doubler.from_preset(PRESET, truncates="only_second")


def test_a_head_of_the_users_own_is_in_no_checkpoint(tmp_path):
    class Needy(Doubler):
        needs_head = True

    with pytest.raises(ValueError, match="has no Needy; build one and save it first"):
        Needy.from_preset(PRESET, preprocessor=None)


@pytest.mark.slow
def test_a_class_that_refines_ours_loads_its_head(tmp_path):
    class Quiet(BertTextClassifier):
        def classify(self, texts, batch_size=32):
            return [row["label"] for row in super().classify(texts, batch_size)]

    model = BertTextClassifier.from_preset(PRESET, labels=["no", "yes"])
    model.save_to_preset(str(tmp_path))
    loaded = Quiet.from_preset(str(tmp_path))
    assert loaded.classify(["one", "two"]) == [
        row["label"] for row in model.classify(["one", "two"])
    ]
    with pytest.raises(ValueError, match="has no head for a Quiet"):
        Quiet.from_preset(PRESET)
    fresh = Quiet.from_preset(PRESET, labels=["no", "yes"])
    assert set(fresh.classify(["one", "two"])) <= {"no", "yes"}


def test_a_new_pooler_for_a_preset_without_one(tmp_path):
    model = BertMaskedLM.from_preset(PRESET)
    assert not model.backbone.pooler
    model.save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="has no pooler; remove pooler=True"):
        BertBackbone.from_preset(str(tmp_path), pooler=True)
    with pytest.warns(UserWarning, match="pooled_dense/kernel"):
        pretrainer = BertPretrainer.from_preset(str(tmp_path), new_head=True, pooler=True)
    held = {weight.path: weight for weight in model.backbone.weights}
    found = {weight.path: weight for weight in pretrainer.backbone.weights}
    assert found.keys() - held.keys() == {"pooled_dense/kernel", "pooled_dense/bias"}
    for path, weight in held.items():
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (weight, found[path])))
    # Without weights, nothing can be missing.
    assert BertBackbone.from_preset(str(tmp_path), load_weights=False, pooler=True).pooler

"""The programs that JAX would run on a TPU, as far as they can be checked without one.

For every kind of head, JAX can lower a prediction and a training step for a TPU, and the resulting
program contains no operation of another device.
"""

import re

import keras
import numpy as np
import pytest

from kerasbert.kinds import KINDS, kinds_with
from kerasbert.models import BertTextClassifier
from kerasbert.optimizers import AdamW
from tests.contracts import batch, compile_for, random_targets, tiny_backbone

pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]

ARGUMENTS = {
    "text_classifier": {"num_classes": 3},
    "token_classifier": {"num_classes": 3},
}
# Calls that the compiler of every device supports: shardings, and the k largest numbers.
KNOWN = {"Sharding", "mhlo.topk"}


def build(kind, family, dtype):
    # A causal language model must not see the tokens that it predicts.
    backbone = tiny_backbone(family, dtype=dtype, is_causal=kind == "causal_lm")
    cls = KINDS[kind].load("model")
    if kind == "multi_task":
        return cls({name: BertTextClassifier(backbone, num_classes=2) for name in "ab"})
    if kind in ("distiller", "ensemble"):
        two = [BertTextClassifier(tiny_backbone(family, dtype=dtype), num_classes=2) for _ in "ab"]
        return cls(two) if kind == "ensemble" else cls(teacher=two[0], student=two[1])
    return cls(backbone, **ARGUMENTS.get(kind, {}))


def custom_calls(function, *arguments):
    """Return the names of the custom calls in a function's program for a TPU."""
    import jax

    exported = jax.export.export(jax.jit(function), platforms=["tpu"])(*arguments)
    assert exported.platforms == ("tpu",)
    text = exported.mlir_module()
    assert "stablehlo.dot_general" in text
    return set(re.findall(r"custom_call @([\w.]+)", text))


def check(model, features):
    targets = random_targets(model, features)
    compile_for(model, targets, AdamW(1e-3))
    # Keras does the same before the first step.
    model._symbolic_build(data_batch=(features, targets))

    def values(variables):
        return [variable.value for variable in variables]

    state = values(model.trainable_variables), values(model.non_trainable_variables)
    assert custom_calls(model.predict_step, state, (features,)) <= KNOWN
    state = (*state, values(model.optimizer.variables), values(model.metrics_variables))
    assert custom_calls(model.train_step, state, (features, targets)) <= KNOWN


@pytest.mark.parametrize(
    "kind, dtype",
    [(kind.name, "mixed_bfloat16") for kind in kinds_with("model")]
    + [("text_classifier", "float32")],
)
def test_each_kind_lowers_for_a_tpu(kind, dtype):
    model = build(kind, "bert", dtype)
    check(model, batch(model))


def test_long_texts_lower_for_a_tpu(monkeypatch):
    monkeypatch.setattr("kerasbert.backend.attention.LONG", 20)
    monkeypatch.setattr("kerasbert.backend.attention.TURN", 8)
    backbone = tiny_backbone("modernbert", max_sequence_length=64)
    model = BertTextClassifier(backbone, num_classes=2)
    check(model, batch(model, (40, 33, 7), 40))


def test_custom_calls_are_found():
    def function(x):
        return keras.ops.matmul(x, x), keras.ops.qr(x)

    assert custom_calls(function, np.ones((3, 3), "float32")) - KNOWN

"""Adversarial training and R-Drop, compared with plain computations on each backend."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert.heads.base import regularizing
from kerasbert.losses.logits import ClassCrossEntropy
from kerasbert.models import (
    BertDistiller,
    BertMultipleChoice,
    BertMultiTask,
    BertPretrainer,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
)
from kerasbert.optimizers import AdamW
from tests.contracts import array, assert_close, batch, perturb, tiny_backbone

EVERY = pytest.mark.backends("tensorflow", "jax", "torch")
Y = np.array([0, 1, 2])
WEIGHTS = np.array([1.0, 2.0, 0.5], "float32")


def classifier(**settings):
    backbone = tiny_backbone(num_layers=1, **{"dropout": 0.0, **settings})
    return perturb(BertTextClassifier(backbone, num_classes=3))


def mean_loss(logits):
    odds = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    wanted = np.eye(3, dtype="float32")[Y] * WEIGHTS[:, None]
    return -ops.sum(odds * ops.convert_to_tensor(wanted)) / 3


def plain_gradients(model, features, weights):
    """Return the gradients of the mean cross-entropy by the backend's own functions."""
    name = keras.backend.backend()
    if name == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch([weight.value for weight in weights])
            loss = mean_loss(model(features, training=True))
        found = tape.gradient(loss, [weight.value for weight in weights])
        return [tf.convert_to_tensor(one).numpy() for one in found]
    if name == "torch":
        import torch

        tensors = [weight.value.requires_grad_(True) for weight in weights]
        found = torch.autograd.grad(mean_loss(model(features, training=True)), tensors)
        for weight in weights:
            weight.value.requires_grad_(weight.trainable)
        return [one.numpy() for one in found]
    import jax

    def loss(values):
        with keras.StatelessScope(list(zip(weights, values))):
            return mean_loss(model(features, training=True))

    return [np.asarray(one) for one in jax.grad(loss)([weight.value for weight in weights])]


def shifted(kind, strength, value, gradient):
    share = np.linalg.norm(value) if kind == "awp" else 1.0
    return value + strength * share * gradient / np.linalg.norm(gradient)


def train(model, features, optimizer=None, epochs=1, **settings):
    model.compile(optimizer or keras.optimizers.SGD(1.0), **settings)
    model.fit(features, Y, sample_weight=WEIGHTS, epochs=epochs, verbose=0, shuffle=False)
    return [array(weight) for weight in model.weights]


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize(
    "kind, trained",
    [("fgm", "all"), ("awp", "all"), ("fgm", "head"), ("fgm", "lora"), ("awp", "lora")],
)
def test_compiled_step(kind, trained):
    check_step(kind, trained)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["fgm", "awp"])
def test_one_step(kind):
    check_step(kind, "all")


def check_step(kind, trained):
    """Compare a step of `fit` with gradients at weights that are perturbed by hand."""
    model = classifier()
    features = batch(model)
    if trained == "head":
        model.backbone.trainable = False
    if trained == "lora":
        model.backbone.enable_lora(2)
        perturb(model)
    (table,) = model.backbone.token_embedding.weights
    moved = [table] if kind == "fgm" else [w for w in model.trainable_weights if w.ndim > 1]
    wanted = [*model.trainable_weights, *(w for w in moved if not w.trainable)]
    clean = dict(zip(map(id, wanted), plain_gradients(model, features, wanted)))
    before = [array(w) for w in model.weights]
    for weight in moved:
        weight.assign(shifted(kind, 0.3, array(weight), clean[id(weight)]))
    second = plain_gradients(model, features, model.trainable_weights)
    for weight, value in zip(model.weights, before):
        weight.assign(value)
    steps = {}
    for weight, one in zip(model.trainable_weights, second):
        steps[id(weight)] = one + (clean[id(weight)] if kind == "fgm" else 0)
    after = train(model, features, adversarial=kind, adversarial_strength=0.3)
    for weight, was, now in zip(model.weights, before, after, strict=True):
        if id(weight) in steps:
            assert_close(now, was - steps[id(weight)])
            assert np.abs(steps[id(weight)]).max() > 1e-4
        else:
            assert_close(now, was, atol=0)


# === R-Drop ===


def softmax(logits):
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def of_classes(a, b):
    p, q = softmax(a), softmax(b)
    return ((p * np.log(p / q)).sum(-1) + (q * np.log(q / p)).sum(-1)) / 2


def of_flags(a, b):
    p, q = 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(-b))
    both = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    return (both + q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))) / 2


# The head, the shape of its outputs, the shape of the weights and the divergence of a row or token.
HEADS = {
    "classes": (lambda x: BertTextClassifier(x, num_classes=4), (3, 4), (3,), of_classes),
    "several": (
        lambda x: BertTextClassifier(x, num_classes=4, multi_label=True),
        *((3, 4), (3,), lambda a, b: of_flags(a, b).mean(-1)),
    ),
    "score": (BertTextRegressor, (3,), (3,), lambda a, b: (a - b) ** 2),
    "tokens": (lambda x: BertTokenClassifier(x, num_classes=4), (3, 5, 4), (3, 5), of_classes),
    "answers": (BertQuestionAnswering, (3, 5), (3,), of_classes),
    "choices": (BertMultipleChoice, (3, 2), (3,), of_classes),
}


@pytest.fixture(scope="module")
def encoder():
    return tiny_backbone(num_layers=1)


@pytest.mark.parametrize("name", HEADS)
def test_divergence(name, encoder):
    make, shape, of_weights, divergence = HEADS[name]
    model = make(encoder)
    model.compile(r_drop=0.7, run_eagerly=True)
    random = np.random.default_rng(0)
    weights = random.uniform(0.5, 2, of_weights).astype("float32")
    names = [""] if isinstance(model.loss, keras.losses.Loss) else sorted(model.loss)
    pairs = [random.normal(size=(2, *shape)).astype("float32") for _ in names]
    total, mean = 0.0, weights.sum() if name == "tokens" else weights.size
    for first, second in pairs:
        total += (divergence(first, second) * weights).sum() / mean / len(names)
    joined = [ops.convert_to_tensor(np.concatenate(pair)) for pair in pairs]
    outputs = dict(zip(names, joined)) if names != [""] else joined[0]
    loss = ops.convert_to_tensor(2.0)
    token = regularizing._IS_DOUBLED.set(True)
    found = regularizing.with_divergence(model, loss, outputs, np.concatenate([weights, weights]))
    regularizing._IS_DOUBLED.reset(token)
    assert_close(found, 2.0 + 0.7 * total, atol=1e-5)


def test_divergence_of_a_sum(encoder):
    """A loss that is a sum has both passes in it, so the divergence counts twice."""
    model, token = BertTextClassifier(encoder, num_classes=4), regularizing._IS_DOUBLED.set(True)
    pair = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    model.compile(loss=ClassCrossEntropy(from_logits=True, reduction="sum"), r_drop=0.7)
    outputs = ops.convert_to_tensor(np.concatenate(pair))
    found = regularizing.with_divergence(model, ops.convert_to_tensor(2.0), outputs, None)
    regularizing._IS_DOUBLED.reset(token)
    assert_close(found, 2.0 + 2 * 0.7 * of_classes(*pair).sum(), atol=1e-5)


def check_r_drop(**settings):
    """Without dropout, both passes agree; with dropout, they must be made to agree."""
    model = classifier()
    features, before = batch(model), [array(weight) for weight in model.weights]
    plain = train(model, features, **settings)
    for weight, value in zip(model.weights, before):
        weight.assign(value)
    assert_close(train(model, features, r_drop=3.0, **settings), plain)
    model = classifier(dropout=0.5)
    model.compile(keras.optimizers.SGD(0.0), r_drop=1000.0, **settings)
    logs = model.fit(features, Y, sample_weight=WEIGHTS, verbose=0).history
    assert logs["loss"][0] > 20
    assert model.evaluate(features, Y, sample_weight=WEIGHTS, verbose=0)[0] < 10


@pytest.mark.backends("torch")
def test_r_drop():
    check_r_drop()


@pytest.mark.slow
@EVERY
def test_compiled_r_drop():
    check_r_drop()


# === Together with other settings ===


@pytest.mark.slow
@EVERY
def test_mixed_precision_accumulation_and_both():
    """Both together train with a scaled loss in half precision, and gradients of two batches."""
    model = classifier(dtype="mixed_float16", dropout=0.1)
    features, start = batch(model), [array(weight) for weight in model.weights]
    optimizer = AdamW(1e-2, gradient_accumulation_steps=2)
    settings = {"adversarial": "fgm", "r_drop": 1.0}
    assert_close(train(model, features, optimizer, **settings), start, atol=0)
    model.fit(features, Y, epochs=9, verbose=0)
    moved = [np.abs(array(weight) - was).max() for weight, was in zip(model.weights, start)]
    assert np.isfinite(moved).all() and max(moved) > 1e-2
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.backends("torch")
def test_saved_with_the_model(tmp_path):
    model = classifier()
    model.compile(adversarial="awp", r_drop=2.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded._running.regularizer == regularizing.Regularizer("awp", 0.001, 2.0)
    keras.models.clone_model(model)  # Keras ignores the setting.
    model.compile()
    assert "regularizer" not in model.get_compile_config()["optimizer"]


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"adversarial": "pgd"}, "adversarial='pgd' is unknown; use one of fgm, awp"),
        ({"adversarial_strength": 1.0}, "needs adversarial='fgm' or 'awp'"),
        ({"adversarial": "fgm", "adversarial_strength": 0}, "adversarial_strength=0 must be"),
        ({"r_drop": -1}, "r_drop=-1 must be a number of at least 0"),
    ],
)
def test_bad_values(settings, said, encoder):
    with pytest.raises(ValueError, match=said):
        BertTextRegressor(encoder).compile(**settings)


@pytest.mark.backends("torch")
def test_compiling_on_pytorch(encoder):
    model = BertTextRegressor(encoder)
    with pytest.raises(ValueError, match="jit_compile=True cannot compile .* adversarial='fgm'"):
        model.compile(adversarial="fgm", jit_compile=True)


def test_heads_without_r_drop(encoder):
    for model, said in (
        (BertTextEmbedder(encoder), "which BertTextEmbedder does not predict"),
        (BertPretrainer(encoder), "which BertPretrainer does not predict"),
        (BertTokenClassifier(encoder, num_classes=3, crf=True), "a CRF scores whole sequences"),
        (BertTextClassifier(encoder, num_classes=3, activation="softmax"), "build it without"),
    ):
        with pytest.raises(ValueError, match=said):
            model.compile(r_drop=1.0)


@pytest.mark.backends("torch")
def test_parts_of_other_models():
    """Regularization of a part has no effect and is refused, and its temperature is reset."""
    task, teacher = (
        perturb(BertTextClassifier(tiny_backbone(num_layers=1), num_classes=3, temperature=2.0))
        for _ in range(2)
    )
    model, data = BertMultiTask({"kind": task}), {"kind": (batch(task), Y)}
    for option, way in (({"r_drop": 1.0}, "without it.$"), ({"adversarial": "fgm"}, "pass it to")):
        task.compile(**option)
        with pytest.raises(ValueError, match=f"The task 'kind' was compiled with .*{way}"):
            model.fit(data, verbose=0)
    task.compile()
    assert task.temperature == 2
    with pytest.warns(UserWarning, match="Training resets the temperature of 2"):
        model.fit(data, verbose=0)
    assert task.temperature == 1
    with pytest.warns(UserWarning, match="Training resets the temperature of 2"):
        BertDistiller(teacher, task).fit(*data["kind"], verbose=0)
    assert teacher.temperature == 1


def test_several_devices(encoder, monkeypatch):
    model = BertTextClassifier(encoder, num_classes=3)
    model.compile(adversarial="fgm", jit_compile=False)
    monkeypatch.setattr(regularizing.distribution, "sharing", object())
    with pytest.raises(ValueError, match="adversarial='fgm' trains on one device only"):
        model.make_train_function()
    monkeypatch.undo()

    class Through:
        _running = model._running

    with pytest.raises(ValueError, match="adversarial='fgm' trains on one device only"):
        regularizing.train_step(Through(), None)

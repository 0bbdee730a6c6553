"""Optimizers and schedules: compared with the published formulas, and in `fit`."""

import functools
import json

import keras
import numpy as np
import pytest

from kerasbert.optimizers import (
    AdamW,
    GradualUnfreezing,
    Lamb,
    LinearDecay,
    Muon,
    SlantedTriangular,
    WarmupStableDecay,
    layerwise_learning_rates,
)
from tests.contracts import array, assert_close, batch, tiny_backbone, tiny_classifier

# Warnings of Keras would annoy users.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

SHAPES = {"kernel": (3, 4), "bias": (4,), "gamma": (4,)}
Y = np.array([0, 1, 2])
COMPILED = {"run_eagerly": False, "jit_compile": keras.backend.backend() == "jax"}


def problem(steps=6, scale=1.0):
    """Return initial weights, and gradients for each step, some of them far above the clip."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    gradients = [
        {name: scale * random.normal(size=shape) * 3.0**-step for name, shape in SHAPES.items()}
        for step in range(steps)
    ]
    return weights, gradients


def run(optimizer, weights, gradients):
    """Return the weights after these steps of a Keras optimizer."""
    variables = [keras.Variable(w, name=name, dtype="float32") for name, w in weights.items()]
    for step in gradients:
        values = [keras.ops.convert_to_tensor(step[v.name], "float32") for v in variables]
        optimizer.apply(values, variables)
    return {variable.name: array(variable) for variable in variables}


def clipped(gradients, most=1.0):
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    return {name: g * min(1.0, most / norm) for name, g in gradients.items()}


# Recorded by `losses_of_torch` with torch 2.13.0.
LOSSES_OF_TORCH = [
    *(2.3209286, 1.9721712, 1.6626621, 1.4146467, 1.2552335, 1.1947885, 1.1876928, 1.1824878),
    *(1.1671755, 1.14955, 1.1388265, 1.1369896, 1.1389329, 1.1386946, 1.1339461, 1.1258253),
    *(1.1167386, 1.1085272, 1.1018034, 1.0962641),
]


def little():
    """Return weights, inputs and classes; gradients of the first layer are little more than
    epsilon.
    """
    random = np.random.default_rng(0)
    weights = [random.normal(size=size).astype("float32") for size in ((8, 6), (6,), (6, 3), (3,))]
    x = 1e-3 * random.normal(size=(16, 8)).astype("float32")
    return weights, x.astype("float32"), random.integers(3, size=16)


def losses_of_torch(amsgrad):
    import torch

    weights, x, y = little()
    kernel_1, bias_1, kernel_2, bias_2 = (torch.nn.Parameter(torch.tensor(w)) for w in weights)
    groups = [
        {"params": [kernel_1, kernel_2], "weight_decay": 0.1},
        {"params": [bias_1, bias_2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05, eps=1e-6, amsgrad=amsgrad)
    losses = []
    for _ in range(20):
        logits = torch.tanh(torch.tensor(x) @ kernel_1 + bias_1) @ kernel_2 + bias_2
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([kernel_1, bias_1, kernel_2, bias_2], 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of_ours(amsgrad=False):
    weights, x, y = little()
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)]
    )
    model.set_weights(weights)
    optimizer = AdamW(0.05, weight_decay=0.1, amsgrad=amsgrad)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, **COMPILED)
    return [float(model.train_on_batch(x, y)) for _ in range(20)]


def test_losses_of_adamw_are_those_of_torch():
    assert_close(losses_of_ours(), LOSSES_OF_TORCH, atol=2e-6)


@pytest.mark.peers
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_is_that_of_torch(amsgrad):
    expected = losses_of_torch(amsgrad)
    assert_close(losses_of_ours(amsgrad), expected, atol=2e-6)
    if not amsgrad:
        assert_close(expected, LOSSES_OF_TORCH, atol=1e-6)


@pytest.mark.backends("tensorflow", "torch")
def test_without_bias_correction_it_is_that_of_bert():
    weights, gradients = problem()
    expected = dict(weights)
    m, v = ({name: 0.0 for name in weights} for _ in range(2))
    # TensorFlow's fused step has 1 - 0.999 in float32.
    fused = keras.backend.backend() == "tensorflow"
    kept = float(np.float32(0.999)) if fused else 0.999
    for step in map(clipped, gradients):
        for name, g in step.items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = kept * v[name] + (1 - kept) * g**2
            update = m[name] / (np.sqrt(v[name]) + 1e-6)
            if name == "kernel":
                update = update + 0.01 * expected[name]
            expected[name] = expected[name] - 0.01 * update
    found = run(AdamW(0.01, bias_correction=False), weights, gradients)
    assert_close(found, expected, atol=1e-6)
    corrected = run(AdamW(0.01), weights, gradients)
    assert np.abs(corrected["kernel"] - expected["kernel"]).max() > 0.01


@pytest.mark.backends("torch")
def test_lamb():
    weights, gradients = problem()
    expected = dict(weights)
    m, v = ({name: 0.0 for name in weights} for _ in range(2))
    for t, step in enumerate(map(clipped, gradients), 1):
        for name, g in step.items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g**2
            update = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-6)
            if name == "kernel":
                update = update + 0.3 * expected[name]
                update *= np.linalg.norm(expected[name]) / np.linalg.norm(update)
            expected[name] = expected[name] - 0.01 * update
    found = run(Lamb(0.01, weight_decay=0.3), weights, gradients)
    assert_close(found, expected, atol=1e-6)
    # A weight of zeros changes; a weight without gradient and decay does not.
    zeros = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    assert (run(Lamb(0.01), zeros, gradients[:1])["kernel"] != 0).all()
    assert_close(run(Lamb(0.01), zeros, [zeros])["kernel"], zeros["kernel"], atol=0)


MATRICES = {"layer/qkv/kernel": (4, 12), "layer/output/kernel": (4, 8), "layer/output/bias": (4,)}
MATRICES |= {"token_embedding/embeddings": (5, 4), "logits/kernel": (4, 2)}


def stepped(optimizer, weights, gradients):
    """Return the weights by path after these steps."""
    variables = [keras.Variable(w, name="weight", dtype="float32") for w in weights.values()]
    for path, variable in zip(weights, variables):
        variable._path = path
    for step in gradients:
        values = [keras.ops.convert_to_tensor(step[path], "float32") for path in weights]
        optimizer.apply(values, variables)
    return {path: array(variable) for path, variable in zip(weights, variables)}


def muon_by_hand(weight, gradients):
    momentum = 0.0
    for gradient in gradients:
        momentum = 0.95 * momentum + gradient
        x = gradient + 0.95 * momentum
        x = x / np.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        weight = weight * (1 - 0.1 * 0.02) - 0.1 * 0.2 * np.sqrt(max(x.shape)) * x
    return weight


def test_muon():
    """Muon updates queries, keys and values separately, and uses Adam for biases, embeddings and
    the last layer.
    """
    random = np.random.default_rng(0)
    weights, *gradients = [
        {path: random.normal(size=shape) for path, shape in MATRICES.items()} for _ in range(4)
    ]
    settings = {"weight_decay": 0.02, "global_clipnorm": None, "epsilon": 1e-8}
    found = stepped(Muon(0.1, **settings), weights, gradients)
    expected = stepped(AdamW(0.1, **settings), weights, gradients)
    for part, path in (
        (np.s_[:], "layer/output/kernel"),
        *((np.s_[:, at : at + 4], "layer/qkv/kernel") for at in (0, 4, 8)),
    ):
        by_hand = muon_by_hand(weights[path][part], [step[path][part] for step in gradients])
        assert_close(found[path][part], by_hand, atol=1e-5)
        assert np.abs(found[path] - expected[path]).max() > 0.05
    for path in ("layer/output/bias", "token_embedding/embeddings", "logits/kernel"):
        assert_close(found[path], expected[path], atol=1e-5)


@pytest.mark.slow_on_tensorflow
def test_muon_trains():
    """In `fit`, with accumulation, and compiled by XLA if the backend has it."""
    model = tiny_classifier(dropout=0.0, num_layers=1)
    compiled = {"run_eagerly": False, "jit_compile": keras.backend.backend() != "torch"}
    optimizer = Muon(0.01, gradient_accumulation_steps=2)
    moved = train(model, optimizer, batch(model), Y, steps=4, **compiled)
    for path, step in moved.items():
        assert np.isfinite(step).all() and step.any(), path


@pytest.mark.parametrize("cls", [AdamW, Lamb, Muon])
def test_shares_of_the_rate(cls):
    weights, gradients = problem(steps=1)
    base = cls(0.01, weight_decay=0.1)
    shared = cls(0.01, weight_decay=0.1, learning_rate_multipliers={"kernel": 0.25, "gamma": 0.0})
    full, found = run(base, weights, gradients), run(shared, weights, gradients)
    moved = {name: found[name] - weights[name] for name in weights}
    for name, share in (("kernel", 0.25), ("bias", 1.0), ("gamma", 0.0)):
        assert_close(moved[name], share * (full[name] - weights[name]), atol=2e-7)


@pytest.mark.backends("tensorflow", "torch")
def test_weights_that_start_late():
    weights, gradients = problem(steps=4)
    kernel = {"kernel": weights["kernel"]}
    alone = run(
        AdamW(0.01, global_clipnorm=None), kernel, [{"kernel": g["kernel"]} for g in gradients[2:]]
    )
    optimizer = AdamW(0.01, global_clipnorm=None)
    variables = [keras.Variable(w, name=name, dtype="float32") for name, w in weights.items()]
    optimizer.build(variables)
    for i, step in enumerate(gradients):
        if i == 2:
            optimizer.start(variables[:1])
        used = variables[1:] if i < 2 else variables
        values = [keras.ops.convert_to_tensor(step[v.name], "float32") for v in used]
        optimizer.apply(values, used)
    assert_close(array(variables[0]), alone["kernel"], atol=1e-6)


def settings():
    yield AdamW()
    yield AdamW(
        LinearDecay(1e-3, 10, 2),
        bias_correction=False,
        no_decay=["bias"],
        learning_rate_multipliers={"a/b": 0.5},
        global_clipnorm=None,
        clipnorm=0.5,
        gradient_accumulation_steps=2,
    )
    yield Lamb(SlantedTriangular(1e-3, 20, 0.2, 10), beta_1=0.8, no_decay=None)
    yield Muon(WarmupStableDecay(1e-3, 20, 2, 10), momentum=0.9, parts={"kernel": 2}, ns_steps=4)


@pytest.mark.parametrize("number", range(4))
def test_config(number):
    optimizer = list(settings())[number]
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    loaded = keras.saving.deserialize_keras_object(stored)
    assert isinstance(loaded, type(optimizer))
    assert loaded.get_config() == optimizer.get_config()
    variables = [keras.Variable(np.ones(2), name=name) for name in ("kernel", "bias", "gamma")]
    for one in (optimizer, loaded):
        one.build(variables)
    decays = [[one._use_weight_decay(v) for v in variables] for one in (optimizer, loaded)]
    assert decays[0] == decays[1]
    assert decays[0] == [name not in optimizer.no_decay for name in ("kernel", "bias", "gamma")]


@pytest.mark.backends("torch")
def test_exclusions_by_keras_method():
    optimizer = AdamW()
    variables = [keras.Variable(np.ones(2), name=name) for name in ("kernel", "bias", "biased")]
    optimizer.exclude_from_weight_decay(var_list=variables[:1], var_names=["bias"])
    optimizer.build(variables)
    assert [optimizer._use_weight_decay(variable) for variable in variables] == [False, False, True]
    with pytest.raises(ValueError, match="pass no_decay"):
        optimizer.exclude_from_weight_decay(var_names=["gamma"])


@pytest.mark.backends("torch")
def test_all_weights_may_be_excluded():
    weights, gradients = problem(steps=1)
    found = run(AdamW(0.01, no_decay=list(SHAPES)), weights, gradients)
    assert_close(found, run(AdamW(0.01, weight_decay=0.0), weights, gradients), atol=0)


# === Schedules ===


@pytest.mark.peers
@pytest.mark.parametrize("warmup", [0, 1, 7, 40])
def test_schedules_of_transformers(warmup):
    import torch
    import transformers

    cosine = keras.optimizers.schedules.CosineDecay(
        0.0, max(40 - warmup, 1), warmup_target=0.3, warmup_steps=warmup
    )
    for name, schedule in (("linear", LinearDecay(0.3, 40, warmup)), ("cosine", cosine)):
        peer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        rates = transformers.get_scheduler(name, peer, warmup, 40)
        for step in range(42):
            # After its end, the cosine of transformers rises again; that of Keras stays constant.
            if name == "linear" or step <= 40:
                np.testing.assert_allclose(
                    float(array(schedule(step))), rates.get_last_lr()[0], atol=1e-7
                )
            peer.step()
            rates.step()


def test_slanted_triangular():
    steps, cut_frac, ratio = 64, 0.1, 32
    schedule = SlantedTriangular(0.01, steps, cut_frac, ratio)
    cut = int(np.floor(steps * cut_frac))
    for t in range(steps):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        # As `cut` is rounded down, the paper's p falls below 0 before the end; ours stays at 0.
        expected = 0.01 * (1 + max(p, 0) * (ratio - 1)) / ratio
        np.testing.assert_allclose(float(array(schedule(t))), expected, rtol=1e-5)
    np.testing.assert_allclose(float(array(schedule(steps + 9))), 0.01 / ratio, rtol=1e-5)


def test_warmup_stable_decay():
    schedule = WarmupStableDecay(0.5, steps=20, warmup_steps=4, decay_steps=10, start=3)
    rates = [float(array(schedule(step + 3))) for step in range(22)]
    falling = [1 - np.sqrt(step / 10) for step in range(11)]
    expected = [0, 0.25, 0.5, 0.75, *[1] * 6, *falling, 0]
    np.testing.assert_allclose(rates, 0.5 * np.array(expected), atol=1e-6)
    # Without warmup it starts at the peak; without decay it stays there.
    assert float(array(WarmupStableDecay(0.5, 20)(0))) == 0.5
    assert float(array(WarmupStableDecay(0.5, 20)(19))) == 0.5
    # The whole schedule may be a decay, to continue a training that had none.
    assert float(array(WarmupStableDecay(0.5, 4, decay_steps=4)(1))) == 0.25


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "schedule",
    [LinearDecay(0.1, 4, 2), SlantedTriangular(0.1, 4, 0.5, 10), WarmupStableDecay(0.1, 4, 1, 2)],
    ids=["linear", "slanted", "wsd"],
)
def test_schedules_in_fit(schedule):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(schedule), loss=lambda y, x: keras.ops.sum(x, -1))
    model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=1, verbose=0, shuffle=False)
    total = sum(float(array(schedule(step))) for step in range(4))
    assert_close(array(model.layers[0].kernel), np.array([[-total]]), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearDecay(1.0, 0), "steps=0 .* number of batches"),
        (lambda: LinearDecay(1.0, 5, 6), "warmup_steps=6 .* the 5 steps"),
        (lambda: WarmupStableDecay(1.0, 0), "steps=0 .* number of batches"),
        (lambda: WarmupStableDecay(1.0, 5, 3, 3), "warmup_steps=3 and decay_steps=3 .* 5 steps"),
        (lambda: WarmupStableDecay(1.0, 5, -1), "warmup_steps=-1 must be a whole number"),
        (lambda: Muon(parts={"qkv": 0}), r"parts\['qkv'\]=0 must be a whole number of at least 1"),
        (
            lambda: Muon(parts={"kernel": 3}).build(
                [keras.Variable(np.ones((2, 4)), name="kernel")]
            ),
            "'kernel' has width 4, .* parts={'kernel': 3} .* 3 equal matrices",
        ),
        (lambda: SlantedTriangular(1.0, 5), "cut_frac=0.1 .* 5 steps"),
        (lambda: SlantedTriangular(1.0, 50, ratio=0.5), "ratio=0.5.* at least 1"),
        (lambda: AdamW(learning_rate_multipliers={"a": -1.0}), r"multipliers\['a'\] is -1.0"),
        (lambda: GradualUnfreezing(0), "layers_per_epoch=0 .* at least 1"),
        (lambda: layerwise_learning_rates(tiny_backbone(), 1.5), "decay=1.5 .* at most 1"),
        (
            lambda: layerwise_learning_rates(keras.Sequential([keras.layers.Dense(1)])),
            "has no encoder of kerasbert",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# === In `fit` ===


def train(model, optimizer, features, y, steps=1, **settings):
    """Return how far each weight moves, by path."""
    settings.setdefault("run_eagerly", True)
    model.compile(optimizer, **settings)
    before = {weight.path: array(weight) for weight in model.trainable_weights}
    for _ in range(steps):
        model.train_on_batch(features, y)
    return {w.path: array(w) - before[w.path] for w in model.trainable_weights}


BOTH, ALONE = pytest.mark.backends("tensorflow", "torch"), pytest.mark.backends("torch")


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param("bert", {}, id="bert", marks=BOTH),
        pytest.param(
            "bert",
            {"gradient_accumulation_steps": 2},
            id="accumulated",
            marks=[BOTH, pytest.mark.slow],
        ),
        pytest.param(
            "bert", {"dtype": "mixed_float16"}, id="float16", marks=[BOTH, pytest.mark.slow]
        ),
        # Only the names differ from those of BERT.
        pytest.param("albert", {}, id="albert", marks=ALONE),
        pytest.param("modernbert", {}, id="modernbert", marks=ALONE),
    ],
)
def test_layerwise_learning_rates(family, settings):
    settings = dict(settings)
    dtype = settings.pop("dtype", None)
    steps = settings.get("gradient_accumulation_steps", 1)

    def moved(decay):
        model = tiny_classifier(family, dropout=0.0, dtype=dtype)
        shares = layerwise_learning_rates(model, decay)
        optimizer = AdamW(
            LinearDecay(0.01, 10), learning_rate_multipliers=shares, epsilon=1e-9, **settings
        )
        found = train(
            model, optimizer, batch(model), Y, steps, run_eagerly=False, jit_compile=False
        )
        if dtype:
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        return found, model.backbone

    full, backbone = moved(1.0)
    found, _ = moved(0.5)
    blocks = list(dict.fromkeys(block.name for block in backbone.transformer_layers))
    heights = set()
    for path, expected in full.items():
        parts = path.split("/")
        block = next((blocks.index(part) for part in parts if part in blocks), None)
        is_above = parts[0] in ("logits", "pooled_dense", "final_layer_norm", "head_dense")
        is_above = is_above or parts[0] == "head_norm"
        height = len(blocks) + 1 if is_above else 0 if block is None else block + 1
        heights.add(height)
        assert_close(found[path], expected * 0.5 ** (len(blocks) + 1 - height), atol=1e-6)
        assert np.abs(expected).max() > 1e-3
    assert heights == set(range(len(blocks) + 2))


@pytest.mark.backends("torch")
def test_layers_inside_any_model():
    backbone = tiny_backbone()
    model = keras.Model(
        backbone.input, keras.layers.Dense(1)(backbone(backbone.input)["pooled_output"])
    )
    assert layerwise_learning_rates(model) == layerwise_learning_rates(backbone)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("kind", ["sgd", "adamw", "lamb", "clipped and compiled"])
def test_accumulated_batches_are_one_large_batch(kind):
    make = {
        "sgd": functools.partial(keras.optimizers.SGD, 0.1),
        "adamw": functools.partial(AdamW, 0.01, epsilon=1e-3, global_clipnorm=None),
        "lamb": functools.partial(Lamb, 0.01, epsilon=1e-3),
    }.get(kind, functools.partial(AdamW, 0.01, epsilon=1e-3, global_clipnorm=0.5))
    model = tiny_classifier(dropout=0.0, num_layers=1)
    initial = model.get_weights()
    features, y = batch(model, (7, 4, 5, 7, 6, 3)), np.array([0, 1, 2, 2, 1, 0])
    settings = COMPILED if "compiled" in kind else {"run_eagerly": True}
    whole = train(model, make(), features, y)
    model.set_weights(initial)
    model.compile(make(gradient_accumulation_steps=3), **settings)
    model.fit(features, y, batch_size=2, shuffle=False, verbose=0)
    moved = {w.path: array(w) - old for w, old in zip(model.weights, initial, strict=True)}
    assert_close(moved, whole, atol=1e-5)


@pytest.mark.backends("torch")
def test_clipping():
    model = tiny_classifier(dropout=0.0)
    # With an epsilon far above the gradients, Adam's first step is 0.1 times the gradient.
    optimizer = AdamW(
        1e4, epsilon=1e4, bias_correction=False, weight_decay=0.0, global_clipnorm=0.02
    )
    moved = train(model, optimizer, batch(model), Y)
    length = np.sqrt(sum((step**2).sum() for step in moved.values()))
    np.testing.assert_allclose(length, 0.002, rtol=1e-3)


@pytest.mark.backends("torch")
def test_label_smoothing():
    """Keras smooths rows of C numbers; class indices become such rows in one line."""
    model = tiny_classifier(dropout=0.0)
    features, rows = batch(model), np.eye(3, dtype="float32")[Y]
    model.compile(
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
        run_eagerly=True,
    )
    logits = array(model(features)).astype("float64")
    logs = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    expected = -((0.9 * rows + 0.1 / 3) * logs).sum(-1).mean()
    loss, accuracy = model.evaluate(features, rows, verbose=0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(accuracy, (logits.argmax(-1) == Y).mean(), rtol=1e-6)


# === Gradual unfreezing ===


class Movement(keras.callbacks.Callback):
    """Records which parts of the model changed in each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.before = {weight.path: array(weight) for weight in self.model.weights}

    def on_epoch_end(self, epoch, logs=None):
        moved = {
            weight.path.split("/")[0]
            for weight in self.model.weights
            if np.abs(array(weight) - self.before[weight.path]).max() > 0
        }
        self.epochs = [*getattr(self, "epochs", []), moved]


HEAD = {"pooled_dense", "logits"}
EMBEDDINGS = {
    "token_embedding",
    "segment_embedding",
    "position_embedding",
    "embeddings_layer_norm",
}


@pytest.mark.slow_on_tensorflow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize(
    "kind",
    [
        "compiled",
        "keras",
        pytest.param("float16", marks=pytest.mark.slow),
        pytest.param("accumulated", marks=pytest.mark.slow),
    ],
)
def test_gradual_unfreezing(kind):
    model = tiny_classifier(dtype="mixed_float16" if kind == "float16" else None)
    features = batch(model)
    optimizer = {
        "keras": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "accumulated": lambda: AdamW(0.01, gradient_accumulation_steps=2),
    }.get(kind, lambda: AdamW(0.01))()
    model.compile(optimizer, **(COMPILED if kind == "compiled" else {"run_eagerly": True}))
    movement = Movement()
    two = {name: np.concatenate([value] * 2) for name, value in features.items()}
    model.fit(
        two,
        np.concatenate([Y] * 2),
        batch_size=3,
        epochs=5,
        verbose=0,
        callbacks=[GradualUnfreezing(), movement],
    )
    first, second = HEAD | {"transformer_layer_1"}, {"transformer_layer_0"}
    expected = [HEAD, first, first | second, *[first | second | EMBEDDINGS] * 2]
    assert movement.epochs == expected
    # Afterwards all weights train, and the optimizer keeps its state.
    assert int(array(model.optimizer.iterations)) == (5 if kind == "accumulated" else 10)
    assert len(model.trainable_weights) == len(model.weights)
    model.fit(two, np.concatenate([Y] * 2), batch_size=3, verbose=0, callbacks=[movement])
    assert movement.epochs[-1] == expected[-1]


@pytest.mark.backends("torch")
def test_unfreezing_keeps_the_state_of_what_trained():
    """Unfreezing does not reset the optimizer's state of the weights that were already trained."""
    model = tiny_classifier(dropout=0.0)
    initial, features = model.get_weights(), batch(model)

    def slots():
        names = [v.path.split("/")[-1] for v in model.optimizer.variables]
        values = [array(v) for v in model.optimizer.variables]
        return {n: v for n, v in zip(names, values) if n.startswith(("logits", "transformer"))}

    model.compile(AdamW(0.01), run_eagerly=True)
    model.fit(features, Y, epochs=1, verbose=0, callbacks=[GradualUnfreezing()])
    after_one, weights = slots(), model.get_weights()
    assert any(np.abs(v).max() > 0 for n, v in after_one.items() if n.startswith("logits"))
    assert all(np.abs(v).max() == 0 for n, v in after_one.items() if n.startswith("transf"))
    # Training from epoch 1 starts with that state.
    model.fit(features, Y, initial_epoch=1, epochs=2, verbose=0, callbacks=[GradualUnfreezing()])
    moved = {
        w.path: np.abs(array(w) - old).max() for w, old in zip(model.weights, weights, strict=True)
    }
    assert moved["transformer_layer_0/intermediate/kernel"] == 0
    # The first step of Adam moves by the learning rate, whenever it happens.
    assert 0.009 < moved["transformer_layer_1/intermediate/kernel"] < 0.0101
    assert int(array(model.optimizer.iterations)) == 2
    model.set_weights(initial)


@pytest.mark.backends("torch")
def test_unfreezing_leaves_adapters_alone():
    model = tiny_classifier()
    model.backbone.enable_lora(2)
    trained = {weight.path for weight in model.trainable_weights}
    model.compile(run_eagerly=True)
    model.fit(batch(model), Y, epochs=4, verbose=0, callbacks=[GradualUnfreezing(2)])
    assert {weight.path for weight in model.trainable_weights} == trained


@pytest.mark.backends("torch")
def test_unfreezing_refuses_averages():
    model = tiny_classifier()
    model.compile(AdamW(use_ema=True), run_eagerly=True)
    with pytest.raises(ValueError, match="GradualUnfreezing .* use_ema=True"):
        model.fit(batch(model), Y, verbose=0, callbacks=[GradualUnfreezing()])


@pytest.mark.backends("torch")
def test_saved_models_keep_their_optimizer(tmp_path):
    model = tiny_classifier()
    shares = layerwise_learning_rates(model, 0.9)
    model.compile(
        AdamW(LinearDecay(1e-3, 10, 2), no_decay=["bias"], learning_rate_multipliers=shares),
        run_eagerly=True,
    )
    model.train_on_batch(batch(model), Y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert_close(
        [v.value for v in loaded.optimizer.variables],
        [v.value for v in model.optimizer.variables],
        atol=0,
    )
    for one in (model, loaded):
        one.train_on_batch(batch(model), Y)

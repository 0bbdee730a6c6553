"""Each kernel's own form on the running backend against its plain form, gradients too.

What runs on a GPU only runs here on the CPU.
"""

import importlib
import inspect
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.layers import TokenNorm
from kerasbert.layers.embeddings import rotate
from kerasbert.models import BertBackbone, BertPretrainer, BertTextClassifier
from tests.contracts import array, assert_close, tiny_backbone

RANDOM = np.random.default_rng(0)
MASK = (np.arange(6) < np.array([[6], [4]]))[:, None, None]  # (B, 1, 1, T)
OWN = importlib.import_module(f"kerasbert.backend.{backend.name()}")


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


QUERY, KEY, VALUE = normal(2, 6, 3, 8), normal(2, 6, 3, 8), normal(2, 6, 3, 8)
PROJECTED = normal(2, 6, 3 * 24)


def maps(query, key, numbers=np):
    """The formula's, (B, N, T, T)."""
    scores = numbers.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(8)
    odds = numbers.exp(numbers.where(MASK, scores, -1e9))
    return odds / odds.sum(-1, keepdims=True)


@pytest.fixture
def as_on_gpu(monkeypatch):
    if hasattr(OWN, "on_gpu"):
        monkeypatch.setattr(OWN, "on_gpu", lambda: True)


# === The table ===

KERNELS = {name: function for name, function in vars(backend).items() if hasattr(function, "plain")}


@pytest.mark.parametrize("file", ["tensorflow", "jax", "torch", "onnx"])
def test_own_forms_take_the_same_arguments(file):
    module = importlib.import_module(f"kerasbert.backend.{file}")
    own = {name: value for name, value in vars(module).items() if name in KERNELS}
    assert len(own) >= 4
    for name in own.keys() - {"data_parallel"}:
        expected, found = map(inspect.signature, (KERNELS[name].plain, own[name]))
        assert str(expected) == str(found), name
    if file == "onnx":
        assert own == module.KERNELS


def test_others_come_first():
    def own(x, *args, **kwargs):
        return None if kwargs.get("training") else 2 * x

    x = np.ones((1, 4), "float32")
    gamma = beta = np.zeros(4, "float32")
    with backend.using({"norm": own}):
        assert_close(backend.norm(x, gamma, beta, 1e-6), 2 * x)
        assert_close(backend.norm(x, gamma, beta, 1e-6, training=True), 0 * x)
        with backend.using({"norm": backend.norm.plain}):
            assert_close(backend.norm(x, gamma, beta, 1e-6), 0 * x)
        assert_close(backend.norm(x, gamma, beta, 1e-6), 2 * x)
    assert_close(backend.norm(x, gamma, beta, 1e-6), 0 * x)


def value_and_gradients(function, *inputs):
    """What a function gives for arrays, and the gradients of a weighted sum of it.

    On TensorFlow in a graph without XLA, where it has forms of its own.
    """

    def loss(*inputs):
        outputs = function(*inputs)
        weights = ops.convert_to_tensor(RANDOM_WEIGHTS)[: ops.size(outputs)]
        return ops.sum(ops.reshape(outputs, (-1,)) * weights), outputs

    if backend.name() == "jax":
        import jax

        numbers = tuple(range(len(inputs)))
        with keras.StatelessScope():  # Otherwise dropout's seeds would keep traced values.
            # At once: one by one, JAX compiles every operation.
            found = jax.jit(jax.value_and_grad(loss, numbers, has_aux=True))(*inputs)
        (_, outputs), gradients = found
        return [outputs, *gradients]
    if backend.name() == "torch":
        import torch

        inputs = [torch.from_numpy(x.copy()).requires_grad_() for x in inputs]
        total, outputs = loss(*inputs)
        return [outputs.detach(), *torch.autograd.grad(total, inputs)]
    import tensorflow as tf

    @tf.function
    def traced(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total, outputs = loss(*inputs)
        return [outputs, *tape.gradient(total, inputs)]

    return traced(*map(tf.convert_to_tensor, inputs))


RANDOM_WEIGHTS = normal(5000)
X, WEIGHTS, BIAS = normal(2, 5, 16), normal(16, 12), normal(12)
LOGITS, LABELS = 4 * normal(2, 3, 7), RANDOM.integers(0, 7, (2, 3)).astype("int32")


def dense(activation, training=True):
    return lambda kernel, *arrays: kernel(*arrays, activation=activation, training=training)


def attention(mask=None, turn=None, part=0):
    def function(kernel, x):
        tensor = None if mask is None else ops.convert_to_tensor(mask)
        return kernel(x, 3, tensor, turn=turn, maps=part == 1)[part]

    return function


def cross_entropy(kernel, logits):
    return kernel(ops.convert_to_tensor(LABELS), logits)


CASES = {
    "dense": (dense(None), X, WEIGHTS, BIAS),
    "dense, gelu": (dense(keras.activations.gelu), X, WEIGHTS, BIAS),
    "dense, tanh gelu": (dense(backend.gelu_approximate), X, WEIGHTS, BIAS),
    "dense, relu": (dense(keras.activations.relu), X, WEIGHTS, BIAS),
    "dense, no training": (dense(keras.activations.gelu, False), X, WEIGHTS, BIAS),
    "dense, no bias": (dense(keras.activations.gelu), X, WEIGHTS),
    "matmul_transposed": (lambda kernel, x, y: kernel(x, y), X, normal(2, 9, 16)),
    "highest_of_tokens": (lambda kernel, x: kernel(x), X),
    "norm": (lambda kernel, *x: kernel(*x, 1e-12), 3 * X + 1, normal(16), normal(16)),
    "norm, no bias": (lambda kernel, *x: kernel(*x, None, 1e-12), 3 * X + 1, normal(16)),
    "norm, training": (
        lambda kernel, *x: kernel(*x, 1e-12, training=True),
        3 * X + 1,
        normal(16),
        normal(16),
    ),
    "positions": (lambda kernel, x, table: x + kernel(table, 2, x), X, normal(9, 16)),
    "of_tokens": (lambda kernel, x: kernel(x, 3, 24), PROJECTED),
    "attention": (attention(), PROJECTED),
    "attention, mask": (attention(mask=MASK), PROJECTED),
    "attention, odd": (attention(), PROJECTED[:, :5]),
    "attention, rotary": (attention(turn=lambda x: rotate(x, 50.0)), PROJECTED),
    "attention, maps": (attention(MASK, part=1), PROJECTED),
    "cross_entropy": (cross_entropy, LOGITS),
    "cross_entropy, large": (cross_entropy, LOGITS + 1e3),
    "clip_by_global_norm": (
        lambda kernel, x, y: ops.concatenate([ops.reshape(g, (-1,)) for g in kernel([x, y], 1.5)]),
        X,
        WEIGHTS,
    ),
    "clip_by_global_norm, short": (lambda kernel, x: kernel([x, None], 1e3)[0], X),
}


@pytest.mark.parametrize("case", CASES)
def test_the_plain_form(as_on_gpu, case):
    function, *inputs = CASES[case]
    kernel = KERNELS[case.partition(",")[0]]
    both = [
        value_and_gradients(lambda *x, form=form: function(form, *x), *inputs)
        for form in (kernel, kernel.plain)
    ]
    for own, plain in zip(*both, strict=True):
        np.testing.assert_allclose(array(own), array(plain), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("traced", [False, True])
def test_first_choice(traced):
    logits = np.concatenate([LOGITS, np.array([[[1.0, 3, 3, 2, 0, 0, 0]] * 3], "float32")])
    kernel = backend.first_choice
    if traced and backend.name() == "tensorflow":
        import tensorflow as tf

        kernel = tf.function(kernel)
    for form in (kernel, backend.first_choice.plain):
        assert_close(form(ops.convert_to_tensor(logits)), logits.argmax(-1).astype("int32"), 0)


# === Steps of optimizers, which Keras' own form stands beside ===


def adam(variable, gradient, mean, square):
    """The formula, at betas of 0.9 and 0.99, a rate of 0.1 and an epsilon of 1e-3."""
    mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
    return variable - 0.1 * mean / (np.sqrt(square) + 1e-3), mean, square


def state():
    return normal(4, 3), normal(4, 3), normal(4, 3), np.abs(normal(4, 3))


@pytest.mark.backends("tensorflow")
def test_adam_step():
    variable, gradient, mean, square = arrays = state()
    weights = [keras.Variable(x) for x in (variable, mean, square)]
    gradient = ops.convert_to_tensor(gradient)
    assert backend.adam_step(*weights, gradient, 0.9, 0.99, 0.1, 1e-3)
    assert_close(weights, list(adam(*arrays)))


@pytest.mark.backends("torch")
def test_adam_steps():
    import torch

    both = [state(), state()]
    lists = [[torch.from_numpy(x.copy()) for x in xs] for xs in zip(*both, strict=True)]
    variables, gradients, means, squares = lists
    assert backend.adam_steps(variables, gradients, 0.9, 0.99, 0.1, 1e-3, means, squares)
    for number, arrays in enumerate(both):
        assert_close([x[number] for x in (variables, means, squares)], list(adam(*arrays)))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("way", ["one pass", "AMSGrad", "transposed", "GPU's"])
def test_adam_steps_in_one_pass(monkeypatch, way):
    """As by several operations, which take what does not lie in memory as it is read."""
    import torch

    from kerasbert.base import keras_internals

    variable, gradient, mean, square = arrays = [np.float32(x) for x in state()]
    if way == "transposed":
        gradient = np.ascontiguousarray(gradient.T)
    lists = [[torch.from_numpy(x.copy())] for x in (variable, gradient, mean, square)]
    if way == "transposed":
        lists[1] = [lists[1][0].T]
    highest = [torch.full((4, 3), 9.0)] if way == "AMSGrad" else None
    passes = []
    fused = keras_internals.fused_adam()
    counted = lambda *args, **kwargs: passes.append(1) or fused(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(keras_internals, "fused_adam", lambda: counted)
    if way == "GPU's":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    rate, epsilon = torch.tensor(0.1), torch.tensor(1e-3)
    variables, gradients, means, squares = lists
    backend.adam_steps(variables, gradients, 0.9, 0.99, rate, epsilon, means, squares, highest)
    assert len(passes) == (way in ("one pass", "AMSGrad"))
    expected = list(adam(*arrays))
    if way == "AMSGrad":
        expected[0] = variable - 0.1 * expected[1] / 3.001
    np.testing.assert_allclose(array(variables[0]), expected[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(array(means[0]), expected[1], rtol=0, atol=1e-6)


@pytest.mark.backends("torch")
def test_the_norm_of_a_large_table_is_exact():
    import torch

    table, vector = torch.from_numpy(normal(20_000, 64)), torch.tensor(3.0)
    exact = (table.double().square().sum() + 9).sqrt()
    clipped = backend.clip_by_global_norm([table, None, vector], 1.0)
    assert clipped[1] is None
    np.testing.assert_allclose(float(clipped[2]), float(3 / exact), rtol=1e-6)
    kept = backend.clip_by_global_norm([table, vector], 1e6)
    assert kept[0] is table and kept[1] is vector
    endless = backend.clip_by_global_norm([table, vector * np.inf], 1.0)
    assert torch.isnan(endless[0]).all()


@pytest.mark.backends("tensorflow")
def test_decay():
    weights = [keras.Variable(normal(4, 3)) for _ in "ab"]
    expected = [array(weight) * (1 - 0.2 * 0.1) for weight in weights]
    assert backend.decay(weights, 0.2, lambda: 0.1)
    assert_close(weights, expected)


def test_who_has_no_step_says_so():
    assert backend.has("adam_step") == (backend.name() == "tensorflow")
    assert backend.adam_step.plain(*[None] * 8) is False
    assert backend.adam_steps.plain(*[None] * 8) is False
    assert backend.decay.plain([], 0.1, lambda: 0.1) is False


# === Attention and dropout ===


@pytest.mark.backends("jax")
def test_attention_with_dropout_is_the_formula():
    import jax

    def seed():
        return keras.random.SeedGenerator(7)

    keep = OWN.keep_mask(OWN._random_bits(seed()), 0.3, (2, 3, 6, 6))

    def formula(query, key, value):
        kept = jax.numpy.where(keep, maps(query, key, jax.numpy) / 0.7, 0)
        return jax.numpy.einsum("bnts,bsnh->btnh", kept, value)

    def fast(query, key, value):
        return OWN.dropped_attention(query, key, value, MASK, 0.3, seed())

    np.testing.assert_allclose(
        fast(QUERY, KEY, VALUE), formula(QUERY, KEY, VALUE), rtol=0, atol=1e-5
    )
    weights = normal(2, 6, 3, 8)
    both = [
        jax.grad(lambda *x, call=call: (call(*x) * weights).sum(), (0, 1, 2))(QUERY, KEY, VALUE)
        for call in (fast, formula)
    ]
    for gradient, expected in zip(*both, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)


@pytest.mark.backends("jax")
def test_dropped_shares_are_right_and_masks_independent(as_on_gpu):
    seed = keras.random.SeedGenerator(1)
    masks = [np.array(OWN.keep_mask(OWN._random_bits(seed), 0.1, (200, 50, 50))) for _ in "ab"]
    size = masks[0].size
    for mask in masks:
        assert mask.mean() == pytest.approx(0.9, abs=5 * 0.3 / size**0.5)
        for axis in range(3):
            assert mask.mean(axis).std() == pytest.approx(0.3 / mask.shape[axis] ** 0.5, rel=0.1)
    pairs = [(masks[0], masks[1])]
    pairs += [(masks[0].ravel()[:-lag], masks[0].ravel()[lag:]) for lag in (1, 2, 50, 64, 2500)]
    for first, second in pairs:
        together = ((first - 0.9) * (second - 0.9)).mean() / 0.09
        assert abs(together) < 5 / size**0.5
    dropped = backend.dropout(np.ones((200, 500), "float32"), 0.1, seed)
    assert float(dropped.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("form", ["own", "plain"])
def test_dropout(as_on_gpu, form):
    seed = keras.random.SeedGenerator(1)
    dropout = backend.dropout if form == "own" else backend.dropout.plain
    inputs = np.ones((300, 501), "float32")
    outputs, gradient = value_and_gradients(lambda x: dropout(x, 0.1, seed), inputs[:1, :500])
    kept = array(outputs) != 0
    expected = np.where(kept.ravel(), RANDOM_WEIGHTS[: kept.size] / 0.9, 0)
    np.testing.assert_allclose(array(gradient).ravel(), expected, rtol=1e-4)
    outputs = array(dropout(ops.convert_to_tensor(inputs), 0.1, seed))
    np.testing.assert_allclose(outputs[outputs != 0], 1 / 0.9, rtol=1e-4)
    assert (outputs != 0).mean() == pytest.approx(0.9, abs=0.0031)  # Four deviations.
    assert (array(dropout(ops.convert_to_tensor(inputs), 1 - 1e-7, seed)) != 0).mean() < 1e-3


@pytest.mark.backends("torch")
def test_dropout_of_pytorch():
    """Masks of an unseeded layer follow the global generator, in each type and size."""
    import torch

    for size, dtype in ((501, torch.float32), (4, torch.bfloat16), (1, torch.float32)):
        x = torch.ones((300, size), dtype=dtype)
        drawn = []
        for start in (1, 1, 2):
            torch.manual_seed(start)
            drawn.append(backend.dropout(x, 0.1, keras.random.SeedGenerator()))
        assert drawn[0].dtype == dtype and torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
    x = torch.ones((400, 1000), requires_grad=True)
    outputs = backend.dropout(x, 0.1, keras.random.SeedGenerator())
    (gradient,) = torch.autograd.grad(outputs.sum(), x)
    assert torch.equal(gradient, outputs.detach())
    kept = array(outputs) != 0
    np.testing.assert_allclose(array(outputs)[kept], 1 / 0.9, rtol=1e-4)
    assert kept.mean() == pytest.approx(0.9, abs=5 * 0.3 / kept.size**0.5)
    for lag in (1, 2, 3, 4, 1000):
        together = (kept.ravel()[:-lag] - 0.9) * (kept.ravel()[lag:] - 0.9)
        assert abs(together.mean() / 0.09) < 5 / kept.size**0.5
    seeded = keras.random.SeedGenerator(7), keras.random.SeedGenerator(7)
    assert torch.equal(*(backend.dropout(x, 0.1, seed) for seed in seeded))
    assert not backend.dropout(x, 1.0, keras.random.SeedGenerator()).any()


@pytest.mark.backends("torch")
def test_norm_in_bfloat16():
    """No further from float32 than the detour by float32, but for a rounding."""
    import torch

    x, gamma, beta = (torch.from_numpy(a) for a in (3 * X + 1, normal(16), normal(16)))
    exact = backend.norm.plain(x, gamma, beta, 1e-12)
    half = [a.bfloat16() for a in (x, gamma, beta)]
    own, plain = backend.norm(*half, 1e-12), backend.norm.plain(*half, 1e-12)
    assert own.dtype == torch.bfloat16
    errors = [float((y.float() - exact).abs().mean()) for y in (own, plain)]
    assert errors[0] <= 1.02 * errors[1]


@pytest.mark.backends("jax")
def test_the_mask_of_a_fused_kernel_has_a_row_for_each_query():
    assert OWN.full_mask(MASK, 6, 6).shape == (2, 1, 6, 6)
    assert OWN.full_mask(np.ones((2, 1, 4, 6), bool), 4, 6).shape == (2, 1, 4, 6)


@pytest.mark.backends("jax")
def test_positions_for_each_row(as_on_gpu):
    table = normal(9, 16)
    np.testing.assert_array_equal(
        backend.positions(table, 2, X), np.repeat(table[None, 2:7], 2, axis=0)
    )


def test_gradients():
    x = normal(3, 4)
    values, gradient = backend.value_and_gradient(lambda x: ops.sum(x**3, axis=-1), x)
    np.testing.assert_allclose(values, (x**3).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-5)
    with pytest.raises(ValueError, match="no gradients on .*; set KERAS_BACKEND"):
        backend.value_and_gradient.plain(lambda x: x, x)


@pytest.mark.backends("torch")
def test_attention_of_pytorch():
    import torch

    query, key, value, mask = map(torch.from_numpy, (QUERY, KEY, VALUE, MASK))
    expected = np.einsum("bnts,bsnh->btnh", maps(QUERY, KEY), VALUE)
    outputs = array(OWN.fused_attention(query, key, value, mask))
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    keras.utils.set_random_seed(0)
    dropped = [array(OWN.fused_attention(query, key, value, mask, 0.2)) for _ in range(500)]
    assert np.abs(dropped[0] - dropped[1]).max() > 1e-2
    np.testing.assert_allclose(np.mean(dropped, axis=0), expected, rtol=0, atol=0.15)
    nowhere = array(OWN.fused_attention(query, key, value, torch.zeros_like(mask)))
    assert np.isfinite(nowhere).all()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dtype, most", [("float64", 1e-6), ("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("length", [1, 32])
def test_attention_of_few_tokens(dtype, most, length):
    import torch

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    values = [torch.randn(3, length, 2, 4, dtype=kind, requires_grad=True) for _ in range(3)]
    masks = torch.rand(3, 1, length, length) < 0.5, torch.zeros(3, 1, 1, length).bool(), None
    for mask in masks:
        few = OWN.short_attention(*values, mask)
        assert few.dtype == kind
        if mask is not None and not mask.any(-1).all():
            assert few.isfinite().all()  # A row that may look nowhere.
            continue
        many = OWN.fused_attention(*values, mask)
        gradients = [torch.autograd.grad(x.square().sum(), values) for x in (few, many)]
        for one, other in zip((few, *gradients[0]), (many, *gradients[1])):
            torch.testing.assert_close(one, other, rtol=most, atol=10 * most)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "length, dtype, trains, by",
    [
        (32, "float32", True, "short_attention"),
        (33, "float32", True, "fused_attention"),
        (128, "bfloat16", True, "short_attention"),
        (128, "bfloat16", False, "fused_attention"),
        (129, "bfloat16", True, "fused_attention"),
    ],
)
def test_attention_by_length(length, dtype, trains, by, monkeypatch):
    import torch

    called = []
    for name in ("short_attention", "fused_attention"):
        monkeypatch.setattr(OWN, name, lambda query, *rest, name=name: called.append(name))
    values = torch.randn(1, length, 2, 4, dtype=getattr(torch, dtype), requires_grad=True)
    with torch.set_grad_enabled(trains):
        OWN.heads_attention(values, values, values)
    assert called == [by]


# === Whole models ===


def trained(dropout, remat=False):
    """Losses of two epochs of a tiny model, and its logits before them."""
    keras.utils.set_random_seed(0)
    with keras.RematScope("full" if remat else None):
        model = BertPretrainer(tiny_backbone(dropout=dropout))
    model.compile(keras.optimizers.SGD(0.1), jit_compile=True)
    random = np.random.default_rng(0)
    x = {
        "token_ids": random.integers(5, 20, (8, 12)).astype("int32"),
        "segment_ids": random.integers(0, 2, (8, 12)).astype("int32"),
        "padding_mask": (np.arange(12) < random.integers(5, 13, (8, 1))).astype("int32"),
        "mask_positions": random.integers(0, 5, (8, 3)).astype("int32"),
    }
    y = {"mlm_logits": random.integers(5, 20, (8, 3)), "nsp_logits": random.integers(0, 2, 8)}
    logits = model.predict(x, verbose=0)["mlm_logits"]
    losses = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    return logits, losses


@pytest.mark.backends("jax")
def test_a_model_trains_as_on_a_cpu(as_on_gpu, monkeypatch):
    logits, losses = trained(0.0)
    dropped = trained(0.1)[1]
    assert trained(0.1, remat=True)[1] == pytest.approx(dropped)
    monkeypatch.undo()
    expected, expected_losses = trained(0.0)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert losses == pytest.approx(expected_losses, abs=1e-5)
    assert dropped != pytest.approx(losses, abs=1e-4) and dropped == pytest.approx(losses, abs=0.5)


@pytest.mark.backends("tensorflow")  # Which fuses it.
@pytest.mark.parametrize("shape", [(3, 5, 16), (1, 1, 16), (0, 5, 16), (2, 0, 16)])
def test_fused_norm(shape):
    import tensorflow as tf

    norm = TokenNorm(epsilon=1e-12)
    norm.build((None, None, 16))
    random = np.random.default_rng(0)
    for weight in norm.weights:
        weight.assign(random.normal(size=16))
    x = tf.constant(random.normal(3, 2, shape), tf.float32)
    scale = tf.constant(random.normal(size=shape), tf.float32)

    def value_and_gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x)
            loss = tf.reduce_sum(y * scale)
        return (y, *tape.gradient(loss, [x, norm.gamma.value, norm.beta.value]))

    traced = tf.function(value_and_gradients)
    compiled = tf.function(value_and_gradients, jit_compile=True)

    def operations(function):
        graph = function.get_concrete_function(x).graph.as_graph_def()
        return {node.op for node in graph.node}

    assert "FusedBatchNormV3" in operations(traced)
    assert "FusedBatchNormV3" not in operations(compiled)
    expected = value_and_gradients(x)
    assert_close(traced(x), expected, atol=2e-5)
    assert_close(compiled(x), expected, atol=2e-5)


# === Compiling ===

TRAIN = """
import jax, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from tests.contracts import batch, tiny_classifier
model = tiny_classifier()
model.fit(batch(model), np.zeros(3, "int32"), verbose=0)
print(sum(name.endswith("/cache_hits") for name in hits))
"""


@pytest.mark.backends("jax")
def test_other_processes_find_what_was_compiled(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name[:4] != "JAX_"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [int(number) for number in done.stdout.split()]

    folder = tmp_path / "kerasbert" / "jax" / OWN._processor()
    assert run()[0] == 0
    assert list(folder.glob("jit_train_step-*")) and folder.stat().st_mode & 0o777 == 0o700
    assert run()[0] > 0


@pytest.mark.backends("jax")
@pytest.mark.parametrize("enabled, given", [(False, None), (True, "own"), (True, None)])
def test_who_set_the_cache_of_jax_keeps_it(tmp_path, monkeypatch, enabled, given):
    import jax

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"jax_enable_compilation_cache": enabled, "jax_compilation_cache_dir": given}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        OWN.keep_compiled.__wrapped__()
        folder = tmp_path / "kerasbert" / "jax" / OWN._processor()
        is_ours = enabled and given is None
        assert folder.exists() == is_ours
        assert jax.config.jax_compilation_cache_dir == (str(folder) if is_ours else given)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.mark.backends("jax")
def test_what_was_not_read_for_longest_goes(tmp_path):
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(b"0" * 10)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    OWN._leave(25, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"new", "older"}
    OWN._leave(0, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.backends("torch")
@pytest.mark.parametrize("trained", range(3))
def test_dense_has_the_gradient_of_what_is_trained(trained):
    """Also of a bias alone, where inputs and weights are frozen."""
    shapes = ((4, 3), (3, 5), (5,))
    tensors = [ops.convert_to_tensor(normal(*shape)) for shape in shapes]
    tensors[trained].requires_grad_()
    found = []
    for dense in (backend.dense, backend.dense.plain):
        ops.sum(ops.square(dense(*tensors))).backward()
        found.append(array(tensors[trained].grad))
        tensors[trained].grad = None
    assert_close(*found)


@pytest.mark.backends("torch")
def test_loaded_weights_lie_in_rows():
    """As their gradients do: the pass over all of them goes through memory as it lies."""
    model = BertTextClassifier.from_preset("bert_tiny_demo_en_uncased", num_classes=2)
    assert all(variable.value.is_contiguous() for variable in model.variables)


@pytest.mark.backends("tensorflow")
def test_a_few_rows_have_one_graph():
    """For all sizes; more rows run as Keras runs them, and so does what needs to know sizes."""
    encoder = BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    model = BertTextClassifier(encoder, num_classes=2)
    sized = BertTextClassifier(encoder, num_classes=2)
    sized.predict_step = lambda data: [len(range(data[0]["token_ids"].shape[1]))]
    for rows, length in ((1, 3), (8, 40), (9, 5), (1, 1)):
        features = {
            "token_ids": np.ones((rows, length), "int32"),
            "padding_mask": np.ones((rows, length), "bool"),
            "segment_ids": np.zeros((rows, length), "int32"),
        }
        found = OWN.predict_batch(model, features)
        assert (found is None) == (rows > OWN.FEW)
        if found is not None:
            expected = backend.predict_batch.plain(model, features)
            np.testing.assert_allclose(found, expected, atol=1e-6)
        assert OWN.predict_batch(sized, features) is None
    assert len(backend.beside_prediction(model, None)._made) == 1


@pytest.mark.backends("torch")
def test_one_graph_for_all_sizes():
    """Of rows and tokens, also where one of them is as large as something else is."""
    encoder = BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    model = BertTextClassifier(encoder, num_classes=2)
    random = np.random.default_rng(0)
    graphs = []
    for rows, length in ((1, 512), (1, 3), (8, 8), (2, 16), (5, 512), (1, 8)):
        features = {
            "token_ids": random.integers(1, 20, (rows, length)).astype("int32"),
            "padding_mask": np.ones((rows, length), "bool"),
            "segment_ids": np.zeros((rows, length), "int32"),
        }
        expected = backend.predict_batch.plain(model, features)
        for _ in range(OWN.OFTEN):
            found = backend.predict_batch(model, features)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        graphs.append(len(backend.beside_prediction(model, None)._made))
    # For a single row and for more, each for few tokens and for many.
    assert graphs == [1, 2, 3, 3, 4, 4]
    encoder.token_embedding.embeddings.assign(np.zeros((20, 8)))
    changed = backend.predict_batch(model, features)
    assert not np.allclose(changed, expected)
    np.testing.assert_allclose(changed, backend.predict_batch.plain(model, features), atol=1e-6)

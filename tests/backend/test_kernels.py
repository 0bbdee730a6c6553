"""Kernels: the running backend's own forms and their gradients, compared with the plain forms.

Forms that are used only on a GPU run here on the CPU.
"""

import importlib
import inspect

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.backend import attention as attention_kernels
from kerasbert.backend import layers, losses, optimizers
from kerasbert.layers.embeddings import rotate
from tests.contracts import array, assert_close

RANDOM = np.random.default_rng(0)
MASK = (np.arange(6) < np.array([[6], [4]]))[:, None, None]  # (B, 1, 1, T)
OWN = importlib.import_module(f"kerasbert.backend.{backend.name()}_kernels")


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


QUERY, KEY, VALUE = normal(2, 6, 3, 8), normal(2, 6, 3, 8), normal(2, 6, 3, 8)
PROJECTED = normal(2, 6, 3 * 24)
RANDOM_WEIGHTS = normal(5000)
X, WEIGHTS, BIAS = normal(2, 5, 16), normal(16, 12), normal(12)
LOGITS, LABELS = 4 * normal(2, 3, 7), RANDOM.integers(0, 7, (2, 3)).astype("int32")


def value_and_gradients(function, *inputs):
    """Return a function's outputs for arrays, and the gradients of a weighted sum of them.

    On TensorFlow, the function runs in a graph without XLA, because some kernels have a separate
    form for such graphs.
    """

    def loss(*inputs):
        outputs = function(*inputs)
        weights = ops.convert_to_tensor(RANDOM_WEIGHTS)[: ops.size(outputs)]
        return ops.sum(ops.reshape(outputs, (-1,)) * weights), outputs

    if backend.name() == "jax":
        import jax

        numbers = tuple(range(len(inputs)))
        with keras.StatelessScope():  # Otherwise dropout's seeds would keep traced values.
            # This is one compiled function, because JAX would otherwise compile each operation
            # alone.
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


# === The table ===

KERNELS = {
    name: function
    for module in (backend, attention_kernels, layers, losses, optimizers)
    for name, function in vars(module).items()
    if hasattr(function, "plain")
}


@pytest.mark.parametrize("file", [f"{backend.name()}_kernels", "onnx"])
def test_own_forms_take_the_same_arguments(file):
    module = importlib.import_module(f"kerasbert.backend.{file}")
    own = {name: value for name, value in vars(module).items() if name in KERNELS}
    assert len(own) >= 4
    assert not [name for name in own if hasattr(own[name], "plain")]  # It would call itself.
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
        assert_close(layers.norm(x, gamma, beta, 1e-6), 2 * x)
        assert_close(layers.norm(x, gamma, beta, 1e-6, training=True), 0 * x)
        with backend.using({"norm": layers.norm.plain}):
            assert_close(layers.norm(x, gamma, beta, 1e-6), 0 * x)
        assert_close(layers.norm(x, gamma, beta, 1e-6), 2 * x)
    assert_close(layers.norm(x, gamma, beta, 1e-6), 0 * x)


def dense(activation, training=True):
    return lambda kernel, *arrays: kernel(*arrays, activation=activation, training=training)


def attention(mask=None, turn=None, part=0):
    def function(kernel, x, bias=None):
        tensor = None if mask is None else ops.convert_to_tensor(mask)
        return kernel(x, 3, tensor, turn=turn, maps=part == 1, bias=bias)[part]

    return function


def heads_attention(kernel, query, key, value, bias):
    """Call attention with fewer queries than keys, as when a text is continued."""
    mask = ops.convert_to_tensor(MASK)
    return kernel(query[:, :4], key, value, mask, bias=bias)[0]


def cross_entropy(kernel, logits):
    return kernel(ops.convert_to_tensor(LABELS), logits)


def scan(reverse):
    """Run a recurrence whose outputs depend on the order of the slices."""

    def step(carry, x):
        now = ops.tanh(carry * x[0] + x[1])
        return now, carry + now

    return lambda kernel, carry, *xs: kernel(step, carry, list(xs), reverse=reverse)


def scan_of_tuples(kernel, carry, x):
    """Carry two tensors, and return outputs of other shapes."""

    def step(carry, x):
        now = ops.tanh(carry[0] * x[0])
        return (now, carry[1] + now), (now[:, :1], now + carry[1])

    like = (carry[:, :1], carry)
    found = kernel(step, (carry, carry), [x], like=like)
    return ops.concatenate(list(found), axis=-1)


CASES = {
    "dense": (dense(None), X, WEIGHTS, BIAS),
    "dense, gelu": (dense(keras.activations.gelu), X, WEIGHTS, BIAS),
    "dense, tanh gelu": (dense(layers.gelu_approximate), X, WEIGHTS, BIAS),
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
    "attention, bias": (attention(), PROJECTED, 2 * normal(1, 3, 6, 6)),
    "attention, bias of each row": (attention(MASK), PROJECTED, 2 * normal(2, 3, 6, 6)),
    "attention, bias of keys": (attention(MASK), PROJECTED, 2 * normal(1, 3, 1, 6)),
    "attention, bias of all heads": (attention(MASK), PROJECTED, 2 * normal(2, 1, 6, 6)),
    "attention, bias, odd": (attention(), PROJECTED[:, :5], 2 * normal(1, 3, 5, 5)),
    "attention, bias, rotary": (
        attention(MASK, turn=lambda x: rotate(x, 50.0)),
        PROJECTED,
        2 * normal(1, 3, 6, 6),
    ),
    "attention, bias, maps": (attention(MASK, part=1), PROJECTED, 2 * normal(1, 3, 6, 6)),
    "heads_attention, bias": (heads_attention, QUERY, KEY, VALUE, 2 * normal(1, 3, 4, 6)),
    "scan": (scan(False), normal(2, 3), normal(5, 2, 3), normal(5, 2, 3)),
    "scan, reverse": (scan(True), normal(2, 3), normal(5, 2, 3), normal(5, 2, 3)),
    "scan, tuples": (scan_of_tuples, normal(2, 3), normal(5, 2, 3)),
    "cross_entropy": (cross_entropy, LOGITS),
    "cross_entropy, large": (cross_entropy, LOGITS + 1e3),
    "clip_by_global_norm": (
        lambda kernel, x, y: ops.concatenate([ops.reshape(g, (-1,)) for g in kernel([x, y], 1.5)]),
        X,
        WEIGHTS,
    ),
    "clip_by_global_norm, short": (lambda kernel, x: kernel([x, None], 1e3)[0], X),
}


@pytest.mark.slow_on_tensorflow
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

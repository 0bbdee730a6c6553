"""Attention in long texts: local layers compute it in blocks, global layers for some queries at a
time.

B batch, T tokens, C blocks of W tokens, each of which attends to K tokens.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.backend import attention as kernels
from kerasbert.layers import SelfAttention
from kerasbert.layers.embeddings import rotate
from tests.backend.test_kernels import normal, value_and_gradients
from tests.contracts import array, arrays, assert_close, tiny_backbone

HEADS, WIDTH = 2, 4


def case(seed):
    """Return a window, whether attention is causal, and a mask (3, T) with padding anywhere."""
    random = np.random.default_rng(seed)
    window, length = int(random.integers(1, 10)), int(random.integers(1, 70))
    mask = np.ones((3, length), "int32")
    mask[0, : length // 3] = 0  # Padding at the start.
    mask[1] = random.integers(0, 2, length)
    mask[2] = 0 if seed % 2 else 1  # A row that is only padding.
    return window, bool(random.integers(2)), mask


def in_place(mask, length):
    """Turn a mask in blocks (B, C, 1, W, K) into a dense mask (B, T, T)."""
    batch, count, _, block, seen = mask.shape
    places = np.zeros((batch, count * block, length), bool)
    for row, number, _, query, key in np.argwhere(mask):
        position = number * block + key - (seen - block) // 2
        assert 0 <= position < length  # No token attends to the padding of the last block.
        places[row, number * block + query, position] = True
    return places[:, :length]


@pytest.mark.parametrize("seed", range(12))
def test_the_mask(seed):
    window, is_causal, padding = case(seed)
    expected = array(kernels.token_mask(padding, is_causal, window))
    mask = array(kernels.local_mask(padding, is_causal, window))
    length = padding.shape[1]
    if length <= kernels.SHORT * window:
        assert_close(mask, expected, 0)
    else:
        # There are no more blocks than the text needs.
        assert mask.shape[3] == window and window * (mask.shape[1] - 1) < length
        np.testing.assert_array_equal(in_place(mask, length), expected[:, 0])


def attention(form, mask, padding, dtype="float32", turn=None, place=lambda bias: bias):
    """Return a function of arrays that computes attention; it sets outputs at padding, which are
    undefined, to 0.

    `place` converts a bias by distance to a bias on all scores.
    """
    real = ops.cast(padding, "float32")[..., None, None]

    def function(projected, *biases):
        given = {"bias": ops.cast(place(biases[0]), dtype)} if biases else {}
        outputs, _ = form(ops.cast(projected, dtype), HEADS, mask, turn=turn, **given)
        return ops.cast(outputs, "float32") * real

    return function


def by_distance(queries, keys):
    """Return a function that turns biases by distance (N, 200) into biases of position pairs."""

    def place(bias):
        distance = np.asarray(queries)[:, None] - np.asarray(keys)[None]
        return ops.take(bias, np.clip(distance + 100, 0, 199), axis=1)

    return place


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize(
    "seed, dtype", [*((seed, "float32") for seed in range(4)), (0, "bfloat16"), (1, "bfloat16")]
)
def test_blocks_are_the_dense_form(monkeypatch, seed, dtype):
    # Use blocks even for texts that are shorter than a block.
    monkeypatch.setattr(kernels, "SHORT", 0)
    window, is_causal, padding = case(seed)
    projected = normal(*padding.shape, 3 * HEADS * WIDTH)
    mask = kernels.local_mask(padding, is_causal, window)
    assert len(mask.shape) == 5

    def turn(x):
        return rotate(x, 50.0)

    found = value_and_gradients(
        attention(kernels.local_attention, mask, padding, dtype, turn), projected
    )
    mask = kernels.token_mask(padding, is_causal, window)
    expected = value_and_gradients(
        attention(kernels.attention.plain, mask, padding, turn=turn), projected
    )
    for own, dense in zip(found, expected, strict=True):
        assert_close(own, dense, 1e-5 if dtype == "float32" else 0.1)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("each", [False, True])
def test_blocks_with_a_bias_are_the_dense_form(monkeypatch, seed, each):
    """A bias by distance may be shared by all blocks, or each block or text may have its own."""
    monkeypatch.setattr(kernels, "SHORT", 0)
    window, is_causal, padding = case(seed)
    length = padding.shape[1]
    inputs = normal(*padding.shape, 3 * HEADS * WIDTH), normal(HEADS, 200)
    mask = kernels.local_mask(padding, is_causal, window)
    _, count, _, block, seen = mask.shape
    one = by_distance(range(block), np.arange(seen) - (seen - block) // 2)

    def in_blocks(bias):
        bias = one(bias)[None, None]
        return ops.repeat(bias, count, axis=1) if each else bias

    found = value_and_gradients(
        attention(kernels.local_attention, mask, padding, place=in_blocks), *inputs
    )
    dense = by_distance(range(length), range(length))
    mask = kernels.token_mask(padding, is_causal, window)
    expected = value_and_gradients(
        attention(kernels.attention.plain, mask, padding, place=lambda x: dense(x)[None]), *inputs
    )
    for own, other in zip(found, expected, strict=True):
        assert_close(own, other, 2e-5)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("shape", [(1, HEADS, 29, 29), (3, 1, 29, 29), (1, HEADS, 1, 29)])
@pytest.mark.parametrize("rows", ["none", "padding", "causal"])
def test_turns_with_a_bias_are_the_formula(monkeypatch, rows, shape):
    padding = np.ones((3, 29), "int32")
    padding[0, :5] = padding[1, 11:] = 0
    mask = None if rows == "none" else kernels.token_mask(padding, rows == "causal")
    inputs = normal(3, 29, 3 * HEADS * WIDTH), normal(*shape)
    padding = padding if rows != "none" else np.ones_like(padding)
    expected = value_and_gradients(attention(kernels.attention.plain, mask, padding), *inputs)
    monkeypatch.setattr(kernels, "LONG", 20)
    monkeypatch.setattr(kernels, "TURN", 8)
    for form in (kernels.attention, kernels.attention.plain):
        found = value_and_gradients(attention(form, mask, padding), *inputs)
        for own, dense in zip(found, expected, strict=True):
            assert_close(own, dense, 2e-5)


@pytest.mark.slow_on_tensorflow
@pytest.mark.parametrize("rows", ["none", "padding", "causal"])
def test_turns_are_the_formula(monkeypatch, rows):
    monkeypatch.setattr(kernels, "LONG", 20)
    monkeypatch.setattr(kernels, "TURN", 8)
    padding = np.ones((3, 29), "int32")
    padding[0, :5] = padding[1, 11:] = padding[2] = 0
    mask = None if rows == "none" else kernels.token_mask(padding, rows == "causal")
    padding = padding if rows != "none" else np.ones_like(padding)
    projected = normal(3, 29, 3 * HEADS * WIDTH)
    found = value_and_gradients(attention(kernels.attention.plain, mask, padding), projected)
    monkeypatch.undo()
    expected = value_and_gradients(attention(kernels.attention.plain, mask, padding), projected)
    for own, dense in zip(found, expected, strict=True):
        assert_close(own, dense, 1e-5)


def test_dropout():
    layer = SelfAttention(num_heads=HEADS, dropout=0.5)
    layer.build((None, None, 8))
    kernel, bias, out_kernel, out_bias = layer.get_weights()
    # Each token has the value 1, so an output is the sum of the weights that dropout kept.
    bias[16:], kernel[:, 16:] = 1, 0
    layer.set_weights([kernel, bias, np.eye(8), 0 * out_bias])
    mask = kernels.local_mask(np.ones((3, 300), "int32"), False, 8)
    outputs = array(layer(normal(3, 300, 8), attention_mask=mask, training=True))
    assert outputs.mean() == pytest.approx(1, abs=0.05) and outputs.std() > 0.1
    assert_close(layer(normal(3, 300, 8), attention_mask=mask), np.ones((3, 300, 8)))


# === Whole encoders ===


def long_batch(length=41):
    random = np.random.default_rng(0)
    padding = np.ones((3, length), "int32")
    padding[0, 20:] = padding[1, :6] = padding[2, 9:14] = 0
    return {
        "token_ids": random.integers(0, 30, (3, length)).astype("int32"),
        "padding_mask": padding,
    }


@pytest.fixture
def in_turns(monkeypatch):
    monkeypatch.setattr(kernels, "LONG", 20)
    monkeypatch.setattr(kernels, "TURN", 8)


@pytest.fixture
def blocks(monkeypatch):
    """Record the sizes of masks in blocks."""
    sizes, original = [], kernels.local_attention

    def spy(projected, num_heads, mask, **kwargs):
        sizes.append(tuple(mask.shape))
        return original(projected, num_heads, mask, **kwargs)

    monkeypatch.setattr("kerasbert.layers.attention.local_attention", spy)
    return sizes


def test_an_encoder_is_as_with_maps(in_turns, blocks):
    backbone = tiny_backbone("modernbert", max_sequence_length=64)
    features = long_batch()
    found = backbone(features)["sequence_output"]
    assert blocks == 2 * [(3, 11, 1, 4, 8)]  # Layers 1 and 2 of 4.
    outputs = arrays(backbone.feature_model(output_attentions=True)(features))
    assert len(blocks) == 2 and outputs["attentions"][1].shape == (3, 2, 41, 41)
    real = features["padding_mask"] == 1
    assert_close(array(found)[real], outputs["sequence_output"][real])


@pytest.mark.slow_on_tensorflow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("jit_compile", "lengths"), [(False, (41, 40, 21, 20, 13, 12, 3)), (True, (41, 11))]
)
def test_a_length_that_only_the_graph_knows(in_turns, blocks, jit_compile, lengths):
    import tensorflow as tf

    backbone = tiny_backbone("modernbert", max_sequence_length=64)
    weights = backbone.trainable_weights[2:]  # Without embeddings, whose gradients are sparse.

    def step(features):
        with tf.GradientTape() as tape:
            outputs = backbone(features)["sequence_output"]
            outputs *= tf.cast(features["padding_mask"], tf.float32)[..., None]
            loss = tf.reduce_sum(outputs * tf.range(16.0))
        return [outputs, *tape.gradient(loss, weights)]

    specs = {name: tf.TensorSpec((None, None), tf.int32, name) for name in long_batch()}
    graph = tf.function(step, input_signature=[specs], jit_compile=jit_compile)
    for length in lengths:
        features = {name: x[:, :length] for name, x in long_batch().items()}
        found = graph(features)
        expected = step({name: tf.constant(x) for name, x in features.items()})
        for own, eager in zip(found, expected, strict=True):
            np.testing.assert_allclose(array(own), array(eager), rtol=1e-4, atol=2e-4)
    assert (None, None, 1, None, None) in blocks


# === Memory ===


def largest(function, x):
    """Return the number of elements of the largest tensor in a function and its gradient."""
    if backend.name() == "jax":
        import jax
        from jax.extend.core import jaxprs_in_params

        def found(program):
            for equation in program.eqns:
                yield from (int(np.prod(variable.aval.shape)) for variable in equation.outvars)
                for inner in jaxprs_in_params(equation.params):
                    yield from found(inner)

        return max(found(jax.make_jaxpr(jax.grad(lambda x: ops.sum(function(x))))(x).jaxpr))
    if backend.name() == "torch":
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
                outputs = operation(*arguments, **(keywords or {}))
                for tensor in keras.tree.flatten(outputs):
                    counts.append(tensor.numel() if hasattr(tensor, "numel") else 0)
                return outputs

        counts, x = [], torch.from_numpy(x).requires_grad_()
        with Watch():
            torch.autograd.grad(ops.sum(function(x)), x)
        return max(counts)
    import tensorflow as tf

    @tf.function
    def traced(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x))
        return tape.gradient(total, x)

    operations = traced.get_concrete_function(tf.constant(x)).graph.get_operations()
    return max(y.shape.num_elements() or 0 for each in operations for y in each.outputs)


def test_memory_is_linear_in_the_length():
    length, window = 1024, 8
    padding = np.ones((1, length), "int32")
    projected = normal(1, length, 3 * HEADS * WIDTH)

    def by_blocks(x):
        mask = kernels.local_mask(padding, False, window)
        return kernels.local_attention(x, HEADS, mask)[0]

    def dense(x):
        return kernels.attention(x, HEADS, kernels.token_mask(padding, False, window))[0]

    assert largest(dense, projected) >= length**2
    # The attention weights of each head, including those of a partly filled block.
    assert largest(by_blocks, projected) <= HEADS * (length + window) * 2 * window

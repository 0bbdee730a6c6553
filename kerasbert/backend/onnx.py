"""Kernels and converters for ONNX export, which runtimes recognize and fuse.

`KERNELS` replace TensorFlow's while it traces; `HANDLERS` turn the operations into ONNX operators
in tf2onnx. See `kerasbert.backend` for the arguments.
"""

import numpy as np
from keras import ops

from kerasbert.backend import attention as plain
from kerasbert.backend import layers
from kerasbert.backend.tensorflow import tf


def attention(
    projected, num_heads, mask=None, turn=None, dropout=0.0, seed=None, maps=False, bias=None
):
    """Compute attention for texts of any length without branches or loops."""
    if turn is None:
        heads = plain.split_at_once(projected, num_heads)
    else:
        heads = plain.split_heads(projected, num_heads, turn)
        heads = (ops.transpose(x, (0, 2, 1, 3)) for x in heads)
    return plain.attend(*heads, mask, dropout, seed, bias)


def dense(inputs, weights, bias=None, activation=None, training=False):
    """Compute a dense layer without reshapes.

    ONNX Runtime fuses bias, GELU, residual and norm only if no reshape separates them.
    """
    product = tf.raw_ops.BatchMatMulV2(x=inputs, y=tf.convert_to_tensor(weights))
    outputs = layers.with_bias(product, bias)
    return outputs if activation is None else activation(outputs)


def positions(table, offset, inputs):
    """Return position embeddings for each row of the batch, (B, T, D).

    From a slice of the table, runtimes could not infer the number of positions, and would fuse
    less.
    """
    one = tf.cast(tf.equal(inputs[..., 0], inputs[..., 0]), tf.int32)
    place = tf.cumsum(one, axis=1) + (offset - 1)
    return tf.gather(tf.convert_to_tensor(table), place)


def local_mask(padding_mask, is_causal, window):
    """Return `token_mask` for any length, since runtimes do not recognize attention in blocks."""
    return plain.token_mask(padding_mask, is_causal, window)


def of_tokens(x, *sizes):
    """Reshape, and mark the result with `ensure_shape` for `_to_reshape`."""
    outputs = layers.of_tokens.plain(x, *sizes)
    if 1 in (*x.shape[2:], *sizes):
        # tf2onnx drops transposes of size-1 axes, which shifts others.
        return outputs
    return tf.ensure_shape(outputs, [None, None, *sizes])


def _to_reshape(graph, node, name, arguments):
    """Convert the mark of `of_tokens` to a reshape that keeps the first two axes.

    Unlike TensorFlow, ONNX writes these as zeros, from which runtimes infer shapes.
    """
    reshape, shape = node.inputs[0], graph.get_shape(node.output[0])
    sizes = graph.make_const(name + "_sizes", np.array([0, 0, *shape[2:]], "int64"))
    made = graph.make_node(
        "Reshape",
        [reshape.input[0], sizes.output[0]],
        shapes=[shape],
        dtypes=[graph.get_dtype(node.output[0])],
    )
    graph.replace_all_inputs(node.output[0], made.output[0])
    graph.remove_node(node.name)


def norm(x, gamma, beta, epsilon, training=False):
    """Represent layer normalization by a batch normalization, replaced later.

    tf2onnx has no layer normalization, and runtimes do not recognize its converted formula.
    """
    if len(x.shape) == 2:
        return norm(x[:, None], gamma, beta, epsilon)[:, 0]
    beta = tf.zeros_like(gamma) if beta is None else beta
    outputs, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.expand_dims(x, 1),  # (B, 1, T, D)
        scale=gamma,
        offset=beta,
        mean=tf.zeros_like(gamma),
        variance=tf.ones_like(gamma),
        epsilon=epsilon,
        is_training=False,
    )
    return tf.squeeze(outputs, 1)


def _to_layer_normalization(graph, node, name, arguments):
    """Convert the batch normalization of `norm` and the two ops around it to LayerNormalization."""
    before, (after,) = node.inputs[0], graph.find_output_consumers(node.output[0])
    made = graph.make_node(
        "LayerNormalization",
        [before.input[0], *node.input[1:3]],
        attr={"axis": -1, "epsilon": node.get_attr_value("epsilon")},
        shapes=[graph.get_shape(after.output[0])],
        dtypes=[graph.get_dtype(after.output[0])],
    )
    # The last op stays, because tf2onnx still visits it.
    graph.replace_all_inputs(after.output[0], made.output[0])
    graph.replace_all_inputs(node.output[0], made.output[0])
    graph.remove_node(node.name)


def _to_erf(graph, node, name, arguments):
    """Convert GELU's erfc to the form x / 2 * (1 + erf(x / sqrt(2))) that runtimes recognize.

    TensorFlow computes the factor as erfc(-x * sqrt(1 / 2)); ONNX has no erfc.
    """
    product, dtype = node.inputs[0], graph.get_dtype(node.output[0])
    shape = graph.get_shape(node.output[0])
    (factor,) = [x.get_tensor_value(as_list=False) for x in product.inputs if x.is_const()]
    (x,) = [name for name, made in zip(product.input, product.inputs) if not made.is_const()]
    before = graph.get_node_by_output(x)
    if before.type == "Neg":
        x, factor = before.input[0], -factor

    def make(operation, *inputs):
        return graph.make_node(operation, inputs, shapes=[shape], dtypes=[dtype]).output[0]

    divisor = graph.make_const(name + "_divisor", -1 / factor).output[0]
    one = graph.make_const(name + "_one", np.ones_like(factor)).output[0]
    bracket = make("Add", make("Erf", make("Div", x, divisor)), one)
    graph.replace_all_inputs(node.output[0], bracket)
    graph.remove_node(node.name)


def _to_log(graph, node, name, arguments):
    """Convert log1p to log(1 + x), since ONNX has no log1p."""
    shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    one = graph.make_const(name + "_one", np.ones((), "float32")).output[0]
    inputs = [node.input[0], one]
    for operation in ("Add", "Log"):
        made = graph.make_node(operation, inputs, shapes=[shape], dtypes=[dtype])
        inputs = made.output
    graph.replace_all_inputs(node.output[0], made.output[0])
    graph.remove_node(node.name)


def _to_where(graph, node, name, arguments):
    """Convert SelectV2 to Where.

    tf2onnx would multiply by 0 and 1, which turns infinity into NaN.
    """
    node.type = "Where"


OF_ANY_LENGTH = {"attention": attention, "local_mask": local_mask}
KERNELS = {
    **OF_ANY_LENGTH,
    "dense": dense,
    "norm": norm,
    "of_tokens": of_tokens,
    "positions": positions,
}
HANDLERS = {
    "EnsureShape": (_to_reshape, []),
    "Erfc": (_to_erf, []),
    "FusedBatchNormV3": (_to_layer_normalization, []),
    "Log1p": (_to_log, []),
    "SelectV2": (_to_where, []),
}

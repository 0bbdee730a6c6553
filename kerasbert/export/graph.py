"""The TensorFlow process of `export_onnx` and the like: rebuild the model, trace it, convert it.

    python -m kerasbert.export.graph FOLDER

FOLDER holds what the other process left: `preset/` and `job.json`. The result is
`FOLDER/files/model.onnx` or `FOLDER/files/model.tflite`.
"""

import json
import os
import sys
from unittest import mock

import numpy as np

from kerasbert._errors import first_line
from kerasbert.backend.tensorflow import tf_modules
from kerasbert.export.graphs import axes, input_type, run_model
from kerasbert.export.serving import end_with_parent, load
from kerasbert.layers import attention, dense, embeddings, norm

OPSET = 18
# A file of protocol buffers holds 2 GiB; the graph is written more than once on the way.
MOST_BYTES = 2**31 - 2**24


def main(folder):
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        job = json.load(file)
    model, _ = load(os.path.join(folder, "preset"), job["class"])
    size = sum(4 * weight.value.shape.num_elements() for weight in model.weights)
    if size > MOST_BYTES:
        raise ValueError(
            f"The weights are {size:,} bytes, and a file of this format holds {MOST_BYTES:,}; "
            "export_serving writes models of any size."
        )
    to_file = {"onnx": write_onnx, "litert": write_litert}[job["format"]]
    to_file(model, os.path.join(folder, "files"), job)


def specs_of(model, layout, length=None):
    """The `tf.TensorSpec` of each input by name, with T = `length`, or any."""
    tf, _ = tf_modules("export")
    specs = {}
    for name, names in axes(model, layout).items():
        shape = [length if axis.endswith("tokens") else None for axis in names]
        specs[name] = tf.TensorSpec(shape, input_type(layout), name)
    return specs


def write_onnx(model, folder, job):
    """Write `model.onnx`, its axes named."""
    import onnx
    import tf2onnx

    tf, _ = tf_modules("export_onnx")
    layout = job["layout"]
    specs = [specs_of(model, layout)]
    function = tf.function(
        lambda features: run_model(model, features, layout), input_signature=specs, autograph=False
    )
    with (
        mock.patch.object(norm, "has_onednn", lambda: True),
        mock.patch.object(norm, "layer_norm", _norm_to_recognize),
        mock.patch.object(dense.TokenDense, "call", _dense_to_recognize),
        mock.patch.object(attention, "of_tokens", _of_tokens_to_recognize(attention.of_tokens)),
        mock.patch.object(embeddings.PositionEmbedding, "call", _positions_of_each_row),
        mock.patch.object(tf.nn, "gelu", _gelu_by_erf(tf.nn.gelu)),
    ):
        proto, _ = tf2onnx.convert.from_function(
            function,
            input_signature=specs,
            opset=OPSET,
            custom_op_handlers={
                "EnsureShape": (_to_reshape, []),
                "Erf": (_to_erf_of_quotient, []),
                "FusedBatchNormV3": (_to_layer_normalization, []),
                "SelectV2": (_to_where, []),
            },
        )
    _name_axes(proto.graph, {**axes(model, layout), **job["axes"]})
    onnx.checker.check_model(proto)
    path = os.path.join(folder, "model.onnx")
    onnx.save_model(proto, path)
    if job["precision"] == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        whole = os.path.join(os.path.dirname(folder), "float32.onnx")
        os.rename(path, whole)
        # A scale for each column of a kernel costs nothing and loses less.
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, per_channel=True)


def _dense_to_recognize(layer, inputs, training=None):
    """A dense layer without the matrix of rows that TensorFlow likes.

    ONNX Runtime fuses bias, GELU, residual and norm where no reshape stands between them.
    """
    tf, _ = tf_modules("export_onnx")
    product = tf.raw_ops.BatchMatMulV2(x=inputs, y=tf.convert_to_tensor(layer.kernel))
    outputs = layer._with_bias(product)
    return outputs if layer.activation is None else layer.activation(outputs)


def _positions_of_each_row(layer, inputs):
    """The positions' rows for each row of the batch, (B, T, D).

    From a slice of the table no runtime knows that they are as many as the tokens are, and then
    does not fuse what it has to know that for.
    """
    tf, _ = tf_modules("export_onnx")
    one = tf.cast(tf.equal(inputs[..., 0], inputs[..., 0]), tf.int32)
    place = tf.cumsum(one, axis=1) + (layer.offset - 1)
    return tf.gather(tf.convert_to_tensor(layer.position_embeddings), place)


def _of_tokens_to_recognize(of_tokens):
    """`of_tokens` with a mark behind it, for `_to_reshape`."""
    tf, _ = tf_modules("export_onnx")

    def marked(x, *sizes):
        outputs = of_tokens(x, *sizes)
        if 1 in (*x.shape[2:], *sizes):
            return outputs  # tf2onnx drops a transpose of such an axis, and the others move.
        return tf.ensure_shape(outputs, [None, None, *sizes])

    return marked


def _to_reshape(graph, node, name, arguments):
    """tf2onnx's handler of that mark: a reshape that keeps the first axes, whatever they are.

    ONNX can say so by zeros, TensorFlow cannot, and without a runtime does not know what fits.
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


def _to_erf_of_quotient(graph, node, name, arguments):
    """GELU's quotient by the root of 2, which TensorFlow made a product; runtimes look for it."""
    product = node.inputs[0]
    constants = [x for x in product.inputs if x.is_const()]
    if product.type == "Mul" and len(constants) == 1:
        value = constants[0].get_tensor_value(as_list=False)
        (inputs,) = [x for x, made in zip(product.input, product.inputs) if not made.is_const()]
        divisor = graph.make_const(name + "_divisor", 1 / value)
        made = graph.make_node(
            "Div",
            [inputs, divisor.output[0]],
            shapes=[graph.get_shape(product.output[0])],
            dtypes=[graph.get_dtype(product.output[0])],
        )
        graph.replace_input(node, node.input[0], made.output[0], 0)


def _norm_to_recognize(inputs, gamma, beta, epsilon):
    """Layer normalization as one op, which only the converter sees: of another kind.

    tf2onnx knows none, and what it makes of the formula no runtime puts together again.
    """
    tf, _ = tf_modules("export_onnx")
    if len(inputs.shape) == 2:
        return _norm_to_recognize(inputs[:, None], gamma, beta, epsilon)[:, 0]
    beta = tf.zeros_like(gamma) if beta is None else beta
    outputs, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.expand_dims(inputs, 1),  # (B, 1, T, D)
        scale=gamma,
        offset=beta,
        mean=tf.zeros_like(gamma),
        variance=tf.ones_like(gamma),
        epsilon=epsilon,
        is_training=False,
    )
    return tf.squeeze(outputs, 1)


def _to_layer_normalization(graph, node, name, arguments):
    """tf2onnx's handler of what `_norm_to_recognize` left, with the two ops around it."""
    before, (after,) = node.inputs[0], graph.find_output_consumers(node.output[0])
    made = graph.make_node(
        "LayerNormalization",
        [before.input[0], *node.input[1:3]],
        attr={"axis": -1, "epsilon": node.get_attr_value("epsilon")},
        shapes=[graph.get_shape(after.output[0])],
        dtypes=[graph.get_dtype(after.output[0])],
    )
    # tf2onnx visits the last op too: it stays, and is dropped as nothing reads it.
    graph.replace_all_inputs(after.output[0], made.output[0])
    graph.replace_all_inputs(node.output[0], made.output[0])
    graph.remove_node(node.name)


def _to_where(graph, node, name, arguments):
    """tf2onnx's own way multiplies by 0 and 1, which makes NaN of what is infinite."""
    node.type = "Where"


def _gelu_by_erf(gelu):
    """GELU's exact form by erf, which ONNX has and its runtimes fuse; TensorFlow's is by erfc."""
    tf, _ = tf_modules("export_onnx")

    def by_erf(features, approximate=False, name=None):
        if approximate:
            return gelu(features, approximate=True)
        return 0.5 * features * (1.0 + tf.math.erf(features / tf.constant(2**0.5, features.dtype)))

    return by_erf


def _name_axes(graph, names):
    """Call the axes of any size what they are, by `names` of inputs and outputs."""
    for value in (*graph.input, *graph.output):
        for dimension, axis in zip(
            value.type.tensor_type.shape.dim, names[value.name], strict=True
        ):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = axis


def write_litert(model, folder, job):
    """Write `model.tflite`."""
    tf, _ = tf_modules("export_litert")
    function = tf.function(lambda **features: run_model(model, features), autograph=False)
    saved = os.path.join(os.path.dirname(folder), "saved_model")
    with mock.patch.object(norm, "has_onednn", lambda: False):
        concrete = function.get_concrete_function(**specs_of(model, job["layout"], job["length"]))
    module = tf.Module()
    module.weights = list(concrete.variables)
    tf.saved_model.save(module, saved, signatures=concrete)
    converter = tf.lite.TFLiteConverter.from_saved_model(saved)
    if job["precision"] == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    data = converter.convert()
    with open(os.path.join(folder, "model.tflite"), "wb") as file:
        file.write(data)


if __name__ == "__main__":
    end_with_parent()
    try:
        main(sys.argv[1])
    except Exception as error:
        sys.exit(first_line(error))

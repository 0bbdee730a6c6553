"""The TensorFlow process of the graph exports: rebuild, trace and convert the model.

    python -m kerasbert.export.write_graph FOLDER

FOLDER holds `preset/` and `job.json`; the result is `FOLDER/files/model.onnx` or
`FOLDER/files/model.tflite`.
"""

import os
import sys

from kerasbert import backend
from kerasbert.backend.layers import norm
from kerasbert.backend.onnx import HANDLERS, KERNELS, OF_ANY_LENGTH
from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import first_line
from kerasbert.base.files import read_json, write_files
from kerasbert.export.child_process import end_with_parent
from kerasbert.export.token_graphs import axes, input_type, run_task
from kerasbert.heads.base.requests import conditions, fail_unless, limits_of, nan_unless
from kerasbert.heads.base.served_models import load, served

OPSET = 18
# A protocol buffer holds at most 2 GiB, and conversion serializes the graph several times.
MOST_BYTES = 2**31 - 2**24


def main(folder):
    job = read_json(os.path.join(folder, "job.json"))
    model, _ = load(os.path.join(folder, "preset"), job["class"])
    size = sum(4 * weight.value.shape.num_elements() for weight in model.weights)
    if size > MOST_BYTES:
        raise ValueError(
            f"The weights are {size:,} bytes, but this format holds at most {MOST_BYTES:,}; use "
            "export_serving, which has no limit."
        )
    to_file = {"onnx": write_onnx, "litert": write_litert}[job["format"]]
    to_file(served(model), os.path.join(folder, "files"), job)


def specs_of(model, layout, length=None):
    """Return a dict of input name to `tf.TensorSpec`; T is `length`, or any if it is `None`."""
    shapes = {
        name: [length if axis.endswith("tokens") else None for axis in names]
        for name, names in axes(model, layout).items()
    }
    return {x: tf.TensorSpec(shape, input_type(layout), x) for x, shape in shapes.items()}


def write_onnx(task, folder, job):
    """Write `model.onnx` with named axes."""
    import onnx
    import tf2onnx

    layout = job["layout"]
    specs, named = [specs_of(task.model, layout)], axes(task.model, layout)

    def run(features):
        found = conditions(features, named, limits_of(task.model, named))
        if job["runtime"] == "openvino":
            return nan_unless(run_task(task, features, layout), found)
        return run_task(task, fail_unless(features, found), layout)

    function = tf.function(run, input_signature=specs, autograph=False)
    with backend.using(KERNELS):
        proto, _ = tf2onnx.convert.from_function(
            function, input_signature=specs, opset=OPSET, custom_op_handlers=HANDLERS
        )
    _name_axes(proto.graph, {**named, **job["axes"]})
    onnx.checker.check_model(proto)
    path = os.path.join(folder, "model.onnx")
    onnx.save_model(proto, path)
    if job["precision"] == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        whole = os.path.join(os.path.dirname(folder), "float32.onnx")
        os.rename(path, whole)
        # Scales per column take no more time and lose less precision. Kernels are unsigned, because
        # sums of signed products saturate on x86 CPUs without VNNI, which changed logits by a
        # fifth.
        quantize_dynamic(whole, path, weight_type=QuantType.QUInt8, per_channel=True)


def _name_axes(graph, names):
    """Name the dynamic axes of inputs and outputs as in the dict `names`."""
    for value in (*graph.input, *graph.output):
        for dimension, axis in zip(
            value.type.tensor_type.shape.dim, names[value.name], strict=True
        ):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = axis


def write_litert(task, folder, job):
    """Write `model.tflite`."""
    named = axes(task.model, job["layout"])

    def run(**features):
        found = conditions(features, named, limits_of(task.model, named))
        return task.run(fail_unless(features, found))

    function = tf.function(run, autograph=False)
    saved = os.path.join(os.path.dirname(folder), "saved_model")
    with backend.using({"norm": norm.plain, **OF_ANY_LENGTH}):
        specs = specs_of(task.model, job["layout"], job["length"])
        concrete = function.get_concrete_function(**specs)
    module = tf.Module()
    module.weights = list(concrete.variables)
    tf.saved_model.save(module, saved, signatures=concrete)
    converter = tf.lite.TFLiteConverter.from_saved_model(saved)
    if job["precision"] == "int8":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    write_files(folder, {"model.tflite": converter.convert()})


if __name__ == "__main__":
    end_with_parent()
    try:
        main(sys.argv[1])
    except Exception as error:
        sys.exit(first_line(error))

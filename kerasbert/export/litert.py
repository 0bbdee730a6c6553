"""`export_litert`: a model from token ids on, for LiteRT (TensorFlow Lite)."""

import importlib.util
import os

from kerasbert._tensorflow import tf_modules
from kerasbert.export.graphs import exported


def export_litert(model, directory, precision="float32", sequence_length=None, tokenizer=None):
    """Write `model.tflite`, with the tokenizer's files beside it, and check it with LiteRT.

    Inputs, outputs, tokenizer's files and errors are those of `export_onnx`. The one signature is
    `serving_default`. Of any size are the batch and, without `sequence_length`, the tokens: an
    interpreter's `resize_tensor_input` sets them. What LiteRT has no op of its own for is refused.

    Args:
        precision: "float32", or "int8": weights of the products are int8, and the inputs of each
            become int8 as they come (LiteRT's "dynamic range").
        sequence_length: int. The length of all rows, for delegates that know no other; `None`
            leaves it open.

    Returns:
        The path of `model.tflite`.
    """
    if sequence_length is not None:
        _check_length(model, sequence_length)
    arguments = directory, "litert", precision, sequence_length, tokenizer
    with exported(model, *arguments) as (target, folder, check):
        check(_interpreter(os.path.join(folder, "model.tflite")))
    return os.path.join(target, "model.tflite")


def _check_length(model, length):
    most = getattr(model, "backbone", model).max_sequence_length
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= most:
        raise ValueError(
            f"sequence_length={length!r} has to be a whole number from 1 to the model's {most}."
        )


def _interpreter(path):
    if importlib.util.find_spec("ai_edge_litert") is None:
        interpreter = tf_modules("export_litert")[0].lite.Interpreter(path)
    else:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(path)

    def run(features):
        for detail in interpreter.get_input_details():
            name = detail["name"].removeprefix("serving_default_").split(":")[0]
            if -1 in detail["shape_signature"]:
                interpreter.resize_tensor_input(detail["index"], features[name].shape)
        runner = interpreter.get_signature_runner()
        return runner(**features)

    return run

"""Exported models in their own runtimes, as functions of a dict of arrays.

Only the runtime is imported.
"""

import importlib.util


def onnx_runtime(path, threads=None):
    """Load `model.onnx` as a function of input to output arrays, both dicts.

    Args:
        path: string.
        threads: int. `None` uses the runtime's default.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda features: dict(zip(names, session.run(names, features), strict=True))


def openvino(path, threads=None):
    """Load `model.xml`; see `onnx_runtime`."""
    import openvino

    # By default, bfloat16 on CPUs that support it.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    return lambda features: {port.any_name: x for port, x in compiled(features).items()}


def litert(path, threads=None):
    """Load `model.tflite`; see `onnx_runtime`. TensorFlow runs it without LiteRT."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        import tensorflow as tf

        Interpreter = tf.lite.Interpreter
    else:
        from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path, num_threads=threads).get_signature_runner()
    return lambda features: runner(**features)


def saved_model(path, threads=None):
    """Load a SavedModel into a session, as TensorFlow Serving does.

    Returns:
        A function from a signature's name to a function like that of `onnx_runtime`.
    """
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  Registers its operations.

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads or 0, inter_op_parallelism_threads=threads or 0
    )
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default():
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def

    def run_of(name):
        inputs, outputs = signatures[name].inputs, signatures[name].outputs
        call = session.make_callable(
            {key: tensor.name for key, tensor in outputs.items()},
            [tensor.name for tensor in inputs.values()],
        )
        kinds = [tf.as_dtype(tensor.dtype).as_numpy_dtype for tensor in inputs.values()]
        return lambda features: call(
            *(np.asarray(features[key], kind) for key, kind in zip(inputs, kinds))
        )

    return run_of

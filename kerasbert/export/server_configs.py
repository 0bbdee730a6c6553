"""Config files that exports write for servers: TensorFlow Serving, KServe and Triton."""

import os
import re

from kerasbert.base.files import write_text
from kerasbert.base.strict_json import to_json

# Files next to the folders of versions; the first two are for the flags --model_config_file and
# --batching_parameters_file of TensorFlow Serving.
MODELS_CONFIG = "models.config"
BATCHING_CONFIG = "batching.config"
KSERVE_CONFIG = "kserve.yaml"
TRITON_CONFIG = "config.pbtxt"
SERVING_CONFIGS = (MODELS_CONFIG, BATCHING_CONFIG, KSERVE_CONFIG)

# Limits of a server's batches of waiting requests.
MOST_ROWS = 32
MOST_MICROSECONDS = 2000

_MODELS = """\
# For tensorflow_model_server --model_config_file=...
model_config_list {
  config {
    name: %s
    base_path: %s
    model_platform: "tensorflow"
  }
}
"""
_BATCHING = """\
# For tensorflow_model_server --enable_batching --batching_parameters_file=...
# Waiting requests run as one batch if the shapes of their rows match, as those of texts do.
max_batch_size { value: %d }
batch_timeout_micros { value: %d }
max_enqueued_batches { value: 100 }
num_batch_threads { value: %d }
"""
# `runtimeVersion` is the tag of the server's image. KServe's own defaults, such as 2.6.2 of
# TensorFlow Serving, are too old for these graphs.
_KSERVE = """\
# For kubectl apply -f kserve.yaml
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: %s
spec:
  predictor:
    model:
      modelFormat:
        name: %s
      runtime: %s
      runtimeVersion: "%s"
      protocolVersion: %s
      # Where %s is stored, such as s3://, gs:// or pvc://.
      storageUri: %s
"""
# The model format, runtime, image tag and protocol of each server in KServe.
_TENSORFLOW = "tensorflow", "kserve-tensorflow-serving", "2.18.0", "v1"
_TRITON = "triton", "kserve-tritonserver", "24.12-py3", "v2"

_TRITON_HEAD = """\
# For Triton Inference Server. The folder of this file is one model of the model repository.
backend: "onnxruntime"
max_batch_size: %d
# Waiting requests run as one batch if the shapes of their rows match.
dynamic_batching { max_queue_delay_microseconds: %d }
"""


def write_serving_configs(directory):
    """Write the files of a SavedModel's folder; existing ones may have been edited and are kept."""
    name = os.path.basename(directory)
    names = (to_json(text, ensure_ascii=False) for text in (name, directory))
    here = "this folder", to_json(f"pvc://models/{name}", ensure_ascii=False)
    texts = {
        MODELS_CONFIG: _MODELS % tuple(names),
        BATCHING_CONFIG: _BATCHING % (MOST_ROWS, MOST_MICROSECONDS, os.cpu_count() or 1),
        KSERVE_CONFIG: _KSERVE % (_kubernetes_name(name), *_TENSORFLOW, *here),
    }
    for file, text in texts.items():
        path = os.path.join(directory, file)
        if not os.path.exists(path):
            write_text(path, text)


def write_triton_configs(folder, graph, name):
    """Write the files of a model in Triton's repository.

    Args:
        folder: the model's folder.
        graph: path of `model.onnx`; the first axis of each input and output is the batch.
        name: name of the model.
    """
    import onnx

    found = onnx.load(graph).graph
    blocks = [("input", value) for value in found.input]
    blocks += [("output", value) for value in found.output]
    text = _TRITON_HEAD % (MOST_ROWS, MOST_MICROSECONDS)
    text += "".join(_triton_block(onnx, kind, value) for kind, value in blocks)
    write_text(os.path.join(folder, TRITON_CONFIG), text)
    where = "the model repository, the parent of this folder,", '"pvc://models"'
    kserve = _KSERVE % (_kubernetes_name(name), *_TRITON, *where)
    write_text(os.path.join(folder, KSERVE_CONFIG), kserve)


def _triton_block(onnx, kind, value):
    """Describe an input or output without its batch axis, which Triton adds."""
    types = onnx.TensorProto
    names = {types.INT32: "INT32", types.INT64: "INT64", types.FLOAT: "FP32"}
    tensor = value.type.tensor_type
    _, *axes = (axis.dim_value or -1 for axis in tensor.shape.dim)
    # Triton has no empty `dims`; `reshape` is its form of one number per row.
    shape = f"dims: {axes}" if axes else "dims: [1] reshape { shape: [] }"
    name = to_json(value.name, ensure_ascii=False)
    return f"{kind} {{ name: {name} data_type: TYPE_{names[tensor.elem_type]} {shape} }}\n"


def _kubernetes_name(name):
    """Return a quoted name that Kubernetes accepts: lowercase letters, digits and hyphens."""
    name = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"model-{name}".rstrip("-")
    return f'"{name[:40].rstrip("-")}"'

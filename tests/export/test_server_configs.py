"""The config files for servers follow the schemas of the servers' own packages."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from kerasbert.base import runtimes
from kerasbert.export import export_onnx, server_configs
from tests.export import tiny

pytestmark = pytest.mark.backends("tensorflow")

# Checks a file in a process of its own: the messages of kserve and tritonclient have equal names.
KSERVE = """
import json, re, sys
import kserve, yaml
from kubernetes import client

def check(data, kind):
    made = getattr(kserve, kind, None) or getattr(client, kind, None)
    if made is None:
        assert isinstance(data, {"str": str}[kind]), (kind, data)
        return data
    names = {there: here for here, there in made.attribute_map.items()}
    return made(**{names[k]: check(x, made.openapi_types[names[k]]) for k, x in data.items()})

with open(sys.argv[1], encoding="utf-8") as file:
    data = yaml.safe_load(file)
found = check(data, "V1beta1InferenceService")
model = found.spec.predictor.model
print(json.dumps([found.metadata.name, model.model_format.name, model.storage_uri]))
"""


@pytest.mark.parametrize(
    "name, expected",
    [("spam", "spam"), ("Spam_filter 2", "spam-filter-2"), ("2", "model-2"), ("한국어", "model")],
)
def test_kubernetes_names(name, expected):
    assert server_configs._kubernetes_name(name) == f'"{expected}"'
    assert len(server_configs._kubernetes_name(f"{name}-" * 30)) <= 42


def read_kserve(path):
    pytest.importorskip("yaml")
    if importlib.util.find_spec("kserve") is None:
        pytest.skip("needs the models of KServe: pip install kserve")
    done = subprocess.run([sys.executable, "-c", KSERVE, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.peers
@pytest.mark.slow
def test_kserve(tmp_path):
    base = tmp_path / "Größe: 1"
    base.mkdir()
    server_configs.write_serving_configs(str(base))
    path = base / "kserve.yaml"
    assert read_kserve(path) == ["gr-e-1", "tensorflow", "pvc://models/Größe: 1"]
    path.write_text(path.read_text(encoding="utf-8").replace("storageUri", "storage_uri"), "utf-8")
    with pytest.raises(AssertionError, match="KeyError: 'storage_uri'"):
        read_kserve(path)


@pytest.mark.peers
@pytest.mark.slow
def test_models_config(tmp_path):
    reason = "needs pip install -r examples/serving/clients/requirements.txt"
    pytest.importorskip("tensorflow_serving", reason=reason)
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    base = tmp_path / 'a "b"'
    base.mkdir()
    server_configs.write_serving_configs(str(base))
    text = (base / "models.config").read_text(encoding="utf-8")
    (model,) = text_format.Parse(
        text, model_server_config_pb2.ModelServerConfig()
    ).model_config_list.config
    assert (model.name, model.base_path) == ('a "b"', str(base))


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(
    "task, dims",
    [
        ("TextRegressor", {"score": [1]}),
        ("MaskedLM", {"logits": [-1, 171]}),
        ("MultipleChoice", {"logits": [-1]}),
    ],
)
def test_triton(task, dims, tmp_path, monkeypatch):
    """Triton's own messages parse the file, and it describes the graph."""
    reason = "needs pip install -r examples/serving/triton_kserve/requirements.txt"
    config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason=reason)
    from google.protobuf import text_format

    tiny.write_here(monkeypatch)
    model = tiny.task(task)
    path = export_onnx(model, tmp_path / "repository" / "tiny", layout="triton")
    folder = tmp_path / "repository" / "tiny"
    assert path == str(folder / "1" / "model.onnx")
    assert not (folder / "answer.py").exists() and (folder / "tokenizer.json").is_file()
    text = (folder / "config.pbtxt").read_text(encoding="utf-8")
    config = text_format.Parse(text, config_pb2.ModelConfig())
    assert config.backend == "onnxruntime" and config.max_batch_size == 32
    assert config.HasField("dynamic_batching")
    assert {x.name: list(x.dims) for x in config.output} == dims
    assert [x.HasField("reshape") for x in config.output] == [task == "TextRegressor"]
    assert {config_pb2.DataType.Name(x.data_type) for x in config.input} == {"TYPE_INT32"}
    # A batch of the described shapes, with 5 for each size that may vary.
    shapes = {x.name: [2, *(5 if size == -1 else size for size in x.dims)] for x in config.input}
    outputs = runtimes.onnx_runtime(path)({n: np.ones(x, "int32") for n, x in shapes.items()})
    for x in config.output:
        sizes = list(x.reshape.shape) if x.HasField("reshape") else list(x.dims)
        assert outputs[x.name].shape == (2, *(5 if size == -1 else size for size in sizes))
    assert read_kserve(folder / "kserve.yaml") == ["tiny", "triton", "pvc://models"]

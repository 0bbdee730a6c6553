"""Graphs from token ids on: ONNX, LiteRT and OpenVINO, in their own runtimes."""

import json
import os
from collections import Counter

import keras
import numpy as np
import pytest

from kerasbert.export import export_litert, export_onnx, export_openvino, graph, graphs, serving
from kerasbert.models import (
    BertMaskedLM,
    BertMultipleChoice,
    BertMultiTask,
    BertPretrainer,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
)
from tests.contracts import (
    FAMILY_SETTINGS,
    only_tensorflow_is_fast,
    perturb,
    tiny_backbone,
    tiny_classifier,
)

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")


@pytest.fixture
def here(monkeypatch):
    """The work of the child process in this one, where TensorFlow runs already."""
    if keras.backend.backend() == "tensorflow":
        monkeypatch.setattr(graphs, "run_child", lambda module, folder, _: graph.main(folder))


@only_tensorflow_is_fast
def test_a_classifier_with_its_tokenizer(here, tiny_preset, tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    model = BertTextClassifier.from_preset(tiny_preset)
    directory = tmp_path / "new" / "demo"
    assert export_onnx(model, directory) == str(directory / "model.onnx")
    run, axes = session(str(directory / "model.onnx"))
    assert axes == {name: ["batch", "tokens"] for name in model.input} | {"logits": ["batch", 2]}
    texts = ["Who is Ann Lee?", "a good film.", "xyz"]
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(texts)
    features = {
        "token_ids": np.array([row.ids for row in encoded], "int32"),
        "segment_ids": np.array([row.type_ids for row in encoded], "int32"),
        "padding_mask": np.array([row.attention_mask for row in encoded], "int32"),
    }
    np.testing.assert_allclose(
        run(**features)["logits"], model.predict(texts, verbose=0), atol=1e-5
    )
    with open(directory / "config.json", encoding="utf-8") as file:
        assert json.load(file)["id2label"] == {"0": "no", "1": "yes"}
    # What answers otherwise gets no name, nor does the folder above it.
    monkeypatch.setattr(graphs, "TOLERANCE", 0.0)
    monkeypatch.setattr(serving, "ROUNDING", 0.0)
    with pytest.raises(RuntimeError, match="logits of the file differ from the model's by"):
        export_onnx(model, tmp_path / "other" / "demo", tokenizer=False)
    assert os.listdir(tmp_path) == ["new"]


@only_tensorflow_is_fast
@pytest.mark.parametrize(
    "activation, name", [("gelu", "BiasGelu"), ("gelu_approximate", "FastGelu")]
)
def test_onnx_runtime_fuses(activation, name, here, tmp_path):
    model = perturb(BertTextClassifier(tiny_backbone(activation=activation), 2))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    path = export_onnx(model, tmp_path / "demo")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    found = Counter(node.op_type for node in nodes)
    layers = model.backbone.num_layers
    # The last layer's norms are of the one token that is read, and cost nothing unfused.
    assert (found[name], found["SkipLayerNormalization"]) == (layers, 2 * layers - 1)


@pytest.mark.parametrize("export", [export_onnx, export_litert, export_openvino])
def test_refused(export, tmp_path):
    model = tiny_classifier()
    for arguments, error, message in (
        ((model, tmp_path, "int4"), ValueError, "precision='int4' is unknown; use one of float32"),
        ((BertTextClassifier, tmp_path), TypeError, "not the class BertTextClassifier"),
        ((keras.Sequential(), tmp_path), TypeError, "not a Sequential"),
        ((model, __file__), ValueError, "it is a file, not a folder"),
        ((model, os.path.dirname(__file__)), ValueError, "is not empty; choose another directory"),
    ):
        with pytest.raises(error, match=message):
            export(*arguments)
    with pytest.raises(ValueError, match="OpenVINO computes these models wrong in int8"):
        export_openvino(model, tmp_path, "int8")
    with pytest.raises(ValueError, match="sequence_length=99 has to be a whole number from 1 to"):
        export_litert(model, tmp_path, sequence_length=99)
    model.quantize("int8")
    with pytest.raises(ValueError, match="is quantized .int8., and export_.* writes float weights"):
        export(model, tmp_path)
    assert not os.listdir(tmp_path)


def session(path):
    found = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    axes = {x.name: x.shape for x in (*found.get_inputs(), *found.get_outputs())}

    def run(**features):
        names = [output.name for output in found.get_outputs()]
        return dict(zip(names, found.run(names, features), strict=True))

    return run, axes


def multi_task():
    backbone = tiny_backbone()
    tasks = {"topic": BertTextClassifier(backbone, 3), "qa": BertQuestionAnswering(backbone)}
    return BertMultiTask(tasks)


TASKS = {
    "encoder": (tiny_backbone, ["pooled_output", "sequence_output"]),
    "masked_lm": (lambda: BertMaskedLM(tiny_backbone()), ["logits"]),
    "pretrainer": (lambda: BertPretrainer(tiny_backbone()), ["mlm_logits", "nsp_logits"]),
    "regressor": (lambda: BertTextRegressor(tiny_backbone()), ["score"]),
    "tokens": (lambda: BertTokenClassifier(tiny_backbone(), 4), ["logits"]),
    "questions": (lambda: BertQuestionAnswering(tiny_backbone()), ["end_logits", "start_logits"]),
    "choices": (lambda: BertMultipleChoice(tiny_backbone()), ["logits"]),
    "embedder": (lambda: BertTextEmbedder(tiny_backbone(), pooling=["cls", "max"]), ["embedding"]),
    "bilstm": (lambda: BertTextClassifier(tiny_backbone(), 3, bilstm_units=4), ["logits"]),
    "tasks": (multi_task, ["qa_end_logits", "qa_start_logits", "topic"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_every_family_in_every_format(family, here, tmp_path):
    """Each export compares itself with the model; here their answers are compared with others'."""
    openvino = pytest.importorskip("openvino")
    model = tiny_classifier(family)
    run, axes = session(export_onnx(model, tmp_path / "onnx"))
    assert axes == {name: ["batch", "tokens"] for name in model.input} | {"logits": ["batch", 3]}
    features = {name: np.ones((2, 16), "int32") for name in model.input}
    features["token_ids"][:] = np.arange(16)
    if "segment_ids" in features:
        features["segment_ids"][:] = 0
    expected = keras.ops.convert_to_numpy(model(features))
    np.testing.assert_allclose(run(**features)["logits"], expected, atol=1e-5)
    path = export_openvino(model, tmp_path / "openvino")
    hint = {"INFERENCE_PRECISION_HINT": "f32"}  # Where a CPU has bfloat16, that is its default.
    compiled = openvino.Core().compile_model(path, "CPU", hint)
    np.testing.assert_allclose(compiled(features)["logits"], expected, atol=1e-5)
    assert sorted(os.listdir(tmp_path / "openvino")) == ["model.bin", "model.xml"]
    assert os.listdir(os.path.dirname(export_litert(model, tmp_path / "litert"))) == [
        "model.tflite"
    ]
    run, _ = session(export_onnx(model, tmp_path / "int8", "int8"))
    assert np.abs(run(**features)["logits"] - expected).max() > 0  # Whether anything is int8.


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_task(task, here, tmp_path):
    make, names = TASKS[task]
    path = export_onnx(perturb(make()), tmp_path / "demo")
    _, axes = session(path)
    assert sorted(set(axes) & set(names)) == names
    assert all(
        isinstance(size, int) or "unk" not in size for sizes in axes.values() for size in sizes
    )

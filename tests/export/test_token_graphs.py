"""Graphs that take token ids: ONNX, LiteRT and OpenVINO, in their own runtimes."""

import json
import os
from collections import Counter

import keras
import numpy as np
import pytest

from kerasbert.base import runtimes
from kerasbert.converter import convert
from kerasbert.export import (
    export_litert,
    export_onnx,
    export_openvino,
    serving,
    token_graphs,
)
from kerasbert.heads.base.served import PROSE, SHORT, columns_of, packed
from kerasbert.heads.base.served_models import served
from kerasbert.models import (
    BertCausalLM,
    BertMaskedLM,
    BertMultipleChoice,
    BertMultiTask,
    BertNextSentencePredictor,
    BertPretrainer,
    BertQuestionAnswering,
    BertReplacedTokenDetector,
    BertReranker,
    BertSparseEmbedder,
    BertStructuralProbe,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
)
from tests.contracts import (
    FAMILY_SETTINGS,
    RELATIVES,
    perturb,
    tiny_backbone,
    tiny_classifier,
)
from tests.export import tiny
from tests.peers import onnx, onnxruntime


@pytest.fixture
def here(monkeypatch):
    """Do the work of the child process in this one, which already runs TensorFlow."""
    tiny.write_here(monkeypatch)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_a_classifier_with_its_tokenizer(here, tiny_preset, tmp_path, monkeypatch):
    import tokenizers

    model = BertTextClassifier.from_preset(tiny_preset)
    directory = tmp_path / "new" / "demo"
    assert export_onnx(model, directory) == str(directory / "model.onnx")
    run, axes = session(str(directory / "model.onnx"))
    assert axes == {name: ["batch", "tokens"] for name in model.input} | {"logits": ["batch", 2]}
    texts = ["Who is Ann Lee?", "a good film.", "xyz", "a [MASK] film[SEP]good [CLS]."]
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
    # A graph with wrong answers is not renamed into place, and neither is its parent folder.
    monkeypatch.setattr(token_graphs, "TOLERANCE", 0.0)
    monkeypatch.setattr(serving, "ROUNDING", 0.0)
    with pytest.raises(RuntimeError, match="logits of the file differs from the model's by"):
        export_onnx(model, tmp_path / "other" / "demo", tokenizer=False)
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "activation, name", [("gelu", "BiasGelu"), ("gelu_approximate", "FastGelu")]
)
def test_onnx_runtime_fuses(activation, name, here, tmp_path):
    model = perturb(BertTextClassifier(tiny_backbone(activation=activation), 2))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    path = export_onnx(model, tmp_path / "demo")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    found = Counter(node.op_type for node in nodes)
    layers = model.backbone.num_layers
    # The norms of the last layer read only the token that the head needs, so they are not fused.
    assert (found[name], found["SkipLayerNormalization"]) == (layers, 2 * layers - 1)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", ["TextClassifier", "MultipleChoice"])
def test_int8_of_openvino(name, here, tmp_path):
    model = tiny.task(name, encoder_settings={"hidden_dim": 64, "intermediate_dim": 256})
    texts = [*SHORT, PROSE] * 4
    asked = {
        "TextClassifier": texts,
        "QuestionAnswering": [("who?", text or "it") for text in texts],
        "MultipleChoice": [("who?", [text or "it", "you"]) for text in texts],
    }[name]
    paths = [
        export_openvino(model, tmp_path / precision, precision, texts=texts)
        for precision, texts in (("float32", None), ("int8", asked))
    ]
    sizes = [os.path.getsize(path.replace(".xml", ".bin")) for path in paths]
    assert sizes[1] < 0.6 * sizes[0]
    with open(paths[1], encoding="utf-8") as file:
        assert "FakeQuantize" in file.read()
    assert "NNCF_CI" not in os.environ
    task = served(model)
    features = packed(task, columns_of(task, asked)[1])
    exact, rounded = (runtimes.openvino(path)(features) for path in paths)
    for output, x in exact.items():
        there = x > -1e8
        off = np.abs(x - rounded[output])[there]
        assert 0 < off.max() and off.mean() < 0.2 * np.abs(x[there]).mean()


@pytest.mark.peers
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("export", [export_onnx, export_litert, export_openvino])
def test_refused(export, tmp_path):
    model = tiny_classifier()
    for arguments, error, message in (
        ((model, tmp_path, "int4"), ValueError, "precision='int4' is unknown; use one of float32"),
        ((BertTextClassifier, tmp_path), TypeError, "got the class BertTextClassifier"),
        ((keras.Sequential(), tmp_path), TypeError, "got a Sequential"),
        ((BertStructuralProbe(model.backbone), tmp_path), ValueError, "needs word_counts and word"),
        ((model, __file__), ValueError, "it is a file, not a folder"),
        ((model, os.path.dirname(__file__)), ValueError, "is not empty; choose another directory"),
    ):
        with pytest.raises(error, match=message):
            export(*arguments)
    for arguments, message in (
        (("int8",), r"pass texts=\[...\], a few hundred typical inputs"),
        (("int8", None, []), r"pass texts=\[...\]"),
        (("float32", None, ["a"]), r"texts are only for precision='int8'; omit them for 'float32'"),
    ):
        with pytest.raises(ValueError, match=message):
            export_openvino(model, tmp_path, *arguments)
    with pytest.raises(ValueError, match="sequence_length=99 must be a whole number from 1 to"):
        export_litert(model, tmp_path, sequence_length=99)
    model.quantize("int8")
    with pytest.raises(ValueError, match="is quantized .int8., but export_.* writes float weights"):
        export(model, tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_int8_of_outputs_that_are_small_by_chance(here, tmp_path):
    """An output of about 0 may have the same int8 error as one of 1 and is accepted; wrong outputs
    are rejected.
    """
    model = perturb(BertTextRegressor(tiny_backbone()))
    head, probes = model.output_dense, token_graphs._probes(model, None)
    head.kernel.assign(1e-3 * head.kernel)
    zeros = {"score": np.zeros(3, "float32")}
    for size in (0, 1):
        scores = [row["score"] for row in token_graphs._answers(served(model), probes)]
        head.bias.assign(head.bias - scores[1] + size)
        export_onnx(model, tmp_path / str(size), "int8")
        expected = token_graphs._answers(served(model), probes)
        allowed = token_graphs._allowed(served(model), probes, expected, "int8")
        with pytest.raises(RuntimeError, match="score of the file differs .*tolerance of int8: "):
            token_graphs._compare(lambda _: zeros, probes[:1], expected[:1], "int8", allowed)


def session(path):
    found = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    axes = {x.name: x.shape for x in (*found.get_inputs(), *found.get_outputs())}

    def run(**features):
        names = [output.name for output in found.get_outputs()]
        return dict(zip(names, found.run(names, features), strict=True))

    return run, axes


def windows():
    long = {"mode": "windows", "pooling": "attention"}
    return BertTextClassifier(tiny_backbone(), 3, long=long, temperature=2.0)


def multi_task():
    backbone = tiny_backbone()
    tasks = {"topic": BertTextClassifier(backbone, 3), "qa": BertQuestionAnswering(backbone)}
    return BertMultiTask(tasks)


TASKS = {
    "encoder": (tiny_backbone, ["pooled_output", "sequence_output"]),
    "masked_lm": (lambda: BertMaskedLM(tiny_backbone()), ["logits"]),
    "untied": (lambda: BertMaskedLM(tiny_backbone(), tie_weights=False), ["logits"]),
    "pretrainer": (lambda: BertPretrainer(tiny_backbone()), ["mlm_logits", "nsp_logits"]),
    "regressor": (lambda: BertTextRegressor(tiny_backbone()), ["score"]),
    "reranker": (lambda: BertReranker(tiny_backbone()), ["logits"]),
    "words": (lambda: BertSparseEmbedder(tiny_backbone()), ["embedding"]),
    "tokens": (lambda: BertTokenClassifier(tiny_backbone(), 4), ["logits"]),
    "questions": (lambda: BertQuestionAnswering(tiny_backbone()), ["end_logits", "start_logits"]),
    "choices": (lambda: BertMultipleChoice(tiny_backbone()), ["logits"]),
    "embedder": (lambda: BertTextEmbedder(tiny_backbone(), pooling=["cls", "max"]), ["embedding"]),
    "bilstm": (lambda: BertTextClassifier(tiny_backbone(), 3, bilstm_units=4), ["logits"]),
    "replaced": (lambda: BertReplacedTokenDetector(tiny_backbone()), ["logits"]),
    "following": (lambda: BertCausalLM(tiny_backbone("gpt2")), ["logits"]),
    "windows": (windows, ["logits"]),
    "tasks": (multi_task, ["qa_end_logits", "qa_start_logits", "topic"]),
}


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILY_SETTINGS if name not in RELATIVES])
def test_every_family_in_every_format(family, here, tmp_path, monkeypatch):
    """Each export compares its outputs with the model's; this test compares the formats with each
    other.
    """
    import openvino
    import tf2onnx

    model = tiny_classifier(family)
    path = export_onnx(model, tmp_path / "onnx")
    run, axes = session(path)
    assert axes == {name: ["batch", "tokens"] for name in model.input} | {"logits": ["batch", 3]}
    features = {name: np.ones((2, 16), "int32") for name in model.input}
    features["token_ids"][:] = np.arange(16)
    if "segment_ids" in features:
        features["segment_ids"][:] = 0
    expected = keras.ops.convert_to_numpy(model(features))
    np.testing.assert_allclose(run(**features)["logits"], expected, atol=1e-5)
    xml = export_openvino(model, tmp_path / "openvino")
    # Where a CPU supports bfloat16, OpenVINO uses it by default.
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(xml, "CPU", hint)
    np.testing.assert_allclose(compiled(features)["logits"], expected, atol=1e-5)
    assert sorted(os.listdir(tmp_path / "openvino")) == ["model.bin", "model.xml"]
    assert os.listdir(os.path.dirname(export_litert(model, tmp_path / "litert"))) == [
        "model.tflite"
    ]
    # int8 uses the graph above, so tracing and conversion happen once.
    graph = onnx.load(path)
    monkeypatch.setattr(tf2onnx.convert, "from_function", lambda *_, **__: (graph, None))
    rounded = export_onnx(model, tmp_path / "int8", "int8")
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= {
        n.op_type for n in onnx.load(rounded).graph.node
    }
    found = session(rounded)[0](**features)["logits"]
    assert 1e-5 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.peers
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


# === Names and files of transformers ===


def run_as_tokenized(path, tokenizer, *texts):
    """Return a graph's outputs for the unchanged output of a transformers tokenizer."""
    run, _ = session(path)
    return run(**tokenizer(*texts, padding=True, truncation=True, return_tensors="np"))


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
def test_a_folder_that_transformers_reads(here, tiny_preset, tmp_path):
    import transformers

    model = BertTextClassifier.from_preset(tiny_preset, sequence_length=16)
    path = export_onnx(model, tmp_path / "spam", layout="transformers")
    assert path == str(tmp_path / "spam" / "onnx" / "model.onnx")
    _, axes = session(path)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    assert axes == {name: ["batch", "tokens"] for name in inputs} | {"logits": ["batch", 2]}
    config = transformers.AutoConfig.from_pretrained(tmp_path / "spam")
    assert config.id2label == {0: "no", 1: "yes"}
    assert config.architectures == ["BertForSequenceClassification"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "spam")
    texts = ["Who is Ann Lee?", "a good film.", "xyz " * 30]
    found = run_as_tokenized(path, tokenizer, texts)["logits"]
    np.testing.assert_allclose(found, model.predict(texts, verbose=0), atol=1e-5)
    pairs = texts[:2], texts[1::-1]
    found = run_as_tokenized(path, tokenizer, *pairs)["logits"]
    np.testing.assert_allclose(found, model.predict(pairs, verbose=0), atol=1e-5)


@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_folder_that_sentence_transformers_reads(pooling, here, tiny_preset, tmp_path):
    """The ONNX backend of sentence-transformers is optimum, which needs transformers 4. So here its
    modules get the outputs of the graph.
    """
    import torch
    import transformers
    from sentence_transformers.models import Normalize, Pooling

    model = BertTextEmbedder.from_preset(
        tiny_preset, pooling=pooling, normalize=True, sequence_length=16
    )
    path = export_onnx(perturb(model), tmp_path / "demo", layout="transformers")
    folder = tmp_path / "demo"
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert names >= {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"}
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 16
    kinds = [x["type"].split(".")[-1] for x in json.loads((folder / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Who is Ann Lee?", "a good film.", "xyz " * 30]
    features = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
    run, _ = session(path)
    features = {name: torch.tensor(x) for name, x in {**features, **run(**features)}.items()}
    features["token_embeddings"] = features.pop("last_hidden_state")
    for module in (Pooling.load(str(folder / "1_Pooling")), Normalize()):
        features = module(features)
    found = features["sentence_embedding"].numpy()
    np.testing.assert_allclose(found, model.embed(texts), atol=1e-5)


# Heads that transformers has, with the class that reads the output of `convert`.
THEIRS = {
    "encoder": "Model",
    "masked_lm": "ForMaskedLM",
    "untied": "ForMaskedLM",
    "pretrainer": "ForPreTraining",
    "next_sentence": "ForNextSentencePrediction",
    "regressor": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "questions": "ForQuestionAnswering",
    "choices": "ForMultipleChoice",
}
MADE = {**TASKS, "next_sentence": (lambda: BertNextSentencePredictor(tiny_backbone()), ["logits"])}


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("task", THEIRS)
def test_outputs_are_those_of_transformers(task, here, tmp_path):
    import torch
    import transformers

    model = perturb(MADE[task][0]())
    path = export_onnx(model, tmp_path / "onnx", tokenizer=False, layout="transformers")
    convert(model, tmp_path / "torch", tokenizer=False)
    theirs = getattr(transformers, "Bert" + THEIRS[task]).from_pretrained(tmp_path / "torch").eval()
    features = token_graphs._probes(model, None, "transformers")[0]
    with torch.no_grad():
        expected = theirs(**{name: torch.tensor(x) for name, x in features.items()})
    found = session(path)[0](**features)
    assert set(found) == set(expected)
    there = features["attention_mask"] == 1 if task == "questions" else slice(None)
    for name, value in found.items():  # Our models exclude padding from answers.
        wanted = expected[name].numpy()
        np.testing.assert_allclose(value[there], wanted[there], atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_inputs_are_those_of_the_tokenizer(family, here, tmp_path):
    model = tiny_classifier(family)
    path = export_onnx(model, tmp_path / "demo", tokenizer=False, layout="transformers")
    inputs = ["attention_mask", "input_ids"]
    inputs += ["token_type_ids"] * (model.backbone.num_segments > 1)
    assert sorted(session(path)[1].keys() - {"logits"}) == inputs


@pytest.mark.backends("tensorflow")
@pytest.mark.peers
def test_layouts_that_are_refused(tmp_path):
    backbone = tiny_backbone()
    embedder = BertTextEmbedder(backbone, layers="sum_all")
    pretrainer = BertPretrainer(tiny_backbone("roberta"))
    for model, arguments, message in (
        (tiny_classifier(), {"layout": "optimum"}, "layout='optimum' is unknown; use one of kera"),
        (tiny_classifier(), {}, "layout='transformers' needs a tokenizer.* pass tokenizer="),
        (embedder, {"tokenizer": False}, "not support pooling='mean' with layers='sum_all'; use"),
        (multi_task(), {"tokenizer": False}, "no class for several tasks; export each of model.ta"),
        (
            pretrainer,
            {"tokenizer": False},
            "no config.json .* no class for the head .* You can also use layout=",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            export_onnx(model, tmp_path / "demo", **{"layout": "transformers", **arguments})
    assert not os.listdir(tmp_path)

"""Jina-BERT v2 compared with its published definition, written in NumPy.

Its code is not in transformers but next to the weights (`jinaai/jina-bert-implementation`), which
cannot be downloaded here, so this file repeats the names and formulas of that code.
"""

import json
import math

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kerasbert
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertMultipleChoice,
    BertNextSentencePredictor,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTokenClassifier,
)
from tests.contracts import tiny_backbone

pytestmark = pytest.mark.backends("tensorflow", "jax", "torch")

# There are five heads, because the slopes have another formula if the number of heads is not a
# power of two.
CONFIG = {
    "model_type": "bert",
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "vocab_size": 47,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 8192,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "attention_probs_dropout_prob": 0.0,
    "_name_or_path": "jinaai/jina-bert-implementation",
    "num_labels": 3,
}
WIDTH, INNER, VOCABULARY = 30, 17, 47
# Class, the names of its head's layers with their number of outputs, and our class.
HEADS = {
    "JinaBertModel": ({}, BertBackbone),
    "JinaBertForMaskedLM": ({"cls.predictions.transform.dense": WIDTH}, BertMaskedLM),
    "JinaBertForSequenceClassification": ({"classifier": 3}, BertTextClassifier),
    "JinaBertForTokenClassification": ({"classifier": 3}, BertTokenClassifier),
    "JinaBertForQuestionAnswering": ({"qa_outputs": 2}, BertQuestionAnswering),
    "JinaBertForMultipleChoice": ({"classifier": 1}, BertMultipleChoice),
    "JinaBertForNextSentencePrediction": ({"cls.seq_relationship": 2}, BertNextSentencePredictor),
}
POOLED = ("Model", "SequenceClassification", "MultipleChoice", "NextSentencePrediction")


def tensors_of(architecture):
    """Return random weights under the names of the original code."""
    random = np.random.default_rng(0)
    found = {}

    def dense(name, units, width=WIDTH, bias=True):
        found[f"{name}.weight"] = random.normal(0, 0.15, (units, width))
        if bias:
            found[f"{name}.bias"] = random.normal(0, 0.15, units)

    def norm(name):
        found[f"{name}.weight"] = 1 + random.normal(0, 0.15, WIDTH)
        found[f"{name}.bias"] = random.normal(0, 0.15, WIDTH)

    prefix = "" if architecture == "JinaBertModel" else "bert."
    dense(f"{prefix}embeddings.word_embeddings", VOCABULARY, bias=False)
    dense(f"{prefix}embeddings.token_type_embeddings", 3, bias=False)
    norm(f"{prefix}embeddings.LayerNorm")
    for layer in range(3):
        name = f"{prefix}encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            dense(f"{name}.attention.self.{part}", WIDTH)
        dense(f"{name}.attention.output.dense", WIDTH)
        norm(f"{name}.attention.output.LayerNorm")
        dense(f"{name}.mlp.gated_layers", 2 * INNER, bias=False)
        dense(f"{name}.mlp.wo", WIDTH, INNER)
        norm(f"{name}.mlp.layernorm")
    if architecture.endswith(POOLED):
        dense(f"{prefix}pooler.dense", WIDTH)
    for name, units in HEADS[architecture][0].items():
        dense(name, units)
    if architecture == "JinaBertForMaskedLM":
        norm("cls.predictions.transform.LayerNorm")
        found["cls.predictions.bias"] = random.normal(0, 0.15, VOCABULARY)
    return {name: value.astype("float32") for name, value in found.items()}


def slopes(count):
    """Return the slopes of the heads by the recursion of the original code."""
    if math.log2(count).is_integer():
        start = 2 ** (-(2 ** -(math.log2(count) - 3)))
        return [start * start**i for i in range(count)]
    lower = 2 ** math.floor(math.log2(count))
    return slopes(lower) + slopes(2 * lower)[0::2][: count - lower]


erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "geglu": lambda x: x / 2 * (1 + erf(x / 2**0.5)),
    "reglu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
ACTIVATIONS |= {"gelu": ACTIVATIONS["geglu"], "relu": ACTIVATIONS["reglu"]}


def reference(tensors, config, token_ids, segment_ids, padding_mask):
    """Return outputs by name, in float64: those of the encoder, and the logits of the head."""
    weights = {name.removeprefix("bert."): x.astype("float64") for name, x in tensors.items()}

    def dense(name, x):
        y = x @ weights[f"{name}.weight"].T
        return y + weights.get(f"{name}.bias", 0)

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    batch, length = token_ids.shape
    heads = config["num_attention_heads"]
    place = np.arange(length)
    alibi = -np.array(slopes(heads))[:, None, None] * np.abs(place[:, None] - place)  # (N, T, T)
    words = weights["embeddings.word_embeddings.weight"]
    x = words[token_ids] + weights["embeddings.token_type_embeddings.weight"][segment_ids]
    x = norm("embeddings.LayerNorm", x)
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        query, key, value = (
            dense(f"{name}.attention.self.{part}", x).reshape(batch, length, heads, -1)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("btnh,bsnh->bnts", query, key) / query.shape[-1] ** 0.5 + alibi
        scores = np.where(padding_mask[:, None, None] > 0, scores, -1e30)
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        seen = np.einsum("bnts,bsnh->btnh", odds / odds.sum(-1, keepdims=True), value)
        seen = dense(f"{name}.attention.output.dense", seen.reshape(batch, length, -1))
        x = norm(f"{name}.attention.output.LayerNorm", seen + x)
        gate, rest = np.split(dense(f"{name}.mlp.gated_layers", x), 2, axis=-1)
        inner = ACTIVATIONS[config["feed_forward_type"]](gate) * rest
        x = norm(f"{name}.mlp.layernorm", dense(f"{name}.mlp.wo", inner) + x)
    outputs = {"sequence_output": x}
    features = x
    if "pooler.dense.weight" in weights:
        features = outputs["pooled_output"] = np.tanh(dense("pooler.dense", x[:, 0]))
    if "cls.predictions.bias" in weights:
        y = ACTIVATIONS[config["hidden_act"]](dense("cls.predictions.transform.dense", x))
        y = norm("cls.predictions.transform.LayerNorm", y)
        outputs["logits"] = y @ words.T + weights["cls.predictions.bias"]
    for name in ("classifier", "cls.seq_relationship"):
        if f"{name}.weight" in weights:
            outputs["logits"] = dense(name, features)
    if "qa_outputs.weight" in weights:
        logits = dense("qa_outputs", x)
        outputs |= {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    return outputs


def write(directory, architecture, **settings):
    config = {**CONFIG, **settings, "architectures": [architecture]}
    tensors = tensors_of(architecture)
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return tensors, config


def features(length=43):
    random = np.random.default_rng(1)
    mask = np.ones((3, length), "int32")
    mask[1, 17:] = mask[2, -1:] = 0
    return {
        "token_ids": random.integers(0, VOCABULARY, mask.shape).astype("int32"),
        "segment_ids": random.integers(0, 3, mask.shape).astype("int32"),
        "padding_mask": mask,
    }


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"feed_forward_type": "reglu", "hidden_act": "tanh"}])
@pytest.mark.parametrize("architecture", HEADS)
def test_equals_the_definition_both_ways(tmp_path, architecture, settings):
    cls = HEADS[architecture][1]
    tensors, config = write(tmp_path / "theirs", architecture, **settings)
    model = cls.from_preset(
        str(tmp_path / "theirs"), **({} if cls is BertBackbone else {"preprocessor": None})
    )
    given = features()
    inputs = given
    if cls is BertMultipleChoice:
        inputs = {name: np.stack([x, x[::-1]], axis=1) for name, x in given.items()}
    found = model({name: x for name, x in inputs.items() if name in model.input})
    expected = reference(tensors, config, **given)
    if cls is BertMultipleChoice:
        expected["logits"] = np.concatenate([expected["logits"], expected["logits"][::-1]], axis=1)
    found = dict(found) if isinstance(found, dict) else {"logits": found}
    assert found
    real = given["padding_mask"] == 1
    for name, value in found.items():
        value, wanted = keras.ops.convert_to_numpy(value), expected[name]
        if value.shape[:2] == real.shape:
            value, wanted = value[real], wanted[real]
        assert np.abs(wanted).max() > 0.1
        worst = np.abs(value - wanted).max()
        print(f"{architecture} {name}: {worst:.1e}")
        assert worst <= 1e-5

    said = kerasbert.convert(
        str(tmp_path / "theirs"), str(tmp_path / "ours"), task=cls, tokenizer=False
    )
    assert said["written"] == architecture
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all((written[name] == value).all() for name, value in tensors.items())
    said = json.loads((tmp_path / "ours" / "config.json").read_text())
    kept = CONFIG.keys() - {"_name_or_path", "num_labels", "hidden_act"}
    assert {name: said[name] for name in kept} == {name: config[name] for name in kept}
    assert said["auto_map"]["AutoModel"].endswith("--modeling_bert.JinaBertModel")


def test_its_bert_is_another_family(tmp_path):
    """Checkpoints with the model_type "bert" belong to Jina-BERT only if they have ALiBi."""
    write(tmp_path / "jina", "JinaBertModel")
    assert BertBackbone.from_preset(str(tmp_path / "jina")).family == "jina_bert"
    with pytest.raises(ValueError, match="position_embedding_type='relative_key'"):
        write(tmp_path / "other", "JinaBertModel", position_embedding_type="relative_key")
        BertBackbone.from_preset(str(tmp_path / "other"))


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"feed_forward_type": "original"},
            "feed_forward_type='original'.* only feed_forward_type",
        ),
        ({"_name_or_path": "jinaai/jina-bert-v2-qk-post-norm"}, "normalizes queries and keys"),
    ],
)
def test_other_forms_are_refused(tmp_path, settings, message):
    write(tmp_path / "theirs", "JinaBertModel", **settings)
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(str(tmp_path / "theirs"))


def test_no_limit_of_positions():
    encoder = tiny_backbone("jina_bert")
    ids = np.ones((1, 3 * encoder.max_sequence_length), "int32")
    assert encoder({"token_ids": ids})["sequence_output"].shape[1] == ids.shape[1]


def test_other_settings_are_not_written(tmp_path):
    encoder = tiny_backbone("jina_bert", position_bias="buckets", bucket_size=4)
    with pytest.raises(ValueError, match="cannot hold .*position_bias='buckets'"):
        kerasbert.convert(encoder, str(tmp_path / "out"))

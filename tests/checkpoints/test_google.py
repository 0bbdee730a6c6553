"""Google's original checkpoints, written here in the same way as by Google's code, and compared
numerically.
"""

import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.tokenizers import BertTokenizer

pytestmark = pytest.mark.peers

# Names in modeling.py by the names in transformers' BertModel; {} is a layer's number.
NAMES = {
    "embeddings.word_embeddings.weight": "embeddings/word_embeddings",
    "embeddings.position_embeddings.weight": "embeddings/position_embeddings",
    "embeddings.token_type_embeddings.weight": "embeddings/token_type_embeddings",
    "embeddings.LayerNorm.weight": "embeddings/LayerNorm/gamma",
    "embeddings.LayerNorm.bias": "embeddings/LayerNorm/beta",
    "pooler.dense.weight": "pooler/dense/kernel",
    "pooler.dense.bias": "pooler/dense/bias",
}
for part in ("attention.self.query", "attention.self.key", "attention.self.value"):
    NAMES[f"encoder.layer.{{}}.{part}"] = f"encoder/layer_{{}}/{part.replace('.', '/')}"
for part in ("attention.output.dense", "intermediate.dense", "output.dense"):
    NAMES[f"encoder.layer.{{}}.{part}"] = f"encoder/layer_{{}}/{part.replace('.', '/')}"
for part in ("attention.output.LayerNorm", "output.LayerNorm"):
    NAMES[f"encoder.layer.{{}}.{part}"] = f"encoder/layer_{{}}/{part.replace('.', '/')}"
CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
}


def variables_of(model):
    """Return the variables of google-research/bert for transformers' BertModel."""
    variables = {}
    for name, weight in model.state_dict().items():
        value = weight.numpy()
        if name in NAMES:
            theirs = NAMES[name]
        else:
            number = name.split(".")[2]
            pattern, _, leaf = name.replace(f".{number}.", ".{}.", 1).rpartition(".")
            norm = "LayerNorm" in name
            names = ("gamma", "beta") if norm else ("kernel", "bias")
            leaf = names[leaf == "bias"]
            theirs = f"{NAMES[pattern].format(number)}/{leaf}"
        variables[f"bert/{theirs}"] = value.T if theirs.endswith("kernel") else value
    return variables


def write(directory, model, extra=(), prefix="bert_model.ckpt"):
    """Write a directory as in Google's archives, with TensorFlow 1's Saver."""
    config = {key: getattr(model.config, its) for key, its in CONFIG.items()}
    config["hidden_act"] = "gelu"
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "bert_config.json"), "w") as file:
        json.dump(config, file)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "cafe"]
    tokens += [f"[unused{i}]" for i in range(config["vocab_size"] - len(tokens))]
    with open(os.path.join(directory, "vocab.txt"), "w") as file:
        file.writelines(f"{token}\n" for token in tokens)
    values = {**variables_of(model), **dict(extra)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=tf.constant(value))
            for name, value in values.items()
        ]
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(variables)
        saver.save(session, os.path.join(directory, prefix), write_meta_graph=False)
    if prefix == "bert_model.ckpt":
        os.remove(os.path.join(directory, "checkpoint"))  # Google's archives have no such file.
    return str(directory)


def pretraining_heads(model):
    """Return what create_model of run_pretraining.py adds, and the optimizer."""
    width, vocabulary = model.config.hidden_size, model.config.vocab_size
    extra = {
        "cls/predictions/transform/dense/kernel": np.ones((width, width), "float32"),
        "cls/predictions/transform/dense/bias": np.ones(width, "float32"),
        "cls/predictions/transform/LayerNorm/gamma": np.ones(width, "float32"),
        "cls/predictions/transform/LayerNorm/beta": np.ones(width, "float32"),
        "cls/predictions/output_bias": np.ones(vocabulary, "float32"),
        "cls/seq_relationship/output_weights": np.ones((2, width), "float32"),
        "cls/seq_relationship/output_bias": np.ones(2, "float32"),
        "global_step": np.int64(1000),
    }
    for name, value in variables_of(model).items():
        extra[f"{name}/adam_m"] = np.zeros_like(value)
        extra[f"{name}/adam_v"] = np.zeros_like(value)
    return extra


@pytest.fixture
def theirs(reference):
    # The tanh form, the only GELU in modeling.py.
    return reference("bert", hidden_act="gelu_new")


def test_encoder_equals_transformers(theirs, tmp_path):
    directory = write(tmp_path, theirs.model, pretraining_heads(theirs.model))
    encoder = BertBackbone.from_preset(directory)
    assert encoder.activation == "gelu_approximate"
    assert (encoder.dropout, encoder.attention_dropout) == (0.1, 0.1)
    assert encoder.layer_norm_epsilon == 1e-12
    assert theirs.compare(encoder) <= 1e-5


def classifier_head(model):
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, model.config.hidden_size)).astype("float32")
    head = {"output_weights": kernel, "output_bias": np.float32([1, 2, 3])}
    slots = {f"{name}/adam_m": np.zeros_like(value) for name, value in head.items()}
    return {**head, **slots, "global_step": np.int64(7)}


def test_head_of_run_classifier(theirs, tmp_path):
    """`logits = output @ output_weights.T + output_bias` in run_classifier.py."""
    head = classifier_head(theirs.model)
    write(tmp_path, theirs.model)
    directory = write(tmp_path, theirs.model, head, prefix="model.ckpt-7")
    classifier = BertTextClassifier.from_preset(directory, preprocessor=None)
    assert classifier.num_classes == 3
    inputs = theirs.inputs(13)
    expected = theirs(inputs)["pooled_output"] @ head["output_weights"].T + head["output_bias"]
    logits = keras.ops.convert_to_numpy(classifier(inputs))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    encoder = BertBackbone.from_preset(directory)
    assert theirs.compare(encoder, lengths=(13,)) <= 1e-5


def test_new_head(theirs, tmp_path):
    directory = write(tmp_path, theirs.model)
    with pytest.raises(ValueError, match="has no head for a .*"):
        BertTextClassifier.from_preset(directory, preprocessor=None)
    with pytest.warns(UserWarning, match=r"training: logits/bias, logits/kernel\."):
        classifier = BertTextClassifier.from_preset(directory, num_classes=2, preprocessor=None)
    assert theirs.compare(classifier.backbone, lengths=(13,)) <= 1e-5


def test_tokenizer(theirs, tmp_path):
    tokenizer = BertTokenizer.from_preset(write(tmp_path, theirs.model), lowercase=True)
    assert tokenizer("Unable café") == [5, 6, 7]


def test_without_weights(theirs, tmp_path):
    directory = write(tmp_path, theirs.model)
    for name in os.listdir(directory):
        if ".ckpt" in name:
            os.remove(os.path.join(directory, name))
    BertBackbone.from_preset(directory, load_weights=False)
    with pytest.raises(ValueError, match=r"a bert_config.json but no bert_model.ckpt.index"):
        BertBackbone.from_preset(directory)


@pytest.mark.parametrize("end", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_truncated(theirs, tmp_path, end, share):
    directory = write(tmp_path, theirs.model)
    path = os.path.join(directory, "bert_model.ckpt" + end)
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match="(is truncated|asks for).*download it again"):
        BertBackbone.from_preset(directory)


def test_missing_and_left_over(theirs, tmp_path):
    extra = {"bert/encoder/layer_2/output/dense/bias": np.ones(36, "float32")}
    directory = write(tmp_path, theirs.model, extra)
    with pytest.raises(ValueError, match="Left over, theirs: bert/encoder/layer_2/output/dense/b"):
        BertBackbone.from_preset(directory)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"hidden_act": "mish"}, "hidden_act='mish'; it must be one of gelu, relu"),
        ({"hidden_size": None}, "lacks hidden_size; download it again"),
        ({"vocab_size": 98}, r"word_embeddings \(99, 36\), but our token_embedding"),
    ],
    ids=str,
)
def test_bad_configuration(theirs, tmp_path, settings, message):
    directory = write(tmp_path, theirs.model)
    path = os.path.join(directory, "bert_config.json")
    with open(path) as file:
        config = {**json.load(file), **settings}
    with open(path, "w") as file:
        json.dump({key: value for key, value in config.items() if value is not None}, file)
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(directory)

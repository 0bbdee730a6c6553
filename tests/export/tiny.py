"""Tiny models of every task, with weights that matter, on characters of many scripts."""

import importlib

import keras
import numpy as np

from kerasbert import models
from kerasbert.export import serving, token_graphs
from kerasbert.text.byte_pair import byte_characters
from tests.contracts import bert_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = (
    "abcdefghijklmnopqrstuvwxyzáßéöüабвгдежикмнопрстуяابتمرה日本語中文한국กา0123456789.,!?#£[]-"
)
MERGES = ["l o", "Ġ lo", "Ġ w", "e r", "Ġw er", "Ã ¤"]
LABELS = ["ham", "spam", "größer ✓"]


def write_here(monkeypatch):
    """Let exports write in this process if TensorFlow already runs in it, without a child."""

    def here(module, folder, _):
        importlib.import_module(module).main(folder)

    if keras.backend.backend() == "tensorflow":
        for room in (serving, token_graphs):
            monkeypatch.setattr(room, "run_child", here)


def tokenizer():
    vocabulary = SPECIAL + list(CHARACTERS) + [f"##{character}" for character in CHARACTERS]
    return bert_tokenizer(vocabulary)


def byte_pairs(kind, special, merges=MERGES, **settings):
    """Return a tokenizer of `kind` that merges a few pairs."""
    letters = [*special.split(), *byte_characters(), *settings.pop("runs", ())]
    merged = [pair.replace(" ", "") for pair in merges]
    return kind({token: i for i, token in enumerate(letters + merged)}, merges, **settings)


def encoder(tokens=None, **settings):
    """Return an encoder of 2 layers for a tokenizer, always the same one."""
    keras.utils.set_random_seed(7)
    return models.BertBackbone(
        **{
            "vocabulary_size": (tokens or tokenizer()).vocabulary_size(),
            "num_layers": 2,
            "num_heads": 2,
            "hidden_dim": 32,
            "intermediate_dim": 48,
            "max_sequence_length": 64,
            **settings,
        }
    )


def shake(model, scale=0.4):
    """Move each weight, so that every bias and gain matters and answers differ."""
    rng = np.random.default_rng(7)
    for weight in model.weights:
        value = keras.ops.convert_to_numpy(keras.ops.cast(weight.value, "float32"))
        if value.ndim > 1:
            value = np.zeros_like(value)  # Each backend draws its own random numbers.
        weight.assign(value + scale * rng.standard_normal(value.shape).astype("float32"))
    return model


def task(name, tokens=None, preprocessor=None, encoder_settings=None, scale=0.4, **settings):
    """Return a model of the class `Bert<name>`, with its preprocessor for rows of 64 tokens."""
    tokens = tokens or tokenizer()
    backbone = encoder(tokens, **(encoder_settings or {}))
    defaults = {
        "TextClassifier": {"labels": LABELS},
        "TokenClassifier": {"labels": ["PER", "LOC"], "scheme": "BIO"},
    }
    settings = {**defaults.get(name, {}), **settings}
    kinds = getattr(models, f"Bert{name}Preprocessor")
    packing = {"QuestionAnswering": {"max_query_length": 16, "doc_stride": 20}}
    packer = kinds(
        tokens, **{"sequence_length": 64, **packing.get(name, {}), **(preprocessor or {})}
    )
    model = getattr(models, f"Bert{name}")(backbone, preprocessor=packer, **settings)
    return shake(model, scale)


def tasks(**heads):
    """Return a `BertMultiTask` of heads, given as functions of the encoder and a tokenizer."""
    tokens = tokenizer()
    backbone = encoder(tokens)
    return shake(
        models.BertMultiTask({name: make(backbone, tokens) for name, make in heads.items()})
    )

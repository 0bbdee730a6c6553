"""KerasHub presets: saved by its own classes, loaded by ours, compared in the same process."""

import functools
import glob
import json
import os

import keras
import keras_hub
import numpy as np
import pytest

from kerasbert import tokenizers
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.tokenizers import BertTokenizer

_SIZES = {
    "vocabulary_size": 60,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 36,
    "intermediate_dim": 40,
    "max_sequence_length": 32,
}
# Classes and settings besides those of `CLASSIFIERS`.
BACKBONES = [
    ("Bert", {"num_segments": 4, "num_heads": 1}),
    ("Electra", {"vocab_size": 60, "vocabulary_size": None, "embedding_dim": 20}),
    ("Electra", {"vocab_size": 60, "vocabulary_size": None, "embedding_dim": 36}),
    # Fewer than all 32 positions, because on JAX KerasHub rounds the largest distance into the next
    # bucket.
    ("DebertaV3", {"bucket_size": 6, "max_sequence_length": 40}),
    ("Albert", {"embedding_dim": 36, "num_groups": 2, "num_segments": 1}),
]
CLASSIFIERS = ["Bert", "Roberta", "XLMRoberta", "DistilBert", "Albert", "DebertaV3"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "café", "un", "##able", "."]
WORDS += [f"[unused{i}]" for i in range(60 - len(WORDS))]


def perturb(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        value = keras.ops.convert_to_numpy(weight)
        weight.assign(value + 0.15 * rng.normal(size=value.shape).astype("float32"))


def keras_hub_backbone(name, settings):
    settings = {**_SIZES, **settings}
    settings = {key: value for key, value in settings.items() if value is not None}
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**settings)
    perturb(backbone)
    return backbone


@functools.cache
def bert():
    """KerasHub's BERT, for tests that do not change it."""
    return keras_hub_backbone("Bert", {})


def random_inputs(length, segments=1):
    rng = np.random.default_rng(length)
    mask = np.ones((3, length), "int32")
    mask[1, length // 2 + 1 :] = 0
    return {
        "token_ids": rng.integers(0, 60, (3, length)).astype("int32"),
        "padding_mask": mask,
        "segment_ids": rng.integers(0, segments, (3, length)).astype("int32"),
    }


def call(model, inputs):
    return model({name: inputs[name] for name in model.input})


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def outputs(backbone, inputs):
    found = call(backbone, inputs)
    found = found if isinstance(found, dict) else {"sequence_output": found}
    found = {name: numpy(value) for name, value in found.items()}
    found["sequence_output"] = found["sequence_output"][inputs["padding_mask"] == 1]
    return found


def assert_same_encoder(ours, theirs):
    for length in (1, 32):
        inputs = random_inputs(length, getattr(theirs, "num_segments", 1))
        expected, found = outputs(theirs, inputs), outputs(ours, inputs)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name, settings", BACKBONES, ids=str)
def test_encoder_equals_keras_hub(tmp_path, name, settings):
    theirs = keras_hub_backbone(name, settings)
    theirs.save_to_preset(str(tmp_path))
    ours = BertBackbone.from_preset(str(tmp_path))
    assert_same_encoder(ours, theirs)


@pytest.mark.backends("tensorflow", "torch")
def test_shards(tmp_path):
    bert().save_to_preset(str(tmp_path), max_shard_size=3e-5)
    assert len(glob.glob(str(tmp_path / "model_*.weights.h5"))) > 1
    assert_same_encoder(BertBackbone.from_preset(str(tmp_path)), bert())


def rename(directory, old, new):
    for path in glob.glob(os.path.join(directory, "*.json")):
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier_equals_keras_hub(tmp_path, name):
    settings = {"embedding_dim": 20} if name == "Albert" else {}
    backbone = keras_hub_backbone(name, settings)
    theirs = getattr(keras_hub.models, f"{name}TextClassifier")(
        backbone, num_classes=3, dropout=0.3, preprocessor=None
    )
    perturb(theirs)
    theirs.save_to_preset(str(tmp_path))
    rename(tmp_path, "keras_hub>", "keras_nlp>")  # The first presets were written with these names.
    ours = BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
    assert (ours.num_classes, ours.dropout) == (3, 0.3)
    inputs = random_inputs(13, getattr(backbone, "num_segments", 1))
    np.testing.assert_allclose(numpy(call(ours, inputs)), numpy(call(theirs, inputs)), atol=1e-5)
    assert_same_encoder(ours.backbone, backbone)


@pytest.mark.backends("tensorflow", "torch")
def test_softmax_of_the_head_is_kept(tmp_path):
    theirs = keras_hub.models.BertTextClassifier(
        bert(), num_classes=3, activation="softmax", preprocessor=None
    )
    theirs.save_to_preset(str(tmp_path))
    ours = BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
    assert ours.activation == keras.activations.softmax


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("name", ["Bert", "XLMRoberta"])
def test_embedder_equals_keras_hub(tmp_path, name):
    backbone = keras_hub_backbone(name, {})
    theirs = getattr(keras_hub.models, f"{name}TextEmbedder")(backbone, preprocessor=None)
    theirs.save_to_preset(str(tmp_path))
    ours = BertTextEmbedder.from_preset(str(tmp_path), preprocessor=None)
    assert ours.normalize
    inputs = random_inputs(13, getattr(backbone, "num_segments", 1))
    np.testing.assert_allclose(numpy(call(ours, inputs)), numpy(call(theirs, inputs)), atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
def test_pooling_of_an_embedder_is_kept(tmp_path):
    theirs = keras_hub.models.BertTextEmbedder(bert(), None, pooling_mode="max", normalize=False)
    theirs.save_to_preset(str(tmp_path))
    ours = BertTextEmbedder.from_preset(str(tmp_path), preprocessor=None)
    assert (ours.pooling, ours.normalize) == ("max", False)


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("name", ["Bert", "Electra"])
def test_new_head(tmp_path, name):
    theirs = bert() if name == "Bert" else keras_hub_backbone(*BACKBONES[1])
    theirs.save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="has no head for a .*; pass num_classes=2"):
        BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
    with pytest.warns(UserWarning, match=r"New, random weights .*logits/bias, logits/kernel\."):
        BertTextClassifier.from_preset(str(tmp_path), num_classes=2, preprocessor=None)


@pytest.mark.backends("tensorflow", "torch")
def test_head_of_another_width(tmp_path):
    theirs = keras_hub.models.RobertaTextClassifier(
        keras_hub_backbone("Roberta", {}), num_classes=3, hidden_dim=12, preprocessor=None
    )
    theirs.save_to_preset(str(tmp_path))
    assert_same_encoder(BertBackbone.from_preset(str(tmp_path)), theirs.backbone)
    with pytest.raises(ValueError, match="head of hidden_dim=12, not of the encoder's width"):
        BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)


@pytest.mark.backends("tensorflow", "torch")
def test_tokenizer_keeps_the_case_but_not_the_accents(tmp_path):
    for lowercase, ids in ((True, [5, 5]), (False, [1, 6])):
        directory = tmp_path / str(lowercase)
        keras_hub.tokenizers.BertTokenizer(WORDS, lowercase=lowercase).save_to_preset(
            str(directory)
        )
        bert().save_to_preset(str(directory))
        tokenizer = BertTokenizer.from_preset(str(directory))
        assert tokenizer.lowercase == lowercase
        assert tokenizer("Café café")[: len(ids)] == ids
    assert BertTokenizer.from_preset(str(directory), lowercase=True)("CAFÉ") == [5]


def sentence_piece(tmp_path, **settings):
    import sentencepiece

    prefix = str(tmp_path / "model")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "an earth worm", "a round coffee"] * 3),
        model_prefix=prefix,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return f"{prefix}.model"


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("name", ["Roberta", "XLMRoberta", "Albert"])
def test_tokenizer_equals_keras_hub(tmp_path, name):
    if name == "Roberta":
        letters = ["q", "u", "i", "c", "k", "Ġ", "qu", "ic", "ick", "Ġqu"]
        tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters]
        vocabulary = {token: id for id, token in enumerate(tokens)}
        merges = ["q u", "i c", "ic k", "Ġ qu"]
        theirs = keras_hub.tokenizers.RobertaTokenizer(vocabulary, merges)
    elif name == "XLMRoberta":
        proto = sentence_piece(tmp_path, unk_id=0, bos_id=1, eos_id=2)
        theirs = keras_hub.tokenizers.XLMRobertaTokenizer(proto)
    else:
        proto = sentence_piece(
            tmp_path, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]"
        )
        theirs = keras_hub.tokenizers.AlbertTokenizer(proto)
    settings = {"embedding_dim": 20} if name == "Albert" else {}
    keras_hub_backbone(name, settings).save_to_preset(str(tmp_path))
    theirs.save_to_preset(str(tmp_path))
    ours = getattr(tokenizers, f"{name}Tokenizer").from_preset(str(tmp_path))
    assert ours("quick quick") == list(np.array(theirs("quick quick")))
    with pytest.raises(ValueError, match=f"has a {name}Tokenizer, not a BertTokenizer"):
        BertTokenizer.from_preset(str(tmp_path))


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_classifier_of_texts(tmp_path):
    tokenizer = keras_hub.tokenizers.BertTokenizer(WORDS, lowercase=True)
    theirs = keras_hub.models.BertTextClassifier(
        keras_hub_backbone("Bert", {}),
        num_classes=2,
        preprocessor=keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16),
    )
    perturb(theirs)
    theirs.save_to_preset(str(tmp_path))
    ours = BertTextClassifier.from_preset(str(tmp_path))
    ours.run_eagerly = theirs.run_eagerly = True
    texts = ["Unable cafe.", "cafe"]
    expected = theirs.predict(np.array(texts), verbose=0)
    np.testing.assert_allclose(ours.predict(texts, verbose=0), expected, atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
def test_other_models_are_refused(tmp_path):
    with open(tmp_path / "config.json", "w") as file:
        json.dump({"registered_name": "keras_hub>T5Backbone", "config": {}}, file)
    with pytest.raises(ValueError, match="holds a T5Backbone, which is not in the BERT family"):
        BertBackbone.from_preset(str(tmp_path))


@pytest.mark.backends("tensorflow", "torch")
def test_cut_off(tmp_path):
    theirs = keras_hub.models.BertTextClassifier(bert(), num_classes=2, preprocessor=None)
    theirs.save_to_preset(str(tmp_path))
    for file, without in (
        ("model.weights.h5", "is incomplete: "),
        # KerasHub itself accepts such a preset and leaves the head random.
        ("task.weights.h5", "has no head for a .*"),
    ):
        path = tmp_path / file
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(ValueError, match=f"is incomplete: {file} is truncated"):
            BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
        path.unlink()
        with pytest.raises(ValueError, match=without):
            BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)
        path.write_bytes(data)

"""XLM's languages and tokenizer in files, and configurations that are refused; `test_relatives.py`
compares outputs.
"""

import json

import numpy as np
import pytest

import kerasbert
from kerasbert.models import BertBackbone, BertMaskedLM, BertTextClassifier
from tests.contracts import arrays, their_inputs
from tests.peers import transformers

pytestmark = [pytest.mark.peers, pytest.mark.backends("torch")]

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<special0>", "<special1>"]


def with_tokenizer(reference, folder, **settings):
    """Copy a masked language model of three languages, with a tokenizer."""
    theirs = reference("xlm", "ForMaskedLM")
    directory = theirs.copy(folder, **settings)
    tokens = [*SPECIAL, *"abcdefgh", *(f"{x}</w>" for x in "abcdefgh")]
    tokens += [f"<special{i}>" for i in range(2, theirs.model.config.vocab_size - len(tokens) + 2)]
    (folder / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
    (folder / "merges.txt").write_text("a b</w> 9\n")
    config = {"tokenizer_class": "XLMTokenizer", "do_lowercase_and_remove_accent": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return theirs, directory


def segments(model, texts):
    return arrays(model.preprocessor(texts)[0])["segment_ids"]


@pytest.mark.parametrize(
    "settings, languages, expected",
    [
        ({}, ["0", "1", "2"], 0),
        ({"lang_id": 2}, ["0", "1", "2"], 2),
        ({"lang2id": {"fr": 2, "en": 0, "ko": 1}, "lang_id": 1}, ["en", "ko", "fr"], 1),
    ],
)
def test_languages_of_checkpoints(reference, tmp_path, settings, languages, expected):
    theirs, directory = with_tokenizer(reference, tmp_path, **settings)
    model = BertMaskedLM.from_preset(directory)
    assert model.preprocessor.tokenizer.languages == languages
    assert np.unique(segments(model, (["ab c"], ["d"]))).tolist() == [expected]
    kerasbert.convert(directory, str(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["lang2id"] == {name: id for id, name in enumerate(languages)}
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(again).__name__ == "XLMTokenizer"
    text = "ab <special1> d"
    ids = again(text)["input_ids"]
    assert ids == transformers.AutoTokenizer.from_pretrained(directory)(text)["input_ids"]
    assert BertMaskedLM.from_preset(tmp_path / "out").preprocessor.tokenizer.languages == languages
    (found,) = (x["score"] for x in model.fill_mask(text, top_k=1))
    features = {"token_ids": np.array([ids])}
    features["segment_ids"] = np.full_like(features["token_ids"], expected)
    logits = theirs.model(**their_inputs(theirs.model, features)).logits[0, ids.index(5)]
    assert found == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"asm": True}, "asm=True, which kerasbert does not support; only asm=False"),
        ({"is_encoder": False}, "is_encoder=False, which"),
        ({"n_langs": 0}, "n_langs=0"),
        ({"gelu_activation": "relu"}, "gelu_activation='relu'"),
        ({"lang2id": {"en": 0}}, "n_langs=3, but lang2id names 1 languages"),
        ({"lang_id": 3}, "lang_id is 3"),
    ],
)
def test_refused_settings(reference, tmp_path, settings, message):
    _, directory = with_tokenizer(reference, tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        BertMaskedLM.from_preset(directory)


@pytest.mark.parametrize(
    "settings",
    [
        {"summary_type": "mean"},
        {"summary_use_proj": False},
        {"summary_activation": "tanh"},
        {"summary_proj_to_labels": False},
        {"summary_last_dropout": 0.1},
    ],
)
def test_refused_summaries(reference, tmp_path, settings):
    directory = reference("xlm", "ForSequenceClassification").copy(tmp_path, **settings)
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name}=.* can be loaded for the head 'text_classifier'"):
        BertTextClassifier.from_preset(directory, preprocessor=None)
    assert BertBackbone.from_preset(directory).num_segments == 3


def test_what_files_cannot_hold(tmp_path):
    settings = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "vocabulary_size": 9}
    for wrong in ({"intermediate_dim": 16}, {"activation": "silu"}, {"norm_first": True}):
        given = {"intermediate_dim": 32, **settings, **wrong}
        BertBackbone.from_family("xlm", **given).save_to_preset(tmp_path / "in")
        with pytest.raises(ValueError, match=f"XLMModel cannot hold {[*wrong][0]}="):
            kerasbert.convert(str(tmp_path / "in"), str(tmp_path / "out"), format="huggingface")

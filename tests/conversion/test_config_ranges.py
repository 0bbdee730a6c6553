"""Configurations with values that no model has, or without a field, name the field and the file."""

import json

import pytest

from kerasbert.conversion import huggingface
from kerasbert.conversion.checkpoint import Checkpoint
from kerasbert.models import BertBackbone
from kerasbert.tokenizers import BertTokenizer

BERT = {
    "model_type": "bert",
    "vocab_size": 9,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
}
ROTARY = {**BERT, "model_type": "nomic_bert"}


def read(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return huggingface.read_checkpoint(str(folder))


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "base, field, value",
    [
        (BERT, "layer_norm_eps", 1e30),
        (BERT, "layer_norm_eps", 1.0),
        (BERT, "layer_norm_eps", 0),
        (BERT, "layer_norm_eps", "1e-12"),
        (BERT, "initializer_range", 1e30),
        (BERT, "initializer_range", -1),
        (BERT, "hidden_dropout_prob", 1.0),
        (BERT, "num_attention_heads", True),
        (BERT, "num_attention_heads", None),
        (BERT, "problem_type", "nonsense"),
        (BERT, "problem_type", "Regression"),
        (BERT, "hidden_act", "nonsense"),
        (ROTARY, "rope_theta", 1e30),
        (ROTARY, "rope_theta", 1e-30),
    ],
)
def test_values_that_no_model_has(tmp_path, base, field, value):
    read(tmp_path, base)
    with pytest.raises(ValueError) as raised:
        read(tmp_path, {**base, field: value})
    words = str(raised.value)
    assert "config.json" in words and str(value) in words
    assert field in words or field == "hidden_act"  # Which is named as the activation.


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("field", [name for name in BERT if name[0] in "vnhi"])
def test_a_missing_field_is_named(tmp_path, field):
    config = {name: value for name, value in BERT.items() if name != field}
    with pytest.raises(ValueError, match=f"config.json' lacks {field}"):
        read(tmp_path, config)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "names", [{"0": "a", "2": "b"}, {"1": "a", "2": "b"}, {"0": "a", "00": "b"}]
)
def test_labels_with_gaps(tmp_path, names):
    with pytest.raises(ValueError, match="the numbers of the classes, from 0 to 1"):
        read(tmp_path, {**BERT, "id2label": names}).classes()


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "settings",
    [{"layer_norm_epsilon": 1e30}, {"initializer_range": 1e30}, {"rotary_base": 1e-30}],
    ids=str,
)
def test_our_constructor_checks_the_same(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        BertBackbone(9, 1, 2, 8, 8, **settings)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("role", ["pad", "cls", "sep", "mask"])
def test_special_ids_are_those_of_the_tokenizer(role):
    def tokenizer():
        return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])

    right = {f"{name}_token_id": id for name, id in dict(pad=0, cls=2, sep=3, mask=4).items()}
    checkpoint = Checkpoint("x", "bert", {}, tokenizer=tokenizer, token_ids=right)
    BertTokenizer.from_checkpoint(checkpoint)
    wrong = Checkpoint("x", "bert", {}, tokenizer=tokenizer, token_ids={f"{role}_token_id": 5})
    with pytest.raises(ValueError, match=f"'x' has {role}_token_id=5, and its tokenizer has"):
        BertTokenizer.from_checkpoint(wrong)

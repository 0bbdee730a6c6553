"""Errors for configurations with impossible or missing values name the field and the file."""

import json
import math

import pytest

from kerasbert.checkpoints import google, huggingface, sentence_transformers
from kerasbert.checkpoints.checkpoint import Checkpoint
from kerasbert.families.bert import GOOGLE_CONFIG
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
        (BERT, "hidden_act", ""),
        (BERT, "num_attention_heads", 3),
        (BERT, "num_hidden_layers", 10**12),
        (BERT, "pad_token_id", 9),
        (BERT, "cls_token_id", 10**12),
        (BERT, "eos_token_id", "x"),
        (BERT, "unk_token_id", -1),
        ({**BERT, "model_type": "modernbert"}, "classifier_pooling", "sum"),
        (BERT, "tie_word_embeddings", "false"),
        (ROTARY, "rope_theta", 1e30),
        (ROTARY, "rope_theta", 1e-30),
    ],
)
def test_values_that_no_model_has(tmp_path, base, field, value):
    read(tmp_path, base)
    with pytest.raises(ValueError) as raised:
        read(tmp_path, {**base, field: value})
    words = str(raised.value)
    if value == 10**12 and "layers" in field:
        assert str(tmp_path) in words and "asks for 1,000,000,000,000 layers" in words
        return
    assert "config.json" in words and str(value) in words and field in words


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
    with pytest.raises(ValueError, match="the class ids from 0 to 1"):
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
@pytest.mark.parametrize("role", ["pad", "mask"])
def test_special_ids_are_those_of_the_tokenizer(role):
    def tokenizer():
        return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])

    right = {
        # Ids of tokens that do not frame texts may differ.
        f"{name}_token_id": id
        for name, id in dict(pad=0, unk=5, cls=5, sep=5, mask=4).items()
    }
    checkpoint = Checkpoint("x", "bert", {}, tokenizer=tokenizer, token_ids=right)
    BertTokenizer.from_checkpoint(checkpoint)
    wrong = Checkpoint("x", "bert", {}, tokenizer=tokenizer, token_ids={f"{role}_token_id": 5})
    with pytest.raises(ValueError, match=f"'x' has {role}_token_id=5, but its tokenizer has"):
        BertTokenizer.from_checkpoint(wrong)


WRONG = [None, "x", "", -1, 1e30, math.nan, math.inf, True, 2.5, [], {}, [1], {"a": 1}]
# Encoder sizes of each family, by our names.
SIZES = {
    **dict.fromkeys(("num_layers", "num_decoder_layers", "num_heads", "num_decoder_heads"), 2),
    **dict.fromkeys(("hidden_dim", "intermediate_dim", "decoder_intermediate_dim"), 16),
    "vocabulary_size": 9,
}
MORE = {
    "big_bird": {"attention_type": "original_full"},
    "deberta": {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
    },
    "deberta_v3": {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "transformer_xl": {"d_head": 8, "d_embed": 16, "cutoffs": [3, 6]},
}
# Fields that may also be `None` or another number.
FREE = (
    *("embedding_size", "input_embedding_size", "num_hidden_groups", "num_key_value_heads"),
    *("local_attention", "rope_theta", "mem_len", "sep_token_id"),
)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("family", huggingface.ALL_TABLES)
def test_every_setting_of_every_family(tmp_path, family):
    """For a value of a wrong type or out of range, the error names the field and the file."""
    table = huggingface.ALL_TABLES[family]
    base = {"model_type": table.model_type or family, **MORE.get(family, {})}
    base |= {key: SIZES.get(ours, default) for ours, (key, default) in table.config.items()}
    read(tmp_path, base)
    fields = {key for key, _ in table.config.values()} | set(table.special_ids) | {"label2id"}
    for field in sorted(fields - set(FREE)):
        for value in WRONG:
            is_empty = value is None and field not in base
            is_id = field.endswith("token_id") and value in ([], [1], table.no_id or [])
            if is_empty or is_id or field == "label2id" and isinstance(value, dict):
                continue
            if isinstance(base.get(field), bool) and value is True:
                continue
            with pytest.raises(ValueError, match=r"config\.json") as raised:
                read(tmp_path, {**base, field: value})
                pytest.fail(f"{field}={value!r} was taken")
            assert field in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "fields",
    [
        {"id2label": {"0": "a", "1": "a"}},
        {"id2label": {"0": "a", "1": None}},
        {"id2label": {"0": "a", "1": ["b"]}},
        {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}},
        {"id2label": {"0": "a", "1": "b"}, "num_labels": 3},
    ],
    ids=str,
)
def test_labels_that_contradict_each_other(tmp_path, fields):
    with pytest.raises(ValueError, match="id2label") as raised:
        read(tmp_path, {**BERT, **fields}).classes()
    assert "config.json" in str(raised.value) and list(fields)[-1] in str(raised.value)
    # Default names in `label2id`, which nobody changed, are not a contradiction.
    names = {"id2label": {"0": "a", "1": "b"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    assert read(tmp_path, {**BERT, **names}).classes()["labels"] == ["a", "b"]


@pytest.mark.backends("tensorflow")
def test_a_default_id_says_nothing_of_the_tokenizer(tmp_path):
    """In multilingual MiniLM, a BERT with XLM-R's vocabulary, the tokenizer's padding id is 1, and
    the default of the configuration is 0.
    """

    def tokenizer():
        return BertTokenizer(["[CLS]", "[PAD]", "[UNK]", "[SEP]", "[MASK]", "a"])

    found = read(tmp_path, {**BERT, "pad_token_id": 0})
    ids = {"token_ids": found.token_ids, "default_ids": found.default_ids}
    made = Checkpoint("x", "bert", {}, tokenizer=tokenizer, **ids).make_tokenizer()
    assert made.pad_token_id == 1
    # In RoBERTa, the ids must agree, because positions count from the padding id.
    roberta = {**BERT, "model_type": "roberta", "pad_token_id": 0}
    ids["default_ids"] = read(tmp_path, roberta).default_ids
    with pytest.raises(ValueError, match="pad_token_id=0, but its tokenizer has 1"):
        Checkpoint("x", "roberta", {}, tokenizer=tokenizer, **ids).make_tokenizer()


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("value", [value for value in WRONG if value is not None], ids=repr)
def test_googles_settings(tmp_path, value):
    base = {key: 2 for key in GOOGLE_CONFIG.values()} | {"hidden_act": "gelu"}
    base |= {key: 0.1 for key in base if "dropout" in key or key == "initializer_range"}
    for field in base:
        (tmp_path / "bert_config.json").write_text(json.dumps({**base, field: value}))
        with pytest.raises(ValueError, match=rf"bert_config\.json|{field}=") as raised:
            google.read_checkpoint(str(tmp_path))
        assert field in str(raised.value)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "file, field, values",
    [
        ("sentence_bert_config.json", "max_seq_length", ["x", 0, -1, 2.5, True, math.nan, []]),
        ("sentence_bert_config.json", "do_lower_case", ["x", 1, "false"]),
        ("tokenizer_config.json", "model_max_length", ["x", 0, -1, 2.5, True, math.inf]),
        ("pool/config.json", "pooling_mode_mean_tokens", ["x", 1, None]),
        ("pool/config.json", "pooling_mode", ["cls", "nonsense", [], ["mean", "cls"], 1]),
        ("pool/config.json", "word_embedding_dimension", [9, 0, "8", None]),
        ("config_sentence_transformers.json", "prompts", ["x", [], {"query": 1}]),
        ("config_sentence_transformers.json", "default_prompt_name", [1, "nonsense"]),
    ],
)
def test_settings_of_sentence_transformers(tmp_path, file, field, values):
    def written(**changed):
        files = {
            "config.json": BERT,
            "modules.json": [
                {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "path": "pool", "type": "sentence_transformers.models.Pooling"},
            ],
            "pool/config.json": {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
            "sentence_bert_config.json": {"max_seq_length": 8},
            "tokenizer_config.json": {"model_max_length": 10**30},
            "config_sentence_transformers.json": {"prompts": {"query": "q: "}},
        }
        files[file] = {**files[file], **changed}
        (tmp_path / "pool").mkdir(exist_ok=True)
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
        # The tokenizer's length applies if the module has none.
        if file == "tokenizer_config.json":
            (tmp_path / "sentence_bert_config.json").unlink()
        return sentence_transformers.read_checkpoint(str(tmp_path)).head["text_embedder"]()

    assert written() == {"normalize": False, "pooling": "mean"}
    for value in values:
        with pytest.raises(ValueError, match=field.removesuffix("_mean_tokens")) as raised:
            written(**{field: value})
            pytest.fail(f"{field}={value!r} was taken")
        assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("field", ["lowercase", "strip_accents", "split_on_cjk", "pad_token"])
def test_our_tokenizers_check_their_settings(tmp_path, field):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    for value in (1, 2.5, [1], {"a": 1}):
        with pytest.raises(ValueError, match=f"^{field}="):
            BertTokenizer(tokens, **{field: value})
    BertTokenizer(tokens).save_to_preset(str(tmp_path))
    path = tmp_path / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["config"][field] = 1
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=rf"{field}=1 in .*tokenizer\.json"):
        BertTokenizer.from_preset(str(tmp_path))

"""Tokenizer files that we write, read by `transformers` and by us again."""

import json
import os
import re

import pytest

from kerasbert.tokenizers import BertTokenizer, tokenizer_from_files
from kerasbert.tokenizers.sentence_piece import read_proto
from kerasbert.tokenizers.transformers_files import transformers_files

transformers = pytest.importorskip("transformers")

FAMILIES = {
    "BertTokenizer": "bert",
    "RobertaTokenizer": "roberta",
    "ModernBertTokenizer": "modernbert",
    "XLMRobertaTokenizer": "xlm_roberta",
    "AlbertTokenizer": "albert",
}
# Class, settings, and the family when it is another.
ROWS = [
    ("BertTokenizer", {}),
    ("BertTokenizer", {"lowercase": False}),
    ("BertTokenizer", {"lowercase": True, "strip_accents": False, "split_on_cjk": False}),
    ("BertTokenizer", {"lowercase": False, "strip_accents": True}),
    ("BertTokenizer", {"lowercase": False, "split_on_cjk": False, "split_on_punctuation": False}),
    ("BertTokenizer", {"split_characters": True, "split_on_cjk": False}),
    ("BertTokenizer", {"family": "roberta"}),
    ("BertTokenizer", {"family": "distilbert"}),
    ("BertTokenizer", {"family": "electra"}),
    ("RobertaTokenizer", {}),
    ("RobertaTokenizer", {"add_prefix_space": True, "normalization": "NFKC"}),
    ("ModernBertTokenizer", {}),
    ("ModernBertTokenizer", {"family": "roberta"}),
    ("RobertaTokenizer", {"family": "bert"}),
    ("XLMRobertaTokenizer", {}),
    ("XLMRobertaTokenizer", {"family": "bert"}),
    ("AlbertTokenizer", {}),
    ("AlbertTokenizer", {"lowercase": False, "keep_accents": True}),
    ("AlbertTokenizer", {"family": "roberta"}),
]


def write(directory, tokenizer, family):
    files = transformers_files(tokenizer, family, 64, has_segments=family == "bert")
    for name, data in files.items():
        (directory / name).write_bytes(data)
    config = {"model_type": family.replace("xlm_", "xlm-"), "hidden_size": 4}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def plain(tokenizer):
    return {key: value for key, value in tokenizer.get_config().items() if key != "name"}


def written_config(tokenizer):
    """What makes the tokenizer again, its vocabulary included."""
    config = plain(tokenizer)
    del config["special_tokens_in_strings"]
    content = {
        "vocabulary": list(tokenizer.get_vocabulary()),
        "merges": getattr(tokenizer, "merges", None),
        "proto": getattr(tokenizer, "proto", None),
    }
    return config | {key: value for key, value in content.items() if key in config}


def _rows():
    """One row for each tokenizer and family is fast."""
    seen = set()
    for name, settings in ROWS:
        key = name, settings.get("family")
        yield pytest.param((name, settings), marks=pytest.mark.slow if key in seen else ())
        seen.add(key)


@pytest.fixture(params=_rows(), ids=str, scope="module")
def written(request, make, tmp_path_factory):
    """`(ours, theirs, family, directory)`."""
    name, settings = request.param
    family = settings.get("family", FAMILIES[name])
    ours = make(name, **{key: x for key, x in settings.items() if key != "family"})
    directory = write(tmp_path_factory.mktemp("tokenizer"), ours, family)
    return ours, transformers.AutoTokenizer.from_pretrained(directory), family, directory


def compare(ours, theirs, texts):
    found = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    differ = [
        (text, a, ours(text)) for text, a in zip(texts, found, strict=True) if a != ours(text)
    ]
    assert differ == []


def test_transformers_gives_our_tokens(written, sentences, hard):
    ours, theirs, family, _ = written
    # It finds special tokens in every text, deletes characters of private use, and applies
    # SentencePiece's map to halfwidth kana one by one, ALBERT's own class to all of Korean.
    others = "[<[\ue000\uff8a]"
    if type(ours).__name__ == "AlbertTokenizer" and family != "albert":
        others += "|[가-힣]"
    texts = [text for text in sentences + hard if not re.search(others, text)]
    assert len(texts) >= len(sentences + hard) - 4
    compare(ours, theirs, texts)
    assert [theirs.convert_ids_to_tokens(i) for i in range(len(theirs))] == ours.get_vocabulary()
    for role in ("cls", "sep", "pad", "mask", "unk"):
        assert getattr(theirs, f"{role}_token_id") == getattr(ours, f"{role}_token_id")


def test_transformers_finds_special_tokens(written):
    ours, theirs, _, _ = written
    ours = type(ours)(**written_config(ours), special_tokens_in_strings=True)
    cls, sep, mask = ours.cls_token, ours.sep_token, ours.mask_token
    compare(ours, theirs, [f"the {mask} fox", f"{cls}the {sep} fox{mask}."])


def test_rows_are_packed_alike(written):
    ours, theirs, family, _ = written
    found = theirs("the fox", "lazy")
    a, b = ours("the fox"), ours("lazy")
    between = [ours.sep_token_id] * ours.num_separators
    expected = [ours.cls_token_id, *a, *between, *b, ours.sep_token_id]
    assert found["input_ids"] == expected
    assert ("token_type_ids" in found) == (family == "bert")
    if family == "bert" and ours.num_separators == 1:
        size = len(b) + 1
        assert found["token_type_ids"] == [0] * (len(expected) - size) + [1] * size


def test_we_read_our_files(written):
    ours, _, family, directory = written
    again = tokenizer_from_files(directory, family)
    assert type(again) is type(ours)
    expected = plain(ours)
    if type(ours).__name__ == "BertTokenizer":
        assert plain(again) == expected
    assert again.get_vocabulary() == ours.get_vocabulary()
    for path in directory.glob("*.model"):
        os.remove(path)  # The JSON alone holds everything, too.
    again = tokenizer_from_files(directory, family)
    texts = ["the quick fox", "가 나 café", "北京 Größe"]
    assert again(texts) == ours(texts)
    assert again.get_vocabulary() == ours.get_vocabulary()


def test_added_tokens(make, tmp_path):
    tokens = [*make("BertTokenizer").get_vocabulary(), "[E1]"]
    ours = BertTokenizer(tokens, lowercase=True, extra_special_tokens=["[E1]"])
    theirs = transformers.AutoTokenizer.from_pretrained(write(tmp_path, ours, "bert"))
    assert theirs("the[E1]fox", add_special_tokens=False)["input_ids"][-2:] != []
    assert len(tokens) - 1 in theirs("the[E1]fox")["input_ids"]
    assert "[E1]" in tokenizer_from_files(tmp_path, "bert").extra_special_tokens
    runs = make("ModernBertTokenizer")
    (tmp_path / "runs").mkdir()
    theirs = transformers.AutoTokenizer.from_pretrained(
        write(tmp_path / "runs", runs, "modernbert")
    )
    compare(runs, theirs, ["a  b   c    d", "   "])


def test_a_model_that_transformers_has_no_form_for(make):
    proto = read_proto(make("AlbertTokenizer").proto)
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    tokenizer = make("AlbertTokenizer", proto=proto.SerializeToString())
    with pytest.raises(ValueError, match="is no unigram model.*convert with tokenizer=False"):
        transformers_files(tokenizer, "albert", 64, True)

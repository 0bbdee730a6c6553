"""Tokenizer files that we write, read by `transformers` and by us."""

import json
import os
import re

import pytest

from kerasbert.text.sentence_piece_models import read_proto
from kerasbert.text.transformers_files import transformers_files
from kerasbert.tokenizers import BertTokenizer, tokenizer_from_files
from tests.peers import transformers

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

FAMILIES = {
    "BertTokenizer": "bert",
    "MPNetTokenizer": "mpnet",
    "RobertaTokenizer": "roberta",
    "ModernBertTokenizer": "modernbert",
    "XLMRobertaTokenizer": "xlm_roberta",
    "CamembertTokenizer": "camembert",
    "AlbertTokenizer": "albert",
    "RemBertTokenizer": "rembert",
    "DebertaV3Tokenizer": "deberta_v3",
    "ByteFallbackTokenizer": "modernbert",
    "GPT2Tokenizer": "gpt2",
    "GPTTokenizer": "gpt",
}
# Class, settings, and the family if it is another one.
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
    ("MPNetTokenizer", {}),
    ("RobertaTokenizer", {}),
    ("RobertaTokenizer", {"add_prefix_space": True, "normalization": "NFKC"}),
    ("ModernBertTokenizer", {}),
    ("ModernBertTokenizer", {"family": "roberta"}),
    ("RobertaTokenizer", {"family": "bert"}),
    ("XLMRobertaTokenizer", {}),
    ("XLMRobertaTokenizer", {"family": "bert"}),
    ("CamembertTokenizer", {}),
    ("AlbertTokenizer", {}),
    ("AlbertTokenizer", {"lowercase": False, "keep_accents": True}),
    ("AlbertTokenizer", {"family": "roberta"}),
    ("DebertaV3Tokenizer", {}),
    ("ByteFallbackTokenizer", {}),
    ("ByteFallbackTokenizer", {"prepend_scheme": "prepend", "begins_second": True}),
    ("GPT2Tokenizer", {}),
    ("GPTTokenizer", {}),
]


def write(directory, tokenizer, family, **settings):
    files = transformers_files(tokenizer, family, 64, has_segments=family == "bert", **settings)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    kind = {"gpt": "openai-gpt", "deberta_v3": "deberta-v2"}.get(
        family, family.replace("xlm_", "xlm-")
    )
    config = {"model_type": kind, "hidden_size": 4}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def plain(tokenizer):
    return {key: value for key, value in tokenizer.get_config().items() if key != "name"}


def written_config(tokenizer):
    """Return the settings that restore the tokenizer, including its vocabulary."""
    config = plain(tokenizer)
    del config["special_tokens_in_strings"]
    content = {
        "vocabulary": list(tokenizer.get_vocabulary()),
        "merges": getattr(tokenizer, "merges", None),
        "proto": getattr(tokenizer, "proto", None),
    }
    return config | {key: value for key, value in content.items() if key in config}


def _rows():
    """Yield the rows as parameters; all but the first row of each tokenizer and family are slow
    tests.
    """
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


@pytest.mark.peers
def test_transformers_gives_our_tokens(written, sentences, hard):
    ours, theirs, family, _ = written
    # transformers deletes characters of private use, and applies SentencePiece's map to each
    # halfwidth kana alone; ALBERT's own class does so for Korean, too, and finds "<s>" even if "<"
    # is not a piece.
    others = "[\ue000\uff8a]"
    if type(ours).__name__ == "AlbertTokenizer" and family != "albert":
        others += r"|[가-힣]|[\[<]"
    texts = sentences + hard
    kept = [text for text in texts if not re.search(others, text)]
    assert len(kept) >= len(texts) - 5
    texts = [text for text in texts + special_in_texts(ours) if not re.search(others, text)]
    compare(ours, theirs, texts)
    assert [theirs.convert_ids_to_tokens(i) for i in range(len(theirs))] == ours.get_vocabulary()
    for role in ("cls", "sep", "pad", "mask", "unk"):
        assert getattr(theirs, f"{role}_token_id") == getattr(ours, f"{role}_token_id")
    assert (theirs.bos_token, theirs.eos_token) == (ours.cls_token, ours.sep_token)


def special_in_texts(tokenizer):
    """Return texts with special tokens of all roles, separate and inside words."""
    cls, sep, mask = tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token
    texts = [f"the {mask} fox", f"{cls}the {sep} fox{mask}.", f"{mask}{mask} {sep}"]
    every = [x for token in tokenizer.special_tokens for x in (token, f"a{token}b", f"the {token}")]
    return texts + every


@pytest.mark.peers
def test_the_json_alone_gives_our_tokens(written):
    # Readers other than `transformers`: tokenizers in other languages, fastembed.
    from tokenizers import Tokenizer

    ours, _, _, directory = written
    theirs = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for names in json.loads((directory / "special_tokens_map.json").read_text()).values():
        theirs.add_special_tokens([names])
    for text in special_in_texts(ours):
        assert theirs.encode(text, add_special_tokens=False).ids == ours(text)
    framed = ours("the fox")
    if getattr(ours, "marks_ends", True):
        framed = [ours.cls_token_id, *framed, ours.sep_token_id]
    assert theirs.encode("the fox").ids == framed


@pytest.mark.peers
@pytest.mark.parametrize("by", ["the tokenizer", "the model"])
def test_special_tokens_are_found_where_ours_finds_them(written, tmp_path, by):
    from tokenizers import Tokenizer

    plain, _, family, _ = written
    ours = type(plain)(**written_config(plain), special_tokens_in_strings=True)
    given = ours if by == "the tokenizer" else plain
    write(tmp_path, given, family, finds_special=by == "the model")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = special_in_texts(ours)
    compare(ours, theirs, texts)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [theirs.encode(text, add_special_tokens=False).ids for text in texts] == ours(texts)
    again = tokenizer_from_files(tmp_path, family)
    assert again.special_tokens_in_strings == given.special_tokens_in_strings
    assert again(texts) == given(texts)


@pytest.mark.peers
def test_rows_are_packed_alike(written):
    ours, theirs, family, _ = written
    found = theirs("the fox", "lazy")
    a, b = ours("the fox"), ours("lazy")
    between = [ours.sep_token_id] * ours.num_separators
    if ours.begins_second:
        between[-1] = ours.cls_token_id
    expected = [*a, *b]
    if getattr(ours, "marks_ends", True):
        expected = [ours.cls_token_id, *a, *between, *b, ours.sep_token_id]
    assert found["input_ids"] == expected
    assert ("token_type_ids" in found) == (family == "bert")
    if family == "bert" and ours.num_separators == 1:
        size = len(b) + 1
        assert found["token_type_ids"] == [0] * (len(expected) - size) + [1] * size


@pytest.mark.peers
def test_we_read_our_files(written):
    ours, _, family, directory = written
    again = tokenizer_from_files(directory, family)
    assert type(again) is type(ours)
    expected = plain(ours)
    if type(ours).__name__ == "BertTokenizer":
        assert plain(again) == expected
    assert again.get_vocabulary() == ours.get_vocabulary()
    for path in directory.glob("*.model"):
        os.remove(path)  # The JSON file alone is enough, too.
    again = tokenizer_from_files(directory, family)
    texts = ["the quick fox", "가 나 café", "北京 Größe"]
    assert again(texts) == ours(texts)
    assert again.get_vocabulary() == ours.get_vocabulary()


@pytest.mark.peers
def test_added_tokens(make, tmp_path):
    tokens = [*make("BertTokenizer").get_vocabulary(), "[E1]"]
    for finds in (False, True):
        ours = BertTokenizer(
            tokens,
            lowercase=True,
            extra_special_tokens=["[E1]"],
            special_tokens_in_strings=finds,
        )
        theirs = transformers.AutoTokenizer.from_pretrained(write(tmp_path, ours, "bert"))
        compare(ours, theirs, ["the[E1]fox"])
        assert (len(tokens) - 1 in ours("the[E1]fox")) == finds
        again = tokenizer_from_files(tmp_path, "bert")
        assert again("the[E1]fox") == ours("the[E1]fox")
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
    with pytest.raises(ValueError, match="is not a unigram model.*convert with tokenizer=False"):
        transformers_files(tokenizer, "albert", 64, True)

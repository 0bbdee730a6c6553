"""Tokenizers from directories of files, as Google and Hugging Face write them."""

import json
import re

import pytest

from kerasbert.text.choose import tokenizer_class
from kerasbert.tokenizers import (
    AlbertTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    DebertaV3Tokenizer,
    FastTokenizer,
    ModernBertTokenizer,
    RemBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
    tokenizer_from_files,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write(directory, **files):
    """`vocab_txt=[...]`, `tokenizer_config={...}`: lists as lines, dicts as JSON."""
    for name, content in files.items():
        if isinstance(content, list):
            path = directory / f"{name.removesuffix('_txt')}.txt"
            path.write_text("\n".join(content) + "\n", encoding="utf-8")
        else:
            (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


def wordpiece_json(tokens, **normalizer):
    return {
        "added_tokens": [],
        **({"normalizer": {"type": "BertNormalizer", **normalizer}} if normalizer else {}),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "vocab": {token: id for id, token in enumerate(tokens)},
        },
    }


def test_a_vocabulary_alone(tmp_path):
    uncased = BertTokenizer.from_files(write(tmp_path, vocab_txt=[*SPECIAL, "paris", "##é"]))
    assert uncased.lowercase and uncased.strip_accents is None and uncased.split_on_cjk
    assert uncased("Paris") == [5]
    cased = BertTokenizer.from_files(write(tmp_path, vocab_txt=[*SPECIAL, "Paris", "paris"]))
    assert not cased.lowercase and cased("Paris paris") == [5, 6]


def test_settings_of_the_checkpoint(tmp_path):
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    write(tmp_path, vocab_txt=[*SPECIAL, "A"], tokenizer_config=config)
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (True, False)
    assert tokenizer.split_on_cjk is False
    assert BertTokenizer.from_files(tmp_path, lowercase=False).lowercase is False


def test_tokenizer_json_alone(tmp_path):
    rules = {"lowercase": False, "strip_accents": True, "handle_chinese_chars": False}
    write(tmp_path, tokenizer=wordpiece_json([*SPECIAL, "Cafe", "x"], **rules))
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert tokenizer("Café x") == [5, 6]
    assert (tokenizer.lowercase, tokenizer.strip_accents, tokenizer.split_on_cjk) == (
        *(False, True, False),
    )
    # tokenizer_config.json has precedence, as in transformers.
    write(tmp_path, tokenizer_config={"do_lower_case": True, "strip_accents": None})
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (True, None)


@pytest.mark.parametrize("where", ["tokenizer_config", "special_tokens_map"])
def test_special_tokens_of_other_names(tmp_path, where):
    names = {"unk_token": "<u>", "cls_token": {"content": "<c>", "lstrip": False}}
    write(tmp_path, vocab_txt=["[PAD]", "<u>", "<c>", "[SEP]", "[MASK]", "a"], **{where: names})
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert tokenizer("a b") == [5, 1] and tokenizer.start_token_id == 2
    # Names that no file gives, but that the vocabulary has.
    usual = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a"]
    other = tmp_path / "other"
    other.mkdir()
    assert BertTokenizer.from_files(write(other, vocab_txt=usual)).mask_token_id == 4


def test_added_tokens_have_their_ids(tmp_path):
    write(tmp_path, vocab_txt=[*SPECIAL, "a"], added_tokens={"[E1]": 6, "covid": 8})
    tokenizer = BertTokenizer.from_files(tmp_path)
    assert tokenizer.vocabulary_size() == 9
    assert tokenizer("a[E1]Covid") == [5, 6, 8]


def test_japanese(tmp_path):
    config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    config |= {"subword_tokenizer_type": "wordpiece", "do_lower_case": False}
    vocabulary = [*SPECIAL, "東京", "が", "か", "##大学", "、"]
    write(tmp_path, vocab_txt=vocabulary, tokenizer_config=config)
    with pytest.warns(UserWarning, match="segments words with mecab.*; segment texts"):
        tokenizer = tokenizer_from_files(tmp_path, "bert")
    assert tokenizer("東京大学 が 、") == [5, 8, 6, 9]
    config["subword_tokenizer_type"] = "character"
    write(tmp_path, vocab_txt=[*SPECIAL, "東", "京", "が"], tokenizer_config=config)
    with pytest.warns(UserWarning):
        tokenizer = tokenizer_from_files(tmp_path, "bert")
    assert tokenizer("東京 がx") == [5, 6, 7, 1]


@pytest.mark.filterwarnings("error")
def test_the_files_decide_on_the_class(tmp_path, word_pieces, byte_pairs, xlmr_model, albert_model):
    vocabulary, merges = byte_pairs
    merges = [" ".join(pair) for pair in merges]
    byte_level = {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    names = {"unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    names["mask_token"] = "<mask>"
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    cases = [
        ({"vocab_txt": word_pieces}, "electra", BertTokenizer),
        ({"tokenizer": wordpiece_json(word_pieces)}, "distilbert", BertTokenizer),
        ({"vocab": vocabulary, "merges_txt": merges}, "roberta", RobertaTokenizer),
        ({"tokenizer": byte_level}, "roberta", RobertaTokenizer),
        ({"tokenizer": byte_level, "tokenizer_config": fast}, "modernbert", ModernBertTokenizer),
        ({"tokenizer": byte_level, "tokenizer_config": fast}, "bert", RobertaTokenizer),
        ({"sentencepiece.bpe.model": xlmr_model}, "xlm_roberta", XLMRobertaTokenizer),
        ({"sentencepiece.bpe.model": xlmr_model}, "camembert", CamembertTokenizer),
        # A BERT with the tokenizer of XLM-R, as in some multilingual sentence encoders.
        ({"sentencepiece.bpe.model": xlmr_model}, "bert", XLMRobertaTokenizer),
        ({"spiece.model": albert_model}, "albert", AlbertTokenizer),
        ({"sentencepiece.model": albert_model}, "rembert", RemBertTokenizer),
        ({"spiece.model": albert_model}, "big_bird", DebertaV3Tokenizer),
        ({"vocab": vocabulary, "merges_txt": merges}, "luke", RobertaTokenizer),
        # The Japanese LUKE and mLUKE.
        ({"sentencepiece.bpe.model": xlmr_model}, "luke", XLMRobertaTokenizer),
    ]
    for i, (files, family, cls) in enumerate(cases):
        directory = tmp_path / str(i)
        directory.mkdir()
        for name in [name for name in files if name.endswith(".model")]:
            (directory / name).write_bytes(files.pop(name))
        tokenizer = tokenizer_from_files(write(directory, **files), family)
        assert type(tokenizer) is cls
        assert tokenizer.vocabulary_size() > 100


def test_a_family_without_a_tokenizer(tmp_path, xlmr_model):
    (tmp_path / "spiece.model").write_bytes(xlmr_model)
    with pytest.raises(ValueError, match="no tokenizer for models of the family 'transformer_xl'"):
        tokenizer_from_files(str(tmp_path), "transformer_xl")


@pytest.mark.parametrize("config", [{}, {"tokenizer_class": "RoFormerTokenizer"}])
def test_roformers_words(tmp_path, config):
    write(tmp_path, vocab_txt=[*SPECIAL, "a"], tokenizer_config=config)
    with pytest.raises(ValueError, match="a RoFormerTokenizer, which splits Chinese .* 'BertTok"):
        tokenizer_from_files(tmp_path, "roformer")
    write(tmp_path, tokenizer_config={"tokenizer_class": "BertTokenizer"})
    assert type(tokenizer_from_files(tmp_path, "roformer")) is BertTokenizer


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer files: none of vocab.txt"):
        tokenizer_from_files(tmp_path, "bert")
    with pytest.raises(ValueError, match="Unknown family 'gpt3'"):
        tokenizer_from_files(tmp_path, "gpt3")
    with pytest.raises(ValueError, match="is not a directory"):
        tokenizer_from_files(tmp_path / "nowhere", "bert")
    write(tmp_path, vocab_txt=SPECIAL, tokenizer_config={"tokenizer_class": "PhobertTokenizer"})
    with pytest.raises(ValueError, match="has a PhobertTokenizer, which is not supported"):
        tokenizer_from_files(tmp_path, "roberta")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config.json' is not valid JSON"):
        tokenizer_from_files(tmp_path, "bert")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list, but must hold an object"):
        tokenizer_from_files(tmp_path, "bert")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="needs a BPE model, but .* has a WordPiece model"):
        RobertaTokenizer.from_files(tmp_path)
    write(tmp_path, tokenizer={"model": {"type": "WordLevel", "vocab": {}}})
    with pytest.raises(ValueError, match="`tokenizers` cannot read this tokenizer.json"):
        tokenizer_from_files(tmp_path, "bert")
    write(tmp_path, tokenizer={"model": {"type": "BPE"}})
    with pytest.raises(ValueError, match="has no 'vocab'"):
        tokenizer_from_files(tmp_path, "bert")


ABSENT = object()


def changed(value, path, new):
    """Return a copy of nested lists and dicts with another value at a path."""
    value = json.loads(json.dumps(value))
    at = value
    for key in path[:-1]:
        at = at[key]
    if new is ABSENT:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


WORDS = {token: id for id, token in enumerate([*SPECIAL, "a", "b"])}
WORD_PIECE = {**wordpiece_json([*SPECIAL, "a", "b"], lowercase=True)}
WORD_PIECE["added_tokens"] = [{"id": 4, "content": "[MASK]", "special": True}]
BYTES = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6, "ab": 7}
BYTE_PAIR = {
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    "model": {"type": "BPE", "vocab": BYTES, "merges": ["a b"]},
}
PIECES = [[token, -float(id)] for id, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a"])]
UNIGRAM = {
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": ""},
    "model": {"type": "Unigram", "unk_id": 3, "vocab": [*PIECES, ["<mask>", 0.0]]},
}
DAMAGED = [
    (WORD_PIECE, ["model"], [], "model=.. in .* must be an object"),
    (WORD_PIECE, ["model", "type"], {}, "type=.. in .* must be a string"),
    (WORD_PIECE, ["model", "vocab"], list(WORDS), "vocab=.* must be an object"),
    (WORD_PIECE, ["model", "vocab", "a"], "5", "The token 'a' has the id '5'"),
    (WORD_PIECE, ["model", "vocab", "a"], -1, "The token 'a' has the id -1"),
    (WORD_PIECE, ["model", "vocab", "a"], 10**9, "The token 'a' has the id 1000000000"),
    (WORD_PIECE, ["model", "vocab", "a"], 5.0, "The token 'a' has the id 5.0"),
    (WORD_PIECE, ["model", "vocab", "a"], True, "The token 'a' has the id True"),
    (WORD_PIECE, ["model", "vocab", "a"], 6, "The tokens 'a' and 'b' share the id 6"),
    (WORD_PIECE, ["model", "vocab", "\ud800"], 7, r"Token 7 of the vocabulary, '\\ud800', must be"),
    (WORD_PIECE, ["model", "unk_token"], ["[UNK]"], "unk_token=.* must be a string"),
    (WORD_PIECE, ["added_tokens"], {}, "added_tokens=.. in .* must be a list"),
    (WORD_PIECE, ["added_tokens", 0], "[MASK]", "an added token='.MASK.' in .* be an object"),
    (WORD_PIECE, ["added_tokens", 0, "id"], "4", "the id of '.MASK.'='4' in .* a whole number"),
    (WORD_PIECE, ["added_tokens", 0, "id"], -1, "the id of '.MASK.'=-1 in .* a whole number"),
    (WORD_PIECE, ["added_tokens", 0, "content"], 1, "content of an added token=1 in .* string"),
    (
        WORD_PIECE,
        ["added_tokens"],
        [{"id": 7, "content": "x"}, {"id": 7, "content": "y"}],
        "added tokens 'x' and 'y' in .* share the id 7",
    ),
    (
        WORD_PIECE,
        ["added_tokens", 0],
        {"id": 5, "content": "x"},
        "tokens 'a' and 'x' share the id 5",
    ),
    (WORD_PIECE, ["normalizer"], "lower", "normalizer='lower' in .* must be an object"),
    (WORD_PIECE, ["normalizer", "lowercase"], "yes", "lowercase='yes' in .* true or false"),
    (WORD_PIECE, ["normalizer"], {"type": "Sequence"}, "normalizers=None in .* be a list"),
    (WORD_PIECE, ["pre_tokenizer"], {"type": "Sequence", "pretokenizers": [1]}, "=1 in .* object"),
    (BYTE_PAIR, ["model", "merges"], ABSENT, "merges=None in .* must be a list"),
    (BYTE_PAIR, ["model", "merges"], [1], "The merge 1 must be two tokens"),
    (BYTE_PAIR, ["model", "merges"], [["a", 1]], r"The merge \['a', 1\] must be two tokens"),
    (BYTE_PAIR, ["model", "merges"], ["a c"], "'a c' needs the token 'c', which the vocabulary"),
    (UNIGRAM, ["model", "vocab"], WORDS, "vocab=.* must be a list"),
    (
        UNIGRAM,
        ["model", "vocab", 4, 1],
        float("nan"),
        r"Piece 4 in .* is \['a', nan\], expected a",
    ),
    (UNIGRAM, ["model", "vocab", 4, 1], "1", r"Piece 4 in .* is \['a', '1'\], expected a string"),
    (UNIGRAM, ["model", "vocab", 4], "a", "Piece 4 in .* is 'a', expected a string and a number"),
    (UNIGRAM, ["model", "vocab", 4, 0], "", "Piece 4 of the SentencePiece model, '', has the"),
    (UNIGRAM, ["model", "vocab", 4, 0], "<s>", "'<s>' twice, as ids 0 and 4"),
    (UNIGRAM, ["model", "unk_id"], 6, "unk_id=6, which is not one of its 6 pieces"),
    (UNIGRAM, ["model", "unk_id"], None, "has no unk_id, but a SentencePiece model needs"),
    (UNIGRAM, ["model", "unk_id"], -1, "unk_id=-1 in .* a whole number of at least 0"),
    (UNIGRAM, ["normalizer", "precompiled_charsmap"], "?", "that is not base64"),
    (UNIGRAM, ["normalizer", "precompiled_charsmap"], "AAAA", "character map .* 3 bytes"),
    (UNIGRAM, ["normalizer", "precompiled_charsmap"], 3, "precompiled_charsmap=3 in .* string"),
]


@pytest.mark.parametrize("whole, path, new, message", DAMAGED)
def test_damaged_tokenizer_json(tmp_path, whole, path, new, message):
    write(tmp_path, tokenizer=whole)
    tokenizer_from_files(tmp_path, "bert")
    write(tmp_path, tokenizer=changed(whole, path, new))
    with pytest.raises(ValueError, match=message):
        tokenizer_from_files(tmp_path, "bert")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("tokenizer_config", {"do_lower_case": "yes"}, "do_lower_case='yes' in .* true or false"),
        ("tokenizer_config", {"tokenizer_class": ["Bert"]}, "tokenizer_class=.* be a string"),
        ("tokenizer_config", {"cls_token": ["[CLS]"]}, "cls_token=.* must be a string, or"),
        ("tokenizer_config", {"cls_token": {"content": 1}}, "cls_token=.* must be a string, or"),
        ("tokenizer_config", {"added_tokens_decoder": []}, "added_tokens_decoder=.. in .* object"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {"content": "a"}}}, "='x' in .* whole"),
        ("tokenizer_config", {"added_tokens_decoder": {"1": 1}}, "an added token=1 in .* object"),
        ("special_tokens_map", {"mask_token": 4}, "mask_token=4 in .* must be a string, or"),
        ("added_tokens", {"x": "6"}, "the id of 'x'='6' in .* whole number of at least 0"),
        ("added_tokens", {"x": 10**8}, "The token 'x' has the id 100000000"),
        ("added_tokens", {"x": 1}, "The tokens '.UNK.' and 'x' share the id 1"),
    ],
)
def test_damaged_files_beside_a_vocabulary(tmp_path, name, content, message):
    write(tmp_path, vocab_txt=[*SPECIAL, "a"], **{name: content})
    with pytest.raises(ValueError, match=message):
        tokenizer_from_files(tmp_path, "bert")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
)
@pytest.mark.parametrize(
    "data, message",
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"model": {"type": "Wor', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"", "not valid JSON"),
    ],
)
def test_files_that_are_no_json(tmp_path, name, data, message):
    write(tmp_path, vocab_txt=[*SPECIAL, "a"])
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        tokenizer_from_files(tmp_path, "bert")


def test_steps_nested_deeply(tmp_path):
    step = {"type": "BertNormalizer"}
    for _ in range(300):
        step = {"type": "Sequence", "normalizers": [step]}
    write(tmp_path, tokenizer=changed(WORD_PIECE, ["normalizer"], step))
    assert BertTokenizer.from_files(tmp_path)("a") == [5]


def step(kind, **fields):
    return {"type": kind, **fields}


def sequence(part, *steps):
    names = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
    return {"type": "Sequence", names[part]: list(steps)}


BERT = step("BertNormalizer", lowercase=True)
SPACE = step("Metaspace", replacement="\u2581", prepend_scheme="always")
SPLIT = step("WhitespaceSplit")
QUOTES = [step("Replace", pattern={"String": old}, content='"') for old in ("``", "''")]
FRAME = {"cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}
NOT_KNOWN = "is unknown and may change the tokens"
REFUSED = [
    # The whole file, family, path, new value, error.
    (WORD_PIECE, ["something"], 1, f"a field 'something', which {NOT_KNOWN}"),
    (WORD_PIECE, ["model", "some"], 1, f"an option of its model, 'some', which {NOT_KNOWN}"),
    (
        WORD_PIECE,
        ["added_tokens", 0, "x"],
        1,
        f"for the added token '.MASK.' 'x', which {NOT_KNOWN}",
    ),
    (WORD_PIECE, ["normalizer"], None, r"normalizes text with \[\], but BertTokenizer supports"),
    (WORD_PIECE, ["normalizer"], step("NFKC"), r"with \['NFKC'\], but BertTokenizer supports"),
    (
        WORD_PIECE,
        ["normalizer"],
        sequence("normalizer", step("NFD"), BERT),
        r"\['NFD', 'BertNormalizer'\], but .* supports",
    ),
    (WORD_PIECE, ["normalizer"], {**BERT, "clean_text": False}, "BertNormalizer with clean_text=F"),
    (WORD_PIECE, ["normalizer"], {**BERT, "new": 1}, "BertNormalizer with new=1, which BertTo"),
    (WORD_PIECE, ["pre_tokenizer"], None, r"splits words with \[\], but BertTokenizer supports"),
    (WORD_PIECE, ["pre_tokenizer"], step("Whitespace"), r"splits words with \['Whitespace'\]"),
    (
        WORD_PIECE,
        ["pre_tokenizer"],
        sequence("pre_tokenizer", step("Digits"), step("BertPreTokenizer")),
        r"\['Digits', 'BertPreTokenizer'\]",
    ),
    (WORD_PIECE, ["model", "continuing_subword_prefix"], "", "continuing_subword_prefix='' in its"),
    (
        WORD_PIECE,
        ["post_processor"],
        None,
        r"frames a text as '\.\.\.', but .* '\[CLS\] ... \[SEP\]'",
    ),
    (
        WORD_PIECE,
        ["post_processor"],
        step("RobertaProcessing", **FRAME),
        r"frames a pair as '.CLS. ",
    ),
    (WORD_PIECE, ["post_processor"], step("BertProcessing", cls=[]), "cls=.. in its BertProcess"),
    (
        WORD_PIECE,
        ["post_processor"],
        step(
            "TemplateProcessing",
            single=[{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}],
            special_tokens={"[CLS]": {"ids": [4]}},
        ),
        r"ids=\[4\] for '\[CLS\]', whose id is 2",
    ),
    (WORD_PIECE, ["truncation"], {"direction": "Left"}, "has truncation_side='Left'"),
    (BYTE_PAIR, ["model", "dropout"], 0.1, "dropout=0.1 in its model, which RobertaTokenizer"),
    (BYTE_PAIR, ["model", "ignore_merges"], True, "ignore_merges=True in its model"),
    (BYTE_PAIR, ["model", "end_of_word_suffix"], "</w>", "end_of_word_suffix='</w>' in its model"),
    (BYTE_PAIR, ["model", "unk_token"], "<unk>", "unk_token='<unk>' in its model"),
    (
        BYTE_PAIR,
        ["pre_tokenizer"],
        step("ByteLevel", use_regex=False),
        "ByteLevel with use_regex=False, which RobertaTokenizer does not",
    ),
    (BYTE_PAIR, ["normalizer"], step("Strip"), r"normalizes text with \['Strip'\]"),
    (UNIGRAM, ["normalizer"], step("Lowercase"), r"with \['Lowercase'\], but XLMRobertaTokenizer"),
    (
        UNIGRAM,
        ["normalizer"],
        step("Replace", pattern={"String": "e"}, content="a"),
        "Replace with",
    ),
    (UNIGRAM, ["pre_tokenizer"], SPACE, r"splits words with \['Metaspace'\], but XLM"),
    (
        UNIGRAM,
        ["pre_tokenizer"],
        sequence("pre_tokenizer", SPLIT, {**SPACE, "prepend_scheme": "first"}),
        "Metaspace with prepend_scheme='first'",
    ),
    (
        UNIGRAM,
        ["pre_tokenizer"],
        sequence("pre_tokenizer", SPLIT, {**SPACE, "split": False}),
        "Metaspace with split=False",
    ),
]


@pytest.mark.parametrize("whole, path, new, message", REFUSED)
def test_every_field_is_known_or_refused(tmp_path, whole, path, new, message):
    family = {"WordPiece": "bert", "BPE": "roberta", "Unigram": "xlm_roberta"}
    family = family[whole["model"]["type"]]
    write(tmp_path, tokenizer=changed(whole, path, new))
    with pytest.raises(ValueError, match=message):
        tokenizer_class(whole["model"]["type"], family).from_files(tmp_path)
    # The library runs the file if it has all fields; tests/text/test_fast.py has more such files.
    try:
        made = tokenizer_from_files(tmp_path, family)
    except ValueError as error:
        assert re.search(message, str(error))
    else:
        assert type(made) is FastTokenizer and re.search(message, made.reason)


def test_steps_of_albert_are_in_order(tmp_path):
    clean = [step("NFKD"), step("StripAccents"), step("Lowercase")]
    for steps in (clean, [*QUOTES, *clean[::-1]], [*QUOTES, clean[0]], QUOTES):
        whole = changed(UNIGRAM, ["normalizer"], sequence("normalizer", *steps))
        write(tmp_path, tokenizer=whole)
        if steps == QUOTES:
            assert tokenizer_from_files(tmp_path, "albert", unk_token="<unk>").keep_accents
            continue
        with pytest.raises(ValueError, match="AlbertTokenizer replaces `` and '', then"):
            AlbertTokenizer.from_files(tmp_path)


def test_the_longest_word_of_the_files(tmp_path):
    tokens, long = [*SPECIAL, "a", "##a"], "a" * 150
    unknown, cut = [1], [5, *[6] * 149]
    write(tmp_path, vocab_txt=tokens)
    assert BertTokenizer.from_files(tmp_path)(long) == cut  # As in Google's code.
    write(tmp_path, tokenizer_config={"do_lower_case": True})
    assert BertTokenizer.from_files(tmp_path)(long) == unknown  # As in transformers.
    for length, wanted in ((150, cut), (149, unknown), (3000, cut)):
        whole = changed(wordpiece_json(tokens), ["model", "max_input_chars_per_word"], length)
        write(tmp_path, tokenizer=whole)
        assert BertTokenizer.from_files(tmp_path)(long) == wanted
    assert BertTokenizer(tokens, max_input_chars_per_word=3)("aaa aaaa") == [5, 6, 6, 1]

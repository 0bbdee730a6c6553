"""Tokenizers from directories of files, as Google and Hugging Face write them."""

import json

import pytest

from kerasbert.tokenizers import (
    AlbertTokenizer,
    BertTokenizer,
    ModernBertTokenizer,
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
        "normalizer": {"type": "BertNormalizer", **normalizer} if normalizer else None,
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
    # tokenizer_config.json comes first, as in transformers.
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
    with pytest.warns(UserWarning, match="has added tokens such as '\\[E1\\]'"):
        tokenizer = BertTokenizer.from_files(tmp_path, special_tokens_in_strings=True)
    assert tokenizer.vocabulary_size() == 9
    assert tokenizer("a[E1]covid") == [5, 6, 8]


def test_japanese(tmp_path):
    config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    config |= {"subword_tokenizer_type": "wordpiece", "do_lower_case": False}
    vocabulary = [*SPECIAL, "東京", "が", "か", "##大学", "、"]
    write(tmp_path, vocab_txt=vocabulary, tokenizer_config=config)
    with pytest.warns(UserWarning, match="splits words with mecab.*put a space|segment texts"):
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
        # A BERT with the tokenizer of XLM-R, as some multilingual sentence encoders.
        ({"sentencepiece.bpe.model": xlmr_model}, "bert", XLMRobertaTokenizer),
        ({"spiece.model": albert_model}, "albert", AlbertTokenizer),
    ]
    for i, (files, family, cls) in enumerate(cases):
        directory = tmp_path / str(i)
        directory.mkdir()
        for name in [name for name in files if name.endswith(".model")]:
            (directory / name).write_bytes(files.pop(name))
        tokenizer = tokenizer_from_files(write(directory, **files), family)
        assert type(tokenizer) is cls
        assert tokenizer.vocabulary_size() > 100


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="has no tokenizer files: looked for vocab.txt"):
        tokenizer_from_files(tmp_path, "bert")
    with pytest.raises(ValueError, match="Unknown family 'gpt'"):
        tokenizer_from_files(tmp_path, "gpt")
    with pytest.raises(ValueError, match="is not a directory"):
        tokenizer_from_files(tmp_path / "nowhere", "bert")
    write(tmp_path, vocab_txt=SPECIAL, tokenizer_config={"tokenizer_class": "PhobertTokenizer"})
    with pytest.raises(ValueError, match="has a PhobertTokenizer, which is not supported"):
        tokenizer_from_files(tmp_path, "roberta")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config.json' is not JSON"):
        tokenizer_from_files(tmp_path, "bert")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a JSON list"):
        tokenizer_from_files(tmp_path, "bert")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="needs a BPE model, but .* has a WordPiece model"):
        RobertaTokenizer.from_files(tmp_path)
    write(tmp_path, tokenizer={"model": {"type": "WordLevel", "vocab": {}}})
    with pytest.raises(ValueError, match="has a WordLevel model"):
        tokenizer_from_files(tmp_path, "bert")
    write(tmp_path, tokenizer={"model": {"type": "BPE"}})
    with pytest.raises(ValueError, match="has no 'vocab'"):
        tokenizer_from_files(tmp_path, "bert")

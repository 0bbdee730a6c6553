"""`BertTokenizer` compared with a reference, on every character and in every setting."""

import functools
import itertools
import random
import re
import unicodedata

import numpy as np
import pytest

from kerasbert.base.files import write_files
from kerasbert.text.transformers_files import transformers_files
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import bert_tokenizer
from tests.text import reference

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SETTINGS = [
    dict(zip(("lowercase", "strip_accents", "split_on_cjk"), values, strict=True))
    for values in itertools.product((True, False), (None, True, False), (True, False))
]
# Every third one, for speed.
EVERY = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, marks=pytest.mark.slow if number % 3 else (), id=str(settings))
        for number, settings in enumerate(SETTINGS)
    ],
)
# TensorFlow's Unicode data lacks newer characters.
UNICODE = tuple(map(int, unicodedata.unidata_version.split("."))) <= (14, 0, 0)


@pytest.fixture(scope="module")
def tokenizer_of(word_pieces):
    """A function from settings to a tokenizer of the word pieces, shared by all tests."""
    return functools.cache(lambda **settings: BertTokenizer(word_pieces, **settings))


@pytest.mark.slow
@EVERY
def test_reference_on_hard_texts(settings, tokenizer_of, word_pieces, hard, sentences):
    texts = hard + sentences
    tokenizer = tokenizer_of(**settings)
    assert tokenizer(texts) == reference.tokenize(texts, word_pieces, **settings)
    assert tokenizer.tokenize_with_offsets(texts)[0] == tokenizer(texts)


@EVERY
def test_reference_on_random_texts(settings, tokenizer_of, word_pieces):
    rng = random.Random(0)
    alphabet = " \t\u00a0.,'#[]aAbeé\u0301İΣσ中가ががン゛ー\u3099\0\u200b\ufffd😀❤\ufe0f\U00010570Ⱟ"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(1000)]
    assert tokenizer_of(**settings)(texts) == reference.tokenize(texts, word_pieces, **settings)


@pytest.mark.slow
@pytest.mark.skipif(not UNICODE, reason="this Python knows characters younger than Unicode 14")
@pytest.mark.parametrize("settings", [SETTINGS[i] for i in (0, 4, 7, 8)], ids=str)
def test_reference_on_every_character(settings):
    vocabulary = reference.character_vocabulary()
    tokenizer = BertTokenizer(vocabulary, **settings)
    characters = reference.assigned_characters()
    assert len(characters) > 139_000
    texts = [f"{c} a{c}b s {c} s {c}{c} a.{c}" for c in characters] + characters
    found, wanted = tokenizer(texts), reference.tokenize(texts, vocabulary, **settings)
    assert [x for x, a, b in zip(texts, found, wanted, strict=True) if a != b] == []


def test_final_sigma_and_dotted_i_do_not_depend_on_the_locale(word_pieces, monkeypatch):
    for name in ("LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"):
        monkeypatch.setenv(name, "tr_TR.UTF-8")
    letters = [*"istanbulσςΣ", "i\u0307"]
    vocabulary = SPECIAL + sorted({c for x in letters for c in (x, f"##{x}")} | {"##\u0307"})
    tokenizer = BertTokenizer(vocabulary, lowercase=True, strip_accents=False)
    texts = ["ISTANBUL İSTANBUL", "ΣΣ Σ ΣΣ'Σ"]
    assert tokenizer(texts) == reference.tokenize(texts, vocabulary, strip_accents=False)


def test_words_of_more_than_200_characters_are_unknown():
    vocabulary = SPECIAL + ["a", "##a", "é", "##é", "中", "##中", ".", "##\u1161", "\u1112"]
    texts = [letter * n for letter in "aé中한" for n in (66, 67, 100, 101, 199, 200, 201, 500)]
    texts += [f"a {text}.{text} a" for text in texts]
    # Test with all normalization steps and with none. A decomposed Hangul syllable counts as three
    # characters.
    for settings in (SETTINGS[0], SETTINGS[-1]):
        tokenizer = BertTokenizer(vocabulary, **settings)
        assert tokenizer(texts) == reference.tokenize(texts, vocabulary, **settings), settings


def normalized(text, settings):
    return "".join(reference.split_words(text, **settings))


@pytest.mark.slow
@EVERY
def test_offsets_are_what_became_the_token(settings, tokenizer_of, hard, sentences):
    tokenizer = tokenizer_of(**settings)
    texts = hard + sentences
    for text, *columns in zip(texts, *tokenizer.tokenize_with_offsets(texts), strict=True):
        before = 0
        for id, start, end in zip(*columns, strict=True):
            token = tokenizer.id_to_token(id).removeprefix("##")
            source = normalized(text[start:end], settings)
            if re.search("[가-힣]", text[start:end]):
                # Syllables are decomposed, so two tokens may belong to the same syllable.
                assert start < end <= len(text) and token in (source, "[UNK]") or token in source
            else:
                assert before <= start < end <= len(text)
                assert token in (source, "[UNK]")
            before = end
            # Tokens have neither white space nor control characters at their edges.
            assert text[start] == text[start].strip("\0\ufeff\u200b ")
            assert text[end - 1] == text[end - 1].strip("\0\ufeff\u200b ")


@pytest.mark.parametrize(
    "text, spans",
    [
        ("The quíck", ["The", "qu", "íck"]),
        ("the cafe\u0301 the", ["the", "cafe\u0301", "the"]),
        ("中the文", ["中", "the", "文"]),
        ("\ufeffthe\0 \x01qu\u200bick\0", ["the", "qu", "ick"]),
        ("😀 the😀the", ["😀", "the😀the"]),
        ("❤\ufe0f the", ["❤\ufe0f", "the"]),
        ("the" * 100 + " the", ["the" * 100, "the"]),
        ("the " + "𝒜" * 201 + " the", ["the", "𝒜" * 201, "the"]),
        ("\ud800the", ["the"]),
    ],
)
def test_offsets_by_eye(text, spans):
    tokenizer = bert_tokenizer(SPECIAL + "the qu ##ick cafe 中 文 😀 ❤".split())
    _, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == spans
    # Offsets are the same alone and in a batch.
    _, starts, ends = tokenizer.tokenize_with_offsets(["\u0301", text, "", text])
    assert [text[s:e] for s, e in zip(starts[3], ends[3], strict=True)] == spans


def test_accents_apart_from_case():
    vocabulary = SPECIAL + ["cafe", "café", "Cafe", "Café", "cafe\u0301", "が", "か"]

    def tokens(text, **settings):
        tokenizer = BertTokenizer(vocabulary, **settings)
        return [tokenizer.id_to_token(id) for id in tokenizer(text)]

    assert tokens("Café が", lowercase=True) == ["cafe", "か"]
    assert tokens("Café が", lowercase=True, strip_accents=False) == ["café", "が"]
    assert tokens("Café が", lowercase=False) == ["Café", "が"]
    assert tokens("Café が", lowercase=False, strip_accents=True) == ["Cafe", "か"]


def test_special_tokens_are_text_unless_asked_for():
    vocabulary = SPECIAL + ["[", "]", "mask", "##mask", "the", "pad", "unk", "[E1]"]
    text = "the [MASK]the[PAD] [mask] [UNK] [E1] ﻚ\ufada"
    plain = BertTokenizer(vocabulary, lowercase=True)
    assert plain(text) == reference.tokenize([text], vocabulary)[0]
    asked = BertTokenizer(
        vocabulary,
        lowercase=True,
        special_tokens_in_strings=True,
        extra_special_tokens=["[E1]"],
    )
    found, starts, ends = asked.tokenize_with_offsets(text)
    assert found == asked(text)
    assert [asked.id_to_token(id) for id in found] == [
        *("the", "[MASK]", "the", "[PAD]", "[", "mask", "]", "[UNK]", "[E1]", "[UNK]", "[UNK]")
    ]
    spans = [text[s:e] for s, e in zip(starts, ends, strict=True)]
    assert spans[:8] == ["the", "[MASK]", "the", "[PAD]", "[", "mask", "]", "[UNK]"]
    same = BertTokenizer(
        vocabulary, lowercase=True, special_tokens_in_strings=True, split_on_cjk=False
    )
    assert same("the [MASK]the[PAD]") == [9, 4, 9, 0]


def test_special_tokens_of_other_names():
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a"]
    with pytest.raises(ValueError, match=r"lacks '\[UNK\]' \(unk_token\), '\[CLS\]'"):
        BertTokenizer(vocabulary)
    names = {"unk": "<unk>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"}
    tokenizer = BertTokenizer(vocabulary, **{f"{k}_token": v for k, v in names.items()})
    assert tokenizer("a b") == [5, 1]
    assert (tokenizer.start_token_id, tokenizer.end_token_id) == (2, 3)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (2, 3)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (0, 1, 4)
    assert tokenizer.start_token == "<s>" and tokenizer.num_separators == 1
    assert sorted(tokenizer.special_token_ids) == [0, 1, 2, 3, 4]


def test_vocabulary_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="has 'a' twice, as ids 5 and 7"):
        BertTokenizer([*SPECIAL, "a", "b", "a"])
    with pytest.raises(ValueError, match="has no vocabulary yet"):
        BertTokenizer()("a")
    tokenizer = BertTokenizer([*SPECIAL, "a"])
    with pytest.raises(ValueError, match="no token 'b'"):
        tokenizer.token_to_id("b")
    for id in (-1, 6):
        with pytest.raises(ValueError, match=f"Token id {id} is outside the vocabulary's 0 to 5"):
            tokenizer.id_to_token(id)
    (tmp_path / "vocab.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        BertTokenizer(str(tmp_path / "vocab.txt"))
    (tmp_path / "vocab.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match="is not UTF-8"):
        BertTokenizer(str(tmp_path / "vocab.txt"))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("begin", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_vocabulary_files(tmp_path, newline, begin, end):
    # Odd spaces and separators are tokens of real vocabularies: no id may shift.
    odd = ["\u3000", "\u2028", "\x85", "\u00a0", "", "\x1c", "a b", "##", "#", "x" * 300]
    tokens = [*SPECIAL, *odd, "last", "##s"]
    path = tmp_path / "vocab.txt"
    path.write_bytes((begin + newline.join(tokens) + end.replace("\n", newline)).encode())
    tokenizer = BertTokenizer(str(path))
    assert tokenizer.get_vocabulary() == tokens
    assert tokenizer("lasts a b # \u3000\u2028") == [15, 16, 1, 1, 13]


def test_tokens_that_the_splitter_could_trip_over():
    vocabulary = [*SPECIAL, "\x11", "\x00", "a\x00b", "a b", "##\x11", "a", "##.", ".", "\x01"]
    tokenizer = BertTokenizer(vocabulary)
    assert tokenizer("a b a. \x11a\x01") == reference.tokenize(["a b a. \x11a\x01"], vocabulary)[0]
    with pytest.raises(ValueError, match="at most 256"):
        BertTokenizer([*SPECIAL, "中" * 90], split_on_cjk=False).graph("_tokenize")


def test_split_characters_and_words_that_are_split_already():
    tokenizer = BertTokenizer([*SPECIAL, "日", "本", "語"], split_characters=True)
    text = "日本 語x\u3000[MASK]日"
    found, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert found == [5, 6, 7, *[1] * 7, 5]
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == list("日本語x[MASK]日")
    words = BertTokenizer(
        [*SPECIAL, "日本", "##語", "C++", "1.5"], split_on_cjk=False, split_on_punctuation=False
    )
    text = "日本 日本語 C++ 1.5 [MASK]"
    found, starts, ends = words.tokenize_with_offsets(text)
    assert found == [5, 5, 6, 7, 8, 4]
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == [
        *("日本", "日本", "語", "C++", "1.5", "[MASK]")
    ]


def test_agrees_with_the_rust_tokenizer(tokenizer_of, word_pieces, sentences):
    import tokenizers

    vocabulary = {token: id for id, token in enumerate(word_pieces)}
    for settings in SETTINGS[::3]:
        rust = tokenizers.BertWordPieceTokenizer(
            vocabulary,
            lowercase=settings["lowercase"],
            strip_accents=settings["strip_accents"],
            handle_chinese_chars=settings["split_on_cjk"],
        )
        encoded = rust.encode_batch(sentences, add_special_tokens=False)
        found, starts, ends = tokenizer_of(**settings).tokenize_with_offsets(sentences)
        assert found == [x.ids for x in encoded]
        spans = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
        assert spans == [x.offsets for x in encoded]


def test_detokenize():
    tokenizer = BertTokenizer([*SPECIAL, "the", "qu", "##ick", "."])
    assert tokenizer.detokenize([2, 5, 6, 7, 8, 3]) == "[CLS] the quick . [SEP]"
    assert tokenizer.detokenize([[5], [], [6, 7]]) == ["the", "", "quick"]
    assert tokenizer.detokenize(np.array([[5, 6], [7, 8]])) == ["the qu", "##ick ."]
    assert tokenizer.detokenize([np.array([5, 6]), [7]]) == ["the qu", "##ick"]
    with pytest.raises(ValueError, match="got 9 at position 1, 0"):
        tokenizer.detokenize([[5], [9]])
    with pytest.raises(TypeError, match="list of token ids, got 5"):
        tokenizer.detokenize(5)


def test_vocabulary_without_words():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    assert tokenizer("a") == [1]
    with pytest.raises(
        ValueError, match=r"vocabulary of 5 tokens, such as '\[MASK\]', has none for"
    ):
        tokenizer.graph("_tokenize")


def test_characters_that_people_write_on_to_words(tmp_path):
    import tokenizers as rust

    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] 좋 ##아 ##요 영화 ㅋ".split()
    split_on = "ㄱ-ㆎ\ufe0f\U0001f300-\U0001faff"
    tokenizer = BertTokenizer(tokens, split_on=split_on, strip_accents=False, normalize="NFC")
    text = "좋아요ㅋㅋ영화\U0001f44d\U0001f3fd좋 ㅠ"
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert ids == [5, 6, 7, 9, 9, 8, 1, 1, 5, 1] == tokenizer(text)
    assert [text[a:b] for a, b in zip(starts, ends)] == [*"좋아요ㅋㅋ", "영화", *text[7:10], "ㅠ"]
    assert BertTokenizer(tokens)(text) == [1, 1]
    again = BertTokenizer.from_config({**tokenizer.get_config(), "vocabulary": tokens})
    assert again(text) == ids
    files = transformers_files(tokenizer, "bert", 16, has_segments=True)
    # Google's format has no tokenizer.json; the others have no other settings.
    for names in (files, ["vocab.txt", "tokenizer_config.json"], ["tokenizer.json"]):
        folder = tmp_path / str(len(names))
        folder.mkdir()
        write_files(folder, {name: files[name] for name in names})
        again = BertTokenizer.from_files(folder)
        assert (again.split_on, again.normalize) == (split_on, "NFC") and again(text) == ids
    theirs = rust.Tokenizer.from_file(str(tmp_path / "1" / "tokenizer.json"))
    assert theirs.encode(text, add_special_tokens=False).ids == ids

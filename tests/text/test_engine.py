"""The library `tokenizers` and TensorFlow's graph give the same tokens and offsets."""

import random
import sys
import unicodedata

import pytest

from kerasbert.text import ops
from kerasbert.text.added_tokens import FEW
from kerasbert.text.bert_characters import (
    ACCENT_IN_LIBRARY,
    OPAQUE,
    OTHER_IN_LIBRARY,
    PUNCTUATION_IN_LIBRARY,
)
from kerasbert.text.engine import FastEngine
from kerasbert.text.subword import SubwordTokenizer
from kerasbert.text.wordpiece import BertTokenizer
from tests.text.conftest import HARD, SENTENCES
from tests.text.test_transformers_files import FAMILIES

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

ROWS = [
    ("BertTokenizer", {"lowercase": True}),
    ("BertTokenizer", {"lowercase": False}),
    ("BertTokenizer", {"lowercase": True, "strip_accents": False}),
    ("BertTokenizer", {"lowercase": False, "strip_accents": True}),
    ("BertTokenizer", {"lowercase": False, "split_on_cjk": False, "split_on_punctuation": False}),
    ("BertTokenizer", {"split_characters": True, "split_on_cjk": False}),
    ("BertTokenizer", {"lowercase": True, "split_on": "ㄱ-ㆎ"}),
    ("BertTokenizer", {"lowercase": True, "max_input_chars_per_word": 4}),
    ("BertTokenizer", {"lowercase": True, "character_rules": "tokenizers"}),
    ("BertTokenizer", {"lowercase": False, "character_rules": "tokenizers"}),
    ("BertTokenizer", {"split_characters": True, "character_rules": "tokenizers"}),
    ("RobertaTokenizer", {}),
    ("RobertaTokenizer", {"add_prefix_space": True}),
    ("GPT2Tokenizer", {}),
]
CHARACTERS = [
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(char) not in ("Cn", "Cs")
]


def fuzzed(count, seed):
    """Return texts of one Unicode block each, of common characters, and of both."""
    draw = random.Random(seed)
    common = [*"".join(SENTENCES + HARD), *"σςαΣΩıİ🙂👍🏽ﬁﾞ  "]
    texts = []
    for _ in range(count):
        begin = draw.randrange(0, len(CHARACTERS), 64)
        block = CHARACTERS[begin : begin + 64]
        pool = draw.choice([block, common, block + common])
        texts.append("".join(draw.choice(pool) for _ in range(draw.randrange(1, 12))))
    return texts


def compare(tokenizer, texts):
    assert isinstance(tokenizer._engine(), FastEngine)
    for name in ("_tokenize", "_tokenize_with_offsets"):
        for begin in range(0, len(texts), FEW):
            batch = texts[begin : begin + FEW]
            found = tokenizer._encode(name, batch)
            expected = SubwordTokenizer._encode(tokenizer, name, batch)
            for mine, graph in zip(found, expected, strict=True):
                rows = zip(batch, mine.to_list(), graph.to_list(), strict=True)
                assert [row for row in rows if row[1] != row[2]] == []


def test_gaps_between_ids_are_limited():
    vocab = {"a": 0, "[UNK]": 4_000_000_000}
    content = {"model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}}
    with pytest.raises(ValueError, match="has 2 tokens, but one has the id 4,000,000,000"):
        FastEngine(content)


@pytest.mark.slow
@pytest.mark.parametrize("name, settings", ROWS)
def test_the_same_tokens(make, name, settings):
    compare(make(name, **settings), SENTENCES + HARD + fuzzed(700, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name, settings", ROWS)
def test_more_texts(make, name, settings):
    compare(make(name, **settings), fuzzed(4000, 1))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [ROWS[i][1] for i in (0, 1, 8, 9)])
def test_every_character(settings):
    """With Google's rules only those that the library tokenizes; the others go to the graph."""
    tried = [char for char in CHARACTERS if not OTHER_IN_LIBRARY.search(char)]
    if settings.get("character_rules") == "tokenizers":
        private = [chr(i) for i in (0xE000, 0xF8FF, 0xF0000, 0xFFFFD, 0x100000)]
        tried += [*map(chr, OPAQUE), *PUNCTUATION_IN_LIBRARY, *ACCENT_IN_LIBRARY, "Σ", *private]
    alone = [char for char in CHARACTERS if char.strip() and unicodedata.category(char)[0] != "C"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer([*special, *alone, *(f"##{char}" for char in alone)], **settings)
    compare(tokenizer, [f"a{char}b :{char}" for char in tried])


@pytest.mark.parametrize(
    "flags", [pytest.param(i, marks=() if i in (0, 7, 14) else pytest.mark.slow) for i in range(16)]
)
def test_added_tokens(make, flags):
    names = ("single_word", "lstrip", "rstrip", "normalized")
    settings = {name: True for place, name in enumerate(names) if flags >> place & 1}
    added = [{"content": "brown", **settings}, {"content": "[New]", **settings}]
    draw = random.Random(flags)
    parts = ["brown", "[New]", " ", "\t", "a", "-", "語", "[MASK]", *fuzzed(40, flags)]
    texts = ["".join(draw.choices(parts, k=draw.randrange(1, 6))) for _ in range(250)]
    tokenizer = make("BertTokenizer", lowercase=True, added_tokens=added)
    compare(tokenizer, texts)
    compare(tokenizer.with_special_tokens(), texts)


@pytest.mark.parametrize("name", FAMILIES)
def test_decoding(make, name):
    """Random tokens, also with parts of characters."""
    tokenizer, draw = make(name), random.Random(0)
    size = tokenizer.vocabulary_size()
    rows = [[draw.randrange(size) for _ in range(draw.randrange(9))] for _ in range(200)]
    texts = tokenizer.detokenize(ops.as_tensor(ops.Ragged.from_lists(rows))).numpy()
    assert tokenizer.detokenize(rows) == [text.decode("utf-8", "replace") for text in texts]

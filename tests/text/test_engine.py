"""The library `tokenizers` and TensorFlow's graph give the same tokens and offsets."""

import random
import sys
import unicodedata

import pytest

from kerasbert.text.added_tokens import FEW
from kerasbert.text.engine import FastEngine
from kerasbert.text.subword import SubwordTokenizer
from kerasbert.text.wordpiece import OTHER_IN_LIBRARY, BertTokenizer
from tests.text.conftest import HARD, SENTENCES
from tests.text.test_transformers_files import FAMILIES

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes it.

ROWS = [
    ("BertTokenizer", {"lowercase": True}),
    ("BertTokenizer", {"lowercase": False}),
    ("BertTokenizer", {"lowercase": True, "strip_accents": False}),
    ("BertTokenizer", {"lowercase": False, "strip_accents": True}),
    ("BertTokenizer", {"lowercase": False, "split_on_cjk": False, "split_on_punctuation": False}),
    ("BertTokenizer", {"split_characters": True, "split_on_cjk": False}),
    ("BertTokenizer", {"lowercase": True, "split_on": "ㄱ-ㆎ"}),
    ("BertTokenizer", {"lowercase": True, "max_input_chars_per_word": 4}),
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
    """Texts of one block of Unicode each, of common characters, and of both."""
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


@pytest.mark.parametrize("name, settings", ROWS)
def test_the_same_tokens(make, name, settings):
    compare(make(name, **settings), SENTENCES + HARD + fuzzed(700, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name, settings", ROWS)
def test_more_texts(make, name, settings):
    compare(make(name, **settings), fuzzed(4000, 1))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [settings for name, settings in ROWS[:2]])
def test_every_character(settings):
    """Of those that the library splits; the others go to the graph."""
    tried = [char for char in CHARACTERS if not OTHER_IN_LIBRARY.search(char)]
    alone = [char for char in CHARACTERS if char.strip() and unicodedata.category(char)[0] != "C"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer([*special, *alone, *(f"##{char}" for char in alone)], **settings)
    compare(tokenizer, [form.format(char) for form in ("a{}b", ":{}") for char in tried])


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
    assert tokenizer.detokenize(rows) == SubwordTokenizer._decode(tokenizer, rows)

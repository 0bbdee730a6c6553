"""Passages: they contain the whole document, within the limit of tokens."""

import random

import pytest

from kerasbert.search import PassageSplitter
from tests.contracts import bert_tokenizer

PIECES = [
    "It rains. ",
    "Dr. Who said 'no'. ",
    "\r\n",
    "\n\n",
    "\n",
    "\r",
    "오늘은 비가 옵니다. ",
    "그는 갔다.\n",
    "今日は雨です。",
    "「はい」と言った。",
    "東京へ行きました",
    "\u3000",
    "ab" * 70,
    " 3.5 ",
    "word ",
    "...",
    "\u200b",
    "👨\u200d👩\u200d👧",
    "e\u0301",
    "\x0b",
    "\u2028",
    "\ufeff",
    "\ud800",
]
LETTERS = [*"abdeghinorstw", *"오늘은비가今日は雨東京へ行", ".", "。", "'"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]


def random_texts(count):
    rng = random.Random(0)
    for _ in range(count):
        yield "".join(rng.choices(PIECES, k=rng.randint(0, 80)))


@pytest.mark.parametrize(
    "tokenizer",
    [None, pytest.param(bert_tokenizer(TOKENS), marks=pytest.mark.backends("torch"))],
    ids=["words", "tokens"],
)
def test_no_text_is_lost(tokenizer):
    rng, longest = random.Random(1), 0
    for text in random_texts(60 if tokenizer is None else 15):
        most = rng.choice([8, 12, 30])
        splitter = PassageSplitter(most, overlap=rng.randint(0, most - 1))
        spans, before = splitter.split(text, tokenizer), 0
        for start, end in spans:
            assert start < end and text[start:end] == text[start:end].strip()
            assert not text[before:start].strip()
            before = max(before, end)
        assert not text[before:].strip()
        assert spans == sorted(set(spans))
        if tokenizer is not None and spans:
            text = text.replace("\ud800", "?")
            tokens = tokenizer.tokenize([text[start:end] for start, end in spans])
            assert max(map(len, tokens)) <= most
            longest = max(longest, *map(len, tokens))
    assert tokenizer is None or longest > 25


def test_overlap_and_wrapped_lines():
    text = "One two. Three four five. Six. Seven eight nine ten."
    parts = [text[a:b] for a, b in PassageSplitter(8, overlap=4).split(text)]
    assert parts == [
        "One two. Three four five.",
        "Three four five. Six.",
        "Six. Seven eight nine ten.",
    ]
    assert PassageSplitter(8, 3).split(text)[1] == (26, 52)
    lines = [
        "The quick brown fox jumps over the lazy",
        "dogs of the old town and the small river",
        "of Rome. It",
    ]
    wrapped = "\r\n".join([*lines, "rains in the north of the country now."])
    assert [wrapped[a:b] for a, b in PassageSplitter(20, 0).split(wrapped)] == [
        "\r\n".join(lines)[:-3],
        "It\r\nrains in the north of the country now.",
    ]
    assert PassageSplitter(8).split("") == PassageSplitter(8, 0).split(" \r\n\t") == []


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_tokens": 7}, "max_tokens=7 must be a whole number of at least 8"),
        ({"max_tokens": 8, "overlap": 8}, "overlap=8 must be less than max_tokens=8"),
        ({"max_tokens": 16, "overlap": -1}, "overlap=-1"),
        ({"language": None}, "language=None must be an ISO code"),
        ({"overlaps": 3}, "no setting 'overlaps'; did you mean overlap"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        PassageSplitter.from_config({"overlap": 0, **settings})

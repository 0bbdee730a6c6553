"""Compare tokens and offsets of thousands of texts alone and in a batch, for every tokenizer.

    python -m tests.campaigns.batches --texts 3000 --seed 1 [--only RobertaTokenizer-NFKC]

The tokens of a text must not depend on the other texts of its batch, and offsets must lie inside
the text. The random texts consist of difficult parts: marks without letters, letters that
normalization composes or decomposes, half-width and full-width forms, control characters, emoji,
and special tokens as text.
"""

import argparse
import random
import sys

from kerasbert.text.sentence_piece_models import read_proto
from kerasbert.tokenizers import MarianTokenizer, XLNetTokenizer
from tests.text import conftest as small

# Fixtures of the tests that `make` takes as arguments.
PARTS = (
    *("word_pieces", "byte_pairs", "gpt_pairs", "xlmr_model", "albert_model", "deberta_model"),
    "byte_fallback_models",
)
SPECIAL = {"special_tokens_in_strings": True}
# Settings to test for each tokenizer class.
KINDS = {
    "BertTokenizer": {},
    "BertTokenizer-cased": {"lowercase": False, "strip_accents": False},
    "BertTokenizer-characters": {"split_characters": True},
    "BertTokenizer-words": {"split_on_cjk": False, "split_on_punctuation": False},
    "BertTokenizer-special": SPECIAL,
    "BertTokenizer-typed": {"lowercase": False, "normalize": "NFKC", "split_on": "ㄱ-ㆎ\ufe0f"},
    "RobertaTokenizer": {},
    "RobertaTokenizer-prefix": {"add_prefix_space": True, **SPECIAL},
    "RobertaTokenizer-NFD": {"normalization": "NFD"},
    "RobertaTokenizer-NFKC": {"normalization": "NFKC"},
    "RobertaTokenizer-NFKD": {"normalization": "NFKD"},
    "ModernBertTokenizer": {},
    "ModernBertTokenizer-special": SPECIAL,
    "GPT2Tokenizer": {},
    "GPTTokenizer": {},
    "XLMRobertaTokenizer": {},
    "XLMRobertaTokenizer-special": {"normalize": "NFC", **SPECIAL},
    "AlbertTokenizer": {},
    "AlbertTokenizer-accents": {"lowercase": False, "keep_accents": True, **SPECIAL},
    "DebertaV3Tokenizer": {},
    "ByteFallbackTokenizer": {},
    "ByteFallbackTokenizer-always": {"prepend_scheme": "always", **SPECIAL},
    "ByteFallbackTokenizer-prepend": {"prepend_scheme": "prepend"},
    "XLNetTokenizer": {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "mask")},
    "MarianTokenizer": {},
}

_RANGES = (
    *((0x300, 0x36F), (0x1100, 0x11FF), (0x3041, 0x30FF), (0x3131, 0x318E), (0xAC00, 0xAC40)),
    *((0xFF01, 0xFFDC), (0x0, 0x20), (0x7F, 0xA0), (0x2000, 0x206F), (0x1F300, 0x1F9FF)),
    *((0xE01, 0xE4D), (0x900, 0x97F), (0xFB00, 0xFB4F), (0x1E00, 0x1EFF), (0x4E00, 0x4E20)),
)
_PIECES = (
    *("ｶﾞﾊﾟ", "재밌다ㅋㅋㅋ", "ㄱㅏ", "ㅠㅠ", "가\u11a8", "\u1112\u1161\u11ab", "か\u3099", "ﾞ"),
    *("\u0301", "e\u0323\u0301", "\u200b", "\ufeff", "\u00ad", "\0", "\u3000", "\u2028", "\ufffd"),
    *("[CLS]", "[MASK]", "<mask>", "<s>", "</s>", "[E1]", "<unk>", "▁", "##", "``", "''", "'ll"),
    *("İ", "Σ", "ΑΣ", "ß", "ﬁ", "½", "Å", "\U0001f469\u200d\U0001f467", "❤️", "👍🏽", "\U0010ffff"),
    *(
        "Hello",
        "World",
        "the",
        " ",
        "  ",
        "\n",
        "\t",
        ".",
        ", ",
        "123",
        "語",
        "é",
        "\ufffe",
        "\uffff",
    ),
)


def texts(count, seed):
    """Draw random texts, each with a separate seed, so that a larger count extends the same
    list.
    """
    found = []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        parts = []
        for _ in range(draw.choice([0, 1, 1, 2, 3, 4, 6, 10])):
            kind = draw.random()
            if kind < 0.5:
                parts.append(draw.choice(_PIECES))
            elif kind < 0.85:
                first, last = draw.choice(_RANGES)
                parts += [chr(draw.randint(first, last)) for _ in range(draw.randint(1, 3))]
            else:
                parts.append(draw.choice(small.HARD + small.SENTENCES)[: draw.randint(1, 20)])
        found.append("".join(parts))
    return found


def tokenizers(names):
    """Yield `(name, tokenizer)` for the small tokenizers of the tests."""
    parts = {part: getattr(small, part).__wrapped__() for part in PARTS}
    make = small.make.__wrapped__(**parts)
    for name in names:
        cls, settings = name.split("-")[0], KINDS[name]
        if cls == "XLNetTokenizer":
            yield name, XLNetTokenizer(parts["albert_model"], **settings)
        elif cls == "MarianTokenizer":
            pieces = [piece.piece for piece in read_proto(parts["xlmr_model"]).pieces]
            models = {"source": parts["xlmr_model"], "target": parts["xlmr_model"]}
            # Some pieces of the model are not tokens, and vice versa.
            yield name, MarianTokenizer(**models, tokens=[*pieces[:200], "<pad>", "ｶﾞ", ">>fra<<"])
        else:
            yield name, make(cls, **settings)


def differences(tokenizer, rows, batch=64):
    """Return a sentence for each text whose tokens or offsets are wrong, or differ between the text
    alone and the text in a batch.
    """
    found = []
    for start in range(0, len(rows), batch):
        some = rows[start : start + batch]
        together = tokenizer.tokenize_with_offsets(some)
        # Tokenizing without offsets uses another graph.
        ids = tokenizer.tokenize(some)
        for number, text in enumerate(some):
            here = tuple(part[number] for part in together)
            alone = tokenizer.tokenize_with_offsets(text)
            if here != alone:
                found.append(f"{text!r} is {alone} alone and {here} in a batch")
            elif not ids[number] == alone[0] == tokenizer.tokenize(text):
                found.append(f"{text!r} has different tokens with and without offsets")
            else:
                found += _wrong_offsets(text, *alone[1:])
    return found


def _wrong_offsets(text, starts, ends):
    if not all(0 <= start <= end <= len(text) for start, end in zip(starts, ends)):
        yield f"{text!r} has offsets outside the text: {starts}, {ends}"


def run(count, seed, only=None, say=print):
    """Test all tokenizers and return the failures."""
    failures = []
    rows = texts(count, seed)
    for name, tokenizer in tokenizers(only or KINDS):
        found = differences(tokenizer, rows)
        say(f"{name}: {len(rows)} texts, {len(found)} failures")
        for failure in found[:5]:
            say(f"    {failure}")
        failures += [f"{name}: {failure}" for failure in found]
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=KINDS)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    print(f"{arguments.texts} texts for each tokenizer, seed {arguments.seed}")
    failures = run(arguments.texts, arguments.seed, arguments.only)
    print(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()

"""BERT's tokenization as in its paper and code, in plain Python, for comparison only."""

import functools
import re
import unicodedata

CJK = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
MAX_WORD = 200


@functools.cache
def is_punctuation(character):
    if character.isascii():
        return 32 < ord(character) < 127 and not character.isalnum()
    return unicodedata.category(character).startswith("P")


@functools.cache
def clean(character, split_on_cjk):
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    if split_on_cjk and any(first <= ord(character) <= last for first, last in CJK):
        return f" {character} "
    return character


@functools.lru_cache(1 << 16)
def normalize(word, lowercase, strip_accents):
    if lowercase:
        word = word.lower()
    if strip_accents:
        word = unicodedata.normalize("NFD", word)
        word = "".join(c for c in word if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if is_punctuation(c) else c for c in word)


def split_words(text, lowercase=True, strip_accents=None, split_on_cjk=True):
    """Split text into words."""
    if strip_accents is None:
        strip_accents = lowercase
    words = "".join([clean(c, split_on_cjk) for c in text]).split()
    return " ".join([normalize(word, lowercase, strip_accents) for word in words]).split()


def split_pieces(word, vocabulary):
    """Split a word into the longest pieces of the vocabulary."""
    if len(word) > MAX_WORD:
        return ["[UNK]"]
    pieces = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        for end in range(len(word), start, -1):
            if prefix + word[start:end] in vocabulary:
                pieces.append(prefix + word[start:end])
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def tokenize(texts, vocabulary, **settings):
    """Split texts into the ids of pieces: a list of lists."""
    ids = {token: id for id, token in enumerate(vocabulary)}
    known = functools.lru_cache(1 << 16)(lambda word: [ids[x] for x in split_pieces(word, ids)])
    return [[id for word in split_words(text, **settings) for id in known(word)] for text in texts]


@functools.cache
def assigned_characters():
    """Return every code point that Unicode assigned, without surrogates and private use."""
    every = map(chr, range(0x110000))
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Co", "Cs")]


@functools.cache
def character_vocabulary():
    """Return a vocabulary of every character, word-initial and word-internal."""
    characters = set("abs'")
    for c in assigned_characters():
        characters.update(c, c.lower(), unicodedata.normalize("NFD", c.lower()))
        characters.update(unicodedata.normalize("NFD", c))
    solid = sorted(c for c in characters if not re.match(r"\s", c))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + solid + [f"##{c}" for c in solid]

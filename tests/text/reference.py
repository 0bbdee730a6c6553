"""BERT's tokenization as its paper and code publish it, in plain Python, for comparison only."""

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


def is_punctuation(character):
    if character.isascii():
        return 32 < ord(character) < 127 and not character.isalnum()
    return unicodedata.category(character).startswith("P")


def split_words(text, lowercase=True, strip_accents=None, split_on_cjk=True):
    """Text to words."""
    if strip_accents is None:
        strip_accents = lowercase

    def clean(character):
        if character in "\t\n\r" or unicodedata.category(character) == "Zs":
            return " "
        if character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
            return ""
        if split_on_cjk and any(first <= ord(character) <= last for first, last in CJK):
            return f" {character} "
        return character

    def normalize(word):
        if lowercase:
            word = word.lower()
        if strip_accents:
            word = unicodedata.normalize("NFD", word)
            word = "".join(c for c in word if unicodedata.category(c) != "Mn")
        return "".join(f" {c} " if is_punctuation(c) else c for c in word)

    words = "".join(map(clean, text)).split()
    return " ".join(map(normalize, words)).split()


def split_pieces(word, vocabulary):
    """One word to the longest pieces that the vocabulary has."""
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


def tokenize(text, vocabulary, **settings):
    """Text to pieces."""
    words = split_words(text, **settings)
    return [piece for word in words for piece in split_pieces(word, vocabulary)]


def assigned_characters():
    """Every code point that Unicode assigned, without surrogates and private use."""
    every = map(chr, range(0x110000))
    return [c for c in every if unicodedata.category(c) not in ("Cn", "Co", "Cs")]


def character_vocabulary():
    """A vocabulary in which nothing is unknown: every character, first in a word and inside."""
    characters = set("abs'")
    for c in assigned_characters():
        characters.update(c, c.lower(), unicodedata.normalize("NFD", c.lower()))
        characters.update(unicodedata.normalize("NFD", c))
    solid = sorted(c for c in characters if not re.match(r"\s", c))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + solid + [f"##{c}" for c in solid]

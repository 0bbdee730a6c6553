"""Tagging schemes: conversion between entities and tags, and splitting texts into words.

Shapes: C classes, W words.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_choice
from kerasbert.text.names import composed
from kerasbert.text.wordpiece import CJK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike

# Letters of the first, middle and last word of an entity, and of a single-word entity.
# IOB1 and IOE are left out, because their tags depend on neighboring entities.
SCHEMES = {
    **dict.fromkeys(("BIO", "IOB", "IOB2"), "BI"),
    **dict.fromkeys(("BIOES", "IOBES"), "BIES"),
    **dict.fromkeys(("BILOU", "BILUO"), "BILU"),
    "BMES": "BMES",
    "BMEWO": "BMEW",
    "IO": "I",
}
OUTSIDE = "O"
# Kinds of characters for splitting texts into words.
SPACE, LETTER, MARK, ALONE = range(4)
# Whether a word with the letter begins an entity, and whether it ends one.
_LETTERS = {
    "B": (True, False),
    "I": (False, False),
    "E": (False, True),
    "L": (False, True),
    "S": (True, True),
    "U": (True, True),
}
# BMES and BMEWO have other letters for middle and single words.
LETTERS = {**_LETTERS, "M": (False, False), "W": (True, True)}
# ASCII separators first, then full-width ones, and dashes that editors substitute for "-".
SEPARATORS = "-_:/.－＿：／．–—‐‑−"
# Names of the outside tag in published taggers.
OUTSIDES = ("o", "-", "–", "—", "_", "0", "out", "outside", "none", "other")


def is_outside(name):
    """Return whether a tag is a name of the outside tag, in any case and width."""
    return unicodedata.normalize("NFKC", name).lower() in OUTSIDES


@dataclass(frozen=True)
class Spelling:
    """Notation of tags such as "B-PER" in a tag set.

    Args:
        separator: string, such as "-" or "_".
        letter_first: bool. Whether the letter comes before the type: "B-PER" instead of "PER-B".
        outside: frozenset of the names of the outside tag.
    """

    separator: str
    letter_first: bool
    outside: frozenset

    def read(self, name):
        """Parse a tag into `(letter, type)`, the letter in upper case; `None` for other names."""
        parts = name.split(self.separator, 1) if self.letter_first else None
        parts = parts or name.rsplit(self.separator, 1)[::-1]
        letter = unicodedata.normalize("NFKC", parts[0]).upper()  # It may be full-width.
        if len(parts) != 2 or letter not in LETTERS or not parts[1]:
            return None
        return letter, parts[1]


def spelling_of(names):
    """Detect the `Spelling` of tags; `None` for other names, such as parts of speech.

    Tags may be "B-PER" or "PER-B", with the separator "-", "_", ":", "/" or ".", in any case and
    width. The outside tag may be "O", "o", "-", "_", "0", "OUT", "outside", "none" or "other".

    >>> spelling_of(["-", "PER-B", "PER-I"]).read("PER-B")
    ('B', 'PER')

    Raises:
        ValueError: if only some names are tags, in a form other than "B-PER".
    """
    if OUTSIDE in names:
        outside = frozenset([OUTSIDE])
    else:
        outside = frozenset(filter(is_outside, names))
    tags = [name for name in names if name not in outside]
    for separator, letter_first in itertools.product(SEPARATORS, (True, False)):
        spelling = Spelling(separator, letter_first, outside)
        read = list(map(spelling.read, tags))
        found = [parts for parts in read if parts]
        if tags and len(found) == len(tags) and {"B", "I"} & {letter for letter, _ in found}:
            return spelling
        types = [{type for letter, type in found if letter == one} for one in "BI"]
        is_usual = separator == "-" and letter_first
        if both := not is_usual and sorted(types[0] & types[1]):
            other = next(tag for tag, parts in zip(tags, read) if parts is None)
            some = next(tag for tag, parts in zip(tags, read) if parts == ("B", both[0]))
            raise ValueError(
                f"The labels {some!r} and {other!r} do not match: only the first is a tag like "
                f"'B-{both[0]}'; write all tags in one form, with 'O' for words outside entities."
            )
    return None


def tag_names(labels: Any, scheme: str | None = None) -> list[str]:
    """Return class names; with a scheme, expand entity types to tags.

    >>> tag_names(["PER", "LOC"], "BIO")
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    >>> tag_names(["O", "B-PER", "I-PER"], "BIO")
    ['O', 'B-PER', 'I-PER']

    Raises:
        ValueError: for an unknown scheme.
    """
    if scheme is None:
        return list(labels)
    check_choice("scheme", scheme, SCHEMES)
    letters = SCHEMES[scheme]
    has_tags = any(label[:1] in letters and label[1:2] == "-" for label in labels)
    if has_tags or spelling_of(labels) is not None:
        return list(labels)
    types = [label for label in labels if label != OUTSIDE]
    return [OUTSIDE, *(f"{letter}-{name}" for name in types for letter in letters)]


class TagSet:
    """The classes of a tagger, and the entities that they encode.

    "B-PER" marks the first word of an entity, "I-PER" (or "M-") a middle one, "E-PER" (or "L-") the
    last, "S-PER" (or "U-", "W-") a single one, "O" a word outside. Other notations, such as "PER-B"
    and "-", must be shared by all names; see `spelling_of`. Any other name, such as a part of
    speech, is an entity of one word.

    Args:
        names: list of C strings.

    >>> tags = TagSet(["O", "B-PER", "I-PER"])
    >>> tags.entities([1, 2, 0, 2, 1])
    [('PER', 0, 2), ('PER', 3, 4), ('PER', 4, 5)]
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        bare = set(self.names) <= {OUTSIDE, *LETTERS} and "B" in self.names
        spelling = None if bare else spelling_of(self.names)
        # (type, begins, ends) per class, `None` outside; a type keeps its first Unicode form.
        meanings = [self._meaning(name, bare, spelling) for name in self.names]
        types = {composed(m[0]): m[0] for m in reversed(meanings) if m is not None}
        self.meanings = [m and (types[composed(m[0])], *m[1:]) for m in meanings]
        self.outside = self.meanings.index(None) if None in self.meanings else None
        # Of classes with the same meaning, the first counts.
        self._numbers = {m: number for number, m in reversed(list(enumerate(self.meanings)))}
        self.types = list(dict.fromkeys(m[0] for m in self.meanings if m is not None))

    def _meaning(self, name, bare, spelling):
        if name == OUTSIDE or spelling is not None and name in spelling.outside:
            return None
        if bare:
            return "", *LETTERS[name]
        if spelling is not None:
            letter, type = spelling.read(name)
            return type, *LETTERS[letter]
        if name[:1] in _LETTERS and name[1:2] == "-" and len(name) > 2:
            return name[2:], *_LETTERS[name[0]]
        return name, True, True

    def number(self, type: str, begins: bool, ends: ArrayLike) -> int:
        """Return the class of an entity's word, or the closest one in the scheme."""
        for flags in ((begins, ends), (begins, False), (False, False), (True, True), (True, False)):
            if (type, *flags) in self._numbers:
                return self._numbers[type, *flags]
        raise ValueError(f"No class has the type {type!r}; the types are {self.types}.")

    def of_pieces(self) -> np.ndarray:
        """Return the classes of word pieces, int32 (C, 2, 2).

        Indexed by the word's class, whether the piece is first, and whether it is last.
        """
        table = np.zeros((len(self.names), 2, 2), "int32")
        for number, meaning in enumerate(self.meanings):
            for first, last in itertools.product((0, 1), repeat=2):
                table[number, first, last] = number
                if meaning is not None:
                    type, begins, ends = meaning
                    flags = (begins and first == 1, ends and last == 1)
                    table[number, first, last] = self.number(type, *flags)
        return table

    def entities(self, numbers: ArrayLike) -> list[tuple[str, int, int]]:
        """Decode the entities of a text.

        Args:
            numbers: ints (W,). The class of each word.

        Returns:
            List of `(type, start, end)`, in words. A middle or last tag begins an entity if none
            of its type precedes it, as in the CoNLL script `conlleval`.
        """
        found, open_type = [], None
        for place, number in enumerate(numbers):
            if self.meanings[number] is None:
                open_type = None
                continue
            type, begins, ends = self.meanings[number]
            if begins or type != open_type:
                found.append([type, place, place])
            found[-1][2] = place + 1
            open_type = None if ends else type
        return [tuple(entity) for entity in found]


def classes_of_pieces(names, count):
    """Return `TagSet.of_pieces`; without names, each piece has the class of its word."""
    if names:
        return TagSet(names).of_pieces()
    return np.broadcast_to(np.arange(count)[:, None, None], (count, 2, 2))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Split a text into words: list of `(start, end)` in characters.

    Words end at white space; punctuation marks and CJK characters are single words, as in BERT's
    tokenizer, for any model.

    >>> word_spans("Ann's in 北京.")
    [(0, 3), (3, 4), (4, 5), (6, 8), (9, 10), (10, 11), (11, 12)]
    """
    return [match.span() for match in _word_pattern().finditer(text)]


@functools.cache
def character_kinds():
    """Classify all characters as SPACE, LETTER, MARK (joins its neighbor) or ALONE (a word).

    Returns:
        `(firsts, kinds)`, int32 (R,): the first code point and the kind of each run of one kind.
    """
    cjk = re.compile("[" + re.sub(r"\\x\{(\w+)\}", lambda match: chr(int(match[1], 16)), CJK) + "]")

    def kind(point):
        char = chr(point)
        category = unicodedata.category(char)
        if category[0] == "Z" or char.isspace():
            return SPACE
        if category[0] == "P" or (category[0] == "S" and char.isascii()) or cjk.match(char):
            return ALONE
        # Accents and joiners belong to the character before them.
        return MARK if category[0] == "M" or category in ("Cc", "Cf") else LETTER

    runs = itertools.groupby(range(sys.maxunicode + 1), kind)
    firsts, kinds = zip(*((next(run), name) for name, run in runs))
    return np.array(firsts, "int32"), np.array(kinds, "int32")


@functools.cache
def _word_pattern():
    firsts, kinds = character_kinds()
    ends = np.append(firsts[1:], sys.maxunicode + 1)

    def characters(kind):
        runs = zip(firsts[kinds == kind].tolist(), ends[kinds == kind].tolist())
        return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b - 1))}" for a, b in runs)

    space, mark, alone = (characters(kind) for kind in (SPACE, MARK, ALONE))
    return re.compile(f"[{mark}]*[{alone}][{mark}]*|[^{alone}{space}]+")

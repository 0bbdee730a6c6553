"""Tagging schemes, and splitting of texts into words.

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
from kerasbert.text import ops
from kerasbert.text.bert_characters import CJK
from kerasbert.text.names import composed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike

# Letters of the first, middle, last and only word of an entity. Tags of IOB1 and IOE depend on
# neighboring entities, so these are not supported.
SCHEMES = {
    **dict.fromkeys(("BIO", "IOB", "IOB2"), "BI"),
    **dict.fromkeys(("BIOES", "IOBES"), "BIES"),
    **dict.fromkeys(("BILOU", "BILUO"), "BILU"),
    "BMES": "BMES",
    "BMEWO": "BMEW",
    "IO": "I",
}
OUTSIDE = "O"
# Kinds of characters.
SPACE, LETTER, MARK, ALONE = range(4)
# For each letter: does its word begin, and end, an entity?
_LETTERS = {
    "B": (True, False),
    "I": (False, False),
    "E": (False, True),
    "L": (False, True),
    "S": (True, True),
    "U": (True, True),
}
# BMES and BMEWO have other letters for middle and only words.
LETTERS = {**_LETTERS, "M": (False, False), "W": (True, True)}
# ASCII, full-width, and dashes by which editors replace "-".
SEPARATORS = "-_:/.－＿：／．–—‐‑−"
CJK_CHARACTER = "[" + re.sub(r"\\x\{(\w+)\}", lambda match: chr(int(match[1], 16)), CJK) + "]"
# Names of the outside tag in published taggers.
OUTSIDES = ("o", "-", "–", "—", "_", "0", "out", "outside", "none", "other")


def is_outside(name):
    """Return whether a name, in any case and width, is an outside tag."""
    return unicodedata.normalize("NFKC", name).lower() in OUTSIDES


@dataclass(frozen=True)
class Spelling:
    """The notation of tags in a tag set, such as "B-PER".

    Args:
        separator: string, such as "-" or "_".
        letter_first: bool. "B-PER" instead of "PER-B".
        outside: frozenset of the names of the outside tag.
    """

    separator: str
    letter_first: bool
    outside: frozenset

    def read(self, name):
        """Return `(letter, type)` of a tag, the letter capitalized; `None` for other names."""
        parts = name.split(self.separator, 1) if self.letter_first else None
        parts = parts or name.rsplit(self.separator, 1)[::-1]
        letter = unicodedata.normalize("NFKC", parts[0]).upper()  # Letters may be full-width.
        if len(parts) != 2 or letter not in LETTERS or not parts[1]:
            return None
        return letter, parts[1]


def spelling_of(names):
    """Return the `Spelling` of tags, or `None` for other names, such as parts of speech.

    Tags may be "B-PER" or "PER-B", with the separator "-", "_", ":", "/" or ".", in any case and
    width. The outside tag may be "O", "o", "-", "_", "0", "OUT", "outside", "none" or "other".

    >>> spelling_of(["-", "PER-B", "PER-I"]).read("PER-B")
    ('B', 'PER')

    Raises:
        ValueError: if only some of the names are tags, and the tags have another form than "B-PER".
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
    """Return class names; a scheme expands entity types to tags.

    >>> tag_names(["PER", "LOC"], "BIO")
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    >>> tag_names(["O", "B-PER", "I-PER"], "BIO")
    ['O', 'B-PER', 'I-PER']

    Raises:
        ValueError: if the scheme is unknown.
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

    "B-PER" marks the first word of an entity, "I-PER" (or "M-") a middle word, "E-PER" (or "L-")
    the last word, "S-PER" (or "U-", "W-") the only word, and "O" a word outside all entities.
    Notations such as "PER-B" and "-" must not be mixed; see `spelling_of`. Any other name, such as
    a part of speech, is an entity of one word.

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
        # For each class, (type, begins, ends), or `None` for outside. The first Unicode form of a
        # type is used for all classes.
        meanings = [self._meaning(name, bare, spelling) for name in self.names]
        types = {composed(m[0]): m[0] for m in reversed(meanings) if m is not None}
        self.meanings = [m and (types[composed(m[0])], *m[1:]) for m in meanings]
        self.outside = self.meanings.index(None) if None in self.meanings else None
        # Of classes with the same meaning, the first is used.
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
        """Return the class of a word of an entity, or the most similar class of the scheme."""
        for flags in ((begins, ends), (begins, False), (False, False), (True, True), (True, False)):
            if (type, *flags) in self._numbers:
                return self._numbers[type, *flags]
        raise ValueError(f"No class has the type {type!r}; the types are {self.types}.")

    def of_pieces(self) -> np.ndarray:
        """Return the classes of word pieces, int32 (C, 2, 2).

        Indices: the word's class; is the piece the word's first; is it the last.
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

    def allowed(self) -> np.ndarray:
        """Return whether class j may follow class i, bool (C + 1, C + 1).

        Row C is the beginning and column C the end of a text. A middle or last tag must follow a
        first or middle tag of its type; entities of a type with a last tag must end with a last or
        single tag. Types without a first tag, as in "IO" and parts of speech, may follow anything.
        """
        edge = None, True, True
        rows = [m or edge for m in (*self.meanings, None)]
        opens = {type for type, begins, ends in rows if begins and not ends}
        closes = {type for type, begins, ends in rows if ends and not begins} & opens

        def may_follow(before, after):
            is_inside = after[0] in opens and not after[1]
            goes_on = not before[2] and before[0] == after[0]
            if before[0] in closes and not before[2] and not (goes_on and is_inside):
                return False
            return goes_on or not is_inside

        return np.array([[may_follow(before, after) for after in rows] for before in rows])

    def entities(self, numbers: ArrayLike) -> list[tuple[str, int, int]]:
        """Decode the entities of a text.

        Args:
            numbers: ints (W,). The class of each word.

        Returns:
            List of `(type, start, end)`, in words. As in CoNLL's `conlleval`, a middle or last tag
            begins an entity if the word before is not in one of its type.
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


def unit_probabilities(probabilities, first, count, names, label_pieces):
    """Combine the probabilities of pieces (P, C) to those of units (U, C).

    They are those of its first piece or, with `label_pieces="all"`, the mean over its pieces, where
    the "I-PER" of an inner piece counts as "B-PER".

    Args:
        probabilities: floats (P, C).
        first, count: ints (U,). First piece and number of pieces of each unit.
        names: list of C strings, empty if unknown.
        label_pieces: "first" or "all".
    """
    if label_pieces == "first":
        return ops.gather(probabilities, first)
    past = first + count
    pieces = ops.ragged_range(first, past)
    unit, piece = pieces.value_rowids(), pieces.values
    table = classes_of_pieces(names, probabilities.shape[1])
    is_first = piece == ops.gather(first, unit)
    is_last = piece == ops.gather(past, unit) - 1
    index = ops.stack([ops.cast(is_first, "int32"), ops.cast(is_last, "int32")], 1)
    classes = ops.gather_nd(table.transpose(1, 2, 0), index)  # (pieces of units, C)
    values = ops.gather(ops.gather(probabilities, piece), classes, batch_dims=1)
    sums = ops.unsorted_segment_sum(values, unit, ops.size(first))
    return sums / ops.maximum(ops.reduce_sum(sums, 1, keepdims=True), 1e-30)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Split a text into words: a list of `(start, end)` in characters.

    Words are BERT's for any model: white space ends a word, and each punctuation mark and CJK
    character is one.

    >>> word_spans("Ann's in 北京.")
    [(0, 3), (3, 4), (4, 5), (6, 8), (9, 10), (10, 11), (11, 12)]
    """
    return [match.span() for match in _word_pattern().finditer(text)]


@functools.cache
def character_kinds():
    """Classify all characters as SPACE, LETTER, MARK (belongs to its neighbor) or ALONE (a word).

    Returns:
        `(firsts, kinds)`, int32 (R,): first code point and kind of each run of one kind.
    """
    cjk = re.compile(CJK_CHARACTER)

    def kind(point):
        char = chr(point)
        category = unicodedata.category(char)
        if category[0] == "Z" or char.isspace():
            return SPACE
        if category[0] == "P" or (category[0] == "S" and char.isascii()) or cjk.match(char):
            return ALONE
        # Accents and joiners belong to the character before.
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

"""Tags of words: entities to tags of the usual schemes and back, and the words of a text.

C classes, W words.
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

from kerasbert._errors import check_choice
from kerasbert.data.names import composed
from kerasbert.tokenizers.wordpiece import CJK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike

# The tags of an entity: the first of several words, one in the middle, the last, a word alone.
# IOB1 and IOE have the letters of others, but an entity's tags depend on its neighbors.
SCHEMES = {
    **dict.fromkeys(("BIO", "IOB", "IOB2"), "BI"),
    **dict.fromkeys(("BIOES", "IOBES"), "BIES"),
    **dict.fromkeys(("BILOU", "BILUO"), "BILU"),
    "BMES": "BMES",
    "BMEWO": "BMEW",
    "IO": "I",
}
OUTSIDE = "O"
# What a character is to the words of a text.
SPACE, LETTER, MARK, ALONE = range(4)
# Whether a word with the tag begins an entity, and whether it ends one.
_LETTERS = {
    "B": (True, False),
    "I": (False, False),
    "E": (False, True),
    "L": (False, True),
    "S": (True, True),
    "U": (True, True),
}
# BMES and BMEWO have letters of their own for the middle and for a word alone.
LETTERS = {**_LETTERS, "M": (False, False), "W": (True, True)}
# The usual ones first, then those of full width, and dashes that editors put in place of "-".
SEPARATORS = "-_:/.－＿：／．–—‐‑−"
# What published taggers call words in no entity.
OUTSIDES = ("o", "-", "–", "—", "_", "0", "out", "outside", "none", "other")


def is_outside(name):
    """Whether a tag is a name of words in no entity, in either case and width."""
    return unicodedata.normalize("NFKC", name).lower() in OUTSIDES


@dataclass(frozen=True)
class Spelling:
    """How a set of tags writes "B-PER".

    Args:
        separator: string, such as "-" or "_".
        letter_first: bool. Whether the letter stands before the type: "B-PER", or else "PER-B".
        outside: frozenset of the names of words in no entity.
    """

    separator: str
    letter_first: bool
    outside: frozenset

    def read(self, name):
        """`(letter, type)` of a tag, the letter in upper case; `None` of anything else."""
        parts = name.split(self.separator, 1) if self.letter_first else None
        parts = parts or name.rsplit(self.separator, 1)[::-1]
        letter = unicodedata.normalize("NFKC", parts[0]).upper()  # "Ｂ" of full width.
        if len(parts) != 2 or letter not in LETTERS or not parts[1]:
            return None
        return letter, parts[1]


def spelling_of(names):
    """The `Spelling` of tags, `None` where they are no such tags, as parts of speech.

    Tags may be "B-PER" or "PER-B", with "-", "_", ":", "/" or "." between, in either case and of
    full width; words in no entity may be "O", "o", "-", "_", "0", "OUT", "outside", "none" or
    "other".

    >>> spelling_of(["-", "PER-B", "PER-I"]).read("PER-B")
    ('B', 'PER')

    Raises:
        ValueError: for names of which some are tags, in another form than "B-PER", and others not.
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
                f"The labels {some!r} and {other!r} do not go together: one is a tag of a type, as "
                f"'B-{both[0]}', the other is not; write all in one form, and 'O' for words in no "
                "entity."
            )
    return None


def tag_names(labels: Any, scheme: str | None = None) -> list[str]:
    """The names of the classes, where `labels` may be types of entities.

    >>> tag_names(["PER", "LOC"], "BIO")
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    >>> tag_names(["O", "B-PER", "I-PER"], "BIO")
    ['O', 'B-PER', 'I-PER']

    Raises:
        ValueError: for a scheme that there is not.
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
    """The classes of a tagger, and what they say of entities.

    Names like "B-PER" say that a word begins an entity, "I-PER" (or "M-"), "E-PER" (or "L-") and
    "S-PER" (or "U-", "W-") that it goes on, ends or is all of it. "O" is outside. Other spellings
    are read where all names have them, as "PER-B" and "-": see `spelling_of`. Any other name is an
    entity of one word, as parts of speech are.

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
        # (type, begins, ends) of each class; `None` outside. A type has the form that comes first.
        meanings = [self._meaning(name, bare, spelling) for name in self.names]
        types = {composed(m[0]): m[0] for m in reversed(meanings) if m is not None}
        self.meanings = [m and (types[composed(m[0])], *m[1:]) for m in meanings]
        self.outside = self.meanings.index(None) if None in self.meanings else None
        # Of two classes that mean the same, the first.
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
        """The class of a word in an entity of that type, by whichever tags there are for it."""
        for flags in ((begins, ends), (begins, False), (False, False), (True, True), (True, False)):
            if (type, *flags) in self._numbers:
                return self._numbers[type, *flags]
        raise ValueError(f"There is no class of type {type!r}; the types are {self.types}.")

    def of_pieces(self) -> np.ndarray:
        """Classes of the pieces of a word, int32 (C, 2, 2).

        By the class of the word, whether the piece is its first, and whether it is its last.
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
        """The entities of a text.

        Args:
            numbers: ints (W,). The class of each word.

        Returns:
            List of `(type, start, end)`, in words. A word that goes on where nothing of its type
            is open begins an entity, as for the CoNLL evaluation script `conlleval`.
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
    """`TagSet.of_pieces`; where the classes have no names, a piece has the one of its word."""
    if names:
        return TagSet(names).of_pieces()
    return np.broadcast_to(np.arange(count)[:, None, None], (count, 2, 2))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text are: list of `(start, end)` in characters.

    White space ends a word; punctuation marks and CJK characters are words of their own, as for
    BERT's tokenizer, whatever the model's own tokenizer does.

    >>> word_spans("Ann's in 北京.")
    [(0, 3), (3, 4), (4, 5), (6, 8), (9, 10), (10, 11), (11, 12)]
    """
    return [match.span() for match in _word_pattern().finditer(text)]


@functools.cache
def character_kinds():
    """What characters are to words: SPACE, LETTER, MARK (goes with its neighbour) or ALONE.

    Returns:
        `(firsts, kinds)`, int32 (R,): the first code point of each run of one kind, and its kind.
    """
    cjk = re.compile("[" + re.sub(r"\\x\{(\w+)\}", lambda match: chr(int(match[1], 16)), CJK) + "]")

    def kind(point):
        char = chr(point)
        category = unicodedata.category(char)
        if category[0] == "Z" or char.isspace():
            return SPACE
        if category[0] == "P" or (category[0] == "S" and char.isascii()) or cjk.match(char):
            return ALONE
        # Accents, joiners and the like go with the character that they follow.
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

"""Conversions between tags of any spelling and scheme, and between tags and spans of characters."""

import itertools

from kerasbert.text.names import known_name
from kerasbert.text.tagging import (
    LETTERS,
    OUTSIDE,
    SCHEMES,
    SEPARATORS,
    Spelling,
    TagSet,
    is_outside,
    tag_names,
)


def in_scheme(tags, types, scheme):
    """Convert tags of any spelling (see `spelling_of`) to `scheme`; other labels are unchanged.

    >>> in_scheme(["PER-B", "PER_M", "-", "x"], ["PER"], "BIOES")
    ['B-PER', 'I-PER', 'O', 'x']
    """
    if scheme is None:
        return tags
    known = set(tag_names(types, scheme))
    read = {tag: tag if tag in known else _in_scheme(tag, types, scheme) for tag in set(tags)}
    return [read[tag] for tag in tags]


def _in_scheme(tag, types, scheme):
    if is_outside(tag) and tag not in types:
        return OUTSIDE
    for separator, letter_first in itertools.product(SEPARATORS, (True, False)):
        letter, type = Spelling(separator, letter_first, frozenset()).read(tag) or (None, None)
        type = known_name(type, types)
        if type is not None:
            same = (one for one in SCHEMES[scheme] if LETTERS[one] == LETTERS[letter])
            letter = next(same, None)
            if letter is not None:
                return f"{letter}-{type}"
    return tag


def as_bio(tags):
    """Convert tags of any scheme to BIO; "I-PER" at the start of an entity (IOB1) becomes "B-PER".

    >>> as_bio(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC']
    """
    result = [OUTSIDE] * len(tags)
    for type, start, end in _entities(tags):
        result[start:end] = [f"B-{type}", *[f"I-{type}"] * (end - start - 1)]
    return result


def spans_of_characters(text, tags):
    """Convert tags per character to spans `(start, end, type)`; tags of spaces are ignored.

    >>> spans_of_characters("a bc d", ["B-X", "O", "I-X", "O", "O", "B-Y"])
    [(0, 3, 'X'), (5, 6, 'Y')]
    """
    places = [place for place, char in enumerate(text) if not char.isspace()]
    found = _entities([tags[place] for place in places])
    return [(places[start], places[end - 1] + 1, type) for type, start, end in found]


def _entities(tags):
    names = sorted(set(tags))
    return TagSet(names).entities([names.index(tag) for tag in tags])


def all_tags(text, spans):
    """Convert a text's spans to BIO tags, one per character."""
    tags = [OUTSIDE] * len(text)
    for start, end, type in spans:
        tags[start:end] = [f"B-{type}", *[f"I-{type}"] * (end - start - 1)]
    return tags


def tags_of_characters(text, spans):
    """Convert a text's spans to BIO tags, one per character except spaces.

    >>> tags_of_characters("a bc d", [(0, 3, "X")])
    ['B-X', 'I-X', 'O', 'O']
    """
    return [tag for char, tag in zip(text, all_tags(text, spans)) if not char.isspace()]

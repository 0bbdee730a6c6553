"""Pieces of texts, and the units that take labels: words, or the pieces themselves.

N texts, U units, P pieces; what a tokenizer makes of a word is one or more pieces.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from kerasbert._errors import is_whole
from kerasbert.backend.tensorflow import tf
from kerasbert.data.names import known_name


@dataclass
class Pieces:
    """Texts in memory, as pieces and as units; arrays run through all texts.

    Args:
        rows: list of N strings, or of N lists of words.
        words: bool. Whether the rows are lists of words.
        ids: int32 (pieces of all texts,).
        splits: ints (N + 1,). Where the pieces of each text begin and end in it.
        starts, ends: ints (units,). In characters of the text; for words, their number and the
            next one.
        unit_splits: ints (N + 1,).
        first, count: ints (units,). The first piece of each unit, and how many it has.
        unit: ints (pieces,). The unit of each piece; -1 for none.
    """

    rows: list
    words: bool
    ids: np.ndarray
    splits: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    unit_splits: np.ndarray
    first: np.ndarray
    count: np.ndarray
    unit: np.ndarray


def units_of_pieces(pieces, units):
    """Which pieces are of which units: those that share a character.

    Args:
        pieces: `(rows, starts, ends)`, ints (P,) of all texts: the text of each and its characters.
        units: the same of units (U,), which do not overlap.

    Returns:
        `(first, count, unit)`: the first piece of each unit and how many it has, (U,), and the
        unit of each piece, the first one of several, -1 for none, (P,).
    """
    rows, starts, ends, unit_rows, unit_starts, unit_ends = (
        tf.cast(array, tf.int64) for array in (*pieces, *units)
    )
    # Places through all texts: no piece or unit of one touches another one's.
    most = tf.reduce_max(tf.concat([ends, unit_ends, [0]], 0)) + 1
    unit_starts, unit_ends = unit_rows * most + unit_starts, unit_rows * most + unit_ends
    unit = tf.searchsorted(unit_ends, rows * most + starts, side="right", out_type=tf.int64)
    begin = tf.gather(tf.concat([unit_starts, [tf.int64.max]], 0), unit)
    unit = tf.where(begin < rows * most + ends, unit, -1)
    size = tf.size(unit_starts)
    place = tf.range(tf.size(unit, tf.int64))
    first = tf.math.unsorted_segment_min(place, unit, size)
    count = tf.math.unsorted_segment_sum(tf.ones_like(place), unit, size)
    return tf.where(count > 0, first, 0), count, unit


def pieces_as_units(rows, starts, ends):
    """Units of one piece each; pieces that share a character are one unit."""
    begins = np.ones(len(rows), bool)
    begins[1:] = (rows[1:] != rows[:-1]) | (starts[1:] >= ends[:-1])
    begins = np.flatnonzero(begins)
    last = np.append(begins[1:], len(rows))[: len(begins)] - 1
    return rows[begins], np.stack([starts[begins], ends[last]]).astype("int64")


def units_touched(pieces, position, start, stop):
    """The units of the text at `position` that a span of characters touches: `(low, high)`."""
    begin, end = pieces.unit_splits[position : position + 2]
    low = begin + np.searchsorted(pieces.ends[begin:end], start, side="right")
    return low, begin + np.searchsorted(pieces.starts[begin:end], stop)


def joined_spans(words):
    """Where words are in the text that they make up together."""
    ends = list(itertools.accumulate(map(len, words)))
    return list(zip([0, *ends], ends))


def checked_spans(row, text, types, position):
    """The spans of a text, checked, in their order."""
    if isinstance(row, (str, bytes, dict)) or not hasattr(row, "__len__"):
        raise ValueError(
            f"The labels at position {position} are {row!r}; pass a list of spans "
            "(start, end, label) for each text."
        )
    spans = []
    for span in row:
        if isinstance(span, dict) and {"start", "end", "label"} <= set(span):
            span = span["start"], span["end"], span["label"]
        if not isinstance(span, (list, tuple)) or len(span) != 3:
            raise ValueError(
                f"The labels at position {position} have {span!r}, which is no span "
                "(start, end, label) in a text; for a label a word pass lists of words."
            )
        start, end, label = span
        if not (is_whole(start) and is_whole(end)) or not (0 <= start < end <= len(text)):
            raise ValueError(
                f"The span {tuple(span)!r} at position {position} is not within its text of "
                f"{len(text)} characters; pass start and end with 0 <= start < end <= "
                f"{len(text)}."
            )
        label = str(label) if is_whole(label) and label not in types else label
        known = known_name(label, types)
        if known is None:
            raise ValueError(
                f"The span {tuple(span)!r} at position {position} has the label {label!r}; known "
                f"are {', '.join(map(repr, types))}."
            )
        spans.append((int(start), int(end), known))
    spans.sort()
    for before, after in zip(spans[:-1], spans[1:]):
        if after[0] < before[1]:
            raise ValueError(
                f"The spans {before} and {after} at position {position} overlap; a character "
                "has one label."
            )
    return spans

"""Texts as pieces (tokens) and labeled units: words, or the pieces themselves.

Shapes: N texts, U units, P pieces.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from kerasbert.base.errors import is_whole
from kerasbert.text import ops
from kerasbert.text.names import known_name


@dataclass
class Pieces:
    """Texts in memory as pieces and units; the arrays concatenate all texts.

    Args:
        rows: list of N strings, or of N lists of words.
        words: bool. Whether the rows are lists of words.
        ids: int32 (pieces of all texts,).
        splits: ints (N + 1,). Row splits of `ids`.
        starts, ends: ints (units,). Character offsets in the text; for lists of words, word
            indices.
        unit_splits: ints (N + 1,). Row splits of the units.
        first, count: ints (units,). First piece and number of pieces of each unit.
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
    """Match pieces to the units with which they share a character.

    Args:
        pieces: `(rows, starts, ends)`, ints (P,): text index and character offsets.
        units: the same for units (U,), without overlaps.

    Returns:
        `(first, count, unit)`: first piece and number of pieces of each unit, (U,), and the (first)
        unit of each piece, -1 for none, (P,).
    """
    rows, starts, ends, unit_rows, unit_starts, unit_ends = (
        ops.cast(array, "int64") for array in (*pieces, *units)
    )
    # Shift the offsets so that those of different texts never overlap.
    most = ops.reduce_max(ops.concat([ends, unit_ends, [0]], 0)) + 1
    unit_starts, unit_ends = unit_rows * most + unit_starts, unit_rows * most + unit_ends
    unit = ops.searchsorted(unit_ends, rows * most + starts, side="right", out_type="int64")
    begin = ops.gather(ops.concat([unit_starts, [np.iinfo("int64").max]], 0), unit)
    unit = ops.where(begin < rows * most + ends, unit, -1)
    size = ops.size(unit_starts)
    place = ops.range(ops.size(unit, "int64"))
    first = ops.unsorted_segment_min(place, unit, size)
    count = ops.unsorted_segment_sum(ops.ones_like(place), unit, size)
    return ops.where(count > 0, first, 0), count, unit


def pieces_as_units(rows, starts, ends):
    """Make each piece a unit, and merge pieces that share a character."""
    begins = np.ones(len(rows), bool)
    begins[1:] = (rows[1:] != rows[:-1]) | (starts[1:] >= ends[:-1])
    begins = np.flatnonzero(begins)
    last = np.append(begins[1:], len(rows))[: len(begins)] - 1
    return rows[begins], np.stack([starts[begins], ends[last]]).astype("int64")


def units_touched(pieces, position, start, stop):
    """Return the units of the text at `position` that a character span touches: `(low, high)`."""
    begin, end = pieces.unit_splits[position : position + 2]
    low = begin + np.searchsorted(pieces.ends[begin:end], start, side="right")
    return low, begin + np.searchsorted(pieces.starts[begin:end], stop)


def joined_spans(words):
    """Return the spans of words in their concatenation."""
    ends = list(itertools.accumulate(map(len, words)))
    return list(zip([0, *ends], ends))


def checked_spans(row, text, types, position):
    """Check the spans of a text and return them sorted."""
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
                f"The labels at position {position} have {span!r}, which is not a span "
                "(start, end, label) of a text; for labels per word, pass lists of words."
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
                f"The spans {before} and {after} at position {position} overlap; give each "
                "character one label."
            )
    return spans

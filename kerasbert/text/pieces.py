"""Texts as pieces (tokens) and as labeled units: words or the pieces themselves.

Shapes: N texts, U units, P pieces.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from kerasbert.base.errors import is_whole
from kerasbert.text import ops
from kerasbert.text.examples_in_memory import in_chunks
from kerasbert.text.names import known_name


@dataclass
class Pieces:
    """Texts in memory as pieces and units, concatenated over all texts.

    Args:
        rows: list of N strings, or of N lists of words.
        words: whether the rows are lists of words.
        ids: int32 (pieces of all texts,).
        splits: ints (N + 1,). Row splits of `ids`.
        starts, ends: ints (units,). Character offsets in the text, or indices of words.
        unit_splits: ints (N + 1,). Row splits of the units.
        first, count: ints (units,). First piece and number of pieces of each unit.
        unit: ints (pieces,). The unit of each piece, -1 for none.
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
    """Match pieces to the units that they overlap.

    Args:
        pieces: `(rows, starts, ends)`, ints (P,): text index and character offsets.
        units: the same of non-overlapping units, ints (U,).

    Returns:
        `(first, count, unit)`: first piece and number of pieces of each unit, (U,), and the first
        unit of each piece, -1 for none, (P,).
    """
    rows, starts, ends, unit_rows, unit_starts, unit_ends = (
        ops.cast(array, "int64") for array in (*pieces, *units)
    )
    # Multiples of `most` keep the offsets of different texts apart.
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
    """Return units of single pieces, or of several that share a character.

    Returns:
        `(rows, starts, ends)`, ints (U,).
    """
    begins = (rows[1:] != rows[:-1]) | (starts[1:] >= ends[:-1])
    begins = ops.concat([ops.ones_like(rows[:1], "bool"), begins], 0)
    first = ops.where(begins)[:, 0]
    last = ops.concat([first[1:], [ops.size(rows, "int64")]], 0)[: ops.size(first)] - 1
    return ops.gather(rows, first), ops.gather(starts, first), ops.gather(ends, last)


def units_of_texts(pieces, units):
    """Match pieces to the units of texts.

    Units without pieces are left out; a unit that shares its only piece with the one before is
    joined to it.

    Args:
        pieces, units: as for `units_of_pieces`.

    Returns:
        `(rows, starts, ends, first, count, unit)`, int64: text index, offsets, first piece and
        number of pieces of each unit, (U,); and the unit of each piece, (P,).
    """
    if not any(map(ops.is_tensor, units)):
        found = units_of_pieces(pieces, units)
        if found[1].all():
            return *units, *found
    # A piece and a unit of an extra text keep arrays from being empty.
    most = ops.reduce_max(ops.concat([pieces[0], units[0], [0]], 0)) + 1
    pieces, units = (
        [ops.concat([ops.cast(x, "int64"), [end]], 0) for x, end in zip(group, (most, 0, 1))]
        for group in (pieces, units)
    )
    first, count, unit = units_of_pieces(pieces, units)
    rows, starts, ends = units
    own = ops.where(count > 0)[:, 0]
    group = ops.cumsum(ops.cast(count > 0, "int64")) - 1
    joins = ops.maximum(group, 0)
    first, count, own_rows = (ops.gather(x, own) for x in (first, count, rows))
    past = ops.gather(ops.gather(pieces[2], first + count - 1), joins)
    shares = (group >= 0) & (starts < past) & (rows == ops.gather(own_rows, joins))
    widest = ops.unsorted_segment_max(ops.where(shares, ends, -1), joins, ops.size(own))
    starts, ends = ops.gather(starts, own), ops.maximum(ops.gather(ends, own), widest)
    unit = ops.where(unit >= 0, ops.gather(group, ops.maximum(unit, 0)), -1)
    return tuple(x[:-1] for x in (own_rows, starts, ends, first, count, unit))


def read_pieces(tokenizer, rows, texts, spans, words):
    """Tokenize texts and match pieces to units.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        rows: list of N strings, or of N lists of words.
        texts: list of N strings. The rows as texts.
        spans: list of N lists of units, `(start, end)` in characters; `None` makes units from
            pieces.
        words: whether the rows are lists of words, each of which stays a unit. In texts, words that
            share their only piece become one unit, and words without pieces are left out.

    Returns:
        A `Pieces`.
    """
    found = _joined(
        in_chunks(
            len(rows), lambda chunk: _read(tokenizer, texts[chunk], spans and spans[chunk], words)
        )
    )
    unit_rows = np.repeat(np.arange(len(rows)), found["unit_counts"])
    unit_splits = np.searchsorted(unit_rows, np.arange(len(rows) + 1))
    units = found["units"]
    if words:
        places = np.arange(len(unit_rows)) - unit_splits[unit_rows]
        units = places, places + 1
    return Pieces(
        rows=rows,
        words=words,
        ids=found["ids"],
        splits=np.append(0, np.cumsum(found["lengths"])),
        starts=units[0],
        ends=units[1],
        unit_splits=unit_splits,
        first=found["first"],
        count=found["count"],
        unit=found["unit"],
    )


def _read(tokenizer, texts, spans, words):
    """Run `read_pieces` for a chunk of texts.

    Returns:
        Dict of arrays: `ids` of pieces; `lengths`, pieces per text; `units`, int64 (2, U), starts
        and ends; `unit_counts`, units per text; and the results of `units_of_pieces`.
    """
    ids, starts, ends = tokenizer.ragged(texts, offsets=True)
    places = ids.value_rowids(), starts.values, ends.values
    if spans is None:
        units = pieces_as_units(*places)
    else:
        rows = np.repeat(np.arange(len(spans)), [len(row) for row in spans])
        flat = np.array([span for row in spans for span in row], "int64")
        units = rows, *flat.reshape(-1, 2).T
    if words:
        first, count, unit = units_of_pieces(places, units)
    else:
        *units, first, count, unit = units_of_texts(places, units)
    unit_rows, *units = (ops.cast(array, "int64") for array in units)
    return {
        "ids": ids.values,
        "lengths": ids.row_lengths(),
        "units": np.stack(units),
        "unit_counts": np.bincount(unit_rows, minlength=len(texts)),
        "first": first,
        "count": count,
        "unit": unit,
    }


def _joined(chunks):
    """Join the results of `_read` for chunks of texts."""
    if len(chunks) == 1:
        return chunks[0]
    pieces = units = 0
    for chunk in chunks:
        chunk["first"] = chunk["first"] + pieces
        chunk["unit"] = np.where(chunk["unit"] < 0, -1, chunk["unit"] + units)
        pieces, units = pieces + len(chunk["ids"]), units + chunk["units"].shape[1]
    return {name: np.concatenate([c[name] for c in chunks], axis=-1) for name in chunks[0]}


def units_touched(pieces, position, start, stop):
    """Return the units `(low, high)` of a text that a character span touches."""
    begin, end = pieces.unit_splits[position : position + 2]
    low = begin + np.searchsorted(pieces.ends[begin:end], start, side="right")
    return low, begin + np.searchsorted(pieces.starts[begin:end], stop)


def joined_spans(words):
    """Return the span of each word in the joined words."""
    ends = list(itertools.accumulate(map(len, words)))
    return list(zip([0, *ends], ends))


def checked_spans(row, text, types, position):
    """Check the labeled spans of a text, and return them in order."""
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

"""Normalizers of a `tokenizer.json`, from `Characters` to `Characters`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.text.byte_pair import byte_characters
from kerasbert.text.fast_graph.characters import utf8_byte, utf8_sizes
from kerasbert.text.fast_graph.patterns import Pattern
from kerasbert.text.fast_graph.tables import (
    changes_of_step,
    classes,
    composition,
    find,
    kinds_of_step,
)
from kerasbert.text.ops import rows_where
from kerasbert.text.tokenizer_json import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

# Shapes: C characters, D new characters, B blocks of characters that may be composed.


class NormalForm:
    """A Unicode normal form.

    Args:
        form: "NFC", "NFD", "NFKC" or "NFKD".
    """

    def __init__(self, form: str) -> None:
        self._tables = composition(form)

    def __call__(self, characters):
        tables = self._tables
        found, place = tables.decompose.expanded(characters)
        # As in the library: 0 replaces one character, 1 is inserted, a negative change replaces
        # several.
        changes = tf.cast(place > 0, "int64")
        ranks = tables.classes(found.points)
        found, changes, ranks = self._ordered(found, changes, ranks)
        if len(tables.pairs):
            found, changes = self._composed(found, changes, ranks)
        consumed = tf.where(changes > 0, tf.zeros_like(changes), 1 - changes)
        source = tf.cumsum(consumed, exclusive=True) - tf.cast(changes > 0, "int64")
        return characters.take(tf.maximum(source, 0), found.points)

    def _ordered(self, found, changes, ranks):
        """Sort adjacent combining marks by their combining classes."""
        is_wrong = (found.before(ranks, 0) > ranks) & (ranks > 0)

        def ordered():
            # A starter begins a run, so it stays before its marks.
            run = tf.cumsum(tf.cast((ranks == 0) | found.begins(), "int64"))
            order = tf.argsort(run * 1024 + tf.cast(ranks, "int64"), stable=True)
            return [tf.gather(x, order) for x in (*found, changes, ranks)]

        *parts, changes, ranks = tf.cond(
            tf.reduce_any(is_wrong), ordered, lambda: [*found, changes, ranks]
        )
        return type(found)(*parts), changes, ranks

    def _composed(self, found, changes, ranks):
        tables = self._tables
        joins = (ranks > 0) | (tables.seconds(found.points) > 0)
        first = tf.where(~joins | found.begins())[:, 0]  # (B,)
        size = tf.size(found.points, tf.int64)
        lengths = tf.concat([first[1:], [size]], 0)[: tf.size(first)] - first
        first, lengths = rows_where(lengths > 1, first, lengths)
        none = tf.fill(tf.shape(first), tf.constant(-1, "int64"))

        def step(i, first, lengths, composee, last, points, changes, removed):
            place = first + i
            point, rank = tf.gather(points, place), tf.gather(ranks, place)
            has = composee >= 0
            at = tf.maximum(composee, 0)
            pair = tf.bitwise.left_shift(tf.cast(tf.gather(points, at), "int64"), 21)
            key, is_pair = find(tables.pairs, pair | tf.cast(point, "int64"))
            merges = has & ((last < 0) | (last < rank)) & is_pair
            merged, into, key = rows_where(merges, place, composee, key)
            points = tf.tensor_scatter_nd_update(
                points, into[:, tf.newaxis], tf.gather(tf.constant(tables.composed), key)
            )
            change = tf.gather(changes, into) + tf.gather(changes, merged) - 1
            changes = tf.tensor_scatter_nd_update(changes, into[:, tf.newaxis], change)
            removed = tf.tensor_scatter_nd_update(
                removed, merged[:, tf.newaxis], tf.ones_like(merged, "bool")
            )
            begins = ~merges & (rank == 0)
            composee = tf.where(begins, place, composee)
            last = tf.where(begins, -1, tf.where(~merges & has, rank, last))
            i += 1
            return (
                i,
                *rows_where(lengths > i, first, lengths, composee, last),
                points,
                changes,
                removed,
            )

        state = (
            *(tf.constant(0, "int64"), first, lengths, none, tf.cast(none, "int32")),
            *(found.points, changes, tf.zeros_like(ranks, "bool")),
        )
        shapes = (tf.TensorShape([]), *[tf.TensorShape([None])] * 7)
        *_, points, changes, removed = tf.while_loop(
            lambda i, first, *_: tf.size(first) > 0, step, state, shape_invariants=shapes
        )
        *parts, changes = rows_where(~removed, *found._replace(points=points), changes)
        return type(found)(*parts), changes


def _steps(*steps):
    def run(characters):
        for step in steps:
            characters = step(characters)
        return characters

    return run


def _bert(step):
    strips = step.get("strip_accents")
    lowers = bool(step.get("lowercase"))
    steps = [changes_of_step({**step, "strip_accents": False, "lowercase": False})]
    if lowers if strips is None else strips:
        only = {**step, "clean_text": False, "handle_chinese_chars": False, "lowercase": False}
        is_mark = changes_of_step({**only, "strip_accents": True}).removed
        steps += [NormalForm("NFD"), lambda x: x.where(is_mark(x.points) == 0)]
    if lowers:
        steps.append(changes_of_step({"type": "Lowercase"}))
    return _steps(*steps)


def _strip(step):
    is_space = classes(kinds_of_step({"type": "WhitespaceSplit"}) == 0)

    def run(characters):
        space = is_space(characters.points) > 0
        # Non-space characters up to each character of a segment, and from it on.
        solid = tf.cast(~space, "int64")
        until = tf.cumsum(solid)
        segment = tf.cumsum(tf.cast(characters.begins(), "int64")) - 1
        first, last = characters.firsts(), tf.where(characters.ends())[:, 0]
        before = until - tf.gather(tf.gather(until - solid, first), segment)
        after = tf.gather(tf.gather(until, last), segment) - until + solid
        kept = tf.ones_like(space)
        kept &= (before > 0) if step.get("strip_left") else kept
        kept &= (after > 0) if step.get("strip_right") else kept
        return characters.where(kept)

    return run


def replaced(pattern, content):
    """Return a function that replaces matches, with the origin of their last character."""
    size = len(content)
    made = np.array([*map(ord, content), 0], "int32")

    def run(characters):
        is_match, begins = pattern.find(characters)
        later = tf.concat([begins[1:], tf.ones_like(begins[:1])], 0)
        counts = tf.where(is_match, tf.where(later, size, 0), 1)
        found, index, place = characters.repeated(counts)
        new = tf.gather(tf.constant(made), place)
        return found._replace(points=tf.where(tf.gather(is_match, index), new, found.points))

    return run


def _prepend(step):
    content = step["prepend"]
    if not content:
        return lambda characters: characters
    return lambda characters: characters.put_before(content, characters.begins())


def to_bytes(characters):
    """Replace characters by those that stand for their UTF-8 bytes."""
    table = tf.constant([*map(ord, byte_characters())], tf.int32)
    found, _, place = characters.repeated(utf8_sizes(characters.points))
    return found._replace(points=tf.gather(table, utf8_byte(found.points, place)))


# By type: a function that makes a step for graphs.
NORMALIZERS = {
    **{form: lambda step: NormalForm(step["type"]) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    **dict.fromkeys(("Lowercase", "StripAccents", "Nmt"), changes_of_step),
    "BertNormalizer": _bert,
    "ByteLevel": lambda step: to_bytes,
    "Prepend": _prepend,
    "Replace": lambda step: replaced(Pattern(step["pattern"]), step["content"]),
    "Strip": _strip,
}


def normalizer(step: dict) -> Callable:
    """Return a normalizer as a function of `Characters`.

    Raises:
        UnsupportedError: if a TensorFlow graph cannot run it.
    """
    return by_type(NORMALIZERS, "normalizer", step)


def by_type(rows, part, step):
    """Make a step by the row of its type; `part` is the step's name for errors."""
    kind = step.get("type")
    if kind not in rows:
        raise UnsupportedError(f"the {part} {kind}")
    try:
        return rows[kind](step)
    except UnsupportedError as error:
        raise UnsupportedError(f"the {part} {kind} with {error}") from None

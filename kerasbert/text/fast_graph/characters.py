"""`Characters`: the state of a batch of texts between the steps of a `tokenizer.json`.

Shapes: C characters of all texts, S segments (texts, then the words of texts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kerasbert.backend.tensorflow import tf
from kerasbert.text.ops import rows_of, rows_where

if TYPE_CHECKING:
    from typing import Any


class Characters(NamedTuple):
    """The current characters of all texts, with the original characters they were made from.

    As in the library, each has one original character, so a piece's first and last give its
    offsets.

    Args:
        points: int32 (C,). Code points.
        origins: int64 (C,). Index of the original character, counted over all texts.
        segments: int64 (C,). Number of the segment, ascending.
        keys: int64 (C,). Sort keys of pieces and added tokens in a text.
    """

    points: Any
    origins: Any
    segments: Any
    keys: Any

    def take(self, index, points=None):
        """Return the characters at an index (D,), optionally with other code points."""
        found = Characters(*(tf.gather(x, index) for x in self))
        return found if points is None else found._replace(points=points)

    def where(self, mask):
        return Characters(*rows_where(mask, *self))

    def begins(self):
        """Return whether a character is the first of its segment, bool (C,)."""
        change = self.segments[1:] != self.segments[:-1]
        return tf.concat([tf.ones_like(self.segments[:1], "bool"), change], 0)

    def before(self, values, default):
        """Return the value (C,) of the previous character, or `default` at a segment's start."""
        earlier = tf.concat([values[:1], values[:-1]], 0)
        return tf.where(self.begins(), default, earlier)

    def after(self, values, default):
        """Return the value (C,) of the next character, or `default` at a segment's end."""
        later = tf.concat([values[1:], values[:1]], 0)
        return tf.where(self.ends(), default, later)

    def ends(self):
        """Return whether a character is the last of its segment, bool (C,)."""
        return tf.concat([self.begins()[1:], tf.ones_like(self.segments[:1], "bool")], 0)

    def split_at(self, begins):
        """Begin a new segment at each character for which `begins` (C,) is true."""
        begins = begins | self.begins()
        return self._replace(segments=tf.cumsum(tf.cast(begins, "int64")))

    def firsts(self):
        """Return the index of the first character of each segment, int64 (S,)."""
        return tf.where(self.begins())[:, 0]

    def ragged(self, values):
        """Return values (C,) as ragged (S, None)."""
        splits = tf.concat([self.firsts(), [tf.size(self.points, tf.int64)]], 0)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def strings(self):
        """Return the segments as strings (S,)."""
        return tf.strings.unicode_encode(self.ragged(self.points), "UTF-8")

    def repeated(self, counts):
        """Repeat each character `counts` (C,) times.

        Returns:
            `(characters, index, place)`: the new characters (D,), the index of what each repeats,
            and its place among the repetitions, both (D,).
        """
        counts = tf.cast(counts, "int64")
        index = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
        first = tf.cumsum(counts, exclusive=True)
        place = tf.range(tf.size(index, tf.int64)) - tf.gather(first, index)
        return self.take(index), index, place

    def put_before(self, content, where):
        """Insert a non-empty string before each character for which `where` (C,) is true."""
        size = len(content)
        found, index, place = self.repeated(tf.where(where, size + 1, 1))
        content = tf.constant([*map(ord, content)], tf.int32)
        is_new = tf.gather(where, index) & (place < size)
        new = tf.gather(content, tf.minimum(place, size - 1))
        return found._replace(points=tf.where(is_new, new, found.points))


def characters_of(texts):
    """Return `(characters, points)` of valid UTF-8 texts (N,).

    Each text is a segment; `points` are its code points, ragged (N, None).
    """
    points = tf.strings.unicode_decode(texts, "UTF-8")
    index = tf.range(tf.size(points.flat_values, tf.int64))
    characters = Characters(points.flat_values, index, rows_of(points), tf.zeros_like(index))
    return characters, points


def utf8_sizes(points):
    """Return the number of bytes of code points (C,) in UTF-8, int32."""
    return 1 + sum(tf.cast(points >= limit, "int32") for limit in (0x80, 0x800, 0x10000))


def utf8_byte(points, place):
    """Return the UTF-8 byte at index `place` (C,) of each code point (C,), int32."""
    sizes, place = utf8_sizes(points), tf.cast(place, "int32")
    lead = tf.gather(tf.constant([0, 0, 0xC0, 0xE0, 0xF0]), sizes)
    bits = tf.bitwise.right_shift(points, 6 * tf.maximum(sizes - 1 - place, 0))
    return tf.where(place == 0, lead | bits, 0x80 | (bits & 0x3F))

"""Added tokens of a `tokenizer.json`, found in TensorFlow graphs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.text.byte_pair import byte_characters
from kerasbert.text.fast_graph.models import Vocabulary
from kerasbert.text.fast_graph.patterns import Pattern
from kerasbert.text.fast_graph.tables import classes, kinds_of_step
from kerasbert.text.ops import rows_where
from kerasbert.text.tokenizer_json import UnsupportedError

if TYPE_CHECKING:
    from typing import Any

# Shapes: C characters, K pieces, M matches and texts between them.


class Pieces(NamedTuple):
    """Pieces of all texts; each field has the shape (K,).

    Args:
        ids: int32. Token ids.
        firsts, lasts: int64. Index of the first and the last original character of each piece.
        keys: int64. See `Characters`.
        leading, trailing: int32. Number of white-space characters at both ends of each token.
    """

    ids: Any
    firsts: Any
    lasts: Any
    keys: Any
    leading: Any
    trailing: Any


class AddedTokens:
    """Finds added tokens in segments like the library.

    Args:
        tokens: list of dicts. Added tokens of a `tokenizer.json`, with a bool `matches`. If false,
            the token's text is left for the model, whole.
    """

    def __init__(self, tokens: list[dict[str, Any]]) -> None:
        tokens = sorted(tokens, key=lambda token: -len(token["content"]))
        contents = [token["content"] for token in tokens]
        strips = any(token["lstrip"] or token["rstrip"] for token in tokens)
        for content, count in Counter(contents).items():
            if not content or count > 1:
                raise UnsupportedError(f"the added token {content!r}, which is empty or not unique")
            if strips and content.strip() != content:
                raise UnsupportedError(
                    f"the added token {content!r} with white space, beside tokens with lstrip or "
                    "rstrip"
                )
        try:
            self._pattern = Pattern({"Strings": contents})
        except UnsupportedError as error:
            raise UnsupportedError(f"added tokens with {error}") from None
        self._numbers = Vocabulary({content: number for number, content in enumerate(contents)})
        # The last entry is for text between tokens.
        self._ids = np.array([*(token["id"] for token in tokens), -1], "int32")
        names = ("matches", "single_word", "lstrip", "rstrip")
        self._flags = {name: np.array([*(bool(t[name]) for t in tokens), False]) for name in names}
        self._kinds = classes(kinds_of_step({"type": "Whitespace"}))  # 0 space, 1 word.

    def _has(self, flag, numbers):
        return tf.gather(tf.constant(self._flags[flag]), numbers)

    def split(self, characters: Any) -> tuple[Any, Pieces]:
        """Split segments at added tokens.

        Args:
            characters: `Characters` (C,).

        Returns:
            `(rest, pieces)`: the characters outside added tokens, a segment per text between two;
            and the tokens as `Pieces`.
        """
        none = len(self._ids) - 1
        is_match, begins = self._pattern.find(characters)
        kinds = self._kinds(characters.points)
        parts = characters.split_at(begins)
        first, last = parts.firsts(), tf.where(parts.ends())[:, 0]
        part = tf.cumsum(tf.cast(begins, "int64")) - 1
        number = self._numbers.find(parts.strings())  # (M,)
        number = tf.where(tf.gather(is_match, first) & (number >= 0), number, none)
        beside = tf.gather(characters.before(kinds, 0), first) == 1
        beside |= tf.gather(characters.after(kinds, 0), last) == 1
        is_found = self._has("matches", number) & ~(self._has("single_word", number) & beside)
        number = tf.where(is_found, number, none)
        owner = tf.where(tf.gather(is_found, part), part, -1)  # (C,)
        number = tf.concat([number, [none]], 0)  # The last one is for characters without owner.
        count = tf.size(number, tf.int64) - 1

        def number_of(owner):
            return tf.gather(number, tf.where(owner < 0, count, owner))

        # `lstrip` and `rstrip` include white space beside the token.
        space = (owner < 0) & (kinds == 0)
        runs = characters.split_at((space != characters.before(space, False)) | (owner >= 0))
        run = tf.cumsum(tf.cast(runs.begins(), "int64")) - 1
        begin, end = runs.firsts(), tf.where(runs.ends())[:, 0]
        minus = tf.constant(-1, "int64")
        left = tf.gather(tf.gather(characters.before(owner, minus), begin), run)
        right = tf.gather(tf.gather(characters.after(owner, minus), end), run)
        to_left = space & self._has("rstrip", number_of(left))
        to_right = space & ~to_left & self._has("lstrip", number_of(right))
        owner = tf.where(to_left, left, tf.where(to_right, right, owner))
        groups = characters.split_at(characters.before(owner, minus) != owner)
        first, last = groups.firsts(), tf.where(groups.ends())[:, 0]
        segment = tf.cumsum(tf.cast(groups.begins(), "int64")) - 1
        keys = tf.gather(characters.keys, first)
        rest = groups._replace(keys=tf.gather(keys, segment)).where(owner < 0)
        leading, trailing = blank_ends((kinds == 0) | is_byte_space(characters), first, last)
        first, last, keys, leading, trailing = rows_where(
            tf.gather(owner, first) >= 0, first, last, keys, leading, trailing
        )
        ids = tf.gather(tf.constant(self._ids), number_of(tf.gather(owner, first)))
        first, last = (tf.gather(characters.origins, x) for x in (first, last))
        return rest, Pieces(ids, first, last, keys, leading, trailing)


def is_byte_space(characters):
    """Return which characters (C,) stand for the byte of a space, as in byte-level models."""
    return characters.points == ord(byte_characters()[ord(" ")])


def blank_ends(blank, first, last):
    """Count the `blank` characters (C,) at both ends of pieces.

    Args:
        blank: bool (C,).
        first, last: int64 (K,). The first and the last character of each piece.

    Returns:
        `(leading, trailing)`, int32 (K,).
    """
    solid = tf.concat([[-1], tf.where(~blank)[:, 0], [tf.size(blank, tf.int64)]], 0)
    later = tf.gather(solid, tf.searchsorted(solid, first))
    earlier = tf.gather(solid, tf.searchsorted(solid, last, side="right") - 1)
    leading = tf.minimum(later, last + 1) - first
    trailing = last - tf.maximum(earlier, first - 1)
    return tf.cast(leading, "int32"), tf.cast(trailing, "int32")

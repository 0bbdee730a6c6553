"""`FastGraph`: the steps of a `tokenizer.json` as a TensorFlow graph.

Ids, offsets and the version of Unicode are those of the library `tokenizers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.text.alignment import valid_utf8
from kerasbert.text.engine import FastEngine
from kerasbert.text.fast_graph.added import AddedTokens, Pieces, blank_ends, is_byte_space
from kerasbert.text.fast_graph.characters import characters_of, utf8_sizes
from kerasbert.text.fast_graph.models import Unigram, model_of
from kerasbert.text.fast_graph.normalizers import normalizer
from kerasbert.text.fast_graph.pre_tokenizers import pre_tokenizer
from kerasbert.text.fast_graph.tables import classes, kinds_of_step
from kerasbert.text.ops import rows_of
from kerasbert.text.tokenizer_json import steps_of

if TYPE_CHECKING:
    from typing import Any

# Shapes: N texts, P pieces of a text, C characters of all texts, W words, K pieces of all texts.


class FastGraph:
    """Tokenizes strings in a TensorFlow graph as a `tokenizer.json` describes.

    Args:
        engine: `FastEngine` that returns the same tokens and offsets.
        matches_special: whether to match tokens that the file calls special.

    Raises:
        UnsupportedError: if a TensorFlow graph cannot run a step.
    """

    def __init__(self, engine: FastEngine, matches_special: bool = True) -> None:
        content = engine.content()
        self._normalizers = [normalizer(x) for x in steps_of(content, "normalizer", "")]
        self._splits = [pre_tokenizer(x) for x in steps_of(content, "pre_tokenizer", "")]
        self._model = model_of(content)
        tokens = [
            token | {"matches": matches_special or not token["special"]}
            for token in content["added_tokens"]
        ]
        late = [
            token | {"content": engine.normalized(token["content"])}
            for token in tokens
            if token["normalized"]
        ]
        early = [token for token in tokens if not token["normalized"]]
        # Whether texts get a space as prefix, by post-processor that trims offsets.
        self._trims = [
            bool(step.get("add_prefix_space"))
            for step in steps_of(content, "post_processor", "")
            if step["type"] in ("ByteLevel", "RobertaProcessing") and step.get("trim_offsets")
        ]
        self._early, self._late = (AddedTokens(x) if x else None for x in (early, late))
        if self._trims:
            self._set_blanks(engine.vocabulary())

    def _set_blanks(self, vocabulary):
        self._blank = classes(kinds_of_step({"type": "WhitespaceSplit"}) == 0)

        def count(text):
            return len(text) - len(text.lstrip())

        tokens = [token.replace("\u0120", " ") for token in vocabulary]
        self._leading = np.array([count(token) for token in tokens], "int32")
        self._trailing = np.array([count(token[::-1]) for token in tokens], "int32")

    def __call__(self, texts: Any) -> tuple[Any, Any, Any]:
        """Tokenize strings (N,).

        Returns:
            `(ids, starts, ends)`, int32, ragged (N, P). The offsets are in characters.
        """
        characters, points = characters_of(valid_utf8(texts))
        row = rows_of(points)  # The text of each original character.
        row_starts, row_ends = points.row_starts(), points.row_limits()
        size = tf.size(row, tf.int64)
        text_starts = tf.range(size) == tf.gather(row_starts, row)
        found = []
        if self._early:
            keys = tf.bitwise.left_shift(characters.origins, 32)
            characters, pieces = self._early.split(characters._replace(keys=keys))
            found.append(pieces)
        for step in self._normalizers:
            characters = step(characters)
        if self._late:
            keys = characters.keys + 1 + tf.range(tf.size(characters.keys, tf.int64))
            characters, pieces = self._late.split(characters._replace(keys=keys))
            found.append(pieces)
        elif self._early:
            characters = characters._replace(keys=characters.keys + 1)
        for step in self._splits:
            characters = step(characters, text_starts)
        pieces = self._pieces(characters)
        if found:
            pieces = Pieces(*(tf.concat(x, 0) for x in zip(pieces, *found)))
            order = tf.argsort(pieces.keys, stable=True)
            pieces = Pieces(*(tf.gather(x, order) for x in pieces))
        rows = tf.gather(row, pieces.firsts)
        first = tf.gather(row_starts, rows)
        starts = tf.cast(pieces.firsts - first, "int32")
        ends = tf.cast(pieces.lasts + 1 - first, "int32")
        for has_prefix in self._trims:
            starts, ends = self._trimmed(pieces, rows, starts, ends, has_prefix)
        count = tf.size(row_ends, tf.int64)
        return tuple(
            tf.RaggedTensor.from_value_rowids(x, rows, count, validate=False)
            for x in (pieces.ids, starts, ends)
        )

    def _pieces(self, characters):
        """Return the `Pieces` of words, which are the segments of `characters`."""
        words, word_number = tf.unique(characters.strings())
        ids, starts, ends = (tf.gather(x, word_number) for x in self._model(words))
        word = rows_of(ids)
        sizes = utf8_sizes(characters.points)
        character = tf.repeat(tf.range(tf.size(sizes, tf.int64)), sizes)  # Of each byte.
        begins = tf.gather(tf.cumsum(sizes, exclusive=True), characters.firsts())
        begins = tf.gather(begins, word)
        starts, ends = begins + starts.flat_values, begins + ends.flat_values
        first, last = (tf.gather(character, x) for x in (starts, ends - 1))
        ids = ids.flat_values
        if not self._trims:
            leading = trailing = tf.zeros_like(ids)
        elif isinstance(self._model, Unigram):
            # In the library, an unknown unigram piece has the text of its characters.
            blank = (self._blank(characters.points) > 0) | is_byte_space(characters)
            leading, trailing = blank_ends(blank, first, last)
        else:
            leading, trailing = (
                tf.gather(tf.constant(x), ids) for x in (self._leading, self._trailing)
            )
        keys = tf.gather(characters.keys, first)
        first, last = (tf.gather(characters.origins, x) for x in (first, last))
        return Pieces(ids, first, last, keys, leading, trailing)

    def _trimmed(self, pieces, rows, starts, ends, has_prefix):
        """Exclude white space at the ends of tokens from offsets."""
        leading = pieces.leading
        if has_prefix:
            begins = tf.concat([tf.ones_like(rows[:1], "bool"), rows[1:] != rows[:-1]], 0)
            leading = tf.where(begins | (starts == 0), 0, leading)
        starts = tf.minimum(starts + leading, ends)
        shorter = tf.maximum(ends - pieces.trailing, starts)
        return starts, tf.where(ends >= pieces.trailing, shorter, ends)

"""Base class of tokenizers with added tokens, which are matched before words are split."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from kerasbert import backend
from kerasbert.backend.tensorflow import has_tensorflow, tf
from kerasbert.base import keras_internals
from kerasbert.base.errors import check_value
from kerasbert.base.keywords import check_keyword
from kerasbert.text import ops
from kerasbert.text.alignment import NUL, align, character_sizes, distinct, runs, valid_utf8
from kerasbert.text.engine import FastEngine, in_form_first
from kerasbert.text.ops import rows_of, rows_where
from kerasbert.text.subword import SubwordTokenizer, once

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# Shapes: N texts, S segments of all texts, P pieces of a text, C code points of all texts.

# Up to this number of texts, TensorFlow, too, uses the library `tokenizers`.
FEW = 256
# Unicode white space; RE2's \s has only the ASCII characters.
SPACE = r"\t-\r \x{85}\p{Z}"
# Replaces an added token that was found before normalization.
STAND_IN = "\ufffe"
# Word characters, next to which a `single_word` token is not matched.
WORD = r"[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}]"
# Markers in vocabularies: [unused1], <S>, <|endoftext|>.
MARKER = re.compile(r"\[[\w-]+\]|</?[\w-]+>|<\|[\w-]+\|>")
# All except the last two are from `transformers`.
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special", "control", "extra")
# Unicode name prefixes of scripts without spaces between words.
NO_SPACES = (
    *("CJK ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA"),
    *("THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN "),
)


def stands_alone(char):
    """Return whether a character is a word by itself: punctuation, or of a script without spaces.

    These are punctuation marks, ASCII symbols, and characters of scripts without spaces.

    >>> [stands_alone(char) for char in "-$語aé"]
    [True, True, True, False, False]
    """
    category = unicodedata.category(char)
    is_mark = category[0] == "P" or (category[0] == "S" and char.isascii())
    return is_mark or unicodedata.name(char, "").startswith(NO_SPACES)


class AddedTokensTokenizer(SubwordTokenizer):
    """Base class of tokenizers with the added tokens of `transformers`.

    Args:
        added_tokens: list of dicts with `content` and, if true, `single_word` (no word character
            may be next to it), `lstrip`, `rstrip` (it includes white space on that side),
            `normalized` (it is matched after normalization), `special` (`transformers` omits it
            from decoded text) and `control` (like the special tokens). Control tokens are matched
            only with `special_tokens_in_strings`.
        special_tokens_in_strings: whether to convert control tokens, such as `[SEP]`, and other
            markers, such as `[unused1]`, in texts to their ids, instead of treating them as
            ordinary text.
        unk_token, cls_token, sep_token, pad_token, mask_token: strings. Special tokens.
        **kwargs: arguments of the base class.

    Raises:
        ValueError: for an added token without `content`, or with an unknown or wrongly typed field.

    Subclasses define:

    - `_normalize(text)`: (S,) to (S,),
    - `_split(segments, known)`: (S,) to ids, starts and ends, each ragged (S, pieces); starts and
      ends are in bytes of the segment,
    - `_as_text(token)`: the token, with a space as word-boundary mark.
    """

    def __init__(
        self,
        added_tokens: Sequence[Any],
        special_tokens_in_strings: bool,
        unk_token: str,
        cls_token: str,
        sep_token: str,
        pad_token: str,
        mask_token: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            special_tokens_in_strings,
            unk_token,
            cls_token,
            sep_token,
            pad_token,
            mask_token,
            **kwargs,
        )
        for token in added_tokens:
            check_value("an added token", token, "object")
            check_value("the content of an added token", token.get("content"), "name")
            for name in token.keys() - {"content"}:
                check_keyword(f"The added token {token['content']!r}", name, FLAGS)
                check_value(f"{name} of the added token {token['content']!r}", token[name], "flag")
        self.added_tokens = added_tokens

    def get_config(self) -> dict[str, Any]:
        added = [dict(token) for token in self.added_tokens]
        return {**super().get_config(), "added_tokens": added}

    def _size_without(self, extra):
        """Return the vocabulary size without the added tokens in `extra` at its end.

        Readers of the files number them after all others, and never use them in words.
        """
        found = {t["content"] for t in self.added_tokens if not self._is_control(t)}
        size = len(self.vocabulary)
        while self.vocabulary[size - 1] in found & extra:
            size -= 1
        return size

    def described(self) -> dict[str, Any]:
        """Return the parts of a `tokenizer.json` with this tokenizer's rules: a dict of
        `normalizer`, `pre_tokenizer`, `decoder` and `model`.
        """
        raise NotImplementedError

    def model_files(self) -> dict[str, bytes]:
        """Return other files with the same model: a dict of name to bytes."""
        return {}

    def config_settings(self) -> dict[str, Any]:
        """Return settings for `tokenizer_config.json`."""
        return {}

    def trims_offsets(self) -> dict[str, Any] | None:
        """Return a post-processor that excludes white space from offsets, or `None`."""
        return None

    def _word_edges(self, token):
        text = self._as_text(token)
        if not text or text == " ":  # The token is only a word-boundary mark.
            return text == " ", False
        begins, ends = (char.isspace() or stands_alone(char) for char in (text[0], text[-1]))
        return begins, ends

    def _is_control(self, token):
        return bool(token.get("control")) or token["content"] in self.special_tokens

    @property
    def control_tokens(self) -> list[str]:
        """Tokens that texts match only with `special_tokens_in_strings`, without duplicates."""
        added = [t["content"] for t in self.added_tokens if self._is_control(t)]
        return list(dict.fromkeys(self.special_tokens + added))

    def markers(self) -> list[str]:
        """Return tokens such as `[unused1]`, matched only with `special_tokens_in_strings`."""
        if not self.special_tokens_in_strings or self._only_control:
            return []
        known = {*self.control_tokens, *(token["content"] for token in self.added_tokens)}
        found = [t for t in self.vocabulary if MARKER.fullmatch(t) and t not in known]
        return [token for token in found if not self._is_piece(token)]

    def _is_piece(self, token):
        """Return whether ordinary text can produce a token that looks like a marker."""
        return False

    @once
    def _added_tokens(self):
        """Return the added tokens that are matched in texts, with all their fields and ids."""
        defaults = dict.fromkeys(FLAGS, False)
        tokens = {}
        if self.special_tokens_in_strings:
            for token in (*self.markers(), *self.control_tokens):
                own = {"content": token, "lstrip": self._strips_left(token), "special": True}
                tokens[token] = defaults | own
        for token in self.added_tokens:
            if self.special_tokens_in_strings or not self._is_control(token):
                tokens[token["content"]] = defaults | dict(token)
        tokens = [t for t in tokens.values() if t["content"] and t["content"] in self._token_ids]
        return [token | {"id": self._token_ids[token["content"]]} for token in tokens]

    @once
    def _white_space(self):
        """Return whether an added token includes adjacent white space, and whether one begins or
        ends with white space.
        """
        added = self._added_tokens()
        strips = any(token["lstrip"] or token["rstrip"] for token in added)
        return strips, any(token["content"].strip() != token["content"] for token in added)

    def _strips_left(self, token):
        """Return the default `lstrip` of a special token."""
        return token == self.mask_token

    def _normalized(self, tokens):
        """Return added tokens with normalized contents. Empty ones are dropped."""
        if not tokens:
            return []
        with tf.init_scope(), tf.device("cpu"):
            contents = self._normalize(tf.constant([token["content"] for token in tokens])).numpy()
        found = [t | {"content": c.decode()} for t, c in zip(tokens, contents, strict=True)]
        return [token for token in found if token["content"]]

    def _split_added(self, text, rows, known, tokens):
        """Split segments at added tokens.

        Args:
            text: (S,). Segments.
            rows: (S,). Index of the text of each segment.
            known: (S,) int32. Token id if the segment is an added token, else -1.
            tokens: list of added tokens.

        Returns:
            `(text, rows, known)` of the new segments.
        """
        if not tokens:
            return text, rows, known
        # Tokens of white space are matched first, then longer tokens before shorter tokens.
        tokens = sorted(tokens, key=lambda t: (t["content"].isspace(), len(t["content"])))[::-1]
        contents = tf.constant([token["content"] for token in tokens])
        ids = tf.constant([token["id"] for token in tokens])
        strips = tf.constant([bool(token["lstrip"] or token["rstrip"]) for token in tokens])
        pattern = "|".join(
            (f"[{SPACE}]*" if token["lstrip"] else "")
            + re.escape(token["content"])
            + (f"[{SPACE}]*" if token["rstrip"] else "")
            for token in tokens
        )
        text = tf.strings.regex_replace(text, r"\x{0}", NUL)
        parts, _, _ = keras_internals.regex_split_with_offsets(text, pattern, pattern)  # (S, parts)
        rows = tf.gather(rows, rows_of(parts))
        known = tf.gather(known, rows_of(parts))
        text = tf.strings.regex_replace(parts.flat_values, NUL, "\0")
        is_new = (known < 0) & tf.strings.regex_full_match(text, pattern)
        alone = [token for token in tokens if token["single_word"]]
        if alone:
            is_part = is_new & self._is_in_word(text, rows, is_new, alone)
            text, rows, known, is_new = _rejoined(text, rows, known, is_new, is_part)
        new = tf.where(is_new)  # (T, 1)
        token = tf.gather_nd(text, new)[:, tf.newaxis]
        bare = tf.strings.regex_replace(token, f"^[{SPACE}]+|[{SPACE}]+$", "")
        same = (token == contents) | ((bare == contents) & strips)
        ids = tf.gather(ids, tf.argmax(tf.cast(same, "int32"), axis=1))
        return text, rows, tf.tensor_scatter_nd_update(known, new, ids)

    def _is_in_word(self, text, rows, is_new, tokens):
        """Return which segments (S,) are `single_word` tokens next to a word character."""

        def is_any(tokens, left="*", right="*"):
            """Return which texts are one of the tokens, with such white space."""
            return tf.strings.regex_full_match(
                text,
                "|".join(
                    (f"[{SPACE}]{left}" if token["lstrip"] else "")
                    + re.escape(token["content"])
                    + (f"[{SPACE}]{right}" if token["rstrip"] else "")
                    for token in tokens
                )
                or NUL,
            )

        ends = tf.strings.regex_full_match(text, f"(?s).*{WORD}")
        begins = tf.strings.regex_full_match(text, f"(?s){WORD}.*")
        if self._spaced and tokens[0]["normalized"]:
            ends &= ~tf.strings.regex_full_match(text, f"(?s).*[{self._spaced}]")
            begins &= ~tf.strings.regex_full_match(text, f"(?s)[{self._spaced}].*")
        # # White space that `lstrip` or `rstrip` includes separates a token from its neighbors.
        after = ~is_any([token for token in tokens if token["rstrip"]], right="+")
        before = ~is_any([token for token in tokens if token["lstrip"]], left="+")
        same = rows[1:] == rows[:-1]
        none = tf.zeros_like(is_new[:1])
        left = tf.concat([none, same & ends[:-1]], 0) & before
        right = tf.concat([same & begins[1:], none], 0) & after
        return is_any(tokens) & (left | right)

    def _segments(self, text):
        """Split texts (N,) into normalized segments (S,) at added tokens.

        Returns:
            `(before, after)`: the segments before and after normalization, each as texts, rows, and
            ids of added tokens (-1 for other text). In `after`, `STAND_IN` replaces added tokens
            that were found before normalization.
        """
        added = self._added_tokens()
        rows, known = tf.range(tf.size(text)), tf.fill(tf.shape(text), -1)
        early = [token for token in added if not token["normalized"]]
        before = self._split_added(text, rows, known, early)
        text, rows, known = before
        normal = self._normalize(text)
        text = tf.where(known < 0, normal, STAND_IN) if early else normal
        late = self._normalized([token for token in added if token["normalized"]])
        return before, self._split_added(text, rows, known, late)

    def _pieces(self, text):
        """Tokenize texts (N,).

        Returns:
            Ids, ragged (N, P); their starts and ends, in bytes of the normalized text; and the
            segments before normalization.
        """
        text = valid_utf8(text)
        before, (segments, rows, known) = self._segments(text)
        ids, starts, ends = self._split(segments, known)  # (S, pieces)
        lengths = tf.strings.length(segments)
        limits, segment = tf.cast(ids.row_limits(), "int64"), tf.cast(rows_of(ids), "int64")
        ids, starts, ends = (x.flat_values for x in (ids, starts, ends))
        if self._added_tokens():
            # Insert the id of each added token at the end of its segment, without `tf.concat`,
            # which would trace 400 operations for ragged tensors.
            is_known = known >= 0
            earlier = tf.cumsum(tf.cast(is_known, "int64"), exclusive=True)  # (S,)
            new, place = rows_where(is_known, tf.range(tf.size(known, tf.int64)), limits + earlier)
            moved = tf.range(tf.size(ids, tf.int64)) + tf.gather(earlier, segment)
            place = tf.concat([moved, place], 0)[:, tf.newaxis]
            count = tf.shape(place, tf.int64)[:1]

            def append(x, value):
                return tf.scatter_nd(place, tf.concat([x, value], 0), count)

            ids = append(ids, tf.gather(known, new))
            starts = append(starts, tf.zeros_like(new, starts.dtype))
            ends = append(ends, tf.gather(lengths, new))
            segment = append(segment, new)
        first = tf.cumsum(lengths, exclusive=True)  # (S,), starts in the concatenation of all texts
        own = tf.math.unsorted_segment_min(first, rows, tf.size(text))  # (N,)
        first = tf.gather(first - tf.gather(own, rows), segment)
        starts, ends = starts + first, ends + first
        rows = tf.cast(tf.gather(rows, segment), "int64")
        ids = tf.RaggedTensor.from_value_rowids(ids, rows, tf.size(text, tf.int64), validate=False)
        return ids, starts, ends, before

    # === The library `tokenizers`, for texts in memory ===

    def _other_in_library(self, offsets):
        """Return patterns of characters that the library `tokenizers` treats differently, or `None`
        if it cannot be used.

        Returns:
            A tuple of compiled regular expressions, or `None`.
        """
        return None

    @once
    def _engine(self):
        """Return the engine for texts without characters of `_other_in_library`."""
        described = self.described()
        parts = {name: described[name] for name in ("normalizer", "pre_tokenizer", "model")}
        parts["normalizer"] = in_form_first(self.normalize, parts["normalizer"])
        names = ("id", "content", *FLAGS[:5])
        added = [{name: token[name] for name in names} for token in self._added_tokens()]
        added.sort(key=lambda token: token["id"])
        return FastEngine({**parts, "added_tokens": added, "post_processor": self.trims_offsets()})

    def _encode(self, name, texts):
        offsets = name != "_tokenize"
        others = self._other_in_library(offsets)
        # The library's offsets include white space beside added tokens, and it returns an added
        # token of white space twice, so it is avoided in these cases.
        strips, has_space = self._white_space()
        strips &= offsets or has_space
        # TensorFlow's graph is faster for many texts, but slow to build.
        is_bulk = len(texts) > FEW and backend.trains_in_graphs()
        is_graph = others is None or strips or is_bulk or self.normalize is not None
        if is_graph and has_tensorflow():
            return super()._encode(name, texts)
        texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
        others = others if has_tensorflow() else ()
        in_graph = [i for i, text in enumerate(texts) if any(one.search(text) for one in others)]
        if not in_graph:
            return self._engine().encode(texts, offsets)
        found = super()._encode(name, [texts[i] for i in in_graph])
        if len(in_graph) == len(texts):
            return found
        rest = np.setdiff1d(np.arange(len(texts)), in_graph)
        by_library = self._engine().encode([texts[i] for i in rest], offsets)
        order = np.argsort(np.concatenate([in_graph, rest]))
        return tuple(ops.concat(parts, 0).take(order) for parts in zip(found, by_library))

    # === Graphs ===

    def _tokenize(self, text):
        if self._added_tokens():
            return self._pieces(text)[0]
        segments, _, known = self._segments(valid_utf8(text))[1]  # One segment per text.
        return self._split(segments, known)[0].with_row_splits_dtype("int64")

    def _tokenize_with_offsets(self, text):
        ids, starts, ends, (segments, _, known) = self._pieces(text)
        points = tf.strings.unicode_decode(valid_utf8(text), "UTF-8")  # (N, None)
        starts, ends = align(ids, starts, ends, points, *self._sizes(segments, known))
        return ids, *self._tighten(starts, ends, points)

    # Characters that `transformers` surrounds with spaces.
    _spaced = ""
    # `_around` are the characters that offsets exclude. `_begins_next`: whether a piece of these
    # alone has the next character's offsets.
    _around = SPACE
    _begins_next = False

    def _tighten(self, starts, ends, points):
        """Exclude the white space around pieces from their offsets."""
        characters, index = distinct(points.flat_values)
        around = tf.gather(tf.strings.regex_full_match(characters, f"[{self._around}]"), index)
        solid = tf.where(~around)[:, 0]
        solid = tf.concat([[-1], solid, [tf.size(index, tf.int64)]], 0)  # (C or less,)
        rows = rows_of(starts)
        first = tf.gather(points.row_starts(), rows)
        limit = tf.gather(points.row_limits(), rows)
        start = tf.cast(starts.flat_values, "int64") + first
        end = tf.cast(ends.flat_values, "int64") + first
        next_solid = tf.gather(solid, tf.searchsorted(solid, start))
        past_solid = tf.gather(solid, tf.searchsorted(solid, end) - 1) + 1
        has_solid = next_solid < past_solid
        empty = start == end
        if self._begins_next:
            white = tf.strings.regex_full_match(characters, rf"[{SPACE}\x{{200B}}]")
            white = tf.gather(white, index)
            empty |= tf.gather(tf.concat([white, [False]], 0), start)
        moves = ~has_solid & (next_solid < limit) & empty
        start = tf.where(has_solid | moves, next_solid, start)
        end = tf.where(has_solid, past_solid, tf.where(moves, next_solid + 1, end))
        return tuple(starts.with_flat_values(tf.cast(x - first, "int32")) for x in (start, end))

    def _sizes(self, segments, known):
        """Return the number of bytes to which each character is normalized, for `align`."""

        def normalize(clusters, is_known=None):
            normal = self._normalize(clusters)
            return normal if is_known is None else tf.where(is_known, STAND_IN, normal)

        points = tf.strings.unicode_decode(segments, "UTF-8")  # (S, None)
        return character_sizes(points, normalize, "BYTE", known >= 0)


def _rejoined(text, rows, known, is_new, is_part):
    """Join neighboring segments (S,) between added tokens."""
    is_token = (known >= 0) | (is_new & ~is_part)
    begins = is_token[1:] | is_token[:-1] | (rows[1:] != rows[:-1])
    begins = tf.concat([tf.ones_like(is_token[:1]), begins], 0)
    joined, firsts = runs(text, begins)
    text = tf.strings.reduce_join(joined, axis=-1)
    return text, *(tf.gather(x, firsts) for x in (rows, known, is_new & ~is_part))

"""Preprocessing for masked language models, with dynamic masking.

B batch, T tokens per row, P predictions.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice
from kerasbert.text.alignment import valid_utf8
from kerasbert.text.characters import SPACE, code_points, substrings
from kerasbert.text.label_warnings import warn_of_nothing
from kerasbert.text.masking import check_rates, mask_tokens, word_starts
from kerasbert.text.packing import BertPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts
    from kerasbert.text.subword import SubwordTokenizer

BOUNDARIES = ("marks", "spaces")
# Added to the ids of pieces that continue a word, between tokenizing and packing.
GOES_ON = 1 << 30


class MaskingPreprocessor(BertPreprocessor):
    """Base class of preprocessors that mask tokens."""

    settings = (
        *BertPreprocessor.settings,
        "mask_selection_rate",
        "mask_selection_length",
        "mask_token_rate",
        "random_token_rate",
        "mask_unit",
        "word_boundaries",
    )
    draws = True

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        mask_selection_rate: float = 0.15,
        mask_selection_length: int | None = None,
        mask_token_rate: float = 0.8,
        random_token_rate: float = 0.1,
        mask_unit: str = "token",
        word_boundaries: str = "marks",
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, num_segments, **kwargs)
        check_rates(
            mask_selection_rate,
            mask_token_rate,
            random_token_rate,
            mask_selection_length,
            mask_unit,
            may_hide_nothing=True,
        )
        check_choice("word_boundaries", word_boundaries, BOUNDARIES)
        self.mask_selection_rate = mask_selection_rate
        self.mask_selection_length = mask_selection_length
        self.mask_token_rate = mask_token_rate
        self.random_token_rate = random_token_rate
        self.mask_unit = mask_unit
        self.word_boundaries = word_boundaries

    def tokenize(self, x: Any) -> Any:
        return tuple(segment % GOES_ON for segment in super().tokenize(x))

    def _tokens(self, texts):
        if self.mask_unit == "token" or self.word_boundaries == "marks":
            return super()._tokens(texts)
        words = tf.strings.split(tf.strings.regex_replace(texts, f"[{SPACE}]+", " "), " ")  # (N, W)
        is_first = tf.gather(words.row_starts(), words.value_rowids())
        is_first = is_first == tf.range(tf.size(words.values, tf.int64))
        # After a space, a word gets the same byte pairs as within a text.
        spaced = tf.where(is_first | (words.values == ""), words.values, " " + words.values)
        pieces = super()._tokens(spaced)  # (words of all texts, None)
        begins = tf.gather(pieces.row_starts(), pieces.value_rowids())
        begins = begins == tf.range(tf.size(pieces.values, tf.int64))
        pieces = pieces.with_values(tf.where(begins, pieces.values, pieces.values + GOES_ON))
        return words.with_values(pieces).merge_dims(1, 2)

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        special = list(self.tokenizer.special_token_ids)
        ids = np.concatenate([np.asarray(segment.flat_values) for segment in segments]) % GOES_ON
        if not self.mask_selection_rate:
            return  # Intended: the caller masks tokens.
        if np.isin(ids, special).all():
            warn_of_nothing(
                "No text has a token to mask: the texts are empty, or none of their words is in "
                "the vocabulary",
                "check the texts and the tokenizer",
            )

    def masked(
        self, segments: Any, sample_weight: Any = None, length: int | None = None, seed: Any = None
    ) -> tuple[Any, Any, Any]:
        """Pack segments and mask some of their tokens.

        Args:
            segments: tuple of one or two `tf.RaggedTensor` int32 (B, None).
            sample_weight: floats (B,).
            length: int. T; by default the bucket of the longest row.
            seed: ints (2,); `None` draws one.

        Returns:
            `(features, mask_ids, weights)`, the last two (B, P).
        """
        features = self.pack(segments, length)
        starts = None
        if self.mask_unit != "token" and self.word_boundaries == "spaces":
            starts = features["token_ids"] < GOES_ON
            features["token_ids"] %= GOES_ON
        elif self.mask_unit != "token":
            starts = word_starts(features["token_ids"], self.tokenizer.word_edges())
        maskable = features["padding_mask"]
        for special in self.tokenizer.special_token_ids:
            maskable &= features["token_ids"] != special
        hidden = mask_tokens(
            features["token_ids"],
            maskable,
            self._drawn_seed() if seed is None else seed,
            vocabulary_size=self.tokenizer.vocabulary_size(),
            mask_token_id=self.tokenizer.mask_token_id,
            lengths=self.packed_lengths(segments),
            mask_selection_rate=self.mask_selection_rate,
            mask_selection_length=self.mask_selection_length,
            mask_token_rate=self.mask_token_rate,
            random_token_rate=self.random_token_rate,
            unit=self.mask_unit,
            word_starts=starts,
        )
        weights = hidden["mask_weights"]  # (B, P)
        if sample_weight is not None:
            weights *= tf.reshape(tf.cast(sample_weight, tf.float32), (-1, 1))
        features["token_ids"] = hidden["token_ids"]
        features["mask_positions"] = hidden["mask_positions"]
        return features, hidden["mask_ids"], weights

    def fill_in(
        self, texts: Texts, rows: Any, starts: Any, ends: Any, before: Any, tokens: Any
    ) -> tuple[Any, Any]:
        """Replace masks in texts with tokens, eagerly or in a graph.

        Args:
            texts: strings (N,).
            rows, starts, ends: ints (M,). Text index and character offsets of each mask.
            before: int32 (M,). The token before each mask; -1 for none.
            tokens: int32 (M, K). Candidates for each mask.

        Returns:
            `(names, texts)`: strings (M, K), the tokens as text and the filled texts.
        """
        if tf.executing_eagerly():
            fill_in = self.traced("fill_in", self.fill_in)
            return fill_in(texts, rows, starts, ends, before, tokens)
        points = code_points(texts)

        def text_of(*columns):
            ids = tf.stack([tf.reshape(column, [-1]) for column in columns], 1)
            # Byte-level tokens may hold part of a character.
            found = valid_utf8(self.tokenizer.detokenize(tf.RaggedTensor.from_tensor(ids)))
            return tf.reshape(found, tf.shape(tokens))

        names = tf.strings.regex_replace(text_of(tokens), f"^[{SPACE}]+|[{SPACE}]+$", "")
        head = substrings(points, rows, tf.zeros_like(starts), starts)[:, None]  # (M, 1)
        tail = substrings(points, rows, ends, tf.gather(points.row_lengths(), rows))[:, None]
        previous = tf.broadcast_to(tf.maximum(before, 0)[:, None], tf.shape(tokens))
        left, both = text_of(previous), text_of(previous, tokens)
        cut = tf.minimum(tf.strings.length(left), tf.strings.length(both))
        begins = tf.strings.substr(both, tf.zeros_like(cut), cut) == left
        added = tf.strings.substr(both, cut, tf.strings.length(both) - cut)
        # A token's text either begins with a space or continues the previous word.
        joins = (before >= 0)[:, None] & begins & (left != "") & (added != "")
        joins &= ~tf.strings.regex_full_match(added, f"(?s)[{SPACE}].*")
        bare = tf.strings.regex_replace(head, f"[{SPACE}]+$", "")
        return names, tf.where(joins, bare + added, head + names) + tail

    def _drawn_seed(self):
        """Draw a seed that `keras.utils.set_random_seed` reproduces."""
        if tf.executing_eagerly():
            return [random.randrange(2**31) for _ in range(2)]
        return tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)


@keras.saving.register_keras_serializable(package="kerasbert")
class BertMaskedLMPreprocessor(MaskingPreprocessor):
    """Packs texts or pairs as `BertPreprocessor` does, and masks tokens to predict.

    Called on texts without labels, it returns `(x, y, sample_weight)`: `x` also has
    `mask_positions` int32 (B, P), `y` holds the original tokens, int32 (B, P), and weights (B, P)
    are 0 in unused slots. Masks differ in each call and each epoch of `fit`;
    `keras.utils.set_random_seed` makes them reproducible. `evaluate` always masks the same tokens.

    From a row of n tokens, max(1, round(mask_selection_rate * n)) are selected; special tokens
    count in n, but are never selected. P is that number for n = T.

    Args:
        tokenizer, sequence_length, truncate, num_segments: see `BertPreprocessor`.
        mask_selection_rate: float. Share of tokens to predict; 0 for none.
        mask_selection_length: int. Maximum number of these per row; `None` for no limit.
        mask_token_rate: float. Share of these that the mask token replaces.
        random_token_rate: float. Share of these that a random token replaces; the rest are kept.
        mask_unit: string. Unit to mask: "token", "word", "span" or "ngram"; see
            `kerasbert.data.mask_tokens`.
        word_boundaries: string. Where words begin, for units other than "token". "marks": by the
            marks of tokens (`##`, `Ġ`, `▁`) and at punctuation. "spaces": only at white space in
            the text, such as in Chinese after word segmentation.

    Raises:
        ValueError: for invalid rates, unknown units, labels, and inputs that are not text.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> tokenizer = BertTokenizer(tokens, lowercase=True)
    >>> preprocessor = BertMaskedLMPreprocessor(tokenizer, mask_token_rate=1, random_token_rate=0)
    >>> features, y, weights = preprocessor(["Who?", "Me me me"])
    >>> (np.asarray(features["token_ids"]) == 4).sum(axis=1).tolist(), np.asarray(y).shape
    ([1, 1], (2, 1))

    Source: Devlin et al. 2019, arXiv 1810.04805, section 3.1; dynamic masking as in RoBERTa,
    arXiv 1907.11692.
    """

    def assemble(
        self,
        segments: Any,
        y: Any = None,
        sample_weight: Any = None,
        length: int | None = None,
        seed: Any = None,
    ) -> Any:
        return self.masked(segments, sample_weight, length, seed)

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        raise ValueError(
            "A masked language model makes its own labels, the masked tokens; pass texts without "
            "labels, and pairs as a tuple of two columns."
        )

    def check_labels_in_graph(self, y: Any) -> Tensor:
        return self.check_labels(y, None)

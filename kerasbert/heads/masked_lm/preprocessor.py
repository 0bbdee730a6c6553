"""Preprocessing for masked language models, with dynamic masking.

B batch, T tokens per row, P predictions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice
from kerasbert.text import ops
from kerasbert.text.alignment import valid_utf8
from kerasbert.text.characters import SPACE, code_points, substrings
from kerasbert.text.label_warnings import warn_of_nothing
from kerasbert.text.masking import check_rates, mask_tokens, word_starts
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts
    from kerasbert.text.subword import SubwordTokenizer

BOUNDARIES = ("marks", "spaces")
# Until packing, added to the ids of pieces that continue a word.
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
        if "mask" in getattr(tokenizer, "missing", ()):
            raise ValueError(
                "The tokenizer has no mask token, which masked language models need; add one to "
                "its tokenizer.json, and name it mask_token in tokenizer_config.json."
            )
        check_rates(
            mask_selection_rate,
            mask_token_rate,
            random_token_rate,
            mask_selection_length,
            mask_unit,
            may_mask_nothing=True,
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
        words, spaced = self._spaced(texts)
        pieces = super()._tokens(spaced)  # (words of all texts, None)
        begins = ops.gather(pieces.row_starts(), ops.rows_of(pieces))
        begins = begins == ops.range(ops.size(pieces.values, "int64"))
        pieces = pieces.with_values(ops.where(begins, pieces.values, pieces.values + GOES_ON))
        return words.with_values(pieces).merge_dims(1, 2)

    def _spaced(self, texts):
        """Split texts (N,) at white space.

        Return the words, ragged (N, None), and the same for the tokenizer, with spaces before them
        for the byte pairs of a text.
        """
        if not ops.is_tensor(texts):
            texts = (text.decode() if isinstance(text, bytes) else text for text in texts)
            rows = [re.split(r"\s+", text) for text in texts]
            spaced = [f" {w}" if i and w else w for row in rows for i, w in enumerate(row)]
            return ops.Ragged.from_row_lengths(spaced, [len(row) for row in rows]), spaced
        words = tf.strings.split(tf.strings.regex_replace(texts, f"[{SPACE}]+", " "), " ")
        is_first = tf.gather(words.row_starts(), words.value_rowids())
        is_first = is_first == tf.range(tf.size(words.values, tf.int64))
        return words, tf.where(is_first | (words.values == ""), words.values, " " + words.values)

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        special = list(self.tokenizer.special_token_ids)
        ids = np.concatenate([np.asarray(segment.flat_values) for segment in segments]) % GOES_ON
        if not self.mask_selection_rate:
            return  # With a rate of 0, there is nothing to warn about.
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
            segments: tuple of one or two ragged int32 (B, None); see `tokenize`.
            sample_weight: floats (B,).
            length: int. T; `None` means the bucket of the longest row.
            seed: ints (2,); `None` draws a random seed.

        Returns:
            `(features, mask_ids, weights)`; the last two are (B, P).
        """
        features = self.pack(segments, length)
        starts = None
        if self.mask_unit != "token" and self.word_boundaries == "spaces":
            starts = features["token_ids"] < GOES_ON
            features["token_ids"] = features["token_ids"] % GOES_ON
        elif self.mask_unit != "token":
            starts = word_starts(features["token_ids"], self.tokenizer.word_edges())
        maskable = features["padding_mask"]
        for special in self.tokenizer.special_token_ids:
            maskable = maskable & (features["token_ids"] != special)
        hidden = mask_tokens(
            features["token_ids"],
            maskable,
            ops.draw_seed() if seed is None else seed,
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
            weights = weights * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        features["token_ids"] = hidden["token_ids"]
        features["mask_positions"] = hidden["mask_positions"]
        return features, hidden["mask_ids"], weights

    def fill_in(
        self, texts: Sequence[str], masks: Any, tokens: Any
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Replace masks in texts with tokens.

        Args:
            texts: list of N strings.
            masks: list of M tuples `(row, start, end, before)`: text index and character offsets of
                each mask, and the id of the token before it, or -1.
            tokens: ints (M, K). Candidates for each mask.

        Returns:
            `(names, texts)`: lists (M, K) of tokens as text, and of filled texts.
        """
        ids = [[token] for row in tokens for token in row]
        previous = [max(before, 0) for (*_, before), row in zip(masks, tokens) for _ in row]
        names = iter(self.tokenizer.detokenize(ids))
        left = iter(self.tokenizer.detokenize([[before] for before in previous]))
        both = [[before, *token] for before, token in zip(previous, ids)]
        both = iter(self.tokenizer.detokenize(both))
        found = []
        for (row, start, end, before), candidates in zip(masks, tokens):
            head, tail = texts[row][:start], texts[row][end:]
            filled = []
            for _ in candidates:
                name, prefix, whole = next(names).strip(), next(left), next(both)
                added = whole[len(prefix) :]
                # A token without a space continues the word before it.
                joins = before >= 0 and prefix and added and whole.startswith(prefix)
                joins = joins and not added[0].isspace()
                filled.append((name, (head.rstrip() + added if joins else head + name) + tail))
            found.append(filled)
        return tuple([[one[part] for one in row] for row in found] for part in (0, 1))

    def fill_in_graph(
        self, texts: Texts, rows: Any, starts: Any, ends: Any, before: Any, tokens: Any
    ) -> tuple[Any, Any]:
        """Replace masks in texts with tokens, in a graph.

        Args:
            texts: strings (N,).
            rows, starts, ends: ints (M,). Text index and character offsets of each mask.
            before: int32 (M,). Id of the token before each mask, or -1.
            tokens: int32 (M, K). Candidates for each mask.

        Returns:
            `(names, texts)`: strings (M, K), tokens as text and filled texts.
        """
        points = code_points(texts)

        def text_of(*columns):
            ids = ops.stack([ops.reshape(column, [-1]) for column in columns], 1)
            # A byte-level token may be part of a character.
            found = valid_utf8(self.tokenizer.detokenize(tf.RaggedTensor.from_tensor(ids)))
            return ops.reshape(found, ops.shape(tokens))

        names = tf.strings.regex_replace(text_of(tokens), f"^[{SPACE}]+|[{SPACE}]+$", "")
        head = substrings(points, rows, ops.zeros_like(starts), starts)[:, None]  # (M, 1)
        tail = substrings(points, rows, ends, ops.gather(points.row_lengths(), rows))[:, None]
        previous = ops.broadcast_to(ops.maximum(before, 0)[:, None], ops.shape(tokens))
        left, both = text_of(previous), text_of(previous, tokens)
        cut = ops.minimum(tf.strings.length(left), tf.strings.length(both))
        begins = tf.strings.substr(both, ops.zeros_like(cut), cut) == left
        added = tf.strings.substr(both, cut, tf.strings.length(both) - cut)
        joins = (before >= 0)[:, None] & begins & (left != "") & (added != "")
        joins &= ~tf.strings.regex_full_match(added, f"(?s)[{SPACE}].*")
        bare = tf.strings.regex_replace(head, f"[{SPACE}]+$", "")
        return names, ops.where(joins, bare + added, head + names) + tail


@keras.saving.register_keras_serializable(package="kerasbert")
class BertMaskedLMPreprocessor(MaskingPreprocessor):
    """Packs texts or pairs like `BertPreprocessor`, and masks tokens.

    Called on texts without labels, it returns `(x, y, sample_weight)`: `x` also has
    `mask_positions` int32 (B, P), `y` holds the original tokens, int32 (B, P), and weights (B, P)
    are 0 in unused slots. Each call and epoch of `fit` masks other tokens, reproducibly after
    `keras.utils.set_random_seed`. `evaluate` always masks the same.

    In a row of n tokens, max(1, round(mask_selection_rate * n)) tokens are selected; special tokens
    count in n, but are never selected. P is that number for n = T.

    Args:
        tokenizer, sequence_length, truncate, num_segments: see `BertPreprocessor`.
        mask_selection_rate: share of tokens to predict; 0 for none.
        mask_selection_length: maximum number of tokens to predict per row; `None` for no limit.
        mask_token_rate: share of these that the mask token replaces.
        random_token_rate: share that a random token replaces; the others are kept.
        mask_unit: unit to mask: "token", "word", "span" or "ngram"; see
            `kerasbert.data.mask_tokens`.
        word_boundaries: string. Where words begin, for other units than "token". "marks": by token
            marks (`##`, `Ġ`, `▁`) and punctuation. "spaces": only at white space, as in segmented
            Chinese.

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

"""Preprocessing for causal language models: next-token prediction and generation.

N texts, B batch, T tokens per row, P tokens per text, W windows of all texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_value, check_whole
from kerasbert.text import ops
from kerasbert.text.batches import as_tensors
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts
    from kerasbert.text.subword import SubwordTokenizer


@keras.saving.register_keras_serializable(package="kerasbert")
class BertCausalLMPreprocessor(BertPreprocessor):
    """Packs texts and labels each token with the next one.

    Called on texts without labels, it returns `(x, y, sample_weight)`: `x` is the dict of
    `BertPreprocessor`, with text tokens only, `y` are the next tokens, int32 (B, T), and weights
    (B, T) are 0 where there is no next token. Texts are truncated to `sequence_length`; `fit` and
    `evaluate` on texts in memory split them into rows instead.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: maximum tokens per row.
        add_start_token: whether each text begins with the start token.
        add_end_token: whether the last label is the end token.
        num_segments: int. See `BertPreprocessor`.

    Raises:
        ValueError: for labels, settings without room, and inputs that are not text.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> tokenizer = BertTokenizer(tokens, lowercase=True)
    >>> features, y, weights = BertCausalLMPreprocessor(tokenizer, num_segments=0)(["Who? Me!"])
    >>> np.asarray(features["token_ids"])[0, :5].tolist(), np.asarray(y)[0, :5].tolist()
    ([5, 7, 6, 8, 0], [7, 6, 8, 3, 0])
    >>> np.asarray(weights)[0, :5].tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """

    truncates = False
    settings = (
        "sequence_length",
        "truncate",
        "num_segments",
        "add_start_token",
        "add_end_token",
    )

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 1024,
        add_start_token: bool = False,
        add_end_token: bool = True,
        num_segments: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, num_segments=num_segments, **kwargs)
        check_value("add_start_token", add_start_token, "flag")
        check_value("add_end_token", add_end_token, "flag")
        self.add_start_token = add_start_token
        self.add_end_token = add_end_token

    # === Training: segments include start and end tokens ===

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        raise ValueError(
            "A language model makes its own labels, the next tokens; pass texts without labels, "
            "such as prompt and continuation as one string."
        )

    def check_labels_in_graph(self, y: Any) -> Tensor:
        return self.check_labels(y, None)

    def columns(self, x: Any) -> tuple[Any, ...]:
        columns, batched = super().columns(x)
        self._check_single(columns)
        return columns, batched

    def columns_in_graph(self, x: Any) -> list[Any]:
        columns = super().columns_in_graph(x)
        self._check_single(columns)
        return columns

    def _check_single(self, columns):
        if len(columns) > 1:
            raise ValueError(
                "Got pairs of texts, but a language model takes single texts; join the two."
            )

    def _tokens(self, texts):
        (ids,) = self.with_start(super()._tokens(texts))
        if not self.add_end_token:
            return ids
        return ops.concat([ids, ops.column(ids, self.tokenizer.end_token_id)], axis=1)

    def with_start(self, ids: Any, *places: Any) -> tuple[Any, Any]:
        """Prepend any start token to ragged tokens (N, P), and 0 to `places`."""
        if not self.add_start_token:
            return ids, *places
        tokens = (self.tokenizer.start_token_id, *(0 for _ in places))
        return tuple(
            ops.concat([ops.column(x, t), x], axis=1) for x, t in zip((ids, *places), tokens)
        )

    def _examples(self, x, y, sample_weight):
        columns, batched = self.columns(x)
        if not batched:
            raise ValueError("Got one text where a list is needed; pass a list.")
        y, sample_weight = self._targets(y, sample_weight, columns)
        (ids,) = self._tokenize_columns(columns)
        lengths = ids.row_lengths()
        # Rows overlap by one token, a label in one and an input in the next.
        counts = np.maximum(-(-(lengths - 1) // self.sequence_length), 1)
        rows = np.repeat(np.arange(len(lengths)), counts)
        windows = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = windows * self.sequence_length
        ends = np.minimum(begins + self.sequence_length + 1, lengths[rows])
        firsts = ids.row_starts()[rows]
        places = ops.ragged_range(firsts + begins, firsts + ends)
        ids = places.with_values(ids.values[places.values])
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight)[rows]
        return (ids,), [None, sample_weight]

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        lengths = ops.maximum(ops.cast(segments[0].row_lengths(), "int32") - 1, 1)
        return ops.minimum(lengths, self.sequence_length) if truncated else lengths

    def pack(self, segments: Any, length: int | None = None) -> Any:
        """Truncate and pad rows of tokens; return the features of a call."""
        if length is None:
            length = self.bucket(ops.reduce_max(self.packed_lengths(segments)))
        return self.padded(segments[0], length)

    def padded(self, ids: Any, length: int) -> dict[str, Any]:
        """Pad ragged tokens (B, None) to `length`, and return the features of a call."""
        pad = self.tokenizer.pad_token_id
        count = ops.cast(ids.row_lengths(), "int32")[:, None]
        token_ids = ids.to_tensor(pad, shape=ops.stack([-1, length]))
        features = {"token_ids": token_ids, "padding_mask": ops.range(length)[None] < count}
        if self.num_segments:
            features["segment_ids"] = ops.zeros_like(token_ids)
        return features

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        features = self.pack(segments, length)
        (ids,) = segments
        length = ops.shape(features["token_ids"])[1]
        following = self.padded(ids[:, 1:], length)
        there = following["padding_mask"]
        # The last token is only a label.
        is_alone = ops.cast(ids.row_lengths(), "int32")[:, None] == 1
        is_token = there | (is_alone & (ops.range(length)[None] == 0))
        pad = self.tokenizer.pad_token_id
        features["token_ids"] = ops.where(is_token, features["token_ids"], pad)
        features["padding_mask"] = is_token
        given = ops.cast(there, "float32")
        if sample_weight is not None:
            given = given * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        return features, ops.where(there, following["token_ids"], 0), given

    # === Generation ===

    def generate_preprocess(
        self, x: Texts, sequence_length: int | None = None, first: int = 0
    ) -> dict[str, Any]:
        """Pad prompts, to leave room for generated tokens.

        Args:
            x: a list of N strings.
            sequence_length: int. T; defaults to the preprocessor's.
            first: position of the first prompt, for errors.

        Returns:
            A dict of `token_ids` (N, T), `padding_mask` (N, T), true for the prompts, and
            `prompt_ids`, the columns up to the longest prompt's end.

        Raises:
            ValueError: for prompts without tokens, or without room after them.
        """
        length = self.sequence_length if sequence_length is None else sequence_length
        check_whole("max_length", length)
        if length > self.sequence_length:
            raise ValueError(
                f"max_length={length} exceeds the preprocessor's sequence_length="
                f"{self.sequence_length}; reduce it, or raise sequence_length, up to the "
                "encoder's positions."
            )
        columns, _ = self.columns(x)
        (ids,) = self.with_start(super()._tokens(columns[0]))
        counts = ids.row_lengths()
        for position, count in enumerate(counts.tolist()):
            if not count:
                raise ValueError(
                    f"The prompt {columns[0][position]!r} at position {first + position} has "
                    "no token to continue; write its beginning, or set the preprocessor's "
                    "add_start_token=True."
                )
            if count >= length:
                raise ValueError(
                    f"The prompt at position {first + position} has {count} tokens, and "
                    f"max_length={length} leaves no room for more; shorten it, or raise "
                    "max_length."
                )
        padded = ids.to_tensor(self.tokenizer.pad_token_id, shape=[None, length])
        most = min(self.bucket(int(counts.max())), length)
        return as_tensors(
            {
                "token_ids": padded,
                "padding_mask": np.arange(length) < counts[:, None],
                "prompt_ids": padded[:, :most],
            }
        )

    def generate_postprocess(self, x: Any) -> list[str]:
        """Detokenize rows to N strings, without padding and special tokens."""
        ids, mask = (
            np.asarray(keras.ops.convert_to_numpy(x[name]))
            for name in ("token_ids", "padding_mask")
        )
        kept = mask.astype(bool) & ~np.isin(ids, self.tokenizer.special_token_ids)
        # The encoder's vocabulary may be padded to a round number.
        kept &= ids < self.tokenizer.vocabulary_size()
        return self.tokenizer.detokenize([row[there].tolist() for row, there in zip(ids, kept)])

    # === Scores ===

    def usual_stride(self) -> int:
        """Return the default stride, half a window."""
        return max(self.sequence_length // 2, 1)

    def windows(self, texts: Sequence[str], stride: int | None = None) -> Any:
        """Split texts into windows that score each token once.

        Args:
            texts: list of N strings.
            stride: number of tokens between window starts; `None` means half a window.

        Returns:
            `(rows, windows)`. A row is `(ids, starts, ends)` of a text, in characters; its first
            token has no score. The W windows are `(text, begin, end, first)`: text index, token
            range and first scored token.
        """
        size = self.sequence_length
        stride = self.usual_stride() if stride is None else stride
        check_whole("stride", stride)
        if stride >= size:
            raise ValueError(
                f"stride={stride} leaves windows of sequence_length={size} without overlap, so "
                "their first tokens have no context; use a smaller stride."
            )
        start = self.tokenizer.start_token_id
        rows, windows = [], []
        for ids, starts, ends in zip(*self.tokenizer.tokenize_with_offsets(texts), strict=True):
            if self.add_start_token:
                ids, starts, ends = [start, *ids], [0, *starts], [0, *ends]
            rows.append((ids, starts, ends))
            first = 1
            for begin in range(0, len(ids), stride):
                end = min(begin + size, len(ids))
                if first < end:
                    windows.append((len(rows) - 1, begin, end, first))
                    first = end
                if end == len(ids):
                    break
        return rows, windows

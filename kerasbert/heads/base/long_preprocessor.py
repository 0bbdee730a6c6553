"""Base class of preprocessors with the setting `long`.

N texts, B batch, R windows of all texts, W windows per text, T tokens per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerasbert.text import ops
from kerasbert.text.long_texts import (
    LongTexts,
    count_windows,
    divided_sizes,
    in_windows,
    stack_windows,
)
from kerasbert.text.packing import TRUNCATE, kept_lengths
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.text.subword import SubwordTokenizer


class LongTextPreprocessor(BertPreprocessor):
    """Preprocessor with the setting `long`; see `kerasbert.data.LongTexts`.

    With `long="windows"`, features are (B, W, T), and the masks of missing windows are all false. W
    is the batch's largest number of windows, rounded up to one of a few numbers. Several windows
    count as full rows, also in `packed_lengths`.
    """

    settings = (*BertPreprocessor.settings, "long")

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        normalize: str | None = None,
        long: Any = "truncate",
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, num_segments, normalize, **kwargs)
        self.long = long

    @property
    def long(self) -> LongTexts:
        """What to do with texts that do not fit into a row."""
        return self._long

    @long.setter
    def long(self, value: Any) -> None:
        value = LongTexts.of(value)
        if value.has_windows and self.packing != "class_first":
            raise ValueError(
                f"long='windows' does not support the rows of a {type(self).__name__}, which end "
                "with the class token; use 'head_tail' or 'truncate'."
            )
        if value.mode != "truncate" and not self.truncates:
            raise ValueError(
                f"long={value.mode!r} has no effect on a {type(self).__name__}, which divides long "
                "texts into windows itself; leave it out."
            )
        self._long = value

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        # Without the default, earlier versions can read the config.
        config.pop("long", None)
        return config if self.long == LongTexts() else {**config, "long": self.long.in_config()}

    # === Lengths ===

    def _divided(self, segments):
        """Return the room of a row, and the index of the divided text."""
        room = self.sequence_length - self.tokenizer.frame.count(len(segments))
        if room < len(segments):
            raise ValueError(
                f"long='windows' needs room for at least {len(segments)} tokens beside the special "
                f"tokens, but sequence_length={self.sequence_length} leaves {room}; raise it."
            )
        return room, len(segments) - 1 if TRUNCATE[self.truncate] != "only_first" else 0

    def _window_counts(self, segments):
        """Return the windows of each text without `max_windows`: int32 (N,)."""
        lengths = [ops.cast(segment.row_lengths(), "int32") for segment in segments]
        sizes, _ = divided_sizes(lengths, *(place := self._divided(segments)))
        return count_windows(self.long, lengths[place[1]], sizes)[0]

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        lengths = super().packed_lengths(segments, truncated)
        if not self.long.has_windows:
            return lengths
        counts = self._window_counts(segments)
        if truncated:
            counts = ops.minimum(counts, self.long.max_windows)
        lengths = ops.minimum(lengths, self.sequence_length)
        return ops.where(counts > 1, counts * self.sequence_length, lengths)

    # === Tokens ===

    def _tokenize_columns(self, columns, most=None, owners=None):
        if most is not None and self.long.has_windows:
            # One token more than fits, so that the warning about truncation can count the texts.
            most = self.long.buckets(self.sequence_length)[-1] + 1
        return super()._tokenize_columns(columns, most, owners)

    def pack(self, segments: Any, length: int | None = None) -> Any:
        """Truncate or divide segments, add special tokens and pad; see `BertPreprocessor.pack`.

        With `long="windows"`, `length` is T or, for several windows, W times `sequence_length`.
        """
        if self.long.mode == "head_tail":
            lengths = [ops.cast(segment.row_lengths(), "int32") for segment in segments]
            room = self.sequence_length - self.tokenizer.frame.count(len(segments))
            counts = kept_lengths(lengths, room, TRUNCATE[self.truncate])
            segments = tuple(map(self.long.shortened, segments, counts))
        if not self.long.has_windows:
            return super().pack(segments, length)
        if length is None:
            length = self.bucket(ops.reduce_max(self.packed_lengths(segments)))
        counts, segments = in_windows(self.long, segments, *self._divided(segments))
        rows = super().pack(segments, ops.minimum(length, self.sequence_length))  # (R, T)
        width = ops.maximum(-(-length // self.sequence_length), 1)
        fills = {"token_ids": self.tokenizer.pad_token_id}
        return {
            name: stack_windows(x, counts, width, fills.get(name, 0)) for name, x in rows.items()
        }

"""Preprocessing for sequence-to-sequence models.

N pairs, B batch, T tokens of the packed rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_whole
from kerasbert.text import ops
from kerasbert.text.batches import as_tensors
from kerasbert.text.examples_in_memory import tokenize_column
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor, Texts
    from kerasbert.text.subword import SubwordTokenizer


@keras.saving.register_keras_serializable(package="kerasbert")
class TransformerSeq2SeqLMPreprocessor(BertPreprocessor):
    """Packs pairs of source and target, and labels each target token with the next one.

    Called on pairs, as for `BertPreprocessor`, or on a dict of `encoder_text` and `decoder_text`,
    it returns `(x, y, sample_weight)`. `x` is a dict of `encoder_token_ids`,
    `encoder_padding_mask`, `decoder_token_ids` and `decoder_padding_mask`, (B, T) each: sources end
    with the end token, targets begin with the start token. `y` holds the next target tokens, int32
    (B, T); `sample_weight` (B, T) is 0 without a next token. Both sides are truncated to
    `sequence_length`.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`. Any `for_targets()` of it, as in
            `MarianTokenizer`, returns the tokenizer for targets.
        sequence_length: maximum tokens per row.

    Raises:
        ValueError: for texts without targets, and for inputs that are not text.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> preprocessor = TransformerSeq2SeqLMPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> x, y, weights = preprocessor((["Who?"], ["Me!"]))
    >>> [np.asarray(x[f"{side}_token_ids"])[0, :4].tolist() for side in ("encoder", "decoder")]
    [[5, 7, 3, 0], [2, 6, 8, 0]]
    >>> np.asarray(y)[0, :4].tolist(), np.asarray(weights)[0, :4].tolist()
    ([6, 8, 3, 0], [1.0, 1.0, 1.0, 0.0])
    """

    settings = ("sequence_length",)
    packing = "source_target"

    def __init__(
        self, tokenizer: SubwordTokenizer, sequence_length: int = 512, **kwargs: Any
    ) -> None:
        super().__init__(tokenizer, sequence_length, num_segments=0, **kwargs)

    def _side_tokenizers(self):
        other = getattr(self.tokenizer, "for_targets", lambda: self.tokenizer)
        return self.tokenizer, other()

    # === Training ===

    def columns(self, x: Any) -> tuple[Any, ...]:
        return super().columns(_as_pair(x))

    def columns_in_graph(self, x: Any) -> list[Any]:
        columns = super().columns_in_graph(_as_pair(x))
        _check_pairs(columns)
        return columns

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        raise ValueError(
            "Got targets as labels; pass them with the sources, as fit((sources, targets)), which "
            "makes the labels."
        )

    def check_labels_in_graph(self, y: Any) -> Tensor:
        return self.check_labels(y, None)

    def _tokenize_columns(self, columns, most=None):
        _check_pairs(columns)
        pairs = zip(columns, self._side_tokenizers())
        return tuple(
            tokenize_column(self, column, lambda chunk, own=own: (own.ragged(chunk)[0][:, :most],))[
                0
            ]
            for column, own in pairs
        )

    def _tokenize_in_graph(self, columns):
        pairs = zip(columns, self._side_tokenizers())
        return tuple(ops.cast(own.ragged(column)[0], "int32") for column, own in pairs)

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        lengths = [ops.cast(segment.row_lengths(), "int32") for segment in segments]
        longest = ops.reduce_max(ops.stack(lengths), axis=0) + 1
        return ops.minimum(longest, self.sequence_length) if truncated else longest

    def pack(self, segments: Any, length: int | None = None) -> Any:
        """Truncate and pad rows of tokens to the `x` of the class description."""
        return self.assemble(segments, length=length)[0]

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        if length is None:
            length = self.bucket(ops.reduce_max(self.packed_lengths(segments)))
        ids = self.tokenizer
        source, target = (segment[:, : self.sequence_length - 1] for segment in segments)
        ended = [ops.concat([x, ops.column(x, ids.end_token_id)], axis=1) for x in (source, target)]
        begun = ops.concat([ops.column(target, ids.start_token_id), target], axis=1)
        x = {
            **self._padded("encoder", ended[0], length),
            **self._padded("decoder", begun, length),
        }
        mask = x["decoder_padding_mask"]
        following = ended[1].to_tensor(0, shape=ops.stack([-1, length]))
        weights = ops.cast(mask, "float32")
        if sample_weight is not None:
            weights = weights * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        return x, following, weights

    def _padded(self, side, ids, length):
        count = ops.cast(ids.row_lengths(), "int32")[:, None]
        pad = self.tokenizer.pad_token_id
        return {
            f"{side}_token_ids": ids.to_tensor(pad, shape=ops.stack([-1, length])),
            f"{side}_padding_mask": ops.range(length)[None] < count,
        }

    # === Generation ===

    def generate_preprocess(
        self, x: Texts, sequence_length: int | None = None, first: int = 0
    ) -> dict[str, Any]:
        """Tokenize sources, and begin targets, with room for generated tokens.

        Args:
            x: a list of N strings, the sources.
            sequence_length: maximum tokens per target; defaults to the preprocessor's.
            first: position of the first source, for errors.

        Returns:
            The `x` of the class description, `encoder_...` (N, S) and `decoder_...` (N, T), and
            `prompt_ids` (N, 1), the start tokens of the targets.

        Raises:
            ValueError: for sources with no tokens or too many.
        """
        length = self.sequence_length if sequence_length is None else sequence_length
        check_whole("max_length", length, 2)
        if length > self.sequence_length:
            raise ValueError(
                f"max_length={length} exceeds the preprocessor's sequence_length="
                f"{self.sequence_length}; reduce it, or raise sequence_length, up to the model's "
                "positions."
            )
        columns, _ = self.columns(x)
        if len(columns) > 1:
            raise ValueError("Got pairs of texts to generate from; pass the sources only.")
        (ids,) = self._tokenize_in_graph(columns[:1])
        counts = ids.row_lengths()
        for position, count in enumerate(counts.tolist()):
            if not count:
                raise ValueError(
                    f"The text {columns[0][position]!r} at position {first + position} has no "
                    "tokens; leave it out."
                )
            if count >= self.sequence_length:
                raise ValueError(
                    f"The text at position {first + position} has {count} tokens and needs an "
                    f"end token, more than sequence_length={self.sequence_length}; split it "
                    "into sentences."
                )
        ids = ops.concat([ids, ops.column(ids, self.tokenizer.end_token_id)], axis=1)
        size = self.bucket(int(counts.max()) + 1)
        begun = np.full((len(counts), length), self.tokenizer.pad_token_id, "int32")
        begun[:, 0] = self.tokenizer.start_token_id
        is_begun = np.zeros(begun.shape, bool)
        is_begun[:, 0] = True
        return as_tensors(
            {
                **self._padded("encoder", ids, size),
                "decoder_token_ids": begun,
                "decoder_padding_mask": is_begun,
                "prompt_ids": begun[:, :1],
            }
        )

    def generate_postprocess(self, x: Any) -> list[str]:
        """Detokenize rows to N strings, without padding and special tokens."""
        ids, mask = (
            np.asarray(keras.ops.convert_to_numpy(x[f"decoder_{name}"]))
            for name in ("token_ids", "padding_mask")
        )
        kept = mask.astype(bool) & ~np.isin(ids, self.tokenizer.special_token_ids)
        kept &= ids < self.tokenizer.vocabulary_size()
        return self.tokenizer.detokenize([row[there].tolist() for row, there in zip(ids, kept)])


def _as_pair(x):
    """Convert a dict with KerasHub's column names to a tuple; return other inputs unchanged."""
    if not isinstance(x, dict) or not set(x) & {"encoder_text", "decoder_text"}:
        return x
    if set(x) != {"encoder_text", "decoder_text"}:
        raise ValueError(
            f"A dict of pairs has the columns {sorted(map(str, x))}; name them 'encoder_text' and "
            "'decoder_text'."
        )
    return x["encoder_text"], x["decoder_text"]


def _check_pairs(columns):
    if len(columns) < 2:
        raise ValueError(
            "Got texts without targets; pass pairs as a tuple (sources, targets), or call "
            "translate(texts) to generate targets."
        )

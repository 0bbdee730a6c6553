"""Preprocessing for multiple choice: each pair of prompt and choice becomes a row.

N examples, B batch, C choices, R pairs of all prompts and choices, T tokens per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.text import ops
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.texts import choice_columns, number_rows, numbers_in_graph

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor


@keras.saving.register_keras_serializable(package="kerasbert")
class BertMultipleChoicePreprocessor(BertPreprocessor):
    """Packs each choice with its prompt: `[CLS] prompt [SEP] choice [SEP]`.

    `x` is a tuple of prompts (a list, array or column of strings) and choices (a list of lists of
    strings), a list of such pairs, or a dict or table of `prompt` and `choices`. Each prompt has
    one or more choices. In arrays, tables and dense tensors, as of `padded_batch`, empty strings at
    the end of a row are padding.

    The result is `BertPreprocessor`'s dict of `token_ids`, `segment_ids` and `padding_mask`, each
    (B, C, T). C is the batch's largest number of choices; the mask of a missing one is all false.
    Labels `y` are indices of the correct choices, int32 (B,).

    The arguments are those of `BertPreprocessor`.

    Raises:
        ValueError: for prompts without choices, labels that are no choice's index, and inputs that
            are not text.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "you"]
    >>> preprocessor = BertMultipleChoicePreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor((["Who"], [["Me", "You you"]]), [1])
    >>> np.asarray(features["token_ids"]).tolist()
    [[[2, 5, 3, 6, 3, 0, 0, 0], [2, 5, 3, 7, 7, 3, 0, 0]]]

    Source: Devlin et al. 2019, arXiv 1810.04805, section 4.4.
    """

    def columns(self, x: Any) -> tuple[Any, ...]:
        return choice_columns(x)

    def columns_in_graph(self, x: Any) -> list[Any]:
        if isinstance(x, dict):
            x = tuple(x.get(name) for name in ("prompt", "choices"))
        if not isinstance(x, (tuple, list)) or len(x) != 2 or any(one is None for one in x):
            raise ValueError(
                "The dataset must yield prompts and choices: ((prompts, choices), y), or a dict "
                "of 'prompt' and 'choices'."
            )
        prompts, choices = ops.convert_to_tensor(x[0]), x[1]
        if not isinstance(choices, tf.RaggedTensor):
            choices = ops.convert_to_tensor(choices)
        fits = prompts.shape.rank in (0, 1) and choices.shape.rank == prompts.shape.rank + 1
        if not fits or {prompts.dtype, choices.dtype} != {tf.string}:
            raise ValueError(
                f"The dataset yields prompts of {prompts.dtype.name} {prompts.shape} and choices "
                f"of {choices.dtype.name} {choices.shape}; yield strings, (B,) and (B, C)."
            )
        return [prompts, choices]

    # === Labels ===

    def _targets(self, y, sample_weight, columns):
        y, sample_weight = super()._targets(y, sample_weight, columns)
        if y is not None:
            for position, (label, choices) in enumerate(zip(y, columns[1], strict=True)):
                if label >= len(choices):
                    raise ValueError(
                        f"The label {label} at position {position} is outside 0 to "
                        f"{len(choices) - 1}, the indices of its {len(choices)} choices; count "
                        "them from 0."
                    )
        return y, sample_weight

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        def is_number(value):
            return value == value // 1 and value >= 0

        rows = number_rows(y, count, is_number, "the index of the correct choice, from 0")
        return np.asarray(rows, "int32")

    def check_labels_in_graph(self, y: Any) -> Tensor:
        return numbers_in_graph(y, "int32", "prompt")

    # === Tokens ===

    def _tokenize_columns(self, columns, most=None):
        prompts, choices = columns
        flat = [choice for row in choices for choice in row]
        counts = [len(row) for row in choices]
        owners = np.repeat(np.arange(len(counts)), counts)
        prompts, flat = super()._tokenize_columns((prompts, flat), most, owners)
        return prompts, ops.Ragged.from_row_lengths(flat, counts)

    def _tokenize_in_graph(self, columns):
        prompts, choices = columns
        if not isinstance(choices, tf.RaggedTensor):
            choices = tf.RaggedTensor.from_tensor(choices, padding="")
        prompts, flat = super()._tokenize_in_graph((prompts, choices.values))
        return prompts, choices.with_values(flat)

    # === Packing: the base class gets R pairs ===

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        """Return the length, int32 (N,), of each example's longest row, or of each pair."""
        if len(segments[1].shape) == 2:
            return super().packed_lengths(segments, truncated)
        lengths = super().packed_lengths(_pairs(segments), truncated)  # (R,)
        return ops.reduce_max(segments[1].with_values(lengths), axis=1)

    def pack(self, segments: Any, length: int | None = None) -> Any:
        """Pack tokens of prompts (B, None) and choices (B, None, None) into (B, C, T).

        Second segments (B, None) are packed as pairs, (B, T).
        """
        if len(segments[1].shape) == 2:
            return super().pack(segments, length)
        choices = segments[1]
        rows = super().pack(_pairs(segments), length)  # (R, T)
        missing = {"token_ids": self.tokenizer.pad_token_id}
        return {
            name: choices.with_values(values).to_tensor(
                default_value=ops.cast(missing.get(name, 0), values.dtype)
            )
            for name, values in rows.items()
        }  # (B, C, T)

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        counts = ops.cast(segments[1].row_lengths(), "int32")
        # Choices in a dataset were not checked before.
        ops.check(counts > 0, "A prompt has no choices; give each at least one.")
        if y is not None:
            good = (y >= 0) & (y < counts)
            message = "Labels must be indices of choices, counted from 0; got:"
            ops.check(good, message, y, "for these numbers of choices:", counts)
        return super().assemble(segments, y, sample_weight, length)


def _pairs(segments):
    """Return the prompt and the choice of each pair, as two ragged (R, None)."""
    prompts, choices = segments
    return ops.gather(prompts, choices.value_rowids()), choices.values

"""Preprocessing for rerankers: pairs of query and text, or queries with lists of texts.

N examples, B batch, C texts per query, T tokens per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.long_preprocessor import LongTextPreprocessor
from kerasbert.heads.multiple_choice.preprocessor import BertMultipleChoicePreprocessor
from kerasbert.text import ops
from kerasbert.text.label_warnings import counted, warn_of_equal
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.texts import (
    choice_columns,
    holds_lists,
    label_rows,
    number_rows,
    text_columns,
    weights,
)

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor

NAMES = ("query", "queries", "texts")
# Label of a missing or unjudged text, as in keras-rs.
UNKNOWN = -1.0


@keras.saving.register_keras_serializable(package="kerasbert")
class BertRerankerPreprocessor(BertMultipleChoicePreprocessor, LongTextPreprocessor):
    """Packs each text with its query: `[CLS] query [SEP] text [SEP]`.

    `x` is pairs, as for `BertPreprocessor`, with labels `y` as floats (B,). Or it is lists: a tuple
    of queries and a list of texts each, a list of such pairs, or a dict or table of `query` and
    `texts`. Features of lists are (B, C, T), as for `BertMultipleChoicePreprocessor`; labels are at
    least 0, or -1 for unjudged texts, and become float32 (B, C), with -1 for missing texts.

    The arguments are those of `BertPreprocessor`, and `long` as for
    `BertTextClassifierPreprocessor`; `long="windows"` divides texts, not queries.

    Raises:
        ValueError: for single texts, queries without texts, labels that are not finite numbers, and
            lists of labels of another length than the texts.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "you"]
    >>> preprocessor = BertRerankerPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor((["Who"], ["Me"]), [1])
    >>> np.asarray(features["token_ids"]).tolist()
    [[2, 5, 3, 6, 3, 0, 0, 0]]
    >>> features, y = preprocessor((["Who", "Who"], [["Me", "You"], ["Me"]]), [[1, 0], [2]])
    >>> tuple(features["token_ids"].shape), np.asarray(y).tolist()
    ((2, 2, 8), [[1.0, 0.0], [2.0, -1.0]])
    """

    # Key of the sequence length in checkpoints.
    kind = "reranker"
    settings = LongTextPreprocessor.settings

    def columns(self, x: Any) -> tuple[Any, ...]:
        if holds_lists(x):
            return choice_columns(x, NAMES)
        columns, batched = text_columns(x)
        if len(columns) == 1:
            raise ValueError(
                "Got texts without queries; pass pairs: a tuple of two columns, queries and "
                "texts, or a list of pairs."
            )
        return columns, batched

    def columns_in_graph(self, x: Any) -> list[Any]:
        if isinstance(x, dict) and set(x) == {"query", "texts"}:
            x = (x["query"], x["texts"])
        if isinstance(x, (tuple, list)) and len(x) == 2:
            ranks = [one.shape.rank if hasattr(one, "shape") else None for one in x]
            if None not in ranks and ranks[1] == ranks[0] + 1:
                return super().columns_in_graph(tuple(x))
        columns = BertPreprocessor.columns_in_graph(self, x)
        if len(columns) == 1:
            raise ValueError(
                "The dataset yields one column of texts; yield queries and texts: "
                "((queries, texts), y)."
            )
        return columns

    # === Labels ===

    def _targets(self, y, sample_weight, columns):
        count = len(columns[0])
        if y is not None:
            are_lists = _are_lists(columns)
            y = _relevance(y, columns[1]) if are_lists else self.check_labels(y, count)
        return y, None if sample_weight is None else weights(sample_weight, count)

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        rows = number_rows(y, count, np.isfinite, "one finite number for each pair")
        return np.asarray(rows, "float32")

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        if y is not None:
            y = counted(y, sample_weight)
            warn_of_equal(y[y >= 0], "labels")

    def check_labels_in_graph(self, y: Any) -> Tensor:
        if isinstance(y, tf.RaggedTensor):
            y = y.to_tensor(ops.cast(UNKNOWN, y.dtype))
        if y.shape.rank not in (None, 1, 2):
            raise ValueError(
                f"The dataset yields labels of shape {y.shape}; yield a number for each pair, or a "
                "row of numbers for the texts of each query."
            )
        return ops.cast(y, "float32")

    # === Tokens ===

    def _tokenize_columns(self, columns, most=None):
        if _are_lists(columns):
            return super()._tokenize_columns(columns, most)
        return LongTextPreprocessor._tokenize_columns(self, columns, most)

    def _tokenize_in_graph(self, columns):
        if columns[1].shape.rank == 2:
            return super()._tokenize_in_graph(columns)
        return BertPreprocessor._tokenize_in_graph(self, columns)

    # === Packing ===

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        if len(segments[1].shape) == 2:
            if y is not None and len(y.shape) == 2:
                y = ops.ensure_shape(y, (None, 1))[:, 0]
            return BertPreprocessor.assemble(self, segments, y, sample_weight, length)
        counts = segments[1].row_lengths()
        # Texts in a dataset were not checked before.
        ops.check(counts > 0, "A query has no texts; give each at least one.")
        if y is not None:
            most = ops.reduce_max(counts)
            width = ops.cast(ops.shape(y)[1], counts.dtype)
            message = "There are fewer labels than texts of a query:"
            ops.check(width >= most, message, width, "for this number of texts:", most)
            is_there = ops.sequence_mask(counts, most)  # (B, C)
            y = ops.where(is_there, y[:, :most], UNKNOWN)
        return BertPreprocessor.assemble(self, segments, y, sample_weight, length)


def _are_lists(columns):
    return not isinstance(columns[1][0], (str, bytes))


def _relevance(y, texts):
    """Check the list of labels of each query, and pad the lists to float32 (N, C)."""
    rows = label_rows(y, len(texts))
    most = max(map(len, texts))
    padded = np.full((len(texts), most), UNKNOWN, "float32")
    for position, (row, its) in enumerate(zip(rows, texts, strict=True)):
        row = row.tolist() if hasattr(row, "tolist") else row
        if not isinstance(row, (list, tuple)) or len(row) < len(its):
            raise ValueError(
                f"The labels at position {position} are {str(row)[:60]}, for a query with "
                f"{len(its)} texts; pass a list of {len(its)} numbers."
            )
        # Labels are padded where the texts are.
        row, rest = row[: len(its)], row[len(its) :]
        if any(value != UNKNOWN for value in rest):
            raise ValueError(
                f"There are {len(row) + len(rest)} labels at position {position}, for a query with "
                f"{len(its)} texts; pass a list of {len(its)} numbers."
            )
        for place, value in enumerate(row):
            is_number = isinstance(value, (int, float, np.number)) and np.isfinite(value)
            if not is_number or (value < 0 and value != UNKNOWN):
                raise ValueError(
                    f"The label of text {place} at position {position} is {value!r}; pass a number "
                    "of at least 0, or -1 for an unjudged text."
                )
        padded[position, : len(its)] = row
    return padded

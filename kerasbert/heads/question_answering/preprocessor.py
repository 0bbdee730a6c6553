"""Preprocessing for extractive question answering, with windows over long contexts.

N examples, W windows of all examples, B batch, T tokens per row, P tokens per text.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_whole, is_whole
from kerasbert.text import ops
from kerasbert.text.columns import columns_of
from kerasbert.text.examples_in_memory import tokenize_column
from kerasbert.text.label_warnings import warn_of_nothing
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.texts import (
    assert_all,
    graph_columns,
    label_rows,
    text_columns,
    weights,
)
from kerasbert.text.windows import take_windows, windows_of

if TYPE_CHECKING:
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor
    from kerasbert.text.subword import SubwordTokenizer

NO_ANSWER = (-1, -1)
_LONGEST_STRIDE = 128


@dataclass
class Windows:
    """Context tokens of each window.

    Attributes:
        examples: int (W,). Index of each window's example, ascending.
        begins: int (W,). Index of each window's first context token.
        lengths: int (W,). Number of context tokens in each window.
        positions: int (W,). Position in the row of each window's first context token.
        starts: list of N int arrays (P,). Start of each context token, in characters.
        ends: list of N int arrays (P,). End of each context token, in characters.
        contexts: list of N strings.
        rows: tuple of the question tokens and the context tokens of each row, ragged (W, None).
    """

    examples: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    positions: np.ndarray
    starts: list
    ends: list
    contexts: list
    rows: tuple


@keras.saving.register_keras_serializable(package="kerasbert")
class BertQuestionAnsweringPreprocessor(BertPreprocessor):
    """Packs questions and windows of their contexts: `[CLS] question [SEP] window [SEP]`.

    `x` is a tuple of questions and contexts (each a list, an array or a column of strings), a list
    of such pairs, or a dict or table of `question` and `context`. Each context becomes one or more
    windows. A single question with its context counts as a list of one.

    `y` holds one answer per example:

    - `(start, end)` in characters of the context, end exclusive;
    - as in SQuAD, a dict of `text` and `answer_start`, of whose answers the first counts (or one
      table or dict of these columns for all examples);
    - `None`, an empty list or (-1, -1) for no answer.

    `y` is returned as a dict of `start_logits` and `end_logits`, int32 (W,): positions of the
    smallest token span that covers the answer, or 0 (`[CLS]`) in windows without the whole answer.
    Sample weights apply to all windows of an example.

    In `tf.data`, map the preprocessor over batches; answers are then integers (B, 2).

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: maximum tokens per row, special tokens included.
        max_query_length: maximum tokens per question; longer ones are truncated.
        doc_stride: number of tokens between window starts. `None` means half of the room beside a
            question of `max_query_length`, at most 128.
        num_segments: int. See `BertPreprocessor`.

    Answers that fit into no window are trained as "no answer", with a single warning.

    Raises:
        ValueError: for settings without room for contexts, answers outside their context, and
            inputs that are not text, with the example's position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "it", "was", "me"]
    >>> tokenizer = BertTokenizer(tokens, lowercase=True)
    >>> preprocessor = BertQuestionAnsweringPreprocessor(tokenizer)
    >>> features, y = preprocessor((["Who"], ["It was me"]), [(7, 9)])
    >>> np.asarray(features["token_ids"]).tolist()
    [[2, 5, 3, 6, 7, 8, 3, 0]]
    >>> {name: np.asarray(value).tolist() for name, value in y.items()}
    {'start_logits': [5], 'end_logits': [5]}

    Source: Devlin et al. 2019, arXiv 1810.04805, section 4.2; windows as in its released code.
    """

    truncates = False
    settings = ("sequence_length", "num_segments", "max_query_length", "doc_stride")

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 384,
        max_query_length: int = 64,
        doc_stride: int | None = None,
        num_segments: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, "only_second", num_segments, **kwargs)
        check_whole("max_query_length", max_query_length)
        if doc_stride is not None:
            check_whole("doc_stride", doc_stride)
        self.max_query_length = max_query_length
        self.doc_stride = doc_stride
        self._has_reported = False
        self._check_room()

    def _check_room(self):
        """Check that contexts fit; `sequence_length` may change after construction."""
        most = self._room(0) - 1
        if self.max_query_length > most:
            raise ValueError(
                f"max_query_length={self.max_query_length} leaves no room for the context in "
                f"sequence_length={self.sequence_length}; lower it, or set sequence_length to "
                f"{self.sequence_length + self.max_query_length - most} or more."
            )

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        preprocessor = super().from_own_preset(directory, **kwargs)
        if "sequence_length" in kwargs and "doc_stride" not in kwargs:
            # Saved by earlier versions, but wrong for other sequence lengths.
            is_default = preprocessor.doc_stride == _LONGEST_STRIDE
            preprocessor.doc_stride = None if is_default else preprocessor.doc_stride
        return preprocessor

    @property
    def stride(self) -> int:
        """Number of tokens between window starts: `doc_stride`, or its default."""
        if self.doc_stride is not None:
            return self.doc_stride
        return max(1, min(_LONGEST_STRIDE, self._room(self.max_query_length) // 2))

    def _room(self, question_lengths):
        """Return how many context tokens fit beside a question."""
        return self.sequence_length - self.tokenizer.frame.count(2) - question_lengths

    # === Columns ===

    def columns(self, x: Any) -> tuple[Any, ...]:
        columns, _ = text_columns(_pair(x))
        if len(columns) != 2:
            raise ValueError(
                "Got questions without contexts; pass a tuple of two columns, or pairs."
            )
        return columns, True

    def columns_in_graph(self, x: Any) -> list[Any]:
        columns = graph_columns(_pair(x))
        if len(columns) != 2 or columns[0].shape.rank != 1:
            raise ValueError(
                "The dataset must yield batches of questions and contexts: ((questions, "
                "contexts), y), or a dict of 'question' and 'context'; batch it first."
            )
        return columns

    # === Answers ===

    def spans(self, x: Any, y: Any) -> np.ndarray:
        """Return the answers `y` to the questions `x` as character spans, int32 (N, 2)."""
        return _spans(y, self.columns(x)[0][1])

    def _targets(self, y, sample_weight, columns):
        contexts = columns[1]
        y = None if y is None else _spans(y, contexts)
        return y, None if sample_weight is None else weights(sample_weight, len(contexts))

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        if y is not None and not np.asarray(y).any():
            warn_of_nothing(
                "No question has an answer in its context",
                "add answers, or check their source",
            )

    def check_labels_in_graph(self, y: Any) -> Tensor:
        if y.shape.rank != 2 or y.shape[1] not in (None, 2):
            raise ValueError(
                f"The dataset yields answers of shape {y.shape}; yield (B, 2), the start and end "
                "of each in characters, or -1 and -1 for no answer."
            )
        y = ops.cast(y, "int32")
        good = ops.reduce_all(y == -1, axis=1) | ((y[:, 0] >= 0) & (y[:, 0] < y[:, 1]))
        assert_all(good, y, "Answers must start at 0 or later and end after their start; got:")
        return y

    # === Tokens ===

    def _tokenize_columns(self, columns, most=None):
        """Return tokens of questions and contexts, and offsets, all ragged."""
        (questions,) = super()._tokenize_columns(columns[:1], self.max_query_length)
        parts = tokenize_column(
            self, columns[1], lambda texts: self.tokenizer.ragged(texts, offsets=True)
        )
        return questions, *(ops.cast(part, "int32") for part in parts)

    def _tokenize_in_graph(self, columns):
        (questions,) = super()._tokenize_in_graph(columns[:1])
        contexts, starts, ends = self.tokenizer.ragged(columns[1], offsets=True)
        return questions[:, : self.max_query_length], ops.cast(contexts, "int32"), starts, ends

    # === Windows ===

    def windows(self, x: Any) -> Any:
        """Return the context tokens of each row of a call or `predict`.

        Args:
            x: as for a call.

        Returns:
            A `Windows`.
        """
        columns, _ = self.columns(x)
        segments = self._tokenize_columns(columns)
        examples, begins, lengths = self.cut(segments)
        rows, _, _ = self._in_windows(segments, None, None)
        questions, _, starts, ends = segments
        positions = self.begin_of_context(questions)[examples]
        starts, ends = (np.split(x.values, x.row_splits[1:-1]) for x in (starts, ends))
        contexts = [c.decode("utf-8") if isinstance(c, bytes) else c for c in columns[1]]
        return Windows(examples, begins, lengths, positions, starts, ends, contexts, rows)

    def cut(self, segments: Any) -> tuple[Any, Any, Any]:
        """Return the example, first token and length of each window, int32 (W,)."""
        self._check_room()
        if isinstance(segments[1], ops.Ragged):
            for position in np.flatnonzero(segments[1].row_lengths() == 0)[:1]:
                raise ValueError(
                    f"The context at position {position} has no tokens; pass a text with at least "
                    "one word, or drop the row."
                )
        lengths = ops.cast(segments[1].row_lengths(), "int32")
        rooms = self._room(ops.cast(segments[0].row_lengths(), "int32"))
        return windows_of(lengths, rooms, self.stride)

    def begin_of_context(self, questions: Any) -> Any:
        """Return the position of each context in its row: int32 (N,)."""
        return self.tokenizer.frame.second + ops.cast(questions.row_lengths(), "int32")

    def _in_windows(self, segments, y, sample_weight):
        """Split N examples into W windows, and locate answers."""
        rows, begins, lengths = self.cut(segments)
        questions, contexts, starts, ends = segments
        if y is not None:
            first, last = (ops.gather(x, rows) - begins for x in _tokens_of(y, starts, ends))
            is_whole = (first >= 0) & (last < lengths)
            shift = ops.gather(self.begin_of_context(questions), rows)
            y = ops.stack([first + shift, last + shift], axis=1)
            y = ops.where(is_whole[:, None], y, 0)  # (W, 2)
            if isinstance(questions, ops.Ragged):
                self._report_lost(first + begins >= 0, is_whole, rows, questions)
        if sample_weight is not None:
            sample_weight = ops.gather(sample_weight, rows)
        segments = ops.gather(questions, rows), take_windows(contexts, rows, begins, lengths)
        return segments, y, sample_weight

    def _report_lost(self, has_answer, is_whole, rows, questions):
        """Warn, once for all examples, about answers that fit into no window."""
        answered, found = (
            np.bincount(rows, weights=part, minlength=len(questions)) > 0
            for part in (has_answer, is_whole)
        )
        lost = np.flatnonzero(answered & ~found)
        if not len(lost) or self._has_reported:
            return
        self._has_reported = True
        warnings.warn(
            f"{len(lost):,} of {int(answered.sum()):,} answers, the first at position {lost[0]}, "
            f"fit into no window and train as 'no answer': windows of up to "
            f"sequence_length={self.sequence_length} tokens start every doc_stride={self.stride} "
            "tokens; raise sequence_length, or lower doc_stride.",
            stacklevel=2,
        )

    def _examples(self, x, y, sample_weight):
        # `fit` makes batches of windows, not of texts.
        if isinstance(x, Windows):
            return x.rows, [None, None]
        columns, _ = self.columns(x)
        y, sample_weight = self._targets(y, sample_weight, columns)
        segments = self._tokenize_columns(columns)
        segments, y, sample_weight = self._in_windows(segments, y, sample_weight)
        return segments, [y, sample_weight]

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        if len(segments) > 2:  # In a call, contexts are not split into windows yet.
            segments, y, sample_weight = self._in_windows(segments, y, sample_weight)
        if y is not None:
            y = {"start_logits": y[:, 0], "end_logits": y[:, 1]}
        return super().assemble(segments, y, sample_weight, length)


def _pair(x):
    """Return the columns of a dict or table as a tuple, other values unchanged."""
    table = columns_of(x)
    if table is None:
        return x
    if set(table) != {"question", "context"}:
        raise ValueError(
            f"The columns are {sorted(map(str, table))}; name them 'question' and 'context', and "
            "pass no others."
        )
    return table["question"], table["context"]


def _tokens_of(spans, starts, ends):
    """Return first and last tokens, two int32 (N,), of the smallest token spans that cover `spans`
    (N, 2).

    Byte-level tokens may share characters. "No answer" is negative, far outside of all windows.
    """
    row = starts.value_rowids()
    token = ops.range(ops.size(row)) - ops.cast(ops.gather(starts.row_starts(), row), "int32")
    starts, ends = starts.values, ends.values
    of_token = ops.gather(spans, row)

    def in_rows(choose, values, where):
        """Return each row's minimum or maximum, also repeated for each token."""
        chosen = choose(*ops.rows_where(where, values, row), ops.shape(spans, out_type="int64")[0])
        return chosen, ops.gather(chosen, row)

    least, greatest = ops.unsorted_segment_min, ops.unsorted_segment_max
    touches = (starts < of_token[:, 1]) & (ends > of_token[:, 0])
    _, start = in_rows(greatest, starts, touches & (starts <= of_token[:, 0]))
    first, of_first = in_rows(least, token, touches & (starts >= start))
    touches = touches & (token >= of_first)
    _, end = in_rows(least, ends, touches & (ends >= of_token[:, 1]))
    last, _ = in_rows(greatest, token, touches & (ends <= end))
    has_answer = spans[:, 0] >= 0
    lost = has_answer & (last < 0)
    if not ops.is_tensor(lost):
        for position in np.flatnonzero(lost)[:1]:
            start, end = spans[position]
            raise ValueError(
                f"The answer at position {position}, characters {start} to {end} of its context, "
                "covers no token; move it to the answer's words, or pass None for no answer."
            )
    else:
        assert_all(~lost, spans, "Answers must cover a token of their context; got:")
    none = np.iinfo("int32").min // 2
    return ops.where(has_answer, first, none), ops.where(has_answer, last, none)


def _spans(y, contexts):
    """Convert answers of any form to character spans, int32 (N, 2); (-1, -1) for no answer."""
    table = columns_of(y)
    if isinstance(y, dict) and len(contexts) == 1 and not _holds_lists(y.get("answer_start")):
        rows = [y]
    elif table is not None and set(table) == {"text", "answer_start"}:
        columns = [label_rows(table[name], len(contexts), "answers") for name in table]
        rows = [dict(zip(table, row)) for row in zip(*columns)]
    else:
        rows = label_rows(y, len(contexts), "answers")
    spans = np.empty((len(rows), 2), "int32")
    for position, (row, context) in enumerate(zip(rows, contexts, strict=True)):
        context = context.decode("utf-8") if isinstance(context, bytes) else context
        spans[position] = _span(row, context, position)
    return spans


def _holds_lists(starts):
    return any(np.ndim(start) > 0 for start in starts) if np.ndim(starts) else False


def _span(row, context, position):
    if isinstance(row, dict):
        return _squad_span(row, context, position)
    row = row.tolist() if hasattr(row, "tolist") else row
    if row is None or (isinstance(row, (list, tuple)) and len(row) == 0):
        return NO_ANSWER
    if not (isinstance(row, (list, tuple)) and len(row) == 2 and all(map(is_whole, row))):
        raise ValueError(
            f"The answer at position {position} is {row!r}; pass its start and end in characters, "
            "a dict of 'text' and 'answer_start', or None."
        )
    start, end = row
    if (start, end) == NO_ANSWER:
        return NO_ANSWER
    if not 0 <= start < end <= len(context):
        raise ValueError(
            f"The answer at position {position}, characters {start} to {end}, is not in its "
            f"context of {len(context)} characters; count from 0, end exclusive, or pass None for "
            "no answer."
        )
    return start, end


def _squad_span(row, context, position):
    if not {"text", "answer_start"} <= set(row):
        raise ValueError(
            f"The answer at position {position} has the keys {sorted(map(str, row))}; pass 'text' "
            "and 'answer_start'."
        )
    texts, starts = (
        x.tolist() if hasattr(x, "tolist") else x if isinstance(x, (list, tuple)) else [x]
        for x in (row["text"], row["answer_start"])
    )
    if len(texts) != len(starts):
        raise ValueError(
            f"The answer at position {position} has {len(texts)} texts but {len(starts)} starts; "
            "pass one start for each text."
        )
    if not texts:
        return NO_ANSWER
    text, start = texts[0], starts[0]
    if not isinstance(text, str) or not is_whole(start):
        raise ValueError(
            f"The answer at position {position} is {text!r} at {start!r}; pass a string and the "
            "position of its first character."
        )
    if start < 0 or context[start : start + len(text)] != text:
        raise ValueError(
            f"The answer at position {position}, {text!r}, is not at character {start} of its "
            f"context, which has {context[max(start, 0) :][: len(text)]!r} there; count "
            "characters from 0, not bytes or tokens."
        )
    return _span((start, start + len(text)), context, position)

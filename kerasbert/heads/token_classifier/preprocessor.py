"""Preprocessing for token classification.

N texts, U labeled units per text (mostly words), P pieces (subwords) per text, R windows, B batch,
T tokens per row, C classes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice, is_whole
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.text import ops
from kerasbert.text.batches import as_tensors
from kerasbert.text.characters import SPACE
from kerasbert.text.pieces import (
    Pieces,
    checked_spans,
    joined_spans,
    read_pieces,
    units_of_pieces,
    units_touched,
)
from kerasbert.text.tagging import TagSet, tag_names, unit_probabilities, word_spans
from kerasbert.text.text_warnings import looks_of
from kerasbert.text.texts import label_rows, text_columns, weights, word_rows
from kerasbert.text.windows import (
    cut_windows,
    most_context,
    window_tokens,
    windows_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike

    from kerasbert.base.aliases import Tensor
    from kerasbert.text.subword import SubwordTokenizer

LABEL_PIECES = ("first", "all")
NO_LABEL = -100  # as in transformers


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTokenClassifierPreprocessor(BertTextClassifierPreprocessor):
    """Packs words or texts, and assigns their labels to pieces (subwords).

    `x` is one of:

    - lists of words, tokenized as within a text. `y` has a name or class index for each (see
      `BertTextClassifierPreprocessor`); `None` and -100 exclude the word from the loss.
    - texts. `y` has spans for each text: `(start, end, label)` in characters, or dicts with these
      keys. Spans must not overlap. The label is an entity type, such as "PER", which becomes the
      tags of the scheme. A word belongs to the first span that touches it. Classes other than
      entity tags, such as parts of speech, label the words of a span, others "O".

    Texts are split into words at white space, punctuation and CJK characters
    (`kerasbert.data.word_spans`).

    A call returns `(x, y, sample_weight)`: the features of `BertPreprocessor`, labels int32 (B, T)
    and weights float32 (B, T), 0 for special tokens, padding and unlabeled pieces. Each text is a
    row, truncated to `sequence_length`. Inside `tf.data`, `x` is texts without labels, or a ragged
    tensor (B, None) of words with such labels.

    Data in memory are split into overlapping windows instead by `fit`, `evaluate` and `predict`; a
    piece counts only where it has the most context.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: maximum tokens per row, and so per window.
        stride: number of pieces between window starts; `None` means half a window.
        label_pieces: "first" labels only a word's first piece. "all" labels all its pieces ("B-"
            continues as "I-"), and spans may begin and end inside words, for languages without
            spaces.
        labels: list of strings. Class names or, with a `scheme`, entity types.
        scheme: tagging scheme for entity types in `labels`: "BIO" (also "IOB" and "IOB2"), "BIOES"
            ("IOBES"), "BILOU" ("BILUO"), "BMES", "BMEWO" or "IO". Not needed if `labels` are tags.
        num_classes: number of classes, if they have no names.
        num_segments: int. See `BertPreprocessor`.

    Raises:
        ValueError: for labels that do not match their words or text, with the position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "##a", "in", "rome"]
    >>> preprocessor = BertTokenClassifierPreprocessor(
    ...     BertTokenizer(tokens, lowercase=True), labels=["PER", "LOC"], scheme="BIO"
    ... )
    >>> preprocessor.names
    ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    >>> features, y, counts = preprocessor(["Anna in Rome"], [[(0, 4, "PER"), (8, 12, "LOC")]])
    >>> np.asarray(features["token_ids"]).tolist(), np.asarray(y).tolist()
    ([[2, 5, 6, 7, 8, 3, 0, 0]], [[0, 1, 0, 0, 3, 0, 0, 0]])
    >>> np.asarray(counts).tolist()
    [[0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]]

    Source: Devlin et al. 2019, arXiv 1810.04805, section 5.3 (first pieces).
    """

    truncates = False
    settings = (
        *("sequence_length", "truncate"),
        "num_segments",
        "labels",
        "num_classes",
        "stride",
        "label_pieces",
        "scheme",
    )

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        stride: int | None = None,
        label_pieces: str = "first",
        labels: Sequence[str] | None = None,
        scheme: str | None = None,
        num_classes: int | None = None,
        num_segments: int = 2,
        **kwargs: Any,
    ) -> None:
        self.scheme = scheme
        super().__init__(
            tokenizer,
            sequence_length,
            num_segments=num_segments,
            labels=labels,
            num_classes=num_classes,
            **kwargs,
        )
        check_choice("label_pieces", label_pieces, LABEL_PIECES)
        self.label_pieces = label_pieces
        self.stride = stride
        cut_windows([0], self.room, self.window_stride)  # This checks the stride.

    @property
    def names(self) -> list[str]:
        """Class names; empty if unknown."""
        return [] if self.labels is None else tag_names(self.labels, self.scheme)

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Tensor:
        if ops.in_graph():
            return self._call_in_graph(x, y, sample_weight)
        single = isinstance(x, str)
        if single:
            x, y, sample_weight = ([v] if v is not None else v for v in (x, y, sample_weight))
        pieces = self.read(x)
        y, sample_weight = self._targets_of_pieces(pieces, y, sample_weight)
        segments, y, sample_weight = (
            None if v is None else ops.Ragged(v, pieces.splits)
            for v in (pieces.ids, y, sample_weight)
        )
        outputs = self.assemble((segments,), y, sample_weight)
        if single:
            outputs = keras.tree.map_structure(lambda rows: rows[0], outputs)
        return as_tensors(outputs)

    def _call_in_graph(self, x, y, sample_weight):
        if isinstance(x, dict) or getattr(x, "shape", tf.TensorShape([])).rank != 2:
            if y is not None:
                raise ValueError(
                    "The dataset yields labels for texts, whose spans `tf.data` cannot hold; yield "
                    "ragged batches of words with labels, or pass texts and spans as lists."
                )
            return super()._call_in_graph(x, None, None)
        if not isinstance(x, tf.RaggedTensor):
            x = tf.RaggedTensor.from_tensor(x)
        words = tf.strings.regex_replace(x.flat_values, f"^[{SPACE}]+$", "")
        words = ops.where(words == "", "", " " + words)
        before = ops.cumsum(tf.strings.length(words, unit="UTF8_CHAR"))  # over all texts
        before = ops.concat([[0], before], 0)
        base = ops.gather(ops.gather(before, x.row_starts()), x.value_rowids())
        texts = tf.strings.reduce_join(x.with_flat_values(words), axis=-1)
        ids, starts, piece_ends = self.tokenizer.tokenize_with_offsets(texts)
        first, count, unit = units_of_pieces(
            (ids.value_rowids(), starts.flat_values, piece_ends.flat_values),
            (x.value_rowids(), before[:-1] - base, before[1:] - base),
        )
        if y is not None:
            y = y if isinstance(y, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(y)
            message = "Words and labels differ in number; yield one label for each word."
            same = ops.reduce_all(ops.equal(x.row_lengths(), y.row_lengths()))
            with tf.control_dependencies([tf.debugging.Assert(same, [message])]):
                labels = self._labels_in_graph(y.flat_values)
            y, given = self._on_pieces(labels, first, count, unit)
            if sample_weight is not None:
                given = given * ops.gather(ops.cast(sample_weight, "float32"), ids.value_rowids())
            y, sample_weight = ids.with_flat_values(y), ids.with_flat_values(given)
        return self.assemble((ops.cast(ids, "int32"),), y, sample_weight if y is not None else None)

    def _labels_in_graph(self, labels):
        """Convert a flat tensor of names or numbers to class indices; -1 means no label."""
        if labels.dtype == tf.string:
            return self.check_labels_in_graph(labels)
        labels = ops.cast(labels, "int32")
        places = ops.where(labels != NO_LABEL)
        numbers = self.check_labels_in_graph(ops.gather_nd(labels, places))
        return ops.tensor_scatter_nd_update(ops.fill(ops.shape(labels), -1), places, numbers)

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        features = self.pack(segments, length)
        if y is None:
            return features
        length = ops.shape(features["token_ids"])[1]

        def place(rows):
            """Pad ragged (B, P) to (B, T), aligned with the tokens."""
            rows = rows[:, : self.room].to_tensor()
            first = self.tokenizer.frame.first
            return ops.pad(rows, [[0, 0], [first, length - first - ops.shape(rows)[1]]])

        return features, place(y), place(sample_weight)

    # === Pieces and units ===

    def read(self, x: Any) -> Any:
        """Tokenize texts or lists of words into a `Pieces`."""
        x = list(x) if hasattr(x, "__next__") else x
        words = word_rows(x)
        if words is None:
            columns, batched = text_columns(x)
            if not batched:
                raise ValueError("Got one text where a list is needed; pass a list.")
            if len(columns) != 1:
                raise ValueError(
                    "Got pairs of texts; pass one list of texts, or of lists of words."
                )
            rows = [text.decode() if isinstance(text, bytes) else text for text in columns[0]]
            texts, spans = rows, None
            if self.label_pieces == "first":
                spans = [word_spans(text) for text in rows]
        else:
            # With a space, a word has the same byte pairs as in a text.
            spaced = [[f" {word}" if word.strip() else "" for word in row] for row in words]
            rows, texts = words, ["".join(row) for row in spaced]
            spans = [joined_spans(row) for row in spaced]
        pieces = read_pieces(self.tokenizer, rows, texts, spans, words is not None)
        looks_of(self).at_tokens(self.tokenizer, texts, pieces.ids)
        return pieces

    def _on_pieces(self, labels, first, count, unit):
        """Convert labels of units (-1 for none) to labels and weights of pieces."""
        labels = ops.concat([labels, [-1]], 0)  # For pieces without a unit.
        first, count = (ops.concat([array, [-1]], 0) for array in (first, count))
        unit = ops.where(unit < 0, ops.size(labels, "int64") - 1, unit)
        label = ops.gather(labels, unit)  # (pieces,)
        place = ops.range(ops.size(unit, "int64")) - ops.gather(first, unit)
        if self.label_pieces == "first":
            label = ops.where(place == 0, label, -1)
        elif self.names:
            last = place == ops.gather(count, unit) - 1
            index = [ops.maximum(label, 0), ops.cast(place == 0, "int32"), ops.cast(last, "int32")]
            of_piece = ops.gather_nd(TagSet(self.names).of_pieces(), ops.stack(index, axis=1))
            label = ops.where(label < 0, -1, of_piece)
        return ops.maximum(label, 0), ops.cast(label >= 0, "float32")

    def of_units(self, pieces: Pieces, probabilities: Any) -> np.ndarray:
        """Convert probabilities (pieces, C) to (units, C); units without pieces get zeros.

        A unit gets the probabilities of its first piece or, with `label_pieces="all"`, the mean of
        its pieces, where the "I-PER" of inner pieces counts as "B-PER".
        """
        units = np.zeros((len(pieces.first), probabilities.shape[1]))
        there = pieces.count > 0
        units[there] = unit_probabilities(
            ops.cast(probabilities, "float64"),
            pieces.first[there],
            pieces.count[there],
            self.names,
            self.label_pieces,
        )
        return units

    # === Labels ===

    def _targets_of_pieces(self, pieces, y, sample_weight):
        """Return labels and weights of pieces, as NumPy arrays; `None` if there are no labels."""
        if y is None:
            return None, None
        count = len(pieces.rows)
        rows = label_rows(y.to_list() if hasattr(y, "row_splits") else y, count)
        for position, row in enumerate(pieces.rows):
            if not row:
                raise ValueError(
                    f"The {'list of words' if pieces.words else 'text'} at position {position} is "
                    "empty, so it has nothing to label; drop it."
                )
        labels = self._of_words(pieces, rows) if pieces.words else self._of_spans(pieces, rows)
        y, given = self._on_pieces(labels, pieces.first, pieces.count, pieces.unit)
        if sample_weight is not None:
            sample_weight = weights(sample_weight, count)
            if sample_weight.ndim != 1:
                raise ValueError(
                    f"The sample weights have shape {sample_weight.shape}; pass one for each "
                    "text, and None as the label of words that should not count."
                )
            given = given * np.repeat(sample_weight, np.diff(pieces.splits))
        return y, given

    def _of_words(self, pieces, rows):
        """Convert labels of words to int32 (units,); -1 means no label."""
        numbers = {name: number for number, name in enumerate(self.names)}
        numbers[None] = -1
        labels = np.empty(len(pieces.starts), "int32")
        for position, (words, row) in enumerate(zip(pieces.rows, rows, strict=True)):
            row = row.tolist() if hasattr(row, "tolist") else row
            if not isinstance(row, (list, tuple)):
                raise ValueError(
                    f"The labels at position {position} are {row!r}; pass a list with one label "
                    "per word."
                )
            if len(row) != len(words):
                raise ValueError(
                    f"At position {position} there are {len(words)} words but {len(row)} labels; "
                    "pass one label for each word."
                )
            begin = pieces.unit_splits[position]
            for place, label in enumerate(row):
                number = numbers.get(label)
                if number is None:
                    number = self._class_number(label, f"{position}, word {place}")
                labels[begin + place] = number
        return labels

    def _class_number(self, label, place):
        """Return the class index of a label; -1 means no label."""
        if isinstance(label, (str, bytes)):
            return self._number(label, place)
        if not is_whole(label):
            raise ValueError(
                f"The label at position {place} is {label!r}; pass a name, a class index, or "
                "None for no label."
            )
        return -1 if label == NO_LABEL else self.check_number(int(label), place)

    def _of_spans(self, pieces, rows):
        """Convert spans of texts to the class indices of units, int32 (units,); -1 for no label."""
        if not self.names:
            raise ValueError(
                "The preprocessor has no class names for spans; pass labels=[...], and "
                "scheme='BIO' if those are entity types."
            )
        tags = TagSet(self.names)
        outside = -1 if tags.outside is None else tags.outside
        labels = np.full(len(pieces.starts), outside, "int32")
        lost = []
        for position, (text, row) in enumerate(zip(pieces.rows, rows, strict=True)):
            begin, end = pieces.unit_splits[position : position + 2]
            free = begin
            for start, stop, label in checked_spans(row, text, tags.types, position):
                # The units that the span touches, except those of the previous span.
                low, high = units_touched(pieces, position, start, stop)
                low = max(low, free)
                free = max(high, free)
                if low >= high:
                    lost.append(f"{(start, stop, label)} at position {position}")
                for unit in range(low, high):
                    labels[unit] = tags.number(label, unit == low, unit == high - 1)
            if outside < 0 and (labels[begin:end] < 0).any():
                unit = begin + int(np.argmax(labels[begin:end] < 0))
                word = text[pieces.starts[unit] : pieces.ends[unit]]
                raise ValueError(
                    f"The word {word!r} of the text at position {position} is in no span, and "
                    "`labels` has no 'O' for it; add 'O' to `labels`, or pass scheme='BIO' if they "
                    "are entity types."
                )
        if lost:
            warnings.warn(
                f"{len(lost)} spans have no word of their own and are ignored, first {lost[0]}; "
                "check their offsets.",
                stacklevel=2,
            )
        return labels

    # === Windows ===

    @property
    def window_stride(self) -> int:
        """Number of tokens between window starts: `stride`, or half a window by default."""
        return max(self.room // 2, 1) if self.stride is None else self.stride

    def windows(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the windows over the pieces of each text: `(rows, starts, ends)`, ints (R,)."""
        return cut_windows(np.diff(pieces.splits), self.room, self.window_stride)

    def windows_in_graph(self, lengths: ArrayLike) -> Any:
        """Return `(rows, starts, lengths)` of windows over texts of these lengths, in a graph."""
        sizes = ops.fill(ops.shape(lengths), self.room)
        return windows_of(lengths, sizes, self.window_stride)

    def _examples(self, x, y, sample_weight):
        """Make one example per window of texts, or of a `Pieces`."""
        pieces = x if isinstance(x, Pieces) else self.read(x)
        y, sample_weight = self._targets_of_pieces(pieces, y, sample_weight)
        rows, starts, ends = self.windows(pieces)
        window, place = window_tokens(starts, ends)
        index = pieces.splits[rows[window]] + place  # the pieces of each window
        if y is not None:
            sample_weight = sample_weight[index] * most_context(rows, starts, ends)
            y = y[index]
        ids, y, sample_weight = (
            None if v is None else ops.Ragged.from_row_lengths(v, ends - starts)
            for v in (pieces.ids[index], y, sample_weight)
        )
        return (ids,), [y, sample_weight]

    def join_windows(self, pieces: Pieces, outputs: Any, order: Any) -> np.ndarray:
        """Merge the outputs of windows to (pieces of all texts, C).

        A piece's output is that with the most context.

        Args:
            pieces: a `Pieces`.
            outputs: arrays (T, C), one per window.
            order: ints (R,). Index of the window of each array.
        """
        rows, starts, ends = self.windows(pieces)
        best = np.split(most_context(rows, starts, ends), np.cumsum(ends - starts)[:-1])
        joined = None
        for window, output in zip(order, outputs, strict=True):
            if joined is None:
                joined = np.zeros((len(pieces.ids), output.shape[-1]), output.dtype)
            place = np.flatnonzero(best[window])
            begin = pieces.splits[rows[window]] + starts[window]
            joined[begin + place] = output[self.tokenizer.frame.first + place]
        return joined

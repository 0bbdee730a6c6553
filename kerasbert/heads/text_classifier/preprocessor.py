"""Preprocessing for classification of texts and pairs; labels are class indices or names.

B batch, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_value, did_you_mean
from kerasbert.heads.base.long_preprocessor import LongTextPreprocessor
from kerasbert.text import ops
from kerasbert.text.alignment import in_form
from kerasbert.text.class_numbers import class_numbers
from kerasbert.text.columns import columns_of
from kerasbert.text.label_warnings import counted, warn_of_columns, warn_of_equal
from kerasbert.text.names import composed, known_name
from kerasbert.text.texts import (
    assert_all,
    label_list,
    label_rows,
)

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor
    from kerasbert.text.subword import SubwordTokenizer


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextClassifierPreprocessor(LongTextPreprocessor):
    """Packs texts or pairs like `BertPreprocessor`, and converts labels to class indices.

    Labels `y` are class indices or names (B,), returned as int32 (B,). If class names are numbers,
    as with `labels=[1, 2, 3]`, numeric labels are names; ambiguous ones, as with `labels=[1, 0]`,
    are an error. Rows of C numbers (one-hot or soft labels) are returned as float32 (B, C), as are,
    with `multi_label`, rows of C zeros and ones or lists of names.

    Args:
        tokenizer, sequence_length, truncate, num_segments: see `BertPreprocessor`.
        labels: list of strings. Class names by index; or a dict of index to name, or of name to
            index.
        multi_label: whether texts may have any number of labels.
        num_classes: number of classes, if they have no names.
        long: string, dict or `kerasbert.data.LongTexts`. For texts that do not fit into a row.

    Raises:
        ValueError: for labels that are not classes, and inputs that are not text, with the
            position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful"]
    >>> tokenizer = BertTokenizer(tokens, lowercase=True)
    >>> preprocessor = BertTextClassifierPreprocessor(tokenizer, labels=["bad", "good"])
    >>> features, y = preprocessor(["Fine", "Awful", "fine fine"], ["good", "bad", "good"])
    >>> np.asarray(y).tolist()
    [1, 0, 1]
    """

    settings = (*LongTextPreprocessor.settings, "labels", "multi_label", "num_classes")

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        labels: Any = None,
        multi_label: bool = False,
        num_classes: int | None = None,
        long: Any = "truncate",
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, num_segments, long=long, **kwargs)
        self.labels = label_list(labels)
        check_value("multi_label", multi_label, "flag")
        self.multi_label = multi_label
        self.num_classes = num_classes
        names = self.names
        for position, name in enumerate(names):
            if not isinstance(name, str) or known_name(name, names[:position]) is not None:
                raise ValueError(
                    f"The label at position {position} of `labels` is {name!r}; pass distinct "
                    "strings."
                )
        if names and num_classes not in (None, len(names)):
            raise ValueError(
                f"num_classes={num_classes} differs from the {len(names)} names in `labels`; "
                "leave it out."
            )

    @property
    def names(self) -> list[str]:
        """Class names; empty if unknown."""
        return [] if self.labels is None else list(self.labels)

    def class_count(self) -> int | None:
        """Return the number of classes; `None` if unknown."""
        return len(self.names) or self.num_classes

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        table = columns_of(y)
        is_wide = table is not None and len(table) > 1
        rows = label_rows(self._by_class(table) if is_wide else y, count)
        is_array = is_wide or table is None and len(getattr(y, "shape", ())) == 2
        if self.multi_label:
            return self._many(rows, is_array)
        return self._one([row for (row,) in rows] if is_array and len(rows[0]) == 1 else rows)

    def _by_class(self, table):
        """Order the label columns of a table by class, if their names are those of the classes."""
        names = self.names
        columns = [known_name(str(name), names) or str(name) for name in table]
        if not set(names) & set(columns) or columns == names:
            return table
        are_counted = list(table) == list(range(len(names)))  # pandas' default column names
        if sorted(columns) != sorted(names) or are_counted:
            raise ValueError(
                f"The columns of the labels are {', '.join(map(repr, table))}, but the classes are "
                f"{', '.join(map(repr, names))}; pass one column per class, with its name."
            )
        by_name = dict(zip(columns, table.values()))
        return {name: by_name[name] for name in names}

    def _one(self, rows):
        """Convert one label per text to int32 (B,), or rows of numbers to float32 (B, C)."""
        if any(isinstance(row, (str, bytes)) for row in rows):
            return np.array([self._number(row, i) for i, row in enumerate(rows)], "int32")
        numbers = class_numbers(self.names)
        if numbers and all(isinstance(row, bool) for row in rows) and (flags := numbers.of_flags()):
            return np.array(flags, "int32")[np.asarray(rows, int)]
        y = _numbers(rows)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim == 2:
            return self._rows(y)
        if y.ndim != 1:
            raise ValueError(
                f"The labels have shape {y.shape}; pass one class index or name for each text."
            )
        if numbers and np.isfinite(y).all():
            return numbers.numbers(y)
        for position in np.flatnonzero(~(y == np.floor(y)))[:1]:
            raise ValueError(
                f"The label at position {position} is {y[position]}, not a class index; pass "
                "whole numbers, or use a regressor for scores."
            )
        for position in np.flatnonzero((y < 0) | (y >= (self.class_count() or np.inf)))[:1]:
            self.check_number(int(y[position]), position)
        return y.astype("int32")

    def check_number(self, number: int, position: int) -> int:
        """Return the class index of a numeric label: the same number, unless names are numbers."""
        if numbers := class_numbers(self.names):
            return numbers.number(number, f"The label {number} at position {position}")
        classes = self.class_count()
        if 0 <= number < (classes or np.inf):
            return number
        if classes is None:
            raise ValueError(
                f"The label {number} at position {position} is negative; number classes from 0."
            )
        raise ValueError(
            f"The label {number} at position {position} is outside 0 to {classes - 1}, the "
            f"numbers of the {classes} classes; number from 0, or increase num_classes."
        )

    def _many(self, rows, is_array):
        """Convert any number of labels per text to float32 (B, C)."""
        sets = [row if isinstance(row, (list, tuple, set)) else [row] for row in rows]
        are_names = any(isinstance(name, (str, bytes)) for row in sets for name in row)
        if not are_names and (any(sets) or not self.names):
            named = None if is_array else self._named_sets(sets, rows)
            return self._rows(_numbers(rows)) if named is None else named
        y = np.zeros((len(rows), self.class_count() or 0), "float32")
        for position, row in enumerate(rows):
            if not isinstance(row, (list, tuple, set)):
                raise ValueError(
                    f"The labels at position {position} are {row!r}; with multi_label, pass a list "
                    f"of names per text, such as {[row]!r}."
                )
            for name in row:
                y[position, self._number(name, position)] = 1
        return y

    def _named_sets(self, sets, rows):
        """Convert lists of numeric class names to float32 (B, C); `None` for other labels."""
        numbers = class_numbers(self.names)
        if numbers is None or any(len(set(row)) < len(row) for row in sets):
            return None
        y = np.zeros((len(sets), len(self.names)), "float32")
        for position, row in enumerate(sets):
            for value in row:
                number = numbers.named(value)
                if number is None or not isinstance(rows[position], (list, tuple, set)):
                    return None
                y[position, number] = 1
        try:
            given = self._rows(np.asarray(rows, "float64"))
        except (TypeError, ValueError):
            return y
        if not np.array_equal(given, y):
            position = int(np.argmax((given != y).any(axis=1)))
            raise ValueError(
                f"The labels {rows[position]!r} at position {position} can be read as class "
                f"names, or as a zero or one for each of {', '.join(map(repr, self.names))}; pass "
                "names as strings, or zeros and ones as an array."
            )
        return y

    def _rows(self, y):
        classes = self.class_count()
        if y.ndim != 2 or y.shape[1] != (classes or y.shape[1]):
            wanted = f"{classes} numbers" if classes else "a row of numbers"
            raise ValueError(
                f"The labels have shape {y.shape}; pass {wanted} per text, one for each class."
            )
        for position, column in np.argwhere(~((y >= 0) & (y <= 1)))[:1]:
            raise ValueError(
                f"The label at position {position}, class {column} is {y[position, column]}; "
                "pass numbers from 0 to 1."
            )
        return y.astype("float32")

    def _number(self, name, position):
        name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        names = self.names
        known = known_name(name, names)
        if known is not None:
            return names.index(known)
        if not isinstance(name, str):
            raise ValueError(
                f"The label at position {position} is {name!r} among names; use names for "
                "all labels, or class indices for all."
            )
        if not names:
            raise ValueError(
                f"The label at position {position} is the name {name!r}, but the preprocessor has "
                "no class names; pass labels=[...] with all of them."
            )
        raise ValueError(
            f"The label {name!r} at position {position} is unknown; known are "
            f"{', '.join(map(repr, names))}"
            + did_you_mean(name, names, "; correct it or add it to `labels`.", show=repr)
        )

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        if y is None or self.class_count() == 1:
            return
        y = counted(y, sample_weight)
        if self.multi_label:
            warn_of_columns(y, self.names or [str(number) for number in range(y.shape[1])])
            return
        if y.ndim > 1:
            y = y.argmax(axis=-1) if (y == y[:1]).all() else y[:0]
        names = self.names
        warn_of_equal(y, "labels", lambda number: repr(names[number]) if names else number)

    def check_labels_in_graph(self, y: Any) -> Tensor:
        y = ops.convert_to_tensor(y)
        if y.dtype == tf.string:
            return self._names_in_graph(y)
        classes = self.class_count()
        if y.shape.rank == 2 and y.shape[1] == 1 and not self.multi_label:
            y = y[:, 0]
        if self.multi_label or y.shape.rank == 2:
            if y.shape.rank not in (None, 2) or classes and y.shape[-1] not in (None, classes):
                raise ValueError(
                    f"The dataset yields labels of shape {y.shape}; "
                    f"yield (B, {classes or 'C'}), a number for each class."
                )
            y = ops.cast(y, "float32")
            good = (y >= 0) & (y <= 1)
            assert_all(good, y, "Labels must be numbers from 0 to 1; got:")
            return y
        if numbers := class_numbers(self.names):
            flags = numbers.of_flags() if y.dtype == "bool" else None
            return ops.gather(flags, ops.cast(y, "int32")) if flags else numbers.in_graph(y)
        if y.dtype.is_floating:
            assert_all(ops.equal(y, ops.floor(y)), y, "Labels must be whole class indices; got:")
        y = ops.cast(y, "int32")
        good = (y >= 0) & (y < classes) if classes else y >= 0
        wanted = f"from 0 to {classes - 1}" if classes else "of at least 0"
        assert_all(good, y, f"Labels must be class indices {wanted}; got:")
        return y

    def _names_in_graph(self, y):
        if not self.names or self.multi_label or y.shape.rank != 1:
            raise ValueError(
                f"The dataset yields labels that are text, of shape {y.shape}. For class names, "
                "pass labels=[...] and yield one name per text; for pairs, yield ((a, b), y)."
            )
        names = list(map(composed, self.names))
        match = ops.equal(in_form(y, "NFC")[:, None], tf.constant(names))  # (B, C)
        known = f"Labels must be one of {', '.join(self.names)}; got:"
        assert_all(ops.reduce_any(match, -1), y, known)
        return ops.argmax(match, -1, output_type="int32")


def _numbers(rows):
    try:
        return np.asarray(rows, "float64")
    except (TypeError, ValueError):
        pass
    for position, row in enumerate(rows):
        try:
            np.asarray(row, "float64")
        except (TypeError, ValueError):
            raise ValueError(
                f"The label at position {position} is {row!r}, which is not a number; pass one "
                "label for each text, or set multi_label=True for lists of names."
            ) from None
    raise ValueError(
        "The labels have rows of different lengths; pass one number per class in every row."
    )

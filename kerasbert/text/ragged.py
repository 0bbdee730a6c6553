"""`Ragged`, NumPy rows of different lengths.

Shapes: N rows, V values of all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any


def ranges(starts, lengths):
    """Return a row of consecutive numbers for each start and length.

    Returns:
        `(values, row_splits)`, int64.

    >>> [x.tolist() for x in ranges(np.array([5, 2]), [1, 3])]
    [[5, 2, 3, 4], [0, 1, 4]]
    """
    splits = np.append(0, np.cumsum(lengths, dtype="int64"))
    return np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths), splits


class Ragged:
    """NumPy rows of different lengths, with some methods of `tf.RaggedTensor`.

    Args:
        values: array (V, ...), or a `Ragged` of the inner rows.
        row_splits: ints (N + 1,).

    >>> rows = Ragged(np.array([5, 6, 7]), [0, 1, 1, 3])
    >>> rows.to_list(), rows[1:].to_list(), rows[:, 1:].to_list()
    ([[5], [], [6, 7]], [[], [6, 7]], [[], [], [7]])
    """

    def __init__(self, values: Any, row_splits: Any) -> None:
        self.values = values
        self.row_splits = np.asarray(row_splits, "int64")

    @classmethod
    def from_row_lengths(cls, values: Any, row_lengths: Any) -> Ragged:
        return cls(values, np.append(0, np.cumsum(row_lengths, dtype="int64")))

    @classmethod
    def from_lists(cls, rows: Any, dtype: Any = "int32") -> Ragged:
        """Make a `Ragged` from a list of lists of numbers."""
        values = [np.asarray(row, dtype) for row in rows]
        flat = np.concatenate(values) if values else np.zeros(0, dtype)
        return cls.from_row_lengths(flat, [len(row) for row in rows])

    @classmethod
    def from_tensor(cls, x: Any) -> Ragged:
        x = np.asarray(x)
        return cls.from_row_lengths(x.reshape(-1, *x.shape[2:]), np.full(len(x), x.shape[1]))

    @property
    def flat_values(self) -> np.ndarray:
        return self.values.flat_values if isinstance(self.values, Ragged) else self.values

    @property
    def dtype(self) -> np.dtype:
        return self.flat_values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (len(self), None, *self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def nrows(self) -> int:
        return len(self)

    def row_lengths(self) -> np.ndarray:
        return np.diff(self.row_splits)

    def row_starts(self) -> np.ndarray:
        return self.row_splits[:-1]

    def row_limits(self) -> np.ndarray:
        return self.row_splits[1:]

    def value_rowids(self) -> np.ndarray:
        return np.repeat(np.arange(len(self)), self.row_lengths())

    def with_values(self, values: Any) -> Ragged:
        return Ragged(values, self.row_splits)

    def with_flat_values(self, values: Any) -> Ragged:
        if isinstance(self.values, Ragged):
            values = self.values.with_flat_values(values)
        return self.with_values(values)

    def with_row_splits_dtype(self, dtype: Any) -> Ragged:
        return self

    def merge_dims(self, outer: int, inner: int) -> Ragged:
        """Join the inner rows of each row; `outer` and `inner` must be 1 and 2."""
        return Ragged(self.values.values, self.values.row_splits[self.row_splits])

    def take(self, rows: Any) -> Ragged:
        """Return the rows at these indices."""
        rows = np.asarray(rows)
        index, splits = ranges(self.row_starts()[rows], self.row_lengths()[rows])
        values = self.values
        return Ragged(values.take(index) if isinstance(values, Ragged) else values[index], splits)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            rows, places = key
            if rows != slice(None) or places.step:
                raise IndexError(f"{key} selects neither rows nor the same part of all rows.")
            starts, lengths = self.row_starts(), self.row_lengths()
            first, last = (
                default if place is None else np.where(place < 0, lengths + place, place)
                for place, default in ((places.start, 0), (places.stop, lengths))
            )
            last = np.clip(last, 0, lengths)
            first = np.clip(first, 0, last)
            index, splits = ranges(starts + first, last - first)
            return Ragged(self.values[index], splits)
        if isinstance(key, slice):
            return self.take(np.arange(len(self))[key])
        key = range(len(self))[key]  # Negative indices.
        return self.values[self.row_splits[key] : self.row_splits[key + 1]]

    def __iter__(self) -> Any:
        return (self[row] for row in range(len(self)))

    def __mod__(self, number: int) -> Ragged:
        return self.with_flat_values(self.flat_values % number)

    def to_list(self) -> list[Any]:
        values = self.values
        values = values.to_list() if isinstance(values, Ragged) else values.tolist()
        splits = self.row_splits.tolist()
        return [values[a:b] for a, b in zip(splits[:-1], splits[1:])]

    def to_tensor(self, default_value: Any = 0, shape: Any = None) -> np.ndarray:
        """Pad the rows to the longest row or to `shape`."""
        values = self.values
        if isinstance(values, Ragged):
            values = values.to_tensor(default_value, None if shape is None else shape[1:])
        lengths = self.row_lengths()
        width = int(lengths.max(initial=0))
        if shape is not None and shape[1] not in (None, -1):
            width = int(shape[1])
        padded = np.full((len(self), width, *values.shape[1:]), default_value, values.dtype)
        place = np.arange(len(values)) - np.repeat(self.row_starts(), lengths)
        row = np.repeat(np.arange(len(self)), lengths)
        kept = place < width
        padded[row[kept], place[kept]] = values[kept]
        return padded

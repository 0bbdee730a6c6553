"""Metadata of texts: dicts of strings, numbers, bools and lists.

N: number of rows.
"""

import json
import numbers
import reprlib

import numpy as np

from kerasbert.base.strict_json import to_json
from kerasbert.search.columns import AGAIN, TextColumn
from kerasbert.search.values import is_number, listed_rows

_MOST = 2**63  # Whole numbers fit into 64 bits.


def check_metadata(metadata, count):
    """Return the metadata of `count` texts as a list of dicts of plain Python values.

    Keys whose value is `None` are left out. A table has a column for each key.
    """
    if metadata is None:
        return [{}] * count
    metadata = listed_rows(metadata, "metadata", " of dicts")
    if len(metadata) != count:
        raise ValueError(
            f"There are {len(metadata)} dicts of metadata for {count} texts; pass one per text."
        )
    return [checked(one, f"metadata[{i}]") for i, one in enumerate(metadata)]


def merged(metadata, changes):
    """Merge changes into metadata, lists of N dicts; `None` removes a key.

    >>> merged([{"year": 2020, "lang": "ko"}], [{"year": 2021, "lang": None}])
    [{'year': 2021}]
    """
    changes, found = listed_rows(changes, "metadata", " of dicts"), []
    for fields, change in zip(metadata, check_metadata(changes, len(metadata))):
        found.append({**fields, **change})
    for fields, change in zip(found, changes):
        for key in [key for key, value in (change or {}).items() if value is None]:
            fields.pop(key, None)
    return found


def checked(fields, where):
    """Return the metadata of a text as a dict of plain Python values, or raise a `ValueError`."""
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ValueError(f"{where} must be a dict, got {fields!r:.50}.")
    found = {}
    for key, value in fields.items():
        check_key(key, where)
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, (list, tuple)):
            found[key] = [check_value(one, f"{where}[{key!r}]") for one in value]
        elif value is not None:
            found[key] = check_value(value, f"{where}[{key!r}]")
    return found


def check_key(key, where):
    if not isinstance(key, str) or not key or key.startswith("$"):
        raise ValueError(
            f"{where} has the key {key!r:.50}; keys must be strings that do not start with '$'."
        )


def check_value(value, where):
    """Return a string, bool or number as a plain Python value, or raise a `ValueError`."""
    if isinstance(value, (str, bool, np.bool_)):
        return str(value) if isinstance(value, str) else bool(value)
    if isinstance(value, numbers.Integral) and -_MOST <= value < _MOST:
        return int(value)
    if is_number(value) and not isinstance(value, numbers.Integral):
        return float(value)
    hint = "finite numbers (of 64 bits), bools, or lists of these"
    if hasattr(value, "isoformat"):
        hint = f"dates as ISO strings, {value.isoformat()!r}"
    # Requests may be nested too deep for `repr`.
    raise ValueError(f"{where} is {reprlib.repr(value)}; use strings, {hint}.")


class MetadataColumn:
    """The metadata of N rows, stored as JSON.

    `codes` numbers the distinct values of a key, so that filters evaluate a condition once per
    value.
    """

    def __init__(self, column=None):
        self._column = column or TextColumn()
        self._changed = {}  # Rows whose metadata was replaced.
        self._codes = {}  # Key to (codes (N,), list of distinct values).

    def __len__(self):
        return len(self._column)

    def append(self, metadata):
        self._column.append([to_json(fields) for fields in metadata])

    def replace(self, rows, metadata):
        """Set the metadata of rows, which are in the column."""
        self._changed.update(zip(rows, map(to_json, metadata)))
        self._codes = {}

    def _text(self, row):
        return self._changed.get(row) or self._column[row]

    def take(self, rows):
        """Return the metadata of rows as a list of dicts."""
        return [self._read(row) for row in rows]

    def _read(self, row):
        try:
            return checked(json.loads(self._text(int(row))), "metadata")
        except (ValueError, RecursionError):
            raise ValueError(f"The metadata of row {row} is damaged; {AGAIN}.") from None

    def codes(self, key, count):
        """Return the distinct values of a key in the first `count` rows, and an index per row.

        Returns:
            `(codes, values)`: int64 (count,), -1 for rows without the key, and a list.
        """
        known = self._codes  # Other threads may replace the dict.
        codes, values = known.get(key, (np.empty(0, "int64"), []))
        if len(codes) < count:
            places = {to_json(value): place for place, value in enumerate(values)}
            values, name = list(values), to_json(key)
            more = np.full(count - len(codes), -1)
            for i in range(min(count, len(self)) - len(codes)):
                row = len(codes) + i
                if name in self._text(row) and key in (fields := self._read(row)):
                    place = places.setdefault(to_json(fields[key]), len(values))
                    if place == len(values):
                        values.append(fields[key])
                    more[i] = place
            codes = np.append(codes, more)
            known[key] = codes, values
        return codes[:count], values

    # === Files ===

    def size(self, keep):
        return self._written().size(keep)

    def write(self, path, keep):
        self._written().write(path, keep)

    def _written(self):
        if not self._changed:
            return self._column
        column = TextColumn()
        column.append([self._text(row) for row in range(len(self._column))])
        return column

"""The rows of an index: texts, ids and metadata.

N: number of rows.
"""

import os
import threading

import numpy as np

from kerasbert.base.errors import is_whole
from kerasbert.search.columns import AGAIN, ArrayColumn, TextColumn, read_array
from kerasbert.search.filters import matches
from kerasbert.search.metadata import MetadataColumn
from kerasbert.search.values import is_id, listed


class Rows:
    """Texts with ids. Removed texts keep their rows, so that row numbers stay valid.

    Threads may read while another one changes rows. They see only the rows of `alive`, which is
    replaced last.
    """

    def __init__(self):
        self.texts = TextColumn()
        self.ids = None  # A column, once the type of the ids is known.
        self.metadata = None  # A column, once a text has metadata.
        self.alive = np.empty(0, bool)  # Rows that were not removed.
        self.empty = np.empty(0, bool)  # Rows without a known token.
        self._places = None
        self._lock = threading.Lock()  # Held while `places` is built.

    def __len__(self):
        return int(self.alive.sum())

    @property
    def have_string_ids(self):
        return isinstance(self.ids, TextColumn)

    def findable(self):
        """Return which rows are searchable, a new array, bool (N,)."""
        alive = self.alive
        return alive & ~self.empty[: len(alive)]

    def ids_of(self, rows):
        """Return the ids of rows as a list."""
        if self.ids is None:
            return []
        found = self.ids.take(np.asarray(rows, "int64"))
        return found if isinstance(found, list) else found.tolist()

    @property
    def places(self):
        """A dict of id to row, built when needed."""
        with self._lock:
            if self._places is None:
                rows = np.flatnonzero(self.alive)
                self._places = dict(zip(self.ids_of(rows), rows.tolist()))
        return self._places

    def __contains__(self, id):
        return is_id(id) and id in self.places

    def of_ids(self, ids):
        """Return the rows of ids as a list, or raise a `ValueError` if an id is unknown."""
        places = self.places  # Looked up once, because threads may remove texts.
        rows = [places.get(id) if is_id(id) else None for id in ids]
        if None in rows:
            id = ids[rows.index(None)]
            raise ValueError(f"The index has no text with the id {id!r:.50}.")
        return rows

    def without(self, ids, mask):
        """Set a mask (N,) of rows to False at the rows of ids; unknown ids are ignored."""
        ids = [ids] if is_id(ids) else listed(ids, "exclude", " of ids")
        for id in ids:
            if not is_id(id):
                raise ValueError(
                    f"exclude must have ids, strings or whole numbers, got {id!r:.50}."
                )
            # A row beyond the mask is new.
            row = self.places.get(id, len(mask))
            if row < len(mask):
                mask[row] = False

    def matching(self, where, mask):
        """Restrict a mask (N,) to the rows that satisfy a condition from `check_where`."""
        column = self.metadata or MetadataColumn()
        return mask if where is None else mask & matches(where, column, len(mask))

    def having(self, key):
        """Return a dict of each string of a metadata key to its rows."""
        found = {}
        if self.metadata is not None:
            codes, values = self.metadata.codes(key, len(self.alive))
            for row in np.flatnonzero(self.alive & (codes >= 0)).tolist():
                if isinstance(values[codes[row]], str):
                    found.setdefault(values[codes[row]], []).append(row)
        return found

    def records(self, rows):
        """Return rows as a list of dicts of `id`, `text` and, if any row has some, `metadata`."""
        columns = {"id": self.ids_of(rows), "text": self.texts.take(rows)}
        if self.metadata is not None:
            columns["metadata"] = self.metadata.take(rows)
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    def new_ids(self, ids, count, replace=False):
        """Return the ids of `count` texts as a list, or raise a `ValueError`.

        Without `replace`, ids that are in the index are an error.
        """
        if ids is None and not replace:
            if self.have_string_ids and len(self.ids):
                raise ValueError(
                    "The ids of this index are strings; pass `ids` for new texts, too."
                )
            start = self._next_id()
            ids = list(range(start, start + count))
        ids = listed(ids, "ids")
        if len(ids) != count:
            raise ValueError(f"There are {len(ids)} ids for {count} texts; pass one id per text.")
        are_strings = all(isinstance(id, str) for id in ids)
        if not are_strings and not all(is_whole(id) and -(2**63) <= id < 2**63 for id in ids):
            raise ValueError("ids must be all strings, or all whole numbers of 64 bits.")
        if not are_strings:
            ids = [int(id) for id in ids]
        seen = set()
        for id in ids:
            if id in seen:
                raise ValueError(f"The id {id!r:.50} is given twice.")
            if id in self.places and not replace:
                raise ValueError(
                    f"The id {id!r:.50} is already in the index; remove it first, or use `upsert`."
                )
            seen.add(id)
        if count and self.ids is not None and len(self.ids) and self.have_string_ids != are_strings:
            mine = "strings" if self.have_string_ids else "whole numbers"
            raise ValueError(f"The ids of this index are {mine}, but {ids[0]!r} is not.")
        return ids

    def _next_id(self):
        if self.ids is None or not len(self.ids):
            return 0
        return max(int(part.max()) for _, part in self.ids.parts() if len(part)) + 1

    def metadata_of(self, rows):
        return [{}] * len(rows) if self.metadata is None else self.metadata.take(rows)

    def set_metadata(self, rows, metadata):
        """Replace the metadata of rows by a list of dicts."""
        if self.metadata is None:
            if not any(metadata):
                return
            column = MetadataColumn()
            column.append([{}] * len(self.texts))
            self.metadata = column
        self.metadata.replace(rows, metadata)

    def append(self, texts, ids, empty, metadata, replaced=()):
        """Add texts with ids of `new_ids`, and replace those with known ids.

        Args:
            texts: list of N strings.
            ids: list of N ids.
            empty: bool (N,). Which texts have no known token.
            metadata: list of N dicts.
            replaced: list of ids that are removed at the same time.
        """
        if self.ids is None or not len(self.ids):
            are_strings = isinstance(ids[0], str)
            self.ids = TextColumn() if are_strings else ArrayColumn(np.empty(0, "int64"))
        places, first = self.places, len(self.texts)
        dead = [places[id] for id in ids if id in places]
        dead += [places.pop(id) for id in replaced]
        self.texts.append(texts)
        self.ids.append(ids)
        if self.metadata is not None:
            self.metadata.append(metadata)
        elif any(metadata):
            column = MetadataColumn()
            column.append([{}] * first + metadata)
            self.metadata = column
        self.empty = np.append(self.empty, empty)
        alive = np.append(self.alive, np.ones(len(texts), bool))
        alive[dead] = False
        self.alive = alive
        places.update(zip(ids, range(first, first + len(ids))))

    def remove(self, ids):
        """Remove the texts with these ids, or none if an id is unknown."""
        rows = self.of_ids(ids)
        for id in ids:
            self.places.pop(id, None)
        alive = self.alive.copy()
        alive[rows] = False
        self.alive = alive

    # === Files ===

    def columns(self):
        """Return a dict of file name to column."""
        columns = {"texts.bin": self.texts}
        if self.ids is not None:
            columns["ids.bin" if self.have_string_ids else "ids.npy"] = self.ids
        if self.metadata is not None:
            columns["metadata.bin"] = self.metadata
        return columns

    def write_masks(self, folder, keep):
        """Write which rows of a mask (N,) are removed, and which are empty.

        Returns:
            The number of empty rows.
        """
        np.save(os.path.join(folder, "removed.npy"), np.flatnonzero(~self.alive[keep]))
        empty = np.flatnonzero(self.empty[keep])
        if len(empty):
            np.save(os.path.join(folder, "empty.npy"), empty)
        return len(empty)

    @classmethod
    def read(cls, folder, manifest, mmap):
        """Read the rows from columns and masks."""
        rows, count = cls(), manifest["rows"]
        rows.texts = TextColumn.read(os.path.join(folder, "texts.bin"), count, mmap)
        if count and manifest["string_ids"]:
            rows.ids = TextColumn.read(os.path.join(folder, "ids.bin"), count, mmap)
        elif count:
            path = os.path.join(folder, "ids.npy")
            rows.ids = ArrayColumn(read_array(path, (count,), "int64", mmap))
        if manifest.get("metadata", False):
            path = os.path.join(folder, "metadata.bin")
            rows.metadata = MetadataColumn(TextColumn.read(path, count, mmap))
        rows.alive = ~_read_mask(folder, "removed.npy", count - manifest["count"], count)
        rows.empty = np.zeros(count, bool)
        if manifest.get("empty", 0):  # Earlier indexes lack this file.
            rows.empty = _read_mask(folder, "empty.npy", manifest["empty"], count)
        return rows


def _read_mask(folder, name, count, rows):
    """Read `count` row numbers from a file as a mask (rows,)."""
    path = os.path.join(folder, name)
    found = read_array(path, (count,), "int64")
    if count and not (0 <= found.min() and found.max() < rows):
        raise ValueError(f"'{path}' has row numbers outside the index; {AGAIN}.")
    mask = np.zeros(rows, bool)
    mask[found] = True
    return mask

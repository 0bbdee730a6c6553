"""Columns of an index: rows mapped from a file, followed by later rows in memory.

N: number of rows.
"""

import os

import numpy as np

from kerasbert.base.errors import reading
from kerasbert.base.paths import check_regular, describe_file

# Rows that are read, changed and written at a time.
BLOCK = 4096


class ArrayColumn:
    """An array that grows by rows; those of a file stay in the file.

    Args:
        base: array (N, ...), possibly a memory map; never written to.
    """

    def __init__(self, base):
        self.base = np.asarray(base)
        self._tail = np.empty((0, *self.base.shape[1:]), self.base.dtype)
        self._added = 0

    def __len__(self):
        return len(self.base) + self._added

    @property
    def row_bytes(self):
        return int(np.prod(self.base.shape[1:], dtype=int)) * self.base.dtype.itemsize

    def append(self, values):
        needed = self._added + len(values)
        if needed > len(self._tail):
            # The array grows by half, so that single additions rarely copy it.
            room = max(needed, len(self._tail) * 3 // 2) if len(self) else needed
            tail = np.empty((room, *self._tail.shape[1:]), self._tail.dtype)
            tail[: self._added] = self._tail[: self._added]
            self._tail = tail
        self._tail[self._added : needed] = values
        self._added = needed

    def parts(self):
        """Return `(index of its first row, array)` for base and added rows."""
        return [(0, self.base), (len(self.base), self._tail[: self._added])]

    def blocks(self, size=BLOCK):
        """Yield `(index of its first row, array)` for blocks of at most `size` rows, in order."""
        for first, part in self.parts():
            for start in range(0, len(part), size):
                yield first + start, part[start : start + size]

    def take(self, rows):
        """Return a new array of the rows at these indices (any shape)."""
        rows = np.asarray(rows)
        later = rows >= len(self.base)
        if not later.any():
            return self.base[rows]
        if later.all():
            return self._tail[rows - len(self.base)]
        values = np.empty((*rows.shape, *self.base.shape[1:]), self.base.dtype)
        values[~later] = self.base[rows[~later]]
        values[later] = self._tail[rows[later] - len(self.base)]
        return values

    def size(self, keep):
        """Return the number of bytes that `write` needs for the rows chosen by a mask (N,)."""
        return int(keep.sum()) * self.row_bytes + 4096

    def write(self, path, keep):
        """Write the rows chosen by a mask (N,) to a .npy file."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self.base.dtype),
            "fortran_order": False,
            "shape": (int(keep.sum()), *self.base.shape[1:]),
        }
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start, block in self.blocks():
                chosen = keep[start : start + len(block)]
                file.write(np.ascontiguousarray(block if chosen.all() else block[chosen]).data)


def read_array(path, shape, dtype, mmap=False):
    """Read a .npy file, or raise a `ValueError` if shape, dtype or size is not as expected."""
    check_regular(path)
    if not os.path.exists(path):
        raise ValueError(f"'{path}' is missing; {AGAIN}.")
    with reading(path, AGAIN), open(path, "rb") as file:
        # Header first, because a damaged one could request any amount of memory.
        version = np.lib.format.read_magic(file)
        header = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}[version]
        found_shape, in_columns, found_dtype = getattr(np.lib.format, header)(file)
        start = file.tell()
    if (found_shape, found_dtype, in_columns) != (tuple(shape), np.dtype(dtype), False):
        raise ValueError(
            f"'{path}' has {found_dtype} {found_shape}, but the index expects {np.dtype(dtype)} "
            f"{tuple(shape)}; {AGAIN}."
        )
    size = os.path.getsize(path)
    expected = start + int(np.prod(shape, dtype=object)) * found_dtype.itemsize
    if size != expected:
        raise ValueError(
            f"'{path}' is damaged: it has {size:,} bytes, expected {expected:,}; {AGAIN}."
        )
    # An empty file cannot be memory-mapped.
    return np.load(path, mmap_mode="r" if mmap and shape[0] else None, allow_pickle=False)


AGAIN = "copy the whole index again, or save it again"


def describe_files(folder):
    """Return the files of a folder as a dict of name to `{"bytes", "sha256"}`."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    return {name: describe_file(os.path.join(folder, name)) for name in names}


class TextColumn:
    """A growing list of strings: their bytes, and the offset where each ends.

    Args:
        data: uint8 (B,). The UTF-8 bytes of all strings.
        ends: int64 (N,). End offset of each string.
    """

    def __init__(self, data=(), ends=()):
        self._data = np.asarray(data, "uint8")
        self._ends = np.asarray(ends, "int64")
        self._later = []

    def __len__(self):
        return len(self._ends) + len(self._later)

    def append(self, texts):
        self._later.extend(texts)

    def __getitem__(self, row):
        if row >= len(self._ends):
            return self._later[row - len(self._ends)]
        start = self._ends[row - 1] if row else 0
        try:
            return _decoded(self._data[start : self._ends[row]].tobytes())
        except UnicodeDecodeError:
            raise ValueError(f"The text or id of row {row} is damaged; {AGAIN}.") from None

    def take(self, rows):
        return [self[row] for row in rows]

    def size(self, keep):
        lengths = np.diff(self._ends, prepend=0)[keep[: len(self._ends)]]
        later = zip(self._later, keep[len(self._ends) :])
        more = sum(len(_encoded(text)) for text, kept in later if kept)
        return int(lengths.sum()) + more + 8 * int(keep.sum()) + 4096

    def write(self, path, keep):
        """Write the strings chosen by a mask (N,) to `path`, and their ends to `path`.ends.npy."""
        ends, length = np.empty(int(keep.sum()), "int64"), 0
        with open(path, "wb") as file:
            for place, row in enumerate(np.flatnonzero(keep)):
                encoded = _encoded(self[row])
                file.write(encoded)
                length += len(encoded)
                ends[place] = length
        np.save(path + ".ends.npy", ends)

    @classmethod
    def read(cls, path, count, mmap=True):
        """Read the `count` strings that `write` wrote.

        Raises:
            ValueError: if either file is incomplete or damaged.
        """
        ends = read_array(path + ".ends.npy", (count,), "int64", mmap)
        check_regular(path)
        size = os.path.getsize(path) if os.path.exists(path) else -1
        expected = int(ends[-1]) if count else 0
        if (np.diff(ends, prepend=0) < 0).any():
            raise ValueError(f"'{path}.ends.npy' has offsets that are not sorted; {AGAIN}.")
        if size != expected:
            state = "is missing" if size < 0 else f"has {size:,} bytes, expected {expected:,}"
            raise ValueError(f"'{path}' {state}; {AGAIN}.")
        if not size:
            return cls((), ends)
        return cls(np.memmap(path, "uint8", "r") if mmap else np.fromfile(path, "uint8"), ends)


# Strict UTF-8 rejects lone surrogates of file names and web texts.
def _encoded(text):
    return text.encode("utf-8", "surrogatepass")


def _decoded(data):
    return data.decode("utf-8", "surrogatepass")

"""Columns of an index: rows that are mapped from a file, and rows that came later, in memory.

N rows.
"""

import os

import numpy as np

from kerasbert._errors import reading
from kerasbert.files import check_regular, describe_file

# Rows that are read, changed and written at a time.
BLOCK = 4096


class ArrayColumn:
    """An array that grows by rows. What a file holds of it stays in the file.

    Args:
        base: array (N, ...), which may be a memory map; it is never written to.
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
            # By half more each time, so that adding texts one by one copies little.
            room = max(needed, len(self._tail) * 3 // 2) if len(self) else needed
            tail = np.empty((room, *self._tail.shape[1:]), self._tail.dtype)
            tail[: self._added] = self._tail[: self._added]
            self._tail = tail
        self._tail[self._added : needed] = values
        self._added = needed

    def parts(self):
        """`(number of the first row, array)` of what is in the file, and of what came later."""
        return [(0, self.base), (len(self.base), self._tail[: self._added])]

    def blocks(self, size=BLOCK):
        """`(number of the first row, array)`, in order."""
        for first, part in self.parts():
            for start in range(0, len(part), size):
                yield first + start, part[start : start + size]

    def take(self, rows):
        """The rows of these numbers, of any shape: a new array."""
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
        """How many bytes `write` writes of the rows that a mask (N,) keeps."""
        return int(keep.sum()) * self.row_bytes + 4096

    def write(self, path, keep):
        """Write the rows that a mask (N,) keeps as a .npy file."""
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
    """An array of a .npy file; raises a `ValueError` in a sentence where it is not as expected."""
    check_regular(path)
    if not os.path.exists(path):
        raise ValueError(f"'{path}' is missing; {AGAIN}.")
    with reading(path, AGAIN), open(path, "rb") as file:
        # Read only the header: its shape may ask for any amount of memory.
        version = np.lib.format.read_magic(file)
        header = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}[version]
        found_shape, in_columns, found_dtype = getattr(np.lib.format, header)(file)
        start = file.tell()
    if (found_shape, found_dtype, in_columns) != (tuple(shape), np.dtype(dtype), False):
        raise ValueError(
            f"'{path}' holds {found_dtype} {found_shape} where the index says {np.dtype(dtype)} "
            f"{tuple(shape)}; {AGAIN}."
        )
    size = os.path.getsize(path)
    expected = start + int(np.prod(shape, dtype=object)) * found_dtype.itemsize
    if size != expected:
        raise ValueError(
            f"'{path}' is damaged: it has {size:,} bytes, expected {expected:,}; {AGAIN}."
        )
    # An empty array cannot be mapped.
    return np.load(path, mmap_mode="r" if mmap and shape[0] else None, allow_pickle=False)


AGAIN = "copy the whole index again, or save it again"


def describe_files(folder):
    """Sizes and hashes of the files in a folder: a dict of name to `{"bytes", "sha256"}`."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    return {name: describe_file(os.path.join(folder, name)) for name in names}


class TextColumn:
    """Strings that grow by rows: in a file one after the other, with the places where they end.

    Args:
        data: uint8 (B,). The UTF-8 bytes of all strings.
        ends: int64 (N,). Where each ends.
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
        """Write the rows that a mask (N,) keeps, as `path` and beside it `path` + ".ends.npy"."""
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
        """The column of `count` strings of a file, see `write`.

        Raises:
            ValueError: in a sentence, unless both files are whole.
        """
        ends = read_array(path + ".ends.npy", (count,), "int64", mmap)
        check_regular(path)
        size = os.path.getsize(path) if os.path.exists(path) else -1
        expected = int(ends[-1]) if count else 0
        if (np.diff(ends, prepend=0) < 0).any():
            raise ValueError(f"'{path}.ends.npy' has places in no order; {AGAIN}.")
        if size != expected:
            state = "is missing" if size < 0 else f"has {size:,} bytes, expected {expected:,}"
            raise ValueError(f"'{path}' {state}; {AGAIN}.")
        if not size:
            return cls((), ends)
        return cls(np.memmap(path, "uint8", "r") if mmap else np.fromfile(path, "uint8"), ends)


# Names of files and texts of the web may hold half a character, which strict UTF-8 refuses.
def _encoded(text):
    return text.encode("utf-8", "surrogatepass")


def _decoded(data):
    return data.decode("utf-8", "surrogatepass")

"""Vectors in four precisions, and exact search over them.

N: number of vectors, Q: number of queries, D: width of a vector, K: candidates per query.
"""

import numpy as np

from kerasbert.search.columns import ArrayColumn, read_array

DTYPES = ("float32", "float16", "int8", "binary")
_WORD = 64  # Bits per word of a binary vector.
_QUERIES = 256  # Queries compared together, to limit memory.


def unit_vectors(vectors):
    """Scale vectors (N, D) to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo("float32").tiny)


class Vectors:
    """N vectors of D numbers in one precision, possibly memory-mapped.

    - "float32", "float16": unchanged, 4 or 2 bytes per number.
    - "int8": whole numbers from -127 to 127 and one scale per vector; 1 byte per number.
    - "binary": one bit per number, set if above 0. With `keep_int8`, the best few are rescored with
      int8 vectors.

    Args:
        width: int. D.
        dtype: string. One of these precisions.
        keep_int8: whether "binary" keeps the int8 vectors.
        columns: dict of name to column, read from files; `None` starts without vectors.

    Source: Shakir, Aarsen and Lee 2024, "Binary and scalar embedding quantization", for the
    two-step search of "binary" and the int8 form on disk.
    """

    def __init__(self, width, dtype, keep_int8=False, columns=None):
        self.width = width
        self.dtype = dtype
        self.keep_int8 = dtype == "binary" and keep_int8
        if columns is None:
            columns = {
                name: ArrayColumn(np.empty((0, *shape), kind))
                for name, (shape, kind) in _layout(width, dtype, self.keep_int8).items()
            }
        self.columns = columns

    @classmethod
    def read(cls, folder, count, width, dtype, keep_int8, mmap):
        """Read vectors from a folder that has one file per column."""
        columns = {
            name: ArrayColumn(read_array(f"{folder}/{name}.npy", (count, *shape), kind, mmap))
            for name, (shape, kind) in _layout(width, dtype, keep_int8).items()
        }
        return cls(width, dtype, keep_int8, columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def append(self, vectors):
        """Add vectors, float32 (N, D)."""
        if self.dtype == "binary":
            self.columns["bits"].append(to_bits(vectors))
        if self.dtype == "int8" or self.keep_int8:
            values, scales = _to_int8(vectors)
            # Scales first: a search in another thread needs each vector's scale.
            self.columns["scales"].append(scales)
            self.columns["vectors"].append(values)
        elif self.dtype != "binary":
            self.columns["vectors"].append(vectors)

    def take(self, rows):
        """Return the vectors of rows, of any shape, in the highest stored precision."""
        if "vectors" not in self.columns:
            bits = self.columns["bits"].take(rows).view("uint8")
            signs = np.unpackbits(bits, axis=-1, count=self.width).astype("float32")
            return (2 * signs - 1) / np.float32(np.sqrt(self.width))
        vectors = self.columns["vectors"].take(rows).astype("float32")
        if "scales" in self.columns:
            vectors *= self.columns["scales"].take(rows)[..., None]
        return vectors

    def scores(self, queries, rows):
        """Return the dot products of queries (Q, D) with rows (Q, K): float32 (Q, K).

        Rows below 0 have the score -inf. Equal vectors have equal products at any position.
        """
        scores = np.full(rows.shape, -np.inf, "float32")
        for query, some, found in zip(queries, rows, scores):
            there = some >= 0
            found[there] = np.einsum("kd,d->k", self.take(some[there]), query)
        return scores

    def nearest(self, queries, count, alive):
        """Find the rows with the largest dot products with the queries.

        Args:
            queries: float32 (Q, D).
            count: int. K. Binary vectors are ranked by the fewest differing bits.
            alive: bool (N,). Rows to consider; later ones are ignored.

        Returns:
            int64 (Q, K), unordered, padded with -1. Of equal products, the first rows are returned.
        """
        parts = [queries[i : i + _QUERIES] for i in range(0, len(queries), _QUERIES)]
        return np.concatenate([self._nearest(part, count, alive) for part in parts])

    def _nearest(self, queries, count, alive):
        best, all_alive = _Best(len(queries), count), alive.all()
        compare = self._bit_scores if self.dtype == "binary" else self._products
        for start, scores in compare(queries):
            is_alive = alive[start : start + scores.shape[1]]
            scores = scores[:, : len(is_alive)]  # Longer if another thread has added rows.
            if not all_alive:
                scores[:, ~is_alive] = -np.inf
            best.add(start, scores)
        return best.rows()

    def _products(self, queries):
        """Yield `(first row, dot products (Q, rows of the block))` for each block."""
        column, scales = self.columns["vectors"], self.columns.get("scales")
        # A block's float32 copy should fit into the CPU cache: with 4 MB instead of 1 MB, one query
        # against 100,000 int8 vectors of width 384 takes 60 ms instead of 7 ms.
        is_float32 = column.base.dtype == np.float32
        size = max(128, (1 << (20 if is_float32 else 18)) // self.width)
        buffer = np.empty((0 if is_float32 else size, self.width), "float32")
        for start, block in column.blocks(size):
            if not is_float32:
                block = _to_float32(block, buffer[: len(block)])
            scores = queries @ block.T
            if scales is not None:
                scores *= scales.take(np.arange(start, start + len(block)))
            yield start, scores

    def _bit_scores(self, queries):
        """Yield like `_products`, with the negative number of differing bits as score."""
        queries = to_bits(queries)  # (Q, words)
        for start, block in self.columns["bits"].blocks(16384):
            words = np.ascontiguousarray(block.T)  # (words, rows)
            scores = np.empty((len(queries), len(block)), "float32")
            for query, row in zip(queries, scores):
                differing = np.zeros(len(block), "uint16")
                for word, bits in zip(words, query):
                    differing += _count_bits(word ^ bits)
                np.negative(differing, out=row, dtype="float32")
            yield start, scores


class _Best:
    """The best rows per query, chosen from scores that are added block by block."""

    def __init__(self, queries, count):
        self._count = count
        self._bar = np.full(queries, -np.inf, "float32")  # Score that a row must exceed.
        self._found = [np.empty(0, "int64")] * 2 + [np.empty(0, "float32")]
        self._waiting, self._size = [], 0

    def add(self, start, scores):
        """Add scores (Q, rows) of the next rows, from `start` on."""
        width = scores.shape[1]
        above = scores > self._bar[:, None]
        if np.count_nonzero(above) > 4 * len(scores) * self._count:
            # Only in the first blocks, when the bar is low: keep the best of the block.
            place = width - min(self._count, width)
            above &= scores >= np.partition(scores, place, axis=1)[:, place, None]
        queries, places = np.nonzero(above)
        self._waiting.append((queries, places + start, scores[queries, places]))
        self._size += len(queries)
        if self._size >= len(scores) * self._count:
            self._merge()

    def _merge(self):
        found = zip(self._found, *self._waiting)
        queries, rows, scores = (np.concatenate(parts) for parts in found)
        order = np.lexsort((rows, -scores, queries))
        queries, rows, scores = queries[order], rows[order], scores[order]
        rank = np.arange(len(queries)) - np.searchsorted(queries, queries)
        kept = rank < self._count
        last = rank == self._count - 1
        self._bar[queries[last]] = scores[last]
        self._found = [queries[kept], rows[kept], scores[kept]]
        self._waiting, self._size = [], 0

    def rows(self):
        self._merge()
        queries, rows, _ = self._found
        found = np.full((len(self._bar), self._count), -1, "int64")
        found[queries, np.arange(len(queries)) - np.searchsorted(queries, queries)] = rows
        return found


def to_bits(vectors):
    """Pack vectors (N, D) into bits, set for numbers above 0: uint64 (N, ceil(D / 64))."""
    bits = np.packbits(np.asarray(vectors) > 0, axis=-1)
    padding = -bits.shape[-1] % (_WORD // 8)
    return np.ascontiguousarray(np.pad(bits, ((0, 0), (0, padding)))).view("uint64")


def _to_float32(block, buffer):
    """Write float16 or int8 (N, D) into a float32 buffer (N, D)."""
    if block.dtype == np.int8:
        np.copyto(buffer, block)
        return buffer
    # NumPy's cast takes 6 ns per number; shifting the bits to float32's exponent and mantissa is
    # faster. The result is too small by 2 ** 112, as the exponent bias is 127 instead of 15.
    bits = buffer.view("int32")
    np.copyto(bits, block.view("int16"))  # The sign bit fills the left half.
    np.left_shift(bits, 13, out=bits)
    # Only the first copy of the sign bit is kept.
    np.bitwise_and(bits, np.int32(~0x70000000), out=bits)
    return np.multiply(buffer, np.float32(2.0**112), out=buffer)


def _to_int8(vectors):
    """Quantize vectors (N, D) to int8 (N, D) and scales (N,)."""
    scales = np.abs(vectors).max(axis=-1) / np.float32(127)
    values = vectors / np.maximum(scales, np.finfo("float32").tiny)[:, None]
    return np.rint(values).astype("int8"), scales


def _layout(width, dtype, keep_int8):
    """Return the row shape and the dtype of each column."""
    columns = {}
    if dtype == "binary":
        columns["bits"] = ((-(-width // _WORD),), "uint64")
    if dtype == "int8" or keep_int8:
        columns |= {"vectors": ((width,), "int8"), "scales": ((), "float32")}
    elif dtype != "binary":
        columns["vectors"] = ((width,), dtype)
    return columns


def _count_by_table(words):
    """Count the 1 bits of each word, uint64 (N,)."""
    table = np.unpackbits(np.arange(1 << 16, dtype="uint16").view("uint8")).reshape(-1, 16)
    counts = table.sum(axis=1, dtype="uint8")[words.view("uint16")]
    return counts.reshape(-1, 4).sum(axis=1, dtype="uint8")


_count_bits = getattr(np, "bitwise_count", _count_by_table)  # New in NumPy 2.0.

"""Approximate nearest neighbor search with the extras `faiss` and `usearch`.

Engines choose candidates, which the index rescores with its own vectors. They have vectors in
memory even if the index memory-maps its own.

N: number of vectors, Q: number of queries, D: width of a vector, K: candidates per query.
"""

import re

import numpy as np

from kerasbert.base.errors import check_choice, check_whole, did_you_mean, first_line, need_packages
from kerasbert.search.vectors import to_bits

_BLOCK = 65536  # Vectors passed to an engine at once.
# Both engines build an HNSW graph by default (Malkov and Yashunin 2018).
_FAISS = {
    "float32": "HNSW32,Flat",
    "float16": "HNSW32,SQfp16",
    "int8": "HNSW32,SQ8",
    "binary": "BHNSW32",
}
# usearch's int8 takes only numbers from -1 to 1, so it needs the option `dtype="i8"`.
_USEARCH = {"float32": "f32", "float16": "f16", "int8": "f16", "binary": "b1"}
# A saved index may be untrusted, so no option may name a file, or request far more memory than the
# vectors need.
_MOST = {"connectivity": 1024, "expansion_add": 1 << 20, "expansion_search": 1 << 20}
_CHOICES = {
    "dtype": ("f64", "f32", "bf16", "f16", "i8", "b1"),
    "metric": ("ip", "cos", "l2sq", "hamming", "tanimoto", "sorensen"),
}
_FACTORY = re.compile(r"[A-Za-z0-9_,()+]{1,200}")
_CELLS = 1 << 20  # Largest number in a factory string, such as the number of cells of IVF1048576.
_LINKS = 1024  # Largest number of links per node, such as 32 in HNSW32.
REMAKE = "delete this file; it is rebuilt from the vectors in the same folder"


def _check_most(name, value, most):
    check_whole(name, value)
    if value > most:
        raise ValueError(f"{name}={value} must be at most {most:,}.")


def _check_factory(factory):
    numbers = [int(number[:9]) for number in re.findall(r"\d+", str(factory))]
    links = [int(number[:9]) for number in re.findall(r"(?:HNSW|NSG)(\d+)", str(factory))]
    if not isinstance(factory, str) or not _FACTORY.fullmatch(factory):
        raise ValueError(f"factory={factory!r:.90} must be a string such as 'IVF1024,Flat'.")
    if max(numbers, default=0) > _CELLS or max(links, default=0) > _LINKS:
        raise ValueError(
            f"factory={factory!r:.90} must have no number above {_CELLS:,}, and no graph with more "
            f"than {_LINKS:,} links per node."
        )


class FaissEngine:
    """A faiss index.

    Args:
        width, dtype: width and dtype of the vectors.
        factory: string for `faiss.index_factory`, such as "IVF1024,Flat"; if the vectors are
            binary, for `faiss.index_binary_factory`. "SQfp16" and "SQ8" compare single queries with
            all vectors several times as fast as engine="exact" with float16 or int8.
        search: int. Search effort: `efSearch` of graphs, `nprobe` of cells; defaults to faiss' own
            value.
    """

    name = "faiss"
    # Vectors that cells are trained on.
    _train = 200_000

    def __init__(self, width, dtype, /, factory=None, search=None):
        need_packages("engine='faiss'", "faiss", "faiss")
        import faiss

        self._binary, self._search = dtype == "binary", search
        factory = _FAISS[dtype] if factory is None else factory
        _check_factory(factory)
        self._factory = factory
        if search is not None:
            _check_most("search", search, 1 << 20)
        try:
            if self._binary:
                self._index = faiss.index_binary_factory(64 * -(-width // 64), factory)
            else:
                self._index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise ValueError(f"factory={factory!r}: faiss says {first_line(error)}.") from None

    def __len__(self):
        return self._index.ntotal

    def add(self, vectors, start=0):
        """Add the rows of `Vectors` from `start` on."""
        if not self._index.is_trained:
            few = np.linspace(0, len(vectors) - 1, min(self._train, len(vectors))).astype(int)
            try:
                self._index.train(_form(vectors, few, self._binary))
            except RuntimeError as error:  # For example, fewer vectors than cells.
                raise ValueError(
                    f"factory={self._factory!r}: faiss says {first_line(error)}"
                ) from None
        for rows in _blocks(start, len(vectors)):
            self._index.add(_form(vectors, rows, self._binary))

    def nearest(self, queries, count):
        """Return the rows of candidates, int64 (Q, K), padded with -1."""
        if self._binary:
            queries = to_bits(queries).view("uint8")
        self._look_far(count)
        return self._index.search(np.ascontiguousarray(queries), count)[1]

    def _look_far(self, count):
        import faiss

        index = self._index if self._binary else faiss.downcast_index(self._index)
        if hasattr(index, "hnsw"):
            # A graph search must visit at least `count` nodes.
            index.hnsw.efSearch = max(self._search or 64, count)
        elif self._search and hasattr(index, "nprobe"):
            index.nprobe = self._search

    def write(self, path):
        import faiss

        (faiss.write_index_binary if self._binary else faiss.write_index)(self._index, path)

    def read(self, path):
        import faiss

        read = faiss.read_index_binary if self._binary else faiss.read_index
        try:
            index = read(path)
        except (RuntimeError, MemoryError) as error:
            raise ValueError(_damaged(path, first_line(error))) from None
        if index.d != self._index.d:
            raise ValueError(_damaged(path, f"its vectors have {index.d} dimensions"))
        self._index = index


class UsearchEngine:
    """A usearch index.

    Args:
        width, dtype: width and dtype of the vectors.
        **options: options of `usearch.index.Index`: `connectivity`, `expansion_add`,
            `expansion_search`, `dtype` and `metric`.
    """

    name = "usearch"

    def __init__(self, width, dtype, /, **options):
        need_packages("engine='usearch'", "usearch", "usearch")
        from usearch.index import Index

        for name, value in options.items():
            if name in _MOST:
                _check_most(name, value, _MOST[name])
            elif name in _CHOICES:
                check_choice(name, value, _CHOICES[name])
            else:
                known = (*_MOST, *_CHOICES)
                end = f"; use one of {', '.join(known)}."
                raise ValueError(
                    f"engine_options: usearch has no option {name!r} here"
                    + did_you_mean(name, known, end)
                )
        self._binary = dtype == "binary"
        ndim, metric = (64 * -(-width // 64), "hamming") if self._binary else (width, "ip")
        try:
            settings = {"metric": metric, "dtype": _USEARCH[dtype], **options}
            self._index = Index(ndim=ndim, **settings)
        except TypeError as error:
            raise ValueError(f"engine_options: usearch says {first_line(error)}.") from None
        self._expansion = self._index.expansion_search

    def __len__(self):
        return len(self._index)

    def add(self, vectors, start=0):
        """Add the rows of `Vectors` from `start` on."""
        for rows in _blocks(start, len(vectors)):
            self._index.add(rows.astype("uint64"), _form(vectors, rows, self._binary))

    def nearest(self, queries, count):
        """Return the rows of candidates; see `FaissEngine`."""
        if self._binary:
            queries = to_bits(queries).view("uint8")
        # `expansion_search` limits the visited nodes, at least `count`.
        self._index.expansion_search = max(self._expansion, count)
        matches = self._index.search(np.atleast_2d(queries), count)
        keys = np.atleast_2d(matches.keys).astype("int64")
        rows = np.full((len(queries), count), -1, "int64")
        rows[:, : keys.shape[1]] = keys
        # For several queries, usearch returns `count` keys each; those beyond the number of matches
        # in `counts` are arbitrary.
        counts = np.reshape(getattr(matches, "counts", [keys.shape[1]]), (-1, 1))
        rows[np.arange(count) >= counts] = -1
        return rows

    def write(self, path):
        self._index.save(path)

    def read(self, path):
        made = self._index.ndim, self._index.dtype, self._index.metric_kind
        try:
            # `load` does not check the sizes in the file; `metadata` does.
            self._index.metadata(path)
            self._index.load(path)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise ValueError(_damaged(path, first_line(error))) from None
        if (self._index.ndim, self._index.dtype, self._index.metric_kind) != made:
            raise ValueError(_damaged(path, "it was made with other settings"))


ENGINES = {engine.name: engine for engine in (FaissEngine, UsearchEngine)}


def _form(vectors, rows, binary):
    """Return rows of `Vectors` for an engine: float32 (N, D), or uint8 of packed bits."""
    return vectors.columns["bits"].take(rows).view("uint8") if binary else vectors.take(rows)


def _blocks(start, stop):
    for first in range(start, stop, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, stop))


def _damaged(path, what):
    return f"'{path}' is damaged ({what}); {REMAKE}."

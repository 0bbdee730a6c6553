"""Approximate search by other packages: `faiss` and `usearch`, each an extra.

They only choose candidates: the index scores these again by its own vectors. Their numbers of
vectors are the index' rows. They are in memory, also where the index' own vectors are mapped.

N vectors, Q queries, D width of a vector, K candidates.
"""

import re

import numpy as np

from kerasbert._errors import check_choice, check_whole, did_you_mean, first_line, need_packages
from kerasbert.search.vectors import to_bits

_BLOCK = 65536  # vectors that are handed over at a time
# By default both draw a graph in which neighbours are linked (Malkov and Yashunin 2018, HNSW).
_FAISS = {
    "float32": "HNSW32,Flat",
    "float16": "HNSW32,SQfp16",
    "int8": "HNSW32,SQ8",
    "binary": "BHNSW32",
}
# Its int8 takes numbers from -1 to 1 alone; `dtype="i8"` among the options chooses it.
_USEARCH = {"float32": "f32", "float16": "f16", "int8": "f16", "binary": "b1"}
# Limits of options, since an index's file may come from elsewhere: no option may name a file, or
# ask for far more memory than the vectors take.
_MOST = {"connectivity": 1024, "expansion_add": 1 << 20, "expansion_search": 1 << 20}
_CHOICES = {
    "dtype": ("f64", "f32", "bf16", "f16", "i8", "b1"),
    "metric": ("ip", "cos", "l2sq", "hamming", "tanimoto", "sorensen"),
}
_FACTORY = re.compile(r"[A-Za-z0-9_,()+]{1,200}")
_CELLS = 1 << 20  # the largest number in a factory, such as the cells of IVF1048576
_LINKS = 1024  # the most links of a graph, such as 32 in HNSW32
REMAKE = "remove it, and it is rebuilt from the vectors next to it"


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
            f"than {_LINKS:,} links."
        )


class FaissEngine:
    """An index of faiss.

    Args:
        width, dtype: of the vectors.
        factory: string. What `faiss.index_factory` makes, such as "IVF1024,Flat", or "SQfp16" and
            "SQ8", which compare with all vectors and answer one query several times as fast as
            engine="exact" does with float16 and int8; with binary vectors what
            `faiss.index_binary_factory` makes.
        search: int, how far to look: `efSearch` of a graph, `nprobe` of cells; faiss' own default
            without.
    """

    name = "faiss"
    # A graph cannot be drawn before there are vectors, and cells are trained on them.
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
        """Take over those of `Vectors` from a row on."""
        if not self._index.is_trained:
            few = np.linspace(0, len(vectors) - 1, min(self._train, len(vectors))).astype(int)
            try:
                self._index.train(_form(vectors, few, self._binary))
            except RuntimeError as error:  # Fewer vectors than cells.
                raise ValueError(
                    f"factory={self._factory!r}: faiss says {first_line(error)}"
                ) from None
        for rows in _blocks(start, len(vectors)):
            self._index.add(_form(vectors, rows, self._binary))

    def nearest(self, queries, count):
        """The rows int64 (Q, K) of candidates, -1 where there are fewer."""
        if self._binary:
            queries = to_bits(queries).view("uint8")
        self._look_far(count)
        return self._index.search(np.ascontiguousarray(queries), count)[1]

    def _look_far(self, count):
        import faiss

        index = self._index if self._binary else faiss.downcast_index(self._index)
        if hasattr(index, "hnsw"):
            # As many as are asked for, or the graph gives fewer good ones.
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
    """An index of usearch.

    Args:
        width, dtype: of the vectors.
        **options: of `usearch.index.Index`: `connectivity`, `expansion_add`, `expansion_search`,
            `dtype` and `metric`.
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

    def __len__(self):
        return len(self._index)

    def add(self, vectors, start=0):
        """As `FaissEngine.add`."""
        for rows in _blocks(start, len(vectors)):
            self._index.add(rows.astype("uint64"), _form(vectors, rows, self._binary))

    def nearest(self, queries, count):
        """As `FaissEngine.nearest`."""
        if self._binary:
            queries = to_bits(queries).view("uint8")
        # As of faiss: fewer are looked at than are asked for otherwise.
        self._index.expansion_search = max(self._index.expansion_search, count)
        matches = self._index.search(np.atleast_2d(queries), count)
        keys = np.atleast_2d(matches.keys).astype("int64")
        rows = np.full((len(queries), count), -1, "int64")
        rows[:, : keys.shape[1]] = keys
        # One query gives as many as there are; several give a number of each, and rubbish behind.
        counts = np.reshape(getattr(matches, "counts", [keys.shape[1]]), (-1, 1))
        rows[np.arange(count) >= counts] = -1
        return rows

    def write(self, path):
        self._index.save(path)

    def read(self, path):
        made = self._index.ndim, self._index.dtype, self._index.metric_kind
        try:
            # `load` believes the sizes that a file names, and asks for as much memory.
            self._index.metadata(path)
            self._index.load(path)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise ValueError(_damaged(path, first_line(error))) from None
        if (self._index.ndim, self._index.dtype, self._index.metric_kind) != made:
            raise ValueError(_damaged(path, "it was made with other settings"))


ENGINES = {engine.name: engine for engine in (FaissEngine, UsearchEngine)}


def _form(vectors, rows, binary):
    """Rows of `Vectors` as an engine takes them: float32 (N, D), or bytes of bits."""
    return vectors.columns["bits"].take(rows).view("uint8") if binary else vectors.take(rows)


def _blocks(start, stop):
    for first in range(start, stop, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, stop))


def _damaged(path, what):
    return f"'{path}' is damaged ({what}); {REMAKE}."

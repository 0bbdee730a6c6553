"""Nearest neighbors among the vectors of an index, exact or with an engine.

N: number of vectors, Q: number of queries, D: width of a vector, K: hits per query.
"""

import os
import threading

import numpy as np

from kerasbert.search.engines import ENGINES, REMAKE
from kerasbert.search.vectors import Vectors

# With a filter for which an engine must fetch more candidates than this, the search is exact.
_FETCHED = 1000


class Neighbors:
    """Vectors, and the engine that preselects candidates among them.

    Args:
        dtype: string. Precision of the vectors.
        engine: string. "exact", or the name of an engine.
        options: dict. Its arguments.
        keep_int8: bool. As in `Vectors`.
    """

    def __init__(self, dtype, engine, options, keep_int8):
        self._dtype, self._name, self._options = dtype, engine, options
        self._keep_int8 = dtype == "binary" and keep_int8
        self.vectors = None  # `Vectors`, once their width is known.
        self.engine = None  # Built when needed.
        self.lock = threading.RLock()  # Held while the engine is used.

    @property
    def width(self):
        """The width D, or 0 as long as there are no vectors."""
        return 0 if self.vectors is None else self.vectors.width

    def new_engine(self, width):
        """Return an engine without vectors, or raise a `ValueError` if its options are invalid."""
        try:
            return ENGINES[self._name](width, self._dtype, **self._options)
        except TypeError as error:
            raise ValueError(
                f"engine_options={self._options}: {error}; see kerasbert.search.engines."
            ) from None

    def append(self, vectors):
        """Add vectors, float32 (N, D)."""
        if self.vectors is None:
            self.vectors = Vectors(vectors.shape[1], self._dtype, self._keep_int8)
        self.vectors.append(vectors)

    def nearest(self, queries, top_k, alive, rescore, exact):
        """Find the vectors nearest to the queries, by dot product.

        Args:
            queries: float32 (Q, D).
            top_k: maximum number of hits.
            alive: bool (N,). Rows to consider; later ones are ignored.
            rescore: int. With "binary" or an engine, `rescore * top_k` candidates are rescored.
            exact: whether to compare all vectors, without the engine.

        Returns:
            Rows, int64 (Q, K), padded with -1, and their dot products, the best first.
        """
        size = int(alive.sum())
        count = min(top_k, size)
        if not count or not len(queries):
            return np.full((len(queries), 0), -1), np.zeros((len(queries), 0), "float32")
        wanted = count
        if self._dtype == "binary" or not exact:
            wanted = min(count * max(rescore, 1), size)
        if exact:
            rows = self.vectors.nearest(queries, wanted, alive)
        else:
            rows = self._ask_engine(queries, count, wanted, alive)
        scores = self.vectors.scores(queries, rows)
        order = np.lexsort((rows, -scores), axis=-1)[:, :count]
        return np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)

    def _ask_engine(self, queries, count, wanted, alive):
        with self.lock:
            if self.engine is None:
                self.engine = self.new_engine(self.width)
            if len(self.engine) < len(self.vectors):
                self.engine.add(self.vectors, len(self.engine))
            # With few rows to consider, more candidates are fetched.
            fetched = -(-wanted * len(self.engine) // max(int(alive.sum()), 1))
            if fetched > max(_FETCHED, 2 * wanted):
                return self.vectors.nearest(queries, wanted, alive)
            rows = self.engine.nearest(queries, min(fetched, len(self.engine)))
        # The engine may return removed rows, or rows newer than `alive`.
        rows[(rows < 0) | (rows >= len(alive))] = -1
        rows[~alive[rows] & (rows >= 0)] = -1
        short = (rows >= 0).sum(axis=1) < count
        if short.any():
            rows[short] = -1
            rows[short, :wanted] = self.vectors.nearest(queries[short], wanted, alive)
        return rows

    # === Files ===

    def columns(self):
        """Return a dict of file name to column."""
        if self.vectors is None:
            return {}
        return {f"{name}.npy": column for name, column in self.vectors.columns.items()}

    def read(self, folder, rows, width, mmap, read_engine):
        """Read the `rows` vectors that the columns wrote, and the engine's file, if it exists."""
        if width:
            settings = (width, self._dtype, self._keep_int8, mmap)
            self.vectors = Vectors.read(folder, rows, *settings)
        path = os.path.join(folder, f"engine.{self._name}")
        # Without the file, the first search builds the engine.
        if read_engine and os.path.exists(path):
            self.engine = self.new_engine(width)
            self.engine.read(path)
            if len(self.engine) > rows:
                raise ValueError(f"'{path}' has more vectors than the index; {REMAKE}.")

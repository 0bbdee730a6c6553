"""The rows of a served index: variables in graphs, and the search among them.

Embeddings, texts and ids are variables, because constants could exceed the graph's size limit.
Queries are compared with all embeddings.

N texts, T distinct texts, D embedding width, Q queries, C candidates.
"""

import functools
import itertools
import os

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.search.served_filters import value_arrays
from kerasbert.search.served_keywords import keyword_arrays

# Extra candidates to rescore: the last digits of a matrix product depend on a vector's position,
# and may change the order of nearly equal scores.
_SPARE = 8
_BYTES = 1 << 25  # Approximate memory for the products of a block.
_BITS = [128, 64, 32, 16, 8, 4, 2, 1]


def rows_in(folder, has_keywords):
    """Read the files of `SearchIndex.write_rows` as a dict of arrays; see `SavedIndex`.

    It also has the arrays for filters and, with `has_keywords`, keywords.
    """
    rows = {}
    for name in sorted(os.listdir(folder)):
        stem, _, suffix = name.partition(".")
        if suffix == "npy":
            rows[stem] = np.load(os.path.join(folder, name), mmap_mode="r")
        elif suffix == "bin":
            rows[stem] = _strings_in(os.path.join(folder, name))
    if "metadata" in rows:
        rows |= value_arrays(rows["metadata"])
    if has_keywords:
        rows |= keyword_arrays(rows["texts"])
    places = {}
    numbers = [places.setdefault(text, len(places)) for text in rows["texts"]]
    return {**rows, "texts": list(places), "text_of": np.array(numbers, "int32")}


def _strings_in(path):
    data, ends = np.memmap(path, "uint8", "r"), np.load(f"{path}.ends.npy").tolist()
    parts = (data[start:end].tobytes() for start, end in itertools.pairwise([0, *ends]))
    # Servers that answer in JSON reject lone surrogates.
    return [part.decode("utf-8", "surrogatepass").encode("utf-8", "replace") for part in parts]


class ServedRows:
    """Rows of an index as variables, and their nearest neighbor search.

    Args:
        rows: dict of arrays (N, ...), as `rows_in` returns.
        width: int. The embedding width D.
        rescore: int. With binary vectors, `rescore * top_k` candidates are rescored.
    """

    def __init__(self, rows, width, rescore):
        self._rows, self._width, self._rescore = rows, width, rescore

    def __len__(self):
        return len(self._rows["text_of"])

    @functools.cached_property
    def variables(self):
        """The arrays of rows as variables, by name."""
        # In the traced graph, their values would be constants.
        with tf.init_scope():
            return {
                name: tf.Variable(_as_tensor(rows), trainable=False, name=name)
                for name, rows in self._rows.items()
            }

    def take(self, name, rows):
        """Return rows of a variable.

        After `tf.gather` has read a variable directly, every other read copies it, a second for a
        million vectors, so `read_value` is called first.
        """
        return tf.gather(self.read(name), rows)

    def read(self, name):
        """Return a variable as a tensor; see `take`."""
        return self.variables[name].read_value()

    def sizes(self):
        """Return a dict of the number of entries of each variable."""
        return {name: len(rows) for name, rows in self._rows.items()}

    def more_bytes(self):
        """Return the size of the variables in a SavedModel."""
        size = 0
        for rows in self._rows.values():
            if isinstance(rows, list):
                # Strings are stored with their lengths, one byte per seven bits.
                lengths = np.array([len(row) for row in rows], "int64")
                size += int(lengths.sum() + sum((lengths >= 1 << 7 * i).sum() for i in range(5)))
                size += int((lengths == 0).sum())
            else:
                size += rows.nbytes
        return size

    def nearest(self, queries, counts, allowed=None):
        """Return the rows nearest to queries (Q, D), at most `counts` (Q,) each.

        With `allowed`, bool (Q, N), only those rows count, at least `counts`.

        Returns:
            A dict of `row` and `score`, each (Q, C), best first; beyond `counts`, the score is
            -inf.
        """
        rows = len(self)
        is_binary = "bits" in self.variables
        wanted = counts
        if is_binary:
            there = rows if allowed is None else number_of(allowed)
            wanted = tf.minimum(counts * max(self._rescore, 1), there)
        candidates = self._candidates(queries, most(wanted) + (0 if is_binary else _SPARE), allowed)
        if is_binary:  # More candidates would change the results.
            there = tf.sequence_mask(wanted, tf.shape(candidates)[1])
            candidates = tf.where(there, candidates, rows)
        if allowed is not None:
            is_allowed = tf.gather(allowed, tf.minimum(candidates, rows - 1), batch_dims=1)
            candidates = tf.where(is_allowed, candidates, rows)
        # Sorted by row, so that of equal scores the first row wins.
        candidates = tf.sort(candidates, axis=-1)
        scores = self.scores(queries, tf.minimum(candidates, rows - 1))
        scores = tf.where(candidates < rows, scores, -np.inf)
        scores, order = tf.math.top_k(scores, most(counts))
        there = tf.sequence_mask(counts, most(counts))
        found = tf.where(there, tf.gather(candidates, order, batch_dims=1), 0)
        return {"row": found, "score": tf.where(there, scores, -np.inf)}

    def scores(self, queries, rows):
        """Return the dot products of queries (Q, D) and their rows (Q, C): float32 (Q, C)."""
        return tf.reduce_sum(self._taken(rows) * queries[:, None], axis=-1)

    def _candidates(self, queries, count, allowed):
        """Return the rows (Q, C) with the largest dot products, best first, block by block."""
        variables, rows = self.variables, len(self)
        compare = self._bit_scores if "bits" in variables else self._products
        if "bits" in variables:
            queries = _to_bits(queries)
        count = tf.minimum(count, rows)
        number = tf.shape(queries)[0]
        # The XOR has an entry per query, row and word.
        width = queries.shape[1] if "bits" in variables else 1
        block = tf.clip_by_value(_BYTES // (8 * width * tf.maximum(number, 1)), 256, 1 << 16)

        def step(start, best, found):
            scores = compare(queries, start, start + block)  # (Q, rows of the block)
            if allowed is not None:
                scores = tf.where(allowed[:, start : start + block], scores, -np.inf)
            size = tf.shape(scores)[1]
            scores, place = tf.math.top_k(scores, tf.minimum(count, size))
            best = tf.concat([best, scores], axis=1)
            found = tf.concat([found, start + place], axis=1)
            best, order = tf.math.top_k(best, tf.minimum(count, tf.shape(best)[1]))
            return start + block, best, tf.gather(found, order, batch_dims=1)

        none = tf.zeros([number, 0]), tf.zeros([number, 0], tf.int32)
        shapes = [tf.TensorShape(shape) for shape in ((), (None, None), (None, None))]
        _, _, found = tf.while_loop(
            lambda start, *_: start < rows,
            step,
            (tf.constant(0), *none),
            shape_invariants=tuple(shapes),
            parallel_iterations=1,
        )
        return found

    def _products(self, queries, start, stop):
        vectors = tf.cast(self.variables["vectors"][start:stop], tf.float32)
        scores = tf.matmul(queries, vectors, transpose_b=True)
        if "scales" in self.variables:
            scores *= self.variables["scales"][start:stop]
        return scores

    def _bit_scores(self, queries, start, stop):
        differ = tf.bitwise.bitwise_xor(queries[:, None], self.variables["bits"][start:stop])
        counts = tf.cast(tf.raw_ops.PopulationCount(x=differ), tf.float32)
        return -tf.reduce_sum(counts, axis=-1)

    def _taken(self, rows):
        """Return the vectors (Q, C, D) of rows (Q, C), in the highest stored precision."""
        if "vectors" not in self.variables:
            bits = self.take("bits", rows)
            bits = tf.bitcast(bits, tf.uint8)[..., None]  # (Q, C, words, 8, 1)
            ones = tf.bitwise.bitwise_and(bits, tf.constant(_BITS, tf.uint8)) > 0
            ones = tf.reshape(ones, [*tf.unstack(tf.shape(rows)), -1])[..., : self._width]
            return tf.where(ones, 1.0, -1.0) / np.float32(np.sqrt(self._width))
        vectors = tf.cast(self.take("vectors", rows), tf.float32)
        if "scales" in self.variables:
            vectors *= self.take("scales", rows)[..., None]
        return vectors


def number_of(allowed):
    """Return the number of rows that a mask (Q, N) allows, int32 (Q,)."""
    return tf.reduce_sum(tf.cast(allowed, tf.int32), axis=1)


def most(counts):
    """Return the largest number, or 0 if there are no numbers."""
    return tf.reduce_max(tf.concat([counts, [0]], 0))


def _to_bits(vectors):
    """Pack vectors like `to_bits`, in the graph: int64 (Q, words)."""
    words = -(-vectors.shape[1] // 64)
    ones = tf.pad(vectors > 0, [[0, 0], [0, words * 64 - vectors.shape[1]]])
    ones = tf.cast(tf.reshape(ones, [-1, words, 8, 8]), tf.int32)
    return tf.bitcast(tf.cast(tf.reduce_sum(ones * _BITS, axis=-1), tf.uint8), tf.int64)


def _as_tensor(rows):
    if isinstance(rows, list):
        return tf.constant(rows, tf.string, (len(rows),))
    # Words become int64, whose bits TensorFlow counts equally.
    return tf.constant(rows.view("int64") if rows.dtype == "uint64" else rows)

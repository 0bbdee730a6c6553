"""Keyword search of a served index: keywords and BM25 in graphs.

N rows, Q queries, W keywords of the index, C candidates.
"""

import functools

import numpy as np
from scipy import sparse

from kerasbert.backend.tensorflow import tf
from kerasbert.search.keywords import RANK, WORDS, Keywords
from kerasbert.text.fast_graph.characters import characters_of
from kerasbert.text.fast_graph.normalizers import NormalForm
from kerasbert.text.fast_graph.tables import POINTS, Changes, classes

_OTHER, _WORD, _CJK = range(3)


def keyword_arrays(texts):
    """Return the arrays for keyword search as a dict.

    Args:
        texts: list of N byte strings.

    Returns:
        `keyword_hashes`, sorted int64 (W,), and their `keyword_names`; `keyword_starts` int64
        (W + 1,), `keyword_rows` int32 and `keyword_weights` float32: the BM25 scores of keywords in
        rows, as a sparse matrix (W, N).
    """
    keywords = Keywords()
    keywords.read([text.decode() for text in texts], len(texts))
    names, scores = keywords.weights(np.ones(len(texts), bool))
    if not names:  # The arrays must not be empty; no query has an empty keyword.
        names, scores = [""], sparse.csr_array((1, len(texts)), dtype="float32")
    names = [name.encode() for name in names]
    hashes = _hashes(names).numpy()
    order = np.argsort(hashes)
    scores = scores[order]
    return {
        "keyword_hashes": hashes[order],
        "keyword_names": [names[i] for i in order],
        "keyword_starts": scores.indptr.astype("int64"),
        "keyword_rows": scores.indices.astype("int32"),
        "keyword_weights": scores.data.astype("float32"),
    }


def _hashes(names):
    names = tf.constant(names, tf.string) if isinstance(names, list) else names
    return tf.strings.to_hash_bucket_fast(names, 2**63 - 1)


@functools.cache
def _tables():
    """Return case folding as `Changes`, and the kinds of characters as `Classes`."""
    folded = {point: chr(point).casefold() for point in POINTS.tolist()}
    folded = {point: new for point, new in folded.items() if new != chr(point)}
    fold = Changes(
        np.array(list(folded), "int32"),
        np.cumsum([0, *map(len, folded.values())], dtype="int64"),
        np.array([ord(char) for new in folded.values() for char in new], "int32"),
        None,
    )
    kinds = np.zeros(len(POINTS), int)
    text = "".join(map(chr, POINTS.tolist()))
    for match in WORDS.finditer(text):
        kinds[match.start() : match.end()] = _CJK if match[1] else _WORD
    return fold, classes(kinds)


def keywords_in_graph(texts):
    """Return the keywords of texts (Q,) and the text of each: two tensors (K,).

    Unlike `keywords_of`, it may not know the newest characters.
    """
    fold, kinds = _tables()
    characters = fold(NormalForm("NFKC")(characters_of(texts)[0]))
    kind, text = kinds(characters.points), characters.segments
    runs = characters.split_at(kind != characters.before(kind, -1))
    begins, ends = runs.begins(), runs.ends()
    run = tf.cumsum(tf.cast(begins, tf.int64)) - 1
    lengths = tf.math.bincount(tf.cast(run, tf.int32), dtype=tf.int64)
    is_pair = (kind == _CJK) & ~ends
    is_first = is_pair | (begins & (kind != _OTHER) & ((kind == _WORD) | ends))
    start = tf.where(is_first)[:, 0]
    length = tf.where(
        tf.gather(is_pair, start),
        tf.constant(2, tf.int64),
        tf.gather(lengths, tf.gather(run, start)),
    )
    places = tf.ragged.range(start, start + length)
    points = places.with_values(tf.gather(characters.points, places.values))
    return tf.strings.unicode_encode(points, "UTF-8"), tf.gather(text, start)


class ServedKeywords:
    """BM25 scores, and their fusion with a vector search.

    Args:
        rows: `ServedRows`, with the variables of `keyword_arrays`.
        alpha: as in `SearchIndex.search`.
    """

    def __init__(self, rows, alpha):
        self._rows, self._alpha = rows, alpha

    def scores(self, query):
        """Return the BM25 scores of all rows: float32 (Q, N)."""
        names, text = keywords_in_graph(query)
        hashes, rows = self._rows.read("keyword_hashes"), len(self._rows)
        place = tf.searchsorted(hashes, _hashes(names))
        place = tf.minimum(place, tf.size(hashes) - 1)
        is_known = tf.gather(self._rows.read("keyword_names"), place) == names
        place, text = tf.boolean_mask(place, is_known), tf.boolean_mask(text, is_known)
        starts = self._rows.read("keyword_starts")
        found = tf.ragged.range(tf.gather(starts, place), tf.gather(starts, place + 1))
        number = tf.gather(text, found.value_rowids()) * rows
        number += tf.cast(self._rows.take("keyword_rows", found.values), tf.int64)
        count = tf.size(query, tf.int64)
        weights = self._rows.take("keyword_weights", found.values)
        scores = tf.scatter_nd(number[:, None], weights, [count * rows])
        return tf.reshape(scores, [count, rows])

    def fused(self, query, vectors, counts, allowed):
        """Search by vectors and keywords, and rank the rows of both.

        Args:
            query: strings (Q,).
            vectors: float32 (Q, D). Their embeddings.
            counts: int32 (Q,). Number of candidates of each search.
            allowed: bool (Q, N), or `None` for all rows.

        Returns:
            A dict of `row`, `score`, `vector_score` and `keyword_score`, (Q, C), best first, and of
            `there`, bool (Q, C): which are rows.
        """
        rows, words = len(self._rows), self.scores(query)
        near = self._rows.nearest(vectors, counts, allowed)
        near_there = near["score"] > -np.inf
        is_word = words > 0 if allowed is None else (words > 0) & allowed
        size = tf.shape(near["row"])[1]
        value, by_word = tf.math.top_k(tf.where(is_word, words, 0.0), size)
        word_there = (value > 0) & tf.sequence_mask(counts, size)
        lists = [(near["row"], near_there), (by_word, word_there)]
        union = tf.concat([tf.where(there, row, rows) for row, there in lists], axis=1)
        union = tf.sort(union, axis=1)
        again = tf.concat([tf.zeros_like(union[:, :1], tf.bool), union[:, 1:] == union[:, :-1]], 1)
        union = tf.sort(tf.where(again, rows, union), axis=1)  # (Q, C)
        there, ordered = union < rows, union
        union = tf.where(there, union, 0)
        found = {
            "vector_score": self._rows.scores(vectors, union),
            "keyword_score": tf.gather(words, union, batch_dims=1),
        }
        if self._alpha is None:
            score = self._reciprocal_ranks(lists, ordered)
        else:
            near, words = (_scaled(x, there) for x in found.values())
            score = self._alpha * near + (1 - self._alpha) * words
        score = tf.where(there, score, tf.constant(-np.inf, score.dtype))
        score, order = tf.math.top_k(score, tf.shape(score)[1])
        found = {name: tf.gather(x, order, batch_dims=1) for name, x in found.items()}
        return {
            "row": tf.gather(union, order, batch_dims=1),
            "score": tf.cast(score, tf.float32),
            **found,
            "there": tf.gather(there, order, batch_dims=1),
        }

    @staticmethod
    def _reciprocal_ranks(lists, union):
        """Return the sums of reciprocal ranks of the rows of a sorted union: float64 (Q, C)."""
        shape = tf.shape(union)
        total = tf.zeros(shape, tf.float64)
        for row, is_row in lists:
            places = 1 / (RANK + 1 + tf.range(tf.shape(row)[1], dtype=tf.float64))
            at = tf.where(is_row, tf.searchsorted(union, row), 0)
            at = tf.stack(
                [tf.where(is_row)[:, 0], tf.cast(tf.boolean_mask(at, is_row), tf.int64)], 1
            )
            values = tf.boolean_mask(tf.broadcast_to(places, tf.shape(row)), is_row)
            total += tf.scatter_nd(at, values, tf.cast(shape, tf.int64))
        return total


def _scaled(x, there):
    """Scale scores (Q, C) to a range from 0 to 1."""
    x -= tf.reduce_min(tf.where(there, x, np.inf), axis=1, keepdims=True)
    most = tf.reduce_max(tf.where(there, x, 0.0), axis=1, keepdims=True)
    return x / tf.maximum(most, 1e-12)

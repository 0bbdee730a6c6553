"""Keyword search by BM25, and its fusion with an index's vector search.

N: number of rows, K: number of hits.
"""

import threading
import unicodedata
from collections import Counter

import numpy as np
import regex
from scipy import sparse

_K1, _B = 1.5, 0.75  # The defaults of bm25s.
RANK = 60  # The constant of reciprocal rank fusion.
# Korean, Japanese and Chinese, where spaces do not separate all words or particles; words of other
# scripts.
CJK = r"\p{Hangul}\p{Hiragana}\p{Katakana}\p{Han}ー々"
WORDS = regex.compile(rf"(?V1)([{CJK}]+)|[\w--[{CJK}]]+")


def keywords_of(text):
    """Split a text into keywords: words, and character bigrams in Korean, Japanese and Chinese.

    >>> keywords_of("BERT 모델을 학습, 東京へ")
    ['bert', '모델', '델을', '학습', '東京', '京へ']
    """
    found = []
    for match in WORDS.finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = match[0]
        if match[1] and len(word) > 1:
            found += [word[i : i + 2] for i in range(len(word) - 1)]
        else:
            found.append(word)
    return found


class Keywords:
    """Keyword counts of the rows of an index, for Lucene's variant of BM25.

    New rows are counted at the next search. The package bm25s would compute all scores when texts
    are added, and initialize JAX on import.

    Args:
        split: function of a string that returns its keywords.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond";
    Lu 2024, arXiv 2407.03618, for Lucene's variant.
    """

    def __init__(self, split=keywords_of):
        self._split = split
        self._numbers = {}  # Keyword to its row in `_counts`.
        self._counts = sparse.csr_array((0, 0), dtype="float32")  # Sparse (keywords, rows).
        self._lengths = np.empty(0, "float32")  # Number of keywords of each row.
        self._lock = threading.Lock()

    def read(self, texts, count):
        """Count the keywords of new rows among the first `count`."""
        with self._lock:
            start = len(self._lengths)
            if start >= count:
                return
            numbers, values, ends, lengths = [], [], [0], []
            for row in range(start, count):
                counts = Counter(self._split(texts[row]))
                numbers += [self._numbers.setdefault(x, len(self._numbers)) for x in counts]
                values += counts.values()
                ends.append(len(numbers))
                lengths.append(counts.total())
            shape = (count - start, len(self._numbers))
            new = sparse.csr_array((np.array(values, "float32"), numbers, ends), shape=shape)
            # Other threads may read the old array.
            old, size = self._counts, len(self._numbers)
            ends = np.pad(old.indptr, (0, size - old.shape[0]), mode="edge")
            old = sparse.csr_array((old.data, old.indices, ends), shape=(size, start))
            self._counts = sparse.hstack([old, new.T], format="csr")
            self._lengths = np.append(self._lengths, np.array(lengths, "float32"))

    def scores(self, query, alive):
        """Return the BM25 scores of the first N rows: float32 (N,), 0 without a common keyword.

        Args:
            query: string.
            alive: bool (N,). Rows of the statistics; others score 0.
        """
        with self._lock:
            counts, lengths = self._counts, self._lengths[: len(alive)]
        scores, total = np.zeros(len(alive), "float32"), int(alive.sum())
        mean = lengths[alive].mean() if total else 0
        for keyword in self._split(query):
            number = self._numbers.get(keyword, counts.shape[0])
            if number >= counts.shape[0]:
                continue
            part = slice(counts.indptr[number], counts.indptr[number + 1])
            rows, values = counts.indices[part], counts.data[part]
            # Rows beyond the mask are new.
            there = rows < len(alive)
            there[there] = alive[rows[there]]
            rows, values = rows[there], values[there]
            scores[rows] += _bm25(values, len(rows), total, lengths[rows] / mean)
        return scores

    def weights(self, alive):
        """Return all scores of keywords in rows, for exports.

        Args:
            alive: bool (N,). As for `scores`.

        Returns:
            The keywords that occur in these rows, and their scores, sparse (keywords, rows).
        """
        counts, lengths = self._counts[:, : len(alive)][:, alive], self._lengths[: len(alive)]
        frequency, lengths = np.diff(counts.indptr), lengths[alive]
        sizes = lengths[counts.indices] / max(lengths.mean(), 1e-12)
        each = np.repeat(frequency, frequency)
        counts.data = _bm25(counts.data, each, len(lengths), sizes)
        names = list(self._numbers)
        used = np.flatnonzero(frequency)
        return [names[i] for i in used], counts[used]


def _bm25(counts, frequency, total, lengths):
    """Return the BM25 scores of one keyword in texts.

    Args:
        counts: how often the keyword occurs in each text.
        frequency, total: number of texts with the keyword, and of all texts.
        lengths: lengths of the texts, relative to the mean.
    """
    rarity = np.log1p((total - frequency + 0.5) / (frequency + 0.5))
    return rarity * counts / (counts + _K1 * (1 - _B + _B * lengths))


def best(scores, count, allowed):
    """Return the rows with the `count` highest scores above 0, the best first."""
    rows = np.flatnonzero((scores > 0) & allowed)
    return rows[np.argsort(-scores[rows], kind="stable")][:count]


def fused(rows, scores, lists, alpha):
    """Fuse the rankings of a vector search and a keyword search.

    Args:
        rows: int64 (K,). The sorted union of the found rows.
        scores: pair of float arrays (K,), the cosines and the BM25 scores of the rows.
        lists: pair of arrays, the rows of each search, the best first.
        alpha: weight of the vectors, from 0 to 1, in a mean of both scores, each scaled from 0 to
            1; `None` for reciprocal rank fusion.

    Returns:
        The order of the rows, int64 (K,), and their fused scores in this order.

    Source: Cormack, Clarke and Büttcher 2009, for reciprocal rank fusion.
    """
    if alpha is None:
        values = np.zeros(len(rows))
        for found in lists:
            place = np.searchsorted(rows, found)
            values[place] += 1 / (RANK + 1 + np.arange(len(found)))
    else:
        vectors, words = (x - x.min(initial=np.inf) for x in scores)
        vectors, words = (x / max(x.max(initial=0), 1e-12) for x in (vectors, words))
        values = alpha * vectors + (1 - alpha) * words
    order = np.lexsort((rows, -values))
    return order, values[order]

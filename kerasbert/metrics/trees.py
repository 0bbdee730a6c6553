"""Metrics of structural probes: distances and depths in syntax trees.

N sentences, W words per sentence. `y` is a list of N `kerasbert.data.DependencyTree` objects.

Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word Representations",
NAACL, and the rules of its authors' `reporter.py`.
"""

from __future__ import annotations

import collections
import warnings
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.data.trees import DependencyTree
from kerasbert.metrics.classes import check_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

LENGTHS = range(5, 51)  # Only sentences of these lengths count in Spearman correlations.


def uuas(y: Sequence[Any], predictions: Any) -> float:
    """Return the undirected unlabeled attachment score: the share of recovered edges.

    Edges are those of minimum spanning trees of distances, over all words except punctuation,
    counted over all sentences.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W, W), distances between words.

    >>> from kerasbert.data import DependencyTree
    >>> tree = DependencyTree(("the", "dog", "barks"), (2, 3, 0))
    >>> uuas([tree], [[[0, 1, 5], [1, 0, 9], [5, 9, 0]]])
    0.5
    """
    found = right = 0
    for tree, distances in zip(y, _checked(y, predictions, 2)):
        words = np.flatnonzero(~tree.is_punctuation)
        gold = spanning_edges(tree.distances, words)
        right += len(gold & spanning_edges(distances, words))
        found += len(gold)
    return right / found if found else 0.0


def spanning_edges(distances, words=None):
    """Return the edges of the minimum spanning tree: a set of index pairs, the smaller first.

    Args:
        distances: array (W, W), symmetric; only its upper triangle is read.
        words: ints. Ascending indices of words to span; all by default.

    >>> sorted(spanning_edges([[0, 3, 1], [3, 0, 1], [1, 1, 0]]))
    [(0, 2), (1, 2)]
    """
    from scipy.sparse import csgraph

    distances = np.asarray(distances, "float64")
    words = np.arange(len(distances)) if words is None else np.asarray(words, int)
    if len(words) < 2:
        return set()
    rows, columns = np.triu_indices(len(words), 1)
    # By rank, the first of equal distances is smaller, and none is 0 ("no edge").
    order = np.argsort(distances[words[rows], words[columns]], kind="stable")
    ranks = np.zeros((len(words), len(words)))
    ranks[rows[order], columns[order]] = np.arange(1, len(order) + 1)
    edges = csgraph.minimum_spanning_tree(ranks).nonzero()
    return {(int(words[a]), int(words[b])) for a, b in zip(*edges)}


def distance_spearman(y: Sequence[Any], predictions: Any) -> float:
    """Return Spearman's correlation of each word's distances, averaged per sentence length.

    It is the mean over sentence lengths from 5 to 50 words. Equal predicted distances of a word
    count as 0.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W, W).
    """
    return _mean_of_lengths(
        (len(tree.words), _spearman(distances, gold))
        for tree, all_distances in zip(y, _checked(y, predictions, 2))
        for distances, gold in zip(all_distances, tree.distances)
    )


def depth_spearman(y: Sequence[Any], predictions: Any) -> float:
    """Return Spearman's correlation of word depths, averaged as in `distance_spearman`.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W,), word depths.

    >>> from kerasbert.data import DependencyTree
    >>> tree = DependencyTree(tuple("abcde"), (2, 3, 0, 3, 4))
    >>> depth_spearman([tree], [[2.1, 1.2, 0.3, 1.1, 1.9]]) > 0.9
    True
    """
    return _mean_of_lengths(
        (len(tree.words), _spearman(depths, tree.depths))
        for tree, depths in zip(y, _checked(y, predictions, 1))
    )


def root_accuracy(y: Sequence[Any], predictions: Any) -> float:
    """Return the share of sentences whose root has the least predicted depth.

    Punctuation is ignored.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W,), word depths.

    >>> from kerasbert.data import DependencyTree
    >>> root_accuracy([DependencyTree(("dogs", "bark", "!"), (2, 0, 2))], [[1.0, 0.2, 0.1]])
    1.0
    """
    right = []
    for tree, depths in zip(y, _checked(y, predictions, 1)):
        is_out = tree.is_punctuation
        depths = depths if is_out.all() else np.where(is_out, np.inf, depths)
        right.append(int(np.argmin(depths)) == tree.root)
    return float(np.mean(right))


def _checked(y, predictions, rank):
    """Return the predictions as arrays with `rank` axes; raise if one does not fit its tree."""
    check_sizes(y, predictions)
    arrays = []
    for position, (tree, prediction) in enumerate(zip(y, predictions)):
        if not isinstance(tree, DependencyTree):
            raise ValueError(
                f"y has a {type(tree).__name__} at position {position}; pass "
                "kerasbert.data.DependencyTree objects, as read_conllu returns."
            )
        array = np.asarray(prediction, "float64")
        expected = (len(tree.words),) * rank
        if array.shape != expected:
            raise ValueError(
                f"The prediction at position {position} has shape {array.shape}, but its sentence "
                f"has {len(tree.words)} words; pass shape {expected}."
            )
        if not np.isfinite(array).all():
            raise ValueError(
                f"The prediction at position {position} has NaN or infinite numbers; pass finite "
                "ones."
            )
        arrays.append(array)
    return arrays


def _spearman(predicted, gold):
    from scipy.stats import spearmanr

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An input array is constant")
        correlation = spearmanr(predicted, gold).statistic
    return 0.0 if np.isnan(correlation) else float(correlation)


def _mean_of_lengths(pairs):
    """Average the correlations of `(length, correlation)` pairs per length, then over lengths."""
    of_length = collections.defaultdict(list)
    for length, correlation in pairs:
        if length in LENGTHS:
            of_length[length].append(correlation)
    if not of_length:
        raise ValueError(
            f"No sentence has {LENGTHS.start} to {LENGTHS.stop - 1} words, as this score "
            "needs; pass such sentences."
        )
    return float(np.mean([np.mean(values) for values in of_length.values()]))

"""Scores of syntax that is read off vectors: distances in a tree, and depths.

N sentences, W words of a sentence. `y` is a list of N `kerasbert.data.DependencyTree`s.

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

LENGTHS = range(5, 51)  # Of the sentences whose correlations count, in words.


def uuas(y: Sequence[Any], predictions: Any) -> float:
    """Undirected unlabeled attachment score: the share of the trees' edges that are found.

    Both sides' edges are those of the minimum spanning tree over the words that are no
    punctuation. The edges of all sentences count together.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W, W), distances of words.

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
    """The edges of the minimum spanning tree, as a set of pairs of places, the smaller first.

    Args:
        distances: array (W, W), symmetric; what is above the diagonal is read.
        words: ints. The places of the words that it spans, in order; all by default.

    >>> sorted(spanning_edges([[0, 3, 1], [3, 0, 1], [1, 1, 0]]))
    [(0, 2), (1, 2)]
    """
    from scipy.sparse import csgraph

    distances = np.asarray(distances, "float64")
    words = np.arange(len(distances)) if words is None else np.asarray(words, int)
    if len(words) < 2:
        return set()
    rows, columns = np.triu_indices(len(words), 1)
    # Their ranks: of equals the first pair wins, and none is 0, which would be no edge.
    order = np.argsort(distances[words[rows], words[columns]], kind="stable")
    ranks = np.zeros((len(words), len(words)))
    ranks[rows[order], columns[order]] = np.arange(1, len(order) + 1)
    edges = csgraph.minimum_spanning_tree(ranks).nonzero()
    return {(int(words[a]), int(words[b])) for a, b in zip(*edges)}


def distance_spearman(y: Sequence[Any], predictions: Any) -> float:
    """Spearman's correlation of distances: of each word's with all, the mean for each length.

    The score is the mean over the lengths of 5 to 50 words that there are. A word whose predicted
    distances are all the same counts 0.

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
    """Spearman's correlation of depths in a sentence, the mean for each length; see above.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W,), depths of words.

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
    """The share of sentences whose root is the least deep of the words but punctuation.

    Args:
        y: list of N trees.
        predictions: list of N arrays (W,), depths of words.

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
    """The predictions as arrays of `rank` sides, each as long as its tree."""
    check_sizes(y, predictions)
    arrays = []
    for position, (tree, prediction) in enumerate(zip(y, predictions)):
        if not isinstance(tree, DependencyTree):
            raise ValueError(
                f"The right answer at position {position} is a {type(tree).__name__}; pass "
                "kerasbert.data.DependencyTree objects, as read_conllu gives them."
            )
        array = np.asarray(prediction, "float64")
        expected = (len(tree.words),) * rank
        if array.shape != expected:
            raise ValueError(
                f"The prediction at position {position} has the shape {array.shape}, but its "
                f"sentence has {len(tree.words)} words: give {expected}."
            )
        if not np.isfinite(array).all():
            raise ValueError(f"The prediction at position {position} has NaN or infinite numbers.")
        arrays.append(array)
    return arrays


def _spearman(predicted, gold):
    from scipy.stats import spearmanr

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An input array is constant")
        correlation = spearmanr(predicted, gold).statistic
    return 0.0 if np.isnan(correlation) else float(correlation)


def _mean_of_lengths(pairs):
    """The mean over lengths of the means of each; pairs are `(length, correlation)`."""
    of_length = collections.defaultdict(list)
    for length, correlation in pairs:
        if length in LENGTHS:
            of_length[length].append(correlation)
    if not of_length:
        raise ValueError(
            f"No sentence has {LENGTHS.start} to {LENGTHS.stop - 1} words, those that count."
        )
    return float(np.mean([np.mean(values) for values in of_length.values()]))

"""Metrics of syntax, compared with plain loops."""

import numpy as np
import pytest
from scipy.stats import rankdata

from kerasbert.data import DependencyTree
from kerasbert.metrics import depth_spearman, distance_spearman, root_accuracy, uuas
from kerasbert.metrics.trees import spanning_edges
from tests.data.test_trees import random_heads


def random_tree(random, count):
    tags = random.choice(["NOUN", "VERB", "PUNCT"], count, p=[0.5, 0.3, 0.2])
    return DependencyTree(["w"] * count, random_heads(random, count), tags=tags)


def grown(distances, words):
    """Return edges, the shortest first, that connect separate parts."""
    pairs = [(distances[i][j], i, j) for i in words for j in words if i < j]
    part = {word: {word} for word in words}
    edges = set()
    for _, i, j in sorted(pairs):
        if part[i] is not part[j]:
            edges.add((i, j))
            part[i] |= part[j]
            for word in part[j]:
                part[word] = part[i]
    return edges


def correlation(x, y):
    x, y = rankdata(x), rankdata(y)
    return 0.0 if min(np.std(x), np.std(y)) == 0 else np.corrcoef(x, y)[0, 1]


@pytest.fixture
def sentences():
    random = np.random.default_rng(0)
    trees = [random_tree(random, count) for count in (1, 2, 5, 5, 9, 30, 51)]
    noise = [random.normal(size=(len(tree.words),) * 2) for tree in trees]
    distances = [tree.distances + (n + n.T) for tree, n in zip(trees, noise)]
    depths = [tree.depths + n[0] for tree, n in zip(trees, noise)]
    return trees, distances, depths


def test_uuas(sentences):
    trees, distances, _ = sentences
    right = total = 0
    for tree, predicted in zip(trees, distances):
        words = [place for place, tag in enumerate(tree.tags) if tag != "PUNCT"]
        gold = grown(tree.distances, words)
        right += len(gold & grown(predicted, words))
        total += len(gold)
    assert uuas(trees, distances) == right / total
    assert 0.2 < right / total < 1
    assert uuas(trees, [tree.distances for tree in trees]) == 1


@pytest.mark.parametrize("equal", [0.0, 1.0])
def test_distances_that_are_all_the_same(equal):
    """If all distances are equal, the first pairs are chosen, as if pairs were checked in order."""
    assert spanning_edges(np.full((4, 4), equal)) == {(0, 1), (0, 2), (0, 3)}


def test_correlations(sentences):
    trees, distances, depths = sentences
    of_distances, of_depths = {}, {}
    for tree, predicted, deep in zip(trees, distances, depths):
        count = len(tree.words)
        rows = [correlation(a, b) for a, b in zip(predicted, tree.distances)]
        of_distances.setdefault(count, []).extend(rows)
        of_depths.setdefault(count, []).append(correlation(deep, tree.depths))
    for score, found, by_length in (
        (distance_spearman, distances, of_distances),
        (depth_spearman, depths, of_depths),
    ):
        expected = np.mean([np.mean(by_length[count]) for count in (5, 9, 30)])
        assert score(trees, found) == pytest.approx(expected, abs=1e-12)
    assert depth_spearman(trees[2:3], [np.ones(5)]) == 0


def test_roots(sentences):
    trees, _, depths = sentences
    right = []
    for tree, deep in zip(trees, depths):
        words = [place for place, tag in enumerate(tree.tags) if tag != "PUNCT"]
        right.append(min(words or range(len(deep)), key=lambda place: deep[place]) == tree.root)
    assert root_accuracy(trees, depths) == np.mean(right)
    only = DependencyTree(("!", "?"), (2, 0), tags=("PUNCT", "PUNCT"))
    assert root_accuracy([only], [[1, 0]]) == 1
    assert uuas([only], [[[0, 1], [1, 0]]]) == 0


@pytest.mark.parametrize("score, rank", [(uuas, 2), (distance_spearman, 2), (root_accuracy, 1)])
def test_wrong_predictions(sentences, score, rank):
    tree = sentences[0][2]
    with pytest.raises(ValueError, match=r"position 0 has shape \(.*5 words"):
        score([tree], [np.ones((4,) * rank)])
    with pytest.raises(ValueError, match="NaN"):
        score([tree], [np.full((5,) * rank, np.nan)])
    with pytest.raises(ValueError, match="y has a list at position 0; pass .*DependencyTree"):
        score([[2, 0]], [np.ones((2,) * rank)])
    with pytest.raises(ValueError, match="1 labels in y but 0"):
        score([tree], [])


def test_no_length_that_counts(sentences):
    trees, distances, _ = sentences
    with pytest.raises(ValueError, match="5 to 50 words"):
        distance_spearman(trees[:2], distances[:2])

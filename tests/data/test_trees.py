"""Dependency trees, compared with a walk along their edges."""

import numpy as np
import pytest

from kerasbert.data import DependencyTree


def random_heads(random, count):
    """Return a random tree: each word is attached to an earlier one, in a shuffled order."""
    order = random.permutation(count) + 1
    heads = np.zeros(count, int)
    for place in range(1, count):
        heads[order[place] - 1] = order[random.integers(place)]
    return heads.tolist()


def walked(heads, start):
    """Return the distances of all words from one, by a walk over neighbors."""
    far = {start: 0}
    queue = [start]
    for word in queue:
        near = [other for other, head in enumerate(heads) if head == word + 1]
        near += [heads[word] - 1] if heads[word] else []
        for other in near:
            if other not in far:
                far[other] = far[word] + 1
                queue.append(other)
    return [far[word] for word in range(len(heads))]


@pytest.mark.parametrize("count", [1, 2, 3, 17, 60])
def test_distances_and_depths(count):
    heads = random_heads(np.random.default_rng(count), count)
    tree = DependencyTree([f"w{i}" for i in range(count)], heads)
    assert tree.distances.tolist() == [walked(heads, word) for word in range(count)]
    assert tree.depths.tolist() == walked(heads, tree.root)
    assert heads[tree.root] == 0


def test_a_long_chain():
    count = 500
    tree = DependencyTree(["a"] * count, range(count))
    assert tree.depths.tolist() == list(range(count))


def test_punctuation():
    words = ("Ja", "!", "…", "10", "日本")
    tree = DependencyTree(words, (0, 1, 1, 1, 1))
    assert tree.is_punctuation.tolist() == [False, True, True, False, False]
    tree = DependencyTree(words, (0, 1, 1, 1, 1), tags=("INTJ", "SYM", "PUNCT", "NUM", "NOUN"))
    assert tree.is_punctuation.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    "words, heads, message",
    [
        ("", (), "no words"),
        ("ab", (0,), "2 words has 1 heads"),
        ("ab", None, "2 words has 0 heads"),
        ("ab", ("2", "0"), "head of word 1, 'a', is '2'"),
        ("ab", (2, 0.0), "head of word 2, 'b', is 0.0"),
        ("ab", (2, 3), "head of word 2, 'b', is 3"),
        ("ab", (0, -1), "is -1"),
        ("ab", (1, 0), "head of word 1, 'a', is 1"),
        ("ab", (0, 0), "2 words with the head 0"),
        ("ab", (2, 1), "0 words with the head 0"),
        ("abcd", (0, 4, 2, 3), "From word 2, 'b', the heads form a cycle"),
    ],
)
def test_what_is_no_tree(words, heads, message):
    with pytest.raises(ValueError, match=message):
        DependencyTree(tuple(words), heads)

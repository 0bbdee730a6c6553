"""Dependency trees, with depths and distances of words.

Shapes: W words of a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kerasbert.base.errors import is_whole


@dataclass(frozen=True)
class DependencyTree:
    """A sentence and its dependency parse.

    Args:
        words: tuple of W strings.
        heads: tuple of W ints. Position of each word's head, from 1; 0 for the root, as in CoNLL-U.
        tags: tuple of W strings. Universal parts of speech; `None` if unknown.
        relations: tuple of W strings. The dependency relation of each word to its head, or `None`.
        id: the file's id of the sentence; "" if it has none.

    Raises:
        ValueError: if the heads do not form a tree.

    >>> tree = DependencyTree(("the", "dog", "barks"), (2, 3, 0))
    >>> tree.depths.tolist(), tree.distances.tolist()
    ([2, 1, 0], [[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    """

    words: tuple
    heads: tuple
    tags: tuple = None
    relations: tuple = None
    id: str = ""

    def __post_init__(self):
        for name in ("words", "heads", "tags", "relations"):
            value = getattr(self, name)
            if value is None and name not in ("words", "heads"):
                continue
            value = tuple(() if value is None else value)
            object.__setattr__(self, name, value)
            if len(value) != len(self.words):
                raise ValueError(
                    f"A tree of {len(self.words)} words has {len(value)} {name}; pass one per word."
                )
        _check_heads(self.words, self.heads)

    @property
    def depths(self) -> np.ndarray:
        """Number of heads above each word, int64 (W,): 0 for the root."""
        depths = np.zeros(len(self.heads), "int64")
        above = np.array(self.heads, "int64")
        # Move up from all words at once, until each has passed the root.
        while (above > 0).any():
            depths += above > 0
            above = np.where(above > 0, np.array((0, *self.heads))[above], 0)
        return depths

    @property
    def distances(self) -> np.ndarray:
        """Number of edges between each pair of words, int64 (W, W)."""
        from scipy.sparse import csgraph

        count = len(self.heads)
        edges = np.zeros((count, count))
        words = np.flatnonzero(self.heads)
        edges[words, np.array(self.heads)[words] - 1] = 1
        return csgraph.shortest_path(edges, directed=False, unweighted=True).astype("int64")

    @property
    def root(self) -> int:
        """Index of the root, from 0."""
        return self.heads.index(0)

    @property
    def is_punctuation(self) -> np.ndarray:
        """Whether each word is punctuation, bool (W,).

        This is decided by the tags or, without tags, by the characters.
        """
        if self.tags is not None:
            return np.array([tag == "PUNCT" for tag in self.tags])
        return np.array([not any(c.isalnum() for c in word) for word in self.words])


def _check_heads(words, heads):
    count = len(words)
    if not count:
        raise ValueError("A tree has no words; leave out sentences without any.")
    for place, head in enumerate(heads, start=1):
        if not is_whole(head) or not 0 <= head <= count or head == place:
            raise ValueError(
                f"The head of word {place}, {words[place - 1]!r}, is {head!r}; it must be the "
                f"position of another word, 1 to {count}, or 0 for the root."
            )
    roots = heads.count(0)
    if roots != 1:
        raise ValueError(f"A tree has {roots} words with the head 0; exactly one must be the root.")
    reached = np.array((0, *heads))
    for _ in range(count.bit_length()):
        reached = reached[reached]  # Each pass doubles the steps toward the root.
    if reached.any():
        place = int(np.flatnonzero(reached)[0])
        raise ValueError(
            f"From word {place}, {words[place - 1]!r}, the heads form a cycle and never reach the "
            "root."
        )

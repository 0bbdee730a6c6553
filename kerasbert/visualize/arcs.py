"""Dependency trees drawn as arcs between words.

W words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kerasbert.data.trees import DependencyTree
from kerasbert.visualize.figures import new_figure, style

if TYPE_CHECKING:
    from typing import Any

    from matplotlib.figure import Figure

_MOST_INCHES = 40


@style()
def dependency_arcs(sentence: DependencyTree, edges: Any = None) -> Figure:
    """Draw a sentence's dependency tree above its words, and a probe's edges below them.

    Args:
        sentence: a `kerasbert.data.DependencyTree`, or a list of W words if there is no tree.
        edges: list of pairs of word positions from 0, as returned by `BertStructuralProbe.parse`.
            Edges outside the tree are dashed.

    Returns:
        A `Figure`.

    >>> tree = DependencyTree(("the", "dog", "barks"), (2, 3, 0))
    >>> figure = dependency_arcs(tree, edges=[(0, 1), (0, 2)])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['the', 'dog', 'barks']
    """
    from matplotlib.patches import Arc

    has_tree = isinstance(sentence, DependencyTree)
    words = list(sentence.words if has_tree else sentence)
    if not words or isinstance(sentence, (str, bytes)):
        raise ValueError(
            f"sentence={sentence!r} must be a DependencyTree or a list of one word or more."
        )
    gold = set()
    if has_tree:
        gold = {
            (min(word, head - 1), max(word, head - 1))
            for word, head in enumerate(sentence.heads)
            if head
        }
    found = _checked(edges or (), words)
    # A word's width is its number of characters, where CJK characters count twice.
    widths = np.array([max(2, sum(1 + (ord(c) > 0x1100) for c in word)) + 1.5 for word in words])
    middles = np.cumsum(widths) - widths / 2
    total = float(widths.sum())
    arcs = [(pair, 1, True) for pair in sorted(gold)]
    arcs += [(pair, -1, not has_tree or pair in gold) for pair in found]
    heights = {side: [0.0] for side in (1, -1)}
    width = min(max(3.0, 0.11 * total), _MOST_INCHES)
    figure = new_figure(width, 1.0)
    axes = figure.subplots()
    for (a, b), side, is_right in arcs:
        span = middles[b] - middles[a]
        height = 2 + 0.28 * span
        heights[side].append(height)
        axes.add_patch(
            Arc(
                ((middles[a] + middles[b]) / 2, side * 1.5),
                span,
                2 * height,
                theta1=0 if side > 0 else 180,
                theta2=180 if side > 0 else 360,
                color="black" if side > 0 else "C0" if is_right else "C3",
                linestyle="-" if is_right else "--",
                linewidth=1.2,
            )
        )
    for place, word in enumerate(words):
        axes.text(middles[place], 0, word, ha="center", va="center", fontsize=11)
    low, high = -max(heights[-1]) - 2, max(heights[1]) + 2
    axes.set(xlim=(0, total), ylim=(low, high))
    axes.set_axis_off()
    figure.set_size_inches(width, max(0.8, width * (high - low) / total))
    return figure


def _checked(edges, words):
    """Return the edges as sorted pairs of ints."""
    found = []
    for edge in edges:
        pair = tuple(sorted(int(place) for place in edge))
        if len(pair) != 2 or not 0 <= pair[0] < pair[1] < len(words):
            raise ValueError(
                f"edges has {edge!r}, which must be a pair of different words; the {len(words)} "
                f"words are numbered 0 to {len(words) - 1}."
            )
        found.append(pair)
    return sorted(found)

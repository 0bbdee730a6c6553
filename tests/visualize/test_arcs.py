"""Trees over sentences: edges above, below, and dashed."""

import pytest

from kerasbert.data import DependencyTree
from kerasbert.visualize import dependency_arcs

# Figures of values that every backend computes alike.
pytestmark = pytest.mark.backends("tensorflow")

TREE = DependencyTree(("the", "dog", "barks", "."), (2, 3, 0, 3))


def drawn(figure):
    """Return for each arc: whether it is above the words, its middle, and its line."""
    return [
        (arc.center[1] > 0, round(arc.center[0], 3), arc.get_linestyle())
        for arc in figure.axes[0].patches
    ]


def test_above_and_below():
    figure = dependency_arcs(TREE, [(1, 0), (1, 3), (2, 3)])
    places = {text.get_text(): text.get_position()[0] for text in figure.axes[0].texts}

    def middle(a, b):
        return round((places[a] + places[b]) / 2, 3)

    gold = [
        (True, middle(*pair), "-") for pair in (("the", "dog"), ("dog", "barks"), ("barks", "."))
    ]
    found = [
        (False, middle("the", "dog"), "-"),
        (False, middle("dog", "."), "--"),
        (False, middle("barks", "."), "-"),
    ]
    assert drawn(figure) == gold + found


def test_words_alone(tmp_path):
    figure = dependency_arcs(["나는", "학교에", "간다"], [(0, 2)])
    assert [(above, line) for above, _, line in drawn(figure)] == [(False, "-")]
    figure.savefig(tmp_path / "arcs.png")
    assert (tmp_path / "arcs.png").stat().st_size > 1000
    assert drawn(dependency_arcs(["one"])) == []


@pytest.mark.parametrize("edge", [(0, 4), (1, 1), (-1, 0), (0, 1, 2)])
def test_what_is_no_edge(edge):
    with pytest.raises(ValueError, match="4 words are numbered 0 to 3"):
        dependency_arcs(TREE, [edge])


@pytest.mark.parametrize("sentence", [[], "a b"])
def test_what_is_no_sentence(sentence):
    with pytest.raises(ValueError, match="must be a DependencyTree or a list"):
        dependency_arcs(sentence)

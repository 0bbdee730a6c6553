"""Figures of predictions contain the plotted data."""

import io
import warnings

import numpy as np
import pytest

from kerasbert import visualize

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


def test_confusion_matrix():
    labels = ["정치", "スポーツ", "c $x$ $"]
    gold = ["정치", "정치", *3 * labels[2:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictions = ["정치", *4 * labels[2:]]
        figure = visualize.confusion_matrix(gold, predictions, labels)
        # Figures are shown in notebooks, and are drawn by programs that may need a tight bounding
        # box.
        assert figure._repr_png_().startswith(b"\x89PNG")
        figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == "1 0 1 0 0 0 0 0 3".split()
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1]])
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
    # With many classes, there is no room for numbers.
    many = [f"class {i}" for i in range(40)]
    assert not visualize.confusion_matrix(many, many, many).axes[0].texts


def test_masked_words():
    words = [{"token": "노트 $", "score": 0.5, "text": "a"}, {"token": "b", "score": 0.25}]
    figure = visualize.masked_words([words, words[:1]])
    assert len(figure.axes) == 2
    assert [bar.get_width() for bar in figure.axes[0].patches] == [0.5, 0.25]
    assert figure.axes[0].yaxis_inverted()  # The best prediction is at the top.
    for nothing in ([], [[]]):
        with pytest.raises(ValueError, match="no words to draw"):
            visualize.masked_words(nothing)


def test_embedding_map():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 5)) * 0.01
    vectors[6:, 2] += 4
    labels = 6 * ["a"] + 6 * ["b"]
    figure = visualize.embedding_map(vectors, labels, names=[f"text {i} " * 20 for i in range(12)])
    first, second = (points.get_offsets() for points in figure.axes[0].collections)
    # The classes are at the ends of the axis with the largest variance.
    assert abs(first[:, 0].mean() - second[:, 0].mean()) == pytest.approx(4, abs=0.1)
    assert figure.axes[0].get_xlabel() == "component 1, 100% of the variance"
    assert len(figure.axes[0].texts) == 12
    figure = visualize.embedding_map(vectors, method="tsne")
    assert figure.axes[0].get_legend() is None
    assert len(figure.axes[0].collections[0].get_offsets()) == 12
    broken = vectors.copy()
    broken[3, 1] = np.nan
    for arguments, message in (
        ((vectors[:2],), r"N of 3 or more .*, got the shape \(2, 5\)"),
        ((vectors[0],), r"got the shape \(5,\)"),
        ((broken,), "position 3"),
        ((vectors, ["a"]), "Expected 12 labels.* got 1"),
        ((vectors, None, None, "umap"), "method='umap' is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            visualize.embedding_map(*arguments)

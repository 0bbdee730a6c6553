"""Figures of predictions: confusion matrices, fill-mask probabilities and embedding maps.

N texts, C classes, D width of an embedding.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.visualize.figures import new_figure, style

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_MOST_NUMBERS = 20  # With more classes, cells are too small for numbers.
_MOST_NAMES = 60  # Maximum number of points with drawn names.


@style()
def confusion_matrix(gold: Any, predictions: Any, labels: Sequence[str]) -> Figure:
    """Draw a confusion matrix.

    Args:
        gold: list of N class names. The true classes.
        predictions: list of N class names.
        labels: list of C strings. The classes in the order of rows and columns.

    Returns:
        A `Figure`. Numbers are counts. Colors show each count's share of its true class.

    >>> figure = confusion_matrix(["a", "b"], ["a", "a"], labels=["a", "b"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1', '0', '1', '0']
    """
    from sklearn import metrics

    counts = metrics.confusion_matrix(gold, predictions, labels=list(labels))  # (C, C)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(4.0, 0.6 * len(labels) + 2), 16)
    figure = new_figure(side + 1, side)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="share of the class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    places = range(len(labels))
    axes.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, labels)
    if len(labels) <= _MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=color)
    return figure


@style()
def masked_words(found: Any) -> Figure:
    """Draw the probabilities of the words predicted for masks.

    Args:
        found: the result of `fill_mask` for one text: a list of dicts of `token` and `score`, or,
            for several masks, a list of such lists.

    Returns:
        A `Figure` with a panel for each mask.

    >>> figure = masked_words([{"token": "noon", "score": 0.7}, {"token": "home", "score": 0.1}])
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['noon', 'home']
    """
    gaps = [found] if found and isinstance(found[0], dict) else list(found)
    if not all(gaps) or not gaps:
        raise ValueError("found has no words to draw; pass the result of fill_mask for one text.")
    figure = new_figure(4.5 * len(gaps), 0.8 + 0.32 * max(map(len, gaps)))
    for axes, words in zip(figure.subplots(1, len(gaps), squeeze=False)[0], gaps):
        scores = [word["score"] for word in words]
        places = range(len(words))
        axes.barh(places, scores, color="tab:blue", alpha=0.75)
        for place, score in zip(places, scores):
            axes.text(score, place, f" {score:.1%}", va="center", color="0.3", fontsize="small")
        axes.set_yticks(places, [word["token"] for word in words])
        axes.set(xlim=(0, max(scores) * 1.2), xlabel="probability", ylim=(len(words) - 0.5, -0.5))
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=5)  # With more ticks, their labels would overlap.
    return figure


@style()
def embedding_map(
    vectors: ArrayLike,
    labels: Any = None,
    names: Sequence[str] | None = None,
    method: str = "pca",
    seed: int = 0,
) -> Figure:
    """Draw embeddings as points in two dimensions.

    Args:
        vectors: (N, D), for example from `BertTextEmbedder.embed`.
        labels: list of N classes. Points of a class have the same color.
        names: list of N strings. Names of the points, of which up to 60 are drawn.
        method: "pca" draws the two directions of greatest variance; "tsne" keeps neighbors
            together, but distances mean nothing.
        seed: seed of "tsne".

    Returns:
        A `Figure`. With "pca", axis labels have the explained share of the variance.

    >>> figure = embedding_map(np.eye(4)[:, :3], labels=["a", "a", "b", "b"])
    >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    ['a', 'b']
    """
    vectors = np.asarray(vectors, "float64")
    if vectors.ndim != 2 or len(vectors) < 3 or vectors.shape[1] < 2:
        raise ValueError(
            "vectors must be an array (N, D) with N of 3 or more and D of 2 or more, got the shape "
            f"{vectors.shape}."
        )
    if not np.isfinite(vectors).all():
        row = np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0]
        raise ValueError(f"vectors has a number that is not finite at position {row}.")
    for what, values in (("labels", labels), ("names", names)):
        if values is not None and len(values) != len(vectors):
            raise ValueError(f"Expected {len(vectors)} {what}, one per vector, got {len(values)}.")
    points, titles = _on_a_plane(vectors, method, seed)
    figure = new_figure(7, 5.5)
    axes = figure.subplots()
    labels = [None] * len(points) if labels is None else [str(label) for label in labels]
    kinds = list(dict.fromkeys(labels))
    size = float(np.clip(3000 / len(points), 6, 40))
    for number, kind in enumerate(kinds):
        here = points[[label == kind for label in labels]]
        # The marker changes after ten classes, because there are ten colors.
        marker = "osD^vPX"[number // 10 % 7]
        style = {"color": f"C{number % 10}", "marker": marker, "s": size, "alpha": 0.75}
        axes.scatter(*here.T, label=kind, linewidths=0, **style)
    if names is not None and len(points) <= _MOST_NAMES:
        for point, name in zip(points, names):
            short = textwrap.shorten(str(name), 40, placeholder="…") or str(name)[:40]
            axes.annotate(
                short, point, (4, 3), textcoords="offset points", fontsize="x-small", color="0.3"
            )
        axes.margins(x=0.2)
    if kinds != [None]:
        axes.legend(
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
            ncols=1 + len(kinds) // 25,
            markerscale=(40 / size) ** 0.5,
        )
    axes.set(xlabel=titles[0], ylabel=titles[1], xticks=[], yticks=[])
    return figure


def _on_a_plane(vectors, method, seed):
    """Return points (N, 2) and the axis labels."""
    if method == "pca":
        from sklearn.decomposition import PCA

        model = PCA(2)
        points = model.fit_transform(vectors)
        shares = np.nan_to_num(model.explained_variance_ratio_)
        return points, [f"component {i + 1}, {s:.0%} of the variance" for i, s in enumerate(shares)]
    if method == "tsne":
        from sklearn.manifold import TSNE

        model = TSNE(2, perplexity=min(30, (len(vectors) - 1) / 3), init="pca", random_state=seed)
        return model.fit_transform(vectors), ["t-SNE", ""]
    raise ValueError(f"method={method!r} is unknown; use 'pca' or 'tsne'.")

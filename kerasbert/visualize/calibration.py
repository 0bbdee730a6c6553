"""Figures of `advise`: learning curves and reliability diagrams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerasbert.visualize.figures import new_figure, style

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from matplotlib.figure import Figure


@style()
def label_curves(curves: Mapping[str, Any], metric: str) -> Figure:
    """Draw scores of several systems over the number of training labels, with intervals.

    Args:
        curves: dict of title to a list of points. A point has `labels`, the number of training
            labels, and under the metric's name a dict of `value`, `low` and `high`.
        metric: the metric's name.

    Returns:
        A `Figure`.

    >>> point = {"labels": 10, "accuracy": {"value": 0.5, "low": 0.4, "high": 0.6}}
    >>> label_curves({"one": [point]}, "accuracy").axes[0].get_ylabel()
    'accuracy'
    """
    figure = new_figure(6, 4)
    axes = figure.subplots()
    for title, curve in curves.items():
        labels = [point["labels"] for point in curve]
        low, value, high = ([point[metric][x] for point in curve] for x in ("low", "value", "high"))
        (line,) = axes.plot(labels, value, "o-", markersize=3, label=title)
        axes.fill_between(labels, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    axes.set(xlabel="training labels", ylabel=metric.replace("_f1", "-F1"), xscale="log")
    ticks = sorted({point["labels"] for curve in curves.values() for point in curve})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


@style()
def reliability_diagram(systems: Mapping[str, Any]) -> Figure:
    """Draw accuracy over confidence, one panel per system.

    Args:
        systems: dict of title to the panel's lines, a dict of name, such as "as it is", to the
            result of `kerasbert.metrics.reliability`.

    Returns:
        A `Figure`. Perfect calibration is on the diagonal.

    >>> rows = [{"confidence": 0.9, "accuracy": 0.8, "share": 1.0}]
    >>> reliability_diagram({"TF-IDF": {"as it is": rows}}).axes[0].get_title()
    'TF-IDF'
    """
    figure = new_figure(max(3.4 * len(systems), 5), 3.9)
    for axes, (title, lines) in zip(
        figure.subplots(1, len(systems), squeeze=False)[0], systems.items()
    ):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, rows in lines.items():
            confidence, accuracy = ([row[x] for row in rows] for x in ("confidence", "accuracy"))
            (line,) = axes.plot(confidence, accuracy, "-", linewidth=1, label=name)
            # A point's size shows its number of predictions.
            sizes = [4 + 120 * row["share"] for row in rows]
            axes.scatter(confidence, accuracy, sizes, color=line.get_color(), alpha=0.7)
        axes.set(title=title, xlabel="confidence", ylabel="accuracy")
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure

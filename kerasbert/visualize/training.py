"""Training curves: losses and scores over steps or epochs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.files import read_log
from kerasbert.visualize.figures import new_figure, style

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from matplotlib.figure import Figure

# Fields in the rows of a log that are neither losses nor scores.
_FACTS = (
    "epoch",
    "learning_rate",
    "phase",
    "seconds",
    "sequence_length",
    "step",
    "tokens_per_second",
)
_HELD_OUT = ("val_", "held_out_")


@style()
def training_curves(history: Any) -> Figure:
    """Draw the losses and scores of a training run, a panel per kind.

    Args:
        history: the result of `fit`; the `output` folder of `kerasbert.pretrain`, or its
            `log.jsonl`; a list of dicts, one per step or epoch; or a dict of lists, as in
            `History.history`.

    Returns:
        A `Figure`. Held-out values are dashed. Of a loss with parts, only these are drawn.

    >>> figure = training_curves({"loss": [2.0, 1.0], "val_loss": [2.1, 1.5], "f1": [0.2, 0.6]})
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['loss', 'f1']
    """
    rows = _rows(history)
    unit = "step" if "step" in rows[0] else "epoch"
    panels = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        is_number = all(isinstance(row.get(name, 0), (int, float, np.number)) for row in rows)
        if name not in _FACTS and is_number:
            panels.setdefault(name.rpartition("_")[2], []).append(name)
    if not panels:
        raise ValueError("history has no losses or scores to draw.")
    kinds = sorted(panels, key=lambda kind: kind != "loss")
    across = min(len(kinds), 3)
    down = -(-len(kinds) // across)
    figure = new_figure(5 * across, 4 * down)
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes, kind in zip(grid, kinds):
        parts = [name for name in panels[kind] if _plain(name) != kind]
        names = sorted(parts or panels[kind], key=lambda name: (_plain(name), _is_held_out(name)))
        colors = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(map(_plain, names)))}
        for name in names:
            there = [row for row in rows if row.get(name) is not None]
            held_out = _is_held_out(name)
            label = [_plain(name).removesuffix(kind).rstrip("_")] if parts else []
            axes.plot(
                [row[unit] for row in there],
                [row[name] for row in there],
                "o--" if held_out or len(there) == 1 else "-",
                color=colors[_plain(name)],
                markersize=3,
                label=", ".join(label + ["held out" if held_out else "training"]),
            )
        axes.set(xlabel=unit, ylabel=kind)
        axes.grid(alpha=0.3)
        axes.legend()
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in list(grid):
        axes.set_axis_off()
    return figure


def _rows(history):
    """Return the history as a list of dicts, each with its step or epoch."""
    epochs = getattr(history, "epoch", None)
    history = getattr(history, "history", history)
    if isinstance(history, (str, os.PathLike)):
        path = os.path.expanduser(os.fspath(history))
        if os.path.isdir(path):
            path = os.path.join(path, "log.jsonl")
        if not os.path.isfile(path):
            raise ValueError(
                f"There is no log '{path}'; pass the output folder of pretrain, or its log.jsonl."
            )
        rows = read_log(path)
    elif isinstance(history, dict):
        count = max((len(values) for values in history.values()), default=0)
        rows = [
            {name: values[i] for name, values in history.items() if i < len(values)}
            for i in range(count)
        ]
    else:
        rows = [dict(row) for row in history]
    if not rows:
        raise ValueError("history is empty; there is nothing to draw.")
    if not all("step" in row or "epoch" in row for row in rows):
        numbers = range(len(rows)) if not epochs else epochs
        rows = [{**row, "epoch": number + 1} for row, number in zip(rows, numbers)]
    return rows


def _is_held_out(name):
    return name.startswith(_HELD_OUT)


def _plain(name):
    for prefix in _HELD_OUT:
        name = name.removeprefix(prefix)
    return name


@style()
def finetuning_curves(runs: Sequence[Any], best: str, metric: str) -> Figure:
    """Draw all runs' training loss and validation score, the best in color.

    Args:
        runs: list of dicts of `run` and `history`, as returned by `kerasbert.finetune`.
        best: name of the best run.
        metric: name of the score.

    Returns:
        A `Figure`.

    >>> history = [{"epoch": 1, "loss": 0.5, "losses": [], "scores": {"f1": 0.8}}]
    >>> figure = finetuning_curves([{"run": "seed0", "history": history}], "seed0", "f1")
    >>> figure.axes[1].get_ylabel()
    'validation f1'
    """
    figure = new_figure(10, 4)
    loss, score = figure.subplots(1, 2)
    for run in sorted(runs, key=lambda run: run["run"] == best):
        is_best = run["run"] == best
        line = {"color": "tab:blue"} if is_best else {"color": "0.8", "linewidth": 1}
        loss.plot(*zip(*_losses(run["history"])), **line)
        dev = [(row["epoch"], row["scores"].get(metric, np.nan)) for row in run["history"]]
        label = run["run"] if is_best else None
        score.plot(*zip(*dev), marker="o", label=label, **line)
    loss.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    score.set(xlabel="epoch", ylabel=f"validation {metric}")
    score.xaxis.get_major_locator().set_params(integer=True)
    score.legend()
    for axes in (loss, score):
        axes.grid(alpha=0.3)
    return figure


def _losses(history):
    """Yield `(epoch, loss)` of a run.

    Losses within an epoch have a fractional epoch.
    """
    for row in history:
        steps = [(count, value) for count, value in row["losses"] if value is not None]
        if not steps:
            yield row["epoch"], np.nan if row["loss"] is None else row["loss"]
        for count, value in steps:
            yield row["epoch"] - 1 + count / row["losses"][-1][0], value

"""The pictures of a fine-tuning, as PNG; they need matplotlib.

C classes.
"""

import contextlib
import logging
import warnings

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure

from kerasbert._files import new_file

# Fonts with the letters of Korean, Japanese and Chinese, which matplotlib's own has not.
_FONTS = (
    "Noto Sans CJK KR",
    "Noto Sans CJK JP",
    "NanumGothic",
    "Malgun Gothic",
    "AppleGothic",
    "IPAGothic",
    "Yu Gothic",
    "Hiragino Sans",
)
_MOST_NUMBERS = 20  # With more classes the squares have no room for them.


def learning_curve(path, runs, best, metric):
    """Draw the training loss and the score on dev of all runs, the best one in colour.

    Args:
        path: string. The file.
        runs: list of dicts of `run` and `history`, as `finetune` returns them.
        best: string. The name of the best run.
        metric: string. The score.
    """
    with _style():
        figure = Figure(figsize=(10, 4), layout="constrained")
        loss, score = figure.subplots(1, 2)
        for run in sorted(runs, key=lambda run: run["run"] == best):
            is_best = run["run"] == best
            line = {"color": "tab:blue"} if is_best else {"color": "0.8", "linewidth": 1}
            points = list(_losses(run["history"]))
            loss.plot(*zip(*points), **line)
            dev = [(row["epoch"], row["scores"].get(metric, np.nan)) for row in run["history"]]
            label = run["run"] if is_best else None
            score.plot(*zip(*dev), marker="o", label=label, **line)
        loss.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
        score.set(xlabel="epoch", ylabel=f"{metric} on dev")
        score.xaxis.get_major_locator().set_params(integer=True)
        score.legend()
        for axes in (loss, score):
            axes.grid(alpha=0.3)
        _save(figure, path)


def _losses(history):
    """`(epoch, loss)` of the parts of each epoch; of one with a single step, of its end."""
    for row in history:
        steps = [(count, value) for count, value in row["losses"] if value is not None]
        if not steps:
            yield row["epoch"], np.nan if row["loss"] is None else row["loss"]
        for count, value in steps:
            yield row["epoch"] - 1 + count / row["losses"][-1][0], value


def confusion(path, gold, predictions, labels):
    """Draw which classes are taken for which.

    Args:
        path: string. The file.
        gold: list of names of classes.
        predictions: the same.
        labels: list of C strings. The classes in their order.
    """
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(gold, predictions, labels=list(labels))  # (C, C)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    with _style():
        side = min(max(4.0, 0.6 * len(labels) + 2), 16)
        figure = Figure(figsize=(side + 1, side), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(image, label="share of the class", shrink=0.8)
        axes.set(xlabel="predicted", ylabel="right")
        places = range(len(labels))
        axes.set_xticks(places, labels, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, labels)
        if len(labels) <= _MOST_NUMBERS:
            for row in places:
                for column in places:
                    color = "white" if shares[row, column] > 0.5 else "black"
                    number = f"{counts[row, column]:,}"
                    axes.text(column, row, number, ha="center", va="center", color=color)
        _save(figure, path)


@contextlib.contextmanager
def _style():
    """Fonts with all letters where there are any, and no word about letters that stay boxes."""
    there = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in _FONTS if name in there)]
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context({"font.family": fonts}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")
            yield
    finally:
        logger.setLevel(level)


def _save(figure, path):
    with new_file(path) as file:
        figure.savefig(file, format="png", dpi=120)

"""The figures of `advise`."""

import numpy as np
import pytest

from kerasbert.metrics import reliability
from kerasbert.visualize import label_curves, reliability_diagram

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.


def test_label_curves():
    def point(labels, value):
        return {"labels": labels, "macro_f1": {"value": value, "low": value - 0.1, "high": 0.9}}

    figure = label_curves(
        {"TF-IDF": [point(1000, 0.5), point(2000, 0.6)], "LoRA": [point(1000, 0.4)]}, "macro_f1"
    )
    (axes,) = figure.axes
    assert axes.get_ylabel() == "macro-F1" and axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1,000", "2,000"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["TF-IDF", "LoRA"]


def test_reliability_diagram():
    rows = reliability([0, 1], np.array([[0.9, 0.1], [0.2, 0.8]]))
    figure = reliability_diagram({"한국어": {"as it is": rows}, "b": {"as it is": rows}})
    assert [axes.get_title() for axes in figure.axes] == ["한국어", "b"]
    assert len(figure.legends) == 1
    figure.canvas.draw()

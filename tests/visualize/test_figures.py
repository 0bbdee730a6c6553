"""Figures change no global settings, and errors name missing packages."""

import sys

import matplotlib
import pytest

from kerasbert import visualize

# No backend is involved.
pytestmark = pytest.mark.backends("tensorflow")


def test_pictures_leave_no_settings_behind():
    before = dict(matplotlib.rcParams)
    visualize.masked_words([{"token": "a", "score": 1.0}])._repr_png_()
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        visualize.masked_words([{"token": "a", "score": 1.0}])
    # HTML needs no font.
    assert "<mark" in visualize.entities("a", [(0, 1, "X")])._repr_html_()

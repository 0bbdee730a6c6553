"""The campaign of planted folders in short; the whole of it is run by hand, see `planted.py`."""

import os

import pytest

from tests.campaigns import planted


@pytest.mark.backends("tensorflow")
def test_planted_folders(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    assert planted.run(30, seed=1) == []

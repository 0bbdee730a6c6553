"""A short run of the campaign of planted folders; see `planted.py` for the long one."""

import os

import pytest

from tests.campaigns import planted


@pytest.mark.backends("tensorflow")
def test_planted_folders(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    assert planted.run(30, seed=1) == []

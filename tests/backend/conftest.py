"""Fixtures of the tests of kernels."""

import pytest

from tests.backend.test_kernels import OWN


@pytest.fixture
def as_on_gpu(monkeypatch):
    if hasattr(OWN, "on_gpu"):
        monkeypatch.setattr(OWN, "on_gpu", lambda: True)

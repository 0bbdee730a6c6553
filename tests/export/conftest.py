"""Exports for tests, as cheap as the backend allows."""

import pytest

from tests.export import tiny

# Each signature is traced, written, loaded and compared, so a test writes only the one it needs.
ONE = {"signatures": ["serving_default"]}


@pytest.fixture
def export(tmp_path, monkeypatch):
    """`export_serving` into a folder of `tmp_path`, without a child process on TensorFlow."""
    from kerasbert.export import export_serving

    tiny.write_here(monkeypatch)
    return lambda model, name="base", **settings: export_serving(model, tmp_path / name, **settings)

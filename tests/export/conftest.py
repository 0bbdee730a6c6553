"""Exports for tests, as cheap as the backend lets them be."""

import pytest

from tests.export import tiny

# Each signature is traced, written, loaded and compared: a test that asks one writes one.
ONE = {"signatures": ["serving_default"]}


@pytest.fixture
def export(tmp_path, monkeypatch):
    """`export_serving` into a folder of `tmp_path`, with no process of its own on TensorFlow."""
    from kerasbert.export import export_serving

    tiny.write_here(monkeypatch)
    return lambda model, name="base", **settings: export_serving(model, tmp_path / name, **settings)

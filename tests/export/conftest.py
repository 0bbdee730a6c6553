"""Exports for tests, as cheap as the backend lets them be."""

import keras
import pytest


@pytest.fixture
def export(tmp_path, monkeypatch):
    """`export_serving` into a folder of `tmp_path`, with no process of its own on TensorFlow."""
    from kerasbert.export import export_serving, serving, write_saved_model

    if keras.backend.backend() == "tensorflow":
        main = write_saved_model.main
        monkeypatch.setattr(serving, "run_child", lambda _, folder, *more: main(folder))
    return lambda model, name="base", **settings: export_serving(model, tmp_path / name, **settings)

"""Names and marks for the examples in docstrings."""

import gc

import numpy as np
import pytest

gc.disable()  # Collect no garbage until all tests are collected, because imports leave hardly any.


def pytest_configure(config):
    # Keras converts tensors and variables by `np.array(x)`. Their `__array__` (PyTorch 2.13,
    # TensorFlow 2.21, Keras 3.15) lacks NumPy 2's `copy` argument and warns each time.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    )


# These files have no examples, and import packages of the extra `play` or of one backend.
collect_ignore = ["kerasbert/play/server.py"]
collect_ignore_glob = [f"kerasbert/backend/{name}_*.py" for name in ("jax", "tensorflow", "torch")]
# Examples that need packages of the extra `peers`; docstrings cannot have marks.
_PEERS = {"kerasbert.export.onnx.export_onnx"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name in _PEERS:
            item.add_marker(pytest.mark.peers)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace["np"] = np

"""What the examples in docstrings may use without importing it, and the marks they cannot bear."""

import gc

import numpy as np
import pytest

gc.disable()  # Until all tests are collected: hardly anything that imports leave is garbage.


def pytest_configure(config):
    # Keras turns tensors and variables into arrays by `np.array(x)`; their `__array__` (of PyTorch
    # 2.13, TensorFlow 2.21 and Keras 3.15) does not know NumPy 2's `copy`, and each time warns.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    )


# It imports what the extra `play` installs, and has no examples.
collect_ignore = ["kerasbert/play/server.py"]
# Examples that need what the extra `peers` installs: a docstring has no place for a mark.
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

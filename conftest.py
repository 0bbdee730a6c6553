"""What the examples in docstrings may use without importing it."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace["np"] = np

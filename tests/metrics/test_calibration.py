"""Calibration: computed by hand, and the effect of a temperature."""

import numpy as np
import pytest

from kerasbert.metrics import (
    expected_calibration_error,
    fit_temperature,
    reliability,
    with_temperature,
)

pytestmark = pytest.mark.backends("tensorflow")  # No backend is involved.


def drawn(temperature, count=4000, classes=3):
    """Return labels drawn from probabilities, and these made overconfident by dividing their
    logits.
    """
    random = np.random.default_rng(0)
    true = random.dirichlet(np.ones(classes), count)
    y = (random.random((count, 1)) > true.cumsum(axis=1)).sum(axis=1)
    return y, with_temperature(true, 1 / temperature)


def test_by_hand():
    y = np.array([0, 0, 1, 1])
    rows = np.array([[0.95, 0.05], [0.55, 0.45], [0.55, 0.45], [0.0, 1.0]])
    found = reliability(y, rows, bins=10)
    assert [row["share"] for row in found] == [0.5, 0.5]
    assert [row["accuracy"] for row in found] == [0.5, 1.0]
    # |0.55 - 0.5| and |0.975 - 1|, half of the rows each.
    assert expected_calibration_error(y, rows, 10) == pytest.approx(0.0375)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_is_found(temperature):
    y, rows = drawn(temperature)
    assert fit_temperature(y, rows) == pytest.approx(temperature, rel=0.06)
    mended = with_temperature(rows, fit_temperature(y, rows))
    assert expected_calibration_error(y, mended) < 0.03
    if temperature != 1:
        assert expected_calibration_error(y, rows) > 0.08
    assert (mended.argmax(axis=1) == rows.argmax(axis=1)).all()


def test_ends():
    assert fit_temperature([1, 0], [[1.0, 0.0], [0.0, 1.0]]) == pytest.approx(np.exp(3), rel=0.01)
    assert expected_calibration_error([0], [[1.0, 0.0]]) == 0


@pytest.mark.parametrize(
    ("y", "rows", "said"),
    [
        ([], np.zeros((0, 2)), "at least one example"),
        ([0], [[0.5, 0.5], [0.5, 0.5]], "shape"),
        ([2], [[0.5, 0.5]], "numbers of the 2 classes"),
        ([0.5], [[0.5, 0.5]], "numbers of the 2 classes"),
        ([0], [[3.0, -2.0]], "must not be negative"),
        ([0], [[np.nan, 1.0]], "must not be negative"),
        ([0], [[3.0, 2.0]], "sum to 1"),
    ],
)
def test_bad_input(y, rows, said):
    with pytest.raises(ValueError, match=said):
        expected_calibration_error(y, rows)
    with pytest.raises(ValueError, match="temperature=0"):
        with_temperature([[0.5, 0.5]], 0)

"""Thresholds, abstention, calibration and class sets of a classifier."""

import numpy as np
import pytest

from kerasbert import convert
from kerasbert.heads.base.served_models import served
from kerasbert.heads.text_classifier.confidence import class_thresholds, describe
from kerasbert.metrics import expected_calibration_error
from kerasbert.models import BertTextClassifier
from tests.contracts import array
from tests.export import tiny

pytestmark = pytest.mark.backends("torch")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [" ".join(LETTERS[i : i + 4]) for i in range(22)] * 2
NAMES = ["ham", "spam", "größer ✓"]


def test_the_label_is_the_most_probable_above_its_threshold():
    row = np.array([0.2, 0.5, 0.3])
    labels = lambda limits: describe(list("abc"), row, False, limits)["label"]  # noqa: E731
    assert labels(None) == "b" and labels(class_thresholds(0.4, list("abc"), False)) == "b"
    assert labels(class_thresholds(0.6, list("abc"), False)) is None
    assert labels(class_thresholds({"b": 0.6}, list("abc"), False)) == "c"
    found = describe(list("abc"), row, True, class_thresholds([0.1, 0.6, 0.2], list("abc"), True))
    assert found["labels"] == ["a", "c"]
    for share in (0.25, 0.35):
        limits = class_thresholds({"spam": 0.3}, ["ham", "spam"], False)
        found = describe(["ham", "spam"], np.array([1 - share, share]), False, limits)
        assert found["label"] == ("spam" if share > 0.3 else "ham")


def test_thresholds_that_do_not_fit_are_one_sentence():
    model = tiny.task("TextClassifier")
    for threshold, message in (
        ([0.5], "threshold has 1 numbers for the 3 classes ham, spam"),
        ({"spma": 0.5}, "threshold has the class 'spma', .*did you mean 'spam'"),
        (1.5, "The threshold of 'ham' is 1.5; it must be a number from 0 to 1"),
        ("high", "The threshold of 'ham' is 'high'"),
    ):
        with pytest.raises(ValueError, match=message):
            model.classify("a", threshold=threshold)
    with pytest.raises(ValueError, match="None of the 44 held-out texts is of the class 'ham'"):
        model.tune_thresholds(TEXTS, ["spam"] * 44)
    with pytest.raises(ValueError, match="label 'x' at position 0 is unknown"):
        model.calibrate(TEXTS, ["x"] * 44)
    with pytest.raises(ValueError, match="needs held-out texts with labels; pass lists"):
        model.calibrate("a", "ham")
    with pytest.raises(ValueError, match="coverage=0.99 needs at least 99 held-out examples"):
        model.conformal_threshold(TEXTS, ["ham"] * 44, coverage=0.99)


def test_calibrated_probabilities_stay_with_the_preset(tmp_path):
    model = tiny.task("TextClassifier", scale=1.0)
    rows = model.predict_proba(TEXTS)
    # The labels are random, so any confidence is too high.
    y = np.random.default_rng(0).integers(0, 3, len(TEXTS))
    assert model.calibrate(TEXTS, y) > 1
    calibrated = model.predict_proba(TEXTS)
    assert expected_calibration_error(y, calibrated) < expected_calibration_error(y, rows)
    assert (calibrated.argmax(1) == rows.argmax(1)).all()
    model.save_to_preset(tmp_path)
    again = BertTextClassifier.from_preset(tmp_path)
    np.testing.assert_allclose(again.predict_proba(TEXTS), calibrated, atol=1e-6)
    assert BertTextClassifier.from_preset(tmp_path, labels=["x", "y"]).temperature == 1
    features = again.preprocessor(TEXTS[:3])  # The logits of all exports are those of `run`.
    with pytest.warns(UserWarning, match="no place for the temperature .* are not calibrated"):
        convert(again, tmp_path / "out", format="huggingface")
    logits = array(served(again).run(features)["logits"])
    np.testing.assert_allclose(logits * again.temperature, array(again(features)), atol=1e-5)
    with pytest.warns(UserWarning, match="Training resets the temperature"):
        again.fit(TEXTS[:4], y[:4], verbose=0)
    assert again.temperature == 1
    several = tiny.task("TextClassifier", multi_label=True, activation="sigmoid", scale=1.0)
    rows = several.predict_proba(TEXTS)
    assert several.calibrate(TEXTS, np.eye(3)[y]) != 1
    found = several.predict_proba(TEXTS)
    assert ((found > 0.5) == (rows > 0.5)).all() and np.abs(found - rows).max() > 0.01


def test_tuned_thresholds_and_class_sets():
    model = tiny.task("TextClassifier", labels=["ham", "spam"])
    scores = model.predict_proba(TEXTS)[:, 1]
    y = (scores > np.quantile(scores, 0.8)).astype(int)  # Only a high threshold separates these.
    found = model.tune_thresholds(TEXTS, y)
    labels = [row["label"] for row in model.classify(TEXTS, threshold=found)]
    assert labels == [["ham", "spam"][i] for i in y]
    assert found["ham"] == 1 - found["spam"]
    precise = model.tune_thresholds(TEXTS, y, precision=1.0)
    assert set(precise) == {"ham", "spam"}
    threshold = model.conformal_threshold(TEXTS, y, coverage=0.9)
    sets = model.class_sets(TEXTS, threshold)
    covered = np.mean([["ham", "spam"][i] in one for i, one in zip(y, sets)])
    assert covered >= 0.9 and model.class_sets(TEXTS[0], 0.0) in (["ham", "spam"], ["spam", "ham"])
    several = tiny.task("TextClassifier", multi_label=True)
    y = (several.predict_proba(TEXTS) > 0.6).astype(int)
    if y.any(axis=0).all():
        found = several.tune_thresholds(TEXTS, y)
        labels = [row["labels"] for row in several.classify(TEXTS, threshold=found)]
        assert labels == [[n for n, one in zip(NAMES, row) if one] for row in y]
    with pytest.raises(ValueError, match="is for one class per text"):
        several.conformal_threshold(TEXTS, y)

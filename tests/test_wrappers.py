"""scikit-learn's estimators, with the real library."""

import pickle

import numpy as np
import pandas
import pytest

from kerasbert import wrappers
from kerasbert.wrappers import (
    SKLearnTextClassifier,
    SKLearnTextEmbedder,
    SKLearnTextRegressor,
    SKLearnTokenClassifier,
)
from tests.peers import Peer

pytestmark = pytest.mark.slow
sklearn = Peer("sklearn")
checks = Peer("sklearn.utils.estimator_checks")
selection = Peer("sklearn.model_selection")

TEXTS = ["good film", "bad film", "fine one", "poor one"] * 6
NAMES = ["pos", "neg"] * 12
# Those of scikit-learn's checks that need no input: it runs the others on tables of numbers only.
CHECKS = (
    "no_attributes_set_in_init parameters_default_constructible get_params_invariance set_params "
    "valid_tag_types estimator_tags_renamed mixin_order do_not_raise_errors_in_init_or_set_params "
    "estimator_repr"
)


@pytest.mark.parametrize("name", wrappers.__all__)
def test_checks_of_scikit_learn(name):
    cls = getattr(wrappers, name)
    with pytest.warns(match="Can't test estimator"):
        found = checks.check_estimator(cls())
    assert [each["status"] for each in found] == ["passed"]
    for check in CHECKS.split():
        getattr(checks, f"check_{check}")(name, cls())


@pytest.fixture
def classifier(tiny_preset):
    return SKLearnTextClassifier(
        tiny_preset, epochs=2, batch_size=4, learning_rate=0.01, random_state=1, sequence_length=8
    )


def test_classifier(classifier):
    before = np.random.get_state()[1].copy()
    probabilities = classifier.fit(TEXTS, NAMES).predict_proba(TEXTS[:3])
    assert (np.random.get_state()[1] == before).all()
    assert classifier.classes_.tolist() == ["neg", "pos"]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    found = np.array(
        [each["probabilities"]["pos"] for each in classifier.model_.classify(TEXTS[:3])]
    )
    np.testing.assert_allclose(probabilities[:, 1], found, atol=1e-6)
    expected = classifier.classes_[probabilities.argmax(axis=1)]
    assert classifier.predict(TEXTS[:3]).tolist() == expected.tolist()
    assert classifier.predict([]).shape == (0,)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(TEXTS[:3]), probabilities)
    other = sklearn.base.clone(classifier).fit(TEXTS, NAMES)
    np.testing.assert_array_equal(other.predict_proba(TEXTS[:3]), probabilities)


def test_learns(tiny_preset):
    model = SKLearnTextClassifier(tiny_preset, epochs=30, learning_rate=0.01, random_state=0)
    assert model.fit(TEXTS, NAMES).score(TEXTS, NAMES) == 1.0


@pytest.mark.parametrize(
    "y",
    [[3, 7] * 12, [True, False] * 12, pandas.Series(NAMES), pandas.Series(NAMES, dtype="category")],
)
def test_classes_keep_their_type(classifier, y):
    classifier.set_params(epochs=1).fit(TEXTS, y)
    assert set(classifier.predict(TEXTS).tolist()) <= set(np.asarray(y).tolist())


def test_forms_of_texts(classifier):
    frame = pandas.DataFrame({"a": TEXTS, "b": TEXTS[::-1], "c": range(24)})
    arrays = (TEXTS, np.array(TEXTS), np.array(TEXTS)[:, None], frame["a"], frame[["a"]])
    expected = classifier.fit(TEXTS, NAMES).predict_proba(TEXTS)
    for x in arrays:
        np.testing.assert_allclose(classifier.predict_proba(x), expected, atol=1e-6)
    found = classifier.fit(TEXTS, np.array(NAMES)[:, None]).predict_proba(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    pairs = frame[["a", "b"]]
    expected = classifier.fit(pairs, NAMES).predict_proba(pairs)
    np.testing.assert_allclose(classifier.predict_proba(pairs.to_numpy()), expected, atol=1e-6)
    with pytest.raises(ValueError, match="3 columns"):
        classifier.fit(frame, NAMES)


def test_several_labels_per_text(classifier):
    y = np.array([[1, 0, 1], [0, 1, 1]] * 12)
    assert classifier.fit(TEXTS, y).predict(TEXTS).shape == (24, 3)
    assert set(np.unique(classifier.predict(TEXTS))) <= {0, 1}


@pytest.mark.parametrize(
    "x, y, message",
    [
        ("good film", NAMES, "pass a list of texts"),
        (TEXTS, ["pos"] * 24, "one class"),
        (TEXTS, np.arange(24) + 0.5, "continuous"),
        (TEXTS, NAMES[1:], "23"),
        (TEXTS, np.arange(48).reshape(24, 2), "1d array"),
        (TEXTS, [1, "1"] * 12, "one class|equal names"),
    ],
)
def test_bad_input(classifier, x, y, message):
    with pytest.raises(ValueError, match=message):
        classifier.fit(x, y)


def test_before_fit(classifier, tiny_preset):
    with pytest.raises(sklearn.exceptions.NotFittedError, match="call fit"):
        classifier.predict(TEXTS)
    with pytest.raises(sklearn.exceptions.NotFittedError, match="call fit"):
        SKLearnTextEmbedder(tiny_preset).transform(TEXTS)


def test_model_selection(classifier):
    scores = selection.cross_val_score(classifier, TEXTS, NAMES, cv=2)
    assert scores.shape == (2,) and np.isfinite(scores).all()
    search = selection.GridSearchCV(classifier, {"learning_rate": [1e-4, 0.05]}, cv=2)
    assert search.fit(TEXTS, NAMES).best_params_["learning_rate"] in (1e-4, 0.05)
    calibrated = Peer("sklearn.calibration").CalibratedClassifierCV(classifier, cv=2)
    assert calibrated.fit(TEXTS, NAMES).predict_proba(TEXTS).shape == (24, 2)


def test_regressor(tiny_preset):
    regressor = SKLearnTextRegressor(tiny_preset, epochs=40, learning_rate=0.02, random_state=0)
    y = [float(len(text) - 8) for text in TEXTS]
    assert regressor.fit(TEXTS, y, sample_weight=np.ones(24)).score(TEXTS, y) > 0.5
    assert regressor.predict([]).shape == (0,)


def test_token_classifier(tiny_preset):
    x = [["Kim", "sleeps", "well"], ["it", "rains"]] * 4
    y = [["B-PER", "O", "O"], ["O", "O"]] * 4
    tagger = SKLearnTokenClassifier(tiny_preset, epochs=40, learning_rate=0.02, random_state=0)
    assert tagger.fit(x, y).predict(x) == y and tagger.score(x, y) == 1.0
    assert pickle.loads(pickle.dumps(tagger)).predict(x) == y
    assert selection.cross_val_score(tagger.set_params(epochs=1), x, y, cv=2).shape == (2,)
    with pytest.raises(ValueError, match="two or more"):
        tagger.fit(x, [["O"] * len(row) for row in x])
    parts = [["NOUN", "VERB", "ADV"], ["PRON", "VERB"]] * 4
    assert tagger.fit(x, parts).score(x, parts) == np.mean(
        [a == b for row, found in zip(parts, tagger.predict(x)) for a, b in zip(row, found)]
    )


def test_embedder(tiny_preset):
    embedder = SKLearnTextEmbedder(tiny_preset)
    vectors = embedder.fit_transform(TEXTS)
    assert vectors.dtype == "float32" and embedder.transform([]).shape == (0, vectors.shape[1])
    assert len(embedder.get_feature_names_out()) == vectors.shape[1]
    model = Peer("sklearn.linear_model").LogisticRegression()
    pipeline = Peer("sklearn.pipeline").make_pipeline(embedder, model)
    assert pipeline.fit(TEXTS, NAMES).predict(TEXTS).shape == (24,)
    frame = pandas.DataFrame({"text": TEXTS, "number": range(24)})
    columns = Peer("sklearn.compose").ColumnTransformer(
        [("embed", embedder, "text"), ("rest", "passthrough", ["number"])]
    )
    assert columns.fit_transform(frame).shape == (24, vectors.shape[1] + 1)
    named = SKLearnTextEmbedder(tiny_preset).set_output(transform="pandas")
    assert named.fit_transform(frame["text"]).shape == vectors.shape

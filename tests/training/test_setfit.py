"""Pairs of texts, heads by logistic regression, and the whole compared with recorded setfit."""

import collections
import math

import numpy as np
import pytest

from kerasbert.models import BertTextClassifier, BertTextEmbedder
from kerasbert.optimizers import AdamW, LinearDecay
from kerasbert.training import setfit
from kerasbert.training.methods import SetFit, classifier_of
from kerasbert.training.setfit import contrastive_pairs, logistic_head
from tests.golden import setfit as golden

CLASSES = ["a"] * 4 + ["b"] * 3 + ["c"]


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("pairs", "same", "other"),
    [("unique", 17, 19), ("oversampling", 19, 19), ("undersampling", 17, 17), (3, 24, 24)],
)
def test_how_many_pairs(pairs, same, other):
    first, second, is_same = contrastive_pairs(CLASSES, pairs, seed=1)
    assert collections.Counter(is_same.tolist()) == {1.0: same, 0.0: other}
    for i, j, equal in zip(first, second, is_same):
        assert (CLASSES[i] == CLASSES[j]) == equal
    again, another = (contrastive_pairs(CLASSES, pairs, seed) for seed in (1, 2))
    assert np.array_equal(again[1], second) and not np.array_equal(another[1], second)
    if isinstance(pairs, int):
        # Each text is the first one equally often.
        assert set(collections.Counter(first.tolist()).values()) == {2 * pairs}
    else:
        most = 1 if pairs != "oversampling" else 2
        assert max(collections.Counter(zip(first.tolist(), second.tolist())).values()) == most


@pytest.mark.backends("tensorflow")
def test_drawn_pairs_are_any_of_their_kind():
    first, second, is_same = contrastive_pairs(CLASSES, 200)
    found = set(zip(first.tolist(), second.tolist(), is_same.tolist()))
    count = len(CLASSES)
    wanted = {(i, j, CLASSES[i] == CLASSES[j]) for i in range(count) for j in range(count)}
    assert found == wanted


@pytest.mark.backends("tensorflow")
def test_pairs_that_there_are_not(monkeypatch):
    with pytest.raises(
        ValueError, match="All examples are of the class 'a'; SetFit needs at least two"
    ):
        contrastive_pairs(["a", "a"])
    monkeypatch.setattr(setfit, "MOST_TEXTS", 7)
    with pytest.raises(ValueError, match="too many for 8 texts; pass a number, such as pairs=20"):
        contrastive_pairs(CLASSES, "unique")


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("known", [(0, 1), (0, 2), (0, 1, 2), (1, 2, 3)])
def test_the_head_is_the_regression(known):
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    vectors = random.standard_normal((30, 5)).astype("float32")
    classes = random.choice(known, 30)
    weights = random.uniform(0.5, 2, 30)
    kernel, bias = logistic_head(vectors, classes, 4, weights)
    odds = np.exp(vectors @ kernel + bias)
    found = odds / odds.sum(-1, keepdims=True)
    expected = np.zeros((30, 4))
    regression = LogisticRegression(max_iter=1000).fit(vectors, classes, weights)
    expected[:, list(known)] = regression.predict_proba(vectors)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", ["three", "two"])
def test_as_setfit_trains(case, tmp_path):
    """The same encoder on the same pairs in the same order: embeddings, head and answers."""
    golden.write(case, tmp_path)
    expected = golden.recorded(case)
    texts, classes, others = golden.texts_of(case)
    first, second, is_same = expected["pairs"].T
    steps = math.ceil(len(is_same) / golden.BATCH)
    embedder = BertTextEmbedder.from_preset(tmp_path)
    rate = LinearDecay(golden.RATE, steps, math.ceil(steps / 10))
    embedder.compile(AdamW(rate, **SetFit.optimizer), **SetFit.compiled)
    columns = [[texts[int(place)] for place in column] for column in (first, second)]
    embedder.fit(tuple(columns), is_same, batch_size=golden.BATCH, shuffle=False, verbose=0)
    embedder.run_eagerly = True
    vectors = embedder.embed([*texts, *others])
    vectors, others_vectors = vectors[: len(texts)], vectors[len(texts) :]
    np.testing.assert_allclose(others_vectors, expected["vectors"], atol=1e-4)
    count = golden.CASES[case][0]
    head = logistic_head(vectors, np.array(classes), count)
    kernel, bias = head
    if count == 2:
        kernel, bias = (value[..., 1:] - value[..., :1] for value in head)
    np.testing.assert_allclose(kernel.T, expected["coefficients"], atol=1e-4)
    np.testing.assert_allclose(bias, expected["intercept"], atol=1e-4)
    # As a classifier, saved and loaded.
    classifier = classifier_of(embedder, [f"class {number}" for number in range(count)])
    for weight, value in zip(classifier.output_dense.weights, head, strict=True):
        weight.assign(value)
    classifier.save_to_preset(str(tmp_path / "classifier"))
    loaded = BertTextClassifier.from_preset(str(tmp_path / "classifier"))
    loaded.run_eagerly = True
    assert loaded.normalize == embedder.normalize == golden.CASES[case][1]
    np.testing.assert_allclose(loaded.predict_proba(others), expected["probabilities"], atol=1e-4)

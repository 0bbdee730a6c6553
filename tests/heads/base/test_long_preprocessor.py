"""Long texts in classifiers, regressors, embedders and rerankers."""

import warnings

import keras
import numpy as np
import pytest

from kerasbert import models
from kerasbert.data import LongTexts
from tests.contracts import arrays
from tests.export import tiny

# Empty, exactly one row of 16 tokens, one token more, several windows, and more than the maximum.
TEXTS = ["", " ".join("abcdefghijklmn"), " ".join("abcdefghijklmno"), "e f g h i " * 7]
TEXTS += ["a b c d " * 25_000, "a"]
WINDOWS = {"mode": "windows", "pooling": "attention", "max_windows": 5}
HEADS = ("TextClassifier", "TextRegressor", "TextEmbedder", "Reranker")
pytestmark = pytest.mark.filterwarnings("ignore:.*are truncated, first at")


def make(name, long=None, **settings):
    return tiny.task(name, preprocessor={"sequence_length": 16, "long": long}, **settings)


def inputs(name, texts=TEXTS):
    return (texts[::-1], texts) if name == "Reranker" else texts


def take(x, rows):
    if isinstance(x, tuple):
        return tuple(take(column, rows) for column in x)
    return [x[row] for row in rows]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.backends("torch")
def test_a_text_alone_equals_a_text_in_a_batch(name, tmp_path):
    model, x = make(name, WINDOWS), inputs(name)
    found = model.predict(x, verbose=0)
    alone = [model.predict(take(x, [row]), verbose=0)[0] for row in range(len(TEXTS))]
    np.testing.assert_allclose(found, alone, atol=1e-5)
    np.testing.assert_allclose(model.predict(x, batch_size=2, verbose=0), alone, atol=1e-5)
    features = arrays(model.preprocessor(x))
    assert features["token_ids"].shape == (len(TEXTS), 5, 16)
    np.testing.assert_allclose(model.predict(features, verbose=0), alone, atol=1e-5)
    model.save_to_preset(tmp_path)
    again = type(model).from_preset(tmp_path)
    assert again.long == again.preprocessor.long == LongTexts.of(WINDOWS)
    np.testing.assert_array_equal(again.predict(x, verbose=0), found)


@pytest.mark.backends("torch")
def test_short_texts_do_not_depend_on_the_mode():
    found = [
        make("TextClassifier", long).predict(TEXTS[:2], verbose=0)
        for long in (None, "head_tail", "windows")
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], atol=1e-6)


@pytest.mark.backends("torch")
def test_pooling_the_windows_of_a_text():
    """The mean over windows of the pooled embeddings, computed row by row."""
    model = make("TextEmbedder", "windows", pooling="cls")
    words = TEXTS[3].split()
    parts = [words[:14], words[14:28], words[21:]]
    rows = make("TextEmbedder", pooling="cls").predict([" ".join(p) for p in parts], verbose=0)
    np.testing.assert_allclose(model.embed(TEXTS[3]), rows.mean(axis=0), atol=1e-5)


@pytest.mark.backends("torch")
def test_training_on_windows():
    """Weights, class weights and several labels; all windows of a text have its label."""
    model = make("TextClassifier", WINDOWS)
    y = [0, 1, 2, 0, 1, 2]
    before = keras.ops.convert_to_numpy(model.window_pooling.query.kernel)
    model.fit(TEXTS, y, class_weight="balanced", sample_weight=[1.0] * 6, batch_size=2, verbose=0)
    assert np.abs(keras.ops.convert_to_numpy(model.window_pooling.query.kernel) - before).max() > 0
    model.compile(keras.optimizers.SGD(0.0), metrics=None)
    weighted = model.evaluate(TEXTS, y, sample_weight=[0, 0, 0, 0, 1, 0], batch_size=2, verbose=0)
    alone = model.evaluate(TEXTS[4:5], y[4:5], verbose=0)
    losses = [model.evaluate(TEXTS[i : i + 1], y[i : i + 1], verbose=0) for i in range(6)]
    np.testing.assert_allclose(model.evaluate(TEXTS, y, verbose=0), np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(weighted, alone / 6, rtol=1e-4)
    several = make("TextClassifier", "windows", multi_label=True)
    several.fit(TEXTS, [[0, 1, 0]] * 3 + [[1, 1, 1]] * 3, verbose=0)
    batches = (([text], [label]) for text, label in zip(TEXTS, y))
    model.fit(batches, verbose=0)
    ranked = make("Reranker", WINDOWS)
    ranked.compile(loss="mse", metrics=None)
    ranked.fit((["a", "b c"], [TEXTS[:3], TEXTS[3:5]]), [[1, 0, 0], [0, 1]], verbose=0)
    lists = ranked.score((["a", "b c"], [TEXTS[:3], TEXTS[3:5]]))
    np.testing.assert_allclose(lists[1][1], ranked.score(("b c", TEXTS[4])), atol=1e-5)
    embedder = make("TextEmbedder", WINDOWS, normalize=True)
    embedder.fit((TEXTS[1:4], TEXTS[2:5]), batch_size=3, verbose=0)


@pytest.mark.backends("torch")
def test_batches_are_bounded_and_padded_to_few_shapes():
    preprocessor = make("TextClassifier", {"mode": "windows", "max_windows": 11}).preprocessor
    assert preprocessor.long.buckets(16) == [8, 16, 32, 48, 64, 96, 128, 176]
    texts = ["a " * (14 * count) for count in (1, 2, 5, 5, 7, 11, 40, 1, 1, 1)]
    batches, order = preprocessor.sorted_batches(texts, batch_size=8, few=100)
    shapes = [batch["token_ids"].shape for batch in batches]
    assert shapes == [(1, 11, 16)] * 2 + [
        (1, 8, 16),
        (1, 6, 16),
        (1, 6, 16),
        (4, 2, 16),
        (1, 1, 16),
    ]
    assert sorted(order) == list(range(10))


@pytest.mark.backends("torch")
def test_head_and_tail_of_pairs():
    """Each text of a pair is shortened in its middle, also before all texts are packed."""
    preprocessor = make("TextClassifier", {"mode": "head_tail", "head_share": 0.5}).preprocessor
    long, short = " ".join("abcdefghijklmnopqrstuvwxyz"), "x y"
    tokens = preprocessor.tokenizer.get_vocabulary()
    cases = {
        (long, short): "a b c d e f v w x y z",
        (short, long): "x y",
        (long, long): "a b c x y z",
    }
    for (a, b), kept in cases.items():
        row = arrays(preprocessor(([a], [b])))["token_ids"][0]
        words = " ".join(tokens[i] for i in row)
        assert f"[CLS] {kept} [SEP]" in words, words
        batches, _ = preprocessor.sorted_batches(([a] * 3, [b] * 3), few=9)
        np.testing.assert_array_equal(batches[0]["token_ids"][0], row)


@pytest.mark.backends("torch")
def test_settings_that_do_not_fit_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="pooling='tokens' keeps those of all tokens"):
        make("TextEmbedder", "windows", pooling="tokens")
    with pytest.raises(ValueError, match="which divides long texts into windows itself"):
        make("TokenClassifier", "windows")
    with pytest.raises(ValueError, match="SparseEmbedder does not support long='windows'"):
        make("SparseEmbedder", "windows")
    model, windows = make("TextClassifier"), make("TextClassifier", "windows")
    with pytest.raises(ValueError, match="has long='windows', but this BertTextClassifier has"):
        model.preprocessor = windows.preprocessor
    with pytest.raises(ValueError, match=r"sequence_length=3 leaves 0; raise it"):
        models.BertTextClassifierPreprocessor(
            tiny.tokenizer(), sequence_length=3, long="windows", num_classes=2
        )(("a", "b"))
    model.save_to_preset(tmp_path)  # A preset of short rows may be read with windows.
    again = models.BertTextClassifier.from_preset(tmp_path, long="windows")
    np.testing.assert_allclose(again.predict(TEXTS), windows.predict(TEXTS), atol=1e-5)


@pytest.mark.backends("torch")
def test_truncated_texts_are_reported_once():
    said = {
        None: r"longer than sequence_length=16 tokens .*long='head_tail' or long='windows'",
        "head_tail": r"longer than sequence_length=16 tokens .*long='windows'",
        "windows": r"longer than max_windows=8 windows .*or max_windows",
    }
    for long, message in said.items():
        model = make("TextClassifier", long)
        with pytest.warns(UserWarning, match=message):
            model.predict(TEXTS, verbose=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model.predict(TEXTS, verbose=0)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.parametrize("name", HEADS)
def test_windows_on_every_backend(name):
    x, y = inputs(name), np.linspace(0, 1, len(TEXTS))
    model = make(name, WINDOWS)
    alone = [model.predict(take(x, [row]), verbose=0)[0] for row in range(len(TEXTS))]
    np.testing.assert_allclose(model.predict(x, verbose=0), alone, atol=2e-5)
    if name == "TextEmbedder":
        model.fit((TEXTS, TEXTS[::-1]), batch_size=3, verbose=0)
    else:
        model.fit(x, [0, 1, 2, 0, 1, 2] if name == "TextClassifier" else y, batch_size=3, verbose=0)
    assert np.isfinite(model.predict(x, verbose=0)).all()

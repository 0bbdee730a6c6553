"""Inputs of inference methods and training: every kind of column, and batches."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from kerasbert import models
from kerasbert.heads.base import class_weights
from tests.contracts import assert_close, bert_tokenizer, perturb, tiny_backbone

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "you", *"abcdefghijklmnopqrst"]
TEXTS = ["who [MASK]", "[MASK] you me"]
OTHER = ["me who", "you"]
CHOICES = [["me", "you"], ["who", "a", "b"]]


class Eager:
    """The models, one of each kind, on one encoder; they run eagerly, which compiles nothing."""

    def __init__(self):
        self.backbone = tiny_backbone(dropout=0.0, num_layers=1)
        self.tokenizer = bert_tokenizer(TOKENS)
        self.made = {}

    def __call__(self, name, *args, **settings):
        if name not in self.made:
            model_cls = getattr(models, f"Bert{name}")
            question = {"max_query_length": 5} if name == "QuestionAnswering" else {}
            preprocessor = model_cls.preprocessor_cls(
                self.tokenizer, sequence_length=16, **question
            )
            model = model_cls(self.backbone, *args, preprocessor=preprocessor, **settings)
            model.compile(run_eagerly=True)
            self.made[name] = perturb(model)
        return self.made[name]


@pytest.fixture(scope="module")
def make():
    return Eager()


METHODS = {
    "classify": lambda make, x, **k: make("TextClassifier", labels=["a", "b"]).classify(x, **k),
    "score": lambda make, x, **k: make("TextRegressor").score(x, **k),
    "embed": lambda make, x, **k: make("TextEmbedder").embed(x, **k),
    "tag": lambda make, x, **k: make("TokenClassifier", labels=["x", "y"]).tag(x, **k),
    "fill_mask": lambda make, x, **k: make("MaskedLM").fill_mask(x, **k),
    "follows": lambda make, x, **k: make("NextSentencePredictor").follows(
        x, OTHER[0] if isinstance(x, (str, bytes)) else OTHER, **k
    ),
    "answer": lambda make, x, **k: make("QuestionAnswering").answer(
        x, OTHER[0] if isinstance(x, (str, bytes)) else OTHER, **k
    ),
    "choose": lambda make, x, **k: make("MultipleChoice").choose(
        x, CHOICES[0] if isinstance(x, (str, bytes)) else CHOICES, **k
    ),
}
EVERY = pytest.mark.parametrize("method", METHODS)


@pytest.mark.backends("torch")
@EVERY
def test_kinds_of_columns(make, method):
    """All kinds of columns give the same results as a list."""
    run = METHODS[method]
    expected = run(make, TEXTS)
    columns = (
        np.array(TEXTS),
        np.array(TEXTS, object),
        pandas.Series(TEXTS, index=[5, 9]),
        (text for text in TEXTS),
        map(str, TEXTS),
        [text.encode() for text in TEXTS],
        tf.constant(TEXTS),
    )
    # The methods below read all columns in the same way, so some columns are enough.
    alike = method in ("score", "embed", "fill_mask", "answer")
    for column in columns[-3:] if alike else columns:
        np.testing.assert_equal(run(make, column), expected)
    for single in (TEXTS[0], TEXTS[0].encode(), np.str_(TEXTS[0])):
        found = run(make, single)
        # A single text and a list are batches of different sizes, so results may round differently.
        if isinstance(expected, np.ndarray):
            assert_close(found, expected[0])
        else:
            assert type(found) is type(expected[0]) and len(found) == len(expected[0])


@EVERY
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        (),
        [],
        {},
        {"a": TEXTS},
        {"who": 1, "me": 2},
        set(TEXTS),
        5,
        [1, 2],
        ["who [MASK]", None],
        ["who [MASK]", float("nan")],
        [["who", ["me"]], ["you", "me"]],
        iter([]),
        [b"\xff", "me"],
        object(),
    ],
    # Addresses and the order of sets differ between processes.
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_is_no_column(make, method, wrong):
    with pytest.raises(ValueError) as caught:
        METHODS[method](make, wrong)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400 and (";" in message or " has " in message)


@EVERY
@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8"])
def test_batch_sizes(make, method, size):
    with pytest.raises(
        ValueError, match=f"batch_size={size!r} must be a whole number of at least 1"
    ):
        METHODS[method](make, TEXTS, batch_size=size)


def test_pairs_and_dicts(make):
    classify = make("TextClassifier", labels=["a", "b"]).classify
    expected = classify((TEXTS, OTHER))
    assert classify({"text": TEXTS, "text_b": OTHER}) == expected
    assert classify((iter(TEXTS), iter(OTHER))) == expected
    assert classify(zip(TEXTS, OTHER, strict=True)) == expected
    assert classify({"text": TEXTS[0]}).keys() == {"label", "score", "probabilities"}
    answer = make("QuestionAnswering").answer
    with pytest.raises(ValueError, match=r"\(dict\) as a column of texts"):
        answer({"q1": "who"}, {"q1": "me"})
    choose = make("MultipleChoice").choose
    with pytest.raises(ValueError, match=r"\(dict\)"):
        choose(TEXTS, {"0": ["me"], "1": ["you"]})
    with pytest.raises(ValueError, match=r"\(dict\)"):
        choose("who", {"me": 1, "you": 2})


# === Labels ===


@pytest.mark.parametrize(
    "labels",
    [
        {0: "a", 1: "b"},
        {1: "b", 0: "a"},
        {"a": 0, "b": 1},
        {"0": "a", "1": "b"},
        {np.int64(0): "a", np.int64(1): "b"},
        ("a", "b"),
        np.array(["a", "b"]),
        (name for name in "ab"),
    ],
)
def test_labels(make, labels):
    model = models.BertTextClassifier(make.backbone, labels=labels)
    assert model.labels == ["a", "b"] and model.num_classes == 2
    assert type(model).from_config(model.get_config()).labels == ["a", "b"]


@pytest.mark.parametrize(
    "labels",
    [
        {1: "a", 2: "b"},
        {0: "a", 2: "b"},
        {"a": "b"},
        {0: 1, 1: 0},
        {"a": 0, "b": 0},
        {"a", "b"},
        {},
    ],
)
def test_labels_that_are_none(make, labels):
    with pytest.raises(ValueError, match="labels="):
        models.BertTextClassifier(make.backbone, labels=labels)
    tagger = models.BertTokenClassifier
    with pytest.raises(ValueError, match="labels="):
        tagger.preprocessor_cls(make.tokenizer, labels=labels or {"a"})


# === Training ===

X = ["who me", "you", "me me", "a b c", "d e", "f", "g h", "i"]
NAMES = ["a", "b"] * 4


@pytest.fixture
def classifier(make):
    model = make("TextClassifier", labels=["a", "b"])
    initial = model.get_weights()
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    yield model
    model.set_weights(initial)
    model.compile(run_eagerly=True)


def trained(model, *args, **settings):
    """Return the weights after `fit` from the same start."""
    before = model.get_weights()
    model.fit(*args, verbose=0, shuffle=False, **settings)
    after = model.get_weights()
    model.set_weights(before)
    assert max(np.abs(new - old).max() for new, old in zip(after, before, strict=True)) > 1e-4
    return after


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return X[2 * i : 2 * i + 2], NAMES[2 * i : 2 * i + 2]


def batches():
    for i in range(4):
        yield Batches()[i]


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.slow_on_tensorflow
def test_batches_of_raw_texts(classifier):
    expected = trained(classifier, X, NAMES, batch_size=2)
    singles = tf.data.Dataset.from_tensor_slices((X, NAMES))
    for data in (
        batches(),
        Batches(),
        ((np.array(x), np.array(y)) for x, y in batches()),
        (({"text": x}, y, np.ones(2)) for x, y in batches()),
        singles.batch(2),
    ):
        assert_close(trained(classifier, data), expected, atol=1e-6)
    for data in (singles, zip(X, NAMES, strict=True)):
        assert_close(trained(classifier, data, batch_size=2), expected, atol=1e-6)
    scores = classifier.evaluate(X, NAMES, batch_size=2, verbose=0)
    for data in (batches(), Batches(), singles):
        assert_close(classifier.evaluate(data, verbose=0), scores, atol=1e-5)
    logits = classifier.predict(X, verbose=0)
    for data in (batches(), Batches(), (x for x, _ in batches()), singles.map(lambda x, y: x)):
        assert_close(classifier.predict(data, verbose=0), logits)
    history = classifier.fit(Batches(), epochs=2, validation_data=Batches(), verbose=0).history
    assert len(history["val_loss"]) == 2
    settings = {"epochs": 3, "validation_data": batches(), "verbose": 0}
    assert len(classifier.fit(Batches(), **settings).history["val_loss"]) == 3

    def endless():
        while True:
            yield from batches()

    settings = {"validation_data": endless(), "validation_steps": 2, "verbose": 0}
    history = classifier.fit(endless(), steps_per_epoch=3, epochs=2, **settings).history
    assert len(history["loss"]) == len(history["val_loss"]) == 2


def test_batches_of_arrays_stay_theirs(classifier):
    features = {name: np.asarray(x) for name, x in classifier.preprocessor(X[:2]).items()}
    expected = trained(classifier, features, np.array([0, 1]))
    assert_close(trained(classifier, (b for b in [(features, np.array([0, 1]))])), expected)


def test_errors_in_batches(classifier):
    def wrong():
        yield X[:2], NAMES[:2]
        yield X[:2], ["a", "c"]

    with pytest.raises(ValueError, match="The label 'c' at position 1 is unknown"):
        classifier.fit(wrong(), verbose=0)
    with pytest.raises(ValueError, match="generator is empty"):
        classifier.fit((b for b in []), verbose=0)


def test_labels_are_asked_for(make, classifier):
    features = {name: np.asarray(x) for name, x in classifier.preprocessor(X).items()}
    for x in (X, features, tf.data.Dataset.from_tensor_slices(X).batch(2)):
        for method in (classifier.fit, classifier.evaluate):
            with pytest.raises(ValueError, match="no labels .* pass them as y"):
                method(x, verbose=0)
    masked = make("MaskedLM")
    assert np.isfinite(masked.evaluate(X, verbose=0)[0])
    for size in (0, 2.5):
        with pytest.raises(ValueError, match=f"batch_size={size} must be"):
            classifier.fit(X, NAMES, batch_size=size, verbose=0)


@pytest.mark.parametrize("wrong", [-1, 10**8, 2**31, 2**40])
def test_token_ids(classifier, wrong):
    ids = np.array([[2, 5, 3], [2, wrong, 3]])
    for x in ({"token_ids": ids}, {"token_ids": ids.tolist()}):
        for run in (classifier.predict, lambda x: classifier.fit(x, np.array([0, 1]))):
            with pytest.raises(ValueError, match=rf"token_ids has {wrong} at \[1, 1\], but"):
                run(x)


def test_one_hot_labels_of_texts(classifier):
    rows = np.eye(2)[[0, 1] * 4]
    expected = trained(classifier, X, NAMES)
    assert_close(trained(classifier, X, rows), expected, atol=1e-6)


@pytest.mark.backends("torch")
def test_class_weights(classifier):
    y = ["a", "b", "a", "a", "a", "b", "a", "a"]
    numbers = np.array([["a", "b"].index(name) for name in y])
    features = {name: np.asarray(x) for name, x in classifier.preprocessor(X).items()}
    three, even = np.where(numbers == 1, 3.0, 1.0), np.where(numbers == 1, 2.0, 2 / 3)
    dataset = tf.data.Dataset.from_tensor_slices((X, y)).batch(8)
    for given, weights in (({"b": 3.0}, three), ({0: 1, 1: 3}, three), ("balanced", even)):
        expected = trained(classifier, X, y, sample_weight=weights)
        assert_close(trained(classifier, X, y, class_weight=given), expected, atol=1e-6)
        assert_close(trained(classifier, features, numbers, class_weight=given), expected, 1e-5)
        rows = np.eye(2)[numbers]
        assert_close(trained(classifier, features, rows, class_weight=given), expected, 1e-5)
        if given != "balanced":
            assert_close(trained(classifier, dataset, class_weight=given), expected, atol=1e-6)
    half = np.full(8, 0.5)
    assert_close(
        trained(classifier, X, y, class_weight={"b": 3.0}, sample_weight=half),
        trained(classifier, X, y, sample_weight=half * three),
        atol=1e-6,
    )
    with pytest.raises(ValueError, match="needs labels in memory"):
        classifier.fit(dataset, class_weight="balanced", verbose=0)
    for given, message in (
        ({"bb": 3.0}, "has the class 'bb', but the classes are a, b; did you mean 'b'"),
        ({2: 3.0}, "has the class 2"),
        ({"b": -1}, "must be a finite number of 0 or more, got -1"),
        ("even", "class_weight='even' must be a dict"),
        ([1, 2], r"class_weight=\[1, 2\] must be a dict"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.fit(X, y, class_weight=given, verbose=0)


@pytest.mark.slow
def test_class_weights_of_words(make):
    """Each piece is weighted by its label; Keras would read a text's labels as one-hot rows."""
    tagger = make("TokenClassifier", labels=["x", "y"])
    tagger.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    words, y = [["who", "me"], ["you", "a", "b"]], [["x", "y"], ["x", "x", "y"]]
    features, numbers, given = tagger.preprocessor(words, y)
    features = {name: np.asarray(x) for name, x in features.items()}
    numbers, given = np.asarray(numbers), np.asarray(given)
    expected = trained(
        tagger, features, numbers, sample_weight=given * np.where(numbers == 1, 3.0, 1.0)
    )
    assert_close(trained(tagger, words, y, class_weight={"y": 3.0}), expected, atol=1e-6)
    even = given * np.where(numbers == 1, 5 / 4, 5 / 6)
    expected = trained(tagger, features, numbers, sample_weight=even)
    assert_close(trained(tagger, words, y, class_weight="balanced"), expected, atol=1e-6)
    regressor = make("TextRegressor")
    with pytest.raises(ValueError, match="needs one class per label"):
        regressor.fit(X, np.ones(8), class_weight={0: 2.0}, verbose=0)


def test_weights_of_classes_without_examples():
    weights = class_weights.class_weights("balanced", ["a", "b", "c"], lambda: [3, 0, 1])
    assert_close(weights, np.array([4 / 9, 1, 4 / 3], "float32"))

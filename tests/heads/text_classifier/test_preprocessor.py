import doctest
import functools
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.heads.base.class_weights import class_weights
from kerasbert.heads.text_classifier import preprocessor as text_classifier
from kerasbert.preprocessors import BertTextClassifierPreprocessor
from kerasbert.text.pieces import checked_spans
from kerasbert.tokenizers import BertTokenizer

TEXTS = ["a", "b c", "c", "a a"]
NAMES = ("bad", "good", "gut")
TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split())


@functools.cache
def make(**kwargs):
    """Return each preprocessor once: tracing costs more than the tests do."""
    return BertTextClassifierPreprocessor(TOKENIZER, **kwargs)


def labels_of(preprocessor, y):
    return keras.ops.convert_to_numpy(preprocessor(TEXTS, y)[1])


@pytest.mark.parametrize(
    "y",
    [
        ["good", "bad", "gut", "good"],
        np.array(["good", "bad", "gut", "good"]),
        [b"good", b"bad", b"gut", b"good"],
        tf.constant(["good", "bad", "gut", "good"]),
        [1, 0, 2, 1],
        np.array([1, 0, 2, 1], "int8"),
        np.array([1.0, 0.0, 2.0, 1.0]),
        np.array([[1], [0], [2], [1]]),
        tf.constant([1, 0, 2, 1]),
    ],
)
def test_names_and_ids(y):
    preprocessor = make(labels=NAMES)
    eager = labels_of(preprocessor, y)
    assert eager.tolist() == [1, 0, 2, 1] and eager.dtype == "int32"
    batches = preprocessor.batches(TEXTS, y, batch_size=4, shuffle=False)
    assert next(batches.as_numpy_iterator())[1].tolist() == [1, 0, 2, 1]


# In a dataset, names in any form are strings of one type.
@pytest.mark.parametrize(
    "y",
    [
        ["good", "bad", "gut", "good"],
        [1, 0, 2, 1],
        np.array([1, 0, 2, 1], "int8"),
        np.array([1.0, 0.0, 2.0, 1.0]),
        np.array([[1], [0], [2], [1]]),
    ],
)
def test_names_and_ids_in_a_dataset(y):
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(4).map(make(labels=NAMES))
    mapped = next(dataset.as_numpy_iterator())[1]
    assert mapped.tolist() == [1, 0, 2, 1] and mapped.dtype == "int32"


def test_backend_tensor_labels():
    y = keras.ops.convert_to_tensor([1, 0, 2, 1])
    assert labels_of(make(num_classes=3), y).tolist() == [1, 0, 2, 1]


def test_one_text():
    features, y = make(labels=NAMES)("a b", "good")
    assert features["token_ids"].shape == (8,)
    assert int(keras.ops.convert_to_numpy(y)) == 1
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, ["bad"] * 4)).map(make(labels=NAMES))
    assert [y for _, y in dataset.as_numpy_iterator()] == [0] * 4


def test_pandas_labels():
    import pandas

    y = pandas.Series(["good", "bad", "gut", "good"], index=[5, 6, 7, 8])
    for column in (y, y.astype("category"), y.astype("string")):
        assert labels_of(make(labels=NAMES), column).tolist() == [1, 0, 2, 1]
    with pytest.raises(ValueError, match="position 1 is nan"):
        make(labels=NAMES)(TEXTS, pandas.Series([1, None, 2, 0]))
    with pytest.raises(ValueError, match="position 1 is .* among names"):
        make(labels=NAMES)(TEXTS, pandas.Series(["good", None, "bad", "bad"]))


def test_without_names_any_number_passes():
    assert labels_of(make(), [5, 0, 7, 1]).tolist() == [5, 0, 7, 1]
    assert labels_of(make(), [True, False, True, True]).tolist() == [1, 0, 1, 1]


def test_soft_labels():
    soft = np.array([[0.25, 0.75, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]])
    y = labels_of(make(num_classes=3), soft)
    assert y.tolist() == soft.tolist() and y.dtype == "float32"
    dataset = tf.data.Dataset.from_tensors((TEXTS, soft)).map(make(num_classes=3))
    assert next(dataset.as_numpy_iterator())[1].tolist() == soft.tolist()


@pytest.mark.parametrize(
    "y",
    [
        [["good", "bad"], [], ["gut"], ("good",)],
        [{"good", "bad"}, set(), {"gut"}, {"good"}],
        [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]],
        np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]], bool),
    ],
)
def test_multi_label(y):
    got = labels_of(make(labels=NAMES, multi_label=True), y)
    assert got.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert got.dtype == "float32"


def test_multi_label_without_any():
    assert not labels_of(make(labels=NAMES, multi_label=True), [[], [], [], []]).any()
    dataset = tf.data.Dataset.from_tensors((TEXTS, [[1, 0]] * 4))
    dataset = dataset.map(make(num_classes=2, multi_label=True))
    assert next(dataset.as_numpy_iterator())[1].tolist() == [[1, 0]] * 4


ERRORS = [
    ({}, ["good"] * 4, "position 0 is the name 'good'.*labels="),
    ({}, [0, -1, 0, 0], "label -1 at position 1 is negative"),
    ({}, [0, 0.5, 0, 0], "position 1 is 0.5, not a class index"),
    ({}, [0, 1], "4 texts but 2 labels"),
    ({}, [0, "x", 1, 1], "position 0 is 0 among names"),
    ({}, [[0, 1], [1]] * 2, "rows of different lengths"),
    ({}, [["a"], ["b"]] * 2, r"position 0 is \['a'\], which is not a number.*multi_label=True"),
    ({}, np.zeros((4, 2, 2)), r"shape \(4, 2, 2\)"),
    ({"num_classes": 3}, [0, 1, 3, 2], "label 3 at position 2 is outside 0 to 2.*3 classes"),
    ({"labels": NAMES}, [0, 1, 2, 9], "label 9 at position 3 is outside 0 to 2"),
    ({"labels": NAMES}, ["good", "god", "bad", "bad"], "'god' at position 1.*mean 'good'"),
    ({"labels": NAMES}, ["good", "zzz", "bad", "bad"], "'zzz'.*known are 'bad', 'good', 'gut'"),
    ({"labels": NAMES}, np.zeros((4, 2)), r"shape \(4, 2\); pass 3 numbers"),
    ({"labels": NAMES, "multi_label": True}, np.zeros((4, 2)), r"shape \(4, 2\); pass 3 numbers"),
    ({"labels": NAMES, "multi_label": True}, [0, 1, 0, 1], r"shape \(4,\); pass 3 numbers"),
    ({"labels": NAMES, "multi_label": True}, ["good"] * 4, r"'good'; with multi_label.*\['good'\]"),
    ({"labels": NAMES, "multi_label": True}, [["good"], ["x"], [], []], "'x' at position 1"),
    ({"num_classes": 2, "multi_label": True}, [[0, 1], [0, 2]] * 2, "position 1, class 1 is 2"),
    ({"num_classes": 2, "multi_label": True}, [[0, 1], [0]] * 2, "rows of different lengths"),
]


@pytest.mark.parametrize("settings, y, message", ERRORS)
def test_bad_labels(settings, y, message):
    preprocessor = make(**settings)
    for use in (preprocessor, preprocessor.batches):
        with pytest.raises(ValueError, match=message) as error:
            use(TEXTS, y)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings, y, message",
    [
        ({"num_classes": 3}, [0, 1, 3, 2], r"class indices from 0 to 2.*\[3\]"),
        ({}, [0, -1, 0, 0], r"class indices of at least 0.*\[-1\]"),
        ({}, [0, 0.5, 0, 0], r"whole class indices.*\[0.5\]"),
        ({"labels": NAMES}, ["good", "god", "bad", "bad"], r"of bad, good, gut.*\[god\]"),
        ({"num_classes": 2, "multi_label": True}, [[0, 1], [0, 2]] * 2, "numbers from 0 to 1"),
    ],
)
def test_bad_labels_in_a_dataset(settings, y, message):
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(4).map(make(**settings))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(dataset)


@pytest.mark.parametrize(
    "settings, y, message",
    [
        ({}, TEXTS, r"labels that are text.*pairs.*\(\(a, b\), y\)"),
        ({"labels": NAMES, "multi_label": True}, ["good"] * 4, "labels that are text"),
        ({"labels": NAMES, "multi_label": True}, [[0, 1]] * 4, r"shape \(None, 2\).*\(B, 3\)"),
        ({"num_classes": 3}, [[0, 1]] * 4, r"shape \(None, 2\).*\(B, 3\)"),
    ],
)
def test_bad_label_shapes_in_a_dataset(settings, y, message):
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(4)
    with pytest.raises(ValueError, match=message):
        dataset.map(make(**settings))


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(labels=("a", "a")), "position 1 of `labels` is 'a'"),
        (dict(labels="spam"), "one string"),
        (dict(labels=NAMES, num_classes=2), "num_classes=2 differs from the 3 names"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_round_trip(tmp_path):
    directory = str(tmp_path / "preset")
    for settings in (
        dict(labels=list(NAMES), sequence_length=9, truncate="only_second"),
        dict(multi_label=True, num_classes=4, num_segments=0),
        dict(labels=np.array(NAMES)),
    ):
        preprocessor = BertTextClassifierPreprocessor(TOKENIZER, **settings)
        preprocessor.save_to_preset(directory)
        again = BertTextClassifierPreprocessor.from_own_preset(directory)
        assert again.get_config() == preprocessor.get_config()
        assert again.class_count() == preprocessor.class_count()
    assert again.names == list(NAMES)


def test_docstrings():
    assert doctest.testmod(text_classifier).failed == 0


def test_names_are_compared_in_nfc():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    names = ["긍정", unicodedata.normalize("NFD", "café")]
    other = [unicodedata.normalize("NFD", "긍정"), "café"]
    preprocessor = BertTextClassifierPreprocessor(tokenizer, labels=names)
    assert preprocessor.labels == names
    for y in (names, other, np.array(other)):
        assert np.asarray(preprocessor(["a", "b"], y)[1]).tolist() == [0, 1]
    assert preprocessor.check_labels_in_graph(tf.constant(other)).numpy().tolist() == [0, 1]
    several = BertTextClassifierPreprocessor(tokenizer, labels=names, multi_label=True)
    assert np.asarray(several(["a"], [other])[1]).tolist() == [[1, 1]]
    with pytest.raises(ValueError, match="distinct strings"):
        BertTextClassifierPreprocessor(tokenizer, labels=[names[0], other[0]])
    assert class_weights({other[0]: 3.0}, names, None).tolist() == [3.0, 1.0]
    assert checked_spans([(0, 1, other[0])], "a", names, 0) == [(0, 1, names[0])]

"""Numeric class names, in every form of labels."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from kerasbert.heads.base.class_weights import class_weights
from kerasbert.models import BertTextClassifier, BertTokenClassifier
from kerasbert.preprocessors import (
    BertTextClassifierPreprocessor,
    BertTokenClassifierPreprocessor,
)
from kerasbert.tasks import file_task
from kerasbert.tokenizers import BertTokenizer
from kerasbert.visualize.explained_output import _chosen
from tests.contracts import tiny_backbone

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split())
TEXTS = ["a", "b c", "c", "a a"]
ROWS = [text.split() for text in TEXTS]


def make(labels, **settings):
    return BertTextClassifierPreprocessor(TOKENIZER, labels=labels, **settings)


def eager(preprocessor, y):
    return keras.ops.convert_to_numpy(preprocessor(TEXTS, y)[1]).tolist()


def in_graph(preprocessor, y):
    dataset = tf.data.Dataset.from_tensors((TEXTS, y)).map(preprocessor)
    return next(dataset.as_numpy_iterator())[1].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("read", [eager, in_graph])
@pytest.mark.parametrize(
    "labels, y, expected",
    [
        ([1, 2, 3, 4, 5], [1, 5, 3, 1], [0, 4, 2, 0]),
        (["1", "2", "3"], np.array([3, 1, 2, 2], "int8"), [2, 0, 1, 1]),
        ([1, 2, 3], [1, 2, 2, 1], [0, 1, 1, 0]),  # A batch without the last class.
        ([1, -1], [1, -1, -1, 1], [0, 1, 1, 0]),
        ([-1, 1], np.array([1.0, -1.0, 1.0, 1.0]), [1, 0, 1, 1]),
        ([0, 1, 2], [2, 0, 1, 1], [2, 0, 1, 1]),
        ([10, 20, 30], [[30], [10], [20], [10]], [2, 0, 1, 0]),
        ([0.5, 1.0], np.array([1, 0.5, 0.5, 1], "float32"), [1, 0, 0, 1]),
        ({0: "2020", 1: "2021"}, [2021, 2020, 2020, 2020], [1, 0, 0, 0]),
        (["other", "1", "2"], [0, 1, 2, 1], [0, 1, 2, 1]),
        (["other", "10"], [10, 0, 1, 10], [1, 0, 1, 1]),
        ([True, False], [True, False, False, True], [0, 1, 1, 0]),
        (["false", "true"], [1, 0, 0, 1], [1, 0, 0, 1]),
        (["no", "yes"], [1, 0, 0, 1], [1, 0, 0, 1]),
        (["1", "0"], ["1", "0", "0", "1"], [0, 1, 1, 0]),
    ],
)
def test_names_come_first(read, labels, y, expected):
    assert read(make(labels), y) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels, y, message",
    [
        ([1, 0], [0, 1, 0, 1], "may mean the class named '[01]' or the class at position [01]"),
        ([0, 2, 1], [0, 0, 2, 0], "may mean the class named '2' or .* named '1'"),
        ([True, False], [1, 0, 0, 1], "may mean the class named"),
        ([1, 2, 3], [1, 0, 2, 2], "is none of the classes '1', '2', '3'; these names are numbers"),
        (["other", "2", "1"], [0, 1, 0, 0], "may mean the class named '1'"),
        (["other", "10"], [0, 2, 0, 0], "outside 0 to 1"),
    ],
)
def test_errors(labels, y, message):
    with pytest.raises(ValueError, match=message):
        eager(make(labels), y)
    with pytest.raises(tf.errors.InvalidArgumentError, match="may mean the|is none of"):
        in_graph(make(labels), y)


def test_the_first_wrong_label_is_named():
    with pytest.raises(ValueError, match="The label 7 at position 1 is none"):
        eager(make([1, 2]), [1, 7, 0, 0])


def test_names_of_one_number():
    assert eager(make(["007", "7"]), [7, 7, 7, 7]) == [1, 1, 1, 1]
    assert eager(make(["7", "007", "x"]), [7, 7, 7, 0]) == [0, 0, 0, 0]
    assert eager(make(["007", "7"]), ["007", "7", "7", "7"]) == [0, 1, 1, 1]


def test_missing_labels_of_pandas():
    with pytest.raises(ValueError, match="The label at position 3 is <NA> among names"):
        eager(make(["a", "b"]), pandas.Series(["a", "b", "a", None], dtype="string"))


def test_tags():
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, labels=[1, 2, 3])
    y = [[3], [1, -100], [None], [2, 3]]
    given = preprocessor(ROWS, y)
    labels, weights = (keras.ops.convert_to_numpy(part) for part in given[1:])
    assert labels[weights > 0].tolist() == [2, 0, 1, 2]
    ragged = tf.ragged.constant(ROWS), tf.ragged.constant([[3], [1, -100], [-100], [2, 3]])
    mapped = next(tf.data.Dataset.from_tensors(ragged).map(preprocessor).as_numpy_iterator())
    assert mapped[1][mapped[2] > 0].tolist() == [2, 0, 1, 2]
    swapped = BertTokenClassifierPreprocessor(TOKENIZER, labels=[1, 0])
    with pytest.raises(ValueError, match="position 0, word 0 may mean the class named '0'"):
        swapped(ROWS, [[0], [1, 0], [1], [0, 1]])


def test_spans_of_types_that_are_numbers():
    spans = [[(0, 1, 7)], [(0, 1, "3")], [], []]
    made = BertTokenClassifierPreprocessor(TOKENIZER, labels=[3, 7], scheme="BIO")(TEXTS, spans)
    assert keras.ops.convert_to_numpy(made[1])[:2, 1].tolist() == [3, 1]


@pytest.mark.parametrize(
    "labels, y, expected",
    [
        ([1, 2, 3], [[1, 3], [2], [], [3, 1, 2]], [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]),
        ([7, 8], [{7}, {8, 7}, set(), {8}], [[1, 0], [1, 1], [0, 0], [0, 1]]),
        ([0, 1], [[0, 1], [1, 1], [0, 0], [1, 0]], [[0, 1], [1, 1], [0, 0], [1, 0]]),
        ([0, 1], np.array([[0, 1], [1, 0], [0, 1], [1, 0]]), [[0, 1], [1, 0], [0, 1], [1, 0]]),
        ([0, 1], [[0], [1], [], [0, 1]], [[1, 0], [0, 1], [0, 0], [1, 1]]),
    ],
)
def test_several_labels_of_a_text(labels, y, expected):
    assert eager(make(labels, multi_label=True), y) == expected


def test_lists_that_may_be_names_or_zeros_and_ones():
    with pytest.raises(ValueError, match="can be read as class names, or as a zero or"):
        eager(make([0, 1], multi_label=True), [[0, 1], [1, 0], [0, 1], [1, 0]])


def test_class_weights():
    weights = class_weights({1: 3.0, 2: 2.0}, ["1", "2", "3"], None)
    assert weights.tolist() == [3.0, 2.0, 1.0]
    with pytest.raises(ValueError, match="The class 1 of class_weight may mean the class named"):
        class_weights({1: 3.0}, ["1", "0"], None)
    with pytest.raises(ValueError, match="class_weight has the class 4, but"):
        class_weights({4: 3.0}, ["a", "b"], None)


def test_evaluate_says_what_classify_says():
    """For a list, for single examples of a generator and for a dataset."""
    backbone = tiny_backbone(vocabulary_size=8)
    model = BertTextClassifier(
        backbone, labels=[1, 2, 3], preprocessor=make([1], sequence_length=8)
    )
    model.compile(run_eagerly=True)
    y = [int(found["label"]) for found in model.classify(TEXTS)]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, y)).batch(2)
    for x, labels in ((TEXTS, y), (zip(TEXTS, y), None), (dataset, None)):
        assert model.evaluate(x, labels, verbose=0, return_dict=True)["accuracy"] == 1.0


def test_files_with_numbers_for_names(tmp_path):
    path = tmp_path / "stars.csv"
    path.write_text("text,label\na,2\nb,1\n")
    task = file_task(path, labels=[1, 2])
    assert task.labels == ("1", "2") and task.read("train").y == ["2", "1"]


def test_explained_class():
    assert _chosen(2, ["1", "2", "3"], None) == 1
    with pytest.raises(ValueError, match="target=0 may mean the class named '0'"):
        _chosen(0, ["1", "0"], None)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("labels, y", [([1, 0], [1, 0, 0, 1]), ([1, 2, 3], [[1], [2], [1], [2]])])
def test_numbers_with_ready_arrays_are_positions_or_refused(labels, y):
    preprocessor = make(labels, sequence_length=16)
    model = BertTextClassifier(tiny_backbone(), labels=labels, preprocessor=preprocessor)
    features, numbers = preprocessor(TEXTS, [str(labels[0])] * 4)
    for call in (model.fit, model.evaluate):
        for given in (y, np.array(y), np.array(y, "float32")):
            with pytest.raises(ValueError, match="is the name of the class at position"):
                call(features, given, verbose=0)
        call(features, numbers, verbose=0)  # As the preprocessor returns them.
    rows = np.eye(len(labels))[[0, 1, 0, 1]]
    model.compile(loss=keras.losses.CategoricalCrossentropy(from_logits=True), metrics=[])
    model.fit(features, rows, verbose=0)
    tagger = BertTokenClassifier(tiny_backbone(), labels=labels)
    words, tags, _ = BertTokenClassifierPreprocessor(TOKENIZER, labels=labels)(
        ROWS, [[str(labels[1])] * len(row) for row in ROWS]
    )
    tagger.evaluate(words, tags, verbose=0)
    with pytest.raises(ValueError, match="is the name of the class at position"):
        tagger.evaluate(words, np.ones(tags.shape), verbose=0)

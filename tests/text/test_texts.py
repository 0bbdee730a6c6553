import doctest

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

from kerasbert.heads.base.inputs import split
from kerasbert.preprocessors import (
    BertMultipleChoicePreprocessor,
    BertQuestionAnsweringPreprocessor,
    BertTextClassifierPreprocessor,
    BertTextRegressorPreprocessor,
    BertTokenClassifierPreprocessor,
)
from kerasbert.text import texts
from kerasbert.text.texts import text_columns, weights
from tests.contracts import bert_tokenizer, tiny_classifier


@pytest.mark.slow
def test_docstrings():
    assert doctest.testmod(texts).failed == 0


def test_broken_surrogates_and_whole_ones():
    (column,), batched = texts.text_columns(["\U0001f600", "é", ""])
    assert batched and column == ["\U0001f600", "é", ""]


TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()


def pyarrow():
    import pyarrow

    return pyarrow


class Polars:
    """The parts of a polars table, and of its columns, that are read."""

    def __init__(self, columns):
        self.columns, self._columns = list(columns), columns

    def get_columns(self):
        raise AssertionError("each column is read by its name")

    def __getitem__(self, name):
        return PolarsColumn(self._columns[name])


class PolarsColumn:
    def __init__(self, values):
        self.values = values

    def to_list(self):
        return list(self.values)


# Containers of the labels [2, 0, 1], one for each text.
COLUMNS = {
    "list": list,
    "tuple": tuple,
    "array": np.asarray,
    "column of an array": lambda values: np.asarray(values)[:, None],
    "Series": lambda values: pandas.Series(values, index=[7, 8, 9]),
    "DataFrame": lambda values: pandas.DataFrame({"label": values}, index=[7, 8, 9]),
    "polars column": PolarsColumn,
    "polars table": lambda values: Polars({"label": values}),
    "dict": lambda values: {"label": values},
    "dict of an array": lambda values: {"label": np.asarray(values)},
    "iterator": iter,
    "tensor": tf.constant,
    "tf.data": tf.data.Dataset.from_tensor_slices,
    "tf.data in batches": lambda values: tf.data.Dataset.from_tensor_slices(values).batch(2),
}


ARROW = {
    "pyarrow array": lambda values: pyarrow().array(values),
    "pyarrow column": lambda values: pyarrow().chunked_array([values[:1], values[1:]]),
    "pyarrow table": lambda values: pyarrow().table({"label": values}),
}


@pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in COLUMNS.items()),
        *(pytest.param(make, id=name, marks=pytest.mark.peers) for name, make in ARROW.items()),
    ],
)
def test_labels_come_in_whatever_texts_come_in(make):
    names = ["x", "y", "z"]
    tokenizer = bert_tokenizer(TOKENS)
    classes = BertTextClassifierPreprocessor(tokenizer, labels=names)
    assert classes.check_labels(make([2, 0, 1]), 3).tolist() == [2, 0, 1]
    assert classes.check_labels(make(["z", "x", "y"]), 3).tolist() == [2, 0, 1]
    numbers = BertTextRegressorPreprocessor(tokenizer)
    assert numbers.check_labels(make([2.5, 0.0, 1.0]), 3).tolist() == [2.5, 0.0, 1.0]
    choices = BertMultipleChoicePreprocessor(tokenizer)
    assert choices.check_labels(make([2, 0, 1]), 3).tolist() == [2, 0, 1]
    assert weights(make([2.5, 0.0, 1.0]), 3).reshape(-1).tolist() == [2.5, 0.0, 1.0]
    with pytest.raises(ValueError, match="There are 4 texts but 3 labels"):
        classes.check_labels(make([2, 0, 1]), 4)


def arrow_table(columns):
    return pyarrow().table(columns)


TABLES = [pandas.DataFrame, Polars, dict, pytest.param(arrow_table, marks=pytest.mark.peers)]


@pytest.mark.peers
def test_texts_of_arrow():
    a, b = ["a", "b"], ["c", "d"]
    assert text_columns(pyarrow().array(a))[0] == text_columns(pyarrow().chunked_array([a]))[0]
    assert text_columns(pyarrow().array(a))[0] == (a,)
    assert text_columns(arrow_table({"x": a, "y": b}))[0] == (a, b)


def test_texts_of_tables_and_columns():
    a, b = ["a", "b"], ["c", "d"]
    assert text_columns(PolarsColumn(a))[0] == (a,)
    for make in (pandas.DataFrame, Polars):
        assert text_columns(make({"x": a, "y": b}))[0] == (a, b)
    with pytest.raises(ValueError, match="two columns named 'x'"):
        text_columns(pandas.DataFrame([["a", "b"]], columns=["x", "x"]))


@pytest.mark.parametrize("make", TABLES)
def test_tables_of_one_column_for_each_class(make):
    rows = [[1, 0], [1, 1], [0, 0]]
    tokenizer = bert_tokenizer(TOKENS)
    preprocessor = BertTextClassifierPreprocessor(
        tokenizer, labels=["rude", "loud"], multi_label=True
    )
    for columns in ({"loud": [0, 1, 0], "rude": [1, 1, 0]}, {"p": [1, 1, 0], "q": [0, 1, 0]}):
        # By name if the names are the classes', otherwise by position.
        assert preprocessor.check_labels(make(columns), 3).tolist() == rows
    with pytest.raises(ValueError, match="columns of the labels are 'rude', 'p', but the classes"):
        preprocessor.check_labels(make({"rude": [1, 1, 0], "p": [0, 1, 0]}), 3)
    one = BertTextClassifierPreprocessor(tokenizer, labels=["rude", "loud"])
    found = one.check_labels(make({"loud": [0.0, 1.0, 0.5], "rude": [1.0, 0.0, 0.5]}), 3)
    assert found.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]


@pytest.mark.parametrize("make", TABLES)
def test_tables_of_answers_and_of_tags(make):
    contexts = ["a b", "b", "c a"]
    tokenizer = bert_tokenizer(TOKENS)
    squad = {"text": [["b"], [], ["c"]], "answer_start": [[2], [], [0]]}
    reader = BertQuestionAnsweringPreprocessor(tokenizer, sequence_length=16, max_query_length=4)
    columns = (["a"] * 3, contexts)
    given = reader._targets(make(squad), None, columns)[0]
    assert given.tolist() == [[2, 3], [-1, -1], [0, 1]]
    one = {name: values[:1] for name, values in squad.items()}
    assert reader._targets(make(one), None, (["a"], contexts[:1]))[0].tolist() == [[2, 3]]
    tagger = BertTokenClassifierPreprocessor(tokenizer, labels=["X", "Y"])
    words = make({"tokens": [["a", "b"], ["b"]]})
    if make is not dict:
        given = tagger(words, make({"tags": [["Y", "X"], ["Y"]]}))[1:]
        labels, weight = map(keras.ops.convert_to_numpy, given)
        assert labels[weight > 0].tolist() == [1, 0, 1]


def test_labels_beside_batches_are_refused():
    model = tiny_classifier()
    dataset = tf.data.Dataset.from_tensor_slices((["a"], [0])).batch(1)
    for x in (dataset, iter(dataset), (batch for batch in dataset)):
        for method in (model.fit, model.evaluate):
            with pytest.raises(
                ValueError, match="y cannot be passed with a .*, whose batches must"
            ):
                method(x, [0])
    with pytest.raises(ValueError, match="sample_weight cannot be passed with"):
        model.fit(dataset, sample_weight=[1.0])


def test_validation_split_of_tables():
    frame = pandas.DataFrame({"text": list("abcd"), "label": [0, 1, 1, 0]}, index=[3, 2, 1, 0])
    for y in (frame[["label"]], frame["label"], iter([0, 1, 1, 0]), {"label": [0, 1, 1, 0]}):
        (x, first, _), (_, second, _) = split((frame["text"], y, None), 0.25)
        assert list(x) == ["a", "b", "c"]
        assert (list(first), list(second)) == ([0, 1, 1], [0])

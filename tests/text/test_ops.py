"""Array operations in NumPy and in TensorFlow, and code built on them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert import preprocessors
from kerasbert.backend.tensorflow import Traced
from kerasbert.lineage.xlnet.preprocessor import XLNetPretrainerPreprocessor
from kerasbert.text import ops
from kerasbert.text.examples_in_memory import batch_maker
from tests.contracts import bert_tokenizer

pytestmark = pytest.mark.backends("tensorflow")  # No backend changes the results.

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e ##f . long word and more of them".split()
TEXTS = ["a b c.", "long word and more of them, and more", "", "df", "and . . a", "b c d e a" * 4]
OTHERS = TEXTS[::-1]
LONG = [text or "a" for text in OTHERS]
# A preprocessor, its settings, texts and labels.
PREPROCESSORS = [
    ("BertTextClassifier", {"labels": ["x", "y"]}, TEXTS, ["x", "y"] * 3),
    ("BertTextClassifier", {"num_segments": 0}, (TEXTS, OTHERS), [0, 1, 2, 0, 1, 2]),
    *(
        ("BertTextRegressor", {"truncate": rule}, (TEXTS, OTHERS), [0.5] * 6)
        for rule in ("longest_first", "only_second", "only_first", "round_robin")
    ),
    *(
        ("BertMaskedLM", {"mask_unit": unit, "mask_selection_rate": 0.4}, (TEXTS, OTHERS), None)
        for unit in ("token", "word", "span", "ngram")
    ),
    ("BertMaskedLM", {"mask_unit": "word", "word_boundaries": "spaces"}, TEXTS, None),
    ("BertPretrainer", {}, (TEXTS, OTHERS), [0, 1] * 3),
    ("BertTokenClassifier", {"labels": ["X"], "scheme": "BIO"}, LONG, [[(0, 1, "X")]] * 6),
    ("BertQuestionAnswering", {"max_query_length": 3}, (TEXTS, LONG), [(0, 1)] * 6),
    ("BertMultipleChoice", {}, (TEXTS, [["a", "b c"], ["d"]] * 3), [0] * 6),
    ("BertReranker", {}, (TEXTS, [["a", "b c"], ["d"]] * 3), [[1, 0], [1]] * 3),
    ("BertTextEmbedder", {"text_token": "a", "prompts": {"text": "b "}}, TEXTS, None),
    ("BertCausalLM", {}, LONG, None),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, settings, x, y", PREPROCESSORS)
def test_both_forms_make_the_same_batches(name, settings, x, y):
    tokenizer = bert_tokenizer(TOKENS)
    made = getattr(preprocessors, f"{name}Preprocessor")
    same(made(tokenizer, sequence_length=12, **settings), x, y)


@pytest.mark.slow
def test_both_forms_of_xlnet():
    same(XLNetPretrainerPreprocessor(bert_tokenizer(TOKENS), sequence_length=16), TEXTS, None)


def same(preprocessor, x, y):
    weights = None if y is None else np.linspace(0.5, 1, len(y), dtype="float32")
    segments, targets = preprocessor._examples(x, y, weights)
    rows = np.arange(len(segments[0]))[::-1].copy()
    given = [target is not None for target in targets]
    tensors = [ops.as_tensor(one) for one in (*segments, *targets) if one is not None]

    def in_graph(rows, *parts):
        seed, parts = parts[: preprocessor.draws], parts[preprocessor.draws :]
        left = iter(parts[len(segments) :])
        targets = [next(left) if one else None for one in given]
        return batch_maker(preprocessor, parts[: len(segments)], targets, buckets)(rows, *seed)

    for buckets in (True, False, (12, 24)):
        for seed in (1, 2):
            seed = [np.array([seed, 7])] if preprocessor.draws else []
            found = batch_maker(preprocessor, segments, targets, buckets)(rows, *seed)
            expected = Traced(in_graph)(rows, *seed, *tensors)
            keras.tree.assert_same_structure(found, keras.tree.map_structure(np.asarray, expected))
            for a, b in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
                assert isinstance(a, np.ndarray) and a.dtype == b.dtype.as_numpy_dtype
                np.testing.assert_array_equal(a, b.numpy())


RANDOM = np.random.default_rng(0)
ROWS = ops.Ragged.from_lists([[3, 1], [], [4, 1, 5], [9]])
MORE = ops.Ragged.from_lists([[], [2], [6, 5], [3]])
NESTED = ops.Ragged(ROWS, [0, 1, 1, 4])
X, INDEX = RANDOM.integers(-5, 5, (3, 4)).astype("int32"), np.array([[0, 2], [3, 1], [1, 1]])
OPERATIONS = {
    "take": lambda: ops.gather(ROWS, np.array([2, 0, 2])),
    "take nested": lambda: ops.gather(NESTED, np.array([2, 0])),
    "slice": lambda: ROWS[1:3],
    "begin": lambda: ROWS[:, :2],
    "rest": lambda: ROWS[:, 1:],
    "all but the last": lambda: ROWS[:, :-1],
    "the last two": lambda: ROWS[:, -2:],
    "concat rows": lambda: ops.concat([ROWS, MORE], axis=0),
    "concat values": lambda: ops.concat([ROWS, MORE, ops.column(ROWS, 7)], axis=1),
    "padded": lambda: ROWS.to_tensor(8),
    "padded to": lambda: ROWS.to_tensor(8, shape=[None, 2]),
    "nested padded": lambda: NESTED.to_tensor(8),
    "merged": lambda: NESTED.merge_dims(1, 2),
    "longest": lambda: ops.reduce_max(ROWS, axis=1),
    "gather rows": lambda: ops.gather(X, INDEX, batch_dims=1),
    "cumsum": lambda: ops.cumsum(X, axis=1, exclusive=True),
    "top": lambda: ops.top_k(X, 3)[1],
    "search": lambda: ops.searchsorted(ops.sort(X), ops.sort(X)[:, 1:], side="right"),
    "segments": lambda: ops.unsorted_segment_max(X[:, 0], np.array([1, -1, 1]), 3),
    "where": lambda: ops.where(X > 0),
    "update": lambda: ops.tensor_scatter_nd_update(X[0], np.array([[1], [3]]), X[1, :2]),
    "pad": lambda: ops.pad(X, [[0, 1], [2, 0]], constant_values=7),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name, monkeypatch):
    expected = OPERATIONS[name]()
    for each in ("ROWS", "MORE", "NESTED", "X"):
        monkeypatch.setitem(globals(), each, ops.as_tensor(globals()[each]))
    found = OPERATIONS[name]()
    assert ops.is_tensor(found) and not ops.is_tensor(expected)
    if isinstance(expected, ops.Ragged):
        assert found.to_list() == expected.to_list()
        assert found.dtype.as_numpy_dtype == expected.dtype
    else:
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.dtype.as_numpy_dtype == expected.dtype


def test_random_numbers():
    for seed in ((0, 0), (5, -9), (2**40 + 3, 2**61 + 7)):
        wanted = tf.random.stateless_uniform((3, 7), seed, alg="philox").numpy()
        np.testing.assert_array_equal(ops.stateless_uniform((3, 7), seed), wanted)
    for seed in (np.array([5, -9], "int32"), np.array([2**40, 7], "int64")):
        for made in (
            lambda seed: ops.stateless_uniform((50,), seed, 1, 6, "int32"),
            lambda seed: ops.split_seed(seed, 3),
        ):
            np.testing.assert_array_equal(made(seed), made(tf.constant(seed)).numpy())

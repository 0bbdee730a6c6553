"""Labels and texts from which nothing can be learned: `fit` warns once, before training."""

import doctest
import warnings

import numpy as np
import pytest

from kerasbert.models import BertTextEmbedder
from kerasbert.preprocessors import (
    BertMaskedLMPreprocessor,
    BertQuestionAnsweringPreprocessor,
    BertRerankerPreprocessor,
    BertTextClassifierPreprocessor,
    BertTextEmbedderPreprocessor,
    BertTextRegressorPreprocessor,
    BertTokenClassifierPreprocessor,
)
from kerasbert.text import label_warnings
from tests.contracts import bert_tokenizer, tiny_backbone

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()
TEXTS = ["a b", "b", "c", "a"]
WORDS = [text.split() for text in TEXTS]


def make(cls, **settings):
    return cls(bert_tokenizer(TOKENS), sequence_length=16, **settings)


def said(preprocessor, x, y=None, sample_weight=None):
    """Return the warnings of one call of `fit` on texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        preprocessor.batches(x, y, sample_weight)
    return [str(warning.message) for warning in caught]


NAMED = {"labels": ["ham", "spam", "other"]}
TAGS = {"labels": ["PER"], "scheme": "BIO"}
CASES = {
    "class": (
        *(BertTextClassifierPreprocessor, NAMED, TEXTS, ["spam"] * 4, ["ham", *["spam"] * 3]),
        "All 4 labels are 'spam': the model",
    ),
    "number": (
        *(BertTextClassifierPreprocessor, {"num_classes": 2}, TEXTS, [1] * 4, [1, 0, 0, 0]),
        "All 4 labels are 1: the model",
    ),
    "rows": (
        *(BertTextClassifierPreprocessor, NAMED, TEXTS, np.eye(3)[[0] * 4], np.eye(3)[[0, 1] * 2]),
        "All 4 labels are 'ham'",
    ),
    "several": (
        BertTextClassifierPreprocessor,
        {**NAMED, "multi_label": True},
        TEXTS,
        [["ham"], [], ["ham"], []],
        [["ham"], ["spam"], ["other"], []],
        "2 of the 3 classes ('spam', 'other') are the same in all 4 examples, where no text has",
    ),
    "always": (
        BertTextClassifierPreprocessor,
        {"num_classes": 2, "multi_label": True},
        TEXTS,
        [[1, 0], [1, 1], [1, 0], [1, 1]],
        [[1, 0], [0, 1], [1, 0], [1, 1]],
        "1 of the 2 classes ('0') are the same in all 4 examples, where all texts have",
    ),
    "score": (
        *(BertTextRegressorPreprocessor, {}, TEXTS, [0.5] * 4, [0.5, 1, 0.5, 0.5]),
        "All 4 labels are 0.5",
    ),
    "tags": (
        *(BertTokenClassifierPreprocessor, TAGS, WORDS),
        [["O", "O"], ["O"], ["O"], ["O"]],
        [["O", "B-PER"], ["O"], ["O"], ["O"]],
        "All 5 labels are 'O'",
    ),
    "spans": (
        *(BertTokenClassifierPreprocessor, TAGS, TEXTS, [[]] * 4, [[(0, 1, "PER")], [], [], []]),
        "All 5 labels are 'O'",
    ),
    "answers": (
        *(BertQuestionAnsweringPreprocessor, {"max_query_length": 4}, (TEXTS, TEXTS)),
        [None] * 4,
        [(0, 1), None, None, None],
        "No question has an answer in its context",
    ),
    "pairs": (
        *(BertRerankerPreprocessor, {}, (TEXTS, TEXTS), [1.0] * 4, [1.0, 0, 0, 1]),
        "All 4 labels are 1.0",
    ),
    "lists": (
        *(BertRerankerPreprocessor, {}, (["a", "b"], [["a", "c"], ["b", "c"]])),
        [[1, -1], [1, 1]],
        [[1, -1], [0, 1]],
        "All 3 labels are 1.0",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equal_labels(case):
    cls, settings, x, equal, different, message = case
    preprocessor = make(cls, **settings)
    (found,) = said(preprocessor, x, equal)
    assert message in found
    assert said(preprocessor, x, different) == []


def test_weights_and_single_examples():
    preprocessor = make(BertTextClassifierPreprocessor, **NAMED)
    y = ["ham", "spam", "spam", "spam"]
    assert "All 3 labels" in said(preprocessor, TEXTS, y, [0.0, 1, 1, 1])[0]
    assert said(preprocessor, ["a"], ["ham"]) == []
    assert said(preprocessor, TEXTS) == []


def test_nothing_to_mask():
    preprocessor = make(BertMaskedLMPreprocessor)
    for texts in (["", " "], ["x y", "z"]):
        assert any("No text has a token to mask" in one for one in said(preprocessor, texts))
    assert said(preprocessor, ["", "a"]) == []
    assert said(make(BertMaskedLMPreprocessor, mask_selection_rate=0.0), ["", ""]) == []


def test_pairs_without_negatives():
    embedder = BertTextEmbedder(
        tiny_backbone(), preprocessor=make(BertTextEmbedderPreprocessor), pooling="mean"
    )
    for settings, y, message in (
        ({"batch_size": 1}, None, "With batch_size=1 a pair has no in-batch negatives"),
        ({}, [0.5] * 4, "All 4 scores of pairs are 0.5"),
        ({"batch_size": 2}, None, None),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            columns = embedder._compared((TEXTS, TEXTS), y)
            embedder._check_differing(columns, (TEXTS, TEXTS), y, settings.get("batch_size"))
            embedder._in_columns((TEXTS, TEXTS), y, shuffle=True)
        assert [message in str(one.message) for one in caught] == [True] * (message is not None)


def test_docstrings():
    assert doctest.testmod(label_warnings).failed == 0

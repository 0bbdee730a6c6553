import doctest

from kerasbert.preprocessors import texts


def test_docstrings():
    assert doctest.testmod(texts).failed == 0


def test_broken_surrogates_and_whole_ones():
    (column,), batched = texts.text_columns(["\U0001f600", "é", ""])
    assert batched and column == ["\U0001f600", "é", ""]

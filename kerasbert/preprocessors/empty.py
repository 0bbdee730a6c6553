"""Texts that say nothing: an index finds none of them, and finds nothing for them."""

import unicodedata

import numpy as np

# Letters and symbols without a shape: fillers of Hangul, the blank of Braille, joiners.
_SHAPELESS = "\u034f\u115f\u1160\u2800\u3164\ufe0e\ufe0f\uffa0"
# The same as `is_blank`, for graphs.
BLANK = rf"[\s\p{{Z}}\p{{Cc}}\p{{Cf}}{_SHAPELESS}]*"


def is_blank(text):
    """Whether a text has nothing but spaces, control characters and others without a shape.

    >>> is_blank(" \\u200b"), is_blank(".")
    (True, False)
    """
    return all(
        char.isspace() or unicodedata.category(char) in ("Cc", "Cf") or char in _SHAPELESS
        for char in text
    )


def say_nothing(embedder, texts):
    """Which texts hold nothing for an embedder: blank ones, and those without a known token.

    Returns:
        bool array (N,).
    """
    found = np.fromiter(map(is_blank, texts), bool, len(texts))
    preprocessor = getattr(embedder, "preprocessor", None)
    tokenizer = getattr(preprocessor, "tokenizer", None)
    if tokenizer is None or not len(texts):
        return found
    (tokens,) = preprocessor.tokenize(list(texts))
    known = np.asarray(tokens.values) != tokenizer.unk_token_id
    rows = np.asarray(tokens.value_rowids())[known]
    return found | (np.bincount(rows, minlength=len(texts)) == 0)

"""Detection of texts without content, which a search index neither finds nor answers."""

import unicodedata

import numpy as np

# Letters and symbols without visible shape: Hangul fillers, the Braille blank, joiners and
# variation selectors.
_SHAPELESS = "\u034f\u115f\u1160\u2800\u3164\ufe0e\ufe0f\uffa0"
# `is_blank` as a regular expression, for TensorFlow graphs.
BLANK = rf"[\s\p{{Z}}\p{{Cc}}\p{{Cf}}{_SHAPELESS}]*"


def is_blank(text):
    """Return whether a text has only invisible characters.

    >>> is_blank(" \\u200b"), is_blank(".")
    (True, False)
    """
    return all(
        char.isspace() or unicodedata.category(char) in ("Cc", "Cf") or char in _SHAPELESS
        for char in text
    )


def are_empty(embedder, texts):
    """Return whether each text is empty: it is blank, or has no token known to the embedder.

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

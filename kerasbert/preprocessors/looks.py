"""What a preprocessor says once of its texts: that the vocabulary cannot hold them, or are cut.

A look at the tokens that were made anyway finds what is worth a closer one.
"""

import unicodedata
import warnings

import numpy as np

from kerasbert.data import word_spans
from kerasbert.tokenizers.subword import is_reported

# So many texts, and characters of each, are looked at closely.
TEXTS, CHARACTERS = 64, 2000
# So many unknown words, and such a share of all words, are worth a warning.
LEAST, SHARE = 3, 0.1
# Such a share of unknown tokens is worth a close look, and such a share of texts not in NFC.
TOKENS, NOT_COMPOSED = 0.03, 0.1
# A text that just fits looks as one that was cut; so many close looks may find nothing.
FRUITLESS = 3


class Looks:
    """What one preprocessor has looked for, and how far."""

    def __init__(self):
        self.is_told = False  # of unknown words or of normal forms
        self.is_cut_told = False
        self.share = TOKENS  # of unknown tokens, above which words have not been looked at
        self.is_composed = False  # whether the tokenizer composes characters itself
        self.fruitless = 0

    # === Words and normal forms ===

    def at_tokens(self, tokenizer, texts, ids):
        """Look at texts (N,), strings or bytes, and all their tokens: ints, of any shape."""
        if self.is_told or not len(texts) or not is_reported():
            return
        unknown = np.count_nonzero(ids == tokenizer.unk_token_id)
        if unknown >= LEAST and unknown > self.share * ids.size:
            self._words(tokenizer, _some(texts))
            self.share = max(self.share, 1.2 * unknown / ids.size)
        if not self.is_told and not self.is_composed and tokenizer.normalize is None:
            some = texts if len(texts) <= TEXTS else texts[:: len(texts) // TEXTS]
            others = [text for text in map(_decoded, some) if not _is_nfc(text)]
            if len(others) > NOT_COMPOSED * len(some):
                self._forms(tokenizer, some, others)

    def _words(self, tokenizer, texts):
        """Warn of texts of which many words are unknown."""
        unknown, words = _unknown_words(tokenizer, texts)
        if unknown < LEAST or unknown < SHARE * words:
            return
        composed = _unknown_words(tokenizer, [unicodedata.normalize("NFC", t) for t in texts])[0]
        if 2 * composed < unknown:
            return  # `_forms` says so.
        self.is_told = True
        example = _example(tokenizer, texts)
        out = (
            "Use a checkpoint of the texts' language (`kerasbert presets`), or make a vocabulary "
            "of such texts (`kerasbert vocab`)."
        )
        known = _unknown_words(tokenizer, [unicodedata.normalize("NFKC", t) for t in texts])[0]
        if 2 * known < unknown:
            out = f"With model.preprocessor.normalize = 'NFKC' {known:,} of them are."
        _warn(
            f"Of {words:,} words in a sample of the texts {unknown:,} ({unknown / words:.0%}) are "
            f"unknown to the vocabulary of {tokenizer.vocabulary_size():,} tokens, such as "
            f"{example!r}, and are {tokenizer.unk_token!r} to the model. {out}"
        )

    def _forms(self, tokenizer, some, others):
        """Warn of texts that are not in NFC, where the tokenizer reads them otherwise."""
        given = [text[:CHARACTERS] for text in others[:TEXTS]]
        composed = [unicodedata.normalize("NFC", text) for text in given]
        if tokenizer.tokenize(given) == tokenizer.tokenize(composed):
            self.is_composed = True
            return
        self.is_told = True
        found = []
        for texts in (given, composed):
            unknown, words = _unknown_words(tokenizer, texts)
            found.append(f"{unknown:,} of {words:,} words")
        _warn(
            f"{len(others):,} of {len(some):,} texts looked at are not in Unicode's composed form "
            f"NFC, such as {given[0][:40]!r}, and the tokenizer reads them otherwise: {found[0]} "
            f"are unknown, and in NFC {found[1]}. Pass normalize='NFC' to from_preset or to the "
            "preprocessor, or set model.preprocessor.normalize = 'NFC'."
        )

    # === Length ===

    def at_cut(self, rows, texts, length):
        """Look at which rows lost tokens, bools (N,), and at a column of their texts."""
        if self.is_cut_told or not rows.any() or not is_reported():
            return
        self.is_cut_told = True
        count, first = int(np.count_nonzero(rows)), int(np.argmax(rows))
        text = texts[first]
        shown = repr(_decoded(text)[:40]) if isinstance(text, (str, bytes)) else "its choices"
        share = count / len(rows)
        _warn(
            f"{count:,} of {len(rows):,} texts ({share:{'.0%' if share >= 0.01 else '.2%'}}) are "
            f"longer than sequence_length={length} tokens and are cut, such as that at position "
            f"{first}, {shown}. Raise sequence_length as far as the encoder has positions, or read "
            "'Long documents' in the guide on text classification."
        )


def looks_of(preprocessor):
    """The `Looks` of a preprocessor."""
    # Not by `setattr`: Keras would track it.
    return preprocessor.__dict__.setdefault("_looks", Looks())


def _warn(message):
    warnings.warn(message, stacklevel=6)


def _decoded(text):
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _is_nfc(text):
    return text.isascii() or unicodedata.is_normalized("NFC", text)


def _some(texts):
    """Texts from all over a column."""
    step = max(1, len(texts) // TEXTS)
    return [_decoded(text)[:CHARACTERS] for text in texts[::step]][:TEXTS]


def _unknown_words(tokenizer, texts):
    """How many words of texts hold an unknown token, and how many there are."""
    rows = [row for row in tokenizer.tokenize(texts) if row]
    if not rows:
        return 0, 0
    ids = np.concatenate(rows)
    edges = tokenizer.word_edges()[ids]  # (P, 2)
    begins = edges[:, 0]
    begins[1:] |= edges[:-1, 1]
    begins[np.cumsum([0, *map(len, rows[:-1])])] = True
    word = np.cumsum(begins) - 1
    return len(np.unique(word[ids == tokenizer.unk_token_id])), int(word[-1]) + 1


def _example(tokenizer, texts):
    """A word of the texts that is unknown."""
    words = dict.fromkeys(text[a:b][:30] for text in texts[:8] for a, b in word_spans(text)[:99])
    found = zip(words, tokenizer.tokenize(list(words)))
    return next((word for word, ids in found if tokenizer.unk_token_id in ids), texts[0][:30])

"""One-time warnings of a preprocessor about unknown words, Unicode normal forms and truncation.

The tokens of each batch get a cheap check; only suspicious batches get a closer one.
"""

import unicodedata
import warnings

import numpy as np

from kerasbert.text.subword import is_reported
from kerasbert.text.tagging import word_spans

# Maximum number of texts, and of characters per text, in a close check.
TEXTS, CHARACTERS = 64, 2000
# Minimum number and share of unknown words for a warning.
LEAST, SHARE = 3, 0.1
# Shares that trigger a close check: unknown tokens, and texts not in NFC.
TOKENS, NOT_COMPOSED = 0.03, 0.1


class Looks:
    """State of the checks of one preprocessor."""

    def __init__(self):
        self.is_told = False  # whether unknown words or normal forms have been reported
        self.is_cut_told = False
        self.share = TOKENS  # share of unknown tokens that triggers the next close check
        self.is_composed = False  # whether tokens are the same in NFC

    # === Words and normal forms ===

    def at_tokens(self, tokenizer, texts, ids):
        """Check texts (N,), strings or bytes, and the ids of all their tokens, of any shape."""
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
        """Warn if many words are unknown."""
        unknown, words = _unknown_words(tokenizer, texts)
        if unknown < LEAST or unknown < SHARE * words:
            return
        composed = _unknown_words(tokenizer, [unicodedata.normalize("NFC", t) for t in texts])[0]
        if 2 * composed < unknown:
            return  # NFC helps, which `_forms` reports.
        self.is_told = True
        example = _example(tokenizer, texts)
        out = (
            "Use a checkpoint for the language of the texts (see `kerasbert presets`), or build a "
            "vocabulary from them (`kerasbert vocab`)."
        )
        known = _unknown_words(tokenizer, [unicodedata.normalize("NFKC", t) for t in texts])[0]
        if 2 * known < unknown:
            out = f"With model.preprocessor.normalize = 'NFKC', only {known:,} would be unknown."
        _warn(
            f"Of {words:,} words in a sample of the texts, {unknown:,} ({unknown / words:.0%}), "
            f"such as {example!r}, are not in the vocabulary of {tokenizer.vocabulary_size():,} "
            f"tokens; the model sees them as {tokenizer.unk_token!r}. {out}"
        )

    def _forms(self, tokenizer, some, others):
        """Warn about texts whose tokens NFC would change."""
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
            f"{len(others):,} of {len(some):,} checked texts are not in Unicode's composed form "
            f"NFC, such as {given[0][:40]!r}, which changes their tokens: {found[0]} are unknown, "
            f"and in NFC {found[1]}. Pass normalize='NFC' to from_preset or to the preprocessor, "
            "or set model.preprocessor.normalize = 'NFC'."
        )

    # === Length ===

    def at_cut(self, rows, texts, length):
        """Warn about truncated texts.

        Args:
            rows: bools (N,), true for truncated rows.
            texts: one column of the N texts, to quote an example.
            length: int. The preprocessor's `sequence_length`.
        """
        if self.is_cut_told or not rows.any() or not is_reported():
            return
        self.is_cut_told = True
        count, first = int(np.count_nonzero(rows)), int(np.argmax(rows))
        text = texts[first]
        shown = repr(_decoded(text)[:40]) if isinstance(text, (str, bytes)) else "its choices"
        share = count / len(rows)
        _warn(
            f"{count:,} of {len(rows):,} texts ({share:{'.0%' if share >= 0.01 else '.2%'}}) are "
            f"longer than sequence_length={length} tokens and are truncated, first at "
            f"position {first}, {shown}. Raise sequence_length, up to the encoder's positions, or "
            "see 'Long documents' in the guide on text classification."
        )


def looks_of(preprocessor):
    """Return the `Looks` of a preprocessor."""
    # `setattr` would make Keras track it.
    return preprocessor.__dict__.setdefault("_looks", Looks())


def _warn(message):
    warnings.warn(message, stacklevel=6)


def _decoded(text):
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _is_nfc(text):
    return text.isascii() or unicodedata.is_normalized("NFC", text)


def _some(texts):
    """Return evenly spaced texts of a column."""
    step = max(1, len(texts) // TEXTS)
    return [_decoded(text)[:CHARACTERS] for text in texts[::step]][:TEXTS]


def _unknown_words(tokenizer, texts):
    """Return the number of words with an unknown token, and of all words."""
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
    """Return an unknown word of the texts."""
    words = dict.fromkeys(text[a:b][:30] for text in texts[:8] for a, b in word_spans(text)[:99])
    found = zip(words, tokenizer.tokenize(list(words)))
    return next((word for word, ids in found if tokenizer.unk_token_id in ids), texts[0][:30])

"""One-time warnings about texts: unknown words, normal forms, truncation, control tokens.

Each batch is checked quickly, and those that seem wrong closely.
"""

import contextlib
import contextvars
import reprlib
import unicodedata
import warnings

import numpy as np

from kerasbert.text import ops
from kerasbert.text.batches import on_first_texts
from kerasbert.text.tagging import word_spans

# Texts, and characters per text, that are checked closely.
TEXTS, CHARACTERS = 64, 2000
# Minimum number and share of unknown words for a warning.
LEAST, SHARE = 3, 0.1
# Shares above which a batch is checked closely: of unknown tokens, and of texts not in NFC.
TOKENS, NOT_COMPOSED = 0.03, 0.1


_is_reported = contextvars.ContextVar("is_reported", default=True)


@contextlib.contextmanager
def unreported():
    """Context manager without warnings, for texts that are not the user's."""
    token = _is_reported.set(False)
    try:
        yield
    finally:
        _is_reported.reset(token)


def is_reported():
    """Return whether texts are the user's."""
    return _is_reported.get()


def report_control(tokenizer, texts):
    """Warn once of a control token that is treated as text.

    Args:
        tokenizer: a `SubwordTokenizer`.
        texts: list of strings, or string tensor (N,).
    """
    if tokenizer.special_tokens_in_strings or not is_reported():
        return
    if tokenizer.__dict__.get("_has_reported"):
        return
    texts = texts.numpy() if ops.is_tensor(texts) else texts
    texts = [text.encode("utf-8", "replace") if isinstance(text, str) else text for text in texts]
    every = b"\0".join(texts)
    tokens = [token for token in tokenizer.control_tokens if token and token.encode() in every]
    if not tokens:
        return
    tokenizer.__dict__["_has_reported"] = True
    place, token = next(
        (i, token) for i, text in enumerate(texts) for token in tokens if token.encode() in text
    )
    text = reprlib.repr(texts[place].decode("utf-8", "replace"))
    warnings.warn(
        f"The text {text} contains {token!r}, a control token of the model. It is treated as "
        "ordinary text, so that no text can end or mask another one; transformers turns it "
        "into the token. Pass special_tokens_in_strings=True to from_preset for that. Further "
        "texts with control tokens are not reported.",
        stacklevel=2,
    )


class Looks:
    """The state of a preprocessor's checks."""

    def __init__(self):
        self.is_told = False  # Unknown words or normal forms have been reported.
        self.is_cut_told = False
        self.share = TOKENS  # Share of unknown tokens for a close check.
        self.is_composed = False  # NFC does not change the tokens.

    # === Words and normal forms ===

    def at_tokens(self, tokenizer, texts, ids):
        """Check texts (N,), strings or bytes, and their token ids (any shape)."""
        if self.is_told or not len(texts) or not is_reported():
            return
        unknown = np.count_nonzero(ids == tokenizer.unk_token_id)
        if unknown >= LEAST and unknown > self.share * ids.size:
            self._words(tokenizer, _some(texts))
            self.share = max(self.share, 1.2 * unknown / ids.size)
        if not self.is_told and not self.is_composed and tokenizer.normalize is None:
            some = texts if len(texts) <= TEXTS else texts[:: len(texts) // TEXTS]
            others = [x for x in map(_decoded, some) if not unicodedata.is_normalized("NFC", x)]
            if len(others) > NOT_COMPOSED * len(some):
                self._forms(tokenizer, some, others)

    def _words(self, tokenizer, texts):
        """Warn if many words are unknown."""
        unknown, words = _unknown_words(tokenizer, texts)
        if unknown < LEAST or unknown < SHARE * words:
            return
        composed = _unknown_words(tokenizer, [unicodedata.normalize("NFC", t) for t in texts])[0]
        if 2 * composed < unknown:
            return  # Most of these words are known in NFC, which `_forms` reports.
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
        """Warn if tokens would differ in NFC."""
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

    def at_cut(self, preprocessor, columns, segments):
        """Warn once of truncated texts, except in tasks that divide texts.

        Args:
            preprocessor: a `BertPreprocessor`.
            columns: list of columns of N texts; the last one gives the example.
            segments: tuple of the ragged tokens of each column.
        """
        if self.is_cut_told or not preprocessor.truncates or not is_reported():
            return
        long, texts = preprocessor.long, columns[-1]
        most = long.buckets(preprocessor.sequence_length)[-1]
        rows = np.asarray(preprocessor.packed_lengths(segments, truncated=False)) > most
        if not rows.any():
            return
        self.is_cut_told = True
        count, first = int(np.count_nonzero(rows)), int(np.argmax(rows))
        text = texts[first]
        shown = repr(_decoded(text)[:40]) if isinstance(text, (str, bytes)) else "its choices"
        share = count / len(rows)
        than, way = f"sequence_length={preprocessor.sequence_length} tokens", ""
        if "long" in preprocessor.settings:
            way = {
                "truncate": ", or pass long='head_tail' or long='windows' to from_preset",
                "head_tail": ", or pass long='windows' to from_preset",
                "windows": ", or max_windows",
            }[long.mode]
            than = f"max_windows={long.max_windows} windows" if long.has_windows else than
        _warn(
            f"{count:,} of {len(rows):,} texts ({share:{'.0%' if share >= 0.01 else '.2%'}}) are "
            f"longer than {than} and are truncated, first at position {first}, {shown}. Raise "
            f"sequence_length, up to the encoder's positions{way}; see 'Long documents' in the "
            "guide on text classification."
        )


def looks_of(preprocessor):
    """Return the `Looks` of a preprocessor."""
    # After `setattr`, Keras would track the attribute.
    return preprocessor.__dict__.setdefault("_looks", Looks())


def looking(preprocessor, dataset):
    """Return a `tf.data.Dataset` whose first batch is checked when read."""

    def look(columns):
        looks_of(preprocessor).at_cut(
            preprocessor, columns, preprocessor._tokenize_columns(columns)
        )

    return on_first_texts(dataset, look)


def _warn(message):
    warnings.warn(message, stacklevel=6)


def _decoded(text):
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _some(texts):
    """Return at most `TEXTS` texts of a column, evenly spaced and shortened."""
    step = max(1, len(texts) // TEXTS)
    return [_decoded(text)[:CHARACTERS] for text in texts[::step]][:TEXTS]


def _unknown_words(tokenizer, texts):
    """Return the numbers of words with an unknown token and of all words."""
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
    """Return a word with an unknown token, as an example."""
    words = dict.fromkeys(text[a:b][:30] for text in texts[:8] for a, b in word_spans(text)[:99])
    found = zip(words, tokenizer.tokenize(list(words)))
    return next((word for word, ids in found if tokenizer.unk_token_id in ids), texts[0][:30])

"""`PassageSplitter`: division of documents into passages of whole sentences.

U: number of units (sentences, words or tokens).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from kerasbert.base.errors import check_whole, did_you_mean
from kerasbert.data.sentences import sentence_spans
from kerasbert.text.tagging import word_spans

if TYPE_CHECKING:
    from typing import Any

DEFAULT_TOKENS = 256
_TEXTS = 1024  # Sentences tokenized at once.
_TRIES = 8


@dataclasses.dataclass(frozen=True)
class PassageSplitter:
    """Splits documents into passages of whole sentences.

    Sentences longer than `max_tokens` are split between words, and such words between tokens.

    Args:
        max_tokens: int, at least 8. Maximum number of tokens per passage, without special tokens
            and prompt; defaults to 256, or less if the index's embedder reads less.
        overlap: maximum number of tokens of the previous passage's last sentences with which a
            passage begins, 0 for no overlap; defaults to an eighth of the maximum.
        language: ISO code of the language, whose abbreviations (`Mr.`) do not end a sentence. The
            default also suits Chinese, Japanese and Korean.

    Raises:
        ValueError: for invalid settings.

    Example:

    >>> splitter = PassageSplitter(max_tokens=8, overlap=4)
    >>> text = "It rains. It pours.\\nThe sun shines. Birds sing."
    >>> [text[start:end] for start, end in splitter.split(text)]
    ['It rains. It pours.', 'It pours.\\nThe sun shines.', 'The sun shines. Birds sing.']
    """

    max_tokens: int | None = None
    overlap: int | None = None
    language: str = "en"

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens, least=8)
        if self.overlap is not None:
            check_whole("overlap", self.overlap, least=0)
        if self.overlap is not None and self.overlap >= (self.max_tokens or self.overlap + 1):
            raise ValueError(
                f"overlap={self.overlap} must be less than max_tokens={self.max_tokens}."
            )
        if not isinstance(self.language, str) or not self.language:
            raise ValueError(f"language={self.language!r:.50} must be an ISO code such as 'en'.")

    def get_config(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PassageSplitter:
        """Make a splitter from the dict of `get_config`."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in config:
            if name not in known:
                raise ValueError(
                    f"PassageSplitter has no setting {name!r:.50}"
                    + did_you_mean(name, known, f"; use {', '.join(known)}.")
                )
        return cls(**config)

    def split(self, text: str, tokenizer: Any = None) -> list[tuple[int, int]]:
        """Split a text into passages.

        Args:
            text: string, with line ends of any system.
            tokenizer: a tokenizer of `kerasbert.tokenizers`, which counts the tokens. `None` counts
                words, punctuation marks and CJK characters.

        Returns:
            A list of `(start, end)` in characters of the text. They omit only white space between
            sentences.
        """
        # Lone surrogates are not characters; "?" has the same length.
        text = text.encode("utf-8", "replace").decode("utf-8")
        counter = _Tokens(tokenizer)
        most = self.max_tokens or DEFAULT_TOKENS
        starts, ends, counts = _units(text, sentence_spans(text, self.language), counter, most)
        if not len(starts):
            return []
        overlap = most // 8 if self.overlap is None else min(self.overlap, most - 1)
        room = most
        # A passage may have more tokens than its units together, such as a start token, so it is
        # counted too.
        for _ in range(_TRIES):
            groups = np.array(_packed(counts.tolist(), room, overlap))
            spans = list(zip(starts[groups[:, 0]].tolist(), ends[groups[:, 1] - 1].tolist()))
            excess = int(counter.count(text, spans).max()) - most
            if excess <= 0 or room == 1:
                break
            room = max(1, room - excess)
            overlap = min(overlap, room - 1)
        return spans


class _Tokens:
    """Counts and positions of the tokens of parts of a text."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def starts(self, texts):
        """Return the first characters of each text's tokens, a list of arrays."""
        if self._tokenizer is None:
            return [np.array([start for start, _ in word_spans(text)], int) for text in texts]
        _, starts, _ = self._tokenizer.ragged(texts, offsets=True)
        return np.split(np.asarray(starts.values), np.asarray(starts.row_splits)[1:-1])

    def of_spans(self, text, spans):
        """Yield `((start, end), first characters of its tokens)` for spans of a text."""
        for first in range(0, len(spans), _TEXTS):
            some = spans[first : first + _TEXTS]
            yield from zip(some, self.starts([text[start:end] for start, end in some]))

    def count(self, text, spans):
        return np.array([len(starts) for _, starts in self.of_spans(text, spans)], int)


def _units(text, sentences, counter, most):
    """Return the units of a text: `(starts, ends, token counts)`, int64 arrays (U,)."""
    found = []
    for (start, end), tokens in counter.of_spans(text, sentences):
        if len(tokens) <= most:
            found.append((start, end, len(tokens)))
            continue
        # Byte tokens of one character start together, and some tokenizers return tokens out of
        # order.
        places = np.unique(tokens) + start
        places[0] = start
        is_word = np.array([text[place - 1].isspace() for place in places.tolist()])
        is_word[0] = True
        words = places[is_word]
        tokens = np.sort(tokens) + start
        sizes = np.diff(np.searchsorted(tokens, [*words, end]))
        is_long = np.repeat(sizes > most, np.diff([*np.flatnonzero(is_word), len(places)]))
        places = places[is_word | is_long]
        stops = [*places[1:].tolist(), end]
        sizes = np.diff(np.searchsorted(tokens, [*places, end]))
        for place, stop, size in zip(places.tolist(), stops, sizes.tolist()):
            found.append((place, place + len(text[place:stop].rstrip()), size))
    return np.array(found, "int64").reshape(-1, 3).T


def _packed(counts, room, overlap):
    """Group consecutive units into passages: `(first, last + 1)` of each group.

    Args:
        counts: list of ints. Number of tokens of each unit.
        room: maximum number of tokens per group, except for a single longer unit.
        overlap: maximum number of tokens shared with the previous group.

    >>> _packed([2, 2, 3, 1], room=5, overlap=2)
    [(0, 2), (1, 3), (3, 4)]
    """
    groups, first, size = [], 0, 0
    for place, count in enumerate(counts):
        if place > first and size + count > room:
            groups.append((first, place))
            first, size, before = place, 0, first
            while first > before + 1 and size + counts[first - 1] <= min(overlap, room - count):
                first -= 1
                size += counts[first]
        size += count
    return [*groups, (first, len(counts))]

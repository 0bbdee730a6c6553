"""Text of pre-training rows: next-sentence pairs, sentence-order pairs, full sentences,
translations.

A block is one array of tokens. `sentences`, int (S + 1,), are offsets into the tokens; `documents`,
int (D + 1,), offsets into the sentences. None is empty. Rows are offsets into the tokens.

Shapes: S sentences, D documents, R rows, T tokens per row.
"""

import bisect
import itertools
import random

import numpy as np

from kerasbert.text import packing
from kerasbert.text.windows import cut_windows

OBJECTIVES = ("next_sentence", "sentence_order", "full_sentences", "translation")
# Objectives whose examples have a label for each pair.
LABELED = ("next_sentence", "sentence_order")


def next_sentence_pairs(sentences, documents, most, short_sequence_rate=0.1, seed=0):
    """Choose pairs where B either follows A or comes from another document.

    Sentences of a document are collected up to `most` tokens, and split at a random boundary, where
    A ends. In half of the pairs, and always for only one sentence, B is random: it starts anywhere
    in another document and fills the pair to `most` tokens, and the text after A is used for the
    next pair. Otherwise B is the text after A. A share of `short_sequence_rate` of the documents
    has a random target length from 2 to `most` tokens.

    Args:
        sentences, documents: ints (S + 1,), (D + 1,). Random sentences come from these documents.
        most: target number of tokens per pair.
        short_sequence_rate: float.
        seed: int.

    Returns:
        int64 (R, 5): start and end of A, start and end of B, and 1 for a random B. Some are longer
        than `most`; see `truncate_pairs`.

    Raises:
        ValueError: if there is only one document.

    >>> next_sentence_pairs([0, 4, 9, 20], [0, 2, 3], most=3)[:2].tolist()
    [[0, 4, 9, 20, 1], [4, 9, 9, 20, 1]]

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.2, and its released code.
    """
    if len(documents) < 3:
        raise ValueError(
            "A random next sentence must come from another document, but there is only one; end "
            "documents with an empty line, or use the objective 'sentence_order' or "
            "'full_sentences'."
        )
    # Single numbers are much faster to read from lists.
    ends, documents = np.asarray(sentences).tolist(), np.asarray(documents).tolist()
    uniform = random.Random(seed).random
    others = len(documents) - 2
    rows = []
    for number, (first, last) in enumerate(zip(documents[:-1], documents[1:])):
        target = _target(most, short_sequence_rate, uniform)
        while first < last:
            end = bisect.bisect_left(ends, ends[first] + target, first + 1, last)
            cut = _cut(first, end, uniform)
            row = (ends[first], ends[cut])
            if end - first == 1 or uniform() < 0.5:
                other = int(uniform() * others)
                other += other >= number
                start, stop = documents[other], documents[other + 1]
                start += int(uniform() * (stop - start))
                wanted = target - (row[1] - row[0])
                stop = bisect.bisect_left(ends, ends[start] + wanted, start + 1, stop)
                rows.append((*row, ends[start], ends[stop], 1))
                first = cut
            else:
                rows.append((*row, ends[cut], ends[end], 0))
                first = end
    return _rows(rows)


def sentence_order_pairs(sentences, documents, most, short_sequence_rate=0.1, seed=0):
    """Choose pairs of consecutive texts A and B, and swap half of them.

    Like `next_sentence_pairs`, but B is the text after A, or before it in a swapped pair. A single
    remaining sentence joins the pair before it. A document of one sentence has no pairs.

    Returns:
        int64 (R, 5), as for `next_sentence_pairs`; 1 for a swapped pair.

    Source: Lan et al. 2020, arXiv 1909.11942, section 3.1.
    """
    ends, documents = np.asarray(sentences).tolist(), np.asarray(documents).tolist()
    uniform = random.Random(seed).random
    rows = []
    for begin, last in zip(documents[:-1], documents[1:]):
        target = _target(most, short_sequence_rate, uniform)
        first = begin
        while first < last and last - begin > 1:
            first = min(first, last - 2)
            end = bisect.bisect_left(ends, ends[first] + target, first + 2, last)
            cut = _cut(first, end, uniform)
            row = (ends[first], ends[cut]), (ends[cut], ends[end])
            swapped = uniform() < 0.5
            rows.append((*row[swapped], *row[not swapped], int(swapped)))
            first = end
    return _rows(rows)


def full_sentences(tokens, sentences, documents, most, separator, short_sequence_rate=0.0, seed=0):
    """Fill rows with whole sentences, also across documents.

    Args:
        tokens: ints (N,).
        sentences, documents: ints (S + 1,), (D + 1,).
        most: tokens per row. A longer sentence is split.
        separator: int. The token between documents.
        short_sequence_rate: share of rows with a random target length.
        seed: int.

    Returns:
        `(tokens, rows)`: the tokens with separators, and int64 (R, 5) as for
        `next_sentence_pairs`, without B.

    Source: "FULL-SENTENCES" of Liu et al. 2019, arXiv 1907.11692, section 4.2.
    """
    sentences, documents = np.asarray(sentences), np.asarray(documents)
    tokens = np.insert(tokens, sentences[documents[1:]], separator)
    # Documents that end before each sentence, one separator each.
    before = np.searchsorted(documents[1:], np.arange(len(sentences)), side="right")
    starts = sentences[:-1] + before[:-1]
    part, begin, _ = cut_windows(np.diff(sentences), most, most)
    starts = np.append(starts[part] + begin, sentences[-1] + before[-1])
    # For each part, the end of the text before it, without the separator.
    ends = np.isin(starts, (sentences + before)[documents[1:]])
    ends = (starts - ends).tolist()
    starts = starts.tolist()
    uniform = random.Random(seed).random
    rows, first = [], 0
    while first < len(starts) - 1:
        target = _target(most, short_sequence_rate, uniform)
        end = bisect.bisect_right(ends, starts[first] + target, first + 2) - 1
        rows.append((starts[first], ends[end], 0, 0, 0))
        first = end
    return tokens, _rows(rows)


def translation_pairs(ends, languages):
    """Choose pairs of a sentence and its translation.

    Three languages give three pairs; a single sentence gives a row with A alone.

    Args:
        ends: ints (D, L). End of each document's sentence in each of L languages; it begins where
            the one before ends, and may be empty.
        languages: ints (L,). Ids of the languages.

    Returns:
        int64 (R, 7): start and end of A, start and end of B, 0, and the languages of A and B.

    >>> translation_pairs(np.array([[2, 5], [5, 9]]), [3, 1]).tolist()
    [[0, 2, 2, 5, 0, 3, 1], [5, 9, 0, 0, 0, 1, 1]]

    Source: Lample and Conneau 2019, arXiv 1901.07291, section 3.3.
    """
    rows, start = [], 0
    for document in np.asarray(ends).tolist():
        found = []
        for language, end in zip(languages, document):
            if end > start:
                found.append(((start, end), language))
            start = end
        pairs = list(itertools.combinations(found, 2))
        pairs = pairs or [(one, ((0, 0), one[1])) for one in found]
        rows += [(*a, *b, 0, first, second) for (a, first), (b, second) in pairs]
    return np.array(rows, "int64").reshape(-1, 7)


def truncate_pairs(rows, most, random):
    """Truncate pairs to `most` tokens: the longer text, or B if they are equal.

    Tokens go from the front or back with equal probability.

    Args:
        rows: int64 (R, 5).
        most: int.
        random: a `numpy.random.Generator`.

    Returns:
        int64 (R, 5).

    >>> truncate_pairs(np.array([[0, 9, 20, 22, 1]]), 9, np.random.default_rng(0))[0, 2:].tolist()
    [20, 22, 1]
    """
    a, b = rows[:, 1] - rows[:, 0], rows[:, 3] - rows[:, 2]
    kept_a = np.minimum(a, np.maximum((most + 1) // 2, most - b))
    kept_b = np.minimum(b, most - kept_a)
    rows = rows.copy()
    for column, length, kept in ((0, a, kept_a), (2, b, kept_b)):
        # The number from the front is binomial.
        rows[:, column] += random.binomial(length - kept, 0.5)
        rows[:, column + 1] = rows[:, column] + kept
    return rows


def pack_rows(tokens, rows, sequence_length, frame, pad):
    """Join A and B with special tokens, and pad the rows.

    Args:
        tokens: int32 (N,).
        rows: int64 (R, 5), or (R, 7) with the languages of A and B. Rows without B hold only A.
        sequence_length: int. T; every row must fit.
        frame: a `Frame`.
        pad: int. The padding token.

    Returns:
        A dict of `input_ids`, int32 (R, T), `segment_ids`, int32 (R, T), and `lengths`, int (R,).
        Segments are the languages, or 1 for B.

    >>> from kerasbert.text.packing import Frame
    >>> frame = Frame(before=(2,), between=(3,), after=(3,))
    >>> packed = pack_rows(np.array([7, 8, 9]), np.array([[0, 1, 1, 3, 0]]), 7, frame, 0)
    >>> packed["input_ids"].tolist(), packed["lengths"].tolist()
    ([[2, 7, 3, 8, 9, 3, 0]], [6])
    """
    first, second = rows[:, 5:].T.astype("int32")[..., None] if rows.shape[1] > 5 else (0, 1)
    rows = rows.astype("int32")[:, :4, None]  # (R, 4, 1)
    starts, counts = [rows[:, 0], rows[:, 2]], [rows[:, 1] - rows[:, 0], rows[:, 3] - rows[:, 2]]
    packed = packing.pack_rows(
        [tokens.astype("int32")], starts, counts, frame, pad, sequence_length, counts[1] > 0
    )
    return {
        "input_ids": packed["token_ids"],
        "segment_ids": np.where(packed["is_second"], second, first * packed["padding_mask"]),
        "lengths": packed["lengths"][:, 0],
    }


def _target(most, short_sequence_rate, uniform):
    return most if uniform() >= short_sequence_rate else 2 + int(uniform() * (most - 1))


def _cut(first, end, uniform):
    """Draw the sentence at which B starts: any sentence but the first."""
    return first + 1 + int(uniform() * (end - first - 1))


def _rows(rows):
    return np.array(rows, "int64").reshape(-1, 5)

"""Pre-training rows as token offsets: next-sentence pairs, sentence-order pairs, full sentences.

A block is one array of tokens. `sentences`, int (S + 1,), are the sentences' offsets into the
tokens; `documents`, int (D + 1,), are the documents' offsets into the sentences. None is empty.

Shapes: S sentences, D documents, R rows, T tokens per row.
"""

import bisect
import random

import numpy as np

from kerasbert.text.windows import cut_windows

OBJECTIVES = ("next_sentence", "sentence_order", "full_sentences")


def next_sentence_pairs(sentences, documents, most, short_sequence_rate=0.1, seed=0):
    """Choose pairs where B either follows A or comes from another document.

    Sentences of a document are collected up to `most` tokens, and split at a random boundary: A is
    the part before it. In half of the pairs, and always for a single sentence, B is random: it
    starts anywhere in another document and continues until the pair has `most` tokens; the text
    after A is then used again. Otherwise B is the text after A. A share of `short_sequence_rate` of
    the documents has a random target length from 2 to `most` tokens.

    Args:
        sentences, documents: ints (S + 1,), (D + 1,). Random sentences come from these documents.
        most: int. Target number of tokens per pair.
        short_sequence_rate: float.
        seed: int.

    Returns:
        int64 (R, 5): start and end of A, start and end of B, and 1 for a random B; not truncated.

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
    # Reading Python ints from lists is much faster than reading NumPy's one by one.
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

    Like `next_sentence_pairs`, but B is always the text after A, and in a swapped pair the text
    before it. A last sentence left over in a document is joined with the one before it; a document
    of one sentence has no pairs.

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
    """Fill rows with as many whole sentences as fit, crossing document boundaries.

    Args:
        tokens: ints (N,).
        sentences, documents: ints (S + 1,), (D + 1,).
        most: int. Tokens per row. A longer sentence is split.
        separator: int. The token between documents.
        short_sequence_rate: float. Share of rows with a random target length.
        seed: int.

    Returns:
        `(tokens, rows)`: the tokens with separators, and int64 (R, 5) as for
        `next_sentence_pairs`, without B.

    Source: "FULL-SENTENCES" of Liu et al. 2019, arXiv 1907.11692, section 4.2.
    """
    sentences, documents = np.asarray(sentences), np.asarray(documents)
    tokens = np.insert(tokens, sentences[documents[1:]], separator)
    # Documents that end before each sentence, which is the number of separators inserted.
    before = np.searchsorted(documents[1:], np.arange(len(sentences)), side="right")
    starts = sentences[:-1] + before[:-1]
    part, begin, _ = cut_windows(np.diff(sentences), most, most)
    starts = np.append(starts[part] + begin, sentences[-1] + before[-1])
    # End of the text before each part; a row that ends there does not hold the separator.
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


def truncate_pairs(rows, most, random):
    """Remove tokens from the longer of A and B, or from B if equally long, until `most` are left.

    Each token is removed from the front or the back with equal probability.

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
        # A fair coin flip per removed token decides between front and back.
        rows[:, column] += random.binomial(length - kept, 0.5)
        rows[:, column + 1] = rows[:, column] + kept
    return rows


def pack_rows(
    tokens, rows, sequence_length, start, end, pad, num_separators=1, begins_second=False
):
    """Join A and B with special tokens, and pad the rows.

    Args:
        tokens: int32 (N,).
        rows: int64 (R, 5). Rows without B hold only A.
        sequence_length: int. T; every row must fit.
        start, end, pad: ints. Special tokens.
        num_separators: int. Number of special tokens between A and B.
        begins_second: bool. Whether the last of these is the start token instead of the end token.

    Returns:
        A dict of `input_ids`, int32 (R, T), `segment_ids`, bool (R, T), and `lengths`, int (R,).

    >>> packed = pack_rows(np.array([7, 8, 9]), np.array([[0, 1, 1, 3, 0]]), 7, 2, 3, 0)
    >>> packed["input_ids"].tolist(), packed["lengths"].tolist()
    ([[2, 7, 3, 8, 9, 3, 0]], [6])
    """
    rows = rows.astype("int32")[:, :4, None]  # (R, 4, 1)
    a_start, b_start = rows[:, 0], rows[:, 2]
    a, b = rows[:, 1] - a_start, rows[:, 3] - b_start  # (R, 1)
    values = np.append(tokens, [start, end, pad]).astype("int32")
    begin, stop, empty = range(len(tokens), len(values))
    position = np.arange(sequence_length, dtype="int32")[None]  # (1, T)
    second = np.where(b > 0, 1 + a + num_separators, sequence_length)
    lengths = np.where(b > 0, second + b, 1 + a) + 1
    # The index in `values` of the token at each position.
    index = np.where(position <= a, a_start - 1 + position, stop)  # (R, T)
    in_second = position >= second
    index = np.where(in_second & (position < second + b), b_start - second + position, index)
    if begins_second:
        index = np.where(position == second - 1, begin, index)
    used = position < lengths
    index = np.where(used, index, empty)
    index[:, 0] = begin
    return {
        "input_ids": values[index],
        "segment_ids": in_second & used,
        "lengths": lengths[:, 0],
    }


def _target(most, short_sequence_rate, uniform):
    """Draw a target number of tokens."""
    return most if uniform() >= short_sequence_rate else 2 + int(uniform() * (most - 1))


def _cut(first, end, uniform):
    """Draw the sentence at which B starts, anywhere but at the first."""
    return first + 1 + int(uniform() * (end - first - 1))


def _rows(rows):
    return np.array(rows, "int64").reshape(-1, 5)

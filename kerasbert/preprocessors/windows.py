"""Long texts in overlapping windows.

N texts, W windows of all of them, P tokens of a text.
"""

import numpy as np

from kerasbert._tensorflow import tf_modules


def cut_windows(lengths, sizes, stride):
    """Where the windows of each text lie: every `stride` tokens one, until the text's end is in.

    Core ops, eagerly and in the graph.

    Args:
        lengths: int32 (N,). Tokens of each text.
        sizes: int32 (N,). The most tokens in a window of it, at least 1.
        stride: int. From one window's start to the next one's; never more than its size, so that
            no token is left out.

    Returns:
        `(rows, starts, lengths)`, int32 (W,): the text of each window, its first token and its
        number of tokens. Each text has at least one window.
    """
    tf, _ = tf_modules("Cutting windows")
    strides = tf.minimum(sizes, stride)
    counts = 1 - -tf.maximum(lengths - sizes, 0) // strides
    index = tf.ragged.range(counts)
    rows = tf.cast(index.value_rowids(), tf.int32)
    starts = index.values * tf.gather(strides, rows)
    left = tf.gather(lengths, rows) - starts
    return rows, starts, tf.minimum(tf.gather(sizes, rows), left)


def window_tokens(tokens, rows, starts, lengths):
    """The tokens of each window: ragged (N, None) -> (W, None)."""
    tf, _ = tf_modules("Cutting windows")
    first = tf.cast(tf.gather(tokens.row_starts(), rows), tf.int32) + starts
    index = tf.ragged.range(first, first + lengths)
    return index.with_values(tf.gather(tokens.values, index.values))


def max_context(starts, lengths):
    """Which tokens of each window count there: those with more context than in any other window.

    The context of a token is the lesser of the numbers of tokens to its left and to its right in
    the window, and a hundredth of the window's length; of equal windows the first one wins. So
    every token of the text counts once.

    Args:
        starts: ints (W,). The first token of each window of one text.
        lengths: ints (W,).

    Returns:
        bool (W, the longest window).

    >>> max_context([0, 2], [4, 4]).astype(int).tolist()
    [[1, 1, 1, 0], [0, 1, 1, 1]]

    Source: the released code of Devlin et al. 2019, arXiv 1810.04805.
    """
    starts, lengths = np.asarray(starts)[:, None], np.asarray(lengths)[:, None]  # (W, 1)
    position = np.arange(lengths.max())  # in the window
    inside = position < lengths  # (W, longest window)
    context = np.minimum(position, lengths - 1 - position) + 0.01 * lengths
    token = (starts + position)[inside]
    window = np.broadcast_to(np.arange(len(starts))[:, None], inside.shape)[inside]
    most = np.full(token.max() + 1, -1.0)  # (P,)
    np.maximum.at(most, token, context[inside])
    is_most = context[inside] == most[token]
    first = np.full(len(most), len(starts))
    np.minimum.at(first, token[is_most], window[is_most])
    counts = np.zeros(inside.shape, bool)
    counts[inside] = first[token] == window
    return counts

"""Decoding of start and end logits to answer spans.

W windows of a context, T tokens per row, S spans.
"""

import numpy as np

# Logit of impossible answers, with probability 0 in float32 and finite sums.
MASKED = -1e9


def best_spans(
    start_logits, end_logits, starts, ends, n_best=20, max_length=30, null_threshold=None
):
    """Find the best spans of a context split into windows.

    In each window, the `n_best` tokens with the highest start logits are paired with the `n_best`
    highest end logits. A pair is a span if its tokens may start and end one, in this order, at most
    `max_length` tokens long. The spans of all windows are ranked by the sum of both logits. Of
    equal sums, the first window wins, then the higher start logit, then the higher end logit; of
    equal logits, the earlier token wins. If no pair is a span, all tokens are paired.

    The null logit, for "no answer", is the smallest sum of both logits of a window's first token.

    Args:
        start_logits: floats (W, T).
        end_logits: floats (W, T).
        starts: bool (W, T). Whether a span may start at the token.
        ends: bool (W, T). Whether a span may end at the token.
        n_best: number of starts and ends per window, and maximum number of spans.
        max_length: int.
        null_threshold: float. "No answer" precedes every span whose sum the null logit exceeds by
            more than this. With infinity, it is not among the results, but keeps its share of the
            probabilities. With `None`, it has no share either.

    Returns:
        `(spans, scores, null_score)`:

        - int (S, 3): the window and the first and last token of each span, best first. The span
          (-1, -1, -1) means "no answer".
        - float64 (S,): the probabilities of the spans. They are the softmax of the sums and, unless
          `null_threshold` is `None`, the null logit minus the threshold, if it is finite.
        - the null logit minus the best span's sum.

    >>> start, end = np.array([[0.0, 5.0, 1.0]]), np.array([[0.0, 1.0, 5.0]])
    >>> spans, scores, null_score = best_spans(start, end, start > 0, end > 0)
    >>> spans[0].tolist(), round(float(scores[0]), 3), null_score
    ([0, 1, 2], 0.965, -10.0)

    Source: Devlin et al. 2019, arXiv 1810.04805, sections 4.2 and 4.3, and its released code.
    """
    start_logits, end_logits = (np.asarray(x, "float64") for x in (start_logits, end_logits))
    spans, sums = pairs(start_logits, end_logits, starts, ends, n_best, max_length)
    if not len(sums):
        everything = start_logits.shape[1]
        spans, sums = pairs(start_logits, end_logits, starts, ends, everything, max_length)
    if not len(sums):
        raise ValueError("The context has no token that may be an answer; pass a context with one.")
    best = np.argsort(-sums, kind="stable")[:n_best]
    spans, sums = spans[best], sums[best]
    null = np.min(start_logits[:, 0] + end_logits[:, 0])
    null_score = float(null - sums[0])
    place = len(sums)  # of "no answer"
    if null_threshold is not None:
        is_listed = null_threshold < np.inf
        if is_listed:
            place = np.count_nonzero(null - sums <= null_threshold)
            spans = np.insert(spans, place, -1, axis=0)
        sums = np.insert(sums, place, null - null_threshold if is_listed else null)
    scores = np.exp(sums - sums.max())
    scores /= scores.sum()
    return spans, scores[: len(spans)], null_score


def pairs(start_logits, end_logits, starts, ends, n, max_length):
    """Pair the `n` best starts and ends of each window: spans (S, 3) and sums (S,)."""
    first = np.argsort(-start_logits, axis=1, kind="stable")[:, :n, None]  # (W, n, 1)
    last = np.argsort(-end_logits, axis=1, kind="stable")[:, None, :n]  # (W, 1, n)
    window = np.arange(len(first))[:, None, None]
    is_span = starts[window, first] & ends[window, last]  # (W, n, n)
    is_span &= (first <= last) & (last < first + max_length)
    sums = start_logits[window, first] + end_logits[window, last]
    found = np.broadcast_arrays(window, first, last)
    return np.stack([index[is_span] for index in found], axis=1), sums[is_span]

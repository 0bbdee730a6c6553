"""Linear chains of classes (CRFs): conditional scores, best path and marginals, by scans.

B batch, T positions, C classes, K kinds of transitions. Chains take the first positions of rows;
emissions of both ends include start and end scores.
"""

import numpy as np
from keras import ops

from kerasbert import backend


def compacted(mask):
    """Return the order that moves positions (B, T) with `mask` to the front.

    Returns:
        `(order, places, counts)`: int32 (B, T), position of each step; int32 (B, T), step of each
        position, valid with `mask`; int32 (B,), number of steps.
    """
    mask = ops.cast(mask, "int32")
    steps = ops.cumsum(ops.ones_like(mask), axis=1) - 1
    order = ops.argsort(steps + (1 - mask) * ops.shape(mask)[1], axis=1)
    places = ops.maximum(ops.cumsum(mask, axis=1) - 1, 0)
    return ops.cast(order, "int32"), places, ops.sum(mask, axis=1)


def with_ends(emissions, counts, start, end):
    """Add start and end scores (C,) to the emissions (B, T, C) of first and last positions."""
    steps = ops.arange(ops.shape(emissions)[1], dtype="int32")[None, :, None]
    emissions = ops.where(steps == 0, emissions + start, emissions)
    return ops.where(steps == counts[:, None, None] - 1, emissions + end, emissions)


def scores_ahead(emissions, counts, transitions, reduce, kinds=None):
    """Score the paths from each position and class to the end: the best or the sum.

    Args:
        emissions: float32 (B, T, C).
        counts: ints (B,). Number of positions of each chain.
        transitions: float32 (K, C, C), from a class to the next one.
        reduce: `ops.logsumexp` or `ops.max`.
        kinds: ints (B, T). Index in `transitions` of the step into each position; `None` means 0.

    Returns:
        The emissions, plus the score of later positions, (B, T, C).
    """

    def step(ahead, x):
        emission, is_in, *kinds = x
        paths = _between(transitions, kinds) + (emission + ahead)[:, None, :]  # (B, C, C)
        return ops.where(is_in, reduce(paths, axis=-1), ahead), ahead

    steps = ops.arange(ops.shape(emissions)[1], dtype="int32")
    is_in = (steps[:, None] < counts)[:, :, None]  # (T, B, 1)
    xs = [ops.moveaxis(emissions, 1, 0), is_in, *_by_position(kinds)]
    ahead = backend.scan(step, ops.zeros_like(emissions[:, 0]), xs, reverse=True)
    return emissions + ops.moveaxis(ahead, 0, 1)


def conditional_scores(emissions, labels, counts, transitions):
    """Return scores (B, T, C) whose softmax are class probabilities given previous labels.

    Their cross-entropies with the labels (B, T) add up to the negative log-likelihood.
    """
    scores = scores_ahead(emissions, counts, transitions, ops.logsumexp)
    before = ops.take(transitions[0], labels[:, :-1], axis=0)  # (B, T - 1, C)
    return scores + ops.pad(before, [[0, 0], [1, 0], [0, 0]])


def best_path(emissions, counts, transitions, kinds=None):
    """Return the classes of the best path (Viterbi), int32 (B, T); arbitrary after its end."""
    scores = scores_ahead(emissions, counts, transitions, ops.max, kinds)
    classes = ops.arange(ops.shape(emissions)[2], dtype="int32")

    def step(before, x):
        score, is_first, *kinds = x
        is_before = (before[:, None] == classes)[:, :, None]  # (B, C, 1)
        given = ops.max(ops.where(is_before, _between(transitions, kinds), -np.inf), axis=1)
        score = ops.where(is_first, score, score + given)
        label = ops.cast(ops.argmax(score, axis=-1), "int32")
        return label, label

    start = ops.zeros_like(counts)
    return ops.moveaxis(backend.scan(step, start, _forward(scores, kinds)), 0, 1)


def marginals(emissions, counts, transitions, kinds=None):
    """Return the probability of each class at each position, (B, T, C)."""
    scores = scores_ahead(emissions, counts, transitions, ops.logsumexp, kinds)

    def step(before, x):
        score, is_first, *kinds = x
        between = ops.where(is_first, 0.0, _between(transitions, kinds))
        given = ops.softmax(between + score[:, None, :], axis=-1)  # (B, C, C)
        now = ops.sum(before[:, :, None] * given, axis=1)
        return now, now

    # Any distribution will do, because the first step does not depend on it.
    start = ops.ones_like(emissions[:, 0]) / ops.shape(emissions)[2]
    return ops.moveaxis(backend.scan(step, start, _forward(scores, kinds)), 0, 1)


def _forward(scores, kinds):
    """Return the inputs of a forward scan: scores, is it the first position, and kinds."""
    is_first = ops.arange(ops.shape(scores)[1], dtype="int32") == 0
    return [ops.moveaxis(scores, 1, 0), is_first, *_by_position(kinds)]


def _by_position(kinds):
    return [] if kinds is None else [ops.transpose(kinds)]


def _between(transitions, kinds):
    """Return a step's transitions: (1, C, C), or with `kinds` (B, C, C)."""
    return ops.take(transitions, kinds[0], axis=0) if kinds else transitions[:1]

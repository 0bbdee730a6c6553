"""Decoding in TensorFlow graphs; elsewhere, models decode in NumPy.

N texts, C code points of all texts, P pieces of all texts, R windows of all texts, T tokens per
row, U labeled units (mostly words) of all texts, L classes, K answers, W words of a text.
"""

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.requests import asserted
from kerasbert.heads.base.spans import MASKED
from kerasbert.text import tagging
from kerasbert.text.ops import rows_where

# Windows per run of the encoder, to limit memory.
WINDOWS = 32


# === Texts ===


def with_long_rows(ragged):
    """Cast a tokenizer's ragged tensors to int32 with int64 row splits."""
    return [tf.cast(x.with_row_splits_dtype("int64"), tf.int32) for x in ragged]


def word_units(points):
    """Find words like `kerasbert.data.word_spans`: rows, starts and ends (U,)."""
    points = _with_space(points)
    kind = _kinds(points.flat_values)  # (C,)
    before = tf.concat([[tagging.SPACE], kind[:-1]], 0)
    # The kind of the last character before each that is not a mark.
    is_mark = kind == tagging.MARK
    solid = tf.concat([[tagging.SPACE], *rows_where(~is_mark, kind)], 0)
    solid = tf.gather(solid, tf.cumsum(tf.cast(~is_mark, "int32"), exclusive=True))
    begins = before == tagging.SPACE
    begins |= (kind == tagging.LETTER) & (solid == tagging.ALONE)
    # Marks after a space belong to the following punctuation.
    begins |= (kind == tagging.ALONE) & (solid != tagging.SPACE)
    return _units(points, begins, kind == tagging.SPACE)


def spaced_units(points):
    """Split texts at white space: rows, starts and ends (U,)."""
    points = _with_space(points)
    is_space = _kinds(points.flat_values) == tagging.SPACE
    return _units(points, tf.concat([[True], is_space[:-1]], 0), is_space)


def _with_space(points):
    """Append a space, so that no unit extends into the next text."""
    spaces = tf.ones_like(points.row_starts())[:, tf.newaxis]
    return tf.concat([points, tf.RaggedTensor.from_tensor(tf.cast(spaces * 32, "int32"))], 1)


def _kinds(points):
    firsts, kinds = (tf.constant(array) for array in tagging.character_kinds())
    return tf.gather(kinds, tf.searchsorted(firsts, points, side="right") - 1)


def _units(points, begins, is_space):
    """Return the units of texts that end in a space; `begins` (C,) marks where units may begin."""
    rows = points.value_rowids()
    begins &= ~is_space
    starts = tf.where(begins)[:, 0]
    stops = tf.where(begins | is_space)[:, 0]
    ends = tf.gather(stops, tf.searchsorted(stops, starts, side="right"))
    rows = tf.gather(rows, starts)
    shift = tf.gather(points.row_starts(), rows)
    return rows, starts - shift, ends - shift


def spanning_trees(distances, counts):
    """Find minimum spanning trees by Prim's algorithm, like `kerasbert.metrics.trees`.

    Args:
        distances: float32 (N, W, W), symmetric.
        counts: int32 (N,). Number of words per text.

    Returns:
        `(first, second)`: ints (N, W - 1), at least one column, the positions of each edge's words,
        the smaller first. Edges are sorted; missing ones are -1.
    """
    size = tf.shape(distances)[1]
    words = tf.range(size)
    there = words < counts[:, None]  # (N, W)
    upper = (words[:, None] < words) & there[:, :, None] & there[:, None, :]  # (N, W, W)
    # By rank, the first of two equal distances is smaller.
    flat = tf.reshape(tf.where(upper, distances, np.inf), [-1, size * size])
    order = tf.argsort(flat, axis=1, stable=True)
    ranks = tf.reshape(tf.argsort(order, axis=1, stable=True), tf.shape(distances))
    ranks = tf.where(upper, ranks, tf.int32.max)
    ranks = tf.minimum(ranks, tf.transpose(ranks, [0, 2, 1]))

    def step(i, inside, nearest, joint):
        far = tf.where(inside | ~there, tf.int32.max, nearest)
        new = tf.argmin(far, axis=1, output_type=tf.int32)  # (N,)
        inside |= words == new[:, None]
        of_new = tf.gather(ranks, new, batch_dims=1)  # (N, W)
        nearer = (of_new < nearest) & ~inside
        return (
            i + 1,
            inside,
            tf.where(nearer, of_new, nearest),
            tf.where(nearer, new[:, None], joint),
        )

    inside = tf.broadcast_to(words == 0, tf.shape(there))
    _, _, _, joint = tf.while_loop(
        lambda i, *_: i < size,
        step,
        (1, inside, ranks[:, 0], tf.zeros_like(ranks[:, 0])),
        parallel_iterations=1,
    )
    first, second = tf.minimum(words, joint), tf.maximum(words, joint)
    edges = tf.where(there & (words > 0), first * size + second, tf.int32.max)
    edges = tf.sort(edges, axis=1)[:, : tf.maximum(size - 1, 1)]
    is_edge = edges < tf.int32.max
    return tf.where(is_edge, edges // size, -1), tf.where(is_edge, edges % size, -1)


# === Windows ===


def in_windows(function, features, shape):
    """Run `function` on a few windows at a time, and concatenate.

    Args:
        function: maps features (B, T) to a float32 tensor (B, ...).
        features: dict of tensors (R, T).
        shape: ints. Output shape without the first axis.
    """
    rows = tf.shape(features["token_ids"])[0]
    fixed = [None if tf.is_tensor(size) else size for size in shape]

    def step(begin, outputs):
        part = function({name: x[begin : begin + WINDOWS] for name, x in features.items()})
        return begin + WINDOWS, tf.concat([outputs, part], 0)

    _, outputs = tf.while_loop(
        lambda begin, _: begin < rows,
        step,
        (tf.constant(0), tf.zeros([0, *shape])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, *fixed])),
        parallel_iterations=1,
    )
    return outputs


def limit_windows(rows, count, most):
    """Return `rows`; fail if a text has more than `most` windows.

    Args:
        rows: int32 (R,). The text that each window belongs to.
        count: int. N, the number of texts.
        most: int, or `None` for no limit.
    """
    if most is None:
        return rows
    counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, count)
    largest = tf.reduce_max(tf.concat([counts, [0]], 0))
    sentence = f"A text must have at most {most} windows (max_windows of the export); one has"
    with tf.control_dependencies(asserted([(sentence, largest <= most, [largest])])):
        return tf.identity(rows)


# === Tags ===


def entities(labels, scores, rows, starts, ends, names, count):
    """Merge labels of units into entities, like `TagSet.entities` and `tag`.

    Args:
        labels, scores: (U,). The class and the probability of each unit.
        rows, starts, ends: ints (U,). Text index and character offsets.
        names: list of L strings.
        count: int. N.

    Returns:
        `(kinds, starts, ends, scores)`: ragged (N, None).
    """
    tags = tagging.TagSet(names)
    meanings = [m or (None, False, False) for m in tags.meanings]
    kinds = [-1 if m[0] is None else tags.types.index(m[0]) for m in meanings]
    kind, begins, closes = (
        tf.gather(tf.constant(column), labels)
        for column in (kinds, [m[1] for m in meanings], [m[2] for m in meanings])
    )
    after = tf.concat([tf.zeros_like(rows[:1], "bool"), rows[1:] == rows[:-1]], 0)
    goes_on = tf.concat([tf.ones_like(kind[:1], "bool"), (kind[1:] == kind[:-1]) & ~closes[:-1]], 0)
    begins |= ~(after & goes_on)
    kind, begins, scores, rows, starts, ends = rows_where(
        kind >= 0, kind, begins, scores, rows, starts, ends
    )
    entity = tf.cumsum(tf.cast(begins, "int32")) - 1
    first = tf.where(begins)[:, 0]
    kinds = tf.gather(tf.constant(tags.types or [""]), tf.gather(kind, first))
    columns = (
        kinds,
        tf.cast(tf.gather(starts, first), "int32"),
        tf.cast(tf.math.segment_max(ends, entity), "int32"),
        tf.cast(tf.math.segment_mean(scores, entity), "float32"),
    )
    rows = tf.gather(rows, first)
    return tuple(tf.RaggedTensor.from_value_rowids(x, rows, count, validate=False) for x in columns)


# === Answers ===


def best_spans(
    start_logits, end_logits, may_start, may_end, splits, n_best, max_length, null_threshold, top_k
):
    """Find each question's best spans, like `kerasbert.heads.base.spans.best_spans`.

    Args:
        start_logits, end_logits: (R, T).
        may_start, may_end: bool (R, T).
        splits: ints (N + 1,). Boundaries of each question's windows.
        n_best, max_length, null_threshold: as in the function above.
        top_k: int. K.

    Returns:
        `(spans, scores, null_scores)`: int32 (N, K, 3), each a window and its first and last token,
        all -1 for no answer; float32 (N, K) and (N,).
    """
    start_logits, end_logits = (tf.cast(x, "float64") for x in (start_logits, end_logits))
    lowest = tf.constant(-np.inf, "float64")
    most = max(n_best, top_k)

    def answer(row):
        begin, end = splits[row], splits[row + 1]
        start, stop = start_logits[begin:end], end_logits[begin:end]  # (W, T)
        opens, closes = may_start[begin:end], may_end[begin:end]

        def best(n):
            """Combine the `n` best starts and ends per window: sums (most,) and spans."""
            start_sums, first = tf.math.top_k(start, n)  # (W, n)
            stop_sums, last = tf.math.top_k(stop, n)
            good = tf.gather(opens, first, batch_dims=1)[:, :, None]
            good &= tf.gather(closes, last, batch_dims=1)[:, None, :]
            length = last[:, None, :] - first[:, :, None]  # (W, n, n)
            good &= (length >= 0) & (length < max_length)
            sums = tf.where(good, start_sums[:, :, None] + stop_sums[:, None, :], lowest)
            # Of equal values, `top_k` prefers the first.
            sums, at = tf.math.top_k(tf.reshape(sums, [-1]), tf.minimum(n_best, tf.size(sums)))
            window, first_at, last_at = at // (n * n), at // n % n, at % n
            first = tf.gather_nd(first, tf.stack([window, first_at], 1))
            last = tf.gather_nd(last, tf.stack([window, last_at], 1))
            spans = tf.stack([window + tf.cast(begin, "int32"), first, last], 1)
            missing = [[0, most - tf.size(sums)]]
            sums = tf.pad(sums, missing, constant_values=lowest)
            spans = tf.pad(spans, [*missing, [0, 0]], constant_values=-1)
            return tf.ensure_shape(sums, [most]), tf.ensure_shape(spans, [most, 3])

        length = tf.shape(start)[1]
        sums, spans = best(tf.minimum(n_best, length))
        sums, spans = tf.cond(sums[0] > lowest, lambda: (sums, spans), lambda: best(length))
        spans = tf.where((sums > lowest)[:, None], spans, -1)
        null = tf.reduce_min(start[:, 0] + stop[:, 0])
        # A context without tokens has no span.
        null_score = tf.where(sums[0] > lowest, null - sums[0], -MASKED)
        if null_threshold is not None:
            is_listed = null_threshold < np.inf
            place = tf.reduce_sum(tf.cast(null - sums <= null_threshold, "int32"))
            place = place if is_listed else most
            shifted = null - null_threshold if is_listed else null
            sums = tf.concat([sums[:place], [shifted], sums[place:]], 0)
            spans = tf.concat([spans[:place], [[-1, -1, -1]], spans[place:]], 0)
            sums, spans = tf.ensure_shape(sums, [most + 1]), tf.ensure_shape(spans, [most + 1, 3])
        highest = tf.reduce_max(sums)
        odds = tf.exp(sums - tf.where(highest > lowest, highest, 0.0))
        scores = odds / tf.maximum(tf.reduce_sum(odds), 1e-30)
        if null_threshold == np.inf:
            scores = scores[:most]
        return tuple(
            x[:top_k] if x.shape.rank else x
            for x in (spans, tf.cast(scores, "float32"), tf.cast(null_score, "float32"))
        )

    return tf.map_fn(
        tf.autograph.experimental.do_not_convert(answer),
        tf.range(tf.size(splits) - 1),
        fn_output_signature=(
            tf.TensorSpec([top_k, 3], "int32"),
            tf.TensorSpec([top_k], "float32"),
            tf.TensorSpec([], "float32"),
        ),
    )

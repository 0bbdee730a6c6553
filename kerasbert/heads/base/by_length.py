"""Batching by length inside served graphs, to save padding.

N rows, T tokens, R rows per part.
"""

from kerasbert.backend.tensorflow import tf

ROWS = 8
# Below this share of padding, one pass is cheaper than several parts.
PADDING = 0.2


def by_length(function):
    """Wrap a graph function so that it runs on parts of similar length.

    Rows may also be (N, W, T), with missing windows last.

    Each part of sorted rows is padded to its longest row. A batch with little padding is one part.

    Args:
        function: maps a dict of int tensors (N, T), among them `padding_mask`, to a tensor (N, D)
            whose rows depend neither on each other nor on padding at their end.

    Returns:
        A function with the same signature.

    >>> import tensorflow as tf
    >>> mask = tf.sequence_mask([40, 2, 3, 1, 1, 2, 2, 1, 3, 1])
    >>> @tf.function
    ... def widths(features):
    ...     mask = features["padding_mask"]
    ...     return tf.fill([tf.shape(mask)[0], 1], tf.cast(tf.shape(mask)[1], tf.float32))
    >>> [int(width) for width in tf.function(by_length(widths))({"padding_mask": mask})[:, 0]]
    [40, 3, 3, 3, 3, 3, 3, 3, 40, 3]
    """

    def run(features):
        mask = tf.cast(features["padding_mask"], tf.int32)
        sizes = [_longest(mask)]  # (N,), tokens
        if mask.shape.rank == 3:
            sizes = [_longest(tf.reduce_max(mask, axis=2)), _longest(tf.reduce_max(mask, axis=1))]
        lengths = tf.math.reduce_prod(tf.stack(sizes), axis=0)
        order = tf.argsort(lengths, stable=True)
        count, total = tf.shape(mask)[0], tf.reduce_sum(lengths)
        padded = count * tf.reduce_max(tf.concat([lengths, [1]], 0))
        few = tf.cast(total, tf.float32) < (1 - PADDING) * tf.cast(padded, tf.float32)
        rows = tf.where(few, ROWS, tf.maximum(count, 1))

        def part(start, parts):
            chosen = order[start : start + rows]  # (R,)
            most = [tf.maximum(tf.reduce_max(tf.gather(size, chosen)), 1) for size in sizes]
            used = (slice(None), *map(slice, most))
            inputs = {name: tf.gather(x, chosen)[used] for name, x in features.items()}
            outputs = function(inputs)
            shapes.append((None, *outputs.shape[1:]))
            return start + rows, parts.write(start // rows, outputs)

        shapes = []
        # An empty batch runs too, for the output's width.
        size = tf.maximum(count, 1)
        parts = tf.TensorArray(tf.float32, -(-size // rows), infer_shape=False)
        _, parts = tf.while_loop(
            lambda start, _: start < size, part, (0, parts), parallel_iterations=1
        )
        outputs = tf.gather(parts.concat(), tf.math.invert_permutation(order))
        return tf.ensure_shape(outputs, shapes[0])

    return run


def _longest(mask):
    """Return the position after the last 1 of each row of a mask (N, T), int32 (N,)."""
    return tf.reduce_max(mask * (tf.range(tf.shape(mask)[1]) + 1), axis=1)

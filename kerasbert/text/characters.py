"""Code points and substrings of texts, in TensorFlow graphs.

Shapes: N texts, S substrings.
"""

from kerasbert.backend.tensorflow import tf
from kerasbert.text.alignment import valid_utf8

# The characters that `str.strip` removes, for a regular expression.
SPACE = r"\t-\r\x{1C}-\x{20}\x{85}\p{Z}"


def code_points(texts):
    """Decode strings (N,) to ragged int32 (N, None); invalid UTF-8 becomes U+FFFD."""
    return tf.strings.unicode_decode(valid_utf8(texts), "UTF-8")


def substrings(points, rows, starts, ends):
    """Return strings (S,): characters `starts` to `ends` of the texts `rows`, all int (S,)."""
    first = tf.gather(points.row_starts(), rows)
    index = tf.ragged.range(first + tf.cast(starts, "int64"), first + tf.cast(ends, "int64"))
    parts = index.with_values(tf.gather(points.flat_values, index.values))
    return tf.strings.unicode_encode(parts, "UTF-8")

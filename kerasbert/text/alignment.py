"""Unicode normalization in TensorFlow graphs, and its offsets in the original texts.

Shapes: N texts, P pieces of a text, C code points of all texts, U distinct code points, K clusters
that are normalized together.
"""

from kerasbert.backend.tensorflow import tf, tf_text
from kerasbert.text.ops import rows_of, rows_where

FORMS = ("NFC", "NFKC")
# Replaces U+0000, at which some TensorFlow Text ops end a text.
NUL = "\ufdd0"
# Belongs to the cluster of the character before it, and is removed by normalization.
FILLER = "\uffff"
# What normalization may join to the character before: marks, Hangul vowels and final consonants,
# and what NFKC converts to these (Hangul compatibility letters, and half-width dakuten and
# handakuten).
MARK = (
    r"[\p{M}\x{1160}-\x{11FF}\x{D7B0}-\x{D7FF}\x{3131}-\x{318E}\x{FF9E}-\x{FFDC}"
    rf"\x{{E33}}\x{{EB3}}{FILLER}]"
)


def valid_utf8(text):
    """Replace bytes that are not UTF-8 by U+FFFD in strings (N,)."""
    # The check takes a tenth of the time of the conversion.
    valid = tf.strings.regex_full_match(text, r"[^\x{D800}-\x{DFFF}]*")
    return tf.cond(
        tf.reduce_all(valid),
        lambda: text,
        lambda: tf.strings.unicode_transcode(text, "UTF-8", "UTF-8"),
    )


def distinct(points):
    """Return the distinct characters (U,) of code points (C,) as strings, and indices into them."""
    unique, index = tf.unique(points)
    # `unicode_encode` would need 40 operations to convert `unique[:, tf.newaxis]`.
    splits = tf.range(tf.size(unique, tf.int64) + 1)
    single = tf.RaggedTensor.from_row_splits(unique, splits, validate=False)
    return tf.strings.unicode_encode(single, "UTF-8"), index


def runs(values, begins):
    """Group values (C,) into ragged rows that begin where `begins` (C,) is true.

    Returns:
        `(rows, firsts)`: the rows, and the index of each row's first value.
    """
    firsts = tf.where(begins)[:, 0]
    splits = tf.concat([firsts, [tf.size(begins, tf.int64)]], 0)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False), firsts


def in_form(text, form):
    """Normalize texts (N,) to "NFC", "NFD", "NFKC" or "NFKD"."""
    text = tf.strings.regex_replace(text, r"\x{0}", NUL)
    return tf.strings.regex_replace(tf_text.normalize_utf8(text, form), NUL, "\0")


def character_sizes(points, normalize, unit, whole=None):
    """Measure how much of the normalized texts comes from each character, for `align`.

    Args:
        points: ragged (N, None). Code points, C in total.
        normalize: function of strings (K,) and, with `whole`, of bools (K,): is a string a whole
            text.
        unit: string, "BYTE" or "UTF8_CHAR".
        whole: bools (N,). Whether a text is normalized as a single cluster.

    Returns:
        `(sizes, joined)`, int32 and bool (C,); see `align`.
    """
    row, points = rows_of(points), points.flat_values
    characters, index = distinct(points)
    begin = tf.concat([tf.ones_like(row[:1], "bool"), row[1:] != row[:-1]], 0)
    apart = ~tf.gather(tf.strings.regex_full_match(characters, MARK), index)
    if whole is not None:
        apart &= ~tf.gather(whole, row)
    begin |= apart
    clusters, firsts = runs(points, begin)
    splits = clusters.row_splits
    clusters = tf.strings.unicode_encode(clusters, "UTF-8")
    given = () if whole is None else (tf.gather(whole, tf.gather(row, firsts)),)
    normal = normalize(clusters, *given)
    cluster = tf.cumsum(tf.cast(begin, "int32")) - 1  # (C,)
    # Clusters whose characters give the same result one by one are measured one by one.
    alone = normalize(characters)  # (U,)
    parts = tf.gather(tf.strings.unicode_decode(alone, "UTF-8"), index)  # (C, None)
    parts = tf.RaggedTensor.from_row_splits(parts, splits, validate=False).merge_dims(1, 2)
    joint = tf.gather(normal != tf.strings.unicode_encode(parts, "UTF-8"), cluster)
    together = tf.where(begin, tf.gather(tf.strings.length(normal, unit), cluster), 0)
    sizes = tf.where(joint, together, tf.gather(tf.strings.length(alone, unit), index))
    return sizes, ~begin & (joint | (sizes == 0))


def align(ids, starts, ends, points, sizes, joined):
    """Convert offsets in normalized texts to offsets in the original texts.

    Args:
        ids: ragged (N, P). Only its row structure is used.
        starts, ends: (pieces of all texts,). Offsets of each piece in the normalized text.
        points: ragged (N, None). Code points of the original texts, C in total.
        sizes: (C,). Bytes or characters of the normalized text per original character.
        joined: (C,) bool. Whether a character belongs to the character before it, like a removed
            accent.

    Returns:
        Starts and ends, ragged (N, P) int32, in characters.
    """
    # Offsets are limited to their text, so that one wrong size does not shift all later texts of
    # the batch.
    until = tf.cumsum(tf.cast(sizes, "int64"))  # (C,)
    before = tf.concat([tf.zeros([1], "int64"), until], 0)  # (C + 1,)
    position = tf.range(tf.size(until, tf.int64))
    joined &= position > tf.gather(points.row_starts(), rows_of(points))
    (own,) = rows_where(~joined, position)
    after = tf.concat([own, [tf.size(until, tf.int64)]], 0)
    rows = rows_of(ids)
    first, limit = (tf.gather(x, rows) for x in (points.row_starts(), points.row_limits()))
    begin, top = (tf.gather(before, x) for x in (first, limit))
    start = tf.minimum(begin + tf.cast(starts, "int64"), top)
    # An added word-boundary mark has no original character, so it gets the offsets of the next one.
    end = tf.minimum(begin + tf.cast(tf.maximum(ends, starts + 1), "int64"), top)
    start = tf.searchsorted(until, start, side="right", out_type="int64")
    last = tf.searchsorted(until, end - 1, side="right", out_type="int64")
    last = tf.maximum(last, first - 1)
    end = tf.gather(after, tf.searchsorted(own, last, side="right"))
    return tuple(
        ids.with_flat_values(tf.cast(tf.minimum(x, limit) - first, "int32")) for x in (start, end)
    )


def run_in_form(run, text, form):
    """Tokenize texts in a normal form, with offsets in the original texts.

    Args:
        run: function of strings (N,) that returns ids, ragged (N, P), or ids, starts and ends.
        text: strings (N,).
        form: string. See `in_form`.
    """
    text = valid_utf8(text)
    found = run(in_form(text, form))
    if not isinstance(found, tuple):
        return found
    ids, starts, ends = found
    points = tf.strings.unicode_decode(text, "UTF-8")
    sizes = character_sizes(points, lambda x: in_form(x, form), "UTF8_CHAR")
    return ids, *align(ids, starts.flat_values, ends.flat_values, points, *sizes)

"""Characters of a text and what a tokenizer makes of them: normal forms, and offsets back.

N texts, P pieces of a text, C code points of all texts, U different ones, K clusters: characters
that normalize together.
"""

from kerasbert.backend.tensorflow import rows_of, rows_where, tf, tf_text

# The normal forms of Unicode that texts may be brought into before anything else.
FORMS = ("NFC", "NFKC")
# In place of U+0000, at which some ops of TensorFlow Text take texts to end.
NUL = "\ufdd0"
# Goes with the character before it, and leaves nothing behind.
FILLER = "\uffff"
# Characters that a normal form may join to the one before them: marks, vowels and final consonants
# of Hangul, and what the K forms make of letters of Hangul and of half-width (han)dakuten.
MARK = (
    r"[\p{M}\x{1160}-\x{11FF}\x{D7B0}-\x{D7FF}\x{3131}-\x{318E}\x{FF9E}-\x{FFDC}"
    rf"\x{{E33}}\x{{EB3}}{FILLER}]"
)


def valid_utf8(text):
    """Bytes that are not UTF-8 to U+FFFD; (N,) -> (N,) strings."""
    # The test costs a tenth of the conversion.
    valid = tf.strings.regex_full_match(text, r"[^\x{D800}-\x{DFFF}]*")
    return tf.cond(
        tf.reduce_all(valid),
        lambda: text,
        lambda: tf.strings.unicode_transcode(text, "UTF-8", "UTF-8"),
    )


def distinct(points):
    """Different characters of code points (C,): strings (U,), and for each of the C its index."""
    unique, index = tf.unique(points)
    return tf.strings.unicode_encode(unique[:, tf.newaxis], "UTF-8"), index


def in_form(text, form):
    """Texts (N,) in a normal form, "NFC", "NFD", "NFKC" or "NFKD"; (N,)."""
    text = tf.strings.regex_replace(text, r"\x{0}", NUL)
    return tf.strings.regex_replace(tf_text.normalize_utf8(text, form), NUL, "\0")


def character_sizes(points, normalize, unit, whole=None):
    """How much of the normalized texts comes from each character; what `align` takes.

    Args:
        points: ragged (N, None). The characters, C in all.
        normalize: function of strings (K,), and of which of these are whole texts where `whole` is
            given: bools (K,).
        unit: string. What is counted, "BYTE" or "UTF8_CHAR".
        whole: bools (N,). Texts that normalize as one.

    Returns:
        `(sizes, joined)`, int32 and bool (C,).
    """
    row, points = rows_of(points), points.flat_values
    characters, index = distinct(points)
    # A character and the marks after it normalize together.
    begin = tf.concat([tf.ones_like(row[:1], "bool"), row[1:] != row[:-1]], 0)
    apart = ~tf.gather(tf.strings.regex_full_match(characters, MARK), index)
    if whole is not None:
        apart &= ~tf.gather(whole, row)
    begin |= apart
    firsts = tf.where(begin)[:, 0]
    splits = tf.concat([firsts, [tf.size(points, tf.int64)]], 0)
    clusters = tf.RaggedTensor.from_row_splits(points, splits, validate=False)
    clusters = tf.strings.unicode_encode(clusters, "UTF-8")
    given = () if whole is None else (tf.gather(whole, tf.gather(row, firsts)),)
    normal = normalize(clusters, *given)
    cluster = tf.cumsum(tf.cast(begin, "int32")) - 1  # (C,)
    # Those that become what their characters become alone are told apart by these.
    alone = normalize(characters)  # (U,)
    parts = tf.gather(tf.strings.unicode_decode(alone, "UTF-8"), index)  # (C, None)
    parts = tf.RaggedTensor.from_row_splits(parts, splits, validate=False).merge_dims(1, 2)
    joint = tf.gather(normal != tf.strings.unicode_encode(parts, "UTF-8"), cluster)
    together = tf.where(begin, tf.gather(tf.strings.length(normal, unit), cluster), 0)
    sizes = tf.where(joint, together, tf.gather(tf.strings.length(alone, unit), index))
    return sizes, ~begin & (joint | (sizes == 0))


def align(ids, starts, ends, points, sizes, joined):
    """Bytes of normalized texts, or characters, to characters of the original ones.

    Args:
        ids: ragged (N, P). Only its rows matter.
        starts, ends: (pieces of all texts,). Bytes of the normalized text that each piece is of.
        points: ragged (N, None). The characters of the original texts, C in all.
        sizes: (C,). How many bytes of the normalized text come from each character.
        joined: (C,) bool. Characters that end with the one before them, such as dropped accents.

    Returns:
        Starts and ends, ragged (N, P) int32, in characters of each original text.
    """
    # Each text is measured from its own first byte, and nothing leaves it: a size that is wrong
    # would else move the offsets of all texts that follow in the batch.
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
    # A mark that was put before a word has no bytes, and comes from the character after it.
    end = tf.minimum(begin + tf.cast(tf.maximum(ends, starts + 1), "int64"), top)
    start = tf.searchsorted(until, start, side="right", out_type="int64")
    last = tf.searchsorted(until, end - 1, side="right", out_type="int64")
    last = tf.maximum(last, first - 1)
    end = tf.gather(after, tf.searchsorted(own, last, side="right"))
    return tuple(
        ids.with_flat_values(tf.cast(tf.minimum(x, limit) - first, "int32")) for x in (start, end)
    )

"""Fast encoding of many `tf.train.Example`s into TFRecords.

Python's `tf.train.Example` takes 12 times as long for rows of 128 tokens (233 instead of 19
microseconds), and 20 times for rows of 512.

Shapes: R rows, K values per feature, W bytes per value, M bytes per message at most.
"""

import uuid

import numpy as np

from kerasbert.backend.tensorflow import tf

COMPRESSION_LEVEL = 3
# Field numbers with the wire type 2, "length-delimited".
_FIRST, _SECOND, _THIRD = (number << 3 | 2 for number in (1, 2, 3))


def encode_examples(features):
    """Serialize rows as `tf.train.Example`s, byte for byte as TensorFlow with sorted features.

    Args:
        features: dict of arrays (R, K), nonnegative integers or float32.

    Returns:
        List of R bytes.

    >>> encode_examples({"a": np.array([[1, 300]])})
    [b'\\n\\x0e\\n\\x0c\\n\\x01a\\x12\\x07\\x1a\\x05\\n\\x03\\x01\\xac\\x02']
    """
    # Messages are built for all rows at once, from parts `(bytes, mask, sizes)`: rows with shorter
    # numbers have gaps, where the mask is false.
    parts = []
    for name, values in sorted(features.items()):
        name = np.frombuffer(name.encode(), "uint8")
        if np.issubdtype(values.dtype, np.floating):
            values = np.ascontiguousarray(values, "<f4").view("uint8")  # (R, 4K)
            values, field = _part(values, np.ones(values.shape, bool)), _SECOND
        else:
            values, field = _varints(values), _THIRD
        listed = _delimited(field, _delimited(_FIRST, [values]))
        key = _delimited(_FIRST, [_literal(name, len(values[0]))])
        parts += _delimited(_FIRST, [*key, *_delimited(_SECOND, listed)])
    data, there, sizes = zip(*_delimited(_FIRST, parts))
    data = np.hstack(data)[np.hstack(there)].tobytes()  # of (R, M)
    ends = np.cumsum(sum(sizes)).tolist()
    return [data[start:end] for start, end in zip([0, *ends], ends)]


def _delimited(tag, parts):
    """Encode a field that holds a message: its tag, its length, and the parts of the message."""
    length = sum(sizes for _, _, sizes in parts)  # (R, 1)
    return [_literal([tag], len(length)), _varints(length), *parts]


def _part(data, there):
    return data, there, there.sum(axis=1, keepdims=True)


def _literal(data, rows):
    shape = rows, len(data)
    data = np.broadcast_to(np.array(data, "uint8"), shape)
    return data, np.ones(shape, bool), np.full((rows, 1), shape[1])


def _varints(values):
    """Encode numbers (R, K) as varints: groups of seven bits, lowest first."""
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    data = np.empty((*values.shape, width), "uint8")  # (R, K, W)
    there = np.ones(data.shape, bool)
    for place in range(width):
        group = values.astype("int64" if width > 4 else "int32") >> 7 * place
        data[..., place] = group & 0x7F | (group > 0x7F) << 7
        there[..., place] = (group > 0) | (place == 0)
    return _part(*(bytes.reshape(len(values), -1) for bytes in (data, there)))


def compressed_records(examples):
    """Return the content of a gzip-compressed TFRecord file with serialized examples.

    The contents of several such files, concatenated, are a valid file too.
    """
    if not examples:
        return b""  # TensorFlow takes an empty gzip member for the end of the file.
    # TensorFlow computes the checksums; its in-memory file system avoids the disk.
    path = f"ram://{uuid.uuid4().hex}"
    options = tf.io.TFRecordOptions(compression_type="GZIP", compression_level=COMPRESSION_LEVEL)
    with tf.io.TFRecordWriter(path, options) as writer:
        for example in examples:
            writer.write(example)
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    tf.io.gfile.remove(path)
    return data

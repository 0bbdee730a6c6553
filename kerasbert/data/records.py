"""TFRecords of `tf.train.Example`s, many at a time.

R rows, K values of a feature, W bytes of a value, M bytes of a message at most.
"""

import uuid

import numpy as np

from kerasbert._tensorflow import tf_modules

COMPRESSION_LEVEL = 3
# Field numbers with the wire type 2, "length-delimited".
_FIRST, _SECOND, _THIRD = (number << 3 | 2 for number in (1, 2, 3))


def encode_examples(features):
    """Serialize rows as `tf.train.Example`s, byte for byte as TensorFlow does in sorted order.

    Args:
        features: dict of arrays (R, K), whole numbers from 0 or float32.

    Returns:
        List of R bytes.

    >>> encode_examples({"a": np.array([[1, 300]])})
    [b'\\n\\x0e\\n\\x0c\\n\\x01a\\x12\\x07\\x1a\\x05\\n\\x03\\x01\\xac\\x02']
    """
    # Messages are built for all rows at once, as bytes and which of them are there: a row's
    # shorter numbers leave gaps.
    parts = []
    for name, values in sorted(features.items()):
        name = np.frombuffer(name.encode(), "uint8")
        if np.issubdtype(values.dtype, np.floating):
            values = np.ascontiguousarray(values, "<f4").view("uint8")  # (R, 4K)
            values, field = [(values, np.ones(values.shape, bool))], _SECOND
        else:
            values, field = [_varints(values)], _THIRD
        listed = _delimited(field, _delimited(_FIRST, values))
        key = _literal([_FIRST, len(name), *name], len(listed[0][0]))
        parts += _delimited(_FIRST, [key, *_delimited(_SECOND, listed)])
    data, there = map(np.hstack, zip(*_delimited(_FIRST, parts)))  # (R, M)
    ends = np.cumsum(there.sum(axis=1)).tolist()
    data = data[there].tobytes()
    return [data[start:end] for start, end in zip([0, *ends], ends)]


def _delimited(tag, parts):
    """A field that holds a message: its tag, its length, and the parts of the message."""
    length = sum(there.sum(axis=1, keepdims=True) for _, there in parts)  # (R, 1)
    return [_literal([tag], len(length)), _varints(length), *parts]


def _literal(data, rows):
    data = np.broadcast_to(np.array(data, "uint8"), (rows, len(data)))
    return data, np.ones(data.shape, bool)


def _varints(values):
    """Numbers (R, K) in groups of seven bits, the lowest first: bytes and which are there."""
    width = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    if width == 1:
        return values.astype("uint8"), np.ones(values.shape, bool)
    groups = values[..., None].astype("int64") >> 7 * np.arange(width)  # (R, K, W)
    data = groups & 0x7F | (groups > 0x7F) << 7
    there = groups > 0
    there[..., 0] = True
    shape = len(values), -1
    return data.astype("uint8").reshape(shape), there.reshape(shape)


def compressed_records(examples):
    """TFRecords of serialized examples, a list of bytes, as a gzip file's content.

    Several of these, one after the other, are such a file too.
    """
    tf, _ = tf_modules("Writing records")
    # TensorFlow computes the checksums; its files in memory spare the disk.
    path = f"ram://{uuid.uuid4().hex}"
    options = tf.io.TFRecordOptions(
        compression_type="GZIP", compression_level=COMPRESSION_LEVEL
    )
    with tf.io.TFRecordWriter(path, options) as writer:
        for example in examples:
            writer.write(example)
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    tf.io.gfile.remove(path)
    return data

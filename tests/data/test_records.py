"""Records: we write the same bytes as TensorFlow, and read them as TensorFlow does."""

import io

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.data.records import (
    NotAnExampleError,
    compressed_records,
    decode_examples,
    encode_examples,
    feature_sizes,
    read_records,
)


def example(row):
    """A `tf.train.Example` of a dict of arrays (K,)."""

    def feature(values):
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype("int64")))

    features = {name: feature(values) for name, values in row.items()}
    return tf.train.Example(features=tf.train.Features(feature=features))


@pytest.mark.parametrize("length", [1, 20, 128, 300])
def test_encoding(length):
    rng = np.random.default_rng(length)
    # Numbers of one to nine bytes in a record.
    large = rng.integers(0, 2 ** rng.integers(1, 63, (50, length)))
    features = {
        "segment_ids": rng.random((50, length)) < 0.5,
        "input_ids": rng.integers(0, 250000, (50, length), "int32"),
        "large": large,
        "zeros": np.zeros((50, 3), "int64"),
        "a_long_name_" * 20: np.arange(50)[:, None],
        "weights": rng.random((50, length)).astype("float32"),
    }
    encoded = encode_examples(features)
    assert len(encoded) == 50
    for i, data in enumerate(encoded):
        expected = example({name: values[i] for name, values in features.items()})
        assert data == expected.SerializeToString(deterministic=True)
    sizes = {name: values.shape[1] for name, values in features.items()}
    assert feature_sizes(encoded[0]) == sizes
    decoded = decode_examples(encoded, sizes, ["weights"])
    for name, values in features.items():
        np.testing.assert_array_equal(decoded[name], values)
    assert decoded["weights"].dtype == "float32" and decoded["large"].dtype == "int64"
    negative = example({"a": np.array([-1, 5, -(2**63)])}).SerializeToString()
    assert decode_examples([negative], {"a": 3})["a"].tolist() == [[-1, 5, -(2**63)]]


def test_decoding_what_is_no_example():
    """If one byte changes, decoding raises this error or returns other numbers; it never raises
    another error.
    """
    good = encode_examples({"a": np.array([[1, 300]]), "b": np.ones((1, 2), "float32")})[0]
    for place in range(len(good)):
        for change in (1, 2, 7, 0x80, 0xFF):
            data = good[:place] + bytes([good[place] ^ change]) + good[place + 1 :]
            try:
                decode_examples([good, data], {"a": 2, "b": 2}, ["b"])
            except NotAnExampleError:
                continue
    for cut in range(len(good)):
        with pytest.raises(NotAnExampleError):
            decode_examples([good[:cut]], {"a": 2, "b": 2}, ["b"])
    with pytest.raises(NotAnExampleError, match="some have no 'c', or 'c' of other types"):
        decode_examples([good], {"c": 1})
    with pytest.raises(NotAnExampleError, match="'a' has 2 values, not 3"):
        decode_examples([good], {"a": 3})
    for name, floats in (("b", ()), ("a", ["a"])):
        with pytest.raises(NotAnExampleError, match=f"{name!r} of other types"):
            decode_examples([good], {name: 2}, floats)
    odd = good.replace(b"\x12\x0c\x12\x0a\x0a\x08", b"\x12\x0c\x12\x0a\x0a\x07", 1)
    with pytest.raises(NotAnExampleError):
        decode_examples([odd], {"b": 2}, ["b"])
    with pytest.raises(NotAnExampleError, match="of other types"):
        decode_examples([good, example({"a": np.ones(2)}).SerializeToString()], {"a": 2})


def test_reading(tmp_path):
    records = [b"", b"a", bytes(range(256)) * 300]
    path = str(tmp_path / "some.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    data = open(path, "rb").read()
    assert list(read_records(io.BytesIO(data))) == records
    for place in (0, 7, 9, 20, len(data) // 2, len(data) - 1):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(EOFError):
            list(read_records(io.BytesIO(damaged)))
        if place not in (0, 16, 33):  # The file ends between two records.
            with pytest.raises(EOFError):
                list(read_records(io.BytesIO(data[:place])))


def test_records_of_parts_follow_each_other(tmp_path):
    rng = np.random.default_rng(0)
    # Parts of all sizes, including those around the sizes of TensorFlow's buffers.
    sizes = rng.integers(1, 2 ** rng.integers(1, 20, 60))
    parts = [[b"one", b"two" * 1000], [], [b"three"], *([rng.bytes(size)] * 2 for size in sizes)]
    path = tmp_path / "three.tfrecord.gz"
    path.write_bytes(b"".join(map(compressed_records, parts)))
    read = tf.data.TFRecordDataset(str(path), "GZIP").as_numpy_iterator()
    assert list(read) == sum(parts, [])


def test_no_records_at_all(tmp_path):
    path = tmp_path / "none.tfrecord.gz"
    path.write_bytes(compressed_records([]))
    assert list(tf.data.TFRecordDataset(str(path), "GZIP")) == []

"""Records, byte for byte those that TensorFlow writes."""

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.data.records import compressed_records, encode_examples


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
    # Of one to nine bytes each.
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


def test_records_of_parts_follow_each_other(tmp_path):
    rng = np.random.default_rng(0)
    # Parts of all sizes, around those of TensorFlow's buffers too.
    sizes = rng.integers(1, 2 ** rng.integers(1, 20, 60))
    parts = [[b"one", b"two" * 1000], [], [b"three"], *([rng.bytes(size)] * 2 for size in sizes)]
    path = tmp_path / "three.tfrecord.gz"
    path.write_bytes(b"".join(map(compressed_records, parts)))
    read = tf.data.TFRecordDataset(str(path), "GZIP").as_numpy_iterator()
    assert list(read) == sum(parts, [])
    assert not tf.io.gfile.glob("ram://*")


def test_no_records_at_all(tmp_path):
    path = tmp_path / "none.tfrecord.gz"
    path.write_bytes(compressed_records([]))
    assert list(tf.data.TFRecordDataset(str(path), "GZIP")) == []

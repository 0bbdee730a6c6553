"""From records to batches: masks, epochs, processes, and damaged files."""

import gzip
import json
import os
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.data import documents, read_examples
from kerasbert.tokenizers import BertTokenizer
from tests.data import reference_examples
from tests.data.example_folders import (
    CLS,
    MASK,
    PAD,
    PIECES,
    SEP,
    SPECIAL,
    UNK,
    WORDS,
    P,
    T,
    files,
    parsed,
    restored,
    write,
)

pytestmark = [
    pytest.mark.usefixtures("small_chunks"),
    pytest.mark.backends("tensorflow"),  # Examples are made without a backend.
]

SLOTS = ("mask_positions", "mask_ids", "mask_weights")


def read(folder, batch_size=16, count=-1, **settings):
    """Return the first `count` batches, or all of them."""
    batches = read_examples(folder, batch_size, **{"repeat": False, **settings})
    return list(batches.take(count).as_numpy_iterator())


def same(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def rows_of(batches):
    """Return the rows of batches as sorted tuples, without the padding and the masked positions."""
    rows = []
    for x, y, _ in batches:
        for i, mask in enumerate(x["padding_mask"]):
            rows.append((*x["token_ids"][i][mask], *x["segment_ids"][i][mask], y["nsp_logits"][i]))
    return sorted(rows)


def test_static_masks_are_those_of_the_records(written):
    folder, manifest = written
    batches = read(folder, masking="static", shuffle_buffer=0)
    features = parsed(folder)
    ids, weights = features["input_ids"], features["masked_lm_weights"]
    assert sum(len(x["token_ids"]) for x, _, _ in batches) == len(ids)
    first = 0
    for x, y, sample_weight in batches:
        rows = slice(first, first + len(x["token_ids"]))
        width = x["token_ids"].shape[1]
        assert width in (8, 16, 24, 32) and not ids[rows, width:].any()
        same(x["token_ids"], ids[rows, :width])
        same(x["padding_mask"], features["input_mask"][rows, :width] > 0)
        same(x["segment_ids"], features["segment_ids"][rows, :width])
        same(x["mask_positions"], features["masked_lm_positions"][rows])
        same(y["mlm_logits"], features["masked_lm_ids"][rows])
        same(y["nsp_logits"], features["next_sentence_labels"][rows, 0])
        same(sample_weight["mlm_logits"], weights[rows])
        assert sample_weight["nsp_logits"].tolist() == [1.0] * len(x["token_ids"])
        first = rows.stop


def test_dynamic_masks_start_from_what_was_there(written, bert):
    folder, _ = written
    features = parsed(folder)
    ids = restored(features)
    batches = read(folder, shuffle_buffer=0)
    first, places = 0, []
    for x, y, weights in batches:
        rows = slice(first, first + len(x["token_ids"]))
        width = x["token_ids"].shape[1]
        back = x["token_ids"].copy()
        at, slots = np.nonzero(weights["mlm_logits"])
        back[at, x["mask_positions"][at, slots]] = y["mlm_logits"][at, slots]
        same(back, ids[rows, :width])
        changed = x["token_ids"] != back
        assert changed.any() and (x["token_ids"] == MASK).any()
        hidden = y["mlm_logits"][at, slots]
        assert not np.isin(hidden, [PAD, UNK, CLS, SEP, MASK]).any()
        places.append(x["mask_positions"])
        first = rows.stop

    # Another seed masks other tokens, and so do the records themselves (static masking).
    def first_places(**other):
        ((x, _, _),) = read(folder, count=1, shuffle_buffer=0, **other)
        return x["mask_positions"]

    same(places[0], first_places())
    for other in ({"seed": 1}, {"masking": "static"}):
        assert not np.array_equal(places[0][:, :4], first_places(**other)[:, :4])


def test_settings_of_the_masker(written, bert):
    folder, _ = written
    most = {"mask_selection_rate": 0.5, "mask_token_rate": 1.0, "random_token_rate": 0.0}
    x, y, weights = read(folder, 64, count=1, masker=most)[0]
    n = x["padding_mask"].sum(axis=1)
    hidden = weights["mlm_logits"].sum(axis=1)
    np.testing.assert_array_equal(hidden, np.minimum(np.round(n / 2), n - 3))
    np.testing.assert_array_equal((x["token_ids"] == MASK).sum(axis=1), hidden)

    def none(token_ids, maskable, seed, lengths):
        assert maskable.dtype == bool and seed.shape == (2,) and lengths.ndim == 1
        slots = np.zeros_like(token_ids)[:, :2]
        return {"token_ids": token_ids, **dict.fromkeys(SLOTS, slots)}

    x, y, _ = read(folder, 64, count=1, masker=none)[0]
    assert y["mlm_logits"].shape == (64, 2) and not (x["token_ids"] == MASK).any()
    # Masking whole words needs the tokenizer.
    x, _, weights = read(folder, 64, count=1, masker={"unit": "word"}, tokenizer=bert)[0]
    assert weights["mlm_logits"].any()
    with pytest.raises(ValueError, match="unit='word' needs word boundaries; pass the `token"):
        read_examples(folder, 4, masker={"unit": "word"})
    with pytest.raises(ValueError, match="masker has the unknown setting 'rate'; use some of"):
        read_examples(folder, 4, masker={"rate": 0.3})
    with pytest.raises(ValueError, match="mask_selection_rate=2 must be a number"):
        read_examples(folder, 4, masker={"mask_selection_rate": 2})


def test_the_form_without_tensorflow(written, bert, monkeypatch):
    """JAX and PyTorch get the same batches as a `PyDataset`."""
    folder, manifest = written
    settings = {"tokenizer": bert, "seed": 2, "shuffle_buffer": 100}
    in_tensorflow = list(read_examples(folder, 64, **settings).take(9).as_numpy_iterator())
    once = read(folder, 64, **settings)
    monkeypatch.setattr("kerasbert.backend.trains_in_graphs", lambda: False)
    batches = read_examples(folder, 64, **settings)
    assert isinstance(batches, keras.utils.PyDataset) and batches.num_batches is None
    for number, expected in enumerate(in_tensorflow):
        same(batches[number], expected)
    same(batches[2], in_tensorflow[2])  # An earlier batch can be read again.
    same(next(iter(batches)), in_tensorflow[0])
    taken = batches.take(3)
    assert len(list(taken)) == len(list(taken)) == taken.cardinality() == 3
    found = read_examples(folder, 64, repeat=False, **settings)
    assert found.cardinality() == len(once)
    for batch, expected in zip(found, once, strict=True):
        same(batch, expected)
    spec = found.element_spec[0]["token_ids"]
    assert spec.shape == (None, None) and spec.dtype == "int32"


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["token", "word"])
def test_a_rate_that_changes(written, bert, unit):
    folder, _ = written
    settings = {"tokenizer": bert, "repeat": True, "seed": 1}
    for first, last in ((0.5, 0.1), (0.1, 0.5)):
        masker = {"mask_selection_rate": (first, last, 8), "unit": unit}
        batches = list(read_examples(folder, 64, masker=masker, **settings).take(10))
        widths = []
        for number, (x, y, weights) in enumerate(batches):
            rate = first + (last - first) * min(number / 8, 1)
            n = x["padding_mask"].numpy().sum(axis=1)
            hidden = weights["mlm_logits"].numpy().sum(axis=1)
            expected = np.maximum(1, np.minimum(np.round(rate * n), n - 3))
            if unit == "token":
                np.testing.assert_allclose(hidden, expected, atol=1)
            assert abs(hidden.mean() - expected.mean()) < 0.5
            widths.append(y["mlm_logits"].shape[1])
            assert x["mask_positions"].shape[1] == widths[-1] >= hidden.max()
        assert len(set(widths)) <= 4 and widths[0] != widths[-1]
        # A later start masks the same tokens.
        same(
            batches[6],
            next(iter(read_examples(folder, 64, start_step=6, masker=masker, **settings))),
        )
    with pytest.raises(ValueError, match="mask_selection_rate: batches=0 must be a whole number"):
        read_examples(folder, 4, masker={"mask_selection_rate": (0.3, 0.1, 0)})
    with pytest.raises(ValueError, match="mask_selection_rate=2 must be a number from 0 to 1"):
        read_examples(folder, 4, masker={"mask_selection_rate": (0.3, 2, 5)})


@pytest.mark.slow
@pytest.mark.parametrize("shuffle_buffer", [100, 1 << 16])
def test_a_batch_depends_on_its_number_alone(written, shuffle_buffer):
    folder, manifest = written
    steps = 2 * manifest["counts"]["examples"] // 50  # into a third epoch
    settings = {"shuffle_buffer": shuffle_buffer, "seed": 3, "repeat": True}

    def batches(start, count):
        # Keras seeds TensorFlow's generators, which must not affect the batches.
        keras.utils.set_random_seed(start)
        return list(read_examples(folder, 50, start_step=start, **settings).take(count))

    unbroken = batches(0, steps + 3)
    for start in (1, steps // 3, steps // 2 + 1):
        for expected, batch in zip(unbroken[start:], batches(start, 2)):
            same(expected, batch)


@pytest.fixture(scope="module")
def rows_written(written):
    return rows_of(read(written[0], 64, masking="static", shuffle_buffer=0))


@pytest.mark.slow
@pytest.mark.parametrize("shuffle_buffer", [0, 100])
def test_an_epoch_has_each_example_once(written, rows_written, shuffle_buffer):
    folder, manifest = written
    examples = manifest["counts"]["examples"]
    settings = {"masking": "static", "shuffle_buffer": shuffle_buffer}
    dataset = read_examples(folder, 64, repeat=False, **settings)
    assert int(dataset.cardinality()) == -(-examples // 64)
    once = list(dataset.as_numpy_iterator())
    assert rows_of(once) == rows_written and len(rows_written) == examples
    rest = read(folder, 64, start_step=5, **settings)
    same(once[5:], rest)
    endless = read_examples(folder, examples, **settings)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    orders = []
    for epoch in endless.take(3).as_numpy_iterator():
        assert rows_of([epoch]) == rows_written
        orders.append(epoch[0]["token_ids"].tolist())
    assert (orders[0] != orders[1] and orders[1] != orders[2]) == bool(shuffle_buffer)


@pytest.fixture(scope="module")
def many_shards(corpus, bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    manifest = write(corpus, folder, bert, block_bytes=4000, blocks_per_shard=1)
    assert len(manifest["shards"]) >= 8
    return folder, manifest


def joined(parts):
    return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *parts)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 24))])
def test_processes_have_the_batches_of_one(many_shards, bert, count):
    """This also holds with more processes than parts: 24 processes, while files are split into at
    most 12 parts.
    """
    folder, _ = many_shards
    settings = {"seed": 3, "tokenizer": bert, "masker": {"unit": "word"}, "shuffle_buffer": 100}

    def some(shard, start_step=0, number=40):
        batches = read_examples(folder, 24, shard=shard, start_step=start_step, **settings)
        return list(batches.take(number).as_numpy_iterator())

    one = some((0, 1))
    together = [joined(parts) for parts in zip(*(some((i, count)) for i in range(count)))]
    assert len(together) == 40
    for batch, expected in zip(together, one):
        assert batch[0]["token_ids"].shape == (24, T)
        wide = expected[0]["token_ids"].shape[1]
        assert not batch[0]["padding_mask"][:, wide:].any()
        for name in ("token_ids", "segment_ids", "padding_mask"):
            np.testing.assert_array_equal(batch[0][name][:, :wide], expected[0][name])
        used = expected[1]["mlm_logits"].shape[1]
        np.testing.assert_array_equal(batch[1]["mlm_logits"][:, :used], expected[1]["mlm_logits"])
        assert not batch[2]["mlm_logits"][:, used:].any()
    # Any number of processes can resume at any batch.
    same(some((count - 1, count), 37, 1)[0], some((count - 1, count))[37])


@pytest.mark.slow
@pytest.mark.parametrize(("count", "buffer"), [(1, 0), (2, 100)])
def test_processes_fill_an_epoch(many_shards, buffer, count):
    folder, manifest = many_shards
    examples = manifest["counts"]["examples"]
    settings = {"repeat": False, "shuffle_buffer": buffer, "masking": "static"}
    rows = []
    for index in range(count):
        shard = index, count
        batches = read_examples(folder, 32, shard=shard, **settings)
        parts = list(batches.as_numpy_iterator())
        assert len(parts) == int(batches.cardinality()) == -(-examples // 32)
        real = []
        for x, y, weights in parts:
            there = weights["nsp_logits"] > 0
            assert len(there) == 32 // count and (weights["mlm_logits"][~there] == 0).all()
            assert (x["padding_mask"][~there].sum(axis=1) == 1).all()
            x, y = tf.nest.map_structure(lambda value, there=there: value[there], (x, y))
            rows += rows_of([(x, y, None)])
            real.append(int(there.sum()))
        # Rows that fill the batches are spread over them, not all in the last one.
        assert max(real) - min(real) <= 8
        later = read_examples(folder, 32, shard=shard, start_step=5, **settings)
        for expected, batch in zip(parts[5:], later.as_numpy_iterator(), strict=True):
            same(expected, batch)
    assert sorted(rows) == rows_of(read(folder, 64, masking="static", shuffle_buffer=0))


def test_a_process_reads_its_files_alone(many_shards, monkeypatch, tmp_path):
    folder, manifest = many_shards
    sizes = {shard["name"]: shard["bytes"] for shard in manifest["shards"]}
    checked = []
    for file in ("example_files", "example_parts"):
        monkeypatch.setattr(
            f"kerasbert.data.{file}.check_shards",
            lambda folder, shards, hashed: checked.extend(shard["name"] for shard in shards),
        )
    for index in range(2):
        checked.clear()
        read_examples(folder, 64, shard=(index, 2), masking="static")
        share = sum(sizes[name] for name in set(checked)) / sum(sizes.values())
        assert 0.4 < share < 0.7  # All processes read the first file, for the sizes of the rows.
    # Files that only other processes read may be missing.
    for name, data in files(folder).items():
        if name not in list(sizes)[len(sizes) // 2 + 1 :]:
            (tmp_path / name).write_bytes(data)
    monkeypatch.undo()
    settings = {"shuffle_buffer": 10, "shard": (0, 2)}
    batches = (read_examples(place, 64, **settings) for place in (folder, tmp_path))
    for expected, batch in zip(*(one.take(20).as_numpy_iterator() for one in batches)):
        same(expected, batch)
    with pytest.raises(ValueError, match="is missing; write the examples again"):
        read_examples(tmp_path, 64, shard=(1, 2))


def test_files_of_a_manifest(many_shards):
    """For a list or a pattern of files, the manifest gives the counts, so none is read for them."""
    folder, manifest = many_shards
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kerasbert.data.example_files._look", None)
        pattern = os.path.join(folder, "*.tfrecord.gz")
        same(read(pattern, 64), read(folder, 64))
        paths = [os.path.join(folder, shard["name"]) for shard in manifest["shards"][:2]]
        assert sum(len(x["token_ids"]) for x, _, _ in read(paths, 64, masking="static")) == sum(
            shard["examples"] for shard in manifest["shards"][:2]
        )


@pytest.mark.parametrize(
    "shard, message",
    [
        ((2, 2), r"shard=\(2, 2\) has the index 2; it must be below 2"),
        ((0, 3), "batch_size=64 is for all 3 processes and must be a multiple of 3"),
        ((-1, 2), "shard: index=-1 must be"),
        ((0, 0), "shard: count=0 must be"),
    ],
)
def test_bad_shards(written, shard, message):
    with pytest.raises(ValueError, match=message):
        read_examples(written[0], 64, shard=shard)


def test_segments_and_labels_as_the_model_wants_them(written, bert, corpus, tmp_path):
    folder, _ = written
    x, y, weights = read(folder, count=1, num_segments=0, next_sentence=False)[0]
    assert set(x) == {"token_ids", "padding_mask", "mask_positions"}
    assert set(y) == set(weights) == {"mlm_logits"}
    ((x, _, _),) = read(folder, count=1, num_segments=1, masking="static")
    assert not x["segment_ids"].any()
    write(corpus, tmp_path, bert, objective="full_sentences")
    assert set(read(tmp_path, count=1)[0][1]) == {"mlm_logits"}


@pytest.fixture(scope="module")
def of_reference(tmp_path_factory, corpus, bert):
    """A file as the released code writes it, and its rows before masking."""
    path = str(tmp_path_factory.mktemp("reference") / "pretraining.tfrecord")
    texts = [bert.tokenize(document) for document in list(documents(corpus))[:60]]
    vocabulary = list(range(bert.vocabulary_size()))
    made = reference_examples.examples(texts, T, 6, CLS, SEP, MASK, vocabulary, random.Random(0))
    rows = []
    with tf.io.TFRecordWriter(path) as writer:
        for pair, seen, segments, places, hidden in made:
            data = seen, segments, places, hidden, pair.is_random
            writer.write(reference_examples.serialized(*data, T, 6))
            rows.append((CLS, *pair.a, SEP, *pair.b, SEP, *segments, int(pair.is_random)))
    return path, sorted(rows)


def test_files_of_the_reference(of_reference, bert):
    path, rows = of_reference

    def back(token_ids, maskable, seed, lengths):
        slots = np.zeros_like(token_ids)[:, :2]
        return {"token_ids": token_ids, **dict.fromkeys(SLOTS, slots)}

    for files_ in (path, [path], os.path.dirname(path), path[:-4] + "*"):
        assert rows_of(read(files_, tokenizer=bert, masker=back)) == rows
    x, y, _ = read(path, count=1, masking="static")[0]
    assert y["mlm_logits"].shape == (16, 6) and (x["token_ids"] == MASK).any()
    x, y, weights = read(path, count=1, tokenizer=bert)[0]
    counts = np.maximum(1, np.round(0.15 * x["padding_mask"].sum(axis=1)))
    np.testing.assert_array_equal(weights["mlm_logits"].sum(axis=1), counts)
    with pytest.raises(ValueError, match="no manifest with the special tokens; pass"):
        read_examples(path, 4)


def test_a_vocabulary_that_does_not_match(written, of_reference):
    folder, _ = written
    other = BertTokenizer(SPECIAL + WORDS[::-1] + PIECES)
    with pytest.raises(ValueError, match="made with another vocabulary, of 95 tokens"):
        read_examples(folder, 4, tokenizer=other)
    fewer = BertTokenizer(SPECIAL + WORDS[:10])
    moved = BertTokenizer(["[PAD]", "a", *SPECIAL[1:], *WORDS, *PIECES])
    for tokenizer in (fewer, moved):
        with pytest.raises(ValueError, match="pretraining.tfrecord' were made with another voc"):
            read_examples(of_reference[0], 4, tokenizer=tokenizer)


def test_damaged_files(written, of_reference, bert, corpus, tmp_path):
    folder, _ = written
    for name, data in files(folder).items():
        (tmp_path / name).write_bytes(data)
    shard = tmp_path / "examples-00001.tfrecord.gz"
    data = shard.read_bytes()
    shard.write_bytes(data[:-100])
    message = (
        f"00001.tfrecord.gz' has {len(data) - 100} bytes, but was written with {len(data)}: it"
    )
    with pytest.raises(ValueError, match=message):
        read_examples(tmp_path, 4)
    with pytest.raises(ValueError, match=message):
        write(corpus, tmp_path, bert)
    shard.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    with pytest.raises(ValueError, match="00001.tfrecord.gz' differs from what was written"):
        read_examples(tmp_path, 4)
    shard.unlink()
    with pytest.raises(ValueError, match="00001.tfrecord.gz' is missing; write the examples again"):
        read_examples(tmp_path, 4)
    (tmp_path / "manifest.json").write_text('{"format": 1')
    with pytest.raises(ValueError, match="manifest.json' is not a manifest of records"):
        read_examples(tmp_path, 4)
    (tmp_path / "manifest.json").unlink()
    # Without a manifest, each file is read completely.
    plain = open(of_reference[0], "rb").read()
    for name, content in (
        ("cut.tfrecord", plain[:-5]),
        ("cut.tfrecord.gz", data[:-100]),
        ("no.tfrecord", b"It rains. " * 50),
        ("no.tfrecord.gz", b"It rains. " * 50),
        ("flipped.tfrecord", plain[:500] + bytes([plain[500] ^ 1]) + plain[501:]),
        # Sizes of arrays that exceed any memory.
        ("long.tfrecord", (1 << 60).to_bytes(8, "little") + plain[8:]),
        ("long.tfrecord.gz", gzip.compress((1 << 60).to_bytes(8, "little") + plain[8:])),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}' is truncated, damaged or not a TFRecord"):
            read_examples(tmp_path / name, 4, tokenizer=bert)
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match="empty.tfrecord' has no examples"):
        read_examples(tmp_path / "empty.tfrecord", 4, tokenizer=bert)


def test_files_that_are_no_such_examples(of_reference, bert, written, tmp_path):
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    other = tf.train.Example(features=tf.train.Features(feature={"label": feature}))
    for name, data in (("other.tfrecord", other.SerializeToString()), ("no.tfrecord", b"\xff\xff")):
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            writer.write(data)
    with pytest.raises(ValueError, match="other.tfrecord' have no 'input_ids'"):
        read_examples(tmp_path / "other.tfrecord", 4, tokenizer=bert)
    with pytest.raises(ValueError, match="no.tfrecord' has records that are not examples"):
        read_examples(tmp_path / "no.tfrecord", 4, tokenizer=bert)
    with pytest.raises(ValueError, match="No file of examples matches"):
        read_examples(tmp_path / "nothing.tfrecord", 4)
    with pytest.raises(ValueError, match="list of files of examples is empty"):
        read_examples([], 4)
    folder, _ = written
    both = [of_reference[0], os.path.join(folder, "examples-00000.tfrecord.gz")]
    with pytest.raises(ValueError, match="has rows of 32 tokens with 5 predictions, but"):
        read_examples(both, 4, tokenizer=bert)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("input_ids", [-1] * T, "with input_ids from -1 to"),
        ("input_ids", [1 << 40] * T, "with input_ids from 1 to 1099511627776"),
        ("input_ids", [1] * (T - 1), "not examples .'input_ids' has 31 values, not 32"),
        ("masked_lm_positions", [T] * P, f"with masked_lm_positions from 0 to {T}"),
        ("next_sentence_labels", [2], "with next_sentence_labels from 0 to 2"),
        ("segment_ids", [7] * T, "with segment_ids from 0 to 7"),
        ("masked_lm_weights", [float("nan")] * P, "with masked_lm_weights of nan or inf"),
        ("masked_lm_weights", None, "records that are not examples .*masked_lm_weights"),
    ],
)
def test_damaged_records(name, value, message, tmp_path):
    """The first of two examples is valid, and the second is damaged."""
    row = {
        "input_ids": [1] * T,
        "input_mask": [1] * T,
        "segment_ids": [0] * T,
        "masked_lm_positions": [0] * P,
        "masked_lm_ids": [1] * P,
        "masked_lm_weights": [0.0] * P,
        "next_sentence_labels": [0],
    }
    path = str(tmp_path / "some.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for features in (row, {**row, name: value}):
            example = tf.train.Example()
            for key, values in features.items():
                kind = "float_list" if key == "masked_lm_weights" else "int64_list"
                getattr(example.features.feature[key], kind).value.extend(values or [])
            writer.write(example.SerializeToString())
    with pytest.raises(ValueError, match=f"some.tfrecord'.* {message}"):
        read_examples(path, 2, masking="static")


@pytest.mark.parametrize(
    "part, name, value, message",
    [
        (None, "shards", {}, "shards=.. must be a list"),
        (None, "shards", [3], "a shard=3 must be an object"),
        (None, "complete", "yes", "complete='yes' must be true or false"),
        (None, "counts", {}, "examples=None must be a whole number of at least 1"),
        ("settings", "sequence_length", "32", "sequence_length='32' must be a whole number"),
        ("settings", "sequence_length", 10**9, "has rows of 32 tokens .*which contradicts"),
        ("tokenizer", "special_token_ids", ["0"], "special token's id='0' must be a whole"),
        ("tokenizer", "vocabulary_sha256", 5, "vocabulary_sha256=5 must be a string"),
    ],
)
def test_damaged_manifests(written, tmp_path, part, name, value, message):
    for file, data in files(written[0]).items():
        (tmp_path / file).write_bytes(data)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    (manifest[part] if part else manifest)[name] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=message):
        read_examples(tmp_path, 4)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"masking": "none"}, "masking='none' is unknown"),
        ({"batch_size": 0}, "batch_size=0 must be"),
        ({"start_step": -1}, "start_step=-1 must be"),
        ({"shuffle_buffer": 0.5}, "shuffle_buffer=0.5 must be"),
    ],
)
def test_settings_of_reading(settings, message, written):
    with pytest.raises(ValueError, match=message):
        read_examples(written[0], **{"batch_size": 4, **settings})

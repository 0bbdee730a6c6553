"""From text to records and batches: the published statistics, seeds, resuming, and bad input."""

import errno
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import real_data
import tensorflow as tf

from kerasbert.data import documents, read_examples, write_examples
from kerasbert.data.manifest import read_manifest
from kerasbert.tokenizers import BertTokenizer
from tests.data import reference_examples
from tests.data.test_sentence_pairs import compare_with_reference as pairs_with_reference
from tests.data.test_sentence_pairs import same_distribution

pytestmark = pytest.mark.backends("tensorflow")  # It is made without a backend.

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{a}{b}" for a in "bcdfghklmn" for b in "aeiou"]
PIECES = [f"##{word}" for word in WORDS[:40]]
PAD, UNK, CLS, SEP, MASK = range(5)
T = 32
P = 5


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Files are read by the mebibyte: too much for the blocks of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kerasbert.data.corpus.CHUNK", 2000)
        yield


@pytest.fixture(scope="module")
def bert():
    return BertTokenizer(SPECIAL + WORDS + PIECES)


def text_of(num_documents, seed=0):
    """Documents of mixed lengths, an empty line after each."""
    rng = random.Random(seed)

    def word():
        return rng.choice(WORDS) + "".join(rng.choices(WORDS[:40], k=rng.choice((0, 0, 1, 2))))

    lines = []
    for _ in range(num_documents):
        for _ in range(rng.choice((1, 2, 5, 9, 20))):
            lines.append(" ".join(word() for _ in range(rng.choice((1, 3, 6, 10, 30)))))
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(text_of(400))
    return str(path)


def write(corpus, output, tokenizer, **settings):
    settings = {"sequence_length": T, "workers": 1, "block_bytes": 10_000, **settings}
    return write_examples(corpus, str(output), tokenizer, **{"blocks_per_shard": 2, **settings})


@pytest.fixture(scope="module")
def written(corpus, bert, tmp_path_factory):
    """`(folder, manifest)` of the corpus's examples."""
    folder = tmp_path_factory.mktemp("written")
    return str(folder), write(corpus, folder, bert)


def files(folder):
    """The content of each file of a folder."""
    return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}


def parsed(folder, length=T, slots=5):
    """All records of a folder, by the specification of google-research/bert's `run_pretraining`."""
    paths = sorted(str(path) for path in tf.io.gfile.glob(f"{folder}/*.tfrecord.gz"))
    ints, floats = tf.int64, tf.float32
    spec = {
        "input_ids": tf.io.FixedLenFeature([length], ints),
        "input_mask": tf.io.FixedLenFeature([length], ints),
        "segment_ids": tf.io.FixedLenFeature([length], ints),
        "masked_lm_positions": tf.io.FixedLenFeature([slots], ints),
        "masked_lm_ids": tf.io.FixedLenFeature([slots], ints),
        "masked_lm_weights": tf.io.FixedLenFeature([slots], floats),
        "next_sentence_labels": tf.io.FixedLenFeature([1], ints),
    }
    records = tf.data.TFRecordDataset(paths, "GZIP").batch(1_000_000)
    return {k: v.numpy() for k, v in tf.io.parse_example(next(iter(records)), spec).items()}


def restored(features):
    """The ids before tokens were hidden."""
    ids = features["input_ids"].copy()
    rows, slots = np.nonzero(features["masked_lm_weights"])
    ids[rows, features["masked_lm_positions"][rows, slots]] = features["masked_lm_ids"][rows, slots]
    return ids


# === Writing ===


def compare_with_reference(features, texts, cls, sep, mask, vocabulary, slots, copies, short=0.1):
    """Check that records have the statistics of the published algorithm on the same texts."""
    ids = list(range(vocabulary))
    length = features["input_ids"].shape[1]
    rng = random.Random(1)
    theirs = []
    for _ in range(copies):
        made = reference_examples.examples(texts, length, slots, cls, sep, mask, ids, rng, short)
        for pair, seen, segments, places, hidden in made:
            data = (len(seen), sum(segments), len(places), int(pair.is_random), places[0])
            masks = sum(seen[p] == mask for p in places)
            same = sum(seen[p] == h for p, h in zip(places, hidden))
            theirs.append((*data, masks, same))
    theirs = np.array(theirs)
    assert abs(len(features["input_ids"]) / len(theirs) - 1) < 0.01
    weights, tokens = features["masked_lm_weights"], features["masked_lm_ids"]
    at = np.take_along_axis(features["input_ids"], features["masked_lm_positions"], axis=1)
    columns = [
        features["input_mask"].sum(axis=1),
        features["segment_ids"].sum(axis=1),
        weights.sum(axis=1),
        features["next_sentence_labels"][:, 0],
        features["masked_lm_positions"][:, 0],
        ((at == mask) * weights).sum(axis=1),
        ((at == tokens) * weights).sum(axis=1),
    ]
    for column, values in enumerate(columns):
        same_distribution(values, theirs[:, column])
    # Of the hidden: 80% masks, 10% themselves, 10% any token, special ones too.
    hidden = weights.sum()
    error = 5 * 0.4 / np.sqrt(hidden)
    assert abs((columns[5].sum() / hidden) - 0.8 - 0.1 / vocabulary) < error
    assert abs((columns[6].sum() / hidden) - 0.1 - 0.1 / vocabulary) < error
    others = at[(weights > 0) & (at != mask) & (at != tokens)]
    drawn = np.bincount(others * 10 // vocabulary, minlength=10)
    assert (abs(drawn - len(others) / 10) < 5 * np.sqrt(len(others) / 10)).all()
    return others


def test_statistics_are_those_of_the_published_algorithm(corpus, bert, tmp_path):
    """About 17,000 examples of each."""
    write(corpus, tmp_path, bert, copies=10, block_bytes=1 << 30)
    features = parsed(tmp_path)
    texts = [bert.tokenize(document) for document in documents(corpus)]
    others = compare_with_reference(
        features, texts, CLS, SEP, MASK, bert.vocabulary_size(), 5, copies=10
    )
    assert len(features["input_ids"]) > 15_000 and np.isin([PAD, UNK, CLS, SEP], others).all()


@pytest.mark.slow
def test_statistics_on_real_text(tmp_path):
    """More than 100,000 examples of 128 tokens of the Brown corpus, with a real vocabulary.

    Without short sequences: 27 examples of a document would be short together.
    """
    brown = real_data.or_skip(real_data.brown_tagged)
    tokenizer = BertTokenizer.from_files(real_data.or_skip(real_data.minilm_dir))
    texts = [[" ".join(word for word, _ in sentence) for sentence in text] for text in brown]
    (tmp_path / "text.txt").write_text("\n".join("\n".join(text) + "\n" for text in texts))
    output = tmp_path / "examples"
    settings = {"copies": 9, "short_sequence_rate": 0.0, "workers": 1}
    write_examples(tmp_path / "text.txt", output, tokenizer, **settings)
    features = parsed(output, 128, 20)
    assert len(features["input_ids"]) > 100_000
    texts = [[ids for ids in tokenizer.tokenize(text) if ids] for text in texts]
    size = tokenizer.vocabulary_size()
    compare_with_reference(features, texts, 101, 102, 103, size, 20, copies=9, short=0.0)
    sentences = np.cumsum([0, *(len(ids) for text in texts for ids in text)])
    boundaries = np.cumsum([0, *map(len, texts)])
    assert pairs_with_reference(sentences, boundaries, 128, 0.1, seeds=8) > 100_000


def test_rows_are_whole(written):
    """`[CLS] A [SEP] B [SEP]`, padded, with the hidden tokens where the positions say."""
    folder, manifest = written
    features = parsed(folder)
    ids, lengths = restored(features), features["input_mask"].sum(axis=1)
    for row, segments, length, mask in zip(
        ids, features["segment_ids"], lengths, features["input_mask"]
    ):
        assert row[0] == CLS and row[length - 1] == SEP and (row[length:] == PAD).all()
        assert (row[:length] == SEP).sum() == 2 and mask[:length].all()
        second = np.flatnonzero(row == SEP)[0] + 1
        np.testing.assert_array_equal(np.flatnonzero(segments), np.arange(second, length))
        assert 2 < second < length - 1
    counts = features["masked_lm_weights"].sum(axis=1)
    np.testing.assert_array_equal(counts, np.minimum(5, np.maximum(1, np.round(0.15 * lengths))))
    hidden = features["masked_lm_ids"][features["masked_lm_weights"] > 0]
    assert not np.isin(hidden, [PAD, CLS, SEP, MASK]).any()
    totals = manifest["counts"]
    assert totals["examples"] == len(ids) and totals["masked"] == counts.sum()
    assert totals["not_next"] == features["next_sentence_labels"].sum()
    assert totals["documents"] == 400 and len(manifest["shards"]) > 2
    assert manifest == read_manifest(folder)


def test_text_is_that_of_the_corpus(written, corpus, bert):
    """Each text of a pair is a piece of the corpus, B the next one where the label says so."""
    folder, _ = written
    features = parsed(folder)
    text = "".join(
        f"{chr(1)}{''.join(chr(id) for sentence in bert.tokenize(document) for id in sentence)}"
        for document in documents(corpus)
    )
    for row, label in zip(restored(features)[:300], features["next_sentence_labels"][:, 0]):
        a, b = "".join(map(chr, row[1:])).split(chr(SEP))[:2]
        assert a in text and b in text
        if len(a) + len(b) < T - 3 and not label:  # nothing was cut off
            assert a + b in text


def test_bytes_depend_on_the_seed_and_on_nothing_else(corpus, bert, written, tmp_path):
    folder, _ = written
    write(corpus, tmp_path / "again", bert)
    assert files(tmp_path / "again") == files(folder)
    write(corpus, tmp_path / "other", bert, seed=1)
    name = "examples-00000.tfrecord.gz"
    assert files(tmp_path / "other")[name] != files(folder)[name]


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_workers(corpus, bert, written, tmp_path):
    folder, _ = written
    for workers in (2, 3):
        write(corpus, tmp_path / str(workers), bert, workers=workers)
        assert files(tmp_path / str(workers)) == files(folder)


class Stop(Exception):
    pass


def stop_after(share):
    def progress(read, examples):
        if read >= share:
            raise Stop

    return progress


def test_an_interrupted_run_goes_on_at_the_shard(corpus, bert, written, tmp_path):
    folder, manifest = written
    with pytest.raises(Stop):
        write(corpus, tmp_path, bert, progress=stop_after(0.7))
    half = files(tmp_path)
    assert "examples-00000.tfrecord.gz" in half and len(half) < len(manifest["shards"])
    assert not any(name.startswith(".") for name in half)
    with pytest.raises(ValueError, match=r"incomplete: .* after \d shards; run `write_examples`"):
        read_examples(tmp_path, 4)
    times = os.stat(tmp_path / "examples-00000.tfrecord.gz").st_mtime_ns
    shares = []
    again = write(corpus, tmp_path, bert, progress=lambda share, _: shares.append(share))
    assert files(tmp_path) == files(folder) and again == manifest
    assert os.stat(tmp_path / "examples-00000.tfrecord.gz").st_mtime_ns == times
    assert shares[0] > 0.3 and shares[-1] == 1 and shares == sorted(shares)
    # Once more: there is nothing left to do.
    assert write(corpus, tmp_path, bert, progress=stop_after(0)) == manifest


@pytest.mark.slow
def test_a_killed_run_goes_on(corpus, bert, written, tmp_path):
    folder, manifest = written
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(bert.get_vocabulary()))
    script = (
        "import sys, time; from kerasbert.data import write_examples;"
        "from kerasbert.tokenizers import BertTokenizer;"
        "from kerasbert.data import corpus; corpus.CHUNK = 2000;"
        f"write_examples({corpus!r}, sys.argv[1], BertTokenizer({str(vocabulary)!r}),"
        f"sequence_length={T}, workers=1, block_bytes=10000, blocks_per_shard=2,"
        "progress=lambda *_: time.sleep(0.3))"
    )
    output = tmp_path / "output"
    for shards in (1, 2):
        process = subprocess.Popen([sys.executable, "-c", script, str(output)])
        while not (output / f"examples-{shards:05}.tfrecord.gz").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert write(corpus, output, bert) == manifest
    assert files(output) == files(folder)


def test_other_settings_and_other_text_are_refused(corpus, bert, written, tmp_path):
    folder, _ = written
    before = files(folder)
    with pytest.raises(ValueError, match="other settings: seed was 0, but is now 5; name another"):
        write(corpus, folder, bert, seed=5)
    other = BertTokenizer(SPECIAL + WORDS + PIECES + ["more"])
    with pytest.raises(ValueError, match="other settings: vocabulary_size was 95, but is now 96"):
        write(corpus, folder, other)
    for text in (text_of(400, seed=1), text_of(100), text_of(500)):
        (tmp_path / "text.txt").write_text(text)
        with pytest.raises(ValueError, match="records of a text other than the corpus"):
            write(tmp_path / "text.txt", folder, bert)
    assert files(folder) == before


@pytest.mark.parametrize(
    "objective, name",
    [
        ("next_sentence", "RobertaTokenizer"),
        ("sentence_order", "AlbertTokenizer"),
        ("sentence_order", "BertTokenizer"),
        ("full_sentences", "BertTokenizer"),
        ("full_sentences", "RobertaTokenizer"),
    ],
)
def test_objectives_and_tokenizers(objective, name, make, sentences, tmp_path):
    tokenizer = make(name)
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n\n".join("\n".join(sentences[i:] + sentences[:i]) for i in range(7)))
    write(corpus, tmp_path / "out", tokenizer, objective=objective, sequence_length=64)
    features = parsed(tmp_path / "out", 64, 10)
    ids, lengths = restored(features), features["input_mask"].sum(axis=1)
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    labels = features["next_sentence_labels"]
    whole = [id for i in range(7) for s in sentences[i:] + sentences[:i] for id in tokenizer(s)]
    if objective == "full_sentences":
        assert not labels.any() and not features["segment_ids"].any()
        assert lengths[:-1].mean() > 40 and len(ids) <= (ids == end).sum() <= len(ids) + 6
    else:
        assert set(labels[:, 0].tolist()) == {0, 1}
    for row, length, segments in zip(ids, lengths, features["segment_ids"]):
        assert row[0] == start and row[length - 1] == end
        assert (row[length:] == tokenizer.pad_token_id).all()
        if objective != "full_sentences":
            separators = tokenizer.num_separators
            places = np.flatnonzero(row[:length] == end)
            assert len(places) == separators + 1
            assert places[separators - 1] == places[0] + separators - 1
            assert np.flatnonzero(segments)[0] == places[0] + separators
    kept = np.isin(ids, [start, end, tokenizer.pad_token_id], invert=True)
    assert set(ids[kept].tolist()) <= set(whole)


def test_words_are_hidden_whole(corpus, bert, tmp_path):
    write(corpus, tmp_path, bert, mask_unit="word")
    features = parsed(tmp_path)
    first_piece = len(SPECIAL + WORDS)
    split = 0
    for row, positions, weights in zip(
        restored(features), features["masked_lm_positions"], features["masked_lm_weights"]
    ):
        hidden = set(positions[weights > 0].tolist())
        for place in range(1, T):
            if row[place] >= first_piece and row[place - 1] > MASK:
                split += (place in hidden) != (place - 1 in hidden)
    assert split == 0


def test_mixed_corpora_in_little_memory_have_others_in_each_block(bert, tmp_path):
    """Blocks with too few documents are joined, the last one with the one before it."""
    (tmp_path / "text.txt").write_text(text_of(50))
    manifest = write(tmp_path / "text.txt", tmp_path / "out", bert, block_bytes=10)
    assert sum(shard["documents"] for shard in manifest["shards"]) == 50
    per_block = [shard["documents"] / 2 for shard in manifest["shards"][:-1]]
    assert 8 <= min(per_block) <= max(per_block) <= 16


# === Bad input ===


def test_an_empty_corpus(bert, tmp_path):
    (tmp_path / "text.txt").write_text("\n \n\n")
    for objective in ("next_sentence", "sentence_order", "full_sentences"):
        with pytest.raises(ValueError, match="has no text: all of its files are empty"):
            write(tmp_path / "text.txt", tmp_path / "out", bert, objective=objective)
    assert not (tmp_path / "out").exists()


def test_one_document(bert, tmp_path):
    (tmp_path / "text.txt").write_text("ba be\nbi bo fa\nca ce\n" * 30)
    with pytest.raises(ValueError, match="has only one document, but a random next sentence"):
        write(tmp_path / "text.txt", tmp_path / "out", bert)
    assert not (tmp_path / "out").exists()
    # What would make several of it is named, for a folder's files too.
    with pytest.raises(ValueError, match="at the ends of its lines .90., pass document_end='line'"):
        write(tmp_path / "text.txt", tmp_path / "out", bert)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("ba be\nbi bo fa\n\nca ce\nba\n" * 30)
    with pytest.raises(ValueError, match="at its empty lines .31., pass document_end='empty_line'"):
        write(tmp_path / "books", tmp_path / "out", bert)
    counts = write(tmp_path / "books", tmp_path / "out", bert, document_end="empty_line")["counts"]
    assert counts["documents"] == 31 and 0 < counts["not_next"] < counts["examples"]
    for objective in ("sentence_order", "full_sentences"):
        output = tmp_path / objective
        assert write(tmp_path / "text.txt", output, bert, objective=objective)["counts"]["examples"]


def test_no_document_has_two_sentences(bert, tmp_path):
    (tmp_path / "text.txt").write_text("ba be\n\nbi bo fa\n\nca ce\n")
    with pytest.raises(ValueError, match="none of its 3 documents has two sentences"):
        write(tmp_path / "text.txt", tmp_path / "out", bert, objective="sentence_order")
    assert not (tmp_path / "out").exists()


def test_pairs_of_one_label(bert, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ba be\n\nbi bo fa\n\nca ce\n\n" * 9)
    with pytest.raises(ValueError, match="documents of one sentence each.*'full_sentences'"):
        write(path, tmp_path / "out", bert)
    assert not (tmp_path / "out").exists()
    assert write(path, tmp_path / "full", bert, objective="full_sentences")["counts"]["examples"]
    path.write_text("ba be\n\nbi bo fa\n\nca ce\n\n" * 99 + "ba bo\nbe ca\n")
    with pytest.warns(UserWarning, match="% of the pairs .* are random, because most of its 298"):
        write(path, tmp_path / "few", bert)
    # A paragraph a line has next sentences.
    path.write_text("Ba be fa. Bi bo ca. Ce ba bo.\n\nCa ce. Be bi fa. Bo ba.\n\n" * 20)
    counts = write(path, tmp_path / "prose", bert)["counts"]
    assert counts["documents"] == 40 and counts["sentences"] > 80
    assert 0.2 < counts["not_next"] / counts["examples"] < 0.8


def test_sentences_that_are_too_long_and_sentences_without_tokens(bert, tmp_path):
    long = " ".join(WORDS) * 20
    (tmp_path / "text.txt").write_text(f"{long}\n\u200b\nba\n\n\u200b\n\nbe\n{long}\nbi\n\nbo\n")
    for objective in ("next_sentence", "sentence_order", "full_sentences"):
        output = tmp_path / objective
        counts = write(tmp_path / "text.txt", output, bert, objective=objective)["counts"]
        lengths = parsed(output)["input_mask"].sum(axis=1)
        assert lengths.max() == T and counts["sentences"] == 6 and counts["documents"] == 3


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"objective": "order"}, "objective='order' is unknown; use one of"),
        ({"sequence_length": 4}, "sequence_length=4 must be a whole number of at least 5"),
        ({"copies": 0}, "copies=0 must be a whole number of at least 1"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"short_sequence_rate": 2}, "short_sequence_rate=2 must be a number from 0 to 1"),
        ({"mask_selection_rate": 0}, "mask_selection_rate=0 leaves nothing to predict"),
        ({"mask_unit": "page"}, "'page' must be one of 'token', 'word'"),
        ({"block_bytes": 0}, "block_bytes=0 must be a whole number of at least 1"),
        ({"blocks_per_shard": 0}, "blocks_per_shard=0 must be"),
        ({"workers": 0}, "workers=0 must be"),
    ],
)
def test_settings_that_make_no_sense(settings, message, corpus, bert, tmp_path):
    with pytest.raises(ValueError, match=message):
        write(corpus, tmp_path, bert, **settings)
    with pytest.raises(ValueError, match="tokenizer=None is not one of `kerasbert.tokenizers`"):
        write(corpus, tmp_path, None)


@pytest.mark.parametrize("which", ["examples-00001.tfrecord.gz", "manifest.json"])
def test_a_full_disk(which, corpus, bert, written, tmp_path, monkeypatch):
    folder, manifest = written
    sync, syncs = os.fsync, []

    def full(descriptor):
        syncs.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if os.path.basename(syncs[-1]) == which:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"is full: '{which}' was not written. Free some space"):
        write(corpus, tmp_path, bert)
    monkeypatch.undo()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert which not in os.listdir(tmp_path)
    assert write(corpus, tmp_path, bert) == manifest and files(tmp_path) == files(folder)


def test_a_first_shard_is_never_alone(corpus, tmp_path, bert, monkeypatch):
    """Without a manifest, it would be read as records of another tool."""
    from kerasbert.data import examples

    real, writes = examples.write_manifest, []

    def stopped(*args):
        writes.append(args)
        if len(writes) == 2:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(examples, "write_manifest", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(corpus, tmp_path, bert)
    monkeypatch.undo()
    assert "examples-00000.tfrecord.gz" in os.listdir(tmp_path)
    with pytest.raises(ValueError, match="run `write_examples` again"):
        read_examples(str(tmp_path), 2)
    assert write(corpus, tmp_path, bert, seed=7)["complete"]  # No shard is recorded yet.


def test_rows_that_are_full(corpus, tmp_path, bert):
    """Sentences are cut: the same tokens in the same order, and no padding but in the last row."""
    settings = {"objective": "full_sentences", "sequence_length": 32, "workers": 1}
    whole, cut = (
        write(corpus, tmp_path / str(one), bert, **settings, cut_sentences=one)
        for one in (False, True)
    )
    assert "cut_sentences" not in whole["settings"] and cut["settings"]["cut_sentences"]
    lengths = [parsed(tmp_path / str(one))["input_mask"].sum(axis=1) for one in (False, True)]
    # Rows are in another order; a block has one last row.
    assert (lengths[1] < 32).sum() <= 0.02 * len(lengths[1]) + len(cut["shards"]) * 20
    assert lengths[0].mean() < 30 < lengths[1].mean() and len(lengths[1]) < len(lengths[0])
    # Only [CLS] and [SEP] of rows, and separators at their ends, are more or fewer.
    tokens = [(x - 2).sum() for x in lengths]
    assert abs(int(tokens[0]) - int(tokens[1])) <= whole["counts"]["documents"]
    with pytest.raises(ValueError, match="cut_sentences=True needs objective='full_sentences'"):
        write(corpus, tmp_path / "no", bert, cut_sentences=True)


# === Reading ===


def read(folder, batch_size=16, count=-1, **settings):
    """The first `count` batches, or all of them."""
    batches = read_examples(folder, batch_size, **{"repeat": False, **settings})
    return list(batches.take(count).as_numpy_iterator())


def same(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def rows_of(batches):
    """The rows of batches as sorted tuples, without padding and what is hidden anew."""
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

    # Other ones in the records, with another seed, and in the next epoch.
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
        assert maskable.dtype == tf.bool and seed.shape == (2,) and lengths.shape.rank == 1
        slots = tf.zeros_like(token_ids)[:, :2]
        zeros = {"mask_positions": slots, "mask_ids": slots}
        return {"token_ids": token_ids, **zeros, "mask_weights": tf.cast(slots, tf.float32)}

    x, y, _ = read(folder, 64, count=1, masker=none)[0]
    assert y["mlm_logits"].shape == (64, 2) and not (x["token_ids"] == MASK).any()
    # Whole words want the tokenizer.
    x, _, weights = read(folder, 64, count=1, masker={"unit": "word"}, tokenizer=bert)[0]
    assert weights["mlm_logits"].any()
    with pytest.raises(ValueError, match="unit='word' needs word boundaries; pass the `token"):
        read_examples(folder, 4, masker={"unit": "word"})
    with pytest.raises(ValueError, match="masker has the unknown setting 'rate'; use some of"):
        read_examples(folder, 4, masker={"rate": 0.3})
    with pytest.raises(ValueError, match="mask_selection_rate=2 must be a number"):
        read_examples(folder, 4, masker={"mask_selection_rate": 2})


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
        # A later start hides the same.
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
        # Keras seeds TensorFlow's generators: that must not matter.
        keras.utils.set_random_seed(start)
        return list(read_examples(folder, 50, start_step=start, **settings).take(count))

    unbroken = batches(0, steps + 3)
    for start in (1, steps // 3, steps // 2 + 1):
        for expected, batch in zip(unbroken[start:], batches(start, 2)):
            same(expected, batch)


@pytest.fixture(scope="module")
def rows_written(written):
    return rows_of(read(written[0], 64, masking="static", shuffle_buffer=0))


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
    """Also more processes than parts: 24 of a batch of 24, which at most 12 files are cut for."""
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
    # As many processes as there are go on anywhere.
    same(some((count - 1, count), 37, 1)[0], some((count - 1, count))[37])


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
        # What fills is spread, not left to the last.
        assert max(real) - min(real) <= 8
        later = read_examples(folder, 32, shard=shard, start_step=5, **settings)
        for expected, batch in zip(parts[5:], later.as_numpy_iterator(), strict=True):
            same(expected, batch)
    assert sorted(rows) == rows_of(read(folder, 64, masking="static", shuffle_buffer=0))


def test_a_process_reads_its_files_alone(many_shards, monkeypatch, tmp_path):
    folder, manifest = many_shards
    sizes = {shard["name"]: shard["bytes"] for shard in manifest["shards"]}
    checked = []
    monkeypatch.setattr(
        "kerasbert.data.example_batches.check_shards",
        lambda folder, shards, hashed: checked.extend(shard["name"] for shard in shards),
    )
    for index in range(2):
        checked.clear()
        read_examples(folder, 64, shard=(index, 2), masking="static")
        share = sum(sizes[name] for name in set(checked)) / sum(sizes.values())
        assert 0.4 < share < 0.7  # The first one tells the sizes of the rows.
    # Files of the others may be missing here.
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
    """A list of some, and a pattern of all of them, are not counted: the manifest has it."""
    folder, manifest = many_shards
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kerasbert.data.example_batches._look", None)
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
    """A file as the released code writes it, and its rows before tokens were hidden."""
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
        slots = tf.zeros_like(token_ids)[:, :2]
        zeros = {"mask_positions": slots, "mask_ids": slots}
        return {"token_ids": token_ids, **zeros, "mask_weights": tf.cast(slots, tf.float32)}

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
    # Without a manifest each file is gone through.
    plain = open(of_reference[0], "rb").read()
    for name, content in (
        ("cut.tfrecord", plain[:-5]),
        ("cut.tfrecord.gz", data[:-100]),
        ("no.tfrecord", b"It rains. " * 50),
        ("no.tfrecord.gz", b"It rains. " * 50),
        ("flipped.tfrecord", plain[:500] + bytes([plain[500] ^ 1]) + plain[501:]),
        # Sizes that no memory has.
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
        ("input_ids", [1] * (T - 1), "records that are not examples .*Key: input_ids"),
        ("masked_lm_positions", [T] * P, f"with masked_lm_positions from 0 to {T}"),
        ("next_sentence_labels", [2], "with next_sentence_labels from 0 to 2"),
        ("segment_ids", [7] * T, "with segment_ids from 0 to 7"),
        ("masked_lm_weights", [float("nan")] * P, "with masked_lm_weights of nan or inf"),
        ("masked_lm_weights", None, "records that are not examples .*masked_lm_weights"),
    ],
)
def test_damaged_records(name, value, message, tmp_path):
    """The second of two examples, in which the first is as it should be."""
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


def test_the_manifest_is_plain_json(written):
    folder, manifest = written
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        assert json.load(file) == manifest
    assert len(manifest["tokenizer"]["vocabulary_sha256"]) == 64
    assert manifest["settings"]["sequence_length"] == T and manifest["complete"]

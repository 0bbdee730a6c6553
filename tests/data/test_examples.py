"""From text to records: the published statistics, seeds, resuming, and bad input."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import real_data

from kerasbert.data import documents, read_examples, write_examples
from kerasbert.data.manifest import read_manifest
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
    T,
    files,
    parsed,
    restored,
    text_of,
    write,
)
from tests.data.test_sentence_pairs import compare_with_reference as pairs_with_reference
from tests.data.test_sentence_pairs import same_distribution

pytestmark = [
    pytest.mark.usefixtures("small_chunks"),
    pytest.mark.backends("tensorflow"),  # Examples are made without a backend.
]


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
    # Of the chosen tokens, 80% become masks, 10% stay, and 10% become any token, even special ones.
    hidden = weights.sum()
    error = 5 * 0.4 / np.sqrt(hidden)
    assert abs((columns[5].sum() / hidden) - 0.8 - 0.1 / vocabulary) < error
    assert abs((columns[6].sum() / hidden) - 0.1 - 0.1 / vocabulary) < error
    others = at[(weights > 0) & (at != mask) & (at != tokens)]
    drawn = np.bincount(others * 10 // vocabulary, minlength=10)
    assert (abs(drawn - len(others) / 10) < 5 * np.sqrt(len(others) / 10)).all()
    return others


def test_statistics_are_those_of_the_published_algorithm(corpus, bert, tmp_path):
    """About 17,000 examples of ours are compared with as many of the published algorithm."""
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

    Short sequences are turned off, because all 27 examples of a document would be short together.
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
    """`[CLS] A [SEP] B [SEP]`, padded, with the masked tokens at the given positions."""
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
    """Each text of a pair is a part of the corpus, and B follows A if the label says so."""
    folder, _ = written
    features = parsed(folder)
    text = "".join(
        f"{chr(1)}{''.join(chr(id) for sentence in bert.tokenize(document) for id in sentence)}"
        for document in documents(corpus)
    )
    for row, label in zip(restored(features)[:300], features["next_sentence_labels"][:, 0]):
        a, b = "".join(map(chr, row[1:])).split(chr(SEP))[:2]
        assert a in text and b in text
        if len(a) + len(b) < T - 3 and not label:  # Nothing was truncated.
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
    # When called again, it has nothing left to do.
    assert write(corpus, tmp_path, bert, progress=stop_after(0)) == manifest


@pytest.mark.slow
def test_a_killed_run_goes_on(corpus, bert, written, tmp_path):
    folder, manifest = written
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(bert.get_vocabulary()))
    script = (
        "import sys, time; from kerasbert.data import write_examples;"
        "from kerasbert.tokenizers import BertTokenizer;"
        "from kerasbert.data import text_files; text_files.CHUNK = 2000;"
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
    # The error names the option that splits it into several, also for files in a folder.
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
    # Text with one paragraph per line has next sentences.
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
    """Sentences are split between rows: the tokens stay in order, and only last rows are padded."""
    settings = {"objective": "full_sentences", "sequence_length": 32, "workers": 1}
    whole, cut = (
        write(corpus, tmp_path / str(one), bert, **settings, cut_sentences=one)
        for one in (False, True)
    )
    assert "cut_sentences" not in whole["settings"] and cut["settings"]["cut_sentences"]
    lengths = [parsed(tmp_path / str(one))["input_mask"].sum(axis=1) for one in (False, True)]
    # The order of the rows differs, and each block has one last row.
    assert (lengths[1] < 32).sum() <= 0.02 * len(lengths[1]) + len(cut["shards"]) * 20
    assert lengths[0].mean() < 30 < lengths[1].mean() and len(lengths[1]) < len(lengths[0])
    # The tokens of the texts are the same: only the numbers of [CLS], [SEP] and separators at the
    # ends of rows differ.
    tokens = [(x - 2).sum() for x in lengths]
    assert abs(int(tokens[0]) - int(tokens[1])) <= whole["counts"]["documents"]
    with pytest.raises(ValueError, match="cut_sentences=True needs objective='full_sentences'"):
        write(corpus, tmp_path / "no", bert, cut_sentences=True)


def test_the_manifest_is_plain_json(written):
    folder, manifest = written
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        assert json.load(file) == manifest
    assert len(manifest["tokenizer"]["vocabulary_sha256"]) == 64
    assert manifest["settings"]["sequence_length"] == T and manifest["complete"]


def test_translations(bert, tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [{"ko": "ba be bi", "en": "da de", "ja": ""}, {"ko": "", "en": "", "ja": "la le"}]
    rows += [{"ko": "bo", "en": "do", "ja": "lo"}, {"ko": None, "en": "", "ja": ""}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["en", "ja", "ko"]
    made = write_examples(
        path,
        tmp_path / "out",
        bert,
        sequence_length=12,
        objective="translation",
        workers=1,
        text_key=columns,
        mask_selection_rate=0.5,
    )
    assert made["counts"]["documents"] == 3 and made["counts"]["examples"] == 5
    read = read_examples(
        tmp_path / "out", 5, num_segments=3, masking="static", repeat=False, shuffle_buffer=0
    )
    x, y, weights = next(iter(read.as_numpy_iterator()))
    assert "nsp_logits" not in y
    row, slot = np.nonzero(weights["mlm_logits"])
    tokens = x["token_ids"].copy()
    tokens[row, x["mask_positions"][row, slot]] = y["mlm_logits"][row, slot]
    found = {}
    for ids, segments, mask in zip(tokens, x["segment_ids"], x["padding_mask"]):
        assert not segments[~mask].any()
        found[bert.detokenize(ids[mask].tolist())] = segments[mask].tolist()
    assert found == {
        "[CLS] da de [SEP] ba be bi [SEP]": [0, 0, 0, 0, 2, 2, 2, 2],
        "[CLS] la le [SEP]": [1, 1, 1, 1],
        "[CLS] do [SEP] lo [SEP]": [0, 0, 0, 1, 1],
        "[CLS] do [SEP] bo [SEP]": [0, 0, 0, 2, 2],
        "[CLS] lo [SEP] bo [SEP]": [1, 1, 1, 2, 2],
    }
    path.write_text(json.dumps({"ko": "ba", "en": "de"}) + "\n")
    with pytest.raises(ValueError, match="has the keys 'ko', 'en'; .* text_key .now 'ja'"):
        list(documents(path, text_key=columns))
    path = tmp_path / "pairs.tsv"
    path.write_text("ko\ten\nba\tda\nbe\t\n\t\n")
    assert list(documents(path, text_key=["en", "ko"])) == [["da", "ba"], ["", "be"]]
    with pytest.raises(ValueError, match="has the columns 'ko', 'en'; .* text_key .now 'fr'"):
        list(documents(path, text_key=["ko", "fr"]))
    with pytest.raises(ValueError, match="columns of at least two languages, got 'ko'"):
        write_examples(path, tmp_path / "b", bert, objective="translation", text_key="ko")

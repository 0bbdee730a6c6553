"""Small corpora, the folders of examples that are made from them, and their content."""

import os
import random

import numpy as np
import pytest

from kerasbert.data import write_examples
from kerasbert.tokenizers import BertTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{a}{b}" for a in "bcdfghklmn" for b in "aeiou"]
PIECES = [f"##{word}" for word in WORDS[:40]]
PAD, UNK, CLS, SEP, MASK = range(5)
T = 32
P = 5


@pytest.fixture(scope="module")
def small_chunks():
    """Read files in small chunks: the usual mebibyte exceeds the blocks of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kerasbert.data.text_files.CHUNK", 2000)
        yield


@pytest.fixture(scope="module")
def bert():
    return BertTokenizer(SPECIAL + WORDS + PIECES)


def text_of(num_documents, seed=0):
    """Return documents of mixed lengths, with an empty line after each."""
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
    """The folder and the manifest of the corpus's examples."""
    folder = tmp_path_factory.mktemp("written")
    return str(folder), write(corpus, folder, bert)


def files(folder):
    """Return the content of each file of a folder."""
    return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}


def parsed(folder, length=T, slots=5):
    """Parse all records of a folder as `run_pretraining` of google-research/bert does."""
    import tensorflow as tf

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
    """Return the ids before masking."""
    ids = features["input_ids"].copy()
    rows, slots = np.nonzero(features["masked_lm_weights"])
    ids[rows, features["masked_lm_positions"][rows, slots]] = features["masked_lm_ids"][rows, slots]
    return ids

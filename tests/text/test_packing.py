import functools

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from kerasbert.data import bucket_length
from kerasbert.preprocessors import BertPreprocessor
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import bert_tokenizer
from tests.peers import transformers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["[UNK]", "[CLS]", "[PAD]", "[SEP]", "[MASK]"]  # padding is not id 0
CLS, PAD, SEP = 1, 2, 3
VOCABULARY = [*SPECIAL, *LETTERS, "?", "."]


@keras.saving.register_keras_serializable(package="kerasbert_tests")
class TwoSeparators(BertTokenizer):
    num_separators = 2


@functools.cache
def make(separators=1, **kwargs):
    """Return each preprocessor once: tracing costs more than the tests do."""
    two = separators == 2
    tokenizer = TwoSeparators(VOCABULARY, lowercase=True) if two else bert_tokenizer(VOCABULARY)
    return BertPreprocessor(tokenizer, **kwargs)


def arrays(features):
    return keras.tree.map_structure(keras.ops.convert_to_numpy, features)


def text_of(ids):
    return " ".join(VOCABULARY[i] for i in ids)


# === The reference: one token at a time, as in the code of Devlin et al. ===


def truncate_pair(a, b, budget, truncate):
    a, b = list(a), list(b)
    # The `tokenizers` library has this strategy.
    if truncate == "longest_first" and len(a) + len(b) > budget:
        short, long = sorted([len(a), len(b)])
        kept = (short, budget - short) if 2 * short <= budget else (budget // 2, -(-budget // 2))
        kept = kept[::-1] if len(a) > len(b) else kept
        return a[: kept[0]], b[: kept[1]]
    while len(a) + len(b) > budget:
        if truncate == "round_robin":
            from_a = len(a) > len(b)
        else:
            loser, spared = (b, a) if truncate == "only_second" else (a, b)
            from_a = (loser if loser else spared) is a
        (a if from_a else b).pop()
    return a, b


def reference_row(segments, sequence_length, truncate, separators):
    if len(segments) == 1:
        a = list(segments[0])[: sequence_length - 2]
        return [CLS, *a, SEP], [0] * (len(a) + 2)
    a, b = truncate_pair(*segments, sequence_length - 2 - separators, truncate)
    ids = [CLS, *a, *[SEP] * separators, *b, SEP]
    return ids, [0] * (1 + len(a) + separators) + [1] * (len(b) + 1)


def reference(rows, sequence_length, truncate, separators):
    """Pack rows of one or two id lists to token_ids, segment_ids, padding_mask as lists."""
    rows = [reference_row(row, sequence_length, truncate, separators) for row in rows]
    longest = max(len(ids) for ids, _ in rows)
    width = min(bucket_length(longest), sequence_length)
    return (
        [ids + [PAD] * (width - len(ids)) for ids, _ in rows],
        [types + [0] * (width - len(types)) for _, types in rows],
        [[True] * len(ids) + [False] * (width - len(ids)) for ids, _ in rows],
    )


@pytest.mark.slow
@pytest.mark.parametrize("separators", [1, 2])
@pytest.mark.parametrize("truncate", ["longest_first", "round_robin", "only_second", "only_first"])
def test_pack_equals_the_reference(truncate, separators):
    random = np.random.default_rng(separators)
    cases = 0
    preprocessors = {}
    while cases < 1000:
        sequence_length = int(random.choice([4, 5, 8, 9, 33, 70, 140]))
        num_segments = int(random.integers(0, 3))
        key = sequence_length, num_segments
        if key not in preprocessors:
            preprocessors[key] = make(
                separators,
                sequence_length=sequence_length,
                truncate=truncate,
                num_segments=num_segments,
            )
        preprocessor = preprocessors[key]
        longest = int(random.choice([0, 3, 10, 2 * sequence_length]))
        columns = int(random.integers(1, 3))
        rows = [
            [
                random.integers(5, len(VOCABULARY), random.integers(0, longest + 1)).tolist()
                for _ in range(columns)
            ]
            for _ in range(random.integers(1, 40))
        ]
        segments = tuple(tf.ragged.constant(column, "int32", 1) for column in zip(*rows))
        features = preprocessor.pack(segments)
        ids, types, mask = reference(rows, sequence_length, truncate, separators)
        assert features["token_ids"].numpy().tolist() == ids
        assert features["padding_mask"].numpy().tolist() == mask
        assert preprocessor.packed_lengths(segments).numpy().tolist() == [sum(r) for r in mask]
        if num_segments == 0:
            assert "segment_ids" not in features
        elif num_segments == 1:
            assert not features["segment_ids"].numpy().any()
            assert features["segment_ids"].shape == features["token_ids"].shape
        else:
            assert features["segment_ids"].numpy().tolist() == types
        assert {value.dtype.name for value in features.values()} == {"int32", "bool"}
        cases += len(rows)


def test_pack_on_long_rows():
    preprocessor = make(sequence_length=1000, num_segments=2)
    for count in (14, 15, 510, 511, 600, 767, 998, 1200):
        ids = tf.ragged.constant([[7] * count, [8]], "int32", 1)
        expected, _, _ = reference([[[7] * count], [[8]]], 1000, "longest_first", 1)
        assert preprocessor.pack((ids,))["token_ids"].numpy().tolist() == expected


def test_aliases_of_keras_hub():
    a, b = ["a b c d e f"], ["g h i j k l"]
    first, second = (
        arrays(make(sequence_length=9, truncate=key)((a, b)))
        for key in ("waterfall", "only_second")
    )
    assert first["token_ids"].tolist() == second["token_ids"].tolist()
    packer = keras_hub.layers.MultiSegmentPacker(sequence_length=10, start_value=1, end_value=3)
    rows = [7] * 6, [8] * 6
    theirs = arrays(packer(rows)[0]).tolist()
    ours = make(sequence_length=10, truncate="round_robin")
    ours = ours.pack(tuple(tf.ragged.constant([row]) for row in rows))
    assert arrays(ours["token_ids"]).tolist() == [theirs]
    assert theirs.count(7) == 4 and theirs.count(8) == 3


@pytest.mark.peers
def test_pairs_are_truncated_as_in_transformers(tmp_path):
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] a b".split()
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    texts = [(m, n) for m in range(1, 14) for n in range(1, 14)]
    first, second = (["a " * m for m, _ in texts], ["b " * n for _, n in texts])
    for length in range(5, 14):
        ours = BertPreprocessor(bert_tokenizer(tokens), sequence_length=length)((first, second))
        found = theirs(first, second, truncation="longest_first", max_length=length)["input_ids"]
        rows = arrays(ours["token_ids"]).tolist()
        assert [row[: len(one)] for row, one in zip(rows, found)] == found


def test_bucket():
    preprocessor = make(sequence_length=100)
    assert [preprocessor.bucket(n) for n in (1, 16, 17, 64, 97)] == [8, 16, 24, 64, 100]
    for length in range(3, 101):
        assert preprocessor.bucket(tf.constant(length)).numpy() == preprocessor.bucket(length)
    assert make(sequence_length=8).bucket(tf.constant(3)).numpy() == 8

"""The features of words: the embedding of each word's first piece."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import real_data

from kerasbert.models import BertTextEmbedder, BertTextEmbedderPreprocessor
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import tiny_backbone
from tests.examples.test_examples import run

SCRIPT = Path(__file__).parents[2] / "examples" / "features_bilstm.py"
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] don ' t stop play ##ing ##ed café ( )".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("features_bilstm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.backends("tensorflow")
def test_word_vectors(example):
    preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(TOKENS), sequence_length=16)
    embedder = BertTextEmbedder(tiny_backbone(), preprocessor, pooling="tokens")
    sentences = [["don't", "stop", "playing"], ["café", "(odd)"], ["played"]]
    firsts = [[0, 3, 4], [0, 1], [0]]  # don ' t stop play ##ing; café ( [UNK] ); play ##ed
    features = example.word_vectors(embedder, sentences)
    assert features.shape == (3, 3, 16) and features.dtype == np.float32
    for row, words, places in zip(features, sentences, firsts, strict=True):
        tokens = embedder.embed(" ".join(words))
        expected = tokens[1 + np.array(places)]
        np.testing.assert_allclose(row[: len(words)], expected, atol=1e-6)
        assert not row[len(words) :].any()


@pytest.mark.backends("tensorflow")
def test_baseline_and_scores(example):
    train = [[("a", "x"), ("a", "y"), ("a", "y"), ("b", "x")], [("c", "x")]]
    test = [[("a", "y"), ("new", "x")], [("b", "y")]]
    guesses = example.most_frequent_tag(train, test)
    assert guesses == [["y", "x"], ["x"]]
    assert example.accuracy(guesses, test) == pytest.approx(2 / 3)
    assert example.accuracy(guesses, test, known={"a", "b"}) == 1


@pytest.mark.slow
def test_brown(example):
    real_data.or_skip(real_data.brown_tagged)
    train, test = example.brown(60, seed=0)
    assert (len(train), len(test)) == (60, 20)
    assert max(map(len, train)) <= example.LONGEST
    assert not any("-tl" in tag or "-hl" in tag for sentence in train for _, tag in sentence)


@pytest.mark.slow
def test_layers_beat_the_baseline():
    real_data.or_skip(real_data.brown_tagged)
    real_data.or_skip(real_data.minilm_dir)
    done = run("features_bilstm.py", "--sentences", 400, "--epochs", 6)
    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"^│ ([\w ]+?) +│ +[\d-]+ +│ (0\.\d+) +│ (0\.\d+) +│", done.stdout, re.MULTILINE
    )
    scores = {name: (float(all_words), float(new)) for name, all_words, new in rows}
    baseline = scores.pop("most frequent tag")
    assert len(scores) == 6
    for name in ("sum_last_four", "concat_last_four", "sum_all"):
        assert scores[name][0] > baseline[0] and scores[name][1] > baseline[1], scores

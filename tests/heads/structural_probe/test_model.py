"""Structural probes: contract, distances and loss compared with loops, sentences, training,
presets.
"""

import functools

import keras
import numpy as np
import pytest

from kerasbert.data import DependencyTree
from kerasbert.layers import StructuralProbe, WordMean
from kerasbert.lineage import ElmoBackbone
from kerasbert.losses import TreeLoss
from kerasbert.metrics import uuas
from kerasbert.models import BertStructuralProbe, BertStructuralProbePreprocessor
from tests.contracts import (
    MODEL_CHECKS,
    array,
    bert_tokenizer,
    model_contract,
    perturb,
    tiny_backbone,
)
from tests.data.test_trees import random_heads

pytestmark = pytest.mark.filterwarnings("error::UserWarning")

RANDOM = np.random.default_rng(0)
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the dog ##s bark at cat . sleep".split()
TOKENS += [f"w{i}" for i in range(30 - len(TOKENS))]
SENTENCES = [
    DependencyTree("the dogs bark".split(), (2, 3, 0)),
    DependencyTree("dogs bark at the cats .".split(), (2, 0, 5, 5, 2, 2)),
    DependencyTree(["sleep"], (0,)),
    DependencyTree("cats bark at dogs".split(), (2, 0, 4, 2)),
]


def make(family="bert", kind="distance", **settings):
    return perturb(
        BertStructuralProbe(tiny_backbone(family, **settings), kind=kind, layer=1, rank=5)
    )


def make_raw(kind="distance", sequence_length=16, **settings):
    tokenizer = bert_tokenizer(TOKENS)
    preprocessor = BertStructuralProbePreprocessor(tokenizer, sequence_length)
    return BertStructuralProbe(tiny_backbone(), preprocessor, kind, rank=8, **settings)


@pytest.fixture(scope="module")
def model():
    return perturb(make_raw(layer=1))


@pytest.fixture(scope="module")
def short():
    return make_raw(sequence_length=8)


@pytest.fixture(scope="module")
def depths():
    return make_raw("depth")


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("check", MODEL_CHECKS)
def test_contract_of_depths(check, tmp_path):
    check(functools.partial(make, "bert", "depth"), tmp_path)


def test_distances_and_depths():
    """As in the authors' `probe.py`: squared differences (distances) or squares (depths) of the
    projected embeddings.
    """
    words = RANDOM.normal(size=(2, 4, 6)).astype("float32")
    for kind in ("distance", "depth"):
        probe = StructuralProbe(kind, 3)
        found = array(probe(words))
        matrix = array(probe.projection)
        assert matrix.shape == (6, 3) and np.abs(matrix).max() <= 0.05 and matrix.std() > 0.01
        turned = words.astype("float64") @ matrix
        for row, expected in zip(found, turned):
            for i, a in enumerate(expected):
                if kind == "depth":
                    assert row[i] == pytest.approx((a**2).sum(), abs=1e-6)
                else:
                    expected_row = [((a - b) ** 2).sum() for b in expected]
                    np.testing.assert_allclose(row[i], expected_row, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 2])
def test_loss(rank):
    """As in the authors' `loss.py`: divided by the square of a sentence's length (distances), or by
    its length (depths).
    """
    lengths = (1, 3, 5)
    labels = np.full((3, *(5,) * rank), -1)
    for label, count in zip(labels, lengths):
        label[(slice(count),) * rank] = RANDOM.integers(0, 9, (count,) * rank)
    found = RANDOM.normal(size=labels.shape).astype("float32")
    total = 0.0
    for label, output, count in zip(labels, found, lengths):
        total += np.abs(output - label)[label != -1].sum() / count**rank
    assert float(array(TreeLoss()(labels, found))) == pytest.approx(total / 3, abs=1e-6)


def test_a_word_is_the_mean_of_its_pieces():
    x = RANDOM.normal(size=(2, 6, 4)).astype("float32")
    starts, counts = np.array([[1, 2, 0], [1, 4, 5]]), np.array([[1, 3, 0], [2, 1, 1]])
    found = array(WordMean()(x, starts=starts, counts=counts))
    for row, vectors, begins, sizes in zip(found, x, starts, counts):
        for word, begin, size in zip(row, begins, sizes):
            expected = vectors[begin : begin + size].mean(0) if size else np.zeros(4)
            np.testing.assert_allclose(word, expected, atol=1e-6)


def test_labels(short, depths):
    features, y = map(
        lambda part: keras.tree.map_structure(array, part),
        short.preprocessor(SENTENCES[:2], SENTENCES[:2]),
    )
    assert features["word_starts"][:, :6].tolist() == [[1, 2, 4, 0, 0, 0], [1, 3, 4, 5, 0, 0]]
    assert features["word_counts"][:, :6].tolist() == [[1, 2, 1, 0, 0, 0], [2, 1, 1, 1, 0, 0]]
    assert y[0, :4, :4].tolist() == [[0, 1, 2, -1], [1, 0, 1, -1], [2, 1, 0, -1], [-1] * 4]
    # In the second sentence, "cats", which has two pieces, and the period after it are truncated.
    assert y[1, 0].tolist() == [0, 1, 3, 3, -1, -1, -1, -1]
    y = depths.preprocessor([list(SENTENCES[1].words)], [SENTENCES[1].heads])[1]
    assert array(y)[0, :7].tolist() == [1, 0, 2, 2, 1, 1, -1]


def test_sentences_of_any_kind_are_read_alike(model):
    expected = model.predict(SENTENCES, verbose=0)
    assert [len(one) for one in expected] == [3, 6, 1, 4]
    as_words = model.predict([list(tree.words) for tree in SENTENCES], verbose=0)
    as_texts = model.predict([" ".join(tree.words) for tree in SENTENCES], verbose=0, batch_size=2)
    for one, words, texts in zip(expected, as_words, as_texts, strict=True):
        np.testing.assert_array_equal(words, one)
        np.testing.assert_allclose(texts, one, atol=1e-5)
    edges = model.parse(SENTENCES)
    assert [len(one) for one in edges] == [2, 5, 0, 3]
    assert model.parse(list(SENTENCES[0].words)) == model.parse("the dogs bark") == edges[0]


def test_outputs_are_of_the_layer():
    """Outputs are computed from the chosen layer. `fit` has no dropout: with a learning rate of
    zero, equal sentences have equal losses.
    """
    model = perturb(make_raw(layer=1))
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    features = keras.tree.map_structure(array, model.preprocessor(SENTENCES))
    states = model.backbone.feature_model()(
        {name: features[name] for name in ("token_ids", "segment_ids", "padding_mask")}
    )["hidden_states"][1]
    words = WordMean()(states, starts=features["word_starts"], counts=features["word_counts"])
    np.testing.assert_allclose(
        model.predict(features, verbose=0), array(model.probe(words)), atol=1e-5
    )
    assert model.backbone.dropout > 0
    losses = model.fit(SENTENCES, SENTENCES, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["distance", "depth"])
def test_training(kind):
    """The matrix memorizes sentences, and the encoder stays unchanged."""
    model = make_raw(kind, layer=0)
    trees = [
        DependencyTree([f"w{i}" for i in RANDOM.permutation(12)[:6]], random_heads(RANDOM, 6))
        for _ in range(3)
    ]
    before = [array(weight) for weight in model.backbone.weights]
    assert model.trainable_weights == [model.probe.projection]
    model.compile(keras.optimizers.Adam(0.03))
    history = model.fit(trees, trees, epochs=60, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    assert model.evaluate(trees, trees, verbose=0) < 0.5 * history[0]
    for weight, value in zip(model.backbone.weights, before, strict=True):
        np.testing.assert_array_equal(array(weight), value)
    if kind == "distance":
        assert uuas(trees, model.predict(trees, verbose=0)) > 0.8


def test_presets(model, tmp_path):
    model.save_to_preset(tmp_path / "preset")
    loaded = BertStructuralProbe.from_preset(str(tmp_path / "preset"))
    assert (loaded.layer, loaded.rank, loaded.probe.kind) == (1, 8, "distance")
    for one, other in zip(
        model.predict(SENTENCES, verbose=0), loaded.predict(SENTENCES, verbose=0)
    ):
        np.testing.assert_array_equal(one, other)


def test_a_new_probe_on_a_preset():
    name = "bert_tiny_demo_en_uncased"
    with pytest.warns(UserWarning, match="New, random weights.*: probe/projection"):
        probe = BertStructuralProbe.from_preset(name, layer=2, kind="depth", new_head=True)
    probe.compile(run_eagerly=True)
    assert probe.predict(["The dog barks."], verbose=0)[0].shape == (4,)
    with pytest.raises(ValueError, match="new_head=True"):
        BertStructuralProbe.from_preset(name)


def test_wrong_use(short, depths):
    model = short
    with pytest.raises(ValueError, match="layer=3 exceeds the encoder's 2 layers"):
        BertStructuralProbe(model.backbone, layer=3)
    with pytest.raises(ValueError, match="kind"):
        BertStructuralProbe(model.backbone, model.preprocessor, "edges")
    with pytest.raises(ValueError, match="position 1 has 8 subwords.*split it"):
        model.predict([SENTENCES[0], SENTENCES[1]])
    with pytest.raises(ValueError, match="2 sentences but 1 trees"):
        model.fit(SENTENCES[:2], SENTENCES[:1])
    with pytest.raises(ValueError, match="position 0 has 3 words, but its tree has 6"):
        model.fit(SENTENCES[:1], SENTENCES[1:2])
    with pytest.raises(ValueError, match="heads at position 0 are not a tree.*cycle"):
        model.fit(SENTENCES[:1], [[2, 1, 0]])
    with pytest.raises(ValueError, match="no labels"):
        model.fit(SENTENCES[:1])
    with pytest.raises(ValueError, match="where a list is needed"):
        model.predict(SENTENCES[0])
    with pytest.raises(ValueError, match="where a list is needed"):
        model.parse(SENTENCES[0])
    for wrong in (None, 3):
        with pytest.raises(ValueError, match="is not text"):
            model.parse(wrong)
    with pytest.raises(ValueError, match="position 0 are not a tree.*word 1, 'the', is 2.5"):
        model.fit([["the", "dog"]], [[2.5, 0]])
    words = SENTENCES[0].words
    assert model.parse([word.encode() for word in words]) == model.parse(iter(words))
    with pytest.raises(ValueError, match="a ElmoBackbone, but BertStruc"):
        BertStructuralProbe(ElmoBackbone(1, 4, 2, [(1, 2)]))
    with pytest.raises(ValueError, match="kind='depth'"):
        depths.parse("the dogs bark")

"""Attention: the encoder's attention weights, with the names of its tokens."""

import numpy as np
import pytest

from kerasbert import visualize
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from kerasbert.tokenizers import BertTokenizer

# Figures of values that every backend computes alike.
pytestmark = pytest.mark.backends("tensorflow")

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] cats play ##ed 東 , naive".split()


@pytest.fixture(scope="module")
def models():
    """An embedder of 8 tokens and a masked language model on one encoder."""
    backbone = BertBackbone(
        vocabulary_size=len(TOKENS), num_layers=2, num_heads=3, hidden_dim=6, intermediate_dim=4
    )
    tokenizer = BertTokenizer(TOKENS, lowercase=True)
    short = BertTextEmbedderPreprocessor(tokenizer, sequence_length=8)
    return (
        BertTextEmbedder(backbone, short),
        BertMaskedLM(backbone, BertMaskedLMPreprocessor(tokenizer, sequence_length=16)),
    )


def test_tokens_and_weights(models):
    embedder, _ = models
    tokens, weights = visualize.attention(embedder, ("Naïve  CATS", "Played, dogs"))
    # Truncated to 8 tokens, the longer text first.
    assert tokens == ["[CLS]", "Naïve", "CATS", "[SEP]", "Play", "##ed", ",", "[SEP]"]
    assert weights.shape == (2, 3, 8, 8)
    ids = np.array([[2, 10, 5, 3, 6, 7, 9, 3]])
    segments = np.array([[0, 0, 0, 0, 1, 1, 1, 1]])
    inside = embedder.backbone.feature_model(output_attentions=True)
    expected = inside({"token_ids": ids, "segment_ids": segments})["attentions"]
    np.testing.assert_allclose(weights, np.stack([np.asarray(x[0]) for x in expected]), atol=1e-6)


def test_padding_and_special_tokens_are_left_out(models):
    _, masked = models
    tokens, weights = visualize.attention(masked, "東, [MASK] dogs")
    assert tokens == ["[CLS]", "東", ",", "[MASK]", "[UNK]", "[SEP]"]
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    inner = visualize.attention(masked, "東, [MASK] dogs", special_tokens=False)
    assert inner.tokens == ["東", ",", "[MASK]", "[UNK]"] and inner.weights.shape == (2, 3, 4, 4)
    assert (inner.weights.sum(-1) < 1).all()
    with pytest.raises(ValueError, match="this BertBackbone does not have"):
        visualize.attention(masked.backbone, "cats")
    with pytest.raises(ValueError, match="or a pair of strings"):
        visualize.attention(masked, ["a", "b", "c"])


@pytest.fixture
def random_attention():
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 4))
    return visualize.Attention(["[CLS]", "東京", "##b", "$a$"], weights)


def test_map(random_attention):
    axes = visualize.attention_map(random_attention, layer=-1, head=2).axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), random_attention.weights[1, 2])
    assert [label.get_text() for label in axes.get_xticklabels()] == random_attention.tokens
    axes = visualize.attention_map(random_attention, layer=0).axes[0]
    np.testing.assert_allclose(
        axes.images[0].get_array(), random_attention.weights[0].mean(axis=0), rtol=1e-6
    )


def test_grid(random_attention):
    figure = visualize.attention_grid(random_attention, heads=[2, 0])
    shown = [axes.images[0].get_array() for axes in figure.axes]
    expected = random_attention.weights[:, [2, 0]].reshape(4, 4, 4)
    np.testing.assert_allclose(shown, expected)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["head 2", "head 0"]
    assert figure._repr_png_().startswith(b"\x89PNG")
    # Too many tokens to show their names.
    many = (["word"] * 200, np.full((1, 12, 200, 200), 1 / 200))
    figure = visualize.attention_grid(many)
    assert figure.get_figwidth() < 24
    assert not figure.axes[0].get_yticklabels()


def test_lines(random_attention):
    (axes,) = visualize.attention_lines(random_attention, layer=1, heads=2, token="##b").axes
    (lines,) = axes.collections
    alphas = lines.get_colors()[:, 3]
    np.testing.assert_allclose(alphas, random_attention.weights[1, 2, 2])
    assert [path[0].tolist() for path in lines.get_segments()] == 4 * [[0, 2]]
    (axes,) = visualize.attention_lines(random_attention).axes
    assert [len(lines.get_segments()) for lines in axes.collections] == [16, 16, 16]


def test_what_is_not_there_is_named(random_attention):
    for call, message in (
        (lambda a: visualize.attention_map(a, layer=2), "layer=2 .*the 2 are numbered from 0"),
        (lambda a: visualize.attention_map(a, head=-4), "head=-4 is out of range"),
        (lambda a: visualize.attention_map(a, layer=1.0), "layer=1.0 must be a whole number"),
        (lambda a: visualize.attention_grid(a, heads=[]), r"heads=\[\] leaves nothing"),
        (
            lambda a: visualize.attention_lines(a, token="rome"),
            "token='rome' is not among the tokens: ",
        ),
        (lambda a: visualize.attention_map((["a"], a.weights)), r"shape \(layers, heads, 1, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call(random_attention)

"""Losses of vectors: values and gradients against sentence-transformers', labels, wrong use."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import losses

pytestmark = pytest.mark.filterwarnings("error::UserWarning")
RANDOM = np.random.default_rng(0)
SCORES = RANDOM.random(6).astype("float32")
PAIR_LABELS = np.array([0, 1, 1, 0, 1, 0], "int32")
TEACHER = RANDOM.normal(size=(6, 3)).astype("float32")
# Ours, the class of sentence-transformers and its arguments, columns, labels.
PARITY = {
    "ranking": (losses.MultipleNegativesRanking(), "MultipleNegativesRankingLoss", {}, 2, None),
    "hard negatives": (
        losses.MultipleNegativesRanking(scale=5.0),
        "MultipleNegativesRankingLoss",
        {"scale": 5.0},
        4,
        None,
    ),
    "symmetric": (
        losses.MultipleNegativesRanking(symmetric=True),
        "MultipleNegativesRankingLoss",
        {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
        3,
        None,
    ),
    "cosent": (losses.CoSENT(), "CoSENTLoss", {}, 2, SCORES),
    "cosine": (losses.CosineRegression(), "CosineSimilarityLoss", {}, 2, SCORES),
    "contrastive": (losses.Contrastive(), "ContrastiveLoss", {}, 2, PAIR_LABELS),
    "triplet": (losses.Triplet(), "TripletLoss", {}, 3, None),
    "batch hard": (losses.BatchHardTriplet(), "BatchHardTripletLoss", {}, 1, PAIR_LABELS),
    "margin": (losses.MarginMSE(), "MarginMSELoss", {}, 4, TEACHER),
    "margin of one": (losses.MarginMSE(), "MarginMSELoss", {}, 3, SCORES),
    "distill": (losses.DistillKL(2.0), "DistillKLDivLoss", {"temperature": 2.0}, 4, TEACHER),
}


def value_and_gradient(loss, labels, vectors):
    """Of a loss by vectors: those of a table, which a step of descent at a rate of 1 moves."""
    shape = vectors.shape[1:]
    table = keras.layers.Embedding(len(vectors), int(np.prod(shape)))
    model = keras.Sequential([keras.Input(()), table, keras.layers.Reshape(shape)])
    table.set_weights([vectors.reshape(len(vectors), -1)])
    model.compile(keras.optimizers.SGD(1.0), loss)
    value = model.train_on_batch(np.arange(len(vectors)), labels)
    return float(value), vectors - ops.convert_to_numpy(table.embeddings).reshape(vectors.shape)


@pytest.mark.peers
@pytest.mark.parametrize("columns", [2, 4])
def test_sparse_equals_sentence_transformers(monkeypatch, columns):
    import torch
    from sentence_transformers.sparse_encoder import losses as theirs
    from sentence_transformers.sparse_encoder.losses import splade

    vectors = np.random.default_rng(1).normal(size=(6, columns, 8)).clip(0).astype("float32")
    parts = [torch.tensor(vectors[:, i], requires_grad=True) for i in range(columns)]
    monkeypatch.setattr(splade, "embed_columns", lambda *arguments, **settings: parts)
    model = torch.nn.Identity()
    inner = theirs.SparseMultipleNegativesRankingLoss(model)
    expected = sum(theirs.SpladeLoss(model, inner, 0.3, 0.5)([]).values())
    expected.backward()
    ours = losses.Sparse(losses.EmbeddingLoss(similarity="dot"), 0.5, 0.3)
    labels = np.full((6, columns), -1, "int32")
    value, gradient = value_and_gradient(ours, labels, vectors)
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)
    wanted = np.stack([part.grad.numpy() for part in parts], 1)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(ours))
    assert float(again(labels, vectors)) == pytest.approx(value)


def test_sparse_of_single_texts():
    """All are texts; queries count nothing."""
    vectors = np.array([[1.0, 0.0], [3.0, 2.0]], "float32")
    loss = losses.Sparse(losses.EmbeddingLoss(), query_weight=9.0, text_weight=0.5)
    assert float(loss(vectors, vectors)) == pytest.approx(0.5 * (4 + 1))
    metric = losses.ActiveWords()
    metric.update_state(None, np.stack([vectors, vectors], 1))
    assert float(metric.result()) == 1.5


@pytest.mark.peers
@pytest.mark.parametrize("name", PARITY)
def test_equals_sentence_transformers(name):
    import torch
    from sentence_transformers.sentence_transformer import losses as theirs

    ours, cls, arguments, columns, labels = PARITY[name]
    vectors = np.random.default_rng(1).normal(size=(6, columns, 8)).astype("float32")
    parts = [torch.tensor(vectors[:, i], requires_grad=True) for i in range(columns)]
    given = None if labels is None else torch.tensor(labels)
    expected = getattr(theirs, cls)(torch.nn.Identity(), **arguments)
    expected = expected.compute_loss_from_embeddings(parts, given)
    expected.backward()
    if columns == 1:
        vectors = vectors[:, 0]
    labels = np.full((6, columns), -1, "int32") if labels is None else labels
    value, gradient = value_and_gradient(ours, labels, vectors)
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)
    wanted = np.stack([part.grad.numpy() for part in parts], 1).reshape(vectors.shape)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(ours))
    assert float(again(labels, vectors)) == pytest.approx(value)

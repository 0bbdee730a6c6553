"""Losses on embeddings: values and gradients as in sentence-transformers, labels, misuse."""

from types import SimpleNamespace

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
# Our loss, the sentence-transformers class and its arguments, columns, labels.
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
    """Return a loss and its gradient for an embedding table, from a step of SGD at a rate of 1."""
    shape = vectors.shape[1:]
    table = keras.layers.Embedding(len(vectors), int(np.prod(shape)))
    model = keras.Sequential([keras.Input(()), table, keras.layers.Reshape(shape)])
    table.set_weights([vectors.reshape(len(vectors), -1)])
    model.compile(keras.optimizers.SGD(1.0), loss)
    value = model.train_on_batch(np.arange(len(vectors)), labels)
    return float(value), vectors - ops.convert_to_numpy(table.embeddings).reshape(vectors.shape)


def assert_equal(ours, labels, vectors, expected, parts):
    """Loss and gradients are PyTorch's, `expected`, and those of the saved and loaded loss."""
    expected.backward()
    columns = vectors.shape[1]
    if columns == 1:
        vectors = vectors[:, 0]
    labels = np.full((6, columns), -1, "int32") if labels is None else labels
    value, gradient = value_and_gradient(ours, labels, vectors)
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)
    wanted = np.stack([part.grad.numpy() for part in parts], 1).reshape(vectors.shape)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(ours))
    assert float(again(labels, vectors)) == pytest.approx(value)


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
    """Single texts all count as texts; the regularization of queries is 0."""
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
    assert_equal(ours, labels, vectors, expected, parts)


# --- embeddings of all layers ---

RANKING = losses.MultipleNegativesRanking()
# Our loss, the inner class of sentence-transformers, arguments of AdaptiveLayerLoss, columns,
# labels.
ADAPTIVE = {
    "uniform": (RANKING, "MultipleNegativesRankingLoss", {}, 3, None),
    "log": (losses.CoSENT(), "CoSENTLoss", {"layer_weighting": "log"}, 2, SCORES),
    "linear": (
        losses.BatchHardTriplet(),
        "BatchHardTripletLoss",
        {"layer_weighting": "linear", "kl_temperature": 0},
        1,
        PAIR_LABELS,
    ),
    "two dimensions": (
        losses.Matryoshka(losses.Triplet(), [8, 4]),
        "TripletLoss",
        {
            "last_layer_weight": 2.0,
            "prior_layers_weight": 0.5,
            "kl_div_weight": 3.0,
            "kl_temperature": 0.7,
        },
        3,
        None,
    ),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_layer_equals_sentence_transformers(name):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses as theirs
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    class Given(Transformer):
        """Texts of one token, with given layers."""

        def __init__(self):
            torch.nn.Module.__init__(self)
            self.model = torch.nn.Module()
            self.model.config = SimpleNamespace(output_hidden_states=False)

        def forward(self, features):
            layers = features["layers"].unbind(1)
            features |= {"all_layer_embeddings": layers, "token_embeddings": layers[-1]}
            return features

    ours, cls, arguments, columns, labels = ADAPTIVE[name]
    vectors = np.random.default_rng(1).normal(size=(6, columns, 4, 8)).astype("float32")
    parts = [torch.tensor(vectors[:, i, :, None], requires_grad=True) for i in range(columns)]
    model = SentenceTransformer(modules=[Given(), Pooling(8, "mean")], device="cpu")
    inner = getattr(theirs, cls)(model)
    if isinstance(ours, losses.Matryoshka):
        inner = theirs.MatryoshkaLoss(model, inner, ours.dims)
    expected = theirs.AdaptiveLayerLoss(model, inner, n_layers_per_step=-1, **arguments)
    features = [{"layers": part, "attention_mask": torch.ones(6, 1)} for part in parts]
    expected = expected(features, None if labels is None else torch.tensor(labels))
    assert_equal(losses.AdaptiveLayer(ours, -1, **arguments), labels, vectors, expected, parts)


@pytest.mark.slow_on_tensorflow
def test_drawn_layers():
    """One of three layers is drawn per step; all are drawn in turn, reproducibly by seed."""
    vectors = RANDOM.normal(size=(6, 2, 4, 8)).astype("float32")
    labels = np.full((6, 2), -1, "int32")
    each = [float(RANKING(labels, vectors[:, :, i])) for i in range(4)]
    drawn = []
    for _ in range(2):
        loss = losses.AdaptiveLayer(RANKING, 1, kl_temperature=0, seed=0)
        drawn.append([float(loss(labels, vectors)) - each[3] for _ in range(16)])
    assert drawn[0] == drawn[1]
    assert np.unique(np.round(drawn[0], 4)) == pytest.approx(sorted(each[:3]), abs=1e-3)
    two = losses.AdaptiveLayer(RANKING, 2, kl_temperature=0, seed=0)
    found = {round(float(two(labels, vectors)) - each[3], 3) for _ in range(16)}
    pairs = [(each[0] + each[1]) / 2, (each[0] + each[2]) / 2, (each[1] + each[2]) / 2]
    assert sorted(found) == pytest.approx(sorted(pairs), abs=2e-3)  # No layer is drawn twice.
    # Sample weights apply to the divergence too.
    loss = losses.AdaptiveLayer(losses.CosineRegression(), -1)
    half = loss(SCORES, vectors, np.array([1, 1, 1, 0, 0, 0]))
    assert float(half) * 2 == pytest.approx(float(loss(SCORES[:3], vectors[:3])), rel=1e-5)


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("make_wrong", "message"),
    [
        (lambda: losses.AdaptiveLayer(RANKING, 0), "n_layers_per_step=0"),
        (lambda: losses.AdaptiveLayer(RANKING, kl_temperature="x"), "kl_temperature='x'"),
        (lambda: losses.AdaptiveLayer(RANKING, layer_weighting="x"), "uniform, log, linear"),
        (lambda: losses.AdaptiveLayer("mse"), "loss='mse' .* kerasbert.losses"),
        (
            lambda: losses.Matryoshka(losses.AdaptiveLayer(RANKING), [2]),
            r"write AdaptiveLayer\(Matryoshka\(",
        ),
        (lambda: losses.AdaptiveLayer(RANKING)(np.ones(2), np.ones((2, 4))), "all layers"),
    ],
)
def test_wrong_use_of_adaptive_layer(make_wrong, message):
    with pytest.raises(ValueError, match=message):
        make_wrong()


# --- token embeddings ---

# Our losses, and PyLate 1.6's formula for the scores (B, N) or (B, B * N) and the teacher's.
LATE = {
    "Contrastive": losses.MultipleNegativesRanking(scale=1.0, similarity="maxsim"),
    "Distillation": losses.DistillKL(similarity="maxsim", normalize_scores=True),
    "margin": losses.MarginMSE(similarity="maxsim"),
}


def token_vectors(seed=2):
    """Return random vectors (B, C, T, D) of length 1, and zeros at the ends of some rows."""
    vectors = np.random.default_rng(seed).normal(size=(6, 4, 5, 8))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    for row in range(6):
        vectors[row, row % 4, 5 - row % 3 :] = 0
    return vectors.astype("float32")


@pytest.mark.peers
@pytest.mark.parametrize("name", LATE)
def test_late_interaction(name):
    import torch
    from torch.nn import functional as f

    vectors = token_vectors()
    given = torch.tensor(vectors, requires_grad=True)
    queries, texts = given[:, 0], given[:, 1:]
    # `colbert_scores` of all pairs; padding is ignored, while PyLate sets its products to 0.
    products = torch.einsum("ash,bnth->abnst", queries, texts)
    is_token = (texts != 0).any(-1)[None, :, :, None]
    scores = products.masked_fill(~is_token, -torch.inf).max(-1).values.sum(-1)  # (B, B, N)
    own = scores[torch.arange(6), torch.arange(6)]  # (B, N)
    teacher = torch.tensor(TEACHER)
    labels = TEACHER
    if name == "Contrastive":
        labels = np.full((6, 4), -1, "int32")
        expected = f.cross_entropy(scores.flatten(1), torch.arange(6) * 3)
    elif name == "Distillation":
        least, most = own.min(1, keepdim=True).values, own.max(1, keepdim=True).values
        logits = ((own - least) / (most - least + 1e-8)).log_softmax(-1)
        kl = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)
        expected = kl(logits, teacher.log_softmax(-1))
    else:
        margins = own[:, :1] - own[:, 1:]
        expected = f.mse_loss(margins, teacher[:, :1] - teacher[:, 1:])
    expected.backward()
    value, gradient = value_and_gradient(LATE[name], labels, vectors)
    assert value == pytest.approx(float(expected.detach()), rel=1e-6)
    # Zero vectors have no gradient, although their products may tie with others.
    there = (vectors != 0).any(-1, keepdims=True)
    np.testing.assert_allclose(gradient * there, given.grad.numpy() * there, rtol=1e-5, atol=1e-6)


def test_max_similarity():
    """The scores of each pair are the same without padding; zero vectors count neither in queries
    nor in texts.
    """
    vectors = token_vectors()
    # The 0 of padding would be the maximum.
    queries, texts = -np.abs(vectors[:, 0]), np.abs(vectors[:, 1])
    expected = [[max_of(q[q.any(1)] @ t[t.any(1)].T) for t in texts] for q in queries]
    found = ops.convert_to_numpy(losses.max_similarity(queries, texts))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    longer = np.pad(texts, ((0, 0), (0, 3), (0, 0)))
    again = ops.convert_to_numpy(losses.max_similarity(queries, longer))
    np.testing.assert_allclose(again, found, rtol=1e-6)
    # The metric is the mean over a query's tokens.
    pairs = np.stack([queries, texts], axis=1)
    count = queries.any(-1).sum(-1)
    mean = float(losses.MatchingCosine()(np.zeros((6, 2)), pairs))
    assert mean == pytest.approx((np.diag(found) / count).mean(), rel=1e-5)
    assert not ops.convert_to_numpy(losses.max_similarity(queries, 0 * texts)).any()


def max_of(products):
    return products.max(1).sum()


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("loss", "shape", "labels", "message"),
    [
        (losses.MultipleNegativesRanking(), (2, 2, 3, 4), None, "'maxsim' with pooling='tok"),
        (losses.CoSENT(), (2, 2, 3, 4), None, "one embedding per text, got one per token"),
        (losses.DistillKL(similarity="maxsim"), (2, 3, 4), None, "one embedding per token"),
        (
            losses.EmbeddingLoss(),
            (2, 2, 3, 4),
            np.ones(2, "float32"),
            "scores of pairs need one per text",
        ),
    ],
)
def test_vectors_of_another_kind(loss, shape, labels, message):
    labels = np.ones((2, 2), "float32") if labels is None else labels
    with pytest.raises(ValueError, match=message):
        loss(labels, np.ones(shape, "float32"))
    with pytest.raises(ValueError, match="use one of cosine, dot, maxsim"):
        losses.MarginMSE(similarity="max")

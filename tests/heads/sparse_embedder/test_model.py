"""The sparse embedder: contract, weights against NumPy and sentence-transformers, raw texts, `fit`.

N texts, V tokens of the vocabulary.
"""

import functools
import json

import keras
import numpy as np
import pytest
from scipy import sparse

import kerasbert
from kerasbert import losses
from kerasbert.models import (
    BertMaskedLM,
    BertSparseEmbedder,
    BertSparseEmbedderPreprocessor,
    BertTextEmbedder,
)
from tests.contracts import (
    array,
    assert_close,
    batch,
    bert_tokenizer,
    model_contract,
    perturb,
    tiny_backbone,
)

pytestmark = pytest.mark.filterwarnings(
    "error::UserWarning",
    # On PyTorch, Keras transposes the scales of int8 in this way.
    r"ignore:[\s\S]*The use of `x.T` on tensors:UserWarning",
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was it 좋 ##은 日 本".split()
TOKENS += [f"word{i}" for i in range(28 - len(TOKENS))]
TEXTS = ["good film", "a", "it was the bad bad bad bad film", "", "좋은 日本", "the film"]


def make(family="bert", **settings):
    return perturb(BertSparseEmbedder(tiny_backbone(family, **settings)))


def make_raw(**settings):
    preprocessor = BertSparseEmbedderPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    return perturb(
        BertSparseEmbedder(tiny_backbone(dropout=0.0, num_layers=1), preprocessor, **settings)
    )


@pytest.fixture(scope="module")
def model():
    return make_raw()


@pytest.fixture(scope="module")
def unread():
    return make()


@pytest.mark.slow
@model_contract("bert", without=("gpt", "gpt2", "modernbert_decoder"))
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


# --- values ---


@pytest.mark.parametrize("settings", [{}, {"pooling": "sum", "activation": "log1p_relu"}])
def test_weights_are_those_of_the_formula(unread, settings):
    model = BertSparseEmbedder(unread.backbone, **settings)
    masked = BertMaskedLM(unread.backbone)
    for one in (model, masked):
        one.mlm_head.set_weights(unread.mlm_head.get_weights())
    features = batch(model)
    logits = array(masked(features))  # (B, T, V)
    weights = np.log1p(np.maximum(logits, 0)) * features["padding_mask"][:, :, None]
    if settings:
        expected = np.log1p(weights).sum(axis=1)
    else:
        expected = weights.max(axis=1)
    assert 0.1 < (expected == 0).mean() < 0.9 or settings
    assert_close(model(features), expected)
    empty = {name: x[:1] for name, x in features.items()}
    empty["padding_mask"] = 0 * empty["padding_mask"]
    assert_close(model(empty), np.zeros((1, 30)), atol=0)


@pytest.mark.peers
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_equals_sentence_transformers(reference, tmp_path, family):
    """Read from their directory, and by them from ours."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    def vectors(encoder, inputs):
        given = {"input_ids": inputs["token_ids"], "attention_mask": inputs["padding_mask"]}
        with torch.no_grad():
            given = {name: torch.tensor(x, dtype=torch.long) for name, x in given.items()}
            return encoder.eval()(given)["sentence_embedding"].numpy()

    theirs = reference(family, "ForMaskedLM")
    modules = [Transformer(theirs.directory, transformer_task="fill-mask", max_seq_length=12)]
    modules += [SpladePooling("max" if family == "bert" else "sum", "log1p_relu")]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(tmp_path / "theirs"))
    ours = BertSparseEmbedder.from_preset(str(tmp_path / "theirs"), preprocessor=None)
    assert (ours.pooling, ours.activation) == (modules[1].pooling_strategy, "log1p_relu")
    inputs = {x: ids for x, ids in theirs.inputs(9).items() if x in ("token_ids", "padding_mask")}
    expected = vectors(SparseEncoder(str(tmp_path / "theirs"), device="cpu"), inputs)
    assert 0 < (expected == 0).mean() < 0.9
    assert_close(ours(inputs), expected)
    kerasbert.convert(ours, tmp_path / "ours", tokenizer=False)
    modules = [Transformer(str(tmp_path / "ours"), transformer_task="fill-mask")]
    modules += [SpladePooling.load(str(tmp_path / "ours"), subfolder="1_SpladePooling")]
    assert_close(ours(inputs), vectors(SparseEncoder(modules=modules, device="cpu"), inputs))


# --- raw texts ---


def test_embed_and_decode(model):
    vectors = model.embed(TEXTS)
    assert sparse.issparse(vectors) and vectors.dtype == "float32" and vectors.shape == (6, 30)
    assert_close(vectors.toarray(), model.predict(TEXTS, verbose=0))
    few = model.embed(TEXTS, top_k=3, batch_size=2)
    found, best = model.decode(vectors, top_k=3), model.decode(few)
    assert [len(row) for row in found] == [3] * 6
    for row, other, whole in zip(found, best, vectors.toarray(), strict=True):
        assert [word for word, _ in row] == [word for word, _ in other]
        order = [i for i in np.argsort(-whole) if i < len(TOKENS)]
        assert [word for word, _ in row] == [TOKENS[i] for i in order[:3]]
    single = model.embed("good film")
    assert single.shape == (1, 30)
    assert_close(single.toarray(), vectors[:1].toarray())
    assert model.decode(single)[0] == model.decode(single.toarray()[0])
    products = model.similarity(vectors, few)
    assert_close(products, vectors.toarray() @ few.toarray().T)
    assert_close(model.similarity(vectors.toarray(), few.toarray()), products)
    pairs = model.embed((["good"], ["bad film"]))
    assert pairs.shape == (1, 30)


@pytest.mark.parametrize("settings", [{}, {"pooling": "sum", "activation": "log1p_relu"}])
def test_shift_logits(settings):
    model = make_raw(**settings)
    model.compile(run_eagerly=True)
    masked = BertMaskedLM(model.backbone)
    masked.mlm_head.set_weights(model.mlm_head.get_weights())
    features = model.preprocessor(TEXTS)
    before = array(keras.ops.softmax(masked(features)))
    shifts = []
    for count in (3, 20, 1):
        shifts.append(model.shift_logits(TEXTS, active_words=count))
        assert (model.predict(TEXTS, verbose=0) > 0).sum() == count * len(TEXTS)
    assert shifts[1] > 0 > shifts[2]
    masked.mlm_head.set_weights(model.mlm_head.get_weights())
    assert_close(keras.ops.softmax(masked(features)), before)


def test_prompts(tmp_path):
    """They are read from sentence-transformers directories, and written there."""
    tokenizer = bert_tokenizer(TOKENS)
    prompts = {"query": "was ", "text": "it the "}
    preprocessor = BertSparseEmbedderPreprocessor(
        tokenizer, sequence_length=16, prompts=prompts, role="text"
    )
    backbone = tiny_backbone(dropout=0.0, num_layers=1, pooler=False)
    model = perturb(BertSparseEmbedder(backbone, preprocessor))
    model.compile(run_eagerly=True)
    expected = {role: model.embed(TEXTS, role=role).toarray() for role in (None, "query", "text")}
    plain = BertSparseEmbedder(
        model.backbone, BertSparseEmbedderPreprocessor(tokenizer, sequence_length=16)
    )
    plain.mlm_head.set_weights(model.mlm_head.get_weights())
    plain.compile(run_eagerly=True)
    for role, prompt in {None: "it the ", **prompts}.items():
        found = plain.embed([prompt + text for text in TEXTS]).toarray()
        assert_close(expected[role], found)
        assert_close(model.predict(TEXTS, role=role, verbose=0), found)
    assert np.abs(expected["query"] - expected["text"]).max() > 0.01
    kerasbert.convert(model, tmp_path / "there")
    with open(tmp_path / "there" / "config_sentence_transformers.json") as file:
        config = json.load(file)
    assert config["prompts"] == {"query": "was ", "document": "it the "}
    assert (config["model_type"], config["default_prompt_name"]) == ("SparseEncoder", "document")
    again = BertSparseEmbedder.from_preset(tmp_path / "there")
    again.compile(run_eagerly=True)
    assert (again.preprocessor.prompts, again.preprocessor.role) == (prompts, "text")
    assert_close(again.embed(TEXTS, role="query").toarray(), expected["query"], atol=1e-5)


def test_wrong_use(model, unread, tmp_path):
    backbone = model.backbone
    silent = BertSparseEmbedder(backbone, model.preprocessor, output_bias=False)
    for call, message in (
        (lambda: model.embed(TEXTS, top_k=0), "top_k=0 must be a whole number of at least 1"),
        (lambda: model.decode(np.ones((2, 9))), r"vectors \(N, 30\) .* shape \(2, 9\)"),
        (lambda: model.similarity(model.embed(TEXTS), np.ones((2, 9))), "widths 30 and 9"),
        (lambda: unread.decode(np.ones((1, 30))), "has no preprocessor"),
        (lambda: unread.embed("a"), "has no preprocessor"),
        (
            lambda: BertSparseEmbedder(backbone, pooling="mean"),
            "pooling='mean' is unknown; use one of max, sum",
        ),
        (
            lambda: BertSparseEmbedder(backbone, activation="gelu"),
            "'gelu' is unknown; use one of relu, log1p_relu",
        ),
        (lambda: kerasbert.SearchIndex(model), "is a BertSparseEmbedder; an index takes dense"),
        (
            lambda: kerasbert.SearchIndex(None).search_vectors(model.embed(TEXTS)),
            "The vectors are sparse; an index takes dense",
        ),
        (lambda: model.shift_logits(TEXTS, 30), "active_words=30 must be below .* 30"),
        (lambda: unread.shift_logits(TEXTS, 2), "has no preprocessor"),
        (
            lambda: silent.shift_logits(TEXTS, 2),
            "this head has none; .* output_bias=True",
        ),
        (lambda: losses.Sparse("mse"), "loss='mse' .* kerasbert.losses"),
        (lambda: losses.Sparse(losses.CoSENT(), -1.0), "query_weight=-1.0 must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    BertTextEmbedder(backbone).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="has no head for a BertSparseEmbedder; pass new_head"):
        BertSparseEmbedder.from_preset(tmp_path)


@pytest.mark.backends("torch")
def test_learns_from_pairs_with_few_words(tmp_path):
    model = make_raw()
    queries = ["good", "bad", "film", "좋은"] * 2
    passages = ["a film", "word1 the", "was it", "日本"] * 2
    assert isinstance(model.loss, losses.Sparse)
    loss = losses.Sparse(losses.EmbeddingLoss(similarity="dot"), 0.01, 0.01)
    model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=model.default_metrics())
    history = model.fit((queries, passages), epochs=30, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["active_words"][-1] < history["active_words"][0]
    # Equal texts count as one; the right passage is the best of four.
    scores = model.similarity(*map(model.embed, (queries[:4], passages[:4])))
    assert (scores.argmax(axis=1) == np.arange(4)).all()
    model.save_to_preset(tmp_path / "preset")
    again = BertSparseEmbedder.from_preset(tmp_path / "preset")
    assert_close(again.embed(queries).toarray(), model.embed(queries).toarray(), atol=1e-6)


def test_labels_may_be_sparse(model):
    labels = sparse.csr_array(np.eye(3, dtype="float32"))
    assert_close(model.preprocessor(TEXTS[:3], labels)[1], np.eye(3), atol=0)

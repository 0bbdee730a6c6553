"""The embedder: contract, layers and poolings compared with NumPy, raw texts, training, presets."""

import contextlib
import functools
import warnings

import keras
import keras_hub
import numpy as np
import pytest

from kerasbert import losses
from kerasbert.backend.tensorflow import tf
from kerasbert.heads.text_embedder.pooling import LAYERS
from kerasbert.models import (
    BertBackbone,
    BertSparseEmbedder,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from tests.contracts import (
    ENCODERS,
    array,
    assert_close,
    batch,
    bert_tokenizer,
    check_bfloat16,
    check_preprocessor,
    check_roundtrip,
    model_contract,
    perturb,
    tiny_backbone,
)

# Warnings of Keras would annoy users.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
TEXTS = ["good film", "a", "it was very very very very dull", "bad", "the fun film was a film"]


def make(family="bert", pooling="mean", layers="scalar_mix", normalize=False, **settings):
    # With normalized embeddings, the gradient of the mix's scale would be 0.
    backbone = tiny_backbone(family, **settings)
    return perturb(BertTextEmbedder(backbone, None, pooling, layers, normalize))


# Encoders that no test changes.
encoder = functools.cache(tiny_backbone)


@functools.cache
def make_preprocessor():
    return BertTextEmbedderPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)


def make_raw(**settings):
    return BertTextEmbedder(tiny_backbone(dropout=0.0), make_preprocessor(), **settings)


# Embedders that no test changes.
raw = functools.cache(make_raw)


def numpy_layers(states, layers):
    """Combine hidden states [(B, T, D)], embeddings first, by the setting `layers`."""
    return {
        "embeddings": lambda: states[0],
        "second_to_last": lambda: states[-2],
        "last": lambda: states[-1],
        "sum_last_four": lambda: states[-1] + states[-2] + states[-3] + states[-4],
        "concat_last_four": lambda: np.concatenate(states[-4:], axis=-1),
        "sum_all": lambda: np.sum(states[1:], axis=0),
    }[layers]()


def numpy_pooling(x, mask, pooling):
    """Pool x (B, T, D') with a mask (B, T) to (B, D')."""
    rows = [row[keep > 0] for row, keep in zip(x, mask, strict=True)]
    return np.stack(
        [{"cls": row[0], "mean": row.mean(0), "max": row.max(0)}[pooling] for row in rows]
    )


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


def test_preprocessor_contract(tmp_path):
    vectors = np.arange(8.0).reshape(4, 2).tolist()
    check_preprocessor(make_preprocessor(), TEXTS[:4], vectors, tmp_path)


# --- values ---


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ENCODERS)
def test_layers_equal_transformers(reference, family):
    import torch

    # ALBERT's layers share weights; ModernBERT already has four.
    sizes = {"distilbert": {"n_layers": 4}}.get(family, {"num_hidden_layers": 4})
    theirs = reference(family, **sizes)
    inputs = theirs.inputs(13)
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names["segment_ids"] = "token_type_ids"
    with torch.no_grad():
        states = theirs.model(
            **{names[name]: torch.tensor(x).long() for name, x in inputs.items()},
            output_hidden_states=True,
        ).hidden_states
    states = [state.numpy() for state in states]
    mask = inputs["padding_mask"]
    backbone = BertBackbone.from_preset(theirs.directory)
    inputs = {name: x for name, x in inputs.items() if name in backbone.input}
    for layers in LAYERS:
        tokens = BertTextEmbedder(backbone, pooling="tokens", layers=layers)
        if layers == "scalar_mix":
            scalars = np.array([0.5, -1.0, 2.0, 0.0, 1.0], "float32")
            tokens.scalar_mix.set_weights([scalars, np.float32(1.7)])
            shares = np.exp(scalars) / np.exp(scalars).sum()
            expected = 1.7 * sum(share * state for share, state in zip(shares, states, strict=True))
        else:
            expected = numpy_layers(states, layers)
        # Sums have larger values than their terms.
        scale = max(1.0, np.abs(expected).max() / np.abs(states[-1]).max())
        expected = expected * mask[:, :, None]
        assert np.abs(array(tokens(inputs)) - expected).max() <= 1e-5 * scale, layers
    pooled = array(BertTextEmbedder(backbone, layers="second_to_last", pooling="max")(inputs))
    assert np.abs(pooled - numpy_pooling(states[-2], mask, "max")).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize(
    "pooling", ["mean", "cls", "max", ["max", "cls", "mean"], "pooler", "tokens"]
)
def test_poolings(pooling, tmp_path):
    backbone = encoder()
    embedder = BertTextEmbedder(backbone, pooling=pooling)
    features = batch(embedder)
    mask = features["padding_mask"]
    outputs = backbone(features)
    states = array(outputs["sequence_output"])
    if pooling == "pooler":
        expected = array(outputs["pooled_output"])
    elif pooling == "tokens":
        expected = states * mask[:, :, None]
    else:
        modes = [pooling] if isinstance(pooling, str) else pooling
        expected = np.concatenate([numpy_pooling(states, mask, mode) for mode in modes], axis=-1)
    assert_close(embedder(features), expected)
    # A list of modes covers each single mode.
    if isinstance(pooling, list) or pooling in ("pooler", "tokens"):
        assert_close(embedder.predict(features, verbose=0), expected)
        check_roundtrip(embedder, features, tmp_path)

    length = np.linalg.norm(expected, axis=-1, keepdims=True)
    unit = BertTextEmbedder(backbone, pooling=pooling, normalize=True)
    assert_close(unit(features), expected / np.where(length > 0, length, 1.0))

    # More padding, with any ids, changes nothing; a row of only padding gives no NaN.
    longer = {name: np.pad(value, ((0, 0), (0, 4))) for name, value in features.items()}
    longer["token_ids"] = longer["token_ids"] + (longer["padding_mask"] == 0)
    found = array(unit(longer))
    if pooling == "tokens":
        assert not found[longer["padding_mask"] == 0].any()
        found = found[:, : mask.shape[1]]
    assert_close(found, unit(features))
    assert np.isfinite(array(unit({**features, "padding_mask": 0 * mask}))).all()


@pytest.mark.backends("torch")
def test_what_is_not_needed_is_not_computed():
    backbone = tiny_backbone(num_layers=4)
    expected = {"embeddings": 0, "second_to_last": 3, "last": 4, "sum_all": 4}
    for layers, blocks in expected.items():
        embedder = BertTextEmbedder(backbone, layers=layers)
        assert sum(layer in embedder.layers for layer in backbone.transformer_layers) == blocks
        assert not any("pooled_dense" in weight.path for weight in embedder.weights)


@pytest.mark.backends("tensorflow", "torch")
def test_half_precision_is_pooled_in_float32(tmp_path):
    def of_four(pooling, layers, **settings):
        return BertTextEmbedder(encoder(num_layers=4, **settings), None, pooling, layers)

    for pooling, layers in (("tokens", "concat_last_four"), ("max", "sum_all"), ("pooler", "last")):
        check_bfloat16(functools.partial(of_four, pooling, layers), tmp_path)


# --- raw texts ---


@pytest.mark.backends("tensorflow", "torch")
def test_embed():
    embedder = raw(normalize=True)
    vectors = embedder.embed(TEXTS, batch_size=2)
    assert vectors.shape == (5, 16) and vectors.dtype == np.float32
    features = embedder.preprocessor(TEXTS)
    assert_close(vectors, embedder(features))  # in the given order
    backwards = embedder.embed(TEXTS[::-1], batch_size=2)
    np.testing.assert_allclose(backwards, vectors[::-1], atol=1e-6)
    np.testing.assert_allclose(embedder.embed(TEXTS[1]), vectors[1], atol=1e-6)
    assert np.abs(vectors - vectors[0]).max(axis=1)[1:].min() > 1e-3
    # Pairs: two columns, a list of pairs, a single pair.
    pairs = embedder.embed((TEXTS, TEXTS[1:] + TEXTS[:1]))
    assert np.abs(pairs - vectors).max() > 1e-3
    rows = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
    np.testing.assert_allclose(embedder.embed(rows), pairs, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(rows[0]), pairs[0], atol=1e-6)
    np.testing.assert_allclose(embedder.predict(TEXTS, verbose=0), vectors, atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["mean", "tokens"])
def test_predict_takes_what_keras_takes(pooling, capsys):
    embedder = make_raw(pooling=pooling)
    seen = []
    callback = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda i, logs: seen.append(i))
    embedder.predict(["good", "bad", "fun"], batch_size=2, verbose=0, callbacks=[callback])
    assert seen == [0, 1] and capsys.readouterr().out == ""
    embedder.predict(["good", "bad", "fun"], batch_size=2, verbose=1)
    assert "2/2" in capsys.readouterr().out
    with pytest.raises(TypeError, match="verbos"):
        embedder.predict(["good"], verbos=0)


@pytest.mark.backends("tensorflow", "torch")
def test_embed_tokens():
    embedder = raw(pooling="tokens")
    rows = embedder.embed(TEXTS, batch_size=2)
    assert [len(row) for row in rows] == [len(text.split()) + 2 for text in TEXTS]
    states = array(embedder.backbone(embedder.preprocessor(TEXTS))["sequence_output"])
    for row, expected in zip(rows, states, strict=True):
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, expected[: len(row)], atol=1e-5)
    np.testing.assert_allclose(embedder.embed(TEXTS[1]), rows[1], atol=1e-6)
    padded = embedder.predict(TEXTS, batch_size=2, verbose=0)
    assert padded.shape == (5, 9, 16)
    for row, vectors in zip(rows, padded, strict=True):
        # The third occurrence of a shape gets its own graph, which may round differently.
        np.testing.assert_allclose(vectors[: len(row)], row, atol=1e-6)
        assert not vectors[len(row) :].any()


@pytest.mark.backends("tensorflow", "torch")
def test_many_texts():
    embedder = make_raw(layers="embeddings")
    random = np.random.default_rng(0)
    few = [" ".join(random.choice(TOKENS[5:], n)) for n in random.integers(1, 14, 50)]
    vectors = embedder.embed(few * 50, batch_size=256)
    assert vectors.shape == (2500, 16)
    expected = array(embedder(embedder.preprocessor(few)))
    np.testing.assert_allclose(vectors, np.tile(expected, (50, 1)), atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
def test_a_part_of_another_model():
    """Siamese training: one embedder on two inputs, and its scalar mix learns too."""
    embedder = make(normalize=True, num_layers=1, dropout=0.0)
    names = list(embedder.input)
    sides = [
        {name: keras.Input((None,), dtype="int32", name=f"{name}_{side}") for name in names}
        for side in "ab"
    ]
    cosine = keras.layers.Dot(axes=-1)([embedder(side) for side in sides])
    model = keras.Model(sides, cosine)
    model.compile("adam", "mse", run_eagerly=True)
    before = array(embedder.scalar_mix.scalars)
    features = [batch(embedder, seed=seed) for seed in (1, 2)]
    losses = [float(model.train_on_batch(features, np.ones((3, 1)))) for _ in range(3)]
    assert losses[-1] < losses[0]
    assert np.abs(array(embedder.scalar_mix.scalars) - before).min() > 0


@pytest.mark.backends("torch")
def test_fit_toward_given_vectors():
    """`fit` needs no custom loss for given embeddings, such as those of a teacher."""
    student = make_raw(layers="second_to_last", pooling="cls")
    vectors = np.random.default_rng(0).normal(size=(5, 16)).astype("float32")
    student.optimizer.learning_rate = 0.01
    first = student.evaluate(TEXTS, vectors, verbose=0, return_dict=True)
    np.testing.assert_allclose(
        first["loss"], np.mean((student.embed(TEXTS) - vectors) ** 2), rtol=1e-4
    )
    student.fit(TEXTS, vectors, epochs=15, batch_size=5, verbose=0)
    last = student.evaluate(TEXTS, vectors, verbose=0, return_dict=True)
    assert last["loss"] < first["loss"] / 2 and last["cosine"] > first["cosine"]


# --- training on compared texts ---

MANY = [*TEXTS, "fun"] * 3
OTHERS = ["the good film", "a film", "dull", "very bad", "fun", "the film was fun"] * 3
# Arguments of `fit` besides `x`: the columns that the loss gets, and the loss.
COMPARED = {
    "pairs": ((MANY, OTHERS), None, losses.MultipleNegativesRanking()),
    "triples": ((MANY, OTHERS, OTHERS[::-1]), None, losses.MultipleNegativesRanking()),
    "scores": ((MANY, OTHERS), np.linspace(0, 1, len(MANY)), losses.CoSENT()),
    "yes or no": ((MANY, OTHERS), [0, 1] * 9, losses.Contrastive()),
    "classes": (MANY, ["x", "y", "z"] * 6, losses.BatchHardTriplet()),
}


def numbers_of(columns):
    texts = {}
    return np.array([[texts.setdefault(text, len(texts)) for text in c] for c in columns]).T


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", COMPARED)
def test_fit_on_what_is_compared(name):
    x, y, loss = COMPARED[name]
    embedder = make_raw()
    embedder.optimizer.learning_rate = 0.01
    columns = x if isinstance(x, tuple) else (x,)
    vectors = np.stack([embedder.embed(column) for column in columns], axis=1)
    labels = numbers_of(columns) if y is None else y
    if name == "classes":
        vectors, labels = vectors[:, 0], np.arange(len(MANY)) % 3
    first = embedder.evaluate(x, y, batch_size=len(MANY), verbose=0)[0]
    assert first == pytest.approx(float(loss(np.asarray(labels), vectors)), abs=1e-5)
    embedder.fit(x, y, epochs=6, batch_size=9, verbose=0)
    assert embedder.evaluate(x, y, batch_size=len(MANY), verbose=0)[0] < first
    assert embedder.predict(MANY, verbose=0).shape == (len(MANY), 16)


@pytest.mark.backends("torch")
def test_a_text_and_itself():
    """SimCSE: without dropout, a text has the highest similarity to itself."""
    embedder = make_raw()
    logs = embedder.evaluate(sorted(set(MANY)), verbose=0, return_dict=True)
    assert logs["cosine"] == pytest.approx(1.0, abs=1e-6)
    embedder.fit(MANY, batch_size=9, verbose=0, validation_split=0.5)
    # Several kinds of labels in turn, in one model.
    embedder.fit((MANY, OTHERS), [0, 1] * 9, verbose=0, validation_data=((TEXTS, TEXTS),))
    embedder.fit(MANY, np.ones((18, 16)), verbose=0)


@pytest.mark.backends("torch")
def test_columns_may_be_generators():
    columns = tuple(iter(column) for column in COMPARED["pairs"][0])
    history = make_raw().fit(columns, batch_size=9, verbose=0).history
    assert history["loss"][0] > 0


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["triples", "classes", "all layers"])
def test_in_chunks(name, tmp_path):
    """Chunks need the memory of a few rows and give the results of a whole batch, also after saving
    and loading.
    """
    x, y, _ = COMPARED["pairs" if name == "all layers" else name]
    found = []
    for size in (None, 4):
        keras.utils.set_random_seed(0)
        embedder = make_raw()
        loss = "auto"
        if name == "all layers":
            loss = losses.AdaptiveLayer(losses.EmbeddingLoss(), -1, layer_weighting="log")
        embedder.compile(keras.optimizers.SGD(0.1), loss, chunk_size=size)
        found.append([float(embedder.train_on_batch(x, y)[0]) for _ in range(2)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[0][1] < found[0][0]
    embedder.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.chunk_size == 4
    assert again.train_on_batch(x, y)[0] == pytest.approx(
        embedder.train_on_batch(x, y)[0], rel=1e-5
    )
    with pytest.raises(ValueError, match="chunk_size=0"):
        embedder.compile(chunk_size=0)


# --- embeddings of all layers ---


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "settings",
    [{}, {"family": "modernbert", "projection_dim": 3}, {"pooling": ["max", "cls"]}],
    ids=["bert", "norms and a projection", "poolings"],
)
def test_a_cut_embedder_gives_what_its_layer_gave(settings):
    """The loss of a model truncated by `with_layers` is the loss that `AdaptiveLayer` computes for
    that layer.
    """
    settings = dict(settings)
    backbone = tiny_backbone(settings.pop("family", "bert"), num_layers=3, dropout=0.0)
    embedder = perturb(BertTextEmbedder(backbone, normalize=True, **settings))
    columns = [batch(backbone, seed=seed) for seed in (0, 1)]
    models = [embedder.with_layers(range(count)) for count in (1, 2, 3)]
    cut = [np.stack([model.predict(c, verbose=0) for c in columns], 1) for model in models]
    inner = losses.MultipleNegativesRanking(scale=5.0)
    labels = np.full((len(cut[0]), 2), -1, "int32")
    for weights in ((1.0, 0.0), (0.0, 1.0)):
        loss = losses.AdaptiveLayer(inner, -1, *weights, kl_temperature=0)
        embedder.compile(loss=loss, run_eagerly=True)
        found = embedder.test_on_batch(tuple(columns), return_dict=True)
        each = [float(inner(labels, vectors)) for vectors in cut]
        if weights[0]:
            assert found["loss"] == pytest.approx(each[2], rel=1e-4)
            continue
        # The embeddings, layer 0, are not an embedder of `with_layers`.
        first = BertTextEmbedder(backbone, normalize=True, **settings, layers="embeddings")
        if first.projection is not None:
            first.projection.set_weights(embedder.projection.get_weights())
        zeroth = np.stack([first.predict(c, verbose=0) for c in columns], 1)
        expected = np.mean([float(inner(labels, zeroth)), *each[:2]])
        assert found["loss"] == pytest.approx(expected, rel=1e-4)
    cosines = (cut[2][:, 0] * cut[2][:, 1]).sum(-1)
    assert found["cosine"] == pytest.approx(cosines.mean(), abs=1e-4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ["pairs", "classes"])
def test_adaptive_layer(name):
    """Raw texts with and without labels; earlier layers' embeddings stay inside `fit`."""
    x, y, _ = COMPARED[name]
    embedder = make_raw()
    loss = losses.AdaptiveLayer(losses.Matryoshka(losses.EmbeddingLoss(), [16, 4]), seed=1)
    embedder.compile(keras.optimizers.SGD(0.1), loss)
    state = array(loss.seed_generator.state).tolist()
    fitted = embedder.fit(x, y, epochs=3, batch_size=9, verbose=0).history["loss"]
    assert fitted[2] < fitted[0]
    # One draw per step.
    assert array(loss.seed_generator.state).tolist() == [state[0], state[1] + 6]
    assert embedder.embed(TEXTS).shape == (5, 16)
    assert embedder(batch(embedder.backbone), training=True).shape == (3, 16)
    embedder.compile(run_eagerly=True)  # The usual loss only gets the last layer.
    assert embedder.test_on_batch(x, y)[0] < fitted[2]


@pytest.mark.backends("jax", "torch")
def test_adaptive_layer_in_a_remat_scope():
    found = []
    for scope in (contextlib.nullcontext(), keras.RematScope("full")):
        with scope:
            embedder = BertTextEmbedder(tiny_backbone(dropout=0.0))
            embedder.compile(loss=losses.AdaptiveLayer(losses.MultipleNegativesRanking(), -1))
        columns = tuple(batch(embedder.backbone, seed=seed) for seed in (0, 1))
        found.append(float(embedder.train_on_batch(columns)[0]))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_adaptive_layer_in_half_precision(dtype):
    """Embeddings and losses are float32."""
    found = []
    for kind in ("float32", dtype):
        keras.utils.set_random_seed(0)
        embedder = BertTextEmbedder(tiny_backbone(dropout=0.0, dtype=kind))
        embedder.compile(loss=losses.AdaptiveLayer(losses.MultipleNegativesRanking(scale=1.0), -1))
        columns = tuple(batch(embedder.backbone, seed=seed) for seed in (0, 1))
        found.append(float(embedder.train_on_batch(columns)[0]))
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.parametrize(
    ("make_wrong", "message"),
    [
        (
            lambda: BertTextEmbedder(encoder(), layers="sum_all"),
            "layers='last' .* got .* layers='sum_all'",
        ),
        (lambda: BertTextEmbedder(encoder(), pooling="tokens"), "got pooling='tokens' and"),
        (lambda: BertSparseEmbedder(encoder()), "BertSparseEmbedder only has those of the last"),
    ],
)
def test_wrong_use_of_adaptive_layer(make_wrong, message):
    with pytest.raises(ValueError, match=message):
        make_wrong().compile(loss=losses.AdaptiveLayer(losses.CoSENT()))


@pytest.mark.backends("torch")
def test_prompts(tmp_path):
    prompts = {"query": "good ", "text": "bad film ", "task": "dull "}
    embedder = make_raw()
    bare = embedder.preprocessor
    settings = {"tokenizer": bare.tokenizer, "sequence_length": 16}
    prompted = BertTextEmbedderPreprocessor(**settings, prompts=prompts)
    embedder = BertTextEmbedder(embedder.backbone, prompted)
    plain = BertTextEmbedder(embedder.backbone, bare)

    def same(found, expected):
        np.testing.assert_allclose(found, expected, atol=1e-6)

    for role, prompt in {**prompts, None: ""}.items():
        expected = plain.embed([prompt + text for text in TEXTS])
        same(embedder.embed(TEXTS, role=role), expected)
    same(embedder.embed("fun", role="query"), plain.embed("good fun"))
    # In training, compared columns without labels are a query and texts.
    asked, others = [prompts["query"] + text for text in MANY], []
    others = [prompts["text"] + text for text in OTHERS]
    expected = plain.test_on_batch((asked, others, others))[0]
    assert embedder.test_on_batch((MANY, OTHERS, OTHERS))[0] == pytest.approx(expected, rel=1e-5)
    data = tf.data.Dataset.from_tensors((np.array(MANY), np.array(OTHERS), np.array(OTHERS)))
    data = data.map(lambda *columns: (columns,))
    assert embedder.evaluate(data, verbose=0)[0] == pytest.approx(expected, rel=1e-5)
    # Similarity is symmetric, so texts with scores have no role, nor has a text that is compared
    # with itself.
    for x, y in (((MANY, OTHERS), [0, 1] * 9), (TEXTS, None)):
        expected = plain.test_on_batch(x, y)[0]
        assert embedder.test_on_batch(x, y)[0] == pytest.approx(expected, rel=1e-5)
    # A role for all texts.
    embedder.preprocessor = BertTextEmbedderPreprocessor(**settings, prompts=prompts, role="task")
    expected = plain.embed([prompts["task"] + text for text in TEXTS])
    same(embedder.predict(TEXTS, verbose=0), expected)
    same(embedder.predict(tf.data.Dataset.from_tensors(np.array(TEXTS)), verbose=0), expected)
    embedder.save_to_preset(tmp_path / "preset")
    again = BertTextEmbedder.from_preset(tmp_path / "preset")
    same(again.embed(TEXTS), expected)
    same(again.embed(TEXTS, role="query"), plain.embed(["good " + text for text in TEXTS]))
    for make, message in {
        lambda: again.embed(
            TEXTS, role="question"
        ): "role='question' is unknown; use one of query, text, task",
        lambda: again.embed((TEXTS, TEXTS), role="query"): "single texts, but got pairs",
        lambda: BertTextEmbedderPreprocessor(**settings, prompts="query: "): "a dict of strings",
        lambda: BertTextEmbedderPreprocessor(**settings, prompts={"query": 1}): "a dict of str",
        lambda: BertTextEmbedderPreprocessor(
            **settings, role="question"
        ): "role='question' is unknown",
    }.items():
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.backends("torch")
def test_columns_as_datasets_and_arrays():
    # Keras' own error, from a generator.
    warnings.filterwarnings("ignore", "Your input ran out of data")
    embedder = make_raw()
    expected = embedder.test_on_batch((MANY, OTHERS))
    read = embedder.preprocessor
    arrays_ = tuple({k: array(v) for k, v in read(texts).items()} for texts in (MANY, OTHERS))
    numbers = numbers_of((MANY, OTHERS))
    found = embedder.evaluate(arrays_, numbers, batch_size=len(MANY), verbose=0)
    assert found == pytest.approx([float(one) for one in expected], abs=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices(((MANY, OTHERS),)).batch(len(MANY))
    found = embedder.evaluate(dataset, verbose=0)
    assert found == pytest.approx([float(one) for one in expected], abs=1e-5)
    # Pairs, tables and generators give the same.
    pairs = list(zip(MANY, OTHERS, strict=True))
    table = {"text": MANY, "text_b": OTHERS}
    for x in (pairs, table, iter([((MANY, OTHERS),)])):
        found = embedder.evaluate(x, batch_size=len(MANY), verbose=0)
        assert found == pytest.approx([float(one) for one in expected], abs=1e-5)
    labels = [0, 1] * 9
    expected = embedder.test_on_batch((MANY, OTHERS), labels)
    for x, y in ((pairs, labels), (iter([((MANY, OTHERS), labels)]), None)):
        again = embedder.evaluate(x, y, batch_size=len(MANY), verbose=0)
        assert again == pytest.approx([float(one) for one in expected], abs=1e-5)
    # Without labels, equal texts are unknown and count as negatives of each other.
    assert embedder.evaluate(arrays_, batch_size=len(MANY), verbose=0)[0] > found[0]

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return (MANY, OTHERS), np.array(labels)

    again = embedder.evaluate(Batches(), verbose=0)
    assert again == pytest.approx([float(one) for one in expected], abs=1e-5)


def test_equal_texts_are_kept_apart():
    preprocessor = make_preprocessor()
    rows = [" ".join(["good", "bad"][i >> bit & 1] for bit in range(1, 6)) for i in range(40)]
    for _, numbers in preprocessor.column_batches((rows, rows), batch_size=8):
        assert len(set(array(numbers)[:, 0])) == 8
    one = list(preprocessor.column_batches((["a"] * 5, ["a"] * 5), batch_size=2))
    assert sorted(len(numbers) for _, numbers in one) == [1, 2, 2]


@pytest.mark.backends("torch")
def test_bad_columns():
    embedder = make_raw()
    embedder.compile(run_eagerly=True)
    columns = (["good", "a"], ["bad", "a"])
    for x, y, message in (
        ((["good"], ["bad", "a"]), None, "columns of a pair have 1 and 2 texts"),
        ((["good"], [None]), None, "position 0 of the second column is None"),
        ((*columns, ["a", "a"]), [[1, 2, 3]] * 2, "teacher's scores, .* MarginMSE"),
        (columns, [0.5], "2 texts but 1 labels"),
        (columns, ["same", "other"], "label at position 0 is 'same'; .* 1 f"),
        ((["good"], ["bad"]), None, "only one row"),
        (["good"], None, "only one row"),
        (["good", "bad"], [3, 3], "All 2 labels are 3, .* another class"),
        (["good", "bad"], ["x", "x"], "All 2 labels are 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            embedder.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="validation_data has texts in place of labels"):
        embedder.fit(columns, validation_data=columns, verbose=0)
    of_tokens = make_raw(pooling="tokens")
    of_tokens.compile(run_eagerly=True)
    with pytest.raises(ValueError, match="pooling='tokens' .* per token"):
        of_tokens.fit((["good"], ["bad"]), [0.5], verbose=0)


def test_labels_of_another_loss():
    embedder = make_raw()
    for loss, y, message in (
        (losses.CoSENT(), None, "CoSENT .* one number per row"),
        (losses.Contrastive(), None, "Contrastive .* one number per row"),
        (losses.CosineRegression(), [0.5, 5.0], "position 1 is 5.0, .* -1 to 1; .* CoSENT"),
        (losses.Matryoshka(losses.Contrastive(), [4]), [2, 0], "position 0 is 2, .* 0 to 1"),
    ):
        embedder.compile(loss=loss, run_eagerly=True)
        with pytest.raises(ValueError, match=message):
            embedder.fit((["good", "a"], ["bad", "a"]), y, verbose=0)


# --- late interaction ---

LATE_TOKENS = [*TOKENS[:15], "[Q]", "[D]", ",", *TOKENS[18:]]
LATE = {
    "query_token": "[Q]",
    "text_token": "[D]",
    "query_length": 8,
    "expand_queries": True,
    "skiplist_words": [","],
}


def make_late(**settings):
    preprocessor = BertTextEmbedderPreprocessor(
        bert_tokenizer(LATE_TOKENS), sequence_length=16, **{**LATE, **settings}
    )
    return perturb(
        BertTextEmbedder(
            tiny_backbone(dropout=0.0), preprocessor, "tokens", normalize=True, projection_dim=6
        )
    )


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_late_interaction():
    embedder = make_late()
    query, texts = "good film", ["bad , a", "the film , was fun", ""]
    (ids,) = array(embedder.preprocessor.for_role("query")([query])["token_ids"])
    assert ids.tolist() == [2, 15, 5, 7, 3, 4, 4, 4]
    vectors = embedder.embed(texts, role="text")
    # A text has a first token, a role token and a last token. Commas have no vector, but other
    # tokens attend to them.
    assert [len(row) for row in vectors] == [5, 7, 3]
    assert len(embedder.embed(query, role="query")) == 8
    assert np.abs(np.linalg.norm(np.concatenate(vectors), axis=-1) - 1).max() < 1e-5
    ranked = embedder.rank(query, texts, return_texts=True)
    padded = embedder.predict(texts, role="text", verbose=0)
    scores = array(embedder.similarity(embedder.predict([query], role="query", verbose=0), padded))
    order = np.argsort(-scores[0], kind="stable")
    assert [row["corpus_id"] for row in ranked] == order.tolist()
    np.testing.assert_allclose([row["score"] for row in ranked], scores[0][order], atol=1e-5)
    assert embedder.rank(query, texts, top_k=1, return_texts=True) == ranked[:1]
    assert embedder.rank(query, []) == []


@pytest.mark.backends("torch")
def test_fit_late_interaction():
    warnings.filterwarnings("ignore", ".* are truncated")  # Reset after each test.
    embedder = make_late()
    embedder.optimizer.learning_rate = 0.01
    history = embedder.fit((MANY[:6], OTHERS[:6]), epochs=4, batch_size=6, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.backends("torch")
def test_late_interaction_of_triples_and_files(tmp_path):
    warnings.filterwarnings("ignore", ".* are truncated")  # Reset after each test.
    embedder, columns = make_late(), (MANY, OTHERS, OTHERS[::-1])
    roles = ("query", "text", "text")
    parts = [embedder.predict(x, role=r, verbose=0) for x, r in zip(columns, roles, strict=True)]
    longest = max(part.shape[1] for part in parts)
    parts = [np.pad(x, ((0, 0), (0, longest - x.shape[1]), (0, 0))) for x in parts]
    loss = losses.MultipleNegativesRanking(scale=1.0, similarity="maxsim")
    expected = float(loss(numbers_of(columns), np.stack(parts, axis=1)))
    found = embedder.evaluate(columns, batch_size=len(MANY), verbose=0)[0]
    assert found == pytest.approx(expected, abs=1e-4)
    embedder.fit(columns, batch_size=9, verbose=0, validation_data=((MANY, OTHERS),))
    embedder.compile(loss=losses.DistillKL(similarity="maxsim"))
    history = embedder.fit(columns, [[1.0, 0.0]] * 18, batch_size=9, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    embedder.save_to_preset(tmp_path / "preset")
    embedder.save(tmp_path / "model.keras")
    expected = embedder.embed("good film", role="query")
    for again in (
        BertTextEmbedder.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        np.testing.assert_allclose(again.embed("good film", role="query"), expected, atol=1e-6)
        assert again.preprocessor.skiplist_words == [","]


@pytest.mark.backends("torch")
def test_attention_to_expansion():
    """By default no token attends to a query's expansion tokens, which attend to all others."""
    embedder, seeing = make_late(), make_late(attend_to_expansion=True)
    short = make_late(expand_queries=False).embed("good", role="query")
    filled = embedder.embed("good", role="query")
    assert len(short) == 4 and len(filled) == 8
    np.testing.assert_allclose(filled[:4], short, atol=1e-5)
    assert np.abs(seeing.embed("good", role="query")[:4] - short).max() > 1e-3


@pytest.mark.backends("torch")
def test_zero_shot_classes_are_those_with_the_most_similar_sentences():
    embedder = make_raw()
    texts, labels = ["good film", "bad , a", "the film"], ["good", "bad"]
    found = embedder.classify(texts, labels, template="the {} film")
    vectors = [embedder.embed(x) for x in (texts, ["the good film", "the bad film"])]
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors)
    for row, cosines in zip(found, a @ b.T, strict=True):
        assert row["similarities"] == pytest.approx(dict(zip(labels, cosines)), abs=1e-5)
        assert (
            row["score"] == row["similarities"][row["label"]] == max(row["similarities"].values())
        )
    one = embedder.classify("good film", ["bad", "good film"])
    assert one["label"] == "good film" and one["score"] == pytest.approx(1, abs=1e-5)


@pytest.mark.backends("torch")
def test_projection(tmp_path):
    """The projection follows the pooling, as in LaBSE; it is new if a checkpoint has none."""
    backbone = tiny_backbone()
    plain = BertTextEmbedder(backbone)
    embedder = BertTextEmbedder(
        backbone, projection_dim=5, projection_bias=True, projection_activation="tanh"
    )
    perturb(embedder)
    features = batch(embedder)
    kernel, bias = embedder.projection.get_weights()
    assert_close(embedder(features), np.tanh(array(plain(features)) @ kernel + bias))
    check_roundtrip(embedder, features, tmp_path)
    make_raw().save_to_preset(tmp_path / "plain")
    with pytest.warns(UserWarning, match="New, random weights .* projection/kernel"):
        again = BertTextEmbedder.from_preset(tmp_path / "plain", projection_dim=3)
    assert again.embed("good").shape == (3,)
    assert [row["corpus_id"] for row in again.rank("good", ["bad", "good"])][0] == 1


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("make_wrong", "message"),
    [
        (lambda: BertTextEmbedder(tiny_backbone(), projection_dim=0), "projection_dim=0 must be"),
        (lambda: BertTextEmbedder(tiny_backbone(), projection_bias=True), "pass projection_dim"),
        (lambda: make_late(query_token="[X]"), "query_token='.X.' is not in the vocabulary"),
        (lambda: make_late(query_length=1), "query_length=1 must be a whole number of at least 3"),
        (lambda: make_late(skiplist_words=","), "skiplist_words=',' must be a list of strings"),
        (lambda: make_late(expand_queries="yes"), "expand_queries='yes' must be true or false"),
        (lambda: make_late().embed("a", role="passage"), "use one of query, text"),
        (lambda: make_late().rank(["a"], ["b"]), "query must be one string"),
        (lambda: make_late().classify("a", ["b"]), "pooling='tokens' gives one per token; use"),
        (lambda: make_raw().classify(("a", "b"), ["c"]), "takes single texts, got pairs"),
        (lambda: make_late().rank("a", "b"), "texts must be a list of strings"),
        (lambda: make().embed("a", role="query"), "has no preprocessor"),
    ],
)
def test_wrong_use_of_late_interaction(make_wrong, message):
    with pytest.raises(ValueError, match=message):
        make_wrong()


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["one way", "symmetric", "all layers"])
def test_twenty_steps_equal_sentence_transformers(reference, tmp_path, kind):
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses as theirs
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    path = reference("bert").directory
    modules = [Transformer(path, max_seq_length=16), Pooling(36, "mean")]
    model = SentenceTransformer(modules=modules, device="cpu").eval()
    ours = BertTextEmbedder.from_preset(path, preprocessor=None, dropout=0.0, attention_dropout=0.0)
    arguments = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    is_symmetric = kind == "symmetric"
    loss = theirs.MultipleNegativesRankingLoss(model, **(arguments if is_symmetric else {}))
    own_loss = losses.MultipleNegativesRanking(symmetric=is_symmetric)
    if kind == "all layers":
        loss = theirs.AdaptiveLayerLoss(model, loss, n_layers_per_step=-1)
        own_loss = losses.AdaptiveLayer(own_loss, -1)
    ours.compile(keras.optimizers.SGD(0.05), own_loss)
    step = torch.optim.SGD(model.parameters(), 0.05)
    random = np.random.default_rng(0)
    for _ in range(20):
        ids = random.integers(1, 99, (2, 6, 12)).astype("int32")
        columns = [{"token_ids": one, "padding_mask": np.ones_like(one)} for one in ids]
        found = ours.train_on_batch(tuple(columns))[0]
        ids = torch.tensor(ids, dtype=torch.long)
        given = [{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in ids]
        expected = loss(given, None)
        step.zero_grad()
        expected.backward()
        step.step()
        assert float(found) == pytest.approx(float(expected.detach()), abs=1e-4)


# --- presets ---


@pytest.mark.backends("tensorflow", "torch")
def test_own_presets(tmp_path):
    embedder = make(pooling=["max", "mean"], normalize=True)
    embedder.save_to_preset(tmp_path)
    features = batch(embedder)
    again = BertTextEmbedder.from_preset(tmp_path)
    assert (again.pooling, again.normalize) == (["max", "mean"], True)
    assert_close(again(features), embedder(features), atol=0)
    assert again.preprocessor is None
    other = BertTextEmbedder.from_preset(tmp_path, pooling="cls", normalize=False)
    shares = array(other.scalar_mix.scalars)
    np.testing.assert_array_equal(shares, array(embedder.scalar_mix.scalars))
    last = BertTextEmbedder.from_preset(tmp_path, layers="last", pooling="cls", normalize=False)
    assert_close(last(features), embedder.backbone(features)["sequence_output"][:, 0])
    # Newly requested weights are new, with a warning.
    with pytest.warns(UserWarning, match="New, .*: scalar_mix/gamma, scalar_mix/scalars"):
        new = BertTextEmbedder.from_preset(tmp_path, layers="scalar_mix")
    assert not array(new.scalar_mix.scalars).any()


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("whole", [True, False])
def test_of_a_preset_without_embedder(tmp_path, whole):
    backbone = encoder()
    task = BertTextClassifier(backbone, num_classes=2)
    (task if whole else backbone).save_to_preset(tmp_path)
    embedder = BertTextEmbedder.from_preset(tmp_path, preprocessor=None)
    assert (embedder.pooling, embedder.layers_used, embedder.normalize) == ("mean", "last", False)
    expected = BertTextEmbedder(backbone)
    assert_close(embedder(batch(embedder)), expected(batch(embedder)), atol=0)
    with pytest.raises(ValueError, match="has no argument 'new_head'"):
        BertTextEmbedder.from_preset(tmp_path, preprocessor=None, new_head=True)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_of_a_hugging_face_directory(reference, family):
    theirs = reference(family)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embedder = BertTextEmbedder.from_preset(theirs.directory, preprocessor=None)
    assert not embedder.backbone.pooler
    inputs = theirs.inputs(9)
    expected = numpy_pooling(theirs(inputs)["sequence_output"], inputs["padding_mask"], "mean")
    assert np.abs(array(embedder(inputs)) - expected).max() <= 1e-5
    with pytest.warns(UserWarning, match="scalar_mix/scalars"):
        BertTextEmbedder.from_preset(theirs.directory, preprocessor=None, layers="scalar_mix")
    if family == "electra":
        with pytest.raises(ValueError, match="Missing, ours .*pooled_dense"):
            BertTextEmbedder.from_preset(theirs.directory, preprocessor=None, pooling="pooler")
        return
    pooler = BertTextEmbedder.from_preset(theirs.directory, preprocessor=None, pooling="pooler")
    assert np.abs(array(pooler(inputs)) - theirs(inputs)["pooled_output"]).max() <= 1e-5


# --- rejected inputs ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "median"}, "'median' is unknown; use one of mean, cls, max, pooler, tokens"),
        ({"pooling": ["mean", "tokens"]}, "a list of some of mean, cls, max"),
        ({"pooling": []}, r"pooling=\[\] is unknown"),
        ({"layers": "first"}, "'first' is unknown; use one of embeddings, second_to_last, last,"),
        ({"layers": "sum_last_four"}, "at least 4 layers, .* num_layers=2"),
        ({"layers": "concat_last_four"}, "at least 4 layers, .* num_layers=2"),
        ({"pooling": "pooler", "layers": "sum_all"}, "uses the last layer, not layers='sum_all'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BertTextEmbedder(encoder(), **settings)


@pytest.mark.backends("tensorflow", "torch")
def test_pooler_without_pooler():
    with pytest.raises(ValueError, match="pooling='pooler' needs an encoder with a pooler"):
        BertTextEmbedder(tiny_backbone("distilbert"), pooling="pooler")


def test_bad_texts():
    with pytest.raises(ValueError, match=r"embed\(\) takes texts, but this model has no prepro"):
        BertTextEmbedder(encoder()).embed("good")
    with pytest.raises(ValueError, match="The list of texts is empty"):
        raw(normalize=True).embed([])
    with pytest.raises(ValueError, match="position 1 is None"):
        raw(pooling="tokens").embed(["good", None])


@pytest.mark.backends("torch")
def test_bad_vectors():
    embedder = make_raw()
    embedder.compile(run_eagerly=True)
    for y, message in (
        ([[1.0, 2.0], [1.0]], r"label at position 1 is \[1.0\], but that of the first text is"),
        ([1.0, [2.0]], "label at position 0 is 1.0, .* pass one vector for each text"),
        ([1.0, 2.0], "list of floats; .* pass its class, .* or one embedding"),
        ([1.0, float("nan")], "label at position 1 is nan; pass finite numbers"),
        ([[1.0], [float("nan")]], "hold NaN or infinity"),
        ([["a"], ["b"]], "not vectors of numbers"),
        ([[1.0]], "2 texts but 1 labels"),
        ([[0], [1]], "width 1, but the model's have width 16; .* classes as a flat list"),
    ):
        with pytest.raises(ValueError, match=message):
            embedder.fit(["good", "bad"], y, verbose=0)


# === Code for KerasHub's class ===


def test_the_names_of_keras_hub():
    their_backbone = keras_hub.models.BertBackbone(30, 2, 2, 16, 24, max_sequence_length=16)
    backbone = encoder()
    features = batch(backbone)
    states = array(backbone(features)["sequence_output"])
    mask = features["padding_mask"]
    for mode in ("mean", "cls", "max"):
        theirs = keras_hub.models.BertTextEmbedder(their_backbone, pooling_mode=mode)
        for arguments, expected in (
            ({"pooling_mode": mode}, (mode, True)),
            ({"pooling_mode": mode, "normalize": False}, (mode, False)),
            ({"pooling": mode}, (mode, False)),
            ({}, ("mean", False)),
        ):
            embedder = BertTextEmbedder(backbone, **arguments)
            assert (embedder.pooling_mode, embedder.normalize) == expected, arguments
            again = BertTextEmbedder.from_config({**embedder.get_config(), "backbone": backbone})
            assert (again.pooling, again.normalize) == expected, arguments
        assert (theirs.pooling_mode, theirs.normalize) == (mode, True)
        ours = BertTextEmbedder(backbone, pooling_mode=mode)
        pooled = {"mean": theirs._mean_pooling, "max": theirs._max_pooling}
        pool = pooled.get(mode, lambda x, _: x[:, 0])
        expected = theirs._l2_normalize(pool(keras.ops.convert_to_tensor(states), mask))
        np.testing.assert_allclose(array(ours(features)), array(expected), atol=1e-5, err_msg=mode)


def test_two_names_of_one_setting():
    with pytest.raises(ValueError, match="pooling='max' and pooling_mode='cls' are the same"):
        BertTextEmbedder(encoder(), pooling="max", pooling_mode="cls")
    with pytest.raises(ValueError, match="pooling='invalid' is unknown"):
        BertTextEmbedder(encoder(), pooling_mode="invalid")


def test_the_methods_of_keras_hub():
    embedder = raw(normalize=True)
    query = embedder.encode_text(TEXTS[0], verbose=0)
    documents = embedder.encode_documents(TEXTS, batch_size=2, verbose=0)
    assert query.shape == (1, 16) and documents.shape == (5, 16)
    assert_close(documents, embedder.embed(TEXTS))
    similarity = array(embedder.similarity(query, documents))
    assert similarity.shape == (1, 5) and similarity.argmax() == 0
    np.testing.assert_allclose(similarity[0, 0], 1, atol=1e-5)
    with pytest.raises(ValueError, match="widths 16 and 4; pass embeddings of one model"):
        embedder.similarity(query, np.ones((5, 4)))
    # Its preprocessor accepts any labels, for custom losses.
    features, y = embedder.preprocessor(TEXTS[:2], [1, 0])
    assert array(y).tolist() == [1, 0]
    assert array(embedder.preprocessor("good", 1)[1]).tolist() == 1

"""The reranker: contract, pairs and lists, scores and ranks, foreign cross-encoders."""

import functools
import json
import shutil

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.layers.heads import MISSING
from kerasbert.models import (
    BertBackbone,
    BertReranker,
    BertRerankerPreprocessor,
    BertTextClassifier,
    BertTextRegressor,
)
from tests.contracts import (
    array,
    assert_close,
    bert_tokenizer,
    check_preprocessor,
    model_contract,
    perturb,
    tiny_backbone,
)
from tests.peers import keras_rs, sentence_transformers, torch, transformers

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
QUERIES = ["good film", "a", "dull"]
LISTS = [["fun", "it was dull", "the film"], ["a"], ["very very dull", "good"]]
GRADES = [[3, 0, 1], [1], [2, 0]]
TEXTS = ["fun", "it was very very very dull", "good", "the film was good fun", "bad"]


def make(family="bert", **settings):
    return perturb(BertReranker(tiny_backbone(family, **settings)))


def make_raw(**settings):
    preprocessor = BertRerankerPreprocessor(bert_tokenizer(TOKENS), sequence_length=12)
    model = perturb(BertReranker(tiny_backbone(dropout=0.0), preprocessor=preprocessor, **settings))
    model.output_dense.kernel.assign(10 * model.output_dense.kernel)
    return model


@pytest.fixture(scope="module")
def model():
    return make_raw()


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


# === Pairs and lists ===


@pytest.mark.slow
def test_preprocessor_contract(model, tmp_path):
    preprocessor = model.preprocessor
    check_preprocessor(preprocessor, (TEXTS, TEXTS[::-1]), [1.5, 0.0, 1.0, -2.0, 0.5], tmp_path)
    features, y = preprocessor((QUERIES, LISTS), GRADES)
    assert tuple(features["token_ids"].shape) == (3, 3, 8)
    assert array(y).tolist() == [[3, 0, 1], [1, -1, -1], [2, 0, -1]]
    assert array(features["padding_mask"]).any(axis=-1).tolist() == [
        [True, True, True],
        [True, False, False],
        [True, True, False],
    ]
    # Pairs, padded rectangles and datasets give the same.
    same = preprocessor(list(zip(QUERIES, LISTS)), GRADES)
    assert_close(same, (features, y), atol=0)
    rows = [row + [""] * (3 - len(row)) for row in LISTS]
    padded = [row + [-1] * (3 - len(row)) for row in GRADES]
    assert_close(preprocessor((QUERIES, np.array(rows)), padded), (features, y), atol=0)
    import tensorflow as tf

    for texts, grades in (
        (tf.ragged.constant(LISTS), tf.ragged.constant(GRADES)),
        (rows, [[x if x >= 0 else 7 for x in row] for row in padded]),
    ):
        dataset = tf.data.Dataset.from_tensor_slices(({"query": QUERIES, "texts": texts}, grades))
        mapped = next(iter(dataset.batch(3).map(preprocessor).as_numpy_iterator()))
        assert_close(mapped, (features, y), atol=0)


@pytest.mark.slow
def test_lists_are_pairs(model):
    """Logits of lists equal those of their pairs, at once and in batches, raw and preprocessed."""
    found = model.predict((QUERIES, LISTS), verbose=0)
    pairs = [(query, text) for query, texts in zip(QUERIES, LISTS) for text in texts]
    is_there = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
    expected = np.concatenate([array(model(model.preprocessor([pair]))) for pair in pairs])
    np.testing.assert_allclose(found[is_there], expected, atol=1e-5)
    assert (found[~is_there] == MISSING).all()
    features = model.preprocessor((QUERIES, LISTS))
    assert_close(model(features), found)
    assert_close(model.predict_on_batch(features), found)
    only_ids = {"token_ids": array(features["token_ids"])}  # Without a mask, all texts count.
    assert model.predict(only_ids, verbose=0).shape == (3, 3)
    scores = model.score((QUERIES, LISTS))
    assert [len(row) for row in scores] == [3, 1, 2]
    np.testing.assert_allclose(np.concatenate(scores), model.score(pairs), atol=1e-6)


@pytest.mark.backends("torch")
def test_pairs_train():
    model = make_raw()
    model.optimizer.learning_rate = 0.01
    x, y = (["good", "good", "bad", "bad"] * 8, ["fun", "dull"] * 16), [0.0, 1.0] * 16
    first = model.evaluate(x, y, verbose=0)
    logits, labels = model.predict(x, verbose=0).astype("float64"), np.array(y)
    expected = np.mean(np.logaddexp(0, logits) - labels * logits)
    assert first[0] == pytest.approx(expected, rel=1e-5)
    assert first[1] == np.mean((logits > 0) == (labels > 0.5))
    model.fit(x, y, epochs=20, batch_size=8, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.9
    assert [row["corpus_id"] for row in model.rank("bad", ["fun", "dull"])] == [1, 0]


@pytest.mark.backends("torch")
def test_weights_and_numbers():
    model, weights = make_raw(activation=None), np.array([0.0, 1.0, 3.0], "float32")
    model.compile(loss="mse")
    x, y = (QUERIES, TEXTS[:3]), np.array([-4.0, 2.0, 7.0])
    logits = model.predict(x, verbose=0)
    np.testing.assert_array_equal(model.score(x), logits)
    loss = model.evaluate(x, y, sample_weight=weights, verbose=0)
    assert loss == pytest.approx(np.mean(weights * (logits - y) ** 2), rel=1e-5)
    # Lists count equally, however many texts they have.
    logits = model.predict((QUERIES, LISTS), verbose=0)
    errors = [np.mean((row[: len(y)] - y) ** 2) for row, y in zip(logits, GRADES)]
    loss = model.evaluate((QUERIES, LISTS), GRADES, sample_weight=weights, verbose=0)
    assert loss == pytest.approx(np.mean(weights * errors), rel=1e-5)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name",
    ["ListMLELoss", pytest.param("PairwiseLogisticLoss", marks=pytest.mark.slow)],
)
def test_lists_train(name, tmp_path):
    """Lists are trained with keras-rs, whose losses and metrics ignore missing texts; in between,
    pairs are trained.
    """
    model = make_raw()
    model.fit((QUERIES, TEXTS[:3]), [0, 1, 1], verbose=0)
    metrics = [keras_rs.metrics.NDCG(name="ndcg"), keras_rs.metrics.MeanReciprocalRank(name="mrr")]
    loss = getattr(keras_rs.losses, name)()
    model.compile("adam", loss, metrics=metrics)
    model.optimizer.learning_rate = 0.01
    x, y = (QUERIES * 4, LISTS * 4), GRADES * 4
    first = model.evaluate(x, y, verbose=0, return_dict=True)
    rows = [
        float(loss(np.array([labels], "float32"), logits[None, : len(labels)]))
        for labels, logits in zip(y, model.predict(x, verbose=0))
    ]
    # The other metrics are means over all places, including missing texts.
    if name == "ListMLELoss":
        assert first["loss"] == pytest.approx(np.mean(rows), rel=1e-4)
    model.fit(x, y, epochs=40, batch_size=12, verbose=0)
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    assert found["loss"] < first["loss"] and found["ndcg"] > 0.99 and found["mrr"] > 0.99
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.evaluate(x, y, verbose=0) == pytest.approx([*found.values()], rel=1e-5)
    best = [rank(model, query, texts) for query, texts in zip(QUERIES, LISTS)]
    assert best == [0, 0, 0]


def rank(model, query, texts):
    return model.rank(query, texts)[0]["corpus_id"]


# === Scores ===


def test_rank():
    model = make_raw()
    found = model.rank("good film", TEXTS, return_texts=True)
    logits = model.predict((["good film"] * 5, TEXTS), verbose=0)
    scores = model.score((["good film"] * 5, TEXTS))
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-6)
    assert scores.dtype == "float32" and scores.shape == (5,)
    assert [row["corpus_id"] for row in found] == np.argsort(-logits).tolist()
    for row in found:
        assert row["text"] == TEXTS[row["corpus_id"]]
        assert row["score"] == pytest.approx(scores[row["corpus_id"]], abs=1e-6)
    assert model.score(("good film", "fun")) == pytest.approx(scores[0], abs=1e-6)
    best = model.rank("good film", tuple(TEXTS), top_k=2, batch_size=2)
    assert [list(row) for row in best] == [["corpus_id", "score"]] * 2
    assert [row["corpus_id"] for row in best] == [row["corpus_id"] for row in found[:2]]
    assert model.rank("good film", []) == []
    # Ties keep their order; where the sigmoid is 1 for all, the logits decide.
    assert [row["corpus_id"] for row in model.rank("a", ["fun"] * 3)] == [0, 1, 2]
    model.output_dense.bias.assign([1000.0])
    high = model.rank("good film", TEXTS)
    assert [row["score"] for row in high] == [1.0] * 5
    assert [row["corpus_id"] for row in high] == [row["corpus_id"] for row in found]


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.rank(["good"], ["bad"]), r"query must be one string, got \['g"),
        (lambda m: m.rank("good", "bad"), r"texts must be a list of strings, got 'bad'"),
        (lambda m: m.rank("good", [1]), "text at position 0 of the second column is 1"),
        (lambda m: m.rank("good", ["bad"], top_k=0), "top_k=0"),
        (lambda m: m.score(["good", "bad"]), "without queries; pass pairs: a tuple of two col"),
        (lambda m: m.fit(["good"], [1]), "without queries; pass pairs"),
        (lambda m: m.fit(("good", ["bad"]), [1]), "one text where a list is needed"),
        (lambda m: m.fit((["good"], [[]]), [[]]), "query at position 0 has no texts"),
        (lambda m: m.fit((QUERIES, LISTS[:2]), GRADES), "are 3 queries but 2 lists of texts"),
        (lambda m: m.fit((QUERIES, LISTS), [1, 1, 0]), r"labels at position 0 are 1, for a query"),
        (lambda m: m.fit((["a"], [["b"]]), [[1, 0]]), "are 2 labels at position 0.* with 1 texts"),
        (lambda m: m.fit((["a"], [["b"]]), [["x"]]), "label of text 0 at position 0 is 'x'; pass"),
        (lambda m: m.fit((["a"], ["b"]), ["x"]), "label at position 0 is 'x'; pass one finite"),
        (lambda m: m.fit((["a"], ["b"]), [2]), "position 0 has 2, but the default loss takes 0 to"),
        (lambda m: m.fit((QUERIES, LISTS), GRADES), "position 0 has 3, but the default loss"),
        (
            lambda m: BertReranker(m.backbone, activation="tanh"),
            "'tanh' is unknown; use one of sigmoid, lin",
        ),
    ],
)
def test_bad_input(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


# === Cross-encoders of sentence-transformers and transformers ===


@pytest.fixture(scope="module")
def theirs(reference, tmp_path_factory):
    """A function of family and settings: a `CrossEncoder` of random weights, and its path."""

    def make(family="bert", **settings):
        model = reference(family, "ForSequenceClassification", num_labels=1)
        directory = tmp_path_factory.mktemp(f"cross_{family}")
        shutil.copytree(model.directory, directory / "plain")
        write_tokenizer(family, directory / "plain")
        settings = {"max_length": 12, **settings}
        cross = sentence_transformers.CrossEncoder(str(directory / "plain"), **settings)
        cross.save_pretrained(str(directory / "saved"))
        return cross, directory / "saved"

    return make


def write_tokenizer(family, directory):
    if family == "bert":
        (directory / "vocab.txt").write_text("\n".join(TOKENS))
        tokenizer = transformers.BertTokenizerFast(str(directory / "vocab.txt"))
    else:
        tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abdefgilmnorstuvwy", "Ġ"]
        (directory / "vocab.json").write_text(json.dumps({x: i for i, x in enumerate(tokens)}))
        (directory / "merges.txt").write_text("#version: 0.2\n")
        tokenizer = transformers.RobertaTokenizerFast(
            str(directory / "vocab.json"), str(directory / "merges.txt")
        )
    tokenizer.save_pretrained(str(directory))


PAIRS = [(query, text) for query in ("good film", "was it dull ?") for text in TEXTS]


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_cross_encoders(theirs, family, tmp_path):
    """The same scores and ranks, read and written, in batches with padding and truncation."""
    cross, directory = theirs(family)
    expected = cross.predict(PAIRS)
    assert np.ptp(expected) > 1e-3
    model = BertReranker.from_preset(directory)
    assert (model.activation, model.preprocessor.sequence_length) == ("sigmoid", 12)
    assert np.abs(model.score(PAIRS, batch_size=4) - expected).max() <= 1e-6
    for one, other in zip(model.rank("bad", TEXTS), cross.rank("bad", TEXTS), strict=True):
        assert one["corpus_id"] == other["corpus_id"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)
    said = kerasbert.convert(model, tmp_path / "ours")
    again = sentence_transformers.CrossEncoder(str(tmp_path / "ours"))
    assert again.max_seq_length == 12
    assert np.abs(again.predict(PAIRS) - expected).max() <= 1e-6
    assert said["written"].endswith("ForSequenceClassification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    inputs = tokenizer(*map(list, zip(*PAIRS)), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain.eval()(**inputs).logits[:, 0]
    assert np.abs(torch.sigmoid(logits).numpy() - expected).max() <= 1e-6
    # Other fields stay unchanged, including those that our checkpoints keep.
    said = kerasbert.convert(tmp_path / "ours", tmp_path / "preset", format="kerasbert")
    assert said["model"] == "BertReranker"
    loaded = BertReranker.from_preset(tmp_path / "preset")
    assert np.abs(loaded.score(PAIRS) - expected).max() <= 1e-6


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_steps_as_cross_encoders(theirs):
    """Three steps of SGD on the binary cross-entropy give the same weights."""
    cross, directory = theirs()
    backbone = BertBackbone.from_preset(directory, dropout=0.0, attention_dropout=0.0)
    model = BertReranker.from_preset(directory, backbone=backbone, dropout=0.0)
    labels = np.linspace(0, 1, len(PAIRS)).astype("float32")
    model.compile(keras.optimizers.SGD(0.1))
    net = cross.model.eval()  # Without dropout.
    inputs = cross.tokenizer(
        *map(list, zip(*PAIRS)), padding=True, truncation=True, return_tensors="pt"
    ).to(net.device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = torch.nn.BCEWithLogitsLoss()
    for _ in range(3):
        model.train_on_batch(PAIRS, labels)
        optimizer.zero_grad()
        loss(net(**inputs).logits[:, 0], torch.tensor(labels, device=net.device)).backward()
        optimizer.step()
    assert np.abs(model.score(PAIRS) - cross.predict(PAIRS)).max() <= 1e-6


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_what_is_made_of_logits(theirs, tmp_path):
    """The activation, as each version of sentence-transformers stores it."""
    cross, directory = theirs(activation_fn=torch.nn.Identity())
    expected = cross.predict(PAIRS)
    model = BertReranker.from_preset(directory)
    assert model.activation == "linear"
    assert np.abs(model.score(PAIRS) - expected).max() <= 1e-5
    assert BertReranker.from_preset(directory, activation="sigmoid").activation == "sigmoid"
    kerasbert.convert(model, tmp_path / "ours")
    again = sentence_transformers.CrossEncoder(str(tmp_path / "ours"))
    assert np.abs(again.predict(PAIRS) - expected).max() <= 1e-5
    assert kerasbert.convert(directory, tmp_path / "there")["model"] == "BertReranker"
    # Before version 6, `config.json` had it.
    name = "torch.nn.modules.linear.Identity"
    for key, value in (
        ("sentence_transformers", {"activation_fn": name, "version": "4.1.0"}),
        ("sbert_ce_default_activation_function", name),
    ):
        old = tmp_path / key
        shutil.copytree(directory, old)
        (old / "modules.json").unlink()
        (old / "config_sentence_transformers.json").unlink()
        plain = BertReranker.from_preset(old)
        assert (plain.activation, plain.preprocessor.sequence_length) == ("sigmoid", 12)
        change(old / "config.json", **{key: value})
        found = BertReranker.from_preset(old)
        assert (found.activation, found.preprocessor.sequence_length) == ("linear", 12)


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_what_is_no_reranker(reference, theirs, tmp_path):
    many = reference("bert", "ForSequenceClassification", num_labels=3).directory
    with pytest.raises(ValueError, match="has 3 labels, .* one score; load it with BertTextClass"):
        BertReranker.from_preset(many, preprocessor=None)
    with pytest.warns(UserWarning, match="New, random weights"):
        BertReranker.from_preset(many, preprocessor=None, new_head=True)
    with pytest.raises(ValueError, match="no head for a BertReranker; pass new_head=True"):
        BertReranker.from_preset(reference("bert").directory, preprocessor=None)
    cross, directory = theirs(activation_fn=torch.nn.Tanh())
    with pytest.raises(ValueError, match="'torch.*Tanh', but a BertReranker only with Sigmoid"):
        BertReranker.from_preset(directory)
    assert BertTextRegressor.from_preset(directory).score(PAIRS).shape == (10,)
    path = directory / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([*modules, {"idx": 1, "path": "1_Dense", "type": "a.b.Dense"}]))
    with pytest.raises(ValueError, match="Transformer, Dense; kerasbert supports only Transformer"):
        BertReranker.from_preset(directory)
    # A cross-encoder with several classes is a classifier.
    shutil.copytree(many, tmp_path / "classes")
    change(tmp_path / "classes" / "config.json", sentence_transformers={"activation_fn": None})
    with pytest.warns(UserWarning, match="No tokenizer is written"):
        said = kerasbert.convert(tmp_path / "classes", tmp_path / "there")
    assert said["model"] == BertTextClassifier.__name__

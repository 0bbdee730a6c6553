"""The masked language model: contract, loss, training on raw text, `fill_mask`."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.models import (
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertMultiTask,
    BertPreprocessor,
    BertPretrainer,
    BertPretrainerPreprocessor,
)
from tests.contracts import (
    array,
    arrays,
    assert_close,
    batch,
    bert_tokenizer,
    model_contract,
    perturb,
    tiny_backbone,
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it ##s ! 我".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
TEXTS = ["the film was good fun", "it was a very dull film", "the films was very very bad"]


def make(cls, family="bert", pooler=None, **settings):
    pooler = cls is BertPretrainer if pooler is None else pooler
    return perturb(cls(tiny_backbone(family, pooler=pooler, **settings)))


def make_raw(cls=BertMaskedLM, sequence_length=16, compiled=False, num_layers=2, **settings):
    keras.utils.set_random_seed(0)
    tokenizer = bert_tokenizer(TOKENS)
    pretrains = cls is BertPretrainer
    preprocessor = BertPretrainerPreprocessor if pretrains else BertMaskedLMPreprocessor
    encoder = tiny_backbone(dropout=0.0, pooler=pretrains, num_layers=num_layers)
    model = cls(encoder, preprocessor(tokenizer, sequence_length=sequence_length), **settings)
    # Most tests run faster without compilation, but not on JAX.
    eager = not compiled and keras.backend.backend() != "jax"
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=eager)
    return model


@pytest.fixture(scope="module")
def model():
    return make(BertMaskedLM)


@pytest.fixture(scope="module")
def raw():
    return perturb(make_raw(num_layers=1))


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, BertMaskedLM, family), tmp_path)


# --- outputs and loss ---


@pytest.mark.backends("tensorflow", "torch")
def test_logits_at_positions_are_those_of_the_tokens(model):
    features = batch(model)
    positions = features.pop("mask_positions")
    every = array(model(features))
    assert every.shape == (3, 7, 30)
    found = array(model({**features, "mask_positions": positions}))
    expected = np.take_along_axis(every, positions[..., None], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(model.predict(features, verbose=0), every, atol=1e-5)


@pytest.mark.backends("torch")
def test_training_is_that_of_all_tokens():
    """Skipping unused tokens changes neither the loss nor a gradient."""
    model = make(BertPretrainer, dropout=0.0)
    features = batch(model)
    y = {"mlm_logits": np.array([[3, 4, 0], [5, 0, 0], [6, 7, 8]]), "nsp_logits": np.arange(3) % 2}
    encoded = model.backbone(model.backbone.input)
    logits = model.mlm_head(encoded["sequence_output"], model.input["mask_positions"])
    pairs = model.get_layer("nsp_logits")(model.output_dense(encoded["pooled_output"]))
    whole = keras.Model(model.input, {"mlm_logits": logits, "nsp_logits": pairs})
    before, after = model.get_weights(), []
    for one in (whole, model):
        one.compile(keras.optimizers.SGD(0.5), model.default_loss(), run_eagerly=True)
        model.set_weights(before)
        loss = one.train_on_batch(features, y, return_dict=True)["loss"]
        after.append([loss, *map(np.array, model.get_weights())])
    for first, second in zip(*after, strict=True):
        np.testing.assert_allclose(second, first, atol=1e-5)
    moved = [np.abs(a - b).max() > 1e-4 for a, b in zip(before, after[0][1:])]
    assert sum(moved) > len(moved) / 2


@pytest.mark.backends("tensorflow", "torch")
def test_one_table():
    """The token embedding exists once, and gets gradients from both its uses."""
    model = make(BertMaskedLM)
    shapes = [tuple(weight.shape) for weight in model.weights]
    assert shapes.count((30, 16)) == 1 and len(set(map(id, model.weights))) == len(model.weights)
    before = array(model(batch(model)))
    table = model.backbone.token_embedding.embeddings
    table.assign(array(table) * 2)
    assert np.abs(array(model(batch(model))) - before).max() > 0.1


@pytest.mark.backends("torch")
def test_loss_is_the_mean_over_what_is_hidden(model):
    features = batch(model)
    y = np.array([[3, 4, 0], [5, 0, 0], [6, 7, 8]])
    weights = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], "float32")
    logits = array(model(features)).astype("float64")
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y[..., None], -1)[..., 0]
    found = model.evaluate(features, y, sample_weight=weights, verbose=0)
    assert found[0] == pytest.approx((losses * weights).sum() / weights.sum(), abs=1e-5)
    right = (logits.argmax(-1) == y) * weights
    assert found[1] == pytest.approx(right.sum() / weights.sum(), abs=1e-6)


@pytest.mark.backends("torch")
def test_rows_without_hidden_tokens():
    """A batch without masked tokens has no loss, and moves nothing to NaN."""
    model = make(BertMaskedLM)
    features = batch(model)
    zeros = np.zeros((3, 3))
    model.compile("sgd", run_eagerly=True)
    loss = model.train_on_batch(features, zeros.astype("int32"), sample_weight=zeros)
    assert np.ravel(loss)[0] == 0
    assert all(np.isfinite(array(weight)).all() for weight in model.weights)


# --- the pretrainer on arrays ---


def _log_softmax(logits):
    logits = logits.astype("float64")
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("cls", [BertMaskedLM, BertPretrainer])
def test_a_pooler_that_is_not_used_does_not_train(cls):
    backbone = tiny_backbone()
    model = cls(backbone, **({} if cls is BertMaskedLM else {"next_sentence": False}))
    pooler = set(map(id, backbone.pooled_dense.weights))
    assert backbone.pooled_dense.trainable
    assert not pooler & set(map(id, model.trainable_weights))
    # The pooler trains together with a task that uses it.
    both = BertMultiTask({"hidden": model, "pairs": BertPretrainer(backbone)})
    assert pooler <= set(map(id, both.trainable_weights))


# --- raw texts ---


@pytest.mark.backends("torch")
def test_fit_on_texts():
    model = make_raw(compiled=True)
    texts = TEXTS * 8
    first = model.evaluate(texts, verbose=0)
    assert model.evaluate(texts, verbose=0) == first  # `evaluate` masks the same tokens each time.
    history = model.fit(texts, epochs=12, batch_size=8, validation_split=0.25, verbose=0).history
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert model.evaluate(texts, verbose=0)[0] < 0.8 * first[0]
    assert model.fill_mask("the film was good [MASK]", 1)[0]["token"] in " ".join(TEXTS).split()


@pytest.mark.backends("torch")
def test_fit_repeats_with_its_seed():
    models = [make_raw(num_layers=1) for _ in range(2)]
    histories = []
    for model in models:
        keras.utils.set_random_seed(3)
        histories.append(model.fit(TEXTS * 4, epochs=2, batch_size=6, verbose=0).history)
    assert histories[0] == histories[1]


@pytest.mark.backends("torch")
def test_other_tokens_are_hidden_in_every_epoch():
    preprocessor = make_raw().preprocessor
    texts = [" ".join(f"word{i % 12}" for i in range(14))] * 8
    dataset = preprocessor.batches(texts, batch_size=4, shuffle=False)

    def places(dataset):
        return np.concatenate([x["mask_positions"] for x, _, _ in dataset.as_numpy_iterator()])

    first, second = places(dataset), places(dataset)
    assert first.shape == (8, 2) and (first != second).any()
    assert (first[:4] != first[4:]).any()
    # The masked tokens are the same for the same seed, and always the same in `evaluate`.
    dataset = [preprocessor.batches(texts, batch_size=4, seed=7) for _ in range(2)]
    np.testing.assert_array_equal(places(dataset[0]), places(dataset[1]))
    dataset, _ = preprocessor.sorted_batches(texts)
    np.testing.assert_array_equal(places(dataset), places(dataset))


@pytest.mark.backends("torch")
def test_fit_on_a_dataset():
    """A `tf.data.Dataset` of raw batches: other tokens in every pass, the same for a seed."""
    import tensorflow as tf

    model = make_raw(num_layers=1)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS * 4).batch(6)
    history = model.fit(dataset, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert model.evaluate(dataset, verbose=0) == model.evaluate(dataset, verbose=0)

    def passes():
        keras.utils.set_random_seed(3)
        mapped = model.preprocessor.map_dataset(dataset)
        return [[y.tolist() for _, y, _ in mapped.as_numpy_iterator()] for _ in range(2)]

    first, second = passes()
    assert first != second and passes() == [first, second]
    single = tf.data.Dataset.from_tensor_slices(TEXTS).map(model.preprocessor)
    assert next(iter(single))[0]["mask_positions"].shape == (2,)


@pytest.mark.backends("tensorflow", "torch")
def test_what_the_preprocessor_hides(raw):
    preprocessor = raw.preprocessor
    texts = ["the 😀 film [SEP]", "", "the film was very very dull and very bad bad bad bad"]
    for _ in range(20):
        features, y, weights = arrays(preprocessor(texts))
        ids = preprocessor.pack(preprocessor.tokenize(texts))["token_ids"]
        assert features["token_ids"].shape == (3, 16) and y.shape == (3, 2)
        hidden = np.take_along_axis(ids, features["mask_positions"], axis=1)[weights > 0]
        assert not set(hidden) & set(preprocessor.tokenizer.special_token_ids)
        np.testing.assert_array_equal(y[weights > 0], hidden)
        assert weights.sum(axis=1).tolist() == [1, 0, 2]
        changed = features["token_ids"] != ids
        assert changed.sum() <= weights.sum()
    weighted = preprocessor(texts, None, [0.5, 1, 2])[2]
    assert array(weighted).sum(axis=1).tolist() == [0.5, 0, 4]


@pytest.mark.backends("tensorflow", "torch")
def test_preset_of_the_preprocessor(tmp_path):
    model = make_raw(num_layers=1)
    model.preprocessor.mask_selection_rate = 0.3
    model.save_to_preset(str(tmp_path))
    loaded = BertMaskedLM.from_preset(str(tmp_path))
    assert loaded.preprocessor.mask_selection_rate == 0.3
    loaded = BertMaskedLM.from_preset(str(tmp_path), mask_selection_rate=0.4, mask_token_rate=0.5)
    config = loaded.preprocessor.get_config()
    assert (config["mask_selection_rate"], config["mask_token_rate"]) == (0.4, 0.5)
    with pytest.raises(ValueError, match="mask_token_rate=0.8 and random_token_rate=0.5 add up"):
        BertMaskedLM.from_preset(str(tmp_path), random_token_rate=0.5)


# --- fill_mask ---


@pytest.mark.backends("tensorflow", "torch")
def test_fill_mask(raw):
    found = raw.fill_mask("The film was Good [MASK]", top_k=3)
    assert [row["text"] for row in found] == [f"The film was Good {row['token']}" for row in found]
    assert all(row["token"] == TOKENS[row["token_id"]] for row in found) and len(found) == 3
    scores = [row["score"] for row in found]
    assert scores == sorted(scores, reverse=True) and sum(scores) < 1
    assert sum(row["score"] for row in raw.fill_mask("a [MASK]", top_k=99)) == pytest.approx(1)
    # If a text has two masks, each prediction leaves the other one masked.
    first, second = raw.fill_mask("The [MASK] was good [MASK]!", top_k=2)
    assert first[0]["text"] == f"The {first[0]['token']} was good [MASK]!"
    assert second[0]["text"] == f"The [MASK] was good {second[0]['token']}!"
    # In texts of other types, a mask token is plain text.
    assert TOKENS.index("[MASK]") not in raw.preprocessor.tokenizer("a [MASK]")
    # Many texts, in their order, of any length.
    texts = ["a [MASK]", "the film was very very very very [MASK]", "it was [MASK] [MASK]"] * 3
    every = raw.fill_mask(texts, batch_size=2)
    for text, rows in zip(texts, every, strict=True):
        alone = raw.fill_mask(text)
        for a, b in zip(keras.tree.flatten(rows), keras.tree.flatten(alone), strict=True):
            assert a == (pytest.approx(b, abs=1e-5) if isinstance(a, float) else b)


@pytest.mark.backends("tensorflow", "torch")
def test_fill_mask_scores_are_those_of_the_logits(raw):
    found = raw.fill_mask("good [MASK] film", top_k=30)
    ids = np.array([[2, 5, 4, 7, 3]])
    logits = array(raw({"token_ids": ids}))[0, 2].astype("float64")
    expected = np.exp(_log_softmax(logits))
    for row in found:
        assert row["score"] == pytest.approx(expected[row["token_id"]], abs=1e-6)
    assert [row["token_id"] for row in found] == np.argsort(-expected).tolist()


@pytest.mark.backends("tensorflow", "torch")
def test_fill_mask_names_tokens_only():
    """Predictions are tokens, even if the encoder has more rows than the tokenizer has tokens."""
    preprocessor = BertMaskedLMPreprocessor(bert_tokenizer(TOKENS), 16)
    model = BertMaskedLM(tiny_backbone(num_layers=1, vocabulary_size=33), preprocessor)
    model.mlm_head.bias.assign(np.where(np.arange(33) < 30, 0.0, 9.0))
    found = model.fill_mask("a [MASK]", top_k=99)
    assert sorted(row["token_id"] for row in found) == list(range(30))


@pytest.mark.backends("tensorflow", "torch")
def test_fill_mask_joins_words(raw):
    texts = {
        "the film [MASK].": {"##s": "the films.", "good": "the film good."},
        "我[MASK]": {"我": "我我"},
        "[MASK] good": {"a": "a good"},
    }
    for text, expected in texts.items():
        found = {row["token"]: row["text"] for row in raw.fill_mask(text, top_k=30)}
        for token, filled in expected.items():
            assert found[token] == filled


@pytest.mark.backends("tensorflow", "torch")
def test_fill_mask_in_a_long_text():
    """Only the context of the mask fits into a row, whether the mask is at either end or in the
    middle.
    """
    model = perturb(make_raw(sequence_length=10, num_layers=1))
    words = [f"word{i % 12}" for i in range(50)]
    for place in (0, 25, 49):
        text = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
        first = min(max(place - 4, 0), 42)
        window = [*words[:place], "[MASK]", *words[place + 1 :]][first : first + 8]
        found, alone = model.fill_mask(text), model.fill_mask(" ".join(window))
        assert [row["token"] for row in found] == [row["token"] for row in alone]
        assert found[0]["score"] == pytest.approx(alone[0]["score"], abs=1e-6)
        assert found[0]["text"] == text.replace("[MASK]", found[0]["token"])


# --- bad input ---


def test_bad_texts(model, raw):
    with pytest.raises(
        ValueError, match=r"text 'no mask' at position 1 has no mask token; write \[MASK\]"
    ):
        raw.fill_mask(["a [MASK]", "no mask"])
    with pytest.raises(ValueError, match="fill_mask.. takes single texts"):
        raw.fill_mask(("a [MASK]", "b"))
    with pytest.raises(ValueError, match="top_k=0 must be a whole number of at least 1"):
        raw.fill_mask("a [MASK]", top_k=0)
    with pytest.raises(ValueError, match=r"text at position 0 is None"):
        raw.fill_mask([None])
    with pytest.raises(ValueError, match=r"position 1 has a \[MASK\], .* call fill_mask\(texts\)"):
        raw.predict(["a", "the [MASK]"])
    with pytest.raises(ValueError, match=r"predict\(\) .* got raw texts; call fill_mask\(texts\)"):
        make_raw(BertPretrainer, num_layers=1).predict((TEXTS, TEXTS))
    with pytest.raises(ValueError, match="makes its own labels"):
        raw.fit(TEXTS, [0, 1, 0], verbose=0)
    with pytest.raises(ValueError, match=r"fill_mask\(\) takes texts, but this model has no prep"):
        model.fill_mask("a [MASK]")


def test_bad_positions(model):
    features = batch(model)
    features["mask_positions"][1, 2] = 7
    for call in (model.predict, functools.partial(model.fit, y=np.ones((3, 3)))):
        with pytest.raises(ValueError, match="mask_positions has 7 in row 1, slot 2, where"):
            call(features, verbose=0)


def test_bad_rates():
    tokenizer = bert_tokenizer(TOKENS)
    with pytest.raises(ValueError, match="mask_selection_rate=15 must be a number from 0 to 1"):
        BertMaskedLMPreprocessor(tokenizer, mask_selection_rate=15)
    with pytest.raises(ValueError, match="add up to more than 1"):
        BertPretrainerPreprocessor(tokenizer, mask_token_rate=0.9, random_token_rate=0.2)


def test_predict_on_texts(raw):
    """As in KerasHub, `predict` masks tokens, the same ones each time, and returns their logits."""
    logits = raw.predict(TEXTS, batch_size=2, verbose=0)
    assert logits.shape[0] == len(TEXTS) and logits.shape[2] == raw.backbone.vocabulary_size
    assert_close(raw.predict(TEXTS, batch_size=2, verbose=0), logits, atol=0)
    dataset, order = raw.preprocessor.sorted_batches(TEXTS, 2, buckets=False)
    features = next(iter(dataset.as_numpy_iterator()))[0]
    expected = array(raw(features))
    assert_close(logits[order[:2], : expected.shape[1]], expected)


def test_nothing_hidden():
    """KerasHub's `mask_selection_rate=0.0`: packed rows unchanged, and slots of weight 0."""
    tokenizer = bert_tokenizer(TOKENS)
    for most, slots in ((None, 1), (3, 3)):
        preprocessor = BertMaskedLMPreprocessor(
            tokenizer, 16, mask_selection_rate=0.0, mask_selection_length=most
        )
        features, y, weights = arrays(preprocessor(TEXTS))
        assert_close(features["token_ids"], BertPreprocessor(tokenizer, 16)(TEXTS)["token_ids"])
        for empty in (features["mask_positions"], y, weights):
            assert empty.shape == (len(TEXTS), slots) and not empty.any()
    model = make_raw(num_layers=1)
    model.preprocessor.mask_selection_rate = 0.0
    assert model.evaluate(TEXTS, verbose=0)[0] == 0

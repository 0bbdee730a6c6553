"""ELECTRA pre-training: shared tables, sampling and losses as in transformers; raw texts."""

import functools

import keras
import numpy as np
import pytest

from kerasbert import convert
from kerasbert.layers import TokenReplacement
from kerasbert.lineage import XLNetBackbone
from kerasbert.models import (
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertReplacedTokenDetector,
    BertTextClassifier,
    ElectraPretrainer,
    ElectraPretrainerPreprocessor,
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
from tests.peers import torch

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the dog ##s bark at cat . sleep good".split()
TOKENS += [f"w{i}" for i in range(30 - len(TOKENS))]
TEXTS = ["the dogs bark at the cat .", "the cat sleep .", "good dogs sleep at the good cat ."]
GENERATOR = {"hidden_dim": 4, "num_heads": 2, "num_layers": 1}
TABLES = (
    "token_embedding",
    "position_embedding",
    "segment_embedding",
    "embeddings_layer_norm",
)
WORDS = np.array([[3, 4, 9], [5, 6, 7], [6, 7, 8]])
WEIGHTS = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], "float32")


def make(family="electra", generator=GENERATOR, **settings):
    settings = {"num_layers": 1, **settings} if family == "electra" else settings
    model = perturb(ElectraPretrainer(tiny_backbone(family, **settings), generator=generator))
    # Most tests run faster without compilation, but not on JAX.
    model.compile(run_eagerly=keras.backend.backend() != "jax")
    return model


def make_raw(**settings):
    keras.utils.set_random_seed(0)
    packer = ElectraPretrainerPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    backbone = tiny_backbone("electra", dropout=0.0, num_layers=1)
    model = ElectraPretrainer(backbone, packer, GENERATOR, **settings)
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=keras.backend.backend() != "jax")
    return model


def features_of(model):
    """Return rows whose last tokens are padding, with positions that are never the first token."""
    features = batch(model)
    features["mask_positions"] = np.array([[5, 1, 0], [3, 0, 0], [1, 2, 4]], "int32")
    return features


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone("electra", num_layers=1)


@pytest.mark.slow
@model_contract("electra")
def test_contract(family, check, tmp_path):
    check(functools.partial(make, family), tmp_path)


# --- shared tables ---


@pytest.mark.parametrize("family", ["electra", "bert", "modernbert"])
def test_one_set_of_tables(family):
    model = make(family, num_layers=1)
    small, encoder = model.masked_lm.backbone, model.backbone
    inside = {id(weight) for weight in small.weights}
    shared = [weight for weight in encoder.weights if id(weight) in inside]
    tables = {w.path.partition("/")[0] for w in encoder.weights} & set(TABLES)
    assert {w.path.partition("/")[0] for w in shared} == tables
    assert len(tables) == (2 if family == "modernbert" else 4)
    assert model.masked_lm.mlm_head.token_embedding is encoder.token_embedding
    assert (small.num_layers, small.hidden_dim) == (1, 4) and small.embedding_dim
    # PyTorch and checkpoints identify weights by their paths.
    assert len({weight.path for weight in model.weights}) == len(model.weights)
    own = [w for w in model.weights if w.path.startswith("generator/")]
    assert len(own) + len(shared) == len(small.weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "generator"),
    [
        ((256, 4, 128), (64, 1, 256, 128)),  # small
        ((768, 12, None), (256, 4, 1024, 768)),  # base
        ((16, 2, None), (4, 1, 16, 16)),
        ((128, 2, 32), (32, 1, 128, None)),  # As wide as the tables, so there is no projection.
    ],
)
def test_the_size_of_the_generator(encoder, generator):
    hidden_dim, num_heads, embedding_dim = encoder
    backbone = tiny_backbone(
        "electra", hidden_dim=hidden_dim, num_heads=num_heads, embedding_dim=embedding_dim
    )
    small = ElectraPretrainer(backbone).masked_lm.backbone
    names = ("hidden_dim", "num_heads", "intermediate_dim", "embedding_dim")
    assert tuple(getattr(small, name) for name in names) == generator
    assert small.num_layers == backbone.num_layers


# --- sampling ---


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_draws():
    """Tokens are drawn according to their probabilities, only at masked positions, and reproducibly
    at inference.
    """
    odds = np.array([0.5, 0.3, 0.2, 0.0], "float32")
    logits = np.broadcast_to(np.log(odds + 1e-30), (200, 10, 4)).astype("float32")
    ids = np.full((200, 12), 9, "int32")
    positions = np.tile(np.arange(1, 11, dtype="int32"), (200, 1))
    layer = TokenReplacement(seed=3)
    draw = functools.partial(layer, logits, token_ids=ids, mask_positions=positions)
    found = array(draw(training=True))
    assert (found[:, [0, 11]] == 9).all()
    shares = np.bincount(found[:, 1:11].ravel(), minlength=4) / 2000
    np.testing.assert_allclose(shares, odds, atol=0.04)
    assert (array(draw(training=True)) != found).any()
    assert_close(draw(), draw(), atol=0)
    again = TokenReplacement.from_config(layer.get_config())
    again = array(again(logits, token_ids=ids, mask_positions=positions, training=True))
    assert_close(again, found, atol=0)


def test_empty_slots():
    logits = np.eye(4, dtype="float32")[None] * 99  # Slot i draws token i.
    replaced = TokenReplacement()(
        logits, token_ids=np.full((1, 5), 9), mask_positions=np.array([[0, 3, 3, 0]])
    )
    # The first token stays; of two slots at one position, the first counts.
    assert array(replaced).tolist() == [[9, 9, 9, 1, 9]]


# --- the loss ---


def cross_entropy(logits, labels):
    logits = logits - logits.max(-1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, labels[..., None], -1)[..., 0]


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_losses_by_hand(model):
    features = features_of(model)
    outputs = arrays(model(features))
    words = WORDS.copy()
    # One slot draws the original token, so it was not replaced.
    words[0, 0] = outputs["token_ids"][0, 5]
    rows, slots = np.nonzero(features["mask_positions"])
    originals = features["token_ids"].copy()
    originals[rows, features["mask_positions"][rows, slots]] = words[rows, slots]
    replaced = outputs["token_ids"] != originals
    assert not replaced[0, 5] and 4 <= replaced.sum() <= 5
    same = np.ones_like(replaced)
    same[rows, features["mask_positions"][rows, slots]] = False
    assert (outputs["token_ids"] == features["token_ids"])[same].all()
    mlm = (cross_entropy(outputs["mlm_logits"], words) * WEIGHTS).sum() / WEIGHTS.sum()
    x = outputs["detection_logits"]
    each = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * replaced
    other = ElectraPretrainer(model.backbone, None, GENERATOR, mlm_weight=0, detection_weight=2)
    other.set_weights(model.get_weights())
    other.compile(run_eagerly=True)
    for counts in (None, np.array([1.0, 0.0, 2.0], "float32")):
        mask = features["padding_mask"] * (1 if counts is None else counts[:, None])
        detection = (each * mask).sum() / mask.sum()
        weights = WEIGHTS
        if counts is not None:
            weights = {"mlm_logits": WEIGHTS, "detection_logits": counts}
        given = {"x": features, "y": words, "sample_weight": weights, "return_dict": True}
        found = model.evaluate(**given, verbose=0)
        hits = (x > 0) * replaced * mask
        expected = {
            "mlm_logits_loss": mlm,
            "detection_logits_loss": detection,
            "loss": mlm + 50 * detection,
            "detection_logits_accuracy": (((x > 0) == replaced) * mask).sum() / mask.sum(),
            "detection_logits_replaced": (replaced * mask).sum() / mask.sum(),
            "detection_logits_recall": hits.sum() / (replaced * mask).sum(),
            "detection_logits_precision": hits.sum() / ((x > 0) * mask).sum(),
        }
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, abs=1e-5, rel=1e-5), (name, counts)
        found = other.evaluate(**given, verbose=0)
        assert found["loss"] == pytest.approx(2 * detection, abs=1e-5), counts


def test_a_slot_without_weight_says_nothing(model):
    """In a slot without weight, a token is sampled, but whether it is the original one is
    unknown.
    """
    features = features_of(model)
    found = []
    for words in (WORDS, np.where(WEIGHTS > 0, WORDS, 1)):
        features["mask_positions"][1] = [3, 2, 2]
        found.append(model.evaluate(features, words, sample_weight=WEIGHTS, verbose=0))
    assert_close(found[0], found[1], atol=1e-7)
    assert 0 < found[0][0]


# --- comparison with transformers ---


def peers_of(model, tmp_path):
    """Return both parts as transformers models, on shared tables."""
    import transformers

    theirs = []
    for part, name in ((model.masked_lm, "ForMaskedLM"), (model.detector, "ForPreTraining")):
        part.save_to_preset(str(tmp_path / name))
        convert(str(tmp_path / name), str(tmp_path / f"hf{name}"), tokenizer=False)
        cls = getattr(transformers, f"Electra{name}")
        theirs.append(cls.from_pretrained(str(tmp_path / f"hf{name}")).eval())
    generator, detector = theirs
    generator.electra.embeddings = detector.electra.embeddings
    # In transformers, drawn padding tokens get no gradient; with a small vocabulary, they are often
    # drawn.
    detector.electra.embeddings.word_embeddings.padding_idx = None
    generator.generator_lm_head.weight = detector.electra.embeddings.word_embeddings.weight
    return generator, detector


@pytest.mark.peers
def test_equals_transformers(tmp_path):
    """Losses, and the gradients of every weight: none passes through the samples."""
    model = make(dropout=0.0)
    features = features_of(model)
    generator, detector = peers_of(model, tmp_path)
    state = model.replacement.seed_generator.state
    before, weights = array(state), arrays([w.value for w in model.trainable_weights])
    ids = array(model(features, training=True)["token_ids"])
    state.assign(before)  # The step draws the same tokens.
    model.compile(keras.optimizers.SGD(1.0), run_eagerly=True)
    found = model.train_on_batch(features, WORDS, WEIGHTS, return_dict=True)

    inputs = {
        "attention_mask": torch.tensor(features["padding_mask"]).long(),
        "token_type_ids": torch.tensor(features["segment_ids"]).long(),
    }
    logits = generator(input_ids=torch.tensor(features["token_ids"]).long(), **inputs).logits
    labels = np.full_like(features["token_ids"], -100)
    rows, slots = np.nonzero(WEIGHTS)
    places = features["mask_positions"][rows, slots]
    labels[rows, places] = WORDS[rows, slots]
    functional = torch.nn.functional
    mlm = functional.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).long().flatten())
    replaced = (labels != -100) & (ids != labels)
    assert replaced.any()
    detection = detector(
        input_ids=torch.tensor(ids).long(), labels=torch.tensor(replaced).long(), **inputs
    ).loss
    total = mlm + 50 * detection
    total.backward()
    for name, value in (
        ("mlm_logits_loss", mlm),
        ("detection_logits_loss", detection),
        ("loss", total),
    ):
        assert found[name] == pytest.approx(value.item(), abs=1e-5), name
    moved = {
        w.path: was - array(w) for w, was in zip(model.trainable_weights, weights, strict=True)
    }
    names = {
        "token_embedding/embeddings": "word_embeddings.weight",
        "position_embedding/embeddings": "position_embeddings.weight",
        "segment_embedding/embeddings": "token_type_embeddings.weight",
        "embeddings_layer_norm/gamma": "LayerNorm.weight",
        "embeddings_layer_norm/beta": "LayerNorm.bias",
    }
    tables = dict(detector.electra.embeddings.named_parameters())
    pairs = [(moved[ours], tables[theirs]) for ours, theirs in names.items()]
    pairs += [
        (moved["generator/embeddings_projection/kernel"].T,
         generator.electra.embeddings_project.weight),
        (moved["embeddings_projection/kernel"].T, detector.electra.embeddings_project.weight),
        (moved["mlm_head/dense/kernel"].T, generator.generator_predictions.dense.weight),
        (moved["mlm_head/bias"], generator.generator_lm_head.bias),
        (moved["head_dense/kernel"].T, detector.discriminator_predictions.dense.weight),
    ]  # fmt: skip
    for ours, theirs in pairs:
        theirs = theirs.grad.numpy()
        assert np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1, np.abs(theirs).max()))


# --- texts and results ---


@pytest.mark.backends("torch")
def test_texts(tmp_path):
    model = make_raw()
    history = model.fit(TEXTS * 8, batch_size=8, epochs=6, verbose=0).history
    assert history["mlm_logits_loss"][-1] < history["mlm_logits_loss"][0]
    assert history["detection_logits_loss"][-1] < history["detection_logits_loss"][0]
    scores = model.evaluate(TEXTS, return_dict=True, verbose=0)
    assert model.evaluate(TEXTS, return_dict=True, verbose=0) == scores
    # Its preset has both models and provides the detector; each is also a model by itself.
    model.save_to_preset(str(tmp_path / "whole"))
    loaded = ElectraPretrainer.from_preset(str(tmp_path / "whole"))
    assert loaded.evaluate(TEXTS, return_dict=True, verbose=0)["loss"] == pytest.approx(
        scores["loss"], abs=1e-5
    )
    found, text = model.detector.detect(TEXTS), "the [MASK] sleep ."
    for one in (str(tmp_path / "whole"), str(tmp_path / "detector")):
        if one.endswith("detector"):
            model.detector.save_to_preset(one)
        again = BertReplacedTokenDetector.from_preset(one).detect(TEXTS)
        for ours, theirs in zip(found, again, strict=True):
            np.testing.assert_allclose(
                [x["score"] for x in ours], [x["score"] for x in theirs], atol=1e-6
            )
    with pytest.warns(UserWarning, match="New, random weights"):
        BertTextClassifier.from_preset(str(tmp_path / "detector"), num_classes=2)
    model.masked_lm.save_to_preset(str(tmp_path / "generator"))
    alone = BertMaskedLM.from_preset(str(tmp_path / "generator"))
    assert type(alone.preprocessor) is BertMaskedLMPreprocessor
    assert not any(weight.path.startswith("generator/") for weight in alone.weights)
    for ours, theirs in zip(alone.fill_mask(text), model.fill_mask(text), strict=True):
        assert ours["token"] == theirs["token"]
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-5)


def test_what_is_hidden():
    packer = ElectraPretrainerPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    features, y, weights = packer(TEXTS * 200)
    ids, positions = array(features["token_ids"]), array(features["mask_positions"])
    used = array(weights["mlm_logits"]) > 0
    seen = np.take_along_axis(ids, positions, axis=1)[used]
    words = array(y["mlm_logits"])[used]
    hidden = seen == 4
    # 85 % of the chosen tokens are masked; the others are unchanged.
    assert 0.8 < hidden.mean() < 0.9
    assert (seen[~hidden] == words[~hidden]).all()
    assert "detection_logits" not in weights
    *_, weights = packer(["the cat", "the dog"], sample_weight=np.array([1.0, 3.0]))
    assert array(weights["detection_logits"]).tolist() == [1, 3]
    assert array(weights["mlm_logits"]).tolist() == [[1], [3]]


@pytest.mark.backends("torch")
def test_few_texts_and_none_to_hide():
    model = make_raw()
    for texts in (["good"], ["", "[CLS]"], ["", "the cat sleep ."]):
        found = model.fit(texts, verbose=0).history
        found = {**found, **model.evaluate(texts, return_dict=True, verbose=0)}
        for name, value in found.items():
            assert np.isfinite(value).all(), (texts, name)
        assert found["detection_logits_loss"] > 0, texts


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_compiled_and_in_half_precision():
    model = make(dtype="mixed_bfloat16")
    features = features_of(model)
    model.compile(keras.optimizers.Adam(0.01), jit_compile=True)
    losses = model.fit(
        features, WORDS, sample_weight=WEIGHTS, epochs=8, batch_size=3, verbose=0
    ).history["mlm_logits_loss"]
    assert losses[-1] < losses[0]


def test_two_on_one_encoder():
    """Their generators are separate, and each trains what it trained before."""
    backbone = tiny_backbone("electra", num_layers=1, dropout=0.0)
    first = perturb(ElectraPretrainer(backbone, generator=GENERATOR))
    paths = [weight.path for weight in first.trainable_weights]
    second = ElectraPretrainer(backbone, generator={**GENERATOR, "num_layers": 2})
    assert [weight.path for weight in first.trainable_weights] == paths
    before = arrays([w.value for w in first.masked_lm.backbone.transformer_layers[0].weights])
    second.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    second.train_on_batch(features_of(second), WORDS, WEIGHTS)
    after = [w.value for w in first.masked_lm.backbone.transformer_layers[0].weights]
    assert_close(after, before, atol=0)


# --- misuse ---


@pytest.mark.parametrize(
    ("generator", "error", "message"),
    [
        ({"vocabulary_size": 99}, ValueError, "vocabulary_size=99, which it shares with the enc"),
        (
            {"embedding_dim": 4},
            ValueError,
            "embedding_dim=4, which it shares .* num_layers, hidden_dim",
        ),
        ({"num_layer": 2}, ValueError, "generator has no argument 'num_layer'; did you mean num_l"),
        (
            {"hidden_dim": 0},
            ValueError,
            "generator: hidden_dim=0 must be a whole number of at least 1",
        ),
        ({"hidden_dim": 6, "num_heads": 4}, ValueError, "hidden_dim=6 is not a multiple of num_"),
        (4, TypeError, "generator must be a dict .* got a int"),
    ],
)
def test_bad_generators(backbone, generator, error, message):
    with pytest.raises(error, match=message):
        ElectraPretrainer(backbone, generator=generator)


def test_wrong_use(backbone):
    with pytest.raises(TypeError, match="generator must be a dict .* got a BertBackbone"):
        ElectraPretrainer(backbone, generator=backbone)
    with pytest.raises(TypeError, match="must be a BertBackbone.* got a BertTextClassifier"):
        ElectraPretrainer(BertTextClassifier(backbone, 2))
    with pytest.raises(TypeError, match="must be a BertBackbone.* got a XLNetBackbone"):
        ElectraPretrainer(XLNetBackbone(9, 1, 1, 4, 4))
    with pytest.raises(TypeError, match="must be a ElectraPretrainerPreprocessor"):
        ElectraPretrainer(backbone, BertMaskedLMPreprocessor(bert_tokenizer(TOKENS)))
    with pytest.raises(ValueError, match="detection_weight=-1 must be a number of at least 0"):
        ElectraPretrainer(backbone, detection_weight=-1)
    model = make_raw()
    with pytest.raises(ValueError, match="makes its own labels"):
        model.fit(TEXTS, [0, 1, 0], verbose=0)
    with pytest.raises(ValueError, match="got no labels .* pass them as y"):
        model.fit(features_of(model), verbose=0)
    features = features_of(model)
    features["mask_positions"][0, 0] = 9
    with pytest.raises(ValueError, match="mask_positions has 9 in row 0, slot 0"):
        model.fit(features, WORDS, verbose=0)
    with pytest.raises(ValueError, match="convert"):
        convert(model, "nowhere")

"""The encoder: the contract of every family, and the effect of its settings."""

import functools
import warnings

import keras
import numpy as np
import pytest

from kerasbert.families import FAMILIES
from kerasbert.models import BertBackbone, BertTextClassifier
from tests.contracts import (
    BACKENDS,
    COMPUTED,
    FAMILY_SETTINGS,
    MODEL_CHECKS,
    RELATIVES,
    SETTINGS,
    SLOW,
    array,
    arrays,
    assert_close,
    batch,
    check_int8,
    feed_forward_tokens,
    tiny_backbone,
)

# Warnings of Keras would annoy users.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")


# Families whose layers differ: if these compile, train and quantize, so do the others.
COMPILED = (
    *("bert", "albert", "modernbert", "deberta", "deberta_v3", "mpnet", "gte", "eurobert"),
    "longformer",
)


def rows():
    for family in FAMILY_SETTINGS:
        for check in MODEL_CHECKS:
            if check in (*SLOW, check_int8) and family not in COMPILED:
                continue
            where = BACKENDS if check in COMPUTED else ("torch",)
            marks = (pytest.mark.slow, pytest.mark.backends(*where))
            yield pytest.param(family, check, id=f"{family}-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("family", "check"), list(rows()))
def test_contract(family, check, tmp_path):
    check(functools.partial(tiny_backbone, family), tmp_path)


def test_every_family_is_tested():
    assert {*FAMILY_SETTINGS, *RELATIVES} == set(FAMILIES)


@functools.cache
def encoder(family):
    return tiny_backbone(family, attention_dropout=0.1)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_what_happens_inside(family):
    backbone = encoder(family)
    features = batch(backbone)
    outputs = backbone(features)
    model = backbone.feature_model(output_hidden_states=True, output_attentions=True)
    found = model(features)
    hidden_states, attentions = found.pop("hidden_states"), found.pop("attentions")
    assert_close(found, outputs)
    assert len(hidden_states) == backbone.num_layers + 1
    assert len(attentions) == backbone.num_layers
    assert_close(hidden_states[-1], outputs["sequence_output"])
    assert all(state.shape == (3, 7, 16) for state in hidden_states)
    tokens = features["padding_mask"] > 0
    for scores in arrays(attentions):
        assert scores.shape == (3, 2, 7, 7)
        assert_close(scores.sum(axis=-1), np.ones((3, 2, 7)))
        # No token attends to padding.
        looks = tokens[:, None, :, None] & ~tokens[:, None, None, :]
        assert (scores[np.broadcast_to(looks, scores.shape)] == 0).all()
    if family in COMPILED:
        assert_close(model.predict(features, verbose=0)["attentions"], attentions)
        assert set(backbone.feature_model(False)(features)) == set(outputs)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_some_tokens_alone(family, monkeypatch):
    backbone = encoder(family)
    features = batch(backbone)
    expected = arrays(backbone(features))
    positions = np.array([[1, 3], [2, 0], [0, 0]], "int32")
    tokens = np.take_along_axis(expected["sequence_output"], positions[..., None], axis=1)
    runs = [functools.partial(backbone, positions=positions)]
    if family in COMPILED:
        places = keras.Input((None,), dtype="int32", name="positions")
        outputs = backbone(backbone.input, positions=places)
        assert outputs["sequence_output"].shape == (None, None, 16)
        model = keras.Model({**backbone.input, "positions": places}, outputs)
        runs.append(lambda x: model({**x, "positions": positions}))
    rows = feed_forward_tokens(monkeypatch)
    for run in runs:
        assert_close(run(features), {**expected, "sequence_output": tokens})
        # The other tokens skip the feed-forward network; the pooler also needs the first token.
        assert rows == [7] * (backbone.num_layers - 1) + [2 + ("pooled_output" in expected)]
        rows.clear()


@pytest.mark.backends("tensorflow", "torch")
def test_feature_model_is_saved(tmp_path):
    model = tiny_backbone(num_layers=1).feature_model(output_attentions=True)
    features = batch(model.backbone)
    expected = model(features)
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(features), expected, atol=0)


@pytest.mark.backends("tensorflow", "torch")
def test_causal():
    backbone = tiny_backbone(is_causal=True, num_layers=1, pooler=False)
    features = batch(backbone, (7, 7))
    expected = array(backbone(features)["sequence_output"])
    features["token_ids"][:, 4] += 1
    found = array(backbone(features)["sequence_output"])
    assert_close(found[:, :4], expected[:, :4])
    assert (np.abs(found[:, 4:] - expected[:, 4:]).max(axis=-1) > 1e-4).all()


def test_local_windows():
    # Layer 0 attends globally, 1 and 2 within two tokens, 3 globally.
    backbone = encoder("modernbert")
    features = batch(backbone, (11, 11), 11)
    model = backbone.feature_model(output_attentions=True)
    far = np.abs(np.subtract.outer(np.arange(11), np.arange(11))) > 2
    for i, scores in enumerate(arrays(model(features)["attentions"])):
        if i in (1, 2):
            assert (scores[:, :, far] == 0).all() and (scores[:, :, ~far] > 0).all()
        else:
            assert (scores > 0).all()
    # The rotary bases differ, too.
    expected = backbone(features)
    for name in ("rotary_base", "local_rotary_base"):
        other = tiny_backbone("modernbert", **{name: 7.0})
        difference = array(other(features)["sequence_output"]) - array(expected["sequence_output"])
        assert np.abs(difference).max() > 1e-4


@pytest.mark.backends("tensorflow", "torch")
def test_shared_layers():
    def count(**settings):
        return len(tiny_backbone("albert", num_groups=1, **settings).weights)

    assert count(num_layers=1) == count(num_layers=3)
    backbone = encoder("albert")
    layers = backbone.transformer_layers
    assert layers[0] is layers[1] and layers[2] is layers[3] and layers[1] is not layers[2]
    # There is one hidden state per layer, not per group, and one for the embeddings.
    assert len(backbone.feature_model()(batch(backbone))["hidden_states"]) == 5


@pytest.mark.backends("tensorflow", "torch")
def test_dropouts_are_apart():
    for settings in ({"dropout": 0.5, "attention_dropout": 0.0}, {"attention_dropout": 0.5}):
        backbone = tiny_backbone(**{"dropout": 0.0, "num_layers": 1, **settings})
        features = batch(backbone)
        assert_close(backbone(features), backbone(features), atol=0)
        first, second = (array(backbone(features, training=True)["sequence_output"]) for _ in "ab")
        assert np.abs(first - second).max() > 1e-3
    backbone = tiny_backbone(dropout=0.0, attention_dropout=0.0, num_layers=1)
    assert_close(backbone(features, training=True), backbone(features))
    assert BertBackbone(**SETTINGS, dropout=0.3).attention_dropout == 0.3


@pytest.mark.backends("torch")
def test_inference_is_fused(monkeypatch):
    from torch.nn import functional

    backbone = tiny_backbone(attention_dropout=0.1)
    features, calls, original = batch(backbone), [], functional.scaled_dot_product_attention

    def spy(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    monkeypatch.setattr("kerasbert.backend.torch_kernels.SHORT", 0)
    backbone(features)
    assert len(calls) == backbone.num_layers
    backbone(features, training=True)
    assert len(calls) == backbone.num_layers
    tiny_backbone(attention_dropout=0.0)(features, training=True)
    assert len(calls) >= 2 * backbone.num_layers


def test_too_long():
    backbone = encoder("bert")
    features = batch(backbone, (17,), 17)
    for call in (backbone, lambda x: backbone.predict(x, verbose=0)):
        with pytest.raises(ValueError, match="17 tokens per row, but the model has only 16 pos"):
            call(features)
    # Rotary positions have no maximum.
    assert encoder("modernbert")(features)["sequence_output"].shape == (1, 17, 16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, "hidden_dim=16 is not a multiple of num_heads=3"),
        ({"position_embedding": "sinus"}, "position_embedding='sinus' is unknown"),
        ({"num_groups": 3}, "num_groups must be .* num_layers=2, got 3"),
        ({"num_groups": 0}, "num_groups must be .* num_layers=2, got 0"),
        ({"num_layers": -1}, "num_layers=-1"),
        ({"vocabulary_size": 0}, "vocabulary_size=0"),
        ({"hidden_dim": 0}, "hidden_dim=0"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
        ({"activation": "gelo"}, "gelo"),
        ({"family": "gpt3"}, "Unknown family 'gpt3'"),
        ({"position_embedding": "rotary", "hidden_dim": 6}, "heads of width 3"),
        ({"local_window": 4, "global_every": 0}, "global_every=0"),
        ({"use_bias": ["norms"]}, "a part in use_bias='norms' is unknown; use one of attention,"),
        ({"use_bias": "norm"}, "use_bias='norm' must be true, false or a list of strings"),
        ({"position_embedding": "disentangled", "bucket_size": 1}, "bucket_size=1 must be a"),
        ({"position_embedding": "disentangled", "is_causal": True}, "is_causal=True and local_"),
        ({"position_embedding": "disentangled", "local_window": 4}, "got .* local_window=4"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BertBackbone(**{**SETTINGS, **settings})


def test_unknown_family():
    with pytest.raises(ValueError, match="Unknown family 'gpt3'; the families are bert, roberta"):
        BertBackbone.from_family("gpt3", **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "xlm_roberta"])
def test_left_padding_is_reported_where_positions_count_from_padding(family):
    backbone = tiny_backbone(family)
    task = BertTextClassifier(backbone, num_classes=2)
    ids = np.array([[1, 5, 6, 7], [5, 6, 7, 8]])
    left, right = np.array([[0, 1, 1, 1], [1, 1, 1, 1]]), np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    for call in (backbone, task, functools.partial(task.predict, verbose=0)):
        with pytest.warns(UserWarning, match="1 of 2 rows begin with padding.* pad on the right"):
            call({"token_ids": ids, "padding_mask": left})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call({"token_ids": ids, "padding_mask": right})
    with warnings.catch_warnings():  # BERT's positions are column numbers, in transformers too.
        warnings.simplefilter("error")
        tiny_backbone("bert")({"token_ids": ids, "padding_mask": left})


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ["bert", "deberta", "modernbert"])
def test_new_weights_of_the_last_layers(family):
    backbone = tiny_backbone(family)
    before = {weight.path: array(weight) for weight in backbone.weights}
    backbone.reinitialize_layers(1)
    for weight in backbone.weights:
        is_new = f"layer_{backbone.num_layers - 1}/" in weight.path or "pooled" in weight.path
        assert (array(weight) == before[weight.path]).any() != is_new
    last = backbone.transformer_layers[-1]
    assert array(last.output_layer_norm.gamma).min() == 1
    assert array(last.intermediate.kernel).std() == pytest.approx(0.02, rel=0.2)


@pytest.mark.backends("torch")
def test_layers_that_cannot_be_initialized():
    with pytest.raises(ValueError, match="count=3 is more than the encoder's 2 layers"):
        tiny_backbone().reinitialize_layers(3)
    with pytest.raises(ValueError, match=r"share weights \(num_groups=2\)"):
        tiny_backbone("albert").reinitialize_layers(1)
    backbone = tiny_backbone()
    backbone.enable_lora(2)
    with pytest.raises(ValueError, match="'transformer_layer_1' has LoRA adapters"):
        backbone.reinitialize_layers(1)

"""The pretrainer: contract, both losses, training on pairs and on single texts."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.models import (
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertNextSentencePredictor,
    BertPretrainer,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from tests.contracts import (
    MODEL_CHECKS,
    array,
    arrays,
    assert_close,
    batch,
    model_contract,
    perturb,
    tiny_backbone,
)
from tests.heads.masked_lm.test_model import TEXTS, _log_softmax, make, make_raw


@model_contract("bert", slow=MODEL_CHECKS)
def test_pretrainer_contract(family, check, tmp_path):
    check(functools.partial(make, BertPretrainer, family), tmp_path)


@pytest.mark.backends("torch")
def test_half_precision_trains():
    model = make(BertPretrainer, dtype="mixed_bfloat16", num_layers=1)
    features = batch(model)
    y, weights = (np.ones((3, 3), "int32"), np.array([0, 1, 1])), np.ones((3, 3), "float32")
    for output in keras.tree.flatten(model(features)):
        assert keras.backend.standardize_dtype(output.dtype) == "float32"
    compiled = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.SGD(0.1), jit_compile=compiled)
    losses = model.fit(features, y, sample_weight=weights, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.backends("torch")
def test_pretrainer_loss_and_labels():
    model = make(BertPretrainer)
    features = batch(model)
    tokens, follows = np.array([[3, 4, 0], [5, 0, 0], [6, 7, 8]]), np.array([0, 1, 1])
    weights = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], "float32")
    outputs = arrays(model(features))
    mlm = -np.take_along_axis(_log_softmax(outputs["mlm_logits"]), tokens[..., None], -1)[..., 0]
    nsp = -_log_softmax(outputs["nsp_logits"])[np.arange(3), follows]
    expected = (mlm * weights).sum() / weights.sum() + nsp.mean()
    by_name = {"mlm_logits": tokens, "nsp_logits": follows}
    for y, sample_weight in (
        (by_name, {"mlm_logits": weights}),
        ((tokens, follows), (weights, np.ones(3, "float32"))),
        ((tokens, follows), weights),
    ):
        found = model.evaluate(
            features, y, sample_weight=sample_weight, verbose=0, return_dict=True
        )
        assert found["loss"] == pytest.approx(expected, abs=1e-5)
    assert {"mlm_logits_accuracy", "nsp_logits_accuracy"} <= found.keys()


@pytest.mark.backends("torch")
def test_a_teachers_vectors(tmp_path):
    """The teacher reads the unmasked text, and its loss is the same as in NumPy."""
    keras.utils.set_random_seed(0)
    teacher = perturb(BertTextEmbedder(tiny_backbone()))
    before = array(teacher.weights[0])
    teacher.compile(run_eagerly=True)
    for pairs in (True, False):
        student = tiny_backbone(pooler=pairs)
        model = BertPretrainer(student, next_sentence=pairs, teacher=teacher, teacher_weight=3)
        perturb(model).compile("sgd", run_eagerly=True)
        features = batch(model)
        whole = {name: x for name, x in features.items() if name != "mask_positions"}
        whole["segment_ids"] = np.zeros_like(whole["token_ids"])
        features["mask_positions"] = positions = np.array([[1, 3, 0], [2, 0, 0], [0, 0, 0]])
        hidden = np.take_along_axis(whole["token_ids"], positions, 1)
        weights = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], "float32")
        ids = features["token_ids"] = whole["token_ids"].copy()
        ids[0, 1] = ids[0, 3] = ids[1, 2] = 1
        y = {"mlm_logits": hidden, **({"nsp_logits": np.array([0, 1, 0])} if pairs else {})}
        given = {"x": features, "y": y, "sample_weight": {"mlm_logits": weights}, "verbose": 0}
        found = model.evaluate(**given, return_dict=True)
        ours = model.predict(features, verbose=0)["vectors"]
        theirs = teacher.predict(whole, verbose=0)
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        cosines = (ours * theirs).sum(1) / lengths
        # The third row masks nothing; it pads the batch.
        first = found["vector_loss"]
        assert first == pytest.approx(1 - cosines[:2].mean(), abs=1e-5), pairs
        plain = BertPretrainer(student, next_sentence=pairs)
        plain.compile("sgd", run_eagerly=True)
        for weight in plain.weights:
            weight.assign(next(array(one) for one in model.weights if one.path == weight.path))
        rest = plain.evaluate(**given, return_dict=True)["loss"]
        assert found["loss"] == pytest.approx(rest + 3 * first, abs=1e-5), pairs
        model.save_to_preset(str(tmp_path / str(pairs)))
        again = BertPretrainer.from_preset(str(tmp_path / str(pairs)))
        assert len(again.weights) == len(plain.weights), pairs
    # Training brings them closer.
    model.compile(keras.optimizers.Adam(1e-2), run_eagerly=True)
    model.fit(**given, epochs=5)
    assert model.evaluate(**given, return_dict=True)["vector_loss"] < first
    np.testing.assert_array_equal(array(teacher.weights[0]), before)


@pytest.mark.backends("torch")
def test_teachers_that_do_not_fit():
    with pytest.raises(TypeError, match="teacher must be a BertTextEmbedder, got str"):
        BertPretrainer(tiny_backbone(pooler=True), teacher="minilm")
    wide = BertTextEmbedder(tiny_backbone(hidden_dim=24, num_heads=2))
    with pytest.raises(ValueError, match=r"teacher.* shape \(24,\), .* hidden_dim=16"):
        BertPretrainer(tiny_backbone(pooler=True), teacher=wide)
    with pytest.raises(ValueError, match="teacher_weight=-1 must be a number of at least 0"):
        teacher = BertTextEmbedder(tiny_backbone())
        BertPretrainer(tiny_backbone(pooler=True), teacher=teacher, teacher_weight=-1)
    raw = make_raw(BertPretrainer)
    other = BertTextEmbedder.from_preset("minilm_mini_demo_en", projection_dim=16)
    width = raw.backbone.hidden_dim
    other = BertTextEmbedder(other.backbone, other.preprocessor, projection_dim=width)
    with pytest.raises(ValueError, match="teacher has another tokenizer"):
        BertPretrainer(raw.backbone, raw.preprocessor, teacher=other)
    short = tiny_backbone(max_sequence_length=8)
    packer = BertTextEmbedderPreprocessor(raw.preprocessor.tokenizer, sequence_length=8)
    with pytest.raises(ValueError, match="has 8 positions, .* 16 tokens; reduce sequence_length"):
        BertPretrainer(raw.backbone, raw.preprocessor, teacher=BertTextEmbedder(short, packer))


@pytest.mark.backends("tensorflow", "torch")
def test_what_the_head_of_pairs_tells(tmp_path):
    bert, albert = tiny_backbone(num_layers=1), tiny_backbone("albert", num_layers=2)
    assert not BertPretrainer(bert).sentence_order
    # ALBERT's checkpoints were trained on sentence order.
    assert BertPretrainer(albert).sentence_order
    assert BertNextSentencePredictor(albert).sentence_order
    BertPretrainer(bert, sentence_order=True).save_to_preset(str(tmp_path))
    assert BertPretrainer.from_preset(str(tmp_path)).sentence_order
    assert BertNextSentencePredictor.from_preset(str(tmp_path)).sentence_order


@pytest.mark.backends("torch")
def test_pretrainer_without_pairs():
    model = perturb(BertPretrainer(tiny_backbone("roberta", pooler=False), next_sentence=False))
    features = batch(model)
    assert set(model(features)) == {"mlm_logits"}
    y, weights = np.ones((3, 3), "int32"), np.ones((3, 3), "float32")
    model.compile(run_eagerly=True)
    history = model.fit(features, y, sample_weight=weights, verbose=0).history
    # Keras leaves out the name of a single output.
    assert {"loss", "accuracy", "perplexity"} == history.keys()
    with pytest.raises(ValueError, match="next_sentence=True needs an encoder with a pooler"):
        BertPretrainer(tiny_backbone(pooler=False))


@pytest.mark.backends("torch")
def test_pretrainer_on_pairs(tmp_path):
    model = make_raw(BertPretrainer, compiled=True)
    a, b = ["the film", "it was"] * 16, ["fun fun fun", "dull dull dull"] * 16
    y = [0, 1] * 16
    history = model.fit((a, b), y, epochs=14, batch_size=8, verbose=0).history
    assert history["nsp_logits_loss"][-1] < history["nsp_logits_loss"][0] / 2
    assert history["mlm_logits_loss"][-1] < history["mlm_logits_loss"][0]
    found = model.evaluate((a, b), y, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(
        found["mlm_logits_loss"] + found["nsp_logits_loss"], abs=1e-4
    )
    # Its preset also has the heads of two other classes.
    model.save_to_preset(str(tmp_path))
    alone = BertMaskedLM.from_preset(str(tmp_path))
    assert type(alone.preprocessor) is BertMaskedLMPreprocessor
    text = "the film was [MASK]"
    for ours, theirs in zip(alone.fill_mask(text), model.fill_mask(text), strict=True):
        assert ours["token"] == theirs["token"]
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
    predictor = BertNextSentencePredictor.from_preset(str(tmp_path))
    scores = predictor.follows(["the film", "it was"], ["fun fun fun", "dull dull dull"])
    assert scores[0] > 0.5 > scores[1]
    with pytest.raises(ValueError, match="has no head for a .*"):
        BertTextClassifier.from_preset(str(tmp_path))


@pytest.mark.backends("torch")
def test_pretrainer_on_single_texts(tmp_path):
    model = make_raw(BertPretrainer, num_layers=1, next_sentence=False)
    history = model.fit(TEXTS * 8, epochs=4, batch_size=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    model.save_to_preset(str(tmp_path))
    assert not BertPretrainer.from_preset(str(tmp_path)).preprocessor.next_sentence
    with pytest.raises(ValueError, match="has no head for a .*; pass new_head=True"):
        BertNextSentencePredictor.from_preset(str(tmp_path))


def test_bad_pairs():
    model = make_raw(BertPretrainer, num_layers=1)
    with pytest.raises(ValueError, match="single texts where pairs are needed"):
        model.fit(TEXTS, [0, 1, 1], verbose=0)
    with pytest.raises(ValueError, match="The pairs have no labels; pass y, 0 if"):
        model.fit((TEXTS, TEXTS), verbose=0)
    with pytest.raises(ValueError, match="label 2 at position 1 is outside 0 to 1"):
        model.fit((TEXTS, TEXTS), [0, 2, 1], verbose=0)
    with pytest.raises(ValueError, match="labels, but next_sentence=False predicts only"):
        make_raw(BertPretrainer, num_layers=1, next_sentence=False).fit(TEXTS, [0, 1, 1], verbose=0)


def test_pairs_from_left_to_right():
    """In a left-to-right encoder, the first token sees only itself, so its prediction would be the
    same for every pair.
    """
    backbone = tiny_backbone(is_causal=True, dropout=0.0, num_layers=1)
    model = perturb(BertPretrainer(backbone))
    features = batch(model)
    outputs = arrays(model(features))
    tokens = {name: features[name] for name in backbone.input}
    states = array(backbone(tokens)["sequence_output"])
    mask = features["padding_mask"][:, :, None]
    kernel, bias = model.output_dense.get_weights()
    expected = (states * mask).sum(1) / mask.sum(1) @ kernel + bias
    assert_close(outputs["nsp_logits"], expected)
    assert np.ptp(outputs["nsp_logits"], axis=0).max() > 1e-3
    alone = BertMaskedLM(backbone)
    alone.mlm_head.set_weights(model.mlm_head.get_weights())
    assert_close(outputs["mlm_logits"], alone(features))
    # Its weights have the usual names, and a predictor loads them.
    assert [w.path for w in model.weights] == [
        w.path for w in BertPretrainer(tiny_backbone(num_layers=1)).weights
    ]
    predictor = BertNextSentencePredictor(backbone)
    predictor.output_dense.set_weights([kernel, bias])
    assert_close(predictor(tokens), expected)
    backbone = tiny_backbone(is_causal=True, num_layers=1, pooler=False)
    assert BertPretrainer(backbone).uses_pooler is False

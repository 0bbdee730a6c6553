"""Masked language model and pre-training heads, compared with their original packages."""

import dataclasses
import os

import keras
import keras_hub
import numpy as np
import pytest

import kerasbert
from kerasbert.models import (
    BertBackbone,
    BertCausalLM,
    BertMaskedLM,
    BertMultipleChoice,
    BertNextSentencePredictor,
    BertPretrainer,
    BertTextClassifier,
    BertTextRegressor,
    BertTokenClassifier,
)
from tests.checkpoints import test_google as google
from tests.checkpoints import test_keras_hub as hub
from tests.contracts import MASKED_LMS, assert_close, batch, tiny_backbone
from tests.peers import torch, transformers

HEAD = "ForMaskedLM"
ODD = [
    ("bert", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    ("bert", {"hidden_act": "gelu_new", "type_vocab_size": 1}),
    ("roberta", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    ("xlm_roberta", {"hidden_act": "relu"}),
    ("distilbert", {"activation": "relu"}),
    ("electra", {"embedding_size": 36, "hidden_act": "relu"}),
    ("electra", {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new"}),
    ("albert", {"embedding_size": 36, "layer_norm_eps": 1e-3}),
    ("albert", {"hidden_act": "relu", "num_hidden_groups": 2}),
    ("modernbert", {"norm_eps": 1e-3, "classifier_activation": "relu", "classifier_bias": True}),
    ("modernbert", {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
    ("modernbert", {"decoder_bias": False, "hidden_activation": "relu"}),
    ("gte", {"hidden_act": "relu"}),
]


def load(cls, directory, **arguments):
    return cls.from_preset(str(directory), preprocessor=None, **arguments)


def ours(model, inputs):
    return {name: x for name, x in inputs.items() if name in model.input}


def some_masks(inputs, seed=0):
    """Return positions (B, P), their tokens, and weights with empty slots in the last row."""
    random = np.random.default_rng(seed)
    lengths = inputs["padding_mask"].sum(axis=1)
    positions = np.stack([np.sort(random.permutation(n)[:3]) for n in lengths]).astype("int32")
    labels = random.integers(3, 99, positions.shape).astype("int32")
    weights = np.ones(positions.shape, "float32")
    weights[-1, 1:] = positions[-1, 1:] = 0
    return positions, labels, weights


def their_outputs(theirs, inputs, **labels):
    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
    }
    arguments = {names[name]: torch.tensor(value).long() for name, value in inputs.items()}
    labels = {name: torch.tensor(value).long() for name, value in labels.items()}
    with torch.no_grad():
        return theirs.model(**arguments, **labels)


def everywhere(inputs, positions, labels, weights):
    """Return labels (B, T), -100 where nothing is predicted."""
    result = np.full(inputs["token_ids"].shape, -100)
    rows, slots = np.nonzero(weights)
    result[rows, positions[rows, slots]] = labels[rows, slots]
    return result


def assert_same(model, theirs, output="logits"):
    """Compare logits of every token and at positions, and the loss."""
    for length in (4, 32):
        inputs = theirs.inputs(length, seed=length)
        expected = their_outputs(theirs, inputs)[output].numpy()
        assert np.abs(expected).max() > 0.1  # Outputs must differ enough to reveal errors.
        tokens = inputs["padding_mask"] == 1
        found = logits_of(model, ours(model, inputs))
        assert np.abs(found - expected)[tokens].max() <= 1e-5
        positions, labels, weights = some_masks(inputs)
        features = {**ours(model, inputs), "mask_positions": positions}
        expected = np.take_along_axis(expected, positions[..., None], axis=1)
        assert np.abs(logits_of(model, features) - expected).max() <= 1e-5
    labels_there = everywhere(inputs, positions, labels, weights)
    loss = their_outputs(theirs, inputs, labels=labels_there)["loss"].item()
    found = model.evaluate(features, labels, sample_weight=weights, verbose=0, return_dict=True)
    assert abs(found["loss"] - loss) <= 1e-5


def logits_of(model, features):
    outputs = model(features)
    outputs = outputs["mlm_logits"] if isinstance(outputs, dict) else outputs
    return keras.ops.convert_to_numpy(outputs)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, settings", [*((family, {}) for family in MASKED_LMS), *ODD], ids=str
)
def test_equals_transformers(reference, family, settings):
    theirs = reference(family, HEAD, **settings)
    assert_same(load(BertMaskedLM, theirs.directory), theirs)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", MASKED_LMS)
def test_pretrainer_without_pairs(reference, family):
    theirs = reference(family, HEAD)
    model = load(BertPretrainer, theirs.directory, next_sentence=False)
    assert_same(model, theirs)
    with pytest.raises(ValueError, match="has no head for a .*; pass new_head=True"):
        load(BertPretrainer, theirs.directory)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, pair, pair_labels",
    [
        ("bert", "seq_relationship_logits", "next_sentence_label"),
        ("albert", "sop_logits", "sentence_order_label"),
    ],
)
def test_pretrainer_equals_transformers(reference, family, pair, pair_labels):
    theirs = reference(family, "ForPreTraining")
    model = load(BertPretrainer, theirs.directory)
    assert model.dropout == {"bert": 0.0, "albert": 0.1}[family]
    inputs = theirs.inputs(13)
    positions, labels, weights = some_masks(inputs)
    expected = their_outputs(
        theirs,
        inputs,
        labels=everywhere(inputs, positions, labels, weights),
        **{pair_labels: np.array([0, 1, 1])},
    )
    features = {**inputs, "mask_positions": positions}
    found = {name: keras.ops.convert_to_numpy(x) for name, x in model(features).items()}
    assert np.abs(found["nsp_logits"] - expected[pair].numpy()).max() <= 1e-5
    mlm = np.take_along_axis(expected["prediction_logits"].numpy(), positions[..., None], axis=1)
    assert np.abs(found["mlm_logits"] - mlm).max() <= 1e-5
    y = {"mlm_logits": labels, "nsp_logits": np.array([0, 1, 1])}
    loss = model.evaluate(features, y, sample_weight=weights, verbose=0, return_dict=True)["loss"]
    assert abs(loss - expected["loss"].item()) <= 1e-5
    # Each of the two heads loads alone.
    alone = load(BertMaskedLM, theirs.directory)
    assert np.abs(logits_of(alone, features) - mlm).max() <= 1e-5
    load(BertNextSentencePredictor, theirs.directory)


# --- duplicate tensors ---

TIED = [
    ("bert", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]),
    ("roberta", ["lm_head.decoder.weight", "lm_head.decoder.bias"]),
    ("xlm_roberta", ["lm_head.decoder.weight", "lm_head.decoder.bias"]),
    ("distilbert", ["vocab_projector.weight"]),
    ("electra", ["generator_lm_head.weight"]),
    ("albert", ["predictions.decoder.weight", "predictions.decoder.bias"]),
    ("modernbert", ["decoder.weight"]),
]


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family, names", TIED)
def test_repeated_tensors(reference, tmp_path, family, names):
    theirs = reference(family, HEAD)
    state = theirs.model.state_dict()
    copies = {name: state[name].clone() for name in names}
    assert not copies.keys() & theirs.tensors().keys()
    directory = theirs.copy_with(tmp_path / "equal", {**theirs.tensors(), **copies}, bin=True)
    assert_same(load(BertMaskedLM, directory), theirs)
    BertBackbone.from_preset(directory)
    for i, name in enumerate(names):
        other = {**theirs.tensors(), **copies, name: copies[name] + 1}
        directory = theirs.copy_with(tmp_path / f"other{i}", other)
        with pytest.raises(ValueError, match=f"has a {name} that differs from its .*set tie_word"):
            load(BertMaskedLM, directory)


# --- untied decoders ---


def untied(reference, family, head=HEAD, **settings):
    """Make their model with a decoder, and its bias, other than the embedding's."""
    theirs = reference(family, head, tie_word_embeddings=False, **settings)
    output, embedding = theirs.model.get_output_embeddings(), theirs.model.get_input_embeddings()
    assert (output.weight - embedding.weight).abs().max() > 0.1
    return theirs


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", MASKED_LMS)
def test_untied(reference, tmp_path, family):
    theirs = untied(reference, family)
    model = load(BertMaskedLM, theirs.directory)
    assert not model.tie_weights
    assert_same(model, theirs)
    # Save as a preset, as a `.keras` file, and again in transformers' format.
    model.save_to_preset(str(tmp_path / "preset"))
    assert_same(load(BertMaskedLM, tmp_path / "preset"), theirs)
    model.save(tmp_path / "model.keras")
    assert_same(keras.models.load_model(tmp_path / "model.keras"), theirs)
    kerasbert.convert(model, tmp_path / "back", tokenizer=False)
    again, report = type(theirs.model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()), report
    inputs = theirs.inputs(9)
    expected = their_outputs(theirs, inputs)["logits"]
    theirs = dataclasses.replace(theirs, model=again.eval())
    assert (their_outputs(theirs, inputs)["logits"] - expected).abs().max() <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_untied_pretrainer(reference, tmp_path, family):
    theirs = untied(reference, family, "ForPreTraining")
    model = load(BertPretrainer, theirs.directory)
    inputs = theirs.inputs(9)
    expected = their_outputs(theirs, inputs)["prediction_logits"].numpy()
    tokens = inputs["padding_mask"] == 1
    assert np.abs(logits_of(model, ours(model, inputs)) - expected)[tokens].max() <= 1e-5
    kerasbert.convert(model, tmp_path / "back", tokenizer=False)
    again = load(BertPretrainer, tmp_path / "back")
    assert np.abs(logits_of(again, ours(again, inputs)) - expected)[tokens].max() <= 1e-5
    # The preset provides its head to a masked language model, including the decoder.
    model.save_to_preset(str(tmp_path / "preset"))
    masked = load(BertMaskedLM, tmp_path / "preset")
    assert np.abs(logits_of(masked, ours(masked, inputs)) - expected)[tokens].max() <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_files_with_one_bias_for_both(reference, tmp_path):
    """Versions of transformers before 5 wrote only one of the two biases, which were the same."""
    theirs = untied(reference, "roberta")
    tensors = theirs.tensors()
    tensors["lm_head.bias"] = tensors.pop("lm_head.decoder.bias")
    model = load(BertMaskedLM, theirs.copy_with(tmp_path, tensors))
    assert_same(model, theirs)


@pytest.mark.parametrize("format", ["google", "keras_hub"])
def test_formats_without_a_decoder(tmp_path, format):
    model = BertMaskedLM(tiny_backbone("bert", pooler=True), tie_weights=False)
    with pytest.raises(ValueError, match="has no name for mlm_head/decoder/kernel; nothing was"):
        kerasbert.convert(model, tmp_path / "out", format=format)
    assert not os.listdir(tmp_path)


# --- missing and unexpected tensors ---


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", MASKED_LMS)
def test_a_new_head(reference, family):
    theirs = reference(family)
    with pytest.raises(ValueError, match="has no head for a .*; pass new_head=True for a new"):
        load(BertMaskedLM, theirs.directory)
    with pytest.warns(UserWarning, match="New, random weights .*mlm_head/bias"):
        model = load(BertMaskedLM, theirs.directory, new_head=True)
    assert not model.backbone.pooler
    assert theirs.compare(model.backbone, lengths=(5,)) <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_a_family_without_the_head(reference, tmp_path):
    theirs = reference("deberta_v3", HEAD)
    said = "is a DebertaV2ForMaskedLM, a head that kerasbert does not support in this family; pass"
    with pytest.raises(ValueError, match=said):
        load(BertMaskedLM, theirs.directory)
    model = BertMaskedLM(tiny_backbone("deberta_v3"))
    with pytest.raises(ValueError, match="no class for the head 'masked_lm' alone on deberta_v3"):
        kerasbert.convert(model, tmp_path / "out", tokenizer=False)


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_heads_of_other_classes(reference, tmp_path):
    classifier = reference("modernbert", "ForSequenceClassification", num_labels=2)
    with pytest.raises(ValueError, match="has no head for a .*"):
        load(BertMaskedLM, classifier.directory)
    masked = reference("modernbert", HEAD)
    with pytest.raises(ValueError, match="has no head for a .*"):
        load(BertTextClassifier, masked.directory)
    theirs = reference("bert", HEAD)
    tensors = {**theirs.tensors(), "cls.predictions.extra": torch.zeros(2)}
    with pytest.raises(ValueError, match="Left over, theirs: cls.predictions.extra"):
        load(BertMaskedLM, theirs.copy_with(tmp_path / "extra", tensors))
    tensors = theirs.tensors()
    del tensors["cls.predictions.transform.dense.bias"]
    with pytest.raises(ValueError, match="Missing, ours .theirs.: mlm_head/dense/bias"):
        load(BertMaskedLM, theirs.copy_with(tmp_path / "missing", tensors))


# --- Google ---


def google_heads(model):
    """Return the variables of run_pretraining.py for the heads of BertForPreTraining."""
    state = {name: x.numpy() for name, x in model.cls.state_dict().items()}
    transform = "cls/predictions/transform"
    return {
        f"{transform}/dense/kernel": state["predictions.transform.dense.weight"].T,
        f"{transform}/dense/bias": state["predictions.transform.dense.bias"],
        f"{transform}/LayerNorm/gamma": state["predictions.transform.LayerNorm.weight"],
        f"{transform}/LayerNorm/beta": state["predictions.transform.LayerNorm.bias"],
        "cls/predictions/output_bias": state["predictions.bias"],
        "cls/seq_relationship/output_weights": state["seq_relationship.weight"],
        "cls/seq_relationship/output_bias": state["seq_relationship.bias"],
        f"{transform}/dense/kernel/adam_m": np.zeros((36, 36), "float32"),
        "global_step": np.int64(1000),
    }


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_equals_google(reference, tmp_path):
    """With the tanh form of GELU also in the head."""
    theirs = reference("bert", "ForPreTraining", hidden_act="gelu_new")
    directory = google.write(tmp_path, theirs.model.bert, google_heads(theirs.model))
    inputs = theirs.inputs(13)
    expected = their_outputs(theirs, inputs)
    tokens = inputs["padding_mask"] == 1
    for cls in (BertMaskedLM, BertPretrainer):
        model = load(cls, directory)
        assert model.head_activation == "gelu_approximate"
        gap = np.abs(logits_of(model, inputs) - expected["prediction_logits"].numpy())
        assert gap[tokens].max() <= 1e-5
    pairs = keras.ops.convert_to_numpy(model(inputs)["nsp_logits"])
    assert np.abs(pairs - expected["seq_relationship_logits"].numpy()).max() <= 1e-5


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_google_without_heads(reference, tmp_path):
    theirs = reference("bert", "ForPreTraining", hidden_act="gelu_new")
    directory = google.write(tmp_path, theirs.model.bert)
    for cls in (BertMaskedLM, BertPretrainer):
        with pytest.raises(ValueError, match="pass new_head=True"):
            load(cls, directory)


# --- KerasHub ---


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "DistilBert", "Albert"])
def test_equals_keras_hub(tmp_path, name):
    keras.utils.set_random_seed(1)
    settings = {"embedding_dim": 20} if name == "Albert" else {}
    theirs = getattr(keras_hub.models, f"{name}MaskedLM")(
        hub.keras_hub_backbone(name, settings), preprocessor=None
    )
    hub.perturb(theirs)
    theirs.save_to_preset(str(tmp_path))
    model = load(BertMaskedLM, tmp_path)
    assert model.head_norm_epsilon == 1e-5
    inputs = hub.random_inputs(13)
    inputs["mask_positions"] = some_masks(inputs)[0]
    expected = hub.numpy(hub.call(theirs, inputs))
    np.testing.assert_allclose(logits_of(model, ours(model, inputs)), expected, atol=1e-5)
    if name == "Bert":
        with pytest.raises(ValueError, match="has no head for a .*"):
            BertTextClassifier.from_preset(str(tmp_path), preprocessor=None)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("head", [None, BertTextClassifier, BertCausalLM])
def test_a_decoder_without_a_tokenizer_has_ids_that_transformers_takes(head, tmp_path):
    encoder = tiny_backbone("modernbert_decoder")
    settings = {"num_classes": 2} if head is BertTextClassifier else {}
    model = encoder if head is None else head(encoder, **settings)
    for source, folder in ((model, tmp_path / "a"), (tmp_path / "a", tmp_path / "b")):
        kerasbert.convert(source, folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        assert {config.pad_token_id, config.bos_token_id, config.eos_token_id} == {-1}
        getattr(transformers, config.architectures[0]).from_pretrained(folder)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("family", ["modernbert", "modernbert_decoder"])
def test_settings_that_say_nothing_of_few_layers_are_not_refused(family, num_layers, tmp_path):
    encoder = tiny_backbone(family, num_layers=num_layers)
    kerasbert.convert(encoder, tmp_path)
    again = BertBackbone.from_preset(tmp_path)
    features = batch(encoder)
    assert_close(again(features), encoder(features))
    transformers.AutoModel.from_pretrained(tmp_path)


@pytest.mark.peers
@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "end, task",
    [
        ("ForSequenceClassification", BertTextRegressor),
        ("ForTokenClassification", BertTokenClassifier),
        ("ForMultipleChoice", BertMultipleChoice),
    ],
)
def test_what_is_said_of_heads_of_xlnet_that_are_not_read(end, task, tmp_path):
    config = transformers.XLNetConfig(vocab_size=9, d_model=4, n_layer=1, n_head=1, d_inner=4)
    config.num_labels = 1
    getattr(transformers, f"XLNet{end}")(config).save_pretrained(tmp_path)
    said = (
        f"of the family 'xlnet', which {task.__name__} does not support; kerasbert has these "
        "heads of the family: .*question_answering.*, with classes in kerasbert.lineage"
    )
    settings = {"num_classes": 2} if task is BertTokenClassifier else {"new_head": True}
    for more in ({}, settings):
        with pytest.raises(ValueError, match=said):
            load(task, tmp_path, **more)

"""Hugging Face checkpoints compared with `transformers` in the same process."""

import warnings

import keras
import numpy as np
import pytest

from kerasbert.checkpoints.name_map import NameMap
from kerasbert.families import TABLES
from kerasbert.models import (
    BertBackbone,
    BertMultipleChoice,
    BertNextSentencePredictor,
    BertTextClassifier,
    BertTextRegressor,
    BertTokenClassifier,
)
from tests.conftest import _CLASSES
from tests.contracts import ENCODERS, RELATIVES, with_head
from tests.peers import torch, transformers

pytestmark = pytest.mark.peers


EVERY = pytest.mark.parametrize("family", ENCODERS)
CLASSIFIER = "ForSequenceClassification"
LINEAR = {"rope_type": "linear", "factor": 1.3, "rope_theta": 50.0}
# Family, head and settings; together they cover each setting of a configuration.
ODD = [
    ("bert", {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 4}),
    ("bert", {"hidden_act": "gelu_new", "type_vocab_size": 1, "num_attention_heads": 9}),
    ("bert", {"hidden_act": "silu", "num_attention_heads": 1}),
    ("roberta", {"hidden_act": "gelu_new", "type_vocab_size": 4, "layer_norm_eps": 1e-3}),
    ("roberta", {"pad_token_id": 0, "max_position_embeddings": 33}),
    ("xlm_roberta", {"hidden_act": "relu", "num_attention_heads": 1}),
    ("distilbert", {"activation": "relu", "n_heads": 9}),
    ("electra", {"embedding_size": 36, "hidden_act": "relu", "type_vocab_size": 1}),
    ("electra", {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new", "num_attention_heads": 9}),
    ("albert", {"num_hidden_groups": 2, "num_hidden_layers": 4, "hidden_act": "gelu"}),
    ("albert", {"embedding_size": 36, "layer_norm_eps": 1e-3, "type_vocab_size": 4}),
    ("albert", {"inner_group_num": 2, "num_hidden_groups": 2, "num_hidden_layers": 4}),
    ("bert", {"hidden_act": "quick_gelu"}),
    ("modernbert", {"norm_eps": 1e-3, "hidden_activation": "relu", "num_attention_heads": 9}),
    ("modernbert", {"classifier_pooling": "mean", "classifier_bias": True}),
    ("modernbert", {"norm_bias": True, "attention_bias": True}),
    ("modernbert", {"global_attn_every_n_layers": 2, "local_attention": 4}),
    ("modernbert", {"classifier_activation": "relu", "num_attention_heads": 3}),
    ("deberta_v3", {"position_buckets": -1, "max_relative_positions": 9, "hidden_act": "relu"}),
    ("deberta_v3", {"position_buckets": 6, "pos_att_type": "c2p|p2c", "num_attention_heads": 9}),
    ("deberta_v3", {"conv_kernel_size": 3, "conv_act": "gelu", "layer_norm_eps": 1e-3}),
    ("deberta_v3", {"conv_kernel_size": 5, "num_hidden_layers": 1}),
    ("mpnet", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "num_attention_heads": 9}),
    ("mpnet", {"hidden_act": "relu", "num_attention_heads": 1}),
    ("nomic_bert", {"type_vocab_size": 4, "hidden_act": "gelu", "rope_parameters": LINEAR}),
    ("gte", {}),
    ("gte", {"type_vocab_size": 0, "hidden_act": "relu", "rope_parameters": LINEAR}),
]


def rows(cases, name="bert"):
    """Return test cases: all backends run those of BERT; PyTorch alone runs those of other
    families, which differ only in names.
    """
    marks = {False: pytest.mark.backends("torch"), True: ()}
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=marks[case[0] == name]) for case in cases]


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def load_classifier(directory, **arguments):
    return BertTextClassifier.from_preset(directory, preprocessor=None, **arguments)


@pytest.mark.parametrize(
    "family, settings", [*rows((family, {}) for family in ENCODERS), *ODD], ids=str
)
def test_classifier_equals_transformers(reference, family, settings):
    theirs = reference(family, CLASSIFIER, num_labels=3, **settings)
    assert theirs.compare(load_classifier(theirs.directory)) <= 1e-5


@pytest.mark.backends("torch")
@EVERY
def test_encoder_equals_transformers(reference, family):
    theirs = reference(family)
    encoder = BertBackbone.from_preset(theirs.directory)
    assert theirs.compare(encoder) <= 1e-5
    assert encoder.pooler == (family in ("bert", "roberta", "xlm_roberta", "albert", "mpnet"))


@EVERY
def test_predict_equals_transformers(reference, family):
    """`predict` runs the compiled model."""
    theirs = reference(family, CLASSIFIER, num_labels=3)
    classifier = load_classifier(theirs.directory)
    inputs = theirs.inputs(13)
    logits = classifier.predict(
        {name: x for name, x in inputs.items() if name in classifier.backbone.input}, verbose=0
    )
    assert np.abs(logits - theirs(inputs)["logits"]).max() <= 1e-5


@pytest.mark.parametrize(
    "family, prefix",
    [
        # The encoders of the other families are compared above.
        pytest.param(*case, marks=[pytest.mark.backends("torch")] * (case[0] in ENCODERS))
        for case in _CLASSES.items()
        if case[0] not in RELATIVES
    ],
)
def test_encoder_of_every_class_of_transformers(reference, family, prefix):
    names = (name for name in dir(transformers) if name.startswith(prefix))
    heads = [name.removeprefix(prefix) for name in names]
    heads = [head for head in heads if head.startswith(("For", "LMHeadModel"))]
    assert len(heads) >= (5 if family in with_head("multiple_choice") else 2)
    for head in heads:
        theirs = reference(family, head)
        encoder = BertBackbone.from_preset(theirs.directory)
        assert theirs.compare(encoder, lengths=(13,)) <= 1e-5, head
        has_pooler = any("pooler." in name for name in theirs.tensors())
        assert encoder.pooler == (has_pooler and "pooled_dense" in TABLES[family].encoder), head


# --- other heads on one embedding per text ---


HEADED = pytest.mark.parametrize("family", rows(ENCODERS))


@HEADED
def test_regressor(reference, family):
    theirs = reference(family, CLASSIFIER, num_labels=1, problem_type="regression")
    regressor = BertTextRegressor.from_preset(theirs.directory, preprocessor=None)
    for length in (1, 13):
        inputs = theirs.inputs(length)
        expected = theirs(inputs)["logits"][:, 0]
        inputs = {name: x for name, x in inputs.items() if name in regressor.backbone.input}
        found = keras.ops.convert_to_numpy(regressor(inputs))
        assert found.shape == (3,) and np.abs(found - expected).max() <= 1e-5
    y = np.array([0.5, -1.0, 2.0], "float32")
    loss = regressor.evaluate(inputs, y, verbose=0)[0]
    assert abs(loss - theirs.loss(theirs.inputs(13), torch.tensor(y))) <= 1e-5


@HEADED
@pytest.mark.parametrize(
    ("settings", "y"),
    [
        ({}, np.array([2, 0, 1])),
        (
            {"problem_type": "multi_label_classification"},
            np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], "float32"),
        ),
    ],
    ids=["classes", "several"],
)
def test_losses_of_classes(reference, family, settings, y):
    theirs = reference(family, CLASSIFIER, num_labels=3, **settings)
    classifier = load_classifier(theirs.directory)
    inputs = theirs.inputs(13)
    expected = theirs.loss(inputs, torch.tensor(y))
    inputs = {name: x for name, x in inputs.items() if name in classifier.input}
    assert abs(classifier.evaluate(inputs, y, verbose=0)[0] - expected) <= 1e-5


@pytest.mark.parametrize(
    ("family", "head", "output"),
    rows(
        [
            ("bert", "ForNextSentencePrediction", "logits"),
            ("bert", "ForPreTraining", "seq_relationship_logits"),
            ("albert", "ForPreTraining", "sop_logits"),
        ]
    ),
)
def test_next_sentence_predictor(reference, family, head, output):
    theirs = reference(family, head)
    predictor = BertNextSentencePredictor.from_preset(theirs.directory, preprocessor=None)
    for length in (1, 13):
        inputs = theirs.inputs(length)
        with torch.no_grad():
            expected = theirs.model(
                input_ids=torch.tensor(inputs["token_ids"]).long(),
                attention_mask=torch.tensor(inputs["padding_mask"]),
                token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
            )[output]
        found = keras.ops.convert_to_numpy(predictor(inputs))
        assert np.abs(found - expected.numpy()).max() <= 1e-5
    y = np.array([0, 1, 1])
    loss = torch.nn.functional.cross_entropy(expected, torch.tensor(y)).item()
    assert abs(predictor.evaluate(inputs, y, verbose=0)[0] - loss) <= 1e-5
    if output == "logits":  # `ForPreTraining` also has the other head.
        assert abs(loss - theirs.loss(inputs, torch.tensor(y))) <= 1e-5


@pytest.mark.parametrize("family", rows(with_head("multiple_choice")))
def test_multiple_choice(reference, family):
    """The last choice of our second example is missing; transformers does not support this."""
    theirs = reference(family, "ForMultipleChoice")
    model = BertMultipleChoice.from_preset(theirs.directory, preprocessor=None)
    for length in (1, 13):
        rows = [theirs.inputs(length, seed=seed) for seed in (0, 1)]
        inputs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}  # (2, 3, T)
        names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
        arguments = {
            names.get(name, "token_type_ids"): torch.tensor(x).long() for name, x in inputs.items()
        }
        y = np.array([2, 0])
        with torch.no_grad():
            outputs = theirs.model(**arguments, labels=torch.tensor(y))
        expected = outputs.logits.numpy()
        # Outputs must differ enough to reveal errors.
        assert np.ptp(expected, axis=1).min() > 0.01
        inputs = {name: x for name, x in inputs.items() if name in model.input}
        found = numpy(model(inputs))
        assert found.shape == (2, 3) and np.abs(found - expected).max() <= 1e-5
        assert abs(model.evaluate(inputs, y, verbose=0)[0] - outputs.loss.item()) <= 1e-5
    inputs["padding_mask"][1, 2] = 0
    assert np.abs(numpy(model(inputs))[:, :2] - expected[:, :2]).max() <= 1e-5


# --- the token head ---

ODD_TAGGERS = [
    (family, settings)
    for family, settings in ODD
    if set(settings) & {"classifier_bias", "classifier_activation", "norm_bias"}
]


@pytest.mark.parametrize(
    "family, settings", rows([*((family, {}) for family in ENCODERS), *ODD_TAGGERS]), ids=str
)
def test_token_classifier(reference, family, settings):
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    theirs = reference(
        family, "ForTokenClassification", id2label=dict(enumerate(names)), **settings
    )
    tagger = BertTokenClassifier.from_preset(theirs.directory, preprocessor=None)
    assert theirs.compare(tagger) <= 1e-5
    assert tagger.labels == tagger.label_names == names
    assert not tagger.backbone.pooler
    # Their loss ignores labels of -100; ours ignores tokens of weight 0.
    inputs = theirs.inputs(13)
    y = np.random.default_rng(1).integers(-2, 5, (3, 13))
    y[inputs["padding_mask"] == 0] = -1
    logits = theirs(inputs)["logits"]
    expected = theirs.loss(inputs, torch.tensor(np.where(y < 0, -100, y)))
    loss, accuracy = tagger.evaluate(
        {name: x for name, x in inputs.items() if name in tagger.backbone.input},
        np.maximum(y, 0),
        sample_weight=(y >= 0).astype("float32"),
        verbose=0,
    )
    assert abs(loss - expected) <= 1e-5
    right = (logits.argmax(-1) == y)[y >= 0]
    assert abs(accuracy - right.mean()) <= 1e-6


@pytest.mark.backends("torch")
def test_new_token_classifier(reference):
    theirs = reference("bert")
    with pytest.raises(ValueError, match="has no head for a .*; pass num_classes=2"):
        BertTokenClassifier.from_preset(theirs.directory, preprocessor=None)
    with pytest.warns(UserWarning, match=r"New, random weights .*: logits/bias, logits/kernel\."):
        tagger = BertTokenClassifier.from_preset(
            theirs.directory, preprocessor=None, labels=["PER"], scheme="BIOES"
        )
    assert tagger.num_classes == 5


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("family", "head", "cls", "extra"),
    [
        ("roberta", CLASSIFIER, BertTextRegressor, "classifier.extra.weight"),
        ("bert", "ForPreTraining", BertNextSentencePredictor, "cls.seq_relationship.extra"),
    ],
)
def test_a_weight_left_over_in_the_head(reference, tmp_path, family, head, cls, extra):
    theirs = (
        reference(family, head, num_labels=1) if head == CLASSIFIER else reference(family, head)
    )
    tensors = {**theirs.tensors(), extra: torch.zeros(2)}
    directory = theirs.copy_with(tmp_path, tensors)
    with pytest.raises(ValueError, match=f"Left over, theirs: {extra}"):
        cls.from_preset(directory, preprocessor=None)


@pytest.mark.backends("torch")
def test_new_heads_are_asked_for(reference):
    theirs = reference("bert")
    for cls in (BertTextRegressor, BertNextSentencePredictor, BertMultipleChoice):
        with pytest.raises(ValueError, match="pass new_head=True for a new"):
            cls.from_preset(theirs.directory, preprocessor=None)
        with pytest.warns(UserWarning, match="New, random weights .* logits/bias, logits/kernel"):
            model = cls.from_preset(theirs.directory, preprocessor=None, new_head=True)
        assert theirs.compare(model.backbone, lengths=(5,)) <= 1e-5
    many = reference("bert", CLASSIFIER, num_labels=3)
    with pytest.raises(ValueError, match=r"classifier.weight \(3, 36\), but our logits/kernel"):
        BertTextRegressor.from_preset(many.directory, preprocessor=None)


# --- gradients ---


def gradients(model, weights, loss):
    """Return the gradients of `loss(model)`, on any backend."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        return tape.gradient(value, [weight.value for weight in weights])
    if backend == "torch":
        model.zero_grad()
        loss().backward()
        return [weight.value.grad for weight in weights]
    import jax

    def run(values):
        with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
            return loss()

    return jax.grad(run)([weight.value for weight in weights])


class _Gradients(dict):
    """Torch's gradients under the names in the tables."""

    def __init__(self, model):
        prefix = model.base_model_prefix + "."
        super().__init__(
            (name.removeprefix(prefix), weight.grad.numpy())
            for name, weight in model.named_parameters()
            if weight.grad is not None
        )

    def shape(self, name):
        return self[name].shape


def dense_gradient(gradient):
    if hasattr(gradient, "indices"):  # TensorFlow's gradients of embeddings are sparse.
        import tensorflow as tf

        return tf.convert_to_tensor(gradient).numpy()
    return np.asarray(numpy(gradient))


# NomicBERT's files use other names than its class.
@pytest.mark.parametrize("family", [name for name in ENCODERS if name != "nomic_bert"])
def test_gradients_equal_torch(reference, family):
    theirs = reference(family, CLASSIFIER, num_labels=3)
    classifier = load_classifier(theirs.directory)
    inputs = theirs.inputs(13)
    mask = inputs["padding_mask"][..., None]
    rng = np.random.default_rng(1)
    by_logits = rng.normal(size=(3, 3)).astype("float32")
    by_tokens = (rng.normal(size=(3, 13, 36)) * mask).astype("float32")

    theirs.model.zero_grad()
    expected = theirs(inputs, gradients=True)
    loss = (expected["logits"] * torch.tensor(by_logits)).sum()
    loss += (expected["sequence_output"] * torch.tensor(by_tokens)).sum() / 10
    loss.backward()
    expected = _Gradients(theirs.model)

    ours = {name: x for name, x in inputs.items() if name in classifier.backbone.input}

    def our_loss():
        tokens = classifier.backbone(ours)["sequence_output"]
        value = keras.ops.sum(keras.ops.multiply(classifier(ours), by_logits))
        return value + keras.ops.sum(keras.ops.multiply(tokens, by_tokens)) / 10

    weights = classifier.trainable_weights
    found = gradients(classifier, weights, our_loss)
    maps = [
        NameMap(layers, "torch")
        for layers in (TABLES[family].encoder, TABLES[family].of_head("text_classifier"))
    ]
    assert len(found) == len(weights)
    for weight, gradient in zip(weights, found, strict=True):
        name_map = next(names for names in maps if names.theirs(weight.path))
        target = name_map.read(weight.path, tuple(weight.shape), expected)
        scale = np.abs(target).max()
        assert scale > 0, weight.path
        gap = np.abs(dense_gradient(gradient) - target).max()
        assert gap <= 1e-4 * scale, weight.path


# --- settings ---


@pytest.mark.backends("torch")
@EVERY
def test_settings_are_read(reference, family):
    settings = {
        "bert": {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
        "distilbert": {"dropout": 0.3, "attention_dropout": 0.2, "seq_classif_dropout": 0.4},
        "modernbert": {
            "mlp_dropout": 0.3,
            "attention_dropout": 0.2,
            "classifier_dropout": 0.4,
            "local_rope_theta": 5000.0,
        },
    }
    settings["albert"] = {**settings["bert"], "classifier_dropout_prob": 0.4}
    for name in ("roberta", "xlm_roberta", "electra", "nomic_bert"):
        settings[name] = {**settings["bert"], "classifier_dropout": 0.4}
    settings["deberta_v3"] = {**settings["bert"], "cls_dropout": 0.4}
    settings["mpnet"] = settings["bert"]
    labels = {0: "no", 1: "maybe", 2: "yes"}
    theirs = reference(
        family, CLASSIFIER, id2label=labels, initializer_range=0.01, **settings[family]
    )
    classifier = load_classifier(theirs.directory)
    encoder = classifier.backbone
    assert (encoder.dropout, encoder.attention_dropout) == (0.3, 0.2)
    assert classifier.dropout == (0.3 if family in ("bert", "mpnet") else 0.4)
    assert classifier.labels == ["no", "maybe", "yes"]
    assert encoder.initializer_range == 0.01
    assert encoder.family == family
    assert encoder.max_sequence_length == 32
    assert not classifier.multi_label


@pytest.mark.backends("torch")
def test_multi_label(reference, tmp_path):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    directory = theirs.copy(tmp_path, problem_type="multi_label_classification")
    assert load_classifier(directory).multi_label


@pytest.mark.backends("torch")
def test_regression_is_no_classifier(reference, tmp_path):
    theirs = reference("bert", CLASSIFIER, num_labels=1)
    directory = theirs.copy(tmp_path, problem_type="regression")
    with pytest.raises(ValueError, match="'regression': its head returns a number, not classes"):
        load_classifier(directory)
    BertBackbone.from_preset(directory)
    with pytest.warns(UserWarning, match="logits/bias, logits/kernel"):
        assert load_classifier(directory, num_classes=2).num_classes == 2


@pytest.mark.backends("torch")
@pytest.mark.parametrize("missing", ["architectures", "model_type"])
def test_a_configuration_without(reference, tmp_path, missing):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    directory = theirs.copy(tmp_path, **{missing: None})
    assert theirs.compare(load_classifier(directory), lengths=(13,)) <= 1e-5


@pytest.mark.backends("torch")
def test_rotary_positions_by_another_name(reference, tmp_path):
    """In modernbert-ja's configuration, `position_embedding_type` is "rope"; in others it is
    missing.
    """
    theirs = reference("modernbert")
    directory = theirs.copy(tmp_path, position_embedding_type="rope")
    assert theirs.compare(BertBackbone.from_preset(directory), lengths=(13,)) <= 1e-5


@pytest.mark.backends("torch")
def test_configurations_of_the_first_nomic_bert(reference, tmp_path):
    theirs = reference("nomic_bert")
    first = {"n_embd": 36, "n_layer": 2, "n_head": 3, "n_inner": 40, "rotary_emb_base": 1000}
    first |= {"max_trained_positions": 32, "layer_norm_epsilon": 1e-12, "resid_pdrop": 0.0}
    first |= {"attn_pdrop": 0.0, "activation_function": "swiglu", "rotary_emb_fraction": 1.0}
    first |= {"n_positions": 64, "rotary_scaling_factor": 2}
    now = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    now += ("rope_parameters", "max_position_embeddings", "layer_norm_eps", "hidden_act")
    directory = theirs.copy(tmp_path, **first, **dict.fromkeys(now))
    encoder = BertBackbone.from_preset(directory)
    assert theirs.compare(encoder) <= 1e-5
    assert encoder.max_sequence_length == 32


@pytest.mark.backends("torch")
def test_configurations_of_the_first_gte(reference, tmp_path):
    """The fixed NTK scaling of the first GTE is the same as a larger base, as transformers' page on
    GTE explains.
    """
    linear = {"rope_type": "linear", "factor": 8 ** (2 / 12), "rope_theta": 160.0}
    theirs = reference("gte", CLASSIFIER, num_labels=3, rope_parameters=linear)
    scaled = {"rope_parameters": None, "rope_theta": 20.0}
    scaled |= {"rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope"}
    directory = theirs.copy(tmp_path, model_type="new", **scaled)
    assert theirs.compare(load_classifier(directory)) <= 1e-5


@pytest.mark.backends("torch")
def test_old_names_of_rotary_bases(reference, tmp_path):
    theirs = reference("modernbert")
    directory = theirs.copy(
        tmp_path, rope_parameters=None, global_rope_theta=100.0, local_rope_theta=50.0
    )
    encoder = BertBackbone.from_preset(directory)
    assert (encoder.rotary_base, encoder.local_rotary_base) == (100.0, 50.0)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "settings",
    [
        # Files of ModernBERT-ja and mmBERT have both `layer_norm_eps` and `norm_eps`; transformers
        # reads one of them.
        {"layer_norm_eps": 1e-3},
        {"layer_norm_eps": 1e-3, "norm_eps": None},
        {"layer_norm_eps": 1e-5, "norm_eps": 1e-5},
        {"sliding_window": 2, "local_attention": None},
        {"sliding_window": 2, "local_attention": 4},
        {"local_rope_theta": 50.0, "rope_parameters": {"full_attention": {"rope_theta": 100.0}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["modernbert", "modernbert_decoder"])
def test_other_spellings_of_modernbert(reference, tmp_path, family, settings):
    theirs = reference(family)
    directory = theirs.copy(tmp_path, **settings)
    read = transformers.AutoConfig.from_pretrained(directory)
    encoder = BertBackbone.from_preset(directory)
    assert encoder.layer_norm_epsilon == read.norm_eps
    own = family == "modernbert_decoder"  # The decoder's window counts the token itself.
    assert encoder.local_window == 2 * (read.sliding_window - own)
    ropes = read.rope_parameters
    assert encoder.rotary_base == ropes["full_attention"]["rope_theta"]
    assert encoder.local_rotary_base == ropes["sliding_attention"]["rope_theta"]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "family, settings, message",
    [
        ("bert", {"model_type": "t5"}, "model_type 't5'.*one of bert, roberta, xlm-roberta"),
        ("bert", {"is_decoder": True}, "is_decoder=True, which kerasbert does not support"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type="),
        ("bert", {"hidden_act": "snake"}, "hidden_act='snake', .*; expected one of gelu,"),
        ("albert", {"inner_group_num": 2}, "Missing, ours .theirs.: transformer_layer_1/"),
        (
            "albert",
            {"num_hidden_layers": 18, "num_hidden_groups": 14},
            "groups=14, for which",
        ),
        ("modernbert", {"head_dim": 6}, "head_dim=6 with hidden_size=36"),
        (
            "modernbert",
            {"layer_types": ["sliding_attention", "full_attention"] * 2},
            r"global attention in layers \[1, 3\]",
        ),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "scales its rotary positions",
        ),
        (
            "modernbert",
            {"local_attention": 128, "sliding_window": 128},
            "local_attention=128 with sliding_window=128, which is not half",
        ),
        ("mpnet", {"relative_attention_num_buckets": 16}, "num_buckets=16, .* only .*=32 can be"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id=0, .* only pad_token_id=1 can be loaded"),
        ("nomic_bert", {"activation_function": "gelu"}, "activation_function='gelu', which"),
        ("nomic_bert", {"head_dim": 6}, "head_dim=6 with hidden_size=36"),
        (
            "nomic_bert",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "scales its rotary positions .*'dynamic'.* only the rope_type 'default' and 'linear'",
        ),
        ("gte", {"position_embedding_type": "absolute"}, "'absolute'.*='rope' can be loaded"),
        ("gte", {"model_type": "new", "rope_parameters": None}, "has rope_theta=None, which"),
    ],
    ids=str,
)
def test_settings_that_are_refused(reference, tmp_path, family, settings, message):
    directory = reference(family).copy(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(directory)


# --- heads ---


@pytest.mark.backends("torch")
@EVERY
def test_a_new_head_is_named_in_one_warning(reference, family):
    theirs = reference(family)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier = load_classifier(theirs.directory, labels=["ham", "spam"])
    messages = [str(w.message) for w in caught if "New, random weights" in str(w.message)]
    assert len(messages) == 1
    inner = {id(weight) for weight in classifier.backbone.weights}
    head = [weight.path for weight in classifier.weights if id(weight) not in inner]
    assert messages[0].endswith(f": {', '.join(sorted(head))}.")
    assert theirs.compare(classifier.backbone, lengths=(13,)) <= 1e-5
    assert classifier.labels == ["ham", "spam"]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_new_head_gets_a_new_pooler(reference, family):
    theirs = reference(family, "ForTokenClassification")
    with pytest.warns(UserWarning, match="pooled_dense/bias, pooled_dense/kernel"):
        classifier = load_classifier(theirs.directory, num_classes=2)
    assert numpy(classifier.backbone.pooled_dense.kernel).std() > 0.01


@pytest.mark.backends("torch")
@EVERY
def test_no_head_is_an_error(reference, family):
    theirs = reference(family)
    with pytest.raises(ValueError, match="has no head for a .*; pass num_classes=2 or"):
        load_classifier(theirs.directory)


@pytest.mark.backends("torch")
def test_a_loaded_head_warns_of_nothing(reference):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="New, random")
        load_classifier(reference("bert", CLASSIFIER, num_labels=3).directory)


@pytest.mark.backends("torch")
def test_a_backbone_of_ones_own_stays_as_it_is(reference):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    encoder = BertBackbone.from_preset(theirs.directory, load_weights=False)
    before = numpy(encoder.token_embedding.embeddings)
    classifier = load_classifier(theirs.directory, backbone=encoder)
    assert classifier.backbone is encoder
    np.testing.assert_array_equal(numpy(encoder.token_embedding.embeddings), before)
    expected = theirs.tensors()["classifier.bias"].numpy()
    np.testing.assert_array_equal(numpy(classifier.output_dense.bias), expected)


@pytest.mark.backends("torch")
def test_without_weights(reference):
    theirs = reference("bert", CLASSIFIER, num_labels=3)
    classifier = load_classifier(theirs.directory, load_weights=False)
    assert classifier.num_classes == 3
    assert 0.01 < numpy(classifier.backbone.token_embedding.embeddings).std() < 0.03


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"conv_kernel_size": 4},
            "has conv_kernel_size=4, .*; only conv_kernel_size=an odd",
        ),
        (
            {"conv_kernel_size": 3, "conv_act": "magic"},
            "conv_act='magic', .*; only conv_act=",
        ),
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups=2"),
        ({"pos_att_type": ["c2p"]}, "pos_att_type=.'c2p'., .* use a DeBERTa-v3 checkpoint"),
        ({"share_att_key": False}, "share_att_key=False"),
        ({"position_biased_input": True}, "position_biased_input=True"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd='none'"),
        ({"type_vocab_size": 2}, "type_vocab_size=2"),
        ({"embedding_size": 20}, "embedding_size=20"),
        ({"position_buckets": 1.5}, "position_buckets=1.5 in .* must be a whole number"),
        ({"model_type": "deberta", "talking_head": True}, "talking_head=True"),
    ],
)
def test_debertas_that_are_none_of_ours(reference, tmp_path, settings, message):
    directory = reference("deberta_v3").copy(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_preset(directory)


@pytest.mark.backends("torch")
def test_what_else_the_published_file_holds_stays_unread(reference, tmp_path):
    theirs = reference("deberta_v3")
    more = {
        "lm_predictions.lm_head.bias": torch.zeros(2),
        "mask_predictions.dense.bias": torch.ones(2),
    }
    directory = theirs.copy_with(tmp_path, {**theirs.tensors(), **more}, bin=True)
    assert theirs.compare(BertBackbone.from_preset(directory), lengths=(5,)) <= 1e-5

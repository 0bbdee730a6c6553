"""Distillation: losses by hand, trained weights, raw texts, and students made from a teacher."""

import functools

import keras
import numpy as np
import pytest

from kerasbert.heads.base.task import BertTask
from kerasbert.models import (
    BertDistiller,
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
)
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import (
    FAMILY_SETTINGS,
    array,
    arrays,
    assert_close,
    batch,
    bert_tokenizer,
    model_contract,
    perturb,
    tiny_backbone,
)
from tests.heads.base.test_task import LABELS, TEXTS
from tests.heads.text_classifier.test_model import TOKENS, make_preprocessor

# Warnings of Keras would annoy users.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

Y = np.array([0, 1, 2])


three_classes = functools.partial(BertTextClassifier, num_classes=3)


def pair(make=three_classes, **settings):
    """A student of one layer and half the width, and its teacher; without dropout."""
    teacher = outspoken(make(tiny_backbone(dropout=0.0, **settings)))
    small = {"num_layers": 1, "hidden_dim": 8, "num_groups": 1, "dropout": 0.0, **settings}
    return perturb(make(tiny_backbone(**small))), teacher


def outspoken(model):
    """Return a teacher whose outputs differ enough to be learned."""
    perturb(model)
    if isinstance(model, BertTextEmbedder):
        return model
    kernel = model.layers[-1 if model.layers[-1].weights else -2].kernel
    kernel.assign(8 * array(kernel))
    return model


def distill(student, teacher, **settings):
    """Return a distiller with a projection, if any, that is not at its initial value."""
    distiller = BertDistiller(student, teacher, **settings)
    if distiller.projection is not None:
        perturb(distiller.projection)
    distiller.compile(keras.optimizers.Adam(0.01), run_eagerly=True)
    return distiller


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    def make(**settings):
        """Make a distiller whose loss depends on every weight, including the projection."""
        student, teacher = pair(family=family, **settings)
        return distill(student, teacher, hidden_weight=1.0)

    check(make, tmp_path)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def divergence(target, logits):
    p, q = softmax(target), softmax(logits)
    return (p * (np.log(p) - np.log(q))).sum(-1)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("hidden_loss", ["cosine", "mse"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_by_hand(hidden_loss, weighted):
    student, teacher = pair()
    weights = np.array([1.0, 0.5, 2.0]) if weighted else np.ones(3)
    distiller = distill(
        student,
        teacher,
        temperature=3.0,
        soft_weight=0.7,
        label_weight=0.2,
        hidden_weight=0.4,
        hidden_loss=hidden_loss,
        layer_map=[(0, 0), (1, 2)],
    )
    features = batch(student)
    inputs = {"x": features, "y": Y, "sample_weight": weights if weighted else None}
    found = distiller.evaluate(**inputs, return_dict=True, verbose=0)

    logits, target = (array(m(features)).astype("float64") for m in (student, teacher))
    soft = 9 * (weights * divergence(target / 3, logits / 3)).mean()
    labels = -(weights * np.log(softmax(logits))[range(3), Y]).mean()
    kernel, bias = distiller.projection.get_weights()
    ours, theirs = (
        arrays(m.backbone.feature_model()(features)["hidden_states"]) for m in (student, teacher)
    )
    mask = features["padding_mask"] * weights[:, None]
    hidden = []
    for a, b in ((0, 0), (1, 2)):
        x, t = ours[a] @ kernel + bias, theirs[b]
        if hidden_loss == "mse":
            each = ((x - t) ** 2).mean(-1)
        else:
            lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(t, axis=-1)
            each = 1 - (x * t).sum(-1) / lengths
        hidden.append((each * mask).sum() / mask.sum())
    hidden = np.mean(hidden)
    expected = {
        "soft_loss": soft,
        "label_loss": labels,
        "hidden_loss": hidden,
        "loss": 0.7 * soft + 0.2 * labels + 0.4 * hidden,
    }
    accuracy = found.pop("accuracy")
    assert min(expected.values()) > 0.01
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=1e-5)
    right = logits.argmax(-1) == Y
    np.testing.assert_allclose(accuracy, (weights * right).sum() / weights.sum(), rtol=1e-5)
    # The training loss is the same.
    np.testing.assert_allclose(
        distiller.train_on_batch(**inputs, return_dict=True)["loss"], expected["loss"], rtol=1e-4
    )


@pytest.mark.peers
@pytest.mark.backends("torch")
def test_soft_loss_is_that_of_distilbert():
    import torch

    student, teacher = pair()
    features = batch(student)
    distiller = distill(student, teacher, soft_weight=1.0, label_weight=0.0)
    logits, target = (torch.tensor(array(m(features))) for m in (student, teacher))
    functional = torch.nn.functional
    expected = 4 * functional.kl_div(
        functional.log_softmax(logits / 2, -1),
        functional.softmax(target / 2, -1),
        reduction="batchmean",
    )
    found = distiller.evaluate(features, Y, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["loss"], float(expected), atol=1e-6)
    assert "label_loss" not in found and "hidden_loss" not in found


@pytest.mark.backends("torch")
def test_only_the_student_trains():
    student, teacher = pair()
    weights = {"soft_weight": 1.0, "label_weight": 0.0, "hidden_weight": 1.0}
    distiller = distill(student, teacher, layer_map="uniform", **weights)
    features, before = batch(student), arrays([w.value for w in teacher.weights])
    first = distiller.train_on_batch(features, Y, return_dict=True)
    for _ in range(8):
        last = distiller.train_on_batch(features, Y, return_dict=True)
    assert all(last[name] < first[name] for name in ("loss", "soft_loss", "hidden_loss"))
    assert_close([w.value for w in teacher.weights], before, atol=0)
    trained = {id(weight) for weight in distiller.trainable_weights}
    expected = [*student.trainable_weights, *distiller.projection.trainable_weights]
    assert trained == set(map(id, expected))
    assert_close(distiller.predict(features, verbose=0), student(features))


@pytest.mark.backends("torch")
def test_a_second_student():
    first, teacher = pair()
    trained = [w.path for w in teacher.trainable_weights]
    distill(first, teacher)
    # The teacher can be trained further.
    assert [w.path for w in teacher.trainable_weights] == trained
    second = teacher.with_layers([0])
    assert [w.path for w in second.trainable_weights] == [w.path for w in first.trainable_weights]
    second.trainable = False
    with pytest.raises(ValueError, match="student has no .* set student.trainable = True"):
        distill(second, teacher)


@pytest.mark.backends("torch")
def test_compiled():
    student, teacher = pair()
    distiller = BertDistiller(student, teacher, hidden_weight=1.0)
    features = batch(student)
    distiller.compile(keras.optimizers.Adam(0.01), jit_compile=keras.backend.backend() != "torch")
    before = student.get_weights(), teacher.get_weights()
    expected = distiller.evaluate(features, Y, return_dict=True, verbose=0)
    history = distiller.fit(features, Y, batch_size=3, epochs=3, verbose=0).history
    np.testing.assert_allclose(history["loss"][0], expected["loss"], rtol=1e-4)
    assert history["loss"][2] < history["loss"][0]
    assert_close(teacher.get_weights(), before[1], atol=0)
    assert np.abs(student.get_weights()[0] - before[0][0]).max() > 1e-3


@pytest.mark.backends("torch")
def test_a_copy_of_the_teacher_has_nothing_to_learn():
    _, teacher = pair()
    student = teacher.with_layers([0, 1])
    distiller = distill(student, teacher, hidden_weight=1.0, layer_map="uniform")
    assert distiller.projection is None
    found = distiller.evaluate(batch(student), Y, return_dict=True, verbose=0)
    assert abs(found["soft_loss"]) < 1e-6 and abs(found["hidden_loss"]) < 1e-6


@pytest.mark.backends("torch")
def test_many_labels():
    student, teacher = pair(functools.partial(BertTextClassifier, num_classes=3, multi_label=True))
    distiller = distill(student, teacher, soft_weight=1.0, label_weight=0.0)
    features, rows = batch(student), np.eye(3, dtype="float32")
    logits, target = (array(m(features)).astype("float64") for m in (student, teacher))
    p, q = (1 / (1 + np.exp(-x / 2)) for x in (target, logits))
    each = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    found = distiller.evaluate(features, rows, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["loss"], 4 * each.mean(), rtol=1e-4)


@pytest.mark.backends("torch")
def test_scores():
    student, teacher = pair(BertTextRegressor)
    distiller = distill(student, teacher, soft_weight=1.0, label_weight=1.0)
    features, y = batch(student), np.array([0.5, 1.0, -1.0])
    score, target = (array(m(features)) for m in (student, teacher))
    expected = ((score - target) ** 2).mean() + ((score - y) ** 2).mean()
    found = distiller.evaluate(features, y, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-4)


@keras.saving.register_keras_serializable(package="test")
class Tagger(BertTask):
    """Logits for each token, weighted by token, as in a masked language model."""

    def __init__(self, backbone, preprocessor=None, **kwargs):
        self.backbone, self.preprocessor = backbone, preprocessor
        self.head = keras.layers.Dense(4, name="head")
        outputs = self.head(backbone(backbone.input)["sequence_output"])
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def default_loss(self):
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )

    def default_metrics(self):
        return []


@pytest.mark.backends("torch")
def test_weights_of_tokens():
    student, teacher = pair(Tagger)
    distiller = distill(student, teacher, soft_weight=1.0, label_weight=1.0, hidden_weight=1.0)
    features = batch(student)
    y = np.random.default_rng(0).integers(0, 4, (3, 7))
    weights = np.zeros((3, 7), "float32")
    weights[[0, 0, 2], [1, 4, 2]] = [1, 2, 0.5]
    logits, target = (array(m(features)).astype("float64") for m in (student, teacher))
    soft = 4 * (divergence(target / 2, logits / 2) * weights).sum() / weights.sum()
    logs = np.take_along_axis(np.log(softmax(logits)), y[:, :, None], -1)[:, :, 0]
    found = distiller.evaluate(features, y, sample_weight=weights, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["soft_loss"], soft, rtol=1e-4)
    np.testing.assert_allclose(found["label_loss"], -(logs * weights).sum() / 3.5, rtol=1e-4)


@pytest.mark.backends("torch")
def test_vectors_of_texts():
    """An embedder has no head, so its embeddings and the hidden states of its encoder are
    distilled.
    """
    student, teacher = pair(functools.partial(BertTextEmbedder, normalize=True), hidden_dim=16)
    distiller = distill(student, teacher, label_weight=0.0, hidden_weight=1.0)
    features = batch(student)
    vectors, target = (array(m(features)).astype("float64") for m in (student, teacher))
    ours, theirs = (array(m.backbone(features)["sequence_output"]) for m in (student, teacher))
    lengths = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    mask = features["padding_mask"]
    hidden = ((1 - (ours * theirs).sum(-1) / lengths) * mask).sum() / mask.sum()
    found = distiller.evaluate(features, target, return_dict=True, verbose=0)
    np.testing.assert_allclose(found["soft_loss"], ((vectors - target) ** 2).mean(), rtol=1e-4)
    np.testing.assert_allclose(found["hidden_loss"], hidden, rtol=1e-4)
    losses = distiller.fit(features, epochs=2, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.backends("torch")
def test_weights_of_texts_with_windows():
    """A weight of 0 leaves all windows of a text out of the hidden loss."""
    distiller = distill(
        *pair(functools.partial(three_classes, long="windows")), hidden_weight=1.0, label_weight=0.0
    )
    features, weights = batch(distiller.student), np.array([0.0, 1.0, 0.0], "float32")
    assert features["token_ids"].shape[:2] == (3, 2)
    found = distiller.evaluate(features, Y, sample_weight=weights, return_dict=True, verbose=0)
    alone = {name: x[1:2] for name, x in features.items()}
    wanted = distiller.evaluate(alone, Y[1:2], return_dict=True, verbose=0)
    np.testing.assert_allclose(found["hidden_loss"], wanted["hidden_loss"], rtol=1e-5)


# === Raw texts ===


def raw_pair(**settings):
    preprocessors = [make_preprocessor() for _ in range(2)]
    make = functools.partial(BertTextClassifier, labels=["bad", "good"])
    teacher = outspoken(make(tiny_backbone(dropout=0.0), preprocessor=preprocessors[0]))
    small = {"num_layers": 1, "dropout": 0.0, **settings}
    student = make(tiny_backbone(**small), preprocessor=preprocessors[1])
    for model in (student, teacher):
        model.compile(run_eagerly=True)
    return student, teacher


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_raw_texts(tmp_path):
    student, teacher = raw_pair()
    distiller = distill(student, teacher, hidden_weight=1.0)
    history = distiller.fit(
        TEXTS, LABELS, batch_size=8, epochs=2, verbose=0, validation_data=(TEXTS, LABELS)
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert {"val_loss", "val_soft_loss", "val_hidden_loss", "val_accuracy"} < set(history)
    pairs = (TEXTS, TEXTS[::-1])
    assert_close(distiller.predict(pairs, verbose=0), student.predict(pairs, verbose=0), atol=1e-6)
    distiller.save_to_preset(tmp_path / "student")
    loaded = BertTextClassifier.from_preset(tmp_path / "student")
    loaded.compile(run_eagerly=True)
    assert_close(loaded.predict_proba(TEXTS), student.predict_proba(TEXTS), atol=1e-6)


@pytest.mark.backends("torch")
def test_texts_without_labels():
    student, teacher = raw_pair()
    distiller = distill(student, teacher, soft_weight=1.0, label_weight=0.0)
    history = distiller.fit(TEXTS, batch_size=8, epochs=4, verbose=0).history
    assert set(history) == {"loss", "soft_loss"} and history["loss"][-1] < history["loss"][0]


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_masked_language_models():
    """DistilBERT's three losses, on texts that provide their own labels."""
    preprocessor = BertMaskedLMPreprocessor(bert_tokenizer(TOKENS), sequence_length=16)
    teacher = perturb(BertMaskedLM(tiny_backbone(dropout=0.0), preprocessor))
    student = teacher.with_layers([0])
    distiller = distill(student, teacher, hidden_weight=1.0)
    history = distiller.fit(TEXTS, batch_size=8, epochs=4, verbose=0).history
    assert {"soft_loss", "label_loss", "hidden_loss"} < set(history)
    assert history["label_loss"][-1] < history["label_loss"][0]


@pytest.mark.backends("torch")
def test_a_student_without_segments():
    """The teacher of such a student still gets the segments of a pair."""
    student, teacher = raw_pair(num_segments=0)
    distiller = distill(student, teacher, soft_weight=1.0, label_weight=0.0)
    pairs = (TEXTS[:4], TEXTS[4:])
    logits, target = (m.predict(pairs, verbose=0) for m in (student, teacher))
    expected = 4 * divergence(target / 2, logits / 2).mean()
    found = distiller.evaluate(pairs, LABELS[:4], return_dict=True, verbose=0)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.backends("torch")
def test_training_goes_on_from_a_checkpoint(tmp_path):
    student, teacher = pair()
    features = batch(student)
    distiller = distill(student, teacher, hidden_weight=1.0)
    distiller.train_on_batch(features, Y)
    distiller.save(tmp_path / "distiller.keras")
    loaded = keras.saving.load_model(tmp_path / "distiller.keras")
    assert loaded.get_config().keys() == distiller.get_config().keys()
    losses = [
        [model.train_on_batch(features, Y, return_dict=True)["loss"] for _ in range(2)]
        for model in (distiller, loaded)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


# === Students made from a teacher ===


@pytest.mark.backends("torch")
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_all_layers_are_the_same_model(family):
    teacher = perturb(BertTextClassifier(tiny_backbone(family), num_classes=3))
    features = batch(teacher)
    student = teacher.with_layers(range(teacher.backbone.num_layers))
    assert_close(student(features), teacher(features), atol=0)
    assert [w.path for w in student.weights] == [w.path for w in teacher.weights]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("bert", [1]),
        ("bert", [1, 0, 0]),
        ("albert", [0, 2]),
        ("albert", [3]),
        ("modernbert", [0, 2]),
    ],
)
def test_some_layers(family, layers):
    settings = {"global_every": 1} if family == "modernbert" else {}
    teacher = perturb(BertTextClassifier(tiny_backbone(family, **settings), num_classes=3))
    student = teacher.with_layers(layers)
    assert student.backbone.num_layers == len(layers)
    for place, layer in enumerate(layers):
        expected = teacher.backbone.transformer_layers[layer].get_weights()
        assert_close(student.backbone.transformer_layers[place].get_weights(), expected, atol=0)
    assert_close(student.output_dense.get_weights(), teacher.output_dense.get_weights(), atol=0)
    assert student.preprocessor is teacher.preprocessor is None
    # The student is independent: training it does not change the teacher.
    before = teacher.get_weights()
    student.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    student.train_on_batch(batch(student), Y)
    assert_close(teacher.get_weights(), before, atol=0)


def classifier(family="bert", **settings):
    return BertTextClassifier(tiny_backbone(family, **settings), num_classes=3)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: classifier().with_layers([0, 2]), "Layer 2 .* 0 to 1"),
        (lambda: classifier("modernbert").with_layers([0, 3]), "Layer 3 is of another kind"),
        (lambda: classifier("modernbert").with_layers([1]), "Layer 1 is of another kind"),
        (lambda: classifier("albert").with_layers([0, 2, 3]), "cannot share weights in groups"),
    ],
)
def test_layers_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def with_tokens(tokens):
    return make_preprocessor().__class__(BertTokenizer(tokens, lowercase=True), sequence_length=16)


def settings_that_fail():
    student, teacher = classifier(num_layers=1), classifier()
    encoders = student.backbone, teacher.backbone
    shared = BertTextClassifier(teacher.backbone, num_classes=3)
    regressor = BertTextRegressor(teacher.backbone)
    two = BertTextClassifier(teacher.backbone, num_classes=2)
    named, other = (
        BertTextClassifier(encoder, labels=labels)
        for encoder, labels in zip(encoders, (list("abc"), list("bac")), strict=True)
    )
    activated = BertTextClassifier(teacher.backbone, num_classes=3, activation="softmax")
    vocabularies = TOKENS, TOKENS[:5] + TOKENS[:4:-1]
    texts = [
        BertTextClassifier(encoder, num_classes=3, preprocessor=with_tokens(tokens))
        for encoder, tokens in zip(encoders, vocabularies, strict=True)
    ]
    yield (student, teacher), {"temperature": 0}, "temperature must be above 0, got 0"
    yield (student, teacher), {"label_weight": -1}, "label_weight must be 0 or more, got -1"
    yield (student, teacher), {"soft_weight": 0}, "soft_weight=0 and hidden_weight=0"
    yield (student, teacher), {"hidden_loss": "l1"}, "hidden_loss='l1' is unknown"
    hidden = {"hidden_weight": 1.0}
    yield (student, teacher), {**hidden, "layer_map": "all"}, "layer_map='all' is unknown"
    yield (
        (student, teacher),
        {**hidden, "layer_map": [(1, 3)]},
        r"layer_map contains \(1, 3\); .* 0 to 1.* 0 to 2",
    )
    yield (student, teacher), {**hidden, "layer_map": []}, "layer_map is empty"
    yield (student.backbone, teacher), {}, "The student must be a task model.* got a BertBackbone"
    yield (teacher, teacher), {}, "are the same model"
    yield (shared, teacher), {}, "are the same model"
    yield (student, activated), {}, "The teacher has activation='softmax'"
    yield (student, regressor), {}, "BertTextClassifier and the teacher a BertTextRegressor"
    yield (student, two), {}, "The outputs differ"
    yield (named, other), {}, "The outputs differ"
    yield texts, {}, "different tokenizers"


def test_errors():
    for (student, teacher), settings, message in settings_that_fail():
        with pytest.raises(ValueError, match=message):
            BertDistiller(student, teacher, **settings)


@pytest.mark.backends("torch")
def test_a_teacher_with_fewer_positions():
    student, _ = raw_pair()
    backbone = tiny_backbone(max_sequence_length=8)
    teacher = BertTextClassifier(backbone, labels=["bad", "good"])
    with pytest.raises(ValueError, match="8 positions.*`student.preprocessor.sequence_length`"):
        BertDistiller(student, teacher)
    student.preprocessor.sequence_length = 8
    BertDistiller(student, teacher)

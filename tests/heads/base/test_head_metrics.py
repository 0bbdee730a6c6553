"""Every Keras metric on every form of outputs: correct, or rejected with an alternative."""

import functools
import inspect
import json
import zipfile

import keras
import numpy as np
import pytest
import scipy.special
from sklearn import metrics as sklearn_metrics

from kerasbert.heads.base.head_metrics import HeadMetric, fitting_metrics, without_padding
from kerasbert.losses import ClassAccuracy
from kerasbert.models import (
    BertMultipleChoice,
    BertQuestionAnswering,
    BertReplacedTokenDetector,
    BertReranker,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
)
from tests.contracts import array, batch, perturb, tiny_backbone

# Arguments of metrics that require some; C is the number of classes.
ARGUMENTS = {
    "IoU": lambda C: {"num_classes": C, "target_class_ids": [1]},
    "MeanIoU": lambda C: {"num_classes": C},
    "OneHotIoU": lambda C: {"num_classes": C, "target_class_ids": [1]},
    "OneHotMeanIoU": lambda C: {"num_classes": C},
    "SparseTopKCategoricalAccuracy": lambda C: {"k": 2},
    "TopKCategoricalAccuracy": lambda C: {"k": 2},
    "PrecisionAtRecall": lambda C: {"recall": 0.5},
    "RecallAtPrecision": lambda C: {"precision": 0.5},
    "SensitivityAtSpecificity": lambda C: {"specificity": 0.5},
    "SpecificityAtSensitivity": lambda C: {"sensitivity": 0.5},
    "MeanMetricWrapper": lambda C: {"fn": keras.metrics.binary_crossentropy},
}
NAMES = [
    name
    for name in dir(keras.metrics)
    if inspect.isclass(getattr(keras.metrics, name)) and name != "Metric"
]
BINARY = {
    *"AUC BinaryAccuracy BinaryCrossentropy BinaryIoU FalseNegatives FalsePositives".split(),
    *"Precision PrecisionAtRecall Recall RecallAtPrecision SensitivityAtSpecificity".split(),
    *"SpecificityAtSensitivity TrueNegatives TruePositives MeanMetricWrapper".split(),
}
SPARSE = {n for n in NAMES if n.startswith("Sparse")}
ROWS = {n for n in NAMES if n.startswith(("Categorical", "TopK", "OneHot", "KLD", "F1", "FBeta"))}
IDS = {"Accuracy", "IoU", "MeanIoU"}
ERRORS = {"MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError"}
NUMBERS = {
    *("MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "LogCoshError"),
    *("Poisson", "R2Score"),
}
HINGES = {"Hinge", "SquaredHinge"}
CORRELATIONS = {"CosineSimilarity", "PearsonCorrelation", "ConcordanceCorrelation"}
# Metrics that make sense for each form of outputs; all others must be rejected.
TAKEN = {
    "two": BINARY | SPARSE | ROWS | IDS | ERRORS | HINGES,
    "five": {"AUC", "BinaryCrossentropy", "MeanMetricWrapper"} | SPARSE | ROWS | IDS | ERRORS,
    "several": BINARY | ERRORS | HINGES | IDS,
    "number": ERRORS | NUMBERS,
    "tags": {"AUC", "BinaryCrossentropy", "MeanMetricWrapper"} | SPARSE | ROWS | IDS | ERRORS,
    "flags": BINARY | ERRORS | HINGES | IDS,
    "pairs": BINARY | ERRORS | HINGES | IDS,
    "places": SPARSE | {"Accuracy"} | {n for n in ROWS if n[0] in "CTK"},
    "vectors": ERRORS | NUMBERS | CORRELATIONS,
}


@functools.cache
def head(form):
    backbone = tiny_backbone()
    return {
        "two": lambda: BertTextClassifier(backbone, num_classes=2),
        "five": lambda: BertTextClassifier(backbone, num_classes=5),
        "several": lambda: BertTextClassifier(backbone, num_classes=3, multi_label=True),
        "number": lambda: BertTextRegressor(backbone),
        "tags": lambda: BertTokenClassifier(backbone, num_classes=4),
        "flags": lambda: BertReplacedTokenDetector(backbone),
        "pairs": lambda: BertReranker(backbone),
        "places": lambda: BertMultipleChoice(backbone),
        "vectors": lambda: BertTextEmbedder(backbone),
    }[form]()


def example(form, seed, rows):
    """Return labels, logits and weights of a batch; those of tokens have padding at the ends."""
    random = np.random.default_rng(seed)
    if form in ("tags", "flags"):
        length = 4 + seed  # Each batch has a different length.
        shape = (rows, length, 4) if form == "tags" else (rows, length)
        logits = random.normal(size=shape).astype("float32") * 2
        y = random.integers(0, 4 if form == "tags" else 2, (rows, length))
        weights = (np.arange(length) < random.integers(1, length, rows)[:, None]).astype("float32")
        return np.where(weights > 0, y, 0), logits, weights
    classes = {"two": 2, "five": 5, "several": 3, "vectors": 6, "places": 4 + seed}.get(form)
    shape = (rows,) if classes is None else (rows, classes)
    logits = random.normal(size=shape).astype("float32") * 2
    if form == "several":
        return random.integers(0, 2, shape).astype("float32"), logits, None
    if form in ("number", "vectors"):
        return random.random(shape).astype("float32") + 1, np.abs(logits), None
    return random.integers(0, classes or 2, rows), logits, None


def prepared(name, form, batches):
    """Return the inputs for Keras' metric over all batches, computed independently of the tested
    code.
    """
    if form in ("tags", "flags"):
        batches = [(y[w > 0], logits[w > 0], None) for y, logits, w in batches]
    if form == "places":
        width = max(logits.shape[1] for _, logits, _ in batches)
        batches = [
            (y, np.pad(x, [(0, 0), (0, width - x.shape[1])], constant_values=-1e9), w)
            for y, x, w in batches
        ]
    y = np.concatenate([y for y, _, _ in batches])
    logits = np.concatenate([x for _, x, _ in batches])
    if form == "number":
        return y[:, None], logits[:, None]
    if form == "vectors":
        return y, logits
    if form in ("several", "flags", "pairs"):
        if name in HINGES:
            return y.reshape(-1), logits.reshape(-1)
        if name in IDS:
            return y.reshape(-1), (logits.reshape(-1) > 0).astype("int32")
        return y.reshape(-1), scipy.special.expit(logits.reshape(-1))
    shares = scipy.special.softmax(logits, axis=-1)
    if name in SPARSE:
        return y, shares
    if name in IDS:
        return y, logits.argmax(axis=-1)
    rows = np.eye(logits.shape[-1], dtype="float32")[y]
    if name == "CategoricalHinge":
        return rows, logits
    if name in HINGES:
        return y, logits[:, 1] - logits[:, 0]
    if name in BINARY and logits.shape[-1] == 2:
        return y, shares[:, 1]
    if name in BINARY:
        return rows.reshape(-1), shares.reshape(-1)
    return rows, shares


def made(name, form, **settings):
    classes = {"two": 2, "five": 5, "several": 2, "tags": 4, "flags": 2, "pairs": 2}.get(form, 3)
    arguments = ARGUMENTS.get(name, lambda C: {})(classes)
    return getattr(keras.metrics, name)(**arguments, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("form", TAKEN)
@pytest.mark.parametrize("name", NAMES)
def test_every_metric_is_right_or_refused(name, form):
    """As object and as class; batches differ in size and length, and some tokens are padding."""
    if name not in TAKEN[form]:
        with pytest.raises(ValueError, match="The metric .* of this .*; pass .* instead"):
            fitting_metrics(head(form), [made(name, form)])
        return
    batches = [example(form, seed, rows) for seed, rows in enumerate((7, 5, 2))]
    expected = made(name, form)
    expected.update_state(*prepared(name, form, batches))
    given = made(name, form)
    (metric,) = fitting_metrics(head(form), [given])
    assert metric.name == given.name
    for y, logits, weights in batches:
        metric.update_state(y, logits, sample_weight=weights)
    wanted = array(expected.result())
    np.testing.assert_allclose(array(metric.result()), wanted, rtol=1e-4, atol=1e-5)
    # The object that was passed also holds the result.
    np.testing.assert_allclose(array(given.result()), wanted, rtol=1e-4, atol=1e-5)
    # A metric that is loaded from a file keeps its state.
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is HeadMetric and again.get_config() == metric.get_config()
    assert fitting_metrics(head(form), again) is again


FUNCTIONS = [
    name
    for name in dir(keras.metrics)
    if inspect.isfunction(getattr(keras.metrics, name))
    and name not in ("get", "serialize", "deserialize")
]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["two", "five", "several", "number", "tags", "vectors"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_names_as_objects(name, form):
    title = name.title().replace("_", "").replace("LogCosh", "LogCoshError").replace("KlD", "KLD")
    kind = {"BinaryFocalCrossentropy": "BinaryCrossentropy"}.get(title, title)
    kind = {"CategoricalFocalCrossentropy": "CategoricalCrossentropy"}.get(kind, kind)
    kind = {"Huber": "LogCoshError"}.get(kind, kind)
    is_taken = (
        kind in TAKEN[form]
        and title != "BinaryFocalCrossentropy"
        or (title == "BinaryFocalCrossentropy" and form in ("two", "several"))
    )
    for given in (name, getattr(keras.metrics, name)):
        if form == "vectors" and isinstance(given, str):
            continue  # Tested below.
        if not is_taken:
            with pytest.raises(ValueError, match="The metric .* of this"):
                fitting_metrics(head(form), given)
            continue
        metric = fitting_metrics(head(form), given)
        assert metric.name == name
        if hasattr(keras.metrics, title) and "top_k" not in name:
            y, logits, weights = example(form, 0, 6)
            metric.update_state(y, logits, sample_weight=weights)
            (same,) = fitting_metrics(head(form), [getattr(keras.metrics, title)()])
            same.update_state(y, logits, sample_weight=weights)
            np.testing.assert_allclose(array(metric.result()), array(same.result()), rtol=1e-5)


def test_the_recall_of_several_labels():
    y = np.array([[1, 0, 1], [0, 1, 0]], "float32")
    logits = np.array([[0.2, -3, -0.5], [-1, 0.4, -2]], "float32")
    for given in (keras.metrics.Recall(), keras.metrics.Recall, "recall", "Recall"):
        metric = fitting_metrics(head("several"), given)
        metric.update_state(y, logits)
        assert round(float(metric.result()), 3) == 0.667


@pytest.mark.parametrize("score", ["f1", "precision", "recall"])
@pytest.mark.parametrize("form", ["two", "five", "tags"])
def test_averages_are_named(score, form):
    batches = [example(form, seed, 9) for seed in range(3)]
    metric = fitting_metrics(head(form), score)
    assert metric.name == (score if form == "two" else f"macro_{score}")
    for y, logits, weights in batches:
        metric.update_state(y, logits, sample_weight=weights)
    y, best = prepared("Accuracy", form, batches)
    function = getattr(sklearn_metrics, f"{score}_score")
    average = "binary" if form == "two" else "macro"
    assert float(metric.result()) == pytest.approx(function(y, best, average=average), abs=1e-5)


def test_thresholds_and_places_for_the_way_out():
    """Errors name arguments to pass instead, and these work."""
    five = head("five")
    with pytest.raises(
        ValueError, match="Precision of .* is for two classes, .* 5 classes.*class_id"
    ):
        fitting_metrics(five, keras.metrics.Precision())
    batches = [example("five", seed, 30) for seed in range(2)]
    metric = fitting_metrics(five, keras.metrics.Recall(class_id=2))
    for y, logits, _ in batches:
        metric.update_state(y, logits)
    y, shares = prepared("SparseCategoricalAccuracy", "five", batches)
    wanted = sklearn_metrics.recall_score(y == 2, shares[:, 2] > 0.5)
    assert float(metric.result()) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="F1Score of .* without a threshold .* pass threshold=0.5"):
        fitting_metrics(head("several"), keras.metrics.F1Score())
    metric = fitting_metrics(head("several"), keras.metrics.F1Score("macro", threshold=0.5))
    y, logits, _ = example("several", 0, 20)
    metric.update_state(y, logits)
    wanted = sklearn_metrics.f1_score(y, logits > 0, average="macro")
    assert float(metric.result()) == pytest.approx(wanted)
    with pytest.raises(ValueError, match=r"has the threshold -1; pass 0.5 there"):
        fitting_metrics(head("several"), keras.metrics.BinaryAccuracy(threshold=-1))
    with pytest.raises(ValueError, match="num_classes=3 for 5 classes; pass num_classes=5"):
        fitting_metrics(five, keras.metrics.MeanIoU(3))
    with pytest.raises(ValueError, match="accuracy of .* compares classes"):
        fitting_metrics(head("number"), "accuracy")


def test_thresholds_of_logits_mean_what_they_did():
    """Files of earlier versions have the threshold 0, for logits; it means the same as 0.5 for
    probabilities.
    """
    y, logits, _ = example("several", 0, 20)
    results = []
    for threshold in (0.0, 0.5):
        metric = fitting_metrics(head("several"), keras.metrics.Precision(thresholds=threshold))
        metric.update_state(y, logits)
        results.append(float(metric.result()))
    assert results[0] == results[1] == pytest.approx(y[logits > 0].mean())


def test_weights_count_where_they_are_asked_for():
    y, logits, weights = example("tags", 1, 6)
    right = (logits.argmax(-1) == y).astype(float)
    for weighted in (False, True):
        metric = fitting_metrics(head("tags"), "accuracy", weighted)
        metric.update_state(y, logits, sample_weight=weights * np.arange(1, 7)[:, None])
        used = weights * np.arange(1, 7)[:, None] if weighted else weights
        assert float(metric.result()) == pytest.approx((right * used).sum() / used.sum())


def test_lists_of_pairs_count_what_has_a_label():
    y, logits = np.array([[1, 0, -1], [0, 1, 1]]), np.array([[2.0, -1, 9], [1, 1, 1]], "float32")
    metric = fitting_metrics(head("pairs"), keras.metrics.Precision())
    metric.update_state(y, logits)
    assert float(metric.result()) == pytest.approx(3 / 4)


def test_places_of_answers_and_of_pre_training():
    answering = BertQuestionAnswering(tiny_backbone())
    given = {"start_logits": ["accuracy"], "end_logits": ["ce"]}
    found = fitting_metrics(answering, given)
    assert isinstance(found["start_logits"][0], ClassAccuracy)
    assert found["end_logits"][0].name == "ce"
    listed = fitting_metrics(answering, [["accuracy"], ["ce"]])
    assert [part[0].name for part in (listed["end_logits"], listed["start_logits"])] == [
        "accuracy",
        "ce",
    ]
    with pytest.raises(ValueError, match="is for two classes, but the outputs are positions"):
        fitting_metrics(answering, {"start_logits": [keras.metrics.Precision()]})


def test_vectors_have_vectors_as_labels():
    """A student of an embedder is compared with its embeddings; metrics of pairs are rejected."""
    model = perturb(BertTextEmbedder(tiny_backbone(), normalize=True))
    model.compile("sgd", "mse", metrics=["mse", keras.metrics.CosineSimilarity()], run_eagerly=True)
    features = batch(model)
    vectors = array(model(features))
    found = model.evaluate(features, vectors, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["cosine_similarity"], 1.0, atol=1e-5)
    np.testing.assert_allclose(found["mse"], 0.0, atol=1e-10)
    (metric,) = fitting_metrics(model, [keras.metrics.MeanSquaredError()])
    with pytest.raises(ValueError, match="compares the embeddings .* not of shape .*'auto'"):
        metric.update_state(np.ones(len(vectors)), vectors)
    with pytest.raises(ValueError, match="compares classes, but the outputs are vectors"):
        fitting_metrics(model, ["accuracy"])


def test_outputs_of_chosen_tokens_count_as_they_are():
    """XLNet's P predictions are not counted as tokens, even if P is equal to the number of
    tokens.
    """
    features = {"token_ids": np.ones((2, 4)), "padding_mask": np.array([[1, 1, 0, 0]] * 2)}
    weights = np.array([[1.0, 1, 1, 0]] * 2)
    outputs = np.ones((2, 4, 9))
    for name in ("target_mapping", "mask_positions"):
        assert without_padding({**features, name: None}, outputs, weights) is weights
    assert array(without_padding(features, outputs, weights)).tolist() == [[1, 1, 0, 0]] * 2


def test_a_model_whose_metric_is_refused_by_now_loads(tmp_path):
    model = BertTextClassifier(tiny_backbone(), num_classes=3)
    model.compile("sgd", "auto", metrics=["accuracy"])
    model.save(tmp_path / "a.keras")
    with (
        zipfile.ZipFile(tmp_path / "a.keras") as old,
        zipfile.ZipFile(tmp_path / "b.keras", "w") as new,
    ):
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                config = json.loads(data)
                precision = keras.saving.serialize_keras_object(keras.metrics.Precision())
                config["compile_config"]["metrics"] = [precision]
                data = json.dumps(config)
            new.writestr(name, data)
    with pytest.warns(UserWarning, match="loaded without metrics: The metric Precision of this"):
        loaded = keras.saving.load_model(tmp_path / "b.keras")
    assert loaded.optimizer is not None and loaded.loss is not None
    assert len(loaded.metrics) == 1


def test_padding_of_ready_arrays_does_not_count():
    """Through `compile` and `evaluate`, without weights, and with weights for all tokens."""
    model = perturb(BertTokenClassifier(tiny_backbone(), num_classes=4))
    features = batch(model)
    mask = features["padding_mask"] > 0
    y = array(model(features)).argmax(-1)
    y = np.where(mask, y, (y + 1) % 4)  # All predictions at padding are wrong.
    model.compile(run_eagerly=True, metrics=["accuracy", "sparse_categorical_accuracy", "f1"])
    for weights in (None, np.ones(y.shape)):
        found = model.evaluate(features, y, sample_weight=weights, verbose=0, return_dict=True)
        assert found["accuracy"] == found["sparse_categorical_accuracy"] == 1.0
        assert found["macro_f1"] == 1.0
    model.compile(run_eagerly=True)
    assert model.evaluate(features, y, verbose=0, return_dict=True)["accuracy"] == 1.0

"""`compile` with losses and metrics by name, labels as rows, and Keras' copies."""

import keras
import numpy as np
import pytest

from kerasbert.models import (
    BertMultiTask,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextRegressor,
)
from tests.contracts import array, assert_close, batch, perturb, tiny_classifier

Y = np.array([0, 1, 2])
ROWS = np.eye(3, dtype="float32")[Y]
MANY = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]], "float32")


@pytest.fixture(scope="module")
def model():
    return tiny_classifier(dropout=0.0, num_layers=1)


@pytest.fixture(scope="module")
def many():
    backbone = tiny_classifier(dropout=0.0).backbone
    return perturb(BertTextClassifier(backbone, num_classes=3, multi_label=True))


def probabilities(model, features):
    odds = np.exp(array(model(features)).astype("float64"))
    return odds / odds.sum(axis=-1, keepdims=True)


def evaluate(model, y, **settings):
    model.compile(run_eagerly=True, **settings)
    return model.evaluate(batch(model), y, verbose=0, return_dict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        "auto",
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ],
)
def test_class_numbers(model, loss):
    expected = -np.log(probabilities(model, batch(model))[np.arange(3), Y]).mean()
    metrics = ["accuracy", "sparse_categorical_crossentropy", "ce", "sparse_categorical_accuracy"]
    found = evaluate(model, Y, loss=loss, metrics=metrics)
    right = (probabilities(model, batch(model)).argmax(-1) == Y).mean()
    assert_close(found.pop("accuracy"), right)
    assert_close(found.pop("sparse_categorical_accuracy"), right)
    assert_close(found, dict.fromkeys(found, expected))
    assert set(found) == {"loss", "sparse_categorical_crossentropy", "ce"}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["auto", "categorical_crossentropy", "CategoricalCrossentropy"])
def test_one_hot_and_soft_labels(model, loss):
    soft = 0.8 * ROWS + 0.2 / 3
    for rows in (ROWS, soft):
        expected = -(rows * np.log(probabilities(model, batch(model)))).sum(-1).mean()
        metrics = "auto" if loss == "auto" else ["accuracy", "categorical_crossentropy"]
        found = evaluate(model, rows, loss=loss, metrics=metrics)
        right = (probabilities(model, batch(model)).argmax(-1) == Y).mean()
        assert_close(found.pop("accuracy"), right)
        assert_close(found, dict.fromkeys(found, expected))


@pytest.mark.slow
def test_one_hot_labels_in_training(model):
    """The gradient equals that of class indices."""
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    before, moved = model.get_weights(), []
    for y in (Y, ROWS):
        model.fit(batch(model), y, verbose=0, shuffle=False)
        moved.append([w - old for w, old in zip(model.get_weights(), before, strict=True)])
        model.set_weights(before)
    assert_close(moved[1], moved[0], atol=1e-6)
    assert max(np.abs(step).max() for step in moved[0]) > 1e-3


@pytest.mark.parametrize("loss", ["auto", "binary_crossentropy", "bce"])
def test_many_labels(many, loss):
    shares = 1 / (1 + np.exp(-array(many(batch(many))).astype("float64")))
    chosen, is_label = shares > 0.5, MANY > 0
    binary = -np.log(np.where(is_label, shares, 1 - shares)).mean()
    names = ["accuracy", "binary_accuracy", "binary_crossentropy", "precision", "recall", "auc"]
    found = evaluate(many, MANY, loss=loss, metrics=names)
    assert_close(found["loss"], binary)
    assert_close(found["binary_crossentropy"], binary)
    assert_close(found["accuracy"], (chosen == is_label).mean())
    assert_close(found["binary_accuracy"], (chosen == is_label).mean())
    assert_close(found["precision"], is_label[chosen].mean())
    assert_close(found["recall"], chosen[is_label].mean())
    pairs = shares[is_label][:, None] - shares[~is_label][None]
    assert abs(found["auc"] - (pairs > 0).mean()) < 0.12  # Keras approximates with 200 thresholds.


def test_with_an_activation(model):
    own = BertTextClassifier(model.backbone, num_classes=3, activation="softmax")
    own.set_weights(model.get_weights())
    expected = -np.log(probabilities(model, batch(model))[np.arange(3), Y]).mean()
    found = evaluate(own, Y, loss="sparse_categorical_crossentropy", metrics=["ce"])
    assert_close(found, dict.fromkeys(("loss", "ce"), expected))
    message = r"from_logits=True\) expects logits, but .* built with an activation"
    with pytest.raises(ValueError, match=message):
        own.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    both = BertTextClassifier(model.backbone, num_classes=3, multi_label=True, activation="sigmoid")
    shares = array(both(batch(both)))
    found = evaluate(both, MANY, loss="binary_crossentropy", metrics=["accuracy"])
    assert_close(found["accuracy"], ((shares > 0.5) == (MANY > 0)).mean())


def test_several_outputs(model):
    answering = BertQuestionAnswering(model.backbone)
    y = {"start_logits": np.array([0, 1, 2]), "end_logits": np.array([1, 2, 3])}
    expected = evaluate(answering, y)["loss"]
    name = "sparse_categorical_crossentropy"
    for loss in (dict.fromkeys(y, name), [name, name]):
        # Lists of outputs are ordered by name.
        settings = {"loss": loss, "metrics": {"start_logits": ["ce"], "end_logits": ["accuracy"]}}
        if isinstance(loss, list):
            settings["metrics"] = [["ce"], ["ce"]]
        found = evaluate(answering, y, **settings)
        assert_close(found["loss"], 2 * expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": keras.losses.SparseCategoricalCrossentropy()},
        {"loss": {"predictions": keras.losses.BinaryCrossentropy(from_logits=False)}},
    ],
)
def test_objects_for_probabilities(model, settings):
    with pytest.raises(ValueError, match="this BertTextClassifier returns logits; pass"):
        model.compile(**settings)


def test_others_stay_as_they_are(model):
    regressor = BertTextRegressor(model.backbone)
    assert set(evaluate(regressor, Y * 1.0, loss="mse", metrics=["mae"])) == {"loss", "mae"}

    class Own(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return keras.ops.sum(y_pred, axis=-1)

        def get_config(self):
            raise NotImplementedError

    model.compile(loss=Own())


def test_tasks_of_a_multi_task_have_their_own(model):
    tasks = BertMultiTask({"topic": model})
    tasks.compile("sgd")
    with pytest.raises(ValueError, match=r"model.tasks\['topic'\].compile\(loss=...\)"):
        tasks.compile(loss={"topic": "sparse_categorical_crossentropy"})


def test_saved(model, tmp_path):
    model.compile(loss="sparse_categorical_crossentropy", metrics=["ce"], run_eagerly=True)
    expected = model.evaluate(batch(model), Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded.evaluate(batch(model), Y, verbose=0), expected)


def test_clone(model):
    """Keras makes a plain model of the same layers, which trains equally."""
    model.compile(metrics=["accuracy"], run_eagerly=True)
    model.train_on_batch(batch(model), Y)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    features = batch(model)
    assert_close(clone.predict(features, verbose=0), model.predict(features, verbose=0), atol=0)
    assert_close(clone.evaluate(features, Y, verbose=0), model.evaluate(features, Y, verbose=0))


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_a_step_is_traced_once(monkeypatch):
    """TensorFlow retraces a function that created variables, such as loss trackers."""
    import tensorflow as tf

    traced, step = [], keras.Model.train_step

    def train_step(self, data):
        traced.append(type(self).__name__)
        return step(self, data)

    monkeypatch.setattr(keras.Model, "train_step", train_step)
    backbone = tiny_classifier(num_layers=1).backbone
    classifier, answering = BertTextClassifier(backbone, 3), BertQuestionAnswering(backbone)
    for model, y in ((classifier, Y), (answering, {"start_logits": Y, "end_logits": Y})):
        model.compile(jit_compile=False)
        rows = tf.data.Dataset.from_tensors((batch(model), y)).repeat(2)
        model.fit(rows, verbose=0)
        assert int(model.optimizer.iterations) == 2
    assert traced == ["BertTextClassifier", "BertQuestionAnswering"]


@pytest.mark.backends("torch")
def test_label_smoothing_of_the_default_loss(model, many):
    model.compile(label_smoothing=0.3)
    many.compile(label_smoothing=0.3)
    assert model.loss.label_smoothing == many.loss.label_smoothing == 0.3
    for task, loss, said in (
        (BertQuestionAnswering(model.backbone), "auto", "needs a cross-entropy of classes"),
        (BertTextRegressor(model.backbone), "auto", "of this BertTextRegressor is a different one"),
        (model, "mse", "is for the default loss, but loss='mse'"),
    ):
        with pytest.raises(ValueError, match=said):
            task.compile(loss=loss, label_smoothing=0.3)

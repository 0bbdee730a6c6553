"""Several tasks on one encoder: sampling, training, shared parts, saving and bad input."""

import keras
import numpy as np
import pytest

from kerasbert.heads.base.sampling import array_batches, plan_steps
from kerasbert.models import (
    BertBackbone,
    BertMultipleChoice,
    BertMultiTask,
    BertTextClassifier,
    BertTextClassifierPreprocessor,
    BertTextRegressor,
    BertTextRegressorPreprocessor,
)
from kerasbert.tokenizers import BertTokenizer
from tests.contracts import (
    array,
    assert_close,
    model_contract,
    perturb,
    tiny_backbone,
)

TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] good bad film a the was very dull fun it".split()
TOKENS += [f"word{i}" for i in range(30 - len(TOKENS))]
TEXTS = ["good film", "bad film", "very good", "it was bad"] * 6
Y = {"mood": ["fun", "dull"] * 12, "grade": [1.0, 0.0] * 12}


def make(family="bert", **settings):
    """Return a classifier, a regressor that needs no pooler, and a multiple-choice model."""
    backbone = tiny_backbone(family, dropout=0.0, **settings)
    return BertMultiTask(
        {
            "mood": BertTextClassifier(backbone, labels=["dull", "fun"]),
            "grade": BertTextRegressor(backbone, pooling="mean"),
            "next": BertMultipleChoice(backbone),
        }
    )


@pytest.mark.slow
@model_contract("bert")
def test_contract(family, check, tmp_path):
    check(lambda **settings: perturb(make(family, **settings)), tmp_path)


def make_raw(num_tokenizers=1):
    keras.utils.set_random_seed(0)
    backbone = tiny_backbone(dropout=0.0)
    tokenizers = [BertTokenizer(TOKENS, lowercase=True) for _ in range(num_tokenizers)]
    return BertMultiTask(
        {
            "mood": BertTextClassifier(
                backbone,
                labels=["dull", "fun"],
                preprocessor=BertTextClassifierPreprocessor(tokenizers[0], sequence_length=16),
            ),
            "grade": BertTextRegressor(
                backbone,
                preprocessor=BertTextRegressorPreprocessor(tokenizers[-1], sequence_length=12),
            ),
        }
    )


def toy(seed=0):
    """Return arrays that the tasks of `make` can learn from the tokens 5 and 6."""
    random = np.random.default_rng(seed)
    ids = random.integers(7, 30, (24, 4)).astype("int32")
    y = random.integers(0, 2, 24)
    ids[:, 2] = 5 + y
    choices = random.integers(7, 30, (12, 2, 4)).astype("int32")
    choices[np.arange(12), y[:12], 1] = 5
    return {
        "mood": ({"token_ids": ids}, y, np.ones(24, "float32")),
        "grade": ({"token_ids": ids}, y.astype("float32")),
        "next": ({"token_ids": choices}, y[:12]),
    }


# === Sampling ===


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("sampling", "counts"), [("size", [64, 16]), ("sqrt", [53, 27]), ("uniform", [40, 40])]
)
def test_shares(sampling, counts):
    plans = [plan_steps([64, 16], sampling, 80, epoch=epoch) for epoch in range(3)]
    for plan in plans:
        assert np.abs(np.bincount(plan) - counts).max() <= 1
    assert plans[0] == plan_steps([64, 16], sampling, 80) != plans[1]
    assert plans[0] != plan_steps([64, 16], sampling, 80, seed=1)


@pytest.mark.backends("torch")
def test_what_is_left_of_whole_steps():
    """A rare task with a tenth of a step per epoch gets one about every tenth epoch."""
    found = sum(np.bincount(plan_steps([99, 1], "size", 10, 0, i), minlength=2) for i in range(500))
    assert found.sum() == 5000 and 30 <= found[1] <= 70


def test_each_pass_has_each_row_once():
    arrays = {"x": np.arange(10), "none": None}
    batches = array_batches(arrays, 4, seed=0)
    passes = [[next(batches)["x"] for _ in range(3)] for _ in range(2)]
    assert [len(batch) for batch in passes[0]] == [4, 4, 2]
    first, second = (np.concatenate(one) for one in passes)
    assert sorted(first) == sorted(second) == [*range(10)] and (first != second).any()


@pytest.mark.backends("torch")
def test_steps_of_fit():
    """With sampling by size, every example is used once; the tasks alternate in random order."""
    model = make()
    seen = {name: [] for name in model.tasks}
    order = []

    def spy(name, batch):
        seen[name].append(batch[0]["token_ids"])
        order.append(name)
        return {}

    model._train_on = spy
    data = toy()
    history = model.fit(data, batch_size=8, verbose=0, seed=0).history
    assert sorted(order) == ["grade"] * 3 + ["mood"] * 3 + ["next"] * 2 and order != sorted(order)
    for name, batches in seen.items():
        rows = np.concatenate(batches)
        assert sorted(map(str, rows.tolist())) == sorted(
            map(str, data[name][0]["token_ids"].tolist())
        )
    assert set(history) == {
        "loss", "mood_loss", "mood_accuracy", "grade_loss", "grade_mae", "next_loss",
        "next_accuracy",
    }  # fmt: skip
    order.clear()
    model.fit(data, "uniform", {"mood": 2, "grade": 8, "next": 4}, steps_per_epoch=6, verbose=0)
    assert sorted(order) == ["grade"] * 2 + ["mood"] * 2 + ["next"] * 2


# === Training ===


@pytest.mark.slow_on_tensorflow
@pytest.mark.backends("tensorflow", "jax")
def test_learns_three_kinds():
    model = make()
    model.compile(jit_compile=keras.backend.backend() != "torch")
    model.optimizer.learning_rate = 0.01
    data = toy()
    first = model.evaluate(data)
    history = model.fit(
        data, sampling="uniform", batch_size=12, epochs=10, steps_per_epoch=12,
        validation_data={"mood": data["mood"]}, verbose=0, seed=0,
    ).history  # fmt: skip
    assert history["mood_accuracy"][-1] == history["val_mood_accuracy"][-1] == 1
    assert history["next_accuracy"][-1] == 1
    last = model.evaluate(data)
    assert last["grade_loss"] < 0.05 < first["grade_loss"]
    losses = [last[f"{name}_loss"] for name in data]
    assert last["loss"] == pytest.approx(np.mean(losses))
    found = model.predict({"next": data["next"][0]}, verbose=0)
    assert found["next"].shape == (12, 2)
    # One optimizer state for everything, and no other.
    assert len(model.optimizer._momentums) == len(model.trainable_variables)
    assert not any(task.optimizer.built for task in model.tasks.values())


@pytest.mark.backends("torch")
def test_one_step_is_the_step_of_the_task():
    """A step changes the encoder and the task's head as the task's own `fit` does, and no other
    head.
    """
    data = toy()
    for name in ("mood", "grade", "next"):
        together, alone = make(), make()
        task = alone.tasks[name]
        task.set_weights(together.tasks[name].get_weights())
        together.compile(optimizer=keras.optimizers.SGD(0.1), run_eagerly=True)
        task.compile(optimizer=keras.optimizers.SGD(0.1), run_eagerly=True)
        before = [array(w) for w in together._not_in([name])]
        x, y, *_ = data[name]
        logs = together._train_on(name, (x, y))
        expected = task.train_on_batch(x, y, return_dict=True)
        assert logs[f"{name}_loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert_close(together.tasks[name].get_weights(), task.get_weights())
        assert_close([array(w) for w in together._not_in([name])], before, atol=0)


@pytest.mark.backends("torch")
def test_pooler():
    """The pooler is trained if and only if a task needs it, whatever the order of the tasks."""
    backbone = tiny_backbone()

    def trains(tasks):
        trained = set(map(id, BertMultiTask(tasks).trainable_variables))
        return trained.issuperset(map(id, backbone.pooled_dense.weights))

    plain = BertTextRegressor(backbone, pooling="mean")
    pooled = BertTextClassifier(backbone, 2)
    assert not trains({"plain": plain})
    assert trains({"plain": plain, "pooled": pooled}) and trains({"a": pooled, "b": plain})
    backbone.pooled_dense.trainable = False  # The user has frozen it.
    assert not trains({"plain": plain, "pooled": pooled})


@pytest.mark.backends("torch")
def test_callbacks():
    model = make()
    model.compile(optimizer="sgd", run_eagerly=True)
    stop = keras.callbacks.EarlyStopping(
        monitor="mood_loss", mode="max", patience=0, start_from_epoch=1
    )
    steps = []
    spy = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(logs))
    data = toy()
    model.fit(data, batch_size=24, epochs=9, callbacks=[stop, spy], verbose=0)
    assert len(steps) < 27 and all("loss" in logs for logs in steps)


# === Raw texts, presets and files ===


@pytest.mark.slow
def test_raw_texts_and_saving(tmp_path):
    model = make_raw(num_tokenizers=2)
    model.optimizer.learning_rate = 0.01
    data = {name: (TEXTS, y) for name, y in Y.items()}
    history = model.fit(data, "sqrt", batch_size=12, epochs=20, verbose=0).history
    assert history["mood_accuracy"][-1] == 1 and history["grade_loss"][-1] < 0.1
    assert model.tasks["mood"].classify("good film")["label"] == "fun"
    score = model.tasks["grade"].score("bad film")

    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    files = sorted(
        str(p.relative_to(tmp_path / "preset")) for p in (tmp_path / "preset").rglob("*.*")
    )
    assert [name for name in files if name.endswith(".h5")] == [
        "model.weights.h5",
        "task.weights.h5",
    ]
    assert (tmp_path / "preset" / "task.weights.h5").stat().st_size < 60_000
    loaded = BertMultiTask.from_preset(tmp_path / "preset")
    for other in (loaded, keras.saving.load_model(tmp_path / "model.keras")):
        first, second = other.tasks.values()
        assert list(other.tasks) == ["mood", "grade"]
        assert first.backbone is second.backbone is other.backbone
        assert first.preprocessor.tokenizer is second.preprocessor.tokenizer
        assert first.labels == first.preprocessor.labels == ["dull", "fun"]
        assert second.preprocessor.sequence_length == 12
        assert second.score("bad film") == pytest.approx(score, abs=1e-6)
        assert len(other.weights) == len(model.weights)
        assert other.get_config()["tasks"].keys() == model.tasks.keys()
    loaded.fit(data, verbose=0)
    # Settings of a preprocessor apply to the preprocessor of every task.
    loaded = BertMultiTask.from_preset(
        tmp_path / "preset", sequence_length=7, truncate="only_second"
    )
    parts = [loaded, *loaded.tasks.values()]
    assert {part.preprocessor.sequence_length for part in parts} == {7}
    assert loaded.tasks["mood"].preprocessor.truncate == "only_second"
    assert loaded.tasks["mood"].preprocessor.labels == ["dull", "fun"]
    with pytest.raises(ValueError, match="sequence_length 20 exceeds the encoder's 16 positions"):
        BertMultiTask.from_preset(tmp_path / "preset", sequence_length=20)
    # The encoder loads alone.
    encoder = BertBackbone.from_preset(tmp_path / "preset")
    assert_close(encoder.get_weights(), model.backbone.get_weights(), atol=0)


@pytest.mark.backends("torch")
def test_datasets():
    import tensorflow as tf

    model = make_raw()
    data = {
        "mood": tf.data.Dataset.from_tensor_slices((TEXTS, Y["mood"])).batch(8),
        "grade": (TEXTS, Y["grade"]),
    }
    history = model.fit(data, verbose=0, batch_size=12, validation_data=data).history
    assert {"mood_loss", "grade_mae", "val_mood_accuracy", "val_loss"} <= set(history)
    data["mood"] = data["mood"].filter(lambda *_: True)
    with pytest.raises(ValueError, match="number of batches.*assert_cardinality"):
        model.fit(data)


# === Bad input ===


def test_bad_tasks():
    backbone = tiny_backbone(num_layers=1)
    task = BertTextRegressor(backbone)
    other = BertTextRegressor(tiny_backbone(num_layers=1))
    for tasks, message in (
        ({}, "tasks must be a dict .* got {}"),
        ([task], "tasks must be a dict .* got \\[<"),
        ({"a": backbone}, "'a' is <BertBackbone.* BertTextClassifier"),
        ({"a": task, "b": other}, "tasks 'a' and 'b' have different encoders; .*backbone="),
        ({"a": task, "b": task}, "task 'b' occurs twice"),
        ({"a": BertMultiTask({"b": task})}, "'a' is a BertMultiTask"),
    ):
        with pytest.raises(ValueError, match=message):
            BertMultiTask(tasks)
    tasks = make_raw().tasks if keras.backend.backend() == "tensorflow" else None
    if tasks:
        tokenizer = BertTokenizer(TOKENS[::-1], lowercase=True)
        tasks["grade"].preprocessor.tokenizer = tokenizer
        with pytest.raises(ValueError, match="'mood' and 'grade' have different tokenizers"):
            BertMultiTask(dict(tasks))


def test_bad_data(tmp_path):
    model = make(num_layers=1)
    data = toy()
    for arguments, message in (
        (
            {"data": {**data, "tags": data["mood"]}},
            "no task 'tags'; the tasks are mood, grade, next",
        ),
        ({"data": {"mood": data["mood"]}}, "data lacks the task 'grade'"),
        (
            {"data": {**data, "grade": data["grade"][0]}},
            r"task 'grade' has no labels; pass \(x, y\)",
        ),
        ({"data": {**data, "mood": (*data["mood"][:1], [1])}}, r"'mood' have \[1, 24\] rows"),
        ({"data": data, "sampling": "rate"}, "sampling='rate' is unknown; use one of size"),
        ({"data": {**data, "next": data["mood"]}}, r"\(examples, choices, tokens\)"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(**arguments)
    with pytest.raises(ValueError, match="no task 'tags'"):
        model.predict({"tags": data["mood"][0]})
    with pytest.raises(ValueError, match="data must be a dict .* mood, grade, next; got a list"):
        model.predict(["good film"])
    model.tasks["mood"].save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="has no BertMultiTask"):
        BertMultiTask.from_preset(tmp_path)

"""Diverging trainings stop with an error, and models with non-finite weights raise one."""

import keras
import numpy as np
import pytest

from kerasbert.base import finite as _finite
from kerasbert.base.finite import NonFiniteError, StopAtNonFinite
from kerasbert.heads.base import writing_task
from kerasbert.lineage.elmo.model import ElmoBackbone
from kerasbert.lineage.elmo.pretrainer import ElmoPretrainer, word_vocabulary
from kerasbert.models import (
    BertDistiller,
    BertMaskedLM,
    BertMultiTask,
    BertPretrainer,
    BertTextClassifier,
    BertTextRegressor,
)
from kerasbert.optimizers import AdamW
from tests.contracts import array, tiny_backbone
from tests.contracts import batch as features_of
from tests.export import tiny

ROWS = {"token_ids": np.ones((8, 5), "int32")}
torch_only = pytest.mark.backends("torch")


def regressor(rate=1e38, **settings):
    model = BertTextRegressor(tiny_backbone(dropout=0.0, num_layers=1), pooling="mean")
    model.compile(AdamW(rate), **settings)
    return model


def broken(model, value=np.nan, place=-1):
    """Put one non-finite number into a weight of the model."""
    weight = [one for one in model.weights if one.dtype == "float32"][place]
    values = array(weight).copy()
    values.flat[0] = value
    weight.assign(values)
    return model


# === fit ===


def test_fit_stops_at_the_step(tmp_path):
    """On every backend, with and without a progress bar, which Keras draws in another thread."""
    y = np.linspace(0, 1, 8).astype("float32")
    for settings in ({"verbose": 0}, {"verbose": 2}):
        model = regressor(run_eagerly=settings["verbose"] == 0)
        saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "a{epoch}.weights.h5"))
        with pytest.raises(NonFiniteError, match=r"is (nan|inf) at step [23] of epoch 1") as caught:
            model.fit(ROWS, y, batch_size=2, epochs=3, callbacks=[saved], **settings)
        assert (caught.value.epoch, caught.value.step) in [(1, 2), (1, 3)]
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, FloatingPointError)
        for cause in (
            "learning rate that is too high (1e+38 at this step)",
            "float16 without",
            "labels",
        ):
            assert cause in str(caught.value)
        assert not list(tmp_path.iterdir())


@torch_only
def test_the_first_step_is_named_where_threads_end_in_any_order():
    stop = StopAtNonFinite()
    stop.set_model(regressor(1e-3))
    stop.on_train_begin()
    stop.on_epoch_begin(4)
    stop._thread = None  # Pretend that all steps finish in other threads.
    for batch, loss in ((0, 1.0), (3, np.nan), (1, 1.0), (2, np.inf)):
        stop.on_train_batch_begin(batch)
        stop.on_train_batch_end(batch, {"loss": loss})
    with pytest.raises(NonFiniteError, match="loss is inf at step 3 of epoch 5"):
        stop.on_train_batch_begin(4)


@torch_only
def test_weights_that_the_last_step_ruined(tmp_path):
    """The loss of the last step is still finite, but its update ruins the weights; no callback
    saves them.
    """

    class Ruins(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            broken(self.model)

    saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "a.weights.h5"))
    with pytest.raises(NonFiniteError, match="weight '.*' is nan at step 1 of epoch 1"):
        regressor(1e-3).fit(ROWS, np.ones(8), callbacks=[Ruins(), saved], verbose=0)
    assert not list(tmp_path.iterdir())


@torch_only
def test_the_validation_loss():
    class Huge(keras.losses.Loss):
        def call(self, y, outputs):
            return keras.ops.where(y > 5, np.nan, outputs[:, None])

    model = regressor(1e-5, loss=Huge())
    held_out = ({"token_ids": ROWS["token_ids"]}, np.full(8, 9.0))
    with pytest.raises(NonFiniteError, match="validation loss is nan.*validation labels or"):
        model.fit(ROWS, np.ones(8), validation_data=held_out, verbose=0)


@torch_only
def test_kerass_own_callback_is_left_to_its_work():
    history = regressor().fit(
        ROWS, np.ones(8), batch_size=2, callbacks=[keras.callbacks.TerminateOnNaN()], verbose=0
    )
    assert not np.isfinite(history.history["loss"][0])
    given = [keras.callbacks.TerminateOnNaN()]
    assert _finite.with_finite_check(given) == given
    assert (
        len(_finite.with_finite_check(given[0])) == 1 and len(_finite.with_finite_check(None)) == 1
    )


def multi_task():
    backbone = tiny_backbone(dropout=0.0)
    tasks = {
        "grade": BertTextRegressor(backbone, pooling="mean"),
        "mood": BertTextClassifier(backbone, 2),
    }
    model = BertMultiTask(tasks)
    data = {"grade": (ROWS, np.ones(8, "float32")), "mood": (ROWS, np.array([0, 1] * 4))}
    return model, lambda: model.fit(data, batch_size=4, epochs=3, verbose=0)


def elmo():
    backbone = ElmoBackbone(
        num_layers=1, units=4, projection_dim=4, character_dim=3, filters=[(1, 4)]
    )
    sentences = ["a dog barks", "a cat"] * 4
    model = ElmoPretrainer(backbone, word_vocabulary(sentences))
    return model, lambda: model.fit(sentences, batch_size=2, epochs=3, verbose=0)


def distiller():
    student, teacher = (BertTextClassifier(tiny_backbone(dropout=0.0), 2) for _ in range(2))
    model = BertDistiller(student, teacher)
    y = np.array([0, 1] * 4)
    return model, lambda: model.fit(ROWS, y, batch_size=2, epochs=3, verbose=0)


def pretrainer():
    model = BertPretrainer(tiny_backbone(dropout=0.0))
    x = {**features_of(model), "mask_positions": np.ones((3, 2), "int32")}
    y = {"mlm_logits": np.ones((3, 2), "int32"), "nsp_logits": np.zeros(3, "int32")}
    weights = {"mlm_logits": np.ones((3, 2), "float32")}
    return model, lambda: model.fit(x, y, sample_weight=weights, batch_size=1, epochs=3, verbose=0)


def embedder():
    model = tiny.task("TextEmbedder", pooling="mean")
    texts = ["a dog", "the cat", "rain", "snow"] * 2
    return model, lambda: model.fit((texts, texts[::-1]), batch_size=2, epochs=3, verbose=0)


@torch_only
@pytest.mark.parametrize("make", [multi_task, elmo, distiller, pretrainer, embedder])
def test_every_kind_of_fit_stops(make):
    model, fit = make()
    model.compile(AdamW(1e38))
    with pytest.raises(NonFiniteError, match="at step"):
        fit()


@torch_only
def test_skipped_steps_of_loss_scaling_stop_nothing():
    """The first gradients overflow float16, so loss scaling skips these steps and halves
    the scale.
    """
    model = BertTextRegressor(tiny_backbone(dropout=0.0, dtype="mixed_float16"), pooling="mean")
    scaled = keras.optimizers.LossScaleOptimizer(AdamW(1e-3), initial_scale=2.0**40)
    model.compile(scaled)
    before = [array(weight) for weight in model.trainable_weights]
    model.fit(ROWS, np.full(8, 50.0), batch_size=2, verbose=0)
    assert float(scaled.dynamic_scale) < 2.0**40
    for weight, value in zip(model.trainable_weights, before, strict=True):
        np.testing.assert_array_equal(array(weight), value)


# === Labels and weights ===


@torch_only
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y": [0.0, 1.0, np.nan] + [0.0] * 5}, r"labels hold nan at \[2\]"),
        ({"y": np.full((8,), np.inf)}, r"labels hold inf at \[0\]"),
        (
            {"y": np.ones(8), "sample_weight": np.r_[np.ones(7), np.nan]},
            r"sample weights hold nan at \[7\]",
        ),
        (
            {"y": np.ones(8), "validation_data": (ROWS, np.full(8, np.nan))},
            r"labels hold nan at \[0\]",
        ),
    ],
)
def test_targets_that_are_not_finite(given, said):
    model = regressor(1e-3)
    before = [array(weight) for weight in model.weights]
    with pytest.raises(ValueError, match=said):
        model.fit(ROWS, verbose=0, **given)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(weight), value)
    given.pop("validation_data", None)
    if not np.isfinite(given["y"]).all():
        with pytest.raises(ValueError, match=said):
            model.evaluate(ROWS, verbose=0, **given)


def test_targets_by_name_and_losses_of_a_user():
    y = {"a": [1.0], "b": np.array([[0.0, np.nan]])}
    with pytest.raises(ValueError, match=r"labels of 'b' hold nan at \[0, 1\]"):
        _finite.check_targets(y, None)
    with pytest.raises(ValueError, match="sample weights of 'b' hold nan"):
        _finite.check_targets(None, y)
    # A custom loss may mask NaN labels.
    _finite.check_targets(y, None, lambda labels, outputs: 0.0)
    _finite.check_targets(["x", "y"], [[1.0], [2.0, 3.0]], [None, "mse"])


# === Answers ===


@torch_only
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("TextClassifier", lambda model: model.classify(["a dog"])),
        ("TextRegressor", lambda model: model.score("a dog")),
        ("TextEmbedder", lambda model: model.embed(["a dog", "b"])),
        ("MaskedLM", lambda model: model.fill_mask("a [MASK]")),
        ("TokenClassifier", lambda model: model.tag("a dog")),
        ("QuestionAnswering", lambda model: model.answer("who", "a dog")),
        ("NextSentencePredictor", lambda model: model.follows("a", "b")),
        ("MultipleChoice", lambda model: model.choose("a", ["b", "c"])),
        ("Reranker", lambda model: model.rank("a", ["b", "c"])),
        ("SparseEmbedder", lambda model: model.embed(["a dog"])),
        ("CausalLM", lambda model: model.perplexity("a dog")),
        ("CausalLM", lambda model: model.generate("a dog", max_length=12)),
    ],
)
def test_persons_methods(name, ask, value):
    settings = {
        "TextEmbedder": {"pooling": "mean"},
        "CausalLM": {"encoder_settings": {"is_causal": True, "pooler": False}},
    }
    model = tiny.task(name, **settings.get(name, {}))
    ask(model)
    broken(model, value, place=2)
    with pytest.raises(NonFiniteError, match="The model cannot (answer|generate): NaN or infinity"):
        ask(model)


@torch_only
def test_sums_that_overflow_float16_are_not_doubtful(monkeypatch):
    """Weights whose sum overflows float16 are finite. They are not copied for a check in each call
    of `generate`, which would be slow.
    """
    model = tiny.task("CausalLM", encoder_settings={"is_causal": True, "dtype": "float16"})
    weight = max(model.weights, key=lambda one: np.prod(one.shape))
    weight.assign(np.full(weight.shape, 3e4, "float16"))
    asked = []
    monkeypatch.setattr(writing_task, "check_weights", lambda weights, what: asked.extend(weights))
    model._check_finite()
    assert asked == []
    weight.assign(np.full(weight.shape, np.nan, "float16"))
    model._check_finite()
    assert asked == [weight]


def test_predict_and_evaluate():
    """On every backend."""
    model = broken(regressor(1e-3))
    for ask in (
        lambda: model.predict(ROWS, verbose=0),
        lambda: model.predict_on_batch(ROWS),
        lambda: model.evaluate(ROWS, np.ones(8), verbose=0),
    ):
        with pytest.raises(NonFiniteError, match="The model cannot answer: NaN or infinity"):
            ask()


@torch_only
def test_numbers_that_overflow_between_finite_weights():
    model = regressor(1e-3)
    for weight in model.weights:
        weight.assign(np.full(weight.shape, 1e38, "float32"))
    with pytest.raises(NonFiniteError, match="answers with NaN, though its weights are finite"):
        model.predict(ROWS, verbose=0)
    assert np.isnan(model.evaluate(ROWS, np.ones(8), verbose=0, return_dict=True)["loss"])


# === Files ===


@torch_only
def test_presets_hold_finite_weights(tmp_path):
    """If weights are not finite, saving an encoder, a task or a multi-task model fails, and earlier
    files stay.
    """
    whole = BertMaskedLM(tiny_backbone())
    for number, model in enumerate((whole, whole.backbone, multi_task()[0])):
        folder = tmp_path / str(number)
        model.save_to_preset(str(folder))
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        broken(model, np.inf, place=0)
        for place in (folder, tmp_path / "new"):
            with pytest.raises(ValueError, match="is not saved: NaN or infinity is in the weight"):
                model.save_to_preset(str(place))
        after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        assert after == before and not (tmp_path / "new").exists()
        model.weights[0].assign(np.zeros(model.weights[0].shape))


@torch_only
def test_what_is_finite():
    big = np.full(3, np.finfo("float32").max)
    assert _finite.is_finite(big) and _finite.is_finite(np.array([1, 2]))
    assert not _finite.is_finite(np.array([np.inf, -np.inf], "float32"))
    assert not _finite.is_finite(keras.ops.convert_to_numpy(keras.ops.array([np.nan], "float16")))

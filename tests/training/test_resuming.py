"""Checkpoints of weights of any type, and the state stored with them."""

import keras
import numpy as np
import pytest

from kerasbert import advise, finetune
from kerasbert.models import BertBackbone, BertTextClassifier, BertTextClassifierPreprocessor
from kerasbert.tasks import Settings, file_task
from kerasbert.tokenizers import BertTokenizer
from kerasbert.training.arms import _Keep
from kerasbert.training.epoch_scores import EpochScores
from kerasbert.training.resuming import find_checkpoint, load_checkpoint, save_checkpoint
from tests.contracts import array


def make():
    """Return a model with a frozen layer in int8, as under adapters, and one in bfloat16."""
    frozen = keras.layers.Dense(4, name="frozen")
    model = keras.Sequential(
        [keras.Input((3,)), frozen, keras.layers.Dense(2, dtype="bfloat16", name="trained")],
        name="model",  # It is part of the weights' names.
    )
    frozen.quantize("int8")
    frozen.trainable = False
    model.compile(keras.optimizers.Adam(0.1), loss="mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


def test_every_type_comes_back(tmp_path):
    model = make()
    model.train_on_batch(np.ones((2, 3)), np.ones((2, 2)))
    best = [np.arange(4, dtype="float32"), np.ones((2, 2), "int32")]
    assert {weight.dtype for weight in model.weights} >= {"int8", "bfloat16"}
    for step in (1, 2):
        save_checkpoint(tmp_path, model, step, best, said=["so"])
    assert len(list(tmp_path.iterdir())) == 1
    other = make()
    facts, kept = load_checkpoint(find_checkpoint(tmp_path), other)
    assert facts == {"step": 2, "said": ["so"]}
    for value, expected in zip(kept, best, strict=True):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == expected.dtype
    variables = [*model.weights, *model.optimizer.variables]
    for variable, copy in zip(variables, [*other.weights, *other.optimizer.variables], strict=True):
        np.testing.assert_array_equal(array(copy), array(variable))


def test_weights_that_are_not_finite_are_not_kept(tmp_path):
    model = make()
    path = save_checkpoint(tmp_path, model, 1)
    weight = model.weights[-1]
    weight.assign(np.full(weight.shape, np.inf, "float32"))
    with pytest.raises(FloatingPointError, match="trained/bias' is not finite after step 2"):
        save_checkpoint(tmp_path, model, 2)
    assert [str(one) for one in tmp_path.iterdir()] == [path]


class Killed(BaseException):
    """Ends a training like a kill."""


def kill_after(monkeypatch, batches):
    """Kill a training that saves epoch checkpoints after this number of batches in total."""
    left = iter(range(batches - 1, -1, -1))

    def killing(on_train_batch_end):
        def end(self, batch, logs=None):
            on_train_batch_end(self, batch, logs)
            if next(left) == 0:
                raise Killed

        return end

    for kind in (EpochScores, _Keep):
        monkeypatch.setattr(kind, "on_train_batch_end", killing(kind.on_train_batch_end))


@pytest.fixture(scope="module")
def dropping(tmp_path_factory):
    """A folder with a preset that has dropout, and a table of texts of two classes."""
    keras.utils.set_random_seed(1)
    words = "it was a film the city ann good bad".split()
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    encoder = BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=16,
        max_sequence_length=16,
        dropout=0.2,
    )
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    folder = tmp_path_factory.mktemp("dropping")
    model = BertTextClassifier(encoder, labels=["no", "yes"], preprocessor=preprocessor)
    model.save_to_preset(str(folder / "preset"))
    random = np.random.default_rng(0)
    rows = [f"{' '.join(random.choice(words, 4))} {'good' if i % 2 else 'bad'}" for i in range(24)]
    table = "".join(f"{text},{'yes' if i % 2 else 'no'}\n" for i, text in enumerate(rows))
    (folder / "rows.csv").write_text("text,label\n" + table)
    return folder


def finetuned(folder, output, **settings):
    """Run `finetune` for 4 epochs of 3 batches; return weights and the history."""
    task = file_task(
        train=str(folder / "rows.csv"),
        dev=str(folder / "rows.csv"),
        settings=Settings((8,), (1e-2,), (4,), sequence_length=16),
    )
    found = finetune(task, str(folder / "preset"), output, verbose=False, **settings)
    (run,) = found["runs"]
    history = [{key: row[key] for key in ("loss", "losses", "scores")} for row in run["history"]]
    model = BertTextClassifier.from_preset(found["model"])
    return [array(weight) for weight in model.weights], history


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"early_stopping": 2}, marks=pytest.mark.backends("torch")),
        pytest.param({"method": "lora", "lora_rank": 2}, marks=pytest.mark.backends("torch")),
        pytest.param({"precision": "mixed_bfloat16"}, marks=pytest.mark.backends("torch")),
        pytest.param({"precision": "mixed_float16"}, marks=pytest.mark.backends("torch")),
        pytest.param({"class_weights": "balanced"}, marks=pytest.mark.backends("torch")),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "full",
)
@pytest.mark.slow_on_tensorflow
def test_finetune_that_was_killed_ends_with_the_same_bits(
    dropping, tmp_path, monkeypatch, settings
):
    expected, history = finetuned(dropping, tmp_path / "whole", **settings)
    assert len(history) > 1 and len({row["loss"] for row in history}) == len(history)
    random = np.random.default_rng(len(str(settings)))
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, int(random.integers(4, 6)))
            finetuned(dropping, tmp_path / "killed", **settings)
        assert list((tmp_path / "killed" / "runs").glob("*/checkpoint-*.safetensors"))
    weights, again = finetuned(dropping, tmp_path / "killed", **settings)
    assert again == history
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.backends("torch")
def test_advise_that_was_killed_ends_with_the_same_bits(dropping, tmp_path, monkeypatch):
    def advised(name):
        given = {"arms": ["full"], "folds": 2, "shares": 1, "epochs": 3, "batch_size": 4}
        output = tmp_path / name
        advise(
            str(dropping / "rows.csv"),
            str(dropping / "preset"),
            str(output),
            sequence_length=16,
            verbose=False,
            **given,
        )
        return {path.name: np.load(path)["rows"] for path in (output / "runs").glob("*.npz")}

    expected = advised("whole")
    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, 5)
            advised("killed")
    assert not list((tmp_path / "whole" / "runs").glob("*/"))
    found = advised("killed")
    assert len(found) == 2 and found.keys() == expected.keys()
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], rows)

"""Training methods: the weights that each changes, results, and errors."""

import csv
import json
import os

import numpy as np
import pytest

import kerasbert
from kerasbert.heads.base.regularizing import Regularizer
from kerasbert.models import (
    BertBackbone,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextEmbedderPreprocessor,
)
from kerasbert.tasks import Settings, file_task
from kerasbert.tokenizers import BertTokenizer
from kerasbert.training import grid_search
from kerasbert.training.epoch_scores import EpochScores
from kerasbert.training.grid_search import GridSearch
from kerasbert.training.methods import classifier_of
from tests.contracts import array
from tests.training.test_finetune import files, read, write_table

# These tests train models, which other backends would compile.
pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def task(tmp_path):
    return file_task(
        train=write_table(tmp_path / "train.csv", 24),
        dev=write_table(tmp_path / "dev.csv", 20, seed=1),
        settings=Settings((16,), (1e-2,), (2,), sequence_length=16),
        name="films",
    )


def finetune(task, preset, folder, **settings):
    settings = {"sequence_length": 16, "verbose": False, **settings}
    return kerasbert.finetune(task, preset, str(folder), **settings)


def test_regularization_reaches_the_training(task, tiny_preset, tmp_path, monkeypatch):
    compiled, layers = [], []
    fit, start = BertTextClassifier.fit, BertBackbone.reinitialize_layers

    def train(model, *args, **kwargs):
        compiled.append((model._running.regularizer, model.loss.label_smoothing))
        return fit(model, *args, **kwargs)

    def new_layers(backbone, count):
        layers.append(count)
        start(backbone, count)

    monkeypatch.setattr(BertTextClassifier, "fit", train)
    monkeypatch.setattr(BertBackbone, "reinitialize_layers", new_layers)
    given = {"adversarial": "fgm", "adversarial_strength": 0.5, "r_drop": 2.0}
    given |= {"label_smoothing": 0.1, "reinitialize_layers": 1}
    found = finetune(task, tiny_preset, tmp_path / "out", epochs=1, **given)
    assert compiled == [(Regularizer("fgm", 0.5, 2.0), 0.1)] and layers == [1]
    assert given.items() <= json.loads(read(found["model"], "finetuning.json")).items()


def changed(preset, directory):
    """Return whether a run changed the preset's encoder."""
    before, after = (
        BertTextEmbedder.from_preset(path, layers="last").embed(["a good film"])
        for path in (preset, directory)
    )
    return bool(np.abs(before - after).max() > 1e-5)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("full", True),
        pytest.param("lora", True, marks=pytest.mark.slow),
        ("frozen", False),
        ("setfit", True),
    ],
)
def test_what_is_trained(method, changes, task, tiny_preset, tmp_path):
    out = tmp_path / "out"
    given = {} if method == "frozen" else {"learning_rates": 1e-2}
    results = finetune(task, tiny_preset, out, method=method, **given)
    assert results["method"] == method
    assert changed(tiny_preset, results["model"]) == changes
    rows = list(csv.DictReader(read(out, "results.csv").splitlines()))
    assert [row["method"] for row in rows] == [method]
    assert method not in ("frozen", "setfit") or results["scores"]["accuracy"] > 0.7
    # The saved model is an ordinary classifier, with the answers that were scored.
    model = BertTextClassifier.from_preset(results["model"])
    dev = task.read("dev")
    predictions = task.predict(model, dev)
    assert task.score(dev, predictions) == pytest.approx(results["scores"])
    (path,) = results["predictions"]
    assert [line.split("\t")[1] for line in read(path).splitlines()[1:]] == predictions
    card = read(results["model"], "README.md")
    said = {
        "lora": "adapters of rank 8",
        "frozen": "logistic regression on the frozen encoder",
        "setfit": "1 epochs, batch size 16, learning rate 0.01, seed 0, SetFit with pairs=",
    }
    assert said.get(method, "seed 0") in card
    # A run of another method in the same folder raises an error.
    other = "full" if method != "full" else "lora"
    with pytest.raises(ValueError, match=f"have method='{method}', not '{other}'"):
        finetune(task, tiny_preset, out, method=other)


def test_a_frozen_head_is_the_regression(task, tiny_preset, tmp_path):
    """Also for pairs of texts, and with class weights."""
    from sklearn.linear_model import LogisticRegression

    results = finetune(
        task, tiny_preset, tmp_path / "out", method="frozen", class_weights={"no": 3}
    )
    train, dev = task.read("train"), task.read("dev")
    embedder = BertTextEmbedder.from_preset(tiny_preset)
    head = LogisticRegression(max_iter=1000)
    head.fit(embedder.embed(train.x), train.y, [3 if label == "no" else 1 for label in train.y])
    model = BertTextClassifier.from_preset(results["model"])
    np.testing.assert_allclose(
        model.predict_proba(dev.x), head.predict_proba(embedder.embed(dev.x)), atol=1e-4
    )
    path = write_table(tmp_path / "pairs.csv", header=("text", "label"))
    with open(path, encoding="utf-8") as file:
        rows = [[text, "so", label] for text, label in csv.reader(file)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "text_b", "label"], *rows[1:]])
    pairs = file_task(train=path, columns=["text", "text_b"])
    results = finetune(pairs, tiny_preset, tmp_path / "pairs", method="frozen")
    assert results["best"]["learning_rate"] == 0 and results["scores"]["accuracy"] >= 0.5


def test_a_frozen_encoder_under_another_head(tiny_preset, tmp_path):
    path = tmp_path / "numbers.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = [[f"{'good ' * (i % 4)}film", i % 4] for i in range(20)]
        csv.writer(file).writerows([["text", "label"], *rows])
    task = file_task(train=str(path), head="text_regressor")
    results = finetune(task, tiny_preset, tmp_path / "out", method="frozen", epochs=1)
    assert results["best"]["learning_rate"] == 1e-3
    assert not changed(tiny_preset, results["model"])
    model = task.model_class.from_preset(results["model"])
    assert model.backbone.trainable and len(model.trainable_weights) > 2


def write_queries(path):
    """Write a CSV of queries with three texts each, one of them relevant."""
    rows = [
        [f"{name} ?", f"{'ann' if right == 2 else 'it'} was {other}", right]
        for name in ("who", "who was", "who is", "who is it", "is it", "was it")
        for other, right in (("good", 0), ("old", 1), ("bad", 2))
    ]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["query", "text", "label"], *rows])
    return str(path)


@pytest.mark.parametrize(
    "method", ["full", *(pytest.param(x, marks=pytest.mark.slow) for x in ("frozen", "lora"))]
)
def test_a_reranker(method, tiny_preset, tmp_path):
    path = write_queries(tmp_path / "train.csv")
    task = file_task(train=path, test=path, head="reranker")
    settings = {"learning_rates": 1e-2, "epochs": 6, "batch_sizes": 8, "dev_share": 0.3}
    results = finetune(task, tiny_preset, tmp_path / "out", method=method, **settings)
    assert set(results["scores"]) == {"ndcg@10", "mrr@10"} and results["metric"] == "ndcg@10"
    assert results["examples"] == {"train": 12, "dev": 6, "test": 18}  # Two of six queries.
    if method == "full":
        assert results["test_scores"]["ndcg@10"] > 0.9
    model = task.model_class.from_preset(results["model"])
    scores = model.score([("who ?", "ann was bad"), ("who ?", "it was good")])
    lines = read(results["predictions"][1]).splitlines()
    assert [float(lines[row].split("\t")[1]) for row in (3, 1)] == pytest.approx(
        scores.tolist(), abs=1e-5
    )
    found = kerasbert.evaluate(results["model"], path, verbose=False)
    assert found["scores"] == pytest.approx(results["test_scores"])


def test_a_killed_setfit_goes_on(task, tiny_preset, tmp_path, monkeypatch):
    given = {"method": "setfit", "pairs": 2, "learning_rates": 1e-2, "epochs": 3}
    seen = []

    class Killed(EpochScores):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            seen.append((epoch, [array(weight) for weight in self.model.weights]))
            if len(seen) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(grid_search, "EpochScores", Killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(task, tiny_preset, tmp_path / "out", **given)
    (name,) = [name for name in files(tmp_path / "out") if name.endswith(".safetensors")]
    assert name.endswith("checkpoint-000000002.safetensors")
    results = finetune(task, tiny_preset, tmp_path / "out", **given)
    assert [epoch for epoch, _ in seen] == [0, 1, 2, 2]
    for before, after in zip(seen[2][1], seen[3][1], strict=True):
        np.testing.assert_array_equal(before, after)
    assert [row["epoch"] for row in results["runs"][0]["history"]] == [1, 2, 3]
    # The same call has nothing more to do; another seed is another run.
    monkeypatch.setattr(GridSearch, "train_one", None)
    assert finetune(task, tiny_preset, tmp_path / "out", **given) == results


@pytest.mark.slow
def test_the_best_epoch_of_setfit(task, tiny_preset, tmp_path, monkeypatch):
    """Early stopping restores its embeddings, and the head that was fitted to them."""
    given = {"method": "setfit", "pairs": 2, "learning_rates": 3e-2, "epochs": 3}
    results = finetune(task, tiny_preset, tmp_path / "out", early_stopping=1, **given)
    history = results["runs"][0]["history"]
    best = max(history, key=lambda row: row["scores"]["accuracy"])
    assert results["best"]["epoch"] == best["epoch"]
    assert results["scores"] == pytest.approx(best["scores"])


@pytest.mark.slow
def test_runs_of_setfit_that_diverge(task, tiny_preset, tmp_path):
    with pytest.raises(ValueError, match="All runs diverged"):
        finetune(
            *(task, tiny_preset, tmp_path / "out"),
            method="setfit",
            learning_rates=1e35,
            warmup=0.0,
        )


def test_a_class_without_an_example(tmp_path, tiny_preset):
    task = file_task(
        train=write_table(tmp_path / "train.csv", 16),
        dev=write_table(tmp_path / "dev.csv", 8, seed=1),
        labels=["yes", "perhaps", "no"],
    )
    results = finetune(task, tiny_preset, tmp_path / "out", method="setfit", pairs=1)
    model = BertTextClassifier.from_preset(results["model"])
    assert model.predict_proba(["a good film"])[0, 1] == 0


def test_what_setfit_does_not_train_on(task, tiny_preset, tmp_path):
    out = tmp_path / "out"
    path = write_table(tmp_path / "one.csv", 4)
    with open(path, "w", encoding="utf-8") as file:
        file.write("text,label\ngood,yes\nbad,yes\nfilm,yes\n")
    with pytest.raises(ValueError, match="of the class 'yes'; SetFit .* two classes"):
        finetune(file_task(train=path), tiny_preset, out, method="setfit")
    with pytest.raises(
        ValueError, match="All 2 .* of the class 'yes'; .*regression .* two classes"
    ):
        finetune(file_task(train=path), tiny_preset, out, method="frozen")
    with open(path, "w", encoding="utf-8") as file:
        file.write("text,label\ngood,1\nbad,0\nfilm,1\n")
    numbers = file_task(train=path, head="text_regressor", name="films")
    with pytest.raises(ValueError, match="'films' needs a text_regressor; use 'full', 'lora' or"):
        finetune(numbers, tiny_preset, out, method="setfit")
    pairs = file_task(train=path, columns=["text", "label"], label="label")
    with pytest.raises(ValueError, match="single texts, but 'own' has text pairs"):
        finetune(pairs, tiny_preset, out, method="setfit")
    with pytest.raises(ValueError, match="BertTextEmbedder has no argument 'multi_label'"):
        finetune(task, tiny_preset, out, method="setfit", model={"multi_label": True})
    with pytest.raises(ValueError, match="pooling='tokens' and layers='last', but a classifier"):
        finetune(task, tiny_preset, out, method="setfit", model={"pooling": "tokens"})
    assert not os.path.exists(out)


@pytest.mark.parametrize("method", ["full", "frozen"])
def test_windows_of_long_texts(method, task, tiny_preset, tmp_path):
    """The saved model divides texts as in training, and gives the answers that were scored."""
    given = {} if method == "frozen" else {"learning_rates": 1e-2}
    long = {"mode": "windows", "pooling": "max"}
    results = finetune(
        task, tiny_preset, tmp_path / "out", method=method, sequence_length=4, long=long, **given
    )
    model = BertTextClassifier.from_preset(results["model"])
    dev = task.read("dev")
    assert model.long.in_config() == model.preprocessor.long.in_config() == long
    assert array(model.preprocessor(dev.x)["token_ids"]).shape[1] > 1
    assert task.score(dev, task.predict(model, dev)) == pytest.approx(results["scores"])


def test_heads_of_other_families_are_left_out():
    """RoBERTa's classifiers have a dense layer before the logits."""
    sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    encoder = BertBackbone(vocabulary_size=6, family="roberta", **sizes)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film"]
    preprocessor = BertTextEmbedderPreprocessor(BertTokenizer(tokens, lowercase=True))
    embedder = BertTextEmbedder(encoder, preprocessor, normalize=True)
    classifier = classifier_of(embedder, ["a", "b"])
    assert classifier.head_dense is None
    kernel, bias = map(array, classifier.output_dense.weights)
    vectors = embedder.embed(["film", "film film"])
    logits = classifier.predict(["film", "film film"], verbose=0)
    np.testing.assert_allclose(logits, vectors @ kernel + bias, atol=1e-5)
    again = BertTextClassifier.from_config(classifier.get_config())
    assert again.head_dense is None and again.normalize

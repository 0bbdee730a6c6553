"""Callbacks and experiment trackers of `finetune`, with the real packages."""

import glob
import os
import sys

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert.tasks import Settings, file_task
from kerasbert.training.finetune_settings import TRACKERS, FinetuneSettings

pytestmark = pytest.mark.backends("torch")
SCORES = {"accuracy", "macro_f1", "matthews"}
PICTURES = {"confusion.png", "learning_curve.png"}
RUNS = {"batch16-rate0.01-epochs2-seed0", "batch16-rate0.01-epochs2-seed1"}


@pytest.fixture
def searched(tmp_path, tiny_preset, monkeypatch):
    """Return a function that fine-tunes with two seeds in the current folder."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    words = [random.choice(["good", "bad"]) for _ in range(24)]
    rows = {"text": [f"a {x} film" for x in words], "label": [str(x) for x in words]}
    task = file_task(rows, rows, settings=Settings((16,), (1e-2,), (2,), sequence_length=16))

    def run(**settings):
        return kerasbert.finetune(task, tiny_preset, "out", seeds=[0, 1], verbose=False, **settings)

    return run


def needs(package):
    return pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.slow
def test_callbacks_see_losses_and_scores(searched):
    seen = []
    spy = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    searched(callbacks=[spy])
    assert len(seen) == 4
    assert all({"loss", *(f"val_{name}" for name in SCORES)} <= logs.keys() for logs in seen)


def test_wrong_settings(monkeypatch):
    with pytest.raises(ValueError, match="must be a list of Keras callbacks"):
        FinetuneSettings("rte", "a", "b", callbacks=print)
    with pytest.raises(ValueError, match="track"):
        FinetuneSettings("rte", "a", "b", track="mflow")
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
        with pytest.raises(ImportError, match=rf"track='{name}' needs the package {name}.*pip"):
            FinetuneSettings("rte", "a", "b", track=name)


@pytest.mark.peers
def test_tensorboard(searched):
    accumulators = needs("tensorboard.backend.event_processing.event_accumulator")

    def tags(*place):
        found = {}
        for path in glob.glob(os.path.join("out", "tensorboard", *place, "*tfevents*")):
            one = accumulators.EventAccumulator(path)
            one.Reload()
            for tag, content in one.summary_metadata.items():
                found[tag] = content.plugin_data.plugin_name
        return found

    results = searched(track="tensorboard", callbacks=[keras.callbacks.TensorBoard("mine")])
    assert set(os.listdir("out/tensorboard")) == {*RUNS, "search"}
    for run in RUNS:
        assert {f"final/{name}" for name in SCORES} <= tags(run).keys()
        assert tags(run)["parameters"] == "text"
        assert "epoch_loss" in tags(run, "train")
        assert {f"epoch_{name}" for name in SCORES} <= tags(run, "validation").keys()
    of_search = tags("search")
    assert {name for name, kind in of_search.items() if kind == "images"} == PICTURES
    assert "model" in of_search and "final/accuracy" in of_search
    assert os.listdir("mine") and len(results["runs"]) == 2
    searched(track="tensorboard")  # The logs are no foreign files in the folder.


@pytest.mark.peers
def test_mlflow(searched, monkeypatch, tmp_path):
    needs("alembic"), needs("sqlalchemy")
    mlflow, callbacks = needs("mlflow"), needs("mlflow.keras")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    results = searched(track="mlflow", callbacks=[callbacks.MlflowCallback()])
    client = mlflow.MlflowClient()
    runs = {run.info.run_name: run for run in client.search_runs(["0"])}
    assert set(runs) == {*RUNS, "search"}
    search = runs.pop("search")
    assert search.data.metrics == pytest.approx(results["scores"])
    for name, run in runs.items():
        assert run.data.tags["mlflow.parentRunId"] == search.info.run_id
        assert run.data.params["seed"] == name[-1] and run.data.params["method"] == "full"
        assert {"loss", "val_accuracy", *SCORES} <= run.data.metrics.keys()
        assert len(client.get_metric_history(run.info.run_id, "val_accuracy")) >= 2
    pictures = client.list_artifacts(search.info.run_id, "pictures")
    assert {os.path.basename(one.path) for one in pictures} == PICTURES
    model = mlflow.artifacts.download_artifacts(run_id=search.info.run_id, artifact_path="model")
    assert kerasbert.models.BertTextClassifier.from_preset(model).classify("a good film")["label"]


@pytest.mark.peers
def test_wandb_offline(searched, monkeypatch):
    wandb, keras_part = needs("wandb"), needs("wandb.integration.keras")
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("DIR", ".")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    made, begin = [], wandb.init

    def init(**settings):
        run, summary = begin(**settings), {}
        finish = run.finish

        def finished(**how):
            summary.update(run.summary)  # A finished run has none.
            finish(**how)

        monkeypatch.setattr(run, "finish", finished)
        made.append((settings, summary))
        return run

    monkeypatch.setattr(wandb, "init", init)
    searched(track="wandb")
    assert {settings["name"] for settings, _ in made} == {
        f"out {name}" for name in (*RUNS, "search")
    }
    assert {settings["group"] for settings, _ in made} == {"out"}
    assert [settings["config"].get("seed") for settings, _ in made] == [None, 0, 1]
    for _, summary in made:
        assert SCORES <= summary.keys()
    assert PICTURES <= made[0][1].keys()
    assert {"loss", "val_accuracy"} <= made[1][1].keys()
    assert len(glob.glob("wandb/offline-run-*/run-*.wandb")) == 3
    with begin() as run:  # The callback of Weights & Biases logs to the user's run.
        searched(callbacks=[keras_part.WandbMetricsLogger()], overwrite=True)
        assert {"epoch/loss", "epoch/val_accuracy"} <= dict(run.summary).keys()

"""The search: no repeated work, kept results, and outputs."""

import csv
import json
import math
import os
import re
import shutil
import sys
import unicodedata
import warnings

import keras
import numpy as np
import pytest

import kerasbert
from kerasbert import presets
from kerasbert.base.errors import how_to_install
from kerasbert.base.files import in_use
from kerasbert.heads.base.examples import Examples
from kerasbert.models import (
    BertBackbone,
    BertEnsemble,
    BertQuestionAnswering,
    BertTextClassifier,
)
from kerasbert.tasks import Settings, Task, file_task, get_task
from kerasbert.training import finetune, finetune_results, grid_search, run_folder
from kerasbert.training.epoch_scores import EpochScores
from kerasbert.training.finetune_settings import FinetuneSettings
from kerasbert.training.grid_search import GridSearch
from kerasbert.training.resuming import find_checkpoint, load_checkpoint
from tests.contracts import array

# These tests train models, which other backends would compile.
pytestmark = pytest.mark.backends("torch")


def write_table(path, count=40, seed=0, header=("text", "label")):
    """Write a CSV of good or bad texts."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = random.choice("it was a film the city ann".split(), random.integers(1, 8))
        word = random.choice(["good", "bad"])
        rows.append([f"{' '.join(words)} {word}", "yes" if word == "good" else "no"])
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture
def task(tmp_path):
    return file_task(
        train=write_table(tmp_path / "train.csv"),
        dev=write_table(tmp_path / "dev.csv", 20, seed=1),
        settings=Settings((16,), (1e-2,), (1,), sequence_length=16),
        name="films",
    )


def files(folder):
    return sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    )


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


class Broken(BaseException):
    """Ends a run like a kill."""


def test_few_examples_get_a_minimum_number_of_steps(tmp_path):
    own = file_task(train=write_table(tmp_path / "train.csv"))

    def found(task=own, count=90, **given):
        settings, notes = FinetuneSettings(task, "preset", "out", **given), []
        grid = finetune._with_enough_steps(settings.of(task), count, settings, notes)
        return [(point["batch_size"], point["epochs"]) for point in grid], notes

    grid, (note,) = found()
    assert grid == [(32, 34)]
    assert note == (
        "On 90 training examples, epochs=3 with batches of 32 takes only 9 steps, so the default "
        "is epochs=34, 102 steps (min_steps=100)."
    )
    assert found(batch_sizes=(8, 32))[0] == [(8, 9), (32, 34)]
    assert found(min_steps=1) == ([(32, 3)], [])
    assert found(count=5000) == ([(32, 3)], [])
    grid, (note,) = found(epochs=(3, 40))  # Given epochs stay, with a warning.
    assert grid == [(32, 3), (32, 40)] and "takes only 9 steps. With fewer than about 100" in note
    # A paper's grid stays too, and so do heads that need few steps or none.
    assert {epochs for _, epochs in found(get_task("mrpc"), 3668)[0]} == {2, 3, 4}
    for method in ("frozen", "setfit"):
        grid, notes = found(method=method)
        assert grid[0][1] == 1 and not notes


@pytest.mark.slow
def test_a_reader_keeps_the_threshold_that_is_best_on_dev(tiny_preset, tmp_path):
    rows = [
        {"question": "who was it", "context": f"it was {name} the film", "answers": name * (i % 2)}
        for i, name in enumerate(["ann", "city", "film", "good"] * 4)
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = file_task(train=str(path), dev=str(path), head="question_answering")
    assert task.metrics == ("squad2",)
    short = {"sequence_length": 48, "model": {"max_query_length": 8}}
    results = finetune.finetune(
        task, tiny_preset, str(tmp_path / "out"), epochs=1, verbose=False, **short
    )
    reader = BertQuestionAnswering.from_preset(results["model"])
    assert reader.null_threshold == results["scores"]["best_f1_threshold"]
    found = reader.answer(*zip(*((row["question"], row["context"]) for row in rows)))
    answers = [row[0]["answer"] for row in found]
    scores = kerasbert.metrics.squad2([[x["answers"]] * bool(x["answers"]) for x in rows], answers)
    assert scores["f1"] == pytest.approx(results["scores"]["best_f1"])


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_before_the_settings_have_their_name(overwrite, task, tmp_path, monkeypatch):
    """A killed call left a folder with `runs` but without settings, which the next call rejected
    because of the unknown files.
    """
    out = str(tmp_path / "out")

    def begun():
        run = GridSearch(
            task=task,
            output=out,
            shared={"preset": "p"},
            train=None,
            weights=None,
            dev=None,
            test=None,
            arguments={},
            overwrite=overwrite,
            verbose=False,
            check_interrupt=None,
        )
        run.check_output()
        run.begin()

    if overwrite:
        begun()
        (tmp_path / "out" / "runs" / "one.json").write_text("{}")
        (tmp_path / "out" / "results.json").write_text("{}")
    for call in ("remove", "write_json"):
        true = getattr(run_folder, call)

        def broken(*_):
            raise Broken

        monkeypatch.setattr(run_folder, call, broken)
        if overwrite or call == "write_json":
            with pytest.raises(Broken):
                begun()
        monkeypatch.setattr(run_folder, call, true)
    begun()
    assert files(out) == ["settings.json"]
    assert os.listdir(os.path.join(out, "runs")) == []


def test_parts_that_run_apart(task, tiny_preset, tmp_path, monkeypatch):
    out, whole = str(tmp_path / "out"), str(tmp_path / "whole")
    options = {"learning_rates": [1e-2, 1e-4, 3e-3], "seeds": [0, 1], "verbose": False}
    expected = finetune.finetune(task, tiny_preset, whole, **options)
    done = [finetune.finetune(task, tiny_preset, out, part=f"{i}/3", **options) for i in (1, 2)]
    assert [len(one["runs"]) for one in done] == [2, 2] and "grid" not in done[0]
    assert os.listdir(out) == ["parts"] and len(os.listdir(os.path.join(out, "parts"))) == 2
    # A part that is still running is not merged; if one part is invalid, all parts stay unchanged.
    place = os.path.join(out, "parts", "1-of-3")
    with in_use(place, "finetune"), pytest.raises(BlockingIOError, match="1-of-3"):
        finetune.finetune(task, tiny_preset, out, **options)
    with pytest.raises(ValueError, match="1-of-3' have warmup=0.1, not 0.5"):
        finetune.finetune(task, tiny_preset, out, warmup=0.5, **options)
    with pytest.raises(ValueError, match="part=7/9 is empty: .*fewer than 7 runs; use fewer"):
        finetune.finetune(task, tiny_preset, out, part=(7, 9), **options)
    assert len(files(os.path.join(out, "parts"))) > 6
    # The call is killed between two runs that it merges.
    true, left = grid_search.write_json, [2]

    def broken(path, value):
        left[0] -= os.path.basename(os.path.dirname(path)) == "runs"
        if left[0] == 0:
            raise Broken
        true(path, value)

    monkeypatch.setattr(grid_search, "write_json", broken)
    with pytest.raises(Broken):
        finetune.finetune(task, tiny_preset, out, **options)
    monkeypatch.setattr(grid_search, "write_json", true)
    trained, train_one = [], GridSearch.train_one
    monkeypatch.setattr(
        GridSearch, "train_one", lambda *given: trained.append(given[1]) or train_one(*given)
    )
    results = finetune.finetune(task, tiny_preset, out, **options)
    assert len(trained) == 2  # The runs of the third part.
    scores = [[(run["run"], run["scores"]) for run in one["runs"]] for one in (results, expected)]
    assert scores[0] == scores[1] and len(scores[0]) == 6
    assert results["scores"] == expected["scores"]
    assert "parts" not in os.listdir(out)


def test_a_part_that_was_stopped_inside_a_run(task, tiny_preset, tmp_path, monkeypatch, capsys):
    """The call that merges the parts resumes from its checkpoint, with the same result."""
    options = {"learning_rates": [1e-2, 1e-3], "epochs": 3}
    expected = finetune.finetune(task, tiny_preset, tmp_path / "whole", **options)

    class Stopped(EpochScores):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            if epoch == 2:
                raise Broken

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(grid_search, "EpochScores", Stopped)
        for part in ("1/2", "2/2"):
            with pytest.raises(Broken):
                finetune.finetune(task, tiny_preset, out, part=part, **options)
    capsys.readouterr()
    found = finetune.finetune(task, tiny_preset, out, **options)
    assert capsys.readouterr().out.count("Resuming after epoch 2.") == 2
    assert found["scores"] == expected["scores"] and os.listdir(out / "runs")
    losses = [[row["loss"] for row in run["history"]] for run in found["runs"]]
    assert losses == [[row["loss"] for row in run["history"]] for run in expected["runs"]]


def test_processes_of_a_launcher_take_a_part_each(task, tiny_preset, tmp_path, monkeypatch):
    """The last one merges the parts; also with more processes than runs."""
    out, whole = str(tmp_path / "out"), str(tmp_path / "whole")
    options = {"learning_rates": [1e-2, 1e-4], "verbose": False}

    def process(index, **more):
        monkeypatch.setattr(finetune.backend, "launched", lambda: (index, 3))
        return finetune.finetune(task, tiny_preset, out, **options, **more)

    with pytest.raises(ValueError, match="part=1/2 cannot be .* launcher, whose 3 processes"):
        process(0, part="1/2")
    first, second, none = process(0), process(2), process(1)
    assert len(first["runs"]) == 1 and first["best"] and "grid" not in first
    assert second["runs"] == [] and second["best"] is None
    assert len(none["runs"]) == 2 and none["scores"] and "parts" not in os.listdir(out)
    monkeypatch.undo()
    expected = finetune.finetune(task, tiny_preset, whole, **options)
    assert [run["scores"] for run in none["runs"]] == [run["scores"] for run in expected["runs"]]
    # More seeds add runs, existing runs are not repeated, and overwriting repeats all.
    done = [process(index, seeds=[0, 1]) for index in (2, 1, 0)]
    assert [len(one["runs"]) for one in done] == [0, 1, 4]
    before = {run["run"]: run["finished"] for run in done[-1]["runs"]}
    assert {run["run"]: run["finished"] for run in none["runs"]}.items() <= before.items()
    done = [process(index, overwrite=True) for index in range(3)]
    assert [len(one["runs"]) for one in done] == [1, 2, 0] and "parts" not in os.listdir(out)
    assert done[1]["runs"][0]["finished"] not in before.values()


@pytest.mark.parametrize("part", ["3", "0/2", (3, 2), "a/b"])
def test_what_is_no_part(part):
    with pytest.raises(ValueError, match="part=.* must be its number, from 1, and"):
        FinetuneSettings("rte", "a", "b", part=part)


def test_a_grid_that_is_killed_goes_on(task, tiny_preset, tmp_path, monkeypatch):
    out = str(tmp_path / "out")
    options = {"learning_rates": [1e-2, 3e-3, 1e-3], "batch_sizes": [16, 8]}
    points, train_one = [], GridSearch.train_one

    def counted(self, point, *others):
        if len(points) == 3:
            raise KeyboardInterrupt
        points.append(point)
        return train_one(self, point, *others)

    monkeypatch.setattr(GridSearch, "train_one", counted)
    with pytest.raises(KeyboardInterrupt):
        kerasbert.finetune(task, tiny_preset, out, **options, verbose=False)
    assert len(points) == 3
    runs = [name for name in files(out) if name.startswith("runs/") and name.endswith("0.json")]
    before = {name: read(out, name) for name in runs}
    assert len(before) == 3 and "results.json" not in files(out)

    points.clear()
    monkeypatch.setattr(
        GridSearch, "train_one", lambda *args: points.append(args[1]) or train_one(*args)
    )
    results = kerasbert.finetune(task, tiny_preset, out, **options, verbose=False)
    assert len(points) == 3 and len(results["runs"]) == len(results["grid"]) == 6
    assert before == {name: read(out, name) for name in runs}

    # The files belong to the best run.
    scores = [run["scores"]["accuracy"] for run in results["runs"]]
    best = next(r for r in results["runs"] if r["run"] == results["best"]["run"])
    assert best["scores"]["accuracy"] == max(scores)
    assert results["scores"] == pytest.approx(best["scores"])
    model = kerasbert.models.BertTextClassifier.from_preset(results["model"])
    dev = task.read("dev")
    predictions = task.predict(model, dev)
    assert task.score(dev, predictions) == pytest.approx(best["scores"])
    (path,) = results["predictions"]
    assert path == os.path.join(out, "predictions", "dev", "predictions.tsv")
    assert [line.split("\t")[1] for line in read(path).splitlines()[1:]] == predictions
    assert json.loads(read(out, "results.json")) == results
    rows = list(csv.DictReader(read(out, "results.csv").splitlines()))
    assert [float(row["accuracy"]) for row in rows] == scores
    card = read(results["model"], "README.md")
    assert f"| accuracy | {round(results['scores']['accuracy'], 4)} |" in card
    assert "# tiny-films" in card and "the best of 6 runs" in card
    for path in results["pictures"]:
        with open(path, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    names = {name for name in files(out) if not name.startswith(("model/", "predictions/"))}
    assert {name.split("/")[0] for name in names} == {
        "runs",
        "settings.json",
        "results.json",
        "results.csv",
        "learning_curve.png",
        "confusion.png",
    }

    # First, nothing is left to do; then, one point of the grid gets one more seed.
    points.clear()
    again = kerasbert.finetune(task, tiny_preset, out, **options, verbose=False)
    assert points == [] and again == results
    more = kerasbert.finetune(task, tiny_preset, out, epochs=1, seeds=[0, 1], verbose=False)
    assert [point["seed"] for point in points] == [1]
    assert len(more["runs"]) == 7
    row = next(row for row in more["grid"] if row["seeds"] == 2)
    assert row["mean"] == pytest.approx(
        np.mean(
            [
                run["scores"]["accuracy"]
                for run in more["runs"]
                if run["learning_rate"] == 1e-2 and run["batch_size"] == 16
            ]
        )
    )
    # Runs with other settings do not mix.
    with pytest.raises(ValueError, match="have early_stopping=None, not 1; name another folder"):
        kerasbert.finetune(task, tiny_preset, out, early_stopping=1, verbose=False)
    fresh = kerasbert.finetune(
        task, tiny_preset, out, early_stopping=1, overwrite=True, verbose=False
    )
    assert len(fresh["runs"]) == 1


def search_of(task, tiny_preset, out, **shared):
    """Return a `GridSearch` of a task, as `finetune` makes one."""
    given = FinetuneSettings(task, tiny_preset, str(out), **shared)
    shared = {"preset": tiny_preset, **given.compared()}
    train, dev = task.read("train"), task.read("dev")
    return GridSearch(str(out), shared, False, False, print, task, train, None, dev, None, {})


POINT = {"batch_size": 16, "learning_rate": 1e-2, "epochs": 3, "seed": 0}


@pytest.mark.parametrize("lora_rank", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_long_run_goes_on_after_its_epoch(task, tiny_preset, tmp_path, monkeypatch, lora_rank):
    states = {}

    class Killed(EpochScores):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            variables = [*self.model.weights, *self.model.optimizer.variables]
            states[epoch] = [array(variable) for variable in variables]
            if epoch == 2:
                raise KeyboardInterrupt

    job = search_of(task, tiny_preset, tmp_path / "out", lora_rank=lora_rank)
    folder = str(tmp_path / "out" / "runs" / "run")
    with monkeypatch.context() as patch:
        patch.setattr(grid_search, "EpochScores", Killed)
        with pytest.raises(KeyboardInterrupt):
            job.train_one(POINT, folder)
    assert files(folder) == ["checkpoint-000000002.safetensors"]
    killed = states.pop(2)
    states.clear()

    class Seen(EpochScores):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            variables = [*self.model.weights, *self.model.optimizer.variables]
            states[epoch] = [array(variable) for variable in variables]

    monkeypatch.setattr(grid_search, "EpochScores", Seen)
    model, watch = job.train_one(POINT, folder)
    assert list(states) == [2]
    for value, expected in zip(states[2], killed, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert [row["epoch"] for row in watch.history] == [1, 2, 3]
    assert int(array(model.optimizer.iterations)) == 9
    watch.forget()
    assert not os.path.exists(folder)
    # Adapters are part of the saved weights.
    model.save_to_preset(str(tmp_path / "saved"))
    saved = task.model_class.from_preset(str(tmp_path / "saved"))
    assert not any("lora" in weight.path for weight in saved.weights)
    texts = task.read("dev").x
    np.testing.assert_allclose(saved.predict_proba(texts), model.predict_proba(texts), atol=1e-5)


def test_early_stopping_keeps_the_best_epoch(task, tiny_preset, tmp_path, monkeypatch):
    values, seen = iter([0.5, 0.9, 0.9, 0.4, 1.0]), []

    def score(self, data, predictions):
        return {"accuracy": next(values)}

    class Seen(EpochScores):
        def on_epoch_end(self, epoch, logs=None):
            seen.append([array(weight) for weight in self.model.weights])
            super().on_epoch_end(epoch, logs)

    monkeypatch.setattr(Task, "score", score)
    monkeypatch.setattr(grid_search, "EpochScores", Seen)
    job = search_of(task, tiny_preset, tmp_path / "out", early_stopping=2)
    model, watch = job.train_one({**POINT, "epochs": 5}, str(tmp_path / "out" / "runs" / "run"))
    assert len(watch.history) == 4 and watch.kept()["epoch"] == 2
    for weight, best in zip(model.weights, seen[1], strict=True):
        np.testing.assert_array_equal(array(weight), best)
    assert any((best != last).any() for best, last in zip(seen[1], seen[3]))
    # The best weights are in the state too.
    path = find_checkpoint(tmp_path / "out" / "runs" / "run")
    assert path.endswith("-000000003.safetensors")
    _, kept = load_checkpoint(path, model)
    for value, best in zip(kept, seen[1], strict=True):
        np.testing.assert_array_equal(value, best)


def test_runs_that_diverge(task, tiny_preset, tmp_path):
    out = tmp_path / "out"
    settings = {"learning_rates": [1e35], "epochs": 2, "warmup": 0.0, "verbose": False}
    with pytest.raises(
        ValueError, match="All runs diverged.* learning rates below 1e.35.*--overwrite"
    ):
        kerasbert.finetune(task, tiny_preset, out, **settings)
    (run,) = [json.loads(read(out, name)) for name in files(out) if name.startswith("runs/")]
    assert run["scores"] == {} and len(run["history"]) == 1
    said = run["history"][0]["diverged"]
    assert re.search(r"at step \d of epoch 1: .*too high \(6.6.*e\+34", said)
    # A diverged run counts as the worst.
    results = kerasbert.finetune(task, tiny_preset, out, **{**settings, "learning_rates": 1e-2})
    assert results["best"]["learning_rate"] == 1e-2
    assert [row["diverged"] for row in results["grid"]] == [0, 1]


def test_a_run_that_diverges_late_keeps_its_last_finite_state(
    task, tiny_preset, tmp_path, monkeypatch
):
    class Ruined(EpochScores):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch, logs)
            if epoch == 2 and self.point["learning_rate"] == 1e-2:
                for weight in self.model.trainable_weights:
                    weight.assign(np.full(weight.shape, np.nan, "float32"))

    monkeypatch.setattr(grid_search, "EpochScores", Ruined)
    given = {"epochs": 4, "verbose": False}
    with pytest.raises(ValueError, match="All runs diverged. The loss is nan at step 1 of epoch 3"):
        kerasbert.finetune(task, tiny_preset, tmp_path / "out", **given)
    found = [name for name in files(tmp_path / "out") if name.endswith(".safetensors")]
    assert len(found) == 1 and found[0].endswith("checkpoint-000000002.safetensors")
    # With early stopping, the best epoch of a diverged run counts; any run that does not diverge is
    # better.
    early = kerasbert.finetune(task, tiny_preset, tmp_path / "early", early_stopping=3, **given)
    assert early["best"]["epoch"] in (1, 2) and early["runs"][0]["history"][-1]["diverged"]
    both = kerasbert.finetune(
        task, tiny_preset, tmp_path / "out", learning_rates=[1e-2, 1e-3], **given
    )
    assert both["best"]["learning_rate"] == 1e-3
    assert not [name for name in files(tmp_path / "out") if name.endswith(".safetensors")]


def test_a_test_set_and_balanced_classes(task, tiny_preset, tmp_path, capsys):
    own = task.with_files(
        train=task.source.files["train"],
        test=write_table(tmp_path / "test.csv", 12, seed=2),
    )
    results = kerasbert.finetune(
        own, tiny_preset, tmp_path / "out", class_weights="balanced", precision="mixed_bfloat16"
    )
    assert set(results["test_scores"]) == {"accuracy", "macro_f1", "matthews"}
    assert [os.path.basename(os.path.dirname(path)) for path in results["predictions"]] == [
        "dev",
        "test",
    ]
    assert results["examples"] == {"train": 36, "dev": 4, "test": 12}
    said = capsys.readouterr().out
    assert "There is no dev split: 4 training examples, the same in every run" in said
    assert "Run 1 of 1: batch 16, rate 0.01, epochs 1, seed 0" in said


def test_a_dev_split_is_cut_off(tmp_path):
    task = Task("t", "T", "text_classifier", ("text",), ("accuracy",), labels=("a", "b"))
    data = Examples([f"x{i}" for i in range(30)], ["a", "b"] * 15, list(range(30)), ["a", "b"] * 15)
    train, dev = task.cut(data, 0.1)
    assert len(train) == 27 and len(dev) == 3
    assert sorted([*train.x, *dev.x]) == sorted(data.x)
    assert task.cut(data, 0.1)[1].x == dev.x
    assert [len(part) for part in task.cut(data.take([0, 1]), 0.01)] == [1, 1]
    with pytest.raises(ValueError, match="one example; no dev split can be made of it"):
        task.cut(data.take([0]), 0.1)
    with pytest.raises(ValueError, match="dev_share=1 must be between 0 and 1"):
        own = file_task(train=write_table(tmp_path / "train.csv", 10))
        finetune._train_and_dev(own, None, 1, [])


def test_class_weights():
    task = Task("t", "T", "text_classifier", ("text",), ("accuracy",), labels=("a", "b", "c"))
    y = ["a", "a", "a", "b"]
    assert finetune._sample_weights(task, y, None) is None
    weights = finetune._sample_weights(task, y, "balanced")
    assert weights == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2]) and sum(weights) == 4
    assert finetune._sample_weights(task, y, {"b": 3}) == [1, 1, 1, 3]
    stars = Task("t", "T", "text_classifier", ("text",), ("accuracy",), labels=("1", "2"))
    assert finetune._sample_weights(stars, ["1", "2"], {2: 3}) == [1, 3]
    korean = Task("t", "T", "text_classifier", ("text",), ("accuracy",), labels=("가", "나"))
    decomposed = unicodedata.normalize("NFD", "나")
    assert finetune._sample_weights(korean, ["가", "나"], {decomposed: 3}) == [1, 3]
    for wrong, message in (
        ({"d": 1}, "the unknown class 'd'; the classes of 't' are a, b, c"),
        ({"a": -1}, r"class_weights\['a'\]=-1 must be .* number, at least 0"),
        ("rare", 'must be a dict or "balanced"'),
    ):
        with pytest.raises(ValueError, match=message):
            finetune._sample_weights(task, y, wrong)
    other = Task("t", "T", "text_regressor", ("text",), ("pearson",))
    with pytest.raises(ValueError, match="one class per text, but 't' has none"):
        finetune._sample_weights(other, [1.0], "balanced")


WRONG = {
    "precision": ({"precision": "half"}, "precision='half' is unknown; use one of float32"),
    "rate": ({"learning_rates": [1e-3, 0]}, "learning_rates=0 must be a number above 0.0"),
    "batch": ({"batch_sizes": 2.5}, "batch_sizes=2.5 must be a whole number of at least 1"),
    "epochs": ({"epochs": []}, "epochs is empty; pass at least one number"),
    "seeds": ({"seeds": [0, "1"]}, "seeds='1' must be a whole number of at least 0"),
    "warmup": ({"warmup": 1}, "warmup=1 must be a share of the steps"),
    "patience": ({"early_stopping": 0}, "early_stopping=0 must be a whole number of at least 1"),
    "limit": ({"limit": 0}, "limit=0 must be a whole number of at least 1"),
    "length": ({"sequence_length": 512}, "sequence_length 512 exceeds the encoder's 48"),
    "model": ({"model": {"dropuot": 0.2}}, "has no argument 'dropuot'; did you mean dropout"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_write_nothing(task, tiny_preset, tmp_path, name):
    settings, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        kerasbert.finetune(task, tiny_preset, tmp_path / "out", **settings, verbose=False)
    assert not (tmp_path / "out").exists()


def test_data_that_cannot_be_trained_on(task, tiny_preset, tmp_path):
    out = tmp_path / "out"
    only_dev = task.with_files(dev=task.source.files["dev"])
    with pytest.raises(ValueError, match="'films' has no training examples; pass a training file"):
        kerasbert.finetune(only_dev, tiny_preset, out)
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="has other files; name another one"):
        kerasbert.finetune(task, tiny_preset, out, overwrite=True)
    with pytest.raises(ValueError, match="thesis.txt': it is a file, not a folder"):
        kerasbert.finetune(task, tiny_preset, out / "thesis.txt")
    assert os.listdir(out) == ["thesis.txt"]


def test_overwriting_waits_until_all_is_well(task, tiny_preset, tmp_path):
    out = str(tmp_path / "out")
    results = kerasbert.finetune(task, tiny_preset, out, verbose=False)
    with pytest.raises(ValueError, match="Unknown preset 'no_such_preset'"):
        kerasbert.finetune(task, "no_such_preset", out, overwrite=True, verbose=False)
    assert json.loads(read(out, "results.json")) == results
    # A missing model is an error, not guessed.
    os.remove(os.path.join(out, "model", "finetuning.json"))
    with pytest.raises(ValueError, match="lost the model of the best run.*; remove '.*seed0.json'"):
        kerasbert.finetune(task, tiny_preset, out, verbose=False)


def test_pictures_need_matplotlib(task, tiny_preset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    notes = []
    search = search_of(task, tiny_preset, tmp_path / "out")
    assert finetune_results._draw(search, [], {"run": "a"}, [], notes) == []
    assert notes == [f"Figures need matplotlib; run {how_to_install('plot')}."]


def test_less_is_better_of_errors(tmp_path):
    task = Task("t", "T", "text_regressor", ("text",), ("mean_absolute_error", "pearson"))
    job = GridSearch("", {}, False, False, print, task, None, None, None, None, {})
    runs = [
        {"scores": {"mean_absolute_error": value}, "finished": number}
        for number, value in enumerate((0.5, 0.25, 0.75, 0.25))
    ]
    assert job.best(runs) is runs[1]
    assert job.rank({"scores": {}}) == -math.inf


# === The learning rate that a preset records ===


@pytest.fixture
def rated_preset(tiny_preset, tmp_path):
    """Return a task's preset on an encoder with a recommended learning rate."""
    folder = shutil.copytree(tiny_preset, tmp_path / "rated")
    presets.record_finetuning_learning_rate(folder, 4e-3)
    return str(folder)


def test_a_recorded_rate_stays_with_the_encoder(rated_preset, tiny_preset, tmp_path):
    assert presets.finetuning_learning_rate(rated_preset) == 4e-3
    assert presets.finetuning_learning_rate(tiny_preset) is None
    model = BertTextClassifier.from_preset(rated_preset, labels=["a", "b"])
    plain = BertTextClassifier.from_preset(tiny_preset, labels=["a", "b"])
    for made, rate in ((model, 4e-3), (plain, 3e-5)):
        assert float(made.optimizer.learning_rate) == pytest.approx(rate)
        made.compile()
        assert float(made.optimizer.learning_rate) == pytest.approx(rate)
    assert "finetuning_learning_rate" not in plain.backbone.get_config()
    # Presets of tasks and their copies in our format store the learning rate; other formats cannot.
    model.save_to_preset(tmp_path / "task")
    assert presets.finetuning_learning_rate(str(tmp_path / "task")) == 4e-3
    kerasbert.convert(str(tmp_path / "task"), str(tmp_path / "again"), format="kerasbert")
    assert presets.finetuning_learning_rate(str(tmp_path / "again")) == 4e-3
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.backbone.finetuning_learning_rate == 4e-3
    assert model.backbone.with_layers([0]).finetuning_learning_rate == 4e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        kerasbert.convert(rated_preset, str(tmp_path / "hf"), format="huggingface")
    assert presets.finetuning_learning_rate(str(tmp_path / "hf")) is None
    with pytest.raises(ValueError, match="No learning rate can be recorded in .*hf'"):
        presets.record_finetuning_learning_rate(tmp_path / "hf", 1e-3)
    with pytest.raises(ValueError, match="finetuning_learning_rate=0 must be a number above 0"):
        BertBackbone(9, 1, 1, 4, 4, finetuning_learning_rate=0)


def rates_of(task, preset, method="full"):
    """Return the learning rates that `finetune` would use, from the settings of its runs."""
    notes = []
    task = finetune._with_rate(task, preset, method, notes)
    return [point["learning_rate"] for point in task.settings.grid()], notes


def test_whose_rate_it_is(task, rated_preset, tiny_preset, tmp_path):
    own = file_task(train=write_table(tmp_path / "a.csv"))
    assert rates_of(own, rated_preset)[0] == [4e-3]
    assert "0.004, as recorded in" in rates_of(own, rated_preset)[1][0]
    assert rates_of(own, tiny_preset) == ([3e-5], [])
    assert rates_of(own, "bert_tiny_demo_en_uncased")[0] == [5e-4]
    assert rates_of(own, "bert_base_en_uncased")[0] == [3e-5]
    # The preset's learning rate replaces those of a paper, but not one that the user sets.
    assert set(rates_of(get_task("rte"), rated_preset)[0]) == {4e-3}
    assert set(rates_of(get_task("rte"), tiny_preset)[0]) == {5e-5, 3e-5, 2e-5}
    assert rates_of(task, rated_preset)[0] == [1e-2]
    # SetFit uses the preset's too; a head fitted by regression has none.
    by_setfit = FinetuneSettings(own, "a", "b", method="setfit").of(own)
    assert rates_of(by_setfit, rated_preset, "setfit")[0] == [4e-3]
    assert rates_of(by_setfit, tiny_preset, "setfit")[0] == [2e-5]
    frozen = FinetuneSettings(own, "a", "b", method="frozen").of(own)
    assert rates_of(frozen, rated_preset, "frozen") == ([0.0], [])


@pytest.mark.backends("torch")
def test_the_best_rate_is_recorded(task, tiny_preset, tmp_path):
    preset = str(shutil.copytree(tiny_preset, tmp_path / "own"))
    rates = {"learning_rates": [1e-2, 1e-7], "record_rate": True, "verbose": False}
    results = kerasbert.finetune(task, preset, str(tmp_path / "out"), **rates)
    means = {row["learning_rate"]: row["mean"] for row in results["grid"]}
    assert presets.finetuning_learning_rate(preset) == max(means, key=means.get)
    # A preset without a folder cannot store the rate; the error comes before any training.
    with pytest.raises(ValueError, match="recorded in 'bert_tiny_demo_en_uncased', which must be"):
        kerasbert.finetune(task, "bert_tiny_demo_en_uncased", str(tmp_path / "o"), **rates)
    assert not os.path.exists(tmp_path / "o")


# === Ensembles of the best runs ===


def test_taggers_with_a_crf_are_refused_before_they_are_trained(tiny_preset, tmp_path):
    path = tmp_path / "tags.conll"
    path.write_text("ann B-PER\nwas O\n\n" * 4)
    settings = Settings((4,), (1e-2,), (1,), sequence_length=16)
    task = file_task(path, path, head="token_classifier", settings=settings)
    options = {"seeds": [0, 1], "keep": 2, "model": {"crf": True}, "verbose": False}
    with pytest.raises(ValueError, match="keep=2 makes an ensemble, which cannot have taggers"):
        finetune.finetune(task, tiny_preset, str(tmp_path / "out"), **options)
    assert not os.path.exists(tmp_path / "out")


def test_the_best_runs_become_an_ensemble(task, tiny_preset, tmp_path):
    out = str(tmp_path / "out")
    options = {"learning_rates": [1e-2, 1e-4], "seeds": [0, 1], "keep": 2, "verbose": False}
    results = finetune.finetune(task, tiny_preset, out, **options)
    order = sorted(results["runs"], key=lambda run: (-run["scores"]["accuracy"], run["finished"]))
    assert results["kept"] == [run["run"] for run in order[:2]]
    assert results["best"]["run"] == results["kept"][0]
    assert os.listdir(os.path.join(out, "model", "members")) == ["0", "1"]
    model = BertTextClassifier.from_preset(results["model"])
    assert isinstance(model, BertEnsemble) and len(model.members) == 2
    for run, member in zip(order, model.members):
        dev = task.read("dev")
        assert task.score(dev, task.predict(member, dev))["accuracy"] == run["scores"]["accuracy"]
    assert task.score(dev, task.predict(model, dev)) == results["scores"]
    found = kerasbert.evaluate(results["model"], str(tmp_path / "dev.csv"), verbose=False)
    assert found["scores"] == results["scores"]
    card = read(results["model"], "README.md")
    assert "an ensemble of 2 runs" in card and "It combines the best 2 of 4 runs" in card
    assert "kerasbert.models.BertTextClassifier.from_preset" in card
    # A repeated call changes nothing; more runs replace members that are worse.
    again = finetune.finetune(task, tiny_preset, out, **options)
    assert again["kept"] == results["kept"] and again["scores"] == results["scores"]
    more = finetune.finetune(task, tiny_preset, out, **options | {"seeds": [0, 1, 2, 3]})
    order = sorted(more["runs"], key=lambda run: (-run["scores"]["accuracy"], run["finished"]))
    assert more["kept"] == [run["run"] for run in order[:2]] and len(more["runs"]) == 8
    names = [read_run(out, number) for number in (0, 1)]
    assert names == more["kept"]
    assert [name for name in os.listdir(os.path.join(out, "runs")) if "." not in name[-5:]] == []
    with pytest.raises(ValueError, match="have keep=2, not 1; name another folder"):
        finetune.finetune(task, tiny_preset, out, **options | {"keep": 1})
    with pytest.raises(ValueError, match="keep=9 is more than the 4 runs of the search; add seeds"):
        finetune.finetune(task, tiny_preset, str(tmp_path / "new"), **options | {"keep": 9})
    assert not os.path.exists(tmp_path / "new")
    # A lost member is an error.
    os.remove(os.path.join(out, "model", "members", "1", "finetuning.json"))
    with pytest.raises(ValueError, match=f"lost the model of the best run, {names[1]}"):
        finetune.finetune(task, tiny_preset, out, **options)


def read_run(out, number):
    """Return the run of a member of a saved ensemble."""
    return json.loads(read(out, "model", "members", str(number), "finetuning.json"))["run"]


def test_an_ensemble_of_parts(task, tiny_preset, tmp_path):
    options = {"learning_rates": [1e-2, 1e-4], "seeds": [0, 1], "keep": 3, "verbose": False}
    whole = finetune.finetune(task, tiny_preset, str(tmp_path / "whole"), **options)
    out = str(tmp_path / "out")
    for part in ("1/2", "2/2"):
        finetune.finetune(task, tiny_preset, out, part=part, **options)
    merged = finetune.finetune(task, tiny_preset, out, **options)
    scores = [{run["run"]: run["scores"] for run in one["runs"]} for one in (whole, merged)]
    assert scores[0] == scores[1] and len(merged["kept"]) == 3
    assert [read_run(out, number) for number in range(3)] == merged["kept"]


def test_folders_of_earlier_versions_kept_one_model(task, tiny_preset, tmp_path):
    out = tmp_path / "out"
    results = finetune.finetune(task, tiny_preset, str(out), verbose=False)
    settings = json.loads((out / "settings.json").read_text())
    assert settings.pop("keep") == 1 and "form" not in settings["task"]
    (out / "settings.json").write_text(json.dumps(settings))
    again = finetune.finetune(task, tiny_preset, str(out), verbose=False)
    assert again["scores"] == results["scores"] and again["kept"] == [results["best"]["run"]]

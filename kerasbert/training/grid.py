"""`Search`: does the runs of `finetune` and writes its output files."""

import contextlib
import csv
import gc
import glob
import io
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import keras

from kerasbert.base.files import (
    inside,
    link_files,
    names_in,
    new_folder,
    read_json,
    remove,
    write_json,
    write_text,
)
from kerasbert.base.finite import NonFiniteError
from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.examples import Examples
from kerasbert.optimizers import AdamW, LinearDecay
from kerasbert.training import report
from kerasbert.training.evaluation import RECORD, predict_all
from kerasbert.training.methods import method_of
from kerasbert.training.recording import Pulse
from kerasbert.training.resuming import EpochCheckpoints, find_checkpoint
from kerasbert.upload import write_card
from kerasbert.visualize.figures import save
from kerasbert.visualize.predictions import confusion_matrix
from kerasbert.visualize.training import finetuning_curves

# Folder for the parts of a split search.
PARTS = "parts"
_POINTS = 20  # Points of the loss curve per epoch.
_RECORDED = ("preset", "method", "pairs", "lora_rank", "precision")
_GRID = ("batch_size", "learning_rate", "epochs", "seed")
_SAID = "batch {batch_size}, rate {learning_rate}, epochs {epochs}, seed {seed}"


def run_name(point):
    """Return the name of a grid point's run."""
    return _SAID.format(**point).replace(", ", "-").replace(" ", "")


def runs_in(folder):
    """Return the names of a folder's finished runs, a set."""
    paths = glob.glob(os.path.join(glob.escape(folder), "runs", "*.json"))
    return {os.path.basename(path).removesuffix(".json") for path in paths}


def _read_runs(folder):
    """Read a folder's finished runs: list of `(path, run)`.

    Raises:
        ValueError: if a file does not describe a run, or names a run outside the folder.
    """
    runs = os.path.join(folder, "runs")
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(runs), "*.json"))):
        run = read_json(path)
        inside(runs, run.get("run"), path)
        if missing := {*_GRID, "scores", "finished"} - run.keys():
            raise ValueError(f"'{path}' is not a run: it has no '{min(missing)}'; remove it.")
        found.append((path, run))
    return found


@dataclass
class Search:
    """State shared by all runs of `finetune`.

    Args:
        shared: dict. The settings that all runs in a folder must share.
        weights: list of floats, one per training example, or `None`.
        arguments: dict of further arguments of `from_preset`.
        check_interrupt: function that raises a swallowed `KeyboardInterrupt`.
    """

    task: Task
    output: str
    shared: dict
    train: Examples
    weights: list | None
    dev: Examples
    test: Examples | None
    arguments: dict
    overwrite: bool
    verbose: bool
    check_interrupt: Callable

    def say(self, text):
        if self.verbose:
            print(text, flush=True)

    def path(self, *names):
        return os.path.join(self.output, *names)

    def check_output(self):
        """Raise if the folder has other files, or runs with other settings."""
        settings = self.path("settings.json")
        if not set(names_in(self.output)) - {PARTS}:
            return
        if not os.path.exists(settings):
            raise ValueError(f"The folder '{self.output}' has other files; name another one.")
        # A search stopped in its first epoch has nothing to resume.
        if self.overwrite or not names_in(self.path("runs")):
            self.overwrite = True
            return
        self._compare(self.output)

    def _compare(self, folder):
        """Raise if the runs in a folder have other settings."""
        there = read_json(os.path.join(folder, "settings.json"))
        # Version 0.1 did not record the method.
        there.setdefault("method", "full" if there.get("lora_rank") is None else "lora")
        for name, value in self.shared.items():
            if there.get(name) != value:
                difference = f"{name}={there.get(name)!r}, not {value!r}"
                if isinstance(value, dict) or name == "data":
                    difference = f"another {name}" if name != "data" else "other examples"
                raise ValueError(
                    f"The runs in '{folder}' have {difference}; name another folder, or pass "
                    "--overwrite (overwrite=True)."
                )

    def begin(self):
        """Create the folder; called once the model is made and the data are read."""
        if self.overwrite:
            # Runs are removed first, so that an interrupted removal leaves nothing to resume.
            remove(self.path("runs"))
            for name in names_in(self.output):
                if name not in ("settings.json", PARTS):
                    remove(self.path(name))
            self.overwrite = False
        os.makedirs(self.output, exist_ok=True)
        # Written first: it marks the folder as used by `finetune`.
        write_json(self.path("settings.json"), self.shared)
        os.makedirs(self.path("runs"), exist_ok=True)

    def take_over(self, part):
        """Take over a part's runs and checkpoints, and its best model if no other is better."""
        found = _read_runs(part)
        runs = os.path.join(part, "runs")
        begun = {name for name in names_in(runs) if find_checkpoint(os.path.join(runs, name))}
        if not found and not begun:
            return  # Stopped in its first epoch.
        self._compare(part)
        self.begin()
        for path, run in found:
            others = self.done()
            model = os.path.join(inside(os.path.dirname(path), run["run"], path), "model")
            # Of runs with equal scores, the part kept the model of the first to finish.
            if os.path.isdir(model) and self.best([*others, run])["run"] == run["run"]:
                with new_folder(os.path.join(self.folder_of(run), "model")) as folder:
                    link_files(model, folder)
            write_json(self.path("runs", os.path.basename(path)), run)
        for name in begun - runs_in(self.output):
            if find_checkpoint(self.path("runs", name)) is None:
                with new_folder(self.path("runs", name)) as folder:
                    link_files(os.path.join(runs, name), folder)
        if found:
            self._keep_best(self.done())
        self.say(f"Took over {len(found)} runs of '{part}'.")

    def _keep_best(self, runs):
        """Remove all models but the best run's."""
        best = self.best(runs)
        for other in runs:
            if other is not best and self.rank(best) > -math.inf:
                remove(self.folder_of(other))

    def folder_of(self, run):
        """Return the folder that a run names."""
        runs = self.path("runs")
        return inside(runs, run["run"], runs)

    def summary(self):
        """Return the results of a part, a dict."""
        runs = self.done()
        best = self.best(runs) if runs else None
        return {
            "task": self.task.name,
            "preset": self.shared["preset"],
            "method": self.shared["method"],
            "metric": self.task.main_metric,
            "best": best and {name: best[name] for name in ("run", *_GRID, "epoch")},
            "runs": runs,
        }

    def done(self):
        """Return the finished runs in grid order, a list of dicts."""
        found = [run for _, run in _read_runs(self.output)]
        return sorted(found, key=lambda run: [run[name] for name in _GRID])

    def rank(self, run):
        """Return a run's score, negated if lower is better; `-inf` without one."""
        score = run["scores"].get(self.task.main_metric)
        if score is None:
            return -math.inf
        return -score if self.task.mode == "min" else score

    def best(self, runs):
        """Return the best run; among equals the first to finish, whose model was kept."""
        return max(sorted(runs, key=lambda run: run["finished"]), key=self.rank)

    def run(self, point, title):
        """Do a run, unless it is finished."""
        title, name = f"{title}: {_SAID.format(**point)}", run_name(point)
        if not self.overwrite and os.path.exists(self.path("runs", f"{name}.json")):
            self.say(f"{title}: already done.")
            return
        self.say(title)
        model, watch = self.train_one(point, self.path("runs", name))
        row = watch.kept()
        run = {
            "run": name,
            **point,
            "epoch": row["epoch"],
            "scores": row["scores"],
            "seconds": round(sum(row["seconds"] for row in watch.history), 1),
            "finished": time.time(),
            "history": watch.history,
        }
        others = self.done()
        if self.rank(run) > max(map(self.rank, others), default=-math.inf):
            preset = self.path("runs", name, "model")
            model.save_to_preset(preset)
            record = {"run": name, "task": self.task.as_dict(), "scores": run["scores"]}
            record |= {key: self.shared[key] for key in _RECORDED}
            write_json(os.path.join(preset, RECORD), record)
        # From here on, the run counts as finished.
        write_json(self.path("runs", f"{name}.json"), run)
        if self.rank(run) > -math.inf:  # A diverged run keeps its last checkpoint.
            watch.forget()
        self._keep_best(self.done())
        value = run["scores"].get(self.task.main_metric)
        said = "diverged" if value is None else f"{self.task.main_metric} {value:.4f} on dev"
        self.say(f"{said}, {report.duration(run['seconds'])}")

    def train_one(self, point, folder):
        """Train a model at a grid point; returns it and its `_Watch`."""
        gc.collect()  # Frees the previous model and its optimizer.
        self.check_interrupt()
        keras.utils.set_random_seed(point["seed"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "New, random weights")
            method = method_of(self.shared["method"], self.task)(self, point)
        steps = method.steps()
        for examples in (self.dev, self.test):  # Bad data must raise before anything is written.
            if examples is not None:
                method.model.preprocessor.sorted_batches(examples.x)
        total = steps * point["epochs"]
        warmup = int(total * self.task.settings.warmup)
        trained = method.trained
        if trained is not None:
            rate = LinearDecay(point["learning_rate"], total, warmup)
            trained.compile(AdamW(rate, **method.optimizer), **method.compiled)
        self.begin()
        watch = _Watch(self, method, folder, point, steps)
        if trained is None:
            with watch.until_it_diverges():
                watch.at_once(method)
            return method.model, watch
        keras.utils.set_random_seed(point["seed"])
        start = watch.start(trained)
        if start:
            self.say(f"Resuming after epoch {start}.")
        if not watch.is_over():
            x, y, weights = method.data
            with watch.until_it_diverges():
                trained.fit(
                    x,
                    y,
                    sample_weight=weights,
                    batch_size=point["batch_size"],
                    epochs=point["epochs"],
                    initial_epoch=start,
                    callbacks=[watch],
                    verbose=(1 if watch.in_line else 2) if self.verbose else 0,
                )
        watch.bring_back(trained)
        return (method.finish() if watch.kept()["scores"] else method.model), watch

    # === Results ===

    def finish(self, notes):
        """Predict and score with the best model, and write all results."""
        runs = self.done()
        best = self.best(runs)
        if self.rank(best) == -math.inf:
            # Earlier versions did not record where a run diverged.
            said = best["history"][-1].get("diverged") or "Their losses are not finite."
            raise ValueError(
                f"All runs diverged. {said} Pass learning rates below {best['learning_rate']:g} "
                f"and --overwrite (overwrite=True), which replaces the runs in '{self.output}'."
            )
        directory = self.take_model(best)
        dtype = {} if self.shared["precision"] is None else {"dtype": self.shared["precision"]}
        model = self.task.model_class.from_preset(directory, **dtype)
        dev_predictions = predict_all(self.task, model, self.dev, best["batch_size"], self.verbose)
        scores = self.task.score(self.dev, dev_predictions)
        threshold = scores.get("best_f1_threshold")
        written = self.task.write(
            self.path("predictions", "dev"), self.dev, dev_predictions, threshold
        )
        test_scores = None
        if self.test is not None:
            predictions = predict_all(self.task, model, self.test, best["batch_size"], self.verbose)
            written += self.task.write(
                self.path("predictions", "test"), self.test, predictions, threshold
            )
            if self.test.gold is not None:
                test_scores = self.task.score(self.test, predictions)
        results = {
            "task": self.task.name,
            "preset": self.shared["preset"],
            "method": self.shared["method"],
            "metric": self.task.main_metric,
            "best": {name: best[name] for name in ("run", *_GRID, "epoch")},
            "scores": scores,
            "classes": self.task.scores_by_class(self.dev, dev_predictions),
            "test_scores": test_scores,
            "grid": report.over_seeds(runs, self.task.main_metric, self.task.mode),
            "runs": runs,
            "published": [vars(published) for published in self.task.published],
            "examples": {
                "train": len(self.train),
                "dev": len(self.dev),
                "test": 0 if self.test is None else len(self.test),
            },
            "model": directory,
            "predictions": written,
            "pictures": self.draw(runs, best, dev_predictions, notes),
            "notes": notes,
        }
        self.describe(directory, results)
        write_text(self.path("results.csv"), _csv(runs, self.shared["method"]))
        write_json(self.path("results.json"), results)
        return results

    def take_model(self, best):
        """Move the best run's model to its final place."""
        directory, made = self.path("model"), os.path.join(self.folder_of(best), "model")
        if os.path.isdir(made):
            with new_folder(directory) as folder:
                link_files(made, folder)
        path = os.path.join(directory, RECORD)
        if not os.path.exists(path) or read_json(path)["run"] != best["run"]:
            raise ValueError(
                f"'{self.output}' has lost the model of the best run, {best['run']}; remove "
                f"'{self.folder_of(best)}.json' and run the same command again."
            )
        for other in os.scandir(self.path("runs")):
            if other.is_dir():
                remove(other.path)
        return directory

    def draw(self, runs, best, dev_predictions, notes):
        """Draw the figures; without matplotlib, add a note."""
        figures = {}
        try:
            figures["learning_curve.png"] = finetuning_curves(
                runs, best["run"], self.task.main_metric
            )
            if self.task.has_one_class:
                figures["confusion.png"] = confusion_matrix(
                    self.dev.gold, dev_predictions, self.task.labels
                )
        except ImportError as error:
            notes.append(str(error))
            self.say(notes[-1])
        for name, figure in figures.items():
            save(figure, self.path(name))
        return [self.path(name) for name in figures]

    def describe(self, directory, results):
        """Write the model card, and the scores next to the preset."""
        task, best, base = self.task, results["best"], self.shared["preset"]
        path = os.path.join(directory, RECORD)
        write_json(path, read_json(path) | {"scores": results["scores"], "best": best})
        is_local = os.path.isdir(os.path.expanduser(base))
        name = os.path.basename(os.path.normpath(base)) if is_local else base
        card = {
            "description": f"{name}, fine-tuned on {task.title}.",
            "base": name,
            "data": f"{task.title}, {results['examples']['train']:,} examples"
            + (f" ({task.source.page})" if task.source.page else "")
            + f"; {self.said_of(best)}",
            "scores": {key: round(value, 4) for key, value in results["scores"].items()},
            "scored_on": f"{task.title}, {results['examples']['dev']:,} dev examples",
        }
        if results["test_scores"] is not None:
            card |= {
                "test_scores": {x: round(value, 4) for x, value in results["test_scores"].items()},
                "tested_on": f"{task.title}, {results['examples']['test']:,} test examples",
            }
        if task.source.dataset:
            card["datasets"] = [task.source.dataset[0]]
        limits = []
        if len(results["runs"]) > 1:
            limits.append(
                f"It is the best of {len(results['runs'])} runs on the dev examples, so scores "
                "there may be slightly optimistic."
            )
        limits += [note for note in results["notes"] if note.startswith("With limit=")]
        if limits:
            card["limits"] = " ".join(limits)
        # Parent folders mean nothing on other machines.
        place = f"{os.path.basename(os.path.normpath(self.output))}/model"
        write_card(directory, place, card, f"{name.rpartition('/')[2]}-{task.name}")

    def said_of(self, run):
        """Describe how a run was trained, for the model card."""
        method = self.shared["method"]
        if method == "frozen" and self.task.has_one_class:
            return "logistic regression on the frozen encoder"
        how = {
            "lora": f", LoRA adapters of rank {self.shared['lora_rank']}",
            "frozen": ", frozen encoder",
            "setfit": f", SetFit with pairs={self.shared['pairs']!r}",
        }
        return (
            f"{run['epoch']} epochs, batch size {run['batch_size']}, learning rate "
            f"{run['learning_rate']:g}, seed {run['seed']}{how.get(method, '')}"
        )


class _Watch(EpochCheckpoints):
    """Callback that scores each epoch and saves checkpoints to resume from.

    Args:
        search: a `Search`.
        method: a method of `kerasbert.training.methods`, with the model to score.
        folder: string. The run's folder.
        point: dict. Its grid point.
        steps: int. Batches per epoch.
    """

    def __init__(self, search, method, folder, point, steps):
        super().__init__(folder)
        self.search, self.method, self.point = search, method, point
        self.patience = search.shared["early_stopping"]
        self.every = max(steps // _POINTS, 1)
        self.history = []
        self.best = []  # With early stopping, the weights of the best epoch.
        # In a file or pipe, Keras' progress bar would print a line per batch.
        self.in_line = sys.stdout.isatty() or "ipykernel" in sys.modules
        self.steps = steps

    def _scores(self):
        task, dev, model = self.search.task, self.search.dev, self.method.ready()
        verbose = self.search.verbose and not self.in_line
        return task.score(dev, predict_all(task, model, dev, self.point["batch_size"], verbose))

    def kept(self):
        """Return the epoch to keep: the last, or with early stopping the best."""
        return max(self.history, key=self.search.rank) if self.patience else self.history[-1]

    def is_over(self):
        """Return whether the run diverged or its patience ran out."""
        if not self.history:
            return False
        diverged = not self.history[-1]["scores"]
        waited = len(self.history) - self.kept()["epoch"]
        return diverged or waited >= (self.patience or math.inf)

    def at_once(self, method):
        """Fit the head without gradient steps, and record this as one epoch."""
        self.set_model(method.model)
        self.on_epoch_begin(0)
        self.on_epoch_end(0, {"loss": method.fit_head()})

    @contextlib.contextmanager
    def until_it_diverges(self):
        """Context manager that catches `NonFiniteError` and records the diverged epoch."""
        try:
            yield
        except NonFiniteError as error:
            row = {"epoch": self._epoch, "loss": None, "scores": {}, "diverged": str(error)}
            row["seconds"] = round(time.monotonic() - self._start, 2)
            self.history.append({**row, "losses": self._losses})
            self.search.say(str(error))

    def on_epoch_begin(self, epoch, logs=None):
        self._start, self._losses, self._sum = time.monotonic(), [], (0, 0.0)
        self._pulse, self._epoch = Pulse(self.search.say), epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        self.search.check_interrupt()
        # The logged loss is the epoch's mean so far; reading it waits for the device.
        count = batch + 1
        if count % self.every == 0:
            total = float(logs["loss"]) * count
            before, seen = self._sum
            self._losses.append([count, _finite((total - seen) / (count - before))])
            self._sum = count, total
        if not self.in_line:
            self._pulse.tick(lambda: self._far(count, float(logs["loss"])))

    def _far(self, count, loss):
        """Return a progress line."""
        left = (time.monotonic() - self._start) / count * (self.steps - count)
        return (
            f"epoch {self._epoch} of {self.point['epochs']}, batch {count:,} of {self.steps:,}: "
            f"loss {loss:.4f}, {report.duration(left)} left in this epoch"
        )

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, "loss": _finite(logs["loss"]), "scores": {}}
        if row["loss"] is not None:  # `None` if a head could not be fitted.
            scores = {name: float(value) for name, value in self._scores().items()}
            logs.update((f"val_{name}", value) for name, value in scores.items())  # For Keras.
            scores = {name: _finite(value) for name, value in scores.items()}
            row["scores"] = scores if None not in scores.values() else {}
        row["seconds"] = round(time.monotonic() - self._start, 2)
        row["losses"] = self._losses
        self.history.append(row)
        is_last = epoch + 1 == self.point["epochs"]
        if self.patience and self.kept() is row:
            self.best = [keras.ops.convert_to_numpy(w.value) for w in self.model.weights]
        if self.is_over():
            self.model.stop_training = True
            return
        if not is_last:
            self.keep(epoch + 1, self.best, history=self.history)
        super().on_epoch_end(epoch, logs)

    # === The state of an unfinished run ===

    def start(self, model):
        """Resume an interrupted call; returns its number of complete epochs."""
        epoch, facts, self.best = self.resume(model)
        self.history = facts.get("history", [])
        return epoch

    def bring_back(self, model):
        """With early stopping, restore the weights of the best epoch."""
        for weight, value in zip(model.weights, self.best):
            weight.assign(value)

    def forget(self):
        """Remove the checkpoint, but not a saved model."""
        path = find_checkpoint(self.folder)
        if path is not None:
            os.remove(path)
        if os.path.isdir(self.folder) and not names_in(self.folder):
            remove(self.folder)


def _finite(value):
    """Return a float, or `None` if JSON cannot hold it."""
    value = math.nan if value is None else float(value)
    return value if math.isfinite(value) else None


def _csv(runs, method):
    """Format the runs as CSV, one per line."""
    scores = list(dict.fromkeys(name for run in runs for name in run["scores"]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "method", *_GRID, "epoch", "seconds", *scores])
    for run in runs:
        cells = [run["run"], method, *(run[name] for name in (*_GRID, "epoch", "seconds"))]
        writer.writerow([*cells, *(run["scores"].get(name, "") for name in scores)])
    return file.getvalue()

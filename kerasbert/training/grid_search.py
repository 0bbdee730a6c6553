"""`GridSearch`: the runs of `finetune`, one for each grid point and seed."""

import gc
import glob
import math
import os
import time
import warnings
from dataclasses import dataclass

import keras

from kerasbert.base.files import link_files, names_in, new_folder, read_json, remove, write_json
from kerasbert.base.paths import inside
from kerasbert.heads.base.data_task import Task
from kerasbert.heads.base.examples import Examples
from kerasbert.optimizers import AdamW, LinearDecay
from kerasbert.training import report
from kerasbert.training.epoch_scores import EpochScores
from kerasbert.training.evaluation import RECORD
from kerasbert.training.methods import REGULARIZATION, method_of
from kerasbert.training.results import Results
from kerasbert.training.resuming import find_checkpoint
from kerasbert.training.run_folder import RunFolder
from kerasbert.training.trackers import Tracker

# Folder of the parts of a divided search.
PARTS = "parts"
GRID = ("batch_size", "learning_rate", "epochs", "seed")
_NAMED = "batch {batch_size}, rate {learning_rate}, epochs {epochs}, seed {seed}"


def run_name(point):
    """Return the name of a grid point's run."""
    return _NAMED.format(**point).replace(", ", "-").replace(" ", "")


def runs_in(folder):
    """Return a set of the names of a folder's finished runs."""
    paths = glob.glob(os.path.join(glob.escape(folder), "runs", "*.json"))
    return {os.path.basename(path).removesuffix(".json") for path in paths}


def _read_runs(folder):
    """Return a folder's finished runs, a list of `(path, run)`.

    Raises:
        ValueError: if a file does not describe a run, or names a run outside the folder.
    """
    runs = os.path.join(folder, "runs")
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(runs), "*.json"))):
        run = read_json(path)
        inside(runs, run.get("run"), path)
        if missing := {*GRID, "scores", "finished"} - run.keys():
            raise ValueError(
                f"'{path}' is not a run: it has no '{min(missing)}'; remove this file."
            )
        found.append((path, run))
    return found


@dataclass
class GridSearch(RunFolder):
    """The runs of `finetune`, with their shared state.

    Args:
        weights: list of floats, one per training example, or `None`.
        arguments: dict of further arguments of `from_preset`.
        callbacks: tuple of callbacks of `fit`.
        tracker: a `Tracker`.
    """

    task: Task
    train: Examples
    weights: list | None
    dev: Examples
    test: Examples | None
    arguments: dict
    callbacks: tuple = ()
    tracker: Tracker = Tracker("")

    others = frozenset([PARTS, "tensorboard"])

    def check_output(self):
        """Raise if the folder has other files, or runs with other settings."""
        super().check_output()
        # A search stopped in its first epoch has nothing to resume.
        self.overwrite = self.overwrite or not names_in(self.path("runs"))

    def recorded(self, folder):
        """Return the settings that the runs in a folder share."""
        there = super().recorded(folder)
        # Version 0.1 did not record the method.
        method = "full" if there.get("lora_rank") is None else "lora"
        # Earlier versions kept one model, truncated texts, and did not regularize.
        earlier = {"keep": 1, "long": None, "label_smoothing": 0.0, "r_drop": 0.0}
        return {"method": method, **earlier, **there}

    def take_over(self, part):
        """Take over a part's runs, checkpoints, and model if it is the best."""
        found = _read_runs(part)
        runs = os.path.join(part, "runs")
        begun = {name for name in names_in(runs) if find_checkpoint(os.path.join(runs, name))}
        if not found and not begun:
            return  # Stopped in its first epoch.
        self.compare(part)
        self.begin()
        for path, run in found:
            others = self.done()
            model = os.path.join(inside(os.path.dirname(path), run["run"], path), "model")
            # Of equal scores, the part has the first model.
            if os.path.isdir(model) and run in self.chosen([*others, run]):
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
        """Remove the models of all runs except the best runs."""
        chosen = self.chosen(runs)
        for other in runs if chosen else ():
            if other not in chosen:
                remove(self.folder_of(other))

    def folder_of(self, run):
        """Return the folder of a run, or raise if it is outside the folder of runs."""
        runs = self.path("runs")
        return inside(runs, run["run"], runs)

    def summary(self):
        """Return a dict of the results of a part."""
        runs = self.done()
        best = self.best(runs) if runs else None
        return Results(
            {
                "task": self.task.name,
                "preset": self.shared["preset"],
                "method": self.shared["method"],
                "metric": self.task.main_metric,
                "best": best and {name: best[name] for name in ("run", *GRID, "epoch")},
                "runs": runs,
            }
        )

    def done(self):
        """Return the finished runs in grid order, a list of dicts."""
        found = [run for _, run in _read_runs(self.output)]
        return sorted(found, key=lambda run: [run[name] for name in GRID])

    def rank(self, run):
        """Return a run's score, negated if lower is better, or `-inf` without one."""
        score = run["scores"].get(self.task.main_metric)
        if score is None:
            return -math.inf
        return -score if self.task.mode == "min" else score

    def best(self, runs):
        """Return the best run, of equals the first to finish, which has a model."""
        return max(sorted(runs, key=lambda run: run["finished"]), key=self.rank)

    def chosen(self, runs):
        """Return the runs to keep, best first, without those without a score."""
        scored = [run for run in runs if self.rank(run) > -math.inf]
        scored.sort(key=lambda run: (-self.rank(run), run["finished"]))
        return scored[: self.shared["keep"]]

    def run(self, point, title):
        """Train a run, unless it is finished."""
        title, name = f"{title}: {_NAMED.format(**point)}", run_name(point)
        if not self.overwrite and os.path.exists(self.path("runs", f"{name}.json")):
            self.say(f"{title}: already done.")
            return
        self.say(title)
        with self.tracker.run(name, {**self.parameters(), **point}) as callbacks:
            model, watch = self.train_one(point, self.path("runs", name), callbacks)
            self.tracker.scores(watch.kept()["scores"])
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
        if run in self.chosen([*others, run]):
            preset = self.path("runs", name, "model")
            self.task.tune(model, run["scores"])
            model.save_to_preset(preset)
            record = {"run": name, "task": self.task.as_dict(), "scores": run["scores"]}
            recorded = ("preset", "method", "pairs", "lora_rank", "precision")
            used = [name for name in (*REGULARIZATION, "reinitialize_layers") if self.shared[name]]
            record |= {key: self.shared[key] for key in (*recorded, *used)}
            write_json(os.path.join(preset, RECORD), record)
        write_json(self.path("runs", f"{name}.json"), run)
        if self.rank(run) > -math.inf:  # Keep the last checkpoint of a diverged run.
            watch.forget()
        self._keep_best(self.done())
        value = run["scores"].get(self.task.main_metric)
        said = "diverged" if value is None else f"{self.task.main_metric} {value:.4f} on dev"
        self.say(f"{said}, {report.duration(run['seconds'])}")

    def parameters(self):
        """Return the settings that all runs share, a flat dict of short values for trackers."""
        left_out = ("task", "data")
        shared = {x: value for x, value in self.shared.items() if x not in left_out}
        shared = {x: value for x, value in shared.items() if value not in (None, {}, [])}
        return {"task": self.task.name, **shared, "training_examples": len(self.train)}

    def train_one(self, point, folder, callbacks=()):
        """Train a model with the settings of a grid point, and return it and its `EpochScores`."""
        gc.collect()  # Free the memory of the previous model and its optimizer.
        self.check_interrupt()
        keras.utils.set_random_seed(point["seed"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "New, random weights")
            method = method_of(self.shared["method"], self.task)(self, point)
        if self.shared["keep"] > 1 and getattr(method.model, "crf", False):
            raise ValueError(
                f"keep={self.shared['keep']} makes an ensemble, which cannot have taggers with a "
                "CRF; use keep=1, or crf=False."
            )
        steps = method.steps()
        # Invalid data must raise before anything is written.
        for examples in (self.dev, self.test):
            if examples is not None:
                method.model.preprocessor.sorted_batches(examples.x)
        total = steps * point["epochs"]
        warmup = int(total * self.task.settings.warmup)
        trained = method.trained
        if trained is not None:
            rate = LinearDecay(point["learning_rate"], total, warmup)
            optimizer = AdamW(
                rate,
                learning_rate_multipliers=trained.learning_rate_multipliers(),
                **method.optimizer,
            )
            trained.compile(optimizer, **method.compiled)
        self.begin()
        watch = EpochScores(self, method, folder, point, steps)
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
                    # The first one adds the scores to the logs, where the others find them.
                    callbacks=[watch, *self.callbacks, *callbacks],
                    verbose=(1 if watch.in_line else 2) if self.verbose else 0,
                )
        for weight, value in zip(trained.weights, watch.best):  # Empty without early stopping.
            weight.assign(value)
        return (method.finish() if watch.kept()["scores"] else method.model), watch

"""`Search`: the runs of `finetune`, from a point of its grid to the files that come out."""

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

from kerasbert._finite import NonFiniteError
from kerasbert.files import (
    inside,
    link_files,
    names_in,
    new_folder,
    read_json,
    remove,
    write_json,
    write_text,
)
from kerasbert.optimizers import AdamW, LinearDecay
from kerasbert.tasks.examples import Examples
from kerasbert.tasks.task import Task
from kerasbert.training import report
from kerasbert.training.checkpoints import EpochCheckpoints, find_checkpoint
from kerasbert.training.evaluation import RECORD, predict_all
from kerasbert.training.methods import method_of
from kerasbert.training.recording import Pulse
from kerasbert.upload import write_card
from kerasbert.visualize.figures import save
from kerasbert.visualize.predictions import confusion_matrix
from kerasbert.visualize.training import finetuning_curves

# The folder in `output` of what was made in parts.
PARTS = "parts"
_POINTS = 20  # of the learning curve, in each epoch
_RECORDED = ("preset", "method", "pairs", "lora_rank", "precision")
_GRID = ("batch_size", "learning_rate", "epochs", "seed")
_SAID = "batch {batch_size}, rate {learning_rate}, epochs {epochs}, seed {seed}"


def run_name(point):
    """The name of the run at a point of the grid."""
    return _SAID.format(**point).replace(", ", "-").replace(" ", "")


def runs_in(folder):
    """The names of the runs that are done in a folder: a set."""
    paths = glob.glob(os.path.join(glob.escape(folder), "runs", "*.json"))
    return {os.path.basename(path).removesuffix(".json") for path in paths}


def _read_runs(folder):
    """The finished runs in a folder: a list of `(path, run)`, a run's file and its content.

    Raises:
        ValueError: if a file does not describe a run, or names a folder elsewhere.
    """
    runs = os.path.join(folder, "runs")
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(runs), "*.json"))):
        run = read_json(path)
        inside(runs, run.get("run"), path)
        if missing := {*_GRID, "scores", "finished"} - run.keys():
            raise ValueError(f"'{path}' is not a run: '{min(missing)}' is missing; remove it.")
        found.append((path, run))
    return found


@dataclass
class Search:
    """What all runs share; see `finetune`.

    Args:
        shared: dict. What runs in one folder have in common.
        weights: list of floats, what each training example counts; `None` for all the same.
        arguments: dict of further arguments of `from_preset`.
        check_interrupt: a function that raises a Ctrl-C that was lost.
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
        """Refuse a folder with other things in it, or with runs of other settings."""
        settings = self.path("settings.json")
        if not set(names_in(self.output)) - {PARTS}:
            return
        if not os.path.exists(settings):
            raise ValueError(f"The folder '{self.output}' holds other things; name another one.")
        # What was stopped in its first epochs holds nothing.
        if self.overwrite or not names_in(self.path("runs")):
            self.overwrite = True
            return
        self._compare(self.output)

    def _compare(self, folder):
        """Raise where the runs in a folder are of other settings."""
        there = read_json(os.path.join(folder, "settings.json"))
        # Runs of version 0.1 do not say it.
        there.setdefault("method", "full" if there.get("lora_rank") is None else "lora")
        for name, value in self.shared.items():
            if there.get(name) != value:
                difference = f"{name} {there.get(name)!r}, not {value!r}"
                if isinstance(value, dict) or name == "data":
                    difference = f"another {name}" if name != "data" else "other examples"
                raise ValueError(
                    f"The runs in '{folder}' are of {difference}; name another folder, or "
                    "overwrite them."
                )

    def begin(self):
        """Make the folder; called when a model is there and all of its input is read."""
        if self.overwrite:
            # The runs first: without them the folder holds nothing to go on with.
            remove(self.path("runs"))
            for name in names_in(self.output):
                if name not in ("settings.json", PARTS):
                    remove(self.path(name))
            self.overwrite = False
        os.makedirs(self.output, exist_ok=True)
        # Before all else: it says whose folder this is.
        write_json(self.path("settings.json"), self.shared)
        os.makedirs(self.path("runs"), exist_ok=True)

    def take_over(self, part):
        """Take over the runs of a part, and the model of its best one if no other run is better.

        Checkpoints of interrupted runs are taken over too, so that they resume here.
        """
        found = _read_runs(part)
        runs = os.path.join(part, "runs")
        begun = {name for name in names_in(runs) if find_checkpoint(os.path.join(runs, name))}
        if not found and not begun:
            return  # It was stopped in its first epoch.
        self._compare(part)
        self.begin()
        for path, run in found:
            others = self.done()
            model = os.path.join(inside(os.path.dirname(path), run["run"], path), "model")
            # Of equals that of the run which ended first, as its part has kept it.
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
        self.say(f"{len(found)} runs of '{part}' are taken over.")

    def _keep_best(self, runs):
        """Remove the models of all runs but the best."""
        best = self.best(runs)
        for other in runs:
            if other is not best and self.rank(best) > -math.inf:
                remove(self.folder_of(other))

    def folder_of(self, run):
        """The folder of a run, which the run's file in `runs` names."""
        runs = self.path("runs")
        return inside(runs, run["run"], runs)

    def summary(self):
        """What a part of the runs came to: a dict."""
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
        """The runs that are done, in the order of the grid: a list of dicts."""
        found = [run for _, run in _read_runs(self.output)]
        return sorted(found, key=lambda run: [run[name] for name in _GRID])

    def rank(self, run):
        """What is more in a better run; `-inf` for one without a score."""
        score = run["scores"].get(self.task.main_metric)
        if score is None:
            return -math.inf
        return -score if self.task.mode == "min" else score

    def best(self, runs):
        """The best run; of equals the one that was done first, whose model is there."""
        return max(sorted(runs, key=lambda run: run["finished"]), key=self.rank)

    def run(self, point, title):
        """Do a run, unless it is done."""
        title, name = f"{title}: {_SAID.format(**point)}", run_name(point)
        if not self.overwrite and os.path.exists(self.path("runs", f"{name}.json")):
            self.say(f"{title}: done before.")
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
        # From here on the run is done.
        write_json(self.path("runs", f"{name}.json"), run)
        if self.rank(run) > -math.inf:  # If it diverged, its last finite state stays.
            watch.forget()
        self._keep_best(self.done())
        value = run["scores"].get(self.task.main_metric)
        said = "diverged" if value is None else f"{self.task.main_metric} {value:.4f} on dev"
        self.say(f"{said}, {report.duration(run['seconds'])}")

    def train_one(self, point, folder):
        """A model that is trained at a point of the grid, and the `_Watch` that saw it."""
        gc.collect()  # The model before, with its optimizer.
        self.check_interrupt()
        keras.utils.set_random_seed(point["seed"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "New, random weights")
            method = method_of(self.shared["method"], self.task)(self, point)
        steps = method.steps()
        for examples in (self.dev, self.test):  # What is wrong shows before anything is written.
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
            self.say(f"It goes on after epoch {start}.")
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

    # === What comes out ===

    def finish(self, notes):
        """Take the best model, let it answer, and write all that is asked for."""
        runs = self.done()
        best = self.best(runs)
        if self.rank(best) == -math.inf:
            # Runs of earlier versions do not record where.
            said = best["history"][-1].get("diverged") or "Their losses are not finite."
            raise ValueError(
                f"All runs diverged. {said} Give lower learning rates than "
                f"{best['learning_rate']:g}, and overwrite the runs in '{self.output}'."
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
        """Bring the best run's model to its place."""
        directory, made = self.path("model"), os.path.join(self.folder_of(best), "model")
        if os.path.isdir(made):
            with new_folder(directory) as folder:
                link_files(made, folder)
        path = os.path.join(directory, RECORD)
        if not os.path.exists(path) or read_json(path)["run"] != best["run"]:
            raise ValueError(
                f"The model of the best run, {best['run']}, is no longer in '{self.output}'; "
                f"remove '{self.folder_of(best)}.json' to make it again."
            )
        for other in os.scandir(self.path("runs")):
            if other.is_dir():
                remove(other.path)
        return directory

    def draw(self, runs, best, dev_predictions, notes):
        """The pictures; without matplotlib a note."""
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
        """Write the model card, and the scores beside the preset."""
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
                f"It is the best of {len(results['runs'])} runs on the dev examples, so that the "
                "scores there may be a little too good."
            )
        limits += [note for note in results["notes"] if note.startswith("With limit=")]
        if limits:
            card["limits"] = " ".join(limits)
        # As far as it is the same on other machines.
        place = f"{os.path.basename(os.path.normpath(self.output))}/model"
        write_card(directory, place, card, f"{name.rpartition('/')[2]}-{task.name}")

    def said_of(self, run):
        """How a run was trained, for the card."""
        method = self.shared["method"]
        if method == "frozen" and self.task.head == "text_classifier":
            return "the encoder as it was, a head by logistic regression"
        how = {
            "lora": f", adapters of rank {self.shared['lora_rank']}",
            "frozen": ", the head alone",
            "setfit": f", by SetFit with pairs={self.shared['pairs']!r}",
        }
        return (
            f"{run['epoch']} epochs of batches of {run['batch_size']} at a learning rate of "
            f"{run['learning_rate']:g}, seed {run['seed']}{how.get(method, '')}"
        )


class _Watch(EpochCheckpoints):
    """Scores each epoch, and keeps what a run needs to go on.

    Args:
        search: a `Search`.
        method: one of `kerasbert.training.methods`, with the model that answers.
        folder: string. Of this run.
        point: dict. Its point of the grid.
        steps: int. Batches of an epoch.
    """

    def __init__(self, search, method, folder, point, steps):
        super().__init__(folder)
        self.search, self.method, self.point = search, method, point
        self.patience = search.shared["early_stopping"]
        self.every = max(steps // _POINTS, 1)
        self.history = []
        self.best = []  # With patience, the weights of the best epoch.
        # Where Keras' bar can be drawn over; elsewhere it would be a line a batch.
        self.in_line = sys.stdout.isatty() or "ipykernel" in sys.modules
        self.steps = steps

    def _scores(self):
        task, dev, model = self.search.task, self.search.dev, self.method.ready()
        verbose = self.search.verbose and not self.in_line
        return task.score(dev, predict_all(task, model, dev, self.point["batch_size"], verbose))

    def kept(self):
        """The epoch whose weights are kept: the last one, with patience the first best."""
        return max(self.history, key=self.search.rank) if self.patience else self.history[-1]

    def is_over(self):
        """Whether there is nothing more to train."""
        if not self.history:
            return False
        diverged = not self.history[-1]["scores"]
        waited = len(self.history) - self.kept()["epoch"]
        return diverged or waited >= (self.patience or math.inf)

    def at_once(self, method):
        """Fit a head without epochs, as one of them."""
        self.set_model(method.model)
        self.on_epoch_begin(0)
        self.on_epoch_end(0, {"loss": method.fit_head()})

    @contextlib.contextmanager
    def until_it_diverges(self):
        """A context that ends at a non-finite loss or prediction and records the diverged epoch."""
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
        # The loss in the logs is the mean since the epoch began; to read it waits for the device.
        count = batch + 1
        if count % self.every == 0:
            total = float(logs["loss"]) * count
            before, seen = self._sum
            self._losses.append([count, _finite((total - seen) / (count - before))])
            self._sum = count, total
        if not self.in_line:
            self._pulse.tick(lambda: self._far(count, float(logs["loss"])))

    def _far(self, count, loss):
        """How far the epoch is."""
        left = (time.monotonic() - self._start) / count * (self.steps - count)
        return (
            f"epoch {self._epoch} of {self.point['epochs']}, batch {count:,} of {self.steps:,}: "
            f"loss {loss:.4f}, {report.duration(left)} left of the epoch"
        )

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, "loss": _finite(logs["loss"]), "scores": {}}
        if row["loss"] is not None:  # `None` if a head could not be fitted.
            scores = {name: float(value) for name, value in self._scores().items()}
            logs.update((f"val_{name}", value) for name, value in scores.items())  # For the bar.
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

    # === The state of a run that is not done ===

    def start(self, model):
        """Take the state that an earlier call left, and return after which epoch that is."""
        epoch, facts, self.best = self.resume(model)
        self.history = facts.get("history", [])
        return epoch

    def bring_back(self, model):
        """With patience, take the weights of the best epoch."""
        for weight, value in zip(model.weights, self.best):
            weight.assign(value)

    def forget(self):
        """Remove the state; a model that was saved stays."""
        path = find_checkpoint(self.folder)
        if path is not None:
            os.remove(path)
        if os.path.isdir(self.folder) and not names_in(self.folder):
            remove(self.folder)


def _finite(value):
    """A float, `None` for what JSON cannot hold."""
    value = math.nan if value is None else float(value)
    return value if math.isfinite(value) else None


def _csv(runs, method):
    """The runs as a table, one a line."""
    scores = list(dict.fromkeys(name for run in runs for name in run["scores"]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "method", *_GRID, "epoch", "seconds", *scores])
    for run in runs:
        cells = [run["run"], method, *(run[name] for name in (*_GRID, "epoch", "seconds"))]
        writer.writerow([*cells, *(run["scores"].get(name, "") for name in scores)])
    return file.getvalue()

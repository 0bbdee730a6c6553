"""`finetune`: the one loop of all tasks: a grid of settings and seeds, and the best on dev.

What it leaves in its folder, each file whole or not there:

    results.json, results.csv    all runs and their scores, beside the published ones
    runs/<run>.json              one run: what is here is not done again
    model/                       the best one, a preset with its model card
    predictions/<split>/         what it says, in the form that is handed in
    learning_curve.png, confusion.png
    settings.json                what all runs share
"""

import csv
import gc
import glob
import hashlib
import io
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import keras
import numpy as np

from kerasbert._errors import check_whole
from kerasbert._files import write_text
from kerasbert.conversion.checkpoint import read_json
from kerasbert.metrics import ScoreCallback
from kerasbert.optimizers import AdamW, LinearDecay
from kerasbert.tasks import get_task, report
from kerasbert.tasks.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint
from kerasbert.tasks.evaluation import RECORD, predict_all
from kerasbert.tasks.examples import Examples
from kerasbert.tasks.recording import lasting_interrupt
from kerasbert.tasks.task import Task
from kerasbert.upload import write_card
from kerasbert.visualize.figures import save
from kerasbert.visualize.predictions import confusion_matrix
from kerasbert.visualize.training import finetuning_curves

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# A run keeps its state at the end of an epoch if this many seconds would be lost otherwise.
KEEP_AFTER = 60.0
_POINTS = 20  # of the learning curve, in each epoch
_GRID = ("batch_size", "learning_rate", "epochs", "seed")


def finetune(
    task,
    preset,
    output,
    *,
    data=None,
    batch_sizes=None,
    learning_rates=None,
    epochs=None,
    seeds=0,
    warmup=None,
    sequence_length=None,
    early_stopping=None,
    class_weights=None,
    lora_rank=None,
    precision=None,
    model=None,
    dev_share=0.1,
    limit=None,
    overwrite=False,
    verbose=True,
):
    """Fine-tune a preset on a task with all settings of a grid, and keep the best on dev.

    Every run trains as the paper does: `kerasbert.optimizers.AdamW`, whose rate rises over the
    warmup and falls to 0, on batches of similar length. If it is stopped, the same call goes on:
    runs that are done stay, a long one goes on from its last epoch. More values or seeds in a
    later call add runs.

    Args:
        task: string or `kerasbert.tasks.Task`. `kerasbert.tasks.builtin_tasks()` has the names,
            `kerasbert.tasks.file_task` makes one of your own files.
        preset: string. Whatever `from_preset` takes.
        output: string. The folder for all that comes out.
        data: string. The folder with the task's official files; `None` asks the `datasets`
            library.
        batch_sizes, learning_rates, epochs: numbers or lists of them, the grid; `None` are the
            task's own. Each number of epochs is a run of its own, as the rate falls to its end.
        seeds: int or list of ints. Each point of the grid runs with every seed.
        warmup: float. The share of the steps in which the rate rises.
        sequence_length: int. The most tokens of a row.
        early_stopping: int. Stop after this many epochs without a better score, and keep the
            best epoch; `None` keeps the last one.
        class_weights: dict of class to what its examples count, or "balanced", which counts all
            classes the same. Of text classifiers.
        lora_rank: int. Freeze the encoder and train adapters of this rank (and higher rates:
            1e-4 to 1e-3); the saved model holds their sum.
        precision: string. "float32", "mixed_bfloat16" or "mixed_float16"; `None` is Keras' own
            setting.
        model: dict. Further arguments of `from_preset`, such as `{"doc_stride": 64}`.
        dev_share: float. The share of the training examples to choose by, where a task has no dev
            split; always the same ones.
        limit: int. The most examples of each split, drawn at random, to try things out.
        overwrite: bool. Remove the runs that are in the folder.
        verbose: bool. Whether to show progress.

    Returns:
        What `results.json` holds: a dict of `task`, `preset`, `metric` (the main one), `best`
        (the best run), `scores` (of the saved model on dev), `test_scores` (`None` without
        labels), `grid` (the mean over seeds of each of its points), `runs`, `published`,
        `examples`, `model` (its directory), `predictions` (paths), `pictures` (paths) and
        `notes`.

    Raises:
        ValueError: for data, a preset or settings that do not fit, before anything is written.

    Source: Devlin et al. 2019, arXiv 1810.04805, appendix A.3.
    """
    task = get_task(task) if isinstance(task, str) else task
    task = _with_settings(task, batch_sizes, learning_rates, epochs, warmup, sequence_length)
    seeds = _numbers("seeds", seeds, int, 0)
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is none of {', '.join(PRECISIONS)}.")
    for name, value in (("early_stopping", early_stopping), ("lora_rank", lora_rank)):
        if value is not None:
            _numbers(name, value, int, 1)
    notes = []
    train, dev = _train_and_dev(task, data, dev_share, limit, notes)
    test = _test(task, data, limit, notes)
    shared = {
        "task": task.as_dict() | {"settings": None},
        "preset": os.fspath(preset),
        "warmup": task.settings.warmup,
        "sequence_length": task.settings.sequence_length,
        "early_stopping": early_stopping,
        "class_weights": class_weights,
        "lora_rank": lora_rank,
        "precision": precision,
        "model": model or {},
        "data": _hash(train, dev),
        "backend": keras.backend.backend(),
    }
    output = os.path.expanduser(os.fspath(output))
    with lasting_interrupt() as check:
        search = _Search(
            task=task,
            output=output,
            shared=json.loads(json.dumps(shared)),
            train=train,
            weights=_sample_weights(task, train.y, class_weights),
            dev=dev,
            test=test,
            arguments=(model or {}) | ({} if precision is None else {"dtype": precision}),
            overwrite=overwrite,
            verbose=verbose,
            check_interrupt=check,
        )
        search.check_output()
        points = [{**point, "seed": seed} for point in task.settings.grid() for seed in seeds]
        search.say(
            f"{task.title}: {len(train):,} training examples, {len(dev):,} dev examples, "
            f"{len(points)} run{'s' if len(points) > 1 else ''}."
        )
        for note in notes:
            search.say(note)
        for number, point in enumerate(points, start=1):
            search.run(point, f"Run {number} of {len(points)}")
        return search.finish(notes)


# === What is given ===


def _numbers(name, values, kind, least):
    """One number or several, as a tuple without repetitions."""
    values = values if isinstance(values, (list, tuple)) else (values,)
    for value in values:
        if kind is int:
            check_whole(name, value, least)
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not value > least:
            raise ValueError(f"{name}={value!r} has to be a number above {least}.")
    if not values:
        raise ValueError(f"{name} is empty; give at least one number.")
    return tuple(dict.fromkeys(map(kind, values)))


def _with_settings(task, batch_sizes, learning_rates, epochs, warmup, sequence_length):
    """The task with the settings that were given in place of its own."""
    given = {}
    for name, values, kind in (
        ("batch_sizes", batch_sizes, int),
        ("learning_rates", learning_rates, float),
        ("epochs", epochs, int),
    ):
        if values is not None:
            given[name] = _numbers(name, values, kind, 1 if kind is int else 0.0)
    if warmup is not None:
        if not 0 <= warmup < 1:
            raise ValueError(f"warmup={warmup} has to be a share of the steps, from 0 to below 1.")
        given["warmup"] = float(warmup)
    if sequence_length is not None:
        (given["sequence_length"],) = _numbers("sequence_length", sequence_length, int, 1)
    return replace(task, settings=replace(task.settings, **given))


def _train_and_dev(task, data, dev_share, limit, notes):
    if limit is not None:
        _numbers("limit", limit, int, 1)
    if "train" not in task.splits:
        raise ValueError(f"The task '{task.name}' has nothing to train on; give it a file.")
    train = task.read("train", data)
    if train.y is None:
        raise ValueError(f"The training examples of '{task.name}' have no labels.")
    if "dev" in task.splits:
        dev = task.read("dev", data)
        if dev.gold is None:
            raise ValueError(f"The dev examples of '{task.name}' have no labels to choose by.")
    else:
        train, dev = _cut(task, train, dev_share)
        notes.append(
            f"There is no dev split: {len(dev):,} of the training examples, the same in every run, "
            "are kept out of the training to choose by."
        )
    return _some(train, limit), _some(dev, limit)


def _cut(task, train, share):
    """`(train, dev)`: dev is a share of the training examples, drawn from a fixed seed."""
    if not 0 < share < 1:
        raise ValueError(f"dev_share={share} has to be between 0 and 1.")
    if len(train) < 2:
        raise ValueError(f"'{task.name}' has one example; no dev split can be cut off it.")
    rows = np.random.default_rng(0).permutation(len(train)).tolist()
    cut = min(max(round(share * len(rows)), 1), len(rows) - 1)
    return train.take(sorted(rows[cut:])), train.take(sorted(rows[:cut]))


def _some(examples, limit):
    if limit is None or len(examples) <= limit:
        return examples
    rows = np.random.default_rng(0).permutation(len(examples))[:limit]
    return examples.take(sorted(rows.tolist()))


def _test(task, data, limit, notes):
    """The test set, `None` where it cannot be had: an official one may be withheld."""
    if "test" not in task.splits:
        return None
    try:
        return _some(task.read("test", data), limit)
    except ValueError as error:
        if task.has_own_files:
            raise
        notes.append(f"Nothing is predicted for the test set: {error}")
        return None


def _hash(*splits):
    digest = hashlib.sha256()
    for examples in splits:
        columns = examples.x if isinstance(examples.x, tuple) else (examples.x,)
        for column in (*columns, examples.y):
            for value in column:
                digest.update(repr(value).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _sample_weights(task, y, class_weights):
    """What each training example counts, `None` for all the same."""
    if class_weights is None:
        return None
    if task.head != "text_classifier":
        raise ValueError(f"class_weights are for classes of texts, and '{task.name}' has none.")
    if class_weights == "balanced":
        names, counts = np.unique(y, return_counts=True)
        class_weights = dict(zip(names.tolist(), len(y) / (len(names) * counts)))
    elif not isinstance(class_weights, dict):
        raise ValueError(f'class_weights={class_weights!r} has to be a dict, or "balanced".')
    for name, weight in class_weights.items():
        if name not in task.labels:
            raise ValueError(
                f"class_weights has a class '{name}'; those of '{task.name}' are "
                f"{', '.join(task.labels)}."
            )
        if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ValueError(f"class_weights['{name}'] is {weight!r}; pass a number from 0.")
    return [float(class_weights.get(name, 1.0)) for name in y]


# === The runs ===


@dataclass
class _Search:
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
        if os.path.isfile(self.output):
            raise ValueError(f"'{self.output}' is a file; name a folder.")
        if not os.path.isdir(self.output) or not os.listdir(self.output):
            return
        if not os.path.exists(settings):
            raise ValueError(f"The folder '{self.output}' holds other things; name another one.")
        # What was stopped in its first epochs holds nothing.
        runs = self.path("runs")
        if self.overwrite or not os.path.isdir(runs) or not os.listdir(runs):
            self.overwrite = True
            return
        there = read_json(settings)
        for name, value in self.shared.items():
            if there.get(name) != value:
                if isinstance(value, dict) or name == "data":
                    difference = f"another {name}" if name != "data" else "other examples"
                else:
                    difference = f"{name} {there.get(name)!r}, not {value!r}"
                raise ValueError(
                    f"The runs in '{self.output}' are of {difference}; name another folder, or "
                    "overwrite them."
                )

    def begin(self):
        """Make the folder; called when a model is there and all of its input is read."""
        if self.overwrite:
            shutil.rmtree(self.output, ignore_errors=True)
            self.overwrite = False
        os.makedirs(self.path("runs"), exist_ok=True)
        text = json.dumps(self.shared, ensure_ascii=False, indent=1)
        write_text(self.path("settings.json"), text + "\n")

    def done(self):
        """The runs that are done, in the order of the grid: a list of dicts."""
        found = map(read_json, glob.glob(os.path.join(glob.escape(self.path("runs")), "*.json")))
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
        said = "batch {batch_size}, rate {learning_rate}, epochs {epochs}, seed {seed}"
        said = said.format(**point)
        title, name = f"{title}: {said}", said.replace(", ", "-").replace(" ", "")
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
            record |= {key: self.shared[key] for key in ("preset", "lora_rank", "precision")}
            _write_json(os.path.join(preset, RECORD), record)
        # From here on the run is done.
        _write_json(self.path("runs", f"{name}.json"), run)
        watch.forget()
        best = self.best(self.done())["run"]
        for other in others:
            if other["run"] != best:
                shutil.rmtree(self.path("runs", other["run"]), ignore_errors=True)
        value = run["scores"].get(self.task.main_metric)
        said = "diverged" if value is None else f"{self.task.main_metric} {value:.4f}"
        self.say(f"{said} on dev, {report.duration(run['seconds'])}")

    def train_one(self, point, folder):
        """A model that is trained at a point of the grid, and the `_Watch` that saw it."""
        gc.collect()  # The model before, with its optimizer.
        self.check_interrupt()
        keras.utils.set_random_seed(point["seed"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "New, random weights")
            model = self.task.model_class.from_preset(
                self.shared["preset"], **{**self.task.model_settings(), **self.arguments}
            )
        if self.shared["lora_rank"] is not None:
            model.backbone.enable_lora(self.shared["lora_rank"])
        training = (self.train.x, self.train.y, self.weights, point["batch_size"])
        steps = int(model.preprocessor.batches(*training).cardinality())
        for examples in (self.dev, self.test):  # What is wrong shows before anything is written.
            if examples is not None:
                model.preprocessor.sorted_batches(examples.x)
        total = steps * point["epochs"]
        warmup = int(total * self.task.settings.warmup)
        model.compile(AdamW(LinearDecay(point["learning_rate"], total, warmup)))
        self.begin()
        watch = _Watch(self, folder, point, steps)
        start = watch.go_on(model)
        if start:
            self.say(f"It goes on after epoch {start}.")
        # Batches in another order than those of the first epochs.
        keras.utils.set_random_seed(point["seed"] + 1_000_003 * start)
        in_line = sys.stdout.isatty() or "ipykernel" in sys.modules
        if not watch.is_over():
            model.fit(
                self.train.x,
                self.train.y,
                sample_weight=self.weights,
                batch_size=point["batch_size"],
                epochs=point["epochs"],
                initial_epoch=start,
                callbacks=[watch],
                verbose=(1 if in_line else 2) if self.verbose else 0,
            )
        watch.bring_back(model)
        return model, watch

    # === What comes out ===

    def finish(self, notes):
        """Take the best model, let it answer, and write all that is asked for."""
        runs = self.done()
        best = self.best(runs)
        if self.rank(best) == -math.inf:
            raise ValueError(
                f"All runs diverged: their losses are no numbers; give lower learning rates than "
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
            "metric": self.task.main_metric,
            "best": {name: best[name] for name in ("run", *_GRID, "epoch")},
            "scores": scores,
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
        write_text(self.path("results.csv"), _csv(runs))
        _write_json(self.path("results.json"), results)
        return results

    def take_model(self, best):
        """Bring the best run's model to its place."""
        directory, made = self.path("model"), self.path("runs", best["run"], "model")
        if os.path.isdir(made):
            shutil.rmtree(directory, ignore_errors=True)
            os.rename(made, directory)
        path = os.path.join(directory, RECORD)
        if not os.path.exists(path) or read_json(path)["run"] != best["run"]:
            raise ValueError(
                f"The model of the best run, {best['run']}, is no longer in '{self.output}'; "
                f"remove '{self.path('runs', best['run'] + '.json')}' to make it again."
            )
        for other in os.scandir(self.path("runs")):
            if other.is_dir():
                shutil.rmtree(other)
        return directory

    def draw(self, runs, best, dev_predictions, notes):
        """The pictures; without matplotlib a note."""
        figures = {}
        try:
            figures["learning_curve.png"] = finetuning_curves(
                runs, best["run"], self.task.main_metric
            )
            if self.task.head == "text_classifier":
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
        _write_json(path, read_json(path) | {"scores": results["scores"], "best": best})
        is_local = os.path.isdir(os.path.expanduser(base))
        name = os.path.basename(os.path.normpath(base)) if is_local else base
        adapters = self.shared["lora_rank"]
        card = {
            "description": f"{name}, fine-tuned on {task.title}.",
            "base": name,
            "data": f"{task.title}, {results['examples']['train']:,} examples"
            + (f" ({task.source.page})" if task.source.page else "")
            + f"; {best['epoch']} epochs of batches of {best['batch_size']} at a learning rate of "
            f"{best['learning_rate']:g}, seed {best['seed']}"
            + (f", adapters of rank {adapters}" if adapters else ""),
            "scores": {key: round(value, 4) for key, value in results["scores"].items()},
            "scored_on": f"{task.title}, {results['examples']['dev']:,} dev examples",
        }
        if task.source.dataset:
            card["datasets"] = [task.source.dataset[0]]
        if len(results["runs"]) > 1:
            card["limits"] = (
                f"It is the best of {len(results['runs'])} runs on the examples that it is scored "
                "on, so that the scores may be a little too good."
            )
        # As far as it is the same on other machines.
        place = f"{os.path.basename(os.path.normpath(self.output))}/model"
        title = f"{name.rpartition('/')[2]}-{task.name}"
        write_card(directory, place, card, title)


class _Watch(ScoreCallback):
    """Scores each epoch, and keeps what a run needs to go on.

    Args:
        search: a `_Search`.
        folder: string. Of this run.
        point: dict. Its point of the grid.
        steps: int. Batches of an epoch.
    """

    def __init__(self, search, folder, point, steps):
        self.search, self.folder, self.point = search, folder, point
        self.patience = search.shared["early_stopping"]
        self.every = max(steps // _POINTS, 1)
        self.history = []
        self.best = []  # With patience, the weights of the best epoch.
        self.unsaved = 0.0
        super().__init__(self._scores)

    def _scores(self, model):
        task, dev = self.search.task, self.search.dev
        return task.score(dev, task.predict(model, dev, self.point["batch_size"]))

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

    def on_epoch_begin(self, epoch, logs=None):
        self._start, self._losses, self._sum = time.monotonic(), [], (0, 0.0)

    def on_train_batch_end(self, batch, logs=None):
        self.search.check_interrupt()
        # The loss in the logs is the mean since the epoch began; to read it waits for the device.
        count = batch + 1
        if count % self.every == 0:
            total = float(logs["loss"]) * count
            before, seen = self._sum
            self._losses.append([count, _finite((total - seen) / (count - before))])
            self._sum = count, total

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, "loss": _finite(logs["loss"]), "scores": {}}
        if row["loss"] is not None:
            before = set(logs)
            super().on_epoch_end(epoch, logs)
            names = [name for name in logs if name not in before]
            scores = {name.removeprefix(self.prefix): _finite(logs[name]) for name in names}
            row["scores"] = scores if None not in scores.values() else {}
        row["seconds"] = round(time.monotonic() - self._start, 2)
        row["losses"] = self._losses
        self.history.append(row)
        is_last = epoch + 1 == self.point["epochs"]
        if self.patience and self.kept() is row:
            self.best = list(map(_array, self.model.weights))
        if self.is_over():
            self.model.stop_training = True
            return
        self.unsaved += row["seconds"]
        if self.unsaved >= KEEP_AFTER and not is_last:
            self._save(epoch + 1)
            self.unsaved = 0.0

    # === The state of a run that is not done ===

    def _save(self, epoch):
        os.makedirs(self.folder, exist_ok=True)
        save_checkpoint(self.folder, self.model, epoch, self.best, history=self.history)

    def go_on(self, model):
        """Take the state that an earlier call left, and return after which epoch that is."""
        path = find_checkpoint(self.folder)
        if path is None:
            return 0
        model.optimizer.build(model.trainable_variables)
        facts, self.best = load_checkpoint(path, model)
        self.history = facts["history"]
        return facts["step"]

    def bring_back(self, model):
        """With patience, take the weights of the best epoch."""
        for weight, value in zip(model.weights, self.best):
            weight.assign(value)

    def forget(self):
        """Remove the state; a model that was saved stays."""
        path = find_checkpoint(self.folder)
        if path is not None:
            os.remove(path)
        if os.path.isdir(self.folder) and not os.listdir(self.folder):
            os.rmdir(self.folder)


def _array(variable):
    return keras.ops.convert_to_numpy(variable.value)


def _finite(value):
    """A float, `None` for what JSON cannot hold."""
    value = float(value)
    return value if math.isfinite(value) else None


def _write_json(path, values):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_text(path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")


def _csv(runs):
    """The runs as a table, one a line."""
    scores = list(dict.fromkeys(name for run in runs for name in run["scores"]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", *_GRID, "epoch", "seconds", *scores])
    for run in runs:
        cells = [run[name] for name in ("run", *_GRID, "epoch", "seconds")]
        writer.writerow([*cells, *(run["scores"].get(name, "") for name in scores)])
    return file.getvalue()

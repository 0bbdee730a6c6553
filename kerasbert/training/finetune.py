"""`finetune`: grid search over hyperparameters and seeds.

Files in the output folder, each written atomically:

    results.json, results.csv    all runs with their scores; the JSON also has published scores
    runs/<run>.json              the results of a finished run, which is not repeated
    model/                       the best model, a preset with a model card
    predictions/<split>/         its predictions, in submission format
    learning_curve.png, confusion.png
    settings.json                settings shared by all runs
"""

import contextlib
import glob
import hashlib
import json
import math
import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from kerasbert import backend, presets
from kerasbert.base.aliases import AnyPath
from kerasbert.base.files import in_use, names_in, output_folder, remove
from kerasbert.base.strict_json import to_json
from kerasbert.heads.base.data import written
from kerasbert.tasks import builtin_tasks, get_task
from kerasbert.text.names import known_name
from kerasbert.training.finetune_results import write_results
from kerasbert.training.finetune_settings import MIN_STEPS, FinetuneSettings
from kerasbert.training.grid_search import PARTS, GridSearch, run_name, runs_in
from kerasbert.training.recording import lasting_interrupt
from kerasbert.training.settings import takes_settings
from kerasbert.training.trackers import tracker_of


@takes_settings(FinetuneSettings)
def finetune(
    task: Any, preset: AnyPath, output: AnyPath, *, settings: FinetuneSettings
) -> dict[str, Any]:
    """Fine-tune a preset with each setting of a grid, and keep the best model on dev.

    Runs train as in BERT's paper, with `kerasbert.optimizers.AdamW`, linear warmup and decay to 0,
    on batches of similar length. Repeat the call to resume it after the last complete epoch, to the
    same weights; more values or seeds add runs.

    Args:
        task: string or `kerasbert.tasks.Task`. A name from `kerasbert.tasks.builtin_tasks()`, or a
            task from `kerasbert.tasks.file_task`.
        preset: string, as for `from_preset`.
        output: the output folder.

    Returns:
        The content of `results.json`: a dict of `task`, `preset`, `method`, `metric` (name of the
        main score), `best` (run), `kept` (names of the runs in the saved model), `scores` (of the
        saved model on dev), `classes` (on dev, see `Task.scores_by_class`), `test_scores` (`None`
        if the test set has no labels), `grid` (means over seeds), `runs`, `published`, `examples`,
        `model` (folder), `predictions` (paths), `pictures` (paths) and `notes`. Calls with `part`,
        and launched processes that end before others, return only `task`, `preset`, `method`,
        `metric`, `best` and `runs`.

    Raises:
        BlockingIOError: if another process writes to the folder or a part.
        ValueError: if data, preset or settings are unsuitable, before anything is written.

    Sources: Devlin et al. 2019, arXiv 1810.04805, appendix A.3; Hu et al. 2021, arXiv 2106.09685
    (LoRA); Tunstall et al. 2022, arXiv 2209.11055 (SetFit).
    """
    place = output_folder(output, "output")
    index, count = backend.launched()
    if count == 1:
        return _in_folder(place, settings)[0]
    if settings.part is not None:
        raise ValueError(
            f"part={settings.part[0]}/{settings.part[1]} cannot be used with a launcher, whose "
            f"{count} processes run a part each; omit one of the two."
        )
    own = replace(settings, part=(index + 1, count))
    results, is_last = _in_folder(place, own, launched=True)
    while is_last:
        try:
            return _in_folder(place, settings, launched=True)[0]
        # Another process finished at the same time, and is combining the parts.
        except BlockingIOError:
            time.sleep(1)
    return results


def _in_folder(place, settings, launched=False):
    """Call `_finetune` while this process has a lock on the folder."""
    parts, folder = os.path.join(place, PARTS), place
    if settings.part is not None:
        folder = os.path.join(parts, "{}-of-{}".format(*settings.part))
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_use(folder, "finetune"))
        others = []
        if settings.part is None:
            others = [os.path.join(parts, name) for name in names_in(parts)]
            # Without parts, another launched process has combined them; keep its results.
            settings = replace(
                settings, overwrite=settings.overwrite and bool(others or not launched)
            )
        for part in others:
            stack.enter_context(in_use(part, "finetune"))
        results = _finetune(place, folder, others, settings, launched)
    # The folder may be missing, or have parts of other processes.
    with contextlib.suppress(OSError):
        os.rmdir(parts)
    return results


def _finetune(place, output, parts, settings, launched):
    """Do the runs and write the results.

    Args:
        place: the folder of all runs.
        output: the folder of all runs, or of the part to do.
        parts: list of paths. Folders of the parts to take over.
        launched: whether a launcher started several processes.

    Returns:
        `(results, is_last)`: the results, and whether all parts are done.
    """
    task, preset = settings.task, settings.preset
    task = get_task(task) if isinstance(task, str) else task
    presets.check(preset)
    if settings.record_rate:
        presets.record_finetuning_learning_rate(preset)
    notes = []
    task = settings.of(task)
    if settings.learning_rates is None:
        task = _with_rate(task, preset, settings.method, notes)
    train, dev = _train_and_dev(task, settings.data, settings.dev_share, notes)
    test = _test(task, settings.data, notes)
    if settings.method == "setfit":
        _check_setfit(task, train)
    train, dev, test = _limited(
        {"training": train, "dev": dev, "test": test}, settings.limit, notes
    )
    _check_classes(task, train, settings.method)
    model = settings.model or {}
    shared = {
        "task": task.as_dict() | {"settings": None},
        "preset": os.fspath(preset),
        **settings.compared(),
        "warmup": task.settings.warmup,
        "sequence_length": task.settings.sequence_length,
        "model": model,
        "data": _hash(train, dev),
        "backend": backend.name(),
    }
    given = {"dtype": settings.precision, "long": settings.long}
    given = {name: value for name, value in given.items() if value is not None}
    with lasting_interrupt() as check:
        search = GridSearch(
            task=task,
            output=output,
            shared=json.loads(to_json(shared)),
            train=train,
            weights=_sample_weights(task, train.y, settings.class_weights),
            dev=dev,
            test=test,
            arguments=model | given,
            overwrite=settings.overwrite,
            verbose=settings.verbose,
            check_interrupt=check,
            callbacks=tuple(settings.callbacks),
            tracker=tracker_of(settings.track, place),
        )
        search.check_output()
        grid = _with_enough_steps(task, len(train), settings, notes)
        points = [{**point, "seed": seed} for point in grid for seed in settings.seeds]
        names = {run_name(point) for point in points}
        count = len(names if settings.overwrite else names | runs_in(place))
        if settings.keep > count:
            raise ValueError(
                f"keep={settings.keep} is more than the {count} runs of the search; add seeds or "
                "other values, or keep fewer."
            )
        if settings.part is not None:
            number, count = settings.part
            points = points[number - 1 :: count]
            if not points and not launched:
                raise ValueError(
                    f"part={number}/{count} is empty: there are fewer than {number} runs; use "
                    "fewer parts."
                )
            if not settings.overwrite:
                there = runs_in(place)
                points = [point for point in points if run_name(point) not in there]
        for part in parts:
            # `overwrite` removes parts, except those of launched processes.
            if launched or not settings.overwrite:
                search.take_over(part)
            remove(part)
        share = "" if settings.part is None else " of part {}/{}".format(*settings.part)
        search.say(
            f"{task.title}: {len(train):,} training examples, {len(dev):,} dev examples, "
            f"{len(points)} run{'' if len(points) == 1 else 's'}{share}."
        )
        for note in notes:
            search.say(note)
        with search.tracker.run("search", search.parameters()):
            for number, point in enumerate(points, start=1):
                search.run(point, f"Run {number} of {len(points)}")
            if settings.part is None:
                results = write_results(search, notes)
                scores = results["scores"] | {
                    f"test_{name}": value for name, value in (results["test_scores"] or {}).items()
                }
                search.tracker.scores(scores)
                search.tracker.artifacts(results["pictures"], results["model"])
        if settings.part is not None:
            found = [
                runs_in(one) for one in glob.glob(f"{glob.escape(place)}/{PARTS}/*-of-{count}")
            ]
            earlier = set() if settings.overwrite else runs_in(place)
            return search.summary(), names <= earlier.union(*found)
        if settings.record_rate:
            rate = _best_rate(results["grid"], task.mode)
            presets.record_finetuning_learning_rate(preset, rate)
            search.say(f"Recorded the learning rate {rate:g} in '{preset}'.")
        return results, True


# === Inputs ===


def _with_rate(task, preset, method, notes):
    """Return the task with the preset's learning rate, unless it has its own."""
    rate = None if method == "frozen" else presets.finetuning_learning_rate(preset)
    official = builtin_tasks().get(task.name)
    rates = task.settings.learning_rates
    is_own = rates is not None and (official is None or rates != official.settings.learning_rates)
    is_own = is_own and method != "setfit"
    if rate is None or is_own:
        return task
    notes.append(f"The learning rate is {rate:g}, as recorded in '{preset}'.")
    return replace(task, settings=replace(task.settings, learning_rates=(float(rate),)))


def _with_enough_steps(task, count, settings, notes):
    """Return the task's grid; points without set epochs have at least `min_steps` steps."""
    grid, said = task.settings.grid(), {}
    trains = settings.method in ("full", "lora") or not task.has_one_class
    for point in grid:
        size, epochs = point["batch_size"], point["epochs"]
        steps = -(-count // size)
        few = f"On {count:,} training examples, epochs={epochs} with batches of {size} takes only "
        few += f"{steps * epochs} steps"
        if task.settings.epochs is None and steps * epochs < settings.min_steps:
            point["epochs"] = epochs = -(-settings.min_steps // steps)
            said[size, epochs] = (
                f"{few}, so the default is epochs={epochs}, {steps * epochs} steps (min_steps="
                f"{settings.min_steps})."
            )
        elif task.settings.epochs is not None and trains and steps * epochs < MIN_STEPS:
            said[size, epochs] = (
                f"{few}. With fewer than about {MIN_STEPS}, models often stay near chance, above "
                "all on text pairs; use more epochs or smaller batches."
            )
    notes += said.values()
    return grid


def _best_rate(grid, mode):
    """Return the learning rate with the best mean score."""
    means = {}
    for row in grid:
        if row["mean"] is not None:
            means.setdefault(row["learning_rate"], []).append(row["mean"])
    return (min if mode == "min" else max)(means, key=lambda rate: np.mean(means[rate]))


def _check_setfit(task, train):
    """Raise if SetFit does not support the task."""
    if not task.has_one_class:
        what = "is multi-label" if task.is_multi_label else f"needs a {task.head}"
        raise ValueError(
            f"method='setfit' is for one class per text, but '{task.name}' {what}; use 'full', "
            "'lora' or 'frozen'."
        )
    if isinstance(train.x, tuple):
        raise ValueError(
            f"method='setfit' is for single texts, but '{task.name}' has text pairs; use 'full', "
            "'lora' or 'frozen'."
        )


def _check_classes(task, train, method):
    """Raise for a logistic regression on one class."""
    needs = {
        "setfit": "SetFit needs two classes",
        "frozen": "logistic regression needs two classes",
    }
    if not task.has_one_class or method not in needs:
        return
    if len(set(map(str, train.y))) == 1:
        raise ValueError(
            f"All {len(train)} training examples are of the class {train.y[0]!r}; {needs[method]}. "
            "Label others too, or pass a dev file: without one, some examples are held out."
        )


def _train_and_dev(task, data, dev_share, notes):
    if "train" not in task.splits:
        raise ValueError(f"The task '{task.name}' has no training examples; pass a training file.")
    train = task.read("train", data)
    if train.y is None:
        raise ValueError(f"The training examples of '{task.name}' have no labels; add them.")
    if "dev" in task.splits:
        dev = task.read("dev", data)
        if dev.gold is None:
            raise ValueError(f"The dev examples of '{task.name}' have no labels; add them.")
    else:
        if not 0 < dev_share < 1:
            raise ValueError(f"dev_share={dev_share} must be between 0 and 1.")
        train, dev = task.cut(train, dev_share)  # With a fixed seed.
        notes.append(
            f"There is no dev split: {len(dev):,} training examples, the same in every run, are "
            "held out for validation."
        )
    return train, dev


def _limited(splits, limit, notes):
    """Draw at most `limit` examples of each split, which may be `None`."""
    parts, said = [], []
    for name, examples in splits.items():
        if limit is not None and examples is not None and len(examples) > limit:
            said.append(f"{limit:,} of the {len(examples):,} {name} examples")
            rows = np.random.default_rng(0).permutation(len(examples))[:limit]
            examples = examples.take(sorted(rows.tolist()))
        parts.append(examples)
    if said:
        notes.append(
            f"With limit={limit}, only {', '.join(said)} are used; scores and predictions cover no "
            "others."
        )
    return parts


def _test(task, data, notes):
    """Return the test set, or `None` if it is unpublished."""
    if "test" not in task.splits:
        return None
    try:
        return task.read("test", data)
    except ValueError as error:
        if task.has_own_files:
            raise
        notes.append(f"The test set has no predictions: {error}")
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
    """Return each training example's weight, or `None`."""
    if class_weights is None:
        return None
    if not task.has_one_class:
        what = "is multi-label" if task.is_multi_label else "has none"
        raise ValueError(
            f"class_weights need one class per text, but '{task.name}' {what}; omit them."
        )
    if class_weights == "balanced":
        names, counts = np.unique(y, return_counts=True)
        class_weights = dict(zip(names.tolist(), len(y) / (len(names) * counts)))
    elif not isinstance(class_weights, dict):
        raise ValueError(f'class_weights={class_weights!r} must be a dict or "balanced".')
    names = {name: known_name(written(name), task.labels) for name in class_weights}
    for name, weight in class_weights.items():
        if names[name] is None:
            raise ValueError(
                f"class_weights has the unknown class '{name}'; the classes of '{task.name}' are "
                f"{', '.join(task.labels)}."
            )
        if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ValueError(
                f"class_weights['{name}']={weight!r} must be a finite number, at least 0."
            )
    weights = {names[name]: float(weight) for name, weight in class_weights.items()}
    return [weights.get(name, 1.0) for name in y]

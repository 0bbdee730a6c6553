"""`finetune`: the one loop of all tasks: a grid of settings and seeds, and the best on dev.

What it leaves in its folder, each file whole or not there:

    results.json, results.csv    all runs and their scores, beside the published ones
    runs/<run>.json              one run: what is here is not done again
    model/                       the best one, a preset with its model card
    predictions/<split>/         what it says, in the form that is handed in
    learning_curve.png, confusion.png
    settings.json                what all runs share
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kerasbert import backend, presets
from kerasbert._json import to_json
from kerasbert.data.names import known_name
from kerasbert.files import in_use, names_in, output_folder, remove
from kerasbert.tasks import builtin_tasks, get_task
from kerasbert.tasks.tables import written
from kerasbert.training.recording import lasting_interrupt
from kerasbert.training.search import PARTS, Search, run_name, runs_in
from kerasbert.training.settings import FinetuneSettings, takes_settings

if TYPE_CHECKING:
    from typing import Any

    from kerasbert._typing import AnyPath


@takes_settings(FinetuneSettings)
def finetune(
    task: Any, preset: AnyPath, output: AnyPath, *, settings: FinetuneSettings
) -> dict[str, Any]:
    """Fine-tune a preset on a task with all settings of a grid, and keep the best on dev.

    Every run trains as the paper does: `kerasbert.optimizers.AdamW`, whose rate rises over the
    warmup and falls to 0, on batches of similar length. If it is stopped, the same call goes on:
    runs that are done stay, and the interrupted one resumes after its last complete epoch, with
    the same weights as without the interruption. More values or seeds in a later call add runs.

    Args:
        task: string or `kerasbert.tasks.Task`. `kerasbert.tasks.builtin_tasks()` has the names,
            `kerasbert.tasks.file_task` makes one of your own files.
        preset: string. Whatever `from_preset` takes.
        output: string. The folder for all that comes out.
        data: string. The folder with the task's official files; `None` asks the `datasets`
            library.
        batch_sizes, learning_rates, epochs: numbers or lists of them, the grid; `None` are the
            task's own, but the rate is the one that the preset records, where it does: the papers'
            are those of their large encoders. Each number of epochs is a run of its own, as the
            rate falls to its end.
        seeds: int or list of ints. Each point of the grid runs with every seed.
        warmup: float. The share of the steps in which the rate rises.
        sequence_length: int. The most tokens of a row.
        early_stopping: int. Stop after this many epochs without a better score, and keep the
            best epoch; `None` keeps the last one.
        class_weights: dict of class to what its examples count, or "balanced", which counts all
            classes the same. Of text classifiers.
        method: string. "full" trains all weights; "lora" adapters of the encoder and the head
            (at higher rates: 1e-4 to 1e-3), and the saved model holds their sum; "frozen" the head
            alone, of classes of texts by logistic regression on the vectors of `BertTextEmbedder`.
            "setfit" is for few labels: it trains that embedder on pairs of texts, to be near each
            other where they are of one class, before the regression. By default "lora" with a
            `lora_rank`, and else "full". Of "frozen" and "setfit" what is not given of the grid is
            the method's, in place of the task's.
        lora_rank: int. The rank of the adapters, of "lora" alone; 8 by default.
        pairs: int or string. Of "setfit" alone: how many pairs for each text, of its class and of
            others each, 20 by default; or "oversampling", "undersampling" or "unique", which take
            them from all pairs, see `kerasbert.training.setfit.contrastive_pairs`.
        precision: string. "float32", "mixed_bfloat16" or "mixed_float16"; `None` is Keras' own
            setting.
        model: dict. Further arguments of `from_preset`, such as `{"doc_stride": 64}`.
        dev_share: float. The share of the training examples to choose by, where a task has no dev
            split; always the same ones.
        limit: int. The most examples of each split, drawn at random, to try things out.
        record_rate: bool. Write the best of the learning rates, by the mean over all else, into
            the preset, a directory of ours: later calls, and `compile` of models from it, take it.
        part: tuple or string. `(3, 16)` or "3/16": of all runs only the third of 16 parts, into a
            folder of its own in `output`, so that parts run at once, on any machines that see it.
            The same call without a part then takes their runs over, does what is missing, and
            writes what comes out. Processes that a launcher started (`torchrun`, `srun`, as for
            `pretrain`) take a part each, and the last one does that.
        overwrite: bool. Remove the runs that are in the folder.
        verbose: bool. Whether to show progress.

    Returns:
        What `results.json` holds: a dict of `task`, `preset`, `method`, `metric` (the main one),
        `best` (the best run), `scores` (of the saved model on dev), `classes` (on dev, see
        `Task.scores_by_class`), `test_scores` (`None` without labels), `grid` (the mean over
        seeds of each of its points), `runs`, `published`, `examples`, `model` (its directory),
        `predictions` (paths), `pictures` (paths) and `notes`. Of a part only `task`, `preset`,
        `method`, `metric`, `best` and `runs`; of a launcher's processes those that end while
        others still run have that, too.

    Raises:
        BlockingIOError: where another call fills the folder, or a part that is to be taken over.
        ValueError: for data, a preset or settings that do not fit, before anything is written.

    Sources: Devlin et al. 2019, arXiv 1810.04805, appendix A.3; Hu et al. 2021, arXiv 2106.09685
    (LoRA); Tunstall et al. 2022, arXiv 2209.11055 (SetFit).
    """
    place = output_folder(output, "output")
    index, count = backend.launched()
    if count == 1:
        return _in_folder(task, preset, place, settings)[0]
    if settings.part is not None:
        raise ValueError(
            f"part={settings.part[0]}/{settings.part[1]}, and a launcher started {count} processes "
            "that take a part each; leave one of the two out."
        )
    own = replace(settings, part=(index + 1, count))
    results, is_last = _in_folder(task, preset, place, own, launched=True)
    while is_last:
        try:
            return _in_folder(task, preset, place, settings, launched=True)[0]
        except BlockingIOError:  # Another one, which ended with this one, is about to, or at it.
            time.sleep(1)
    return results


def _in_folder(task, preset, place, settings, launched=False):
    """`(results, is_last)`, with the folder for this process alone; see `_finetune`."""
    parts, folder = os.path.join(place, PARTS), place
    if settings.part is not None:
        folder = os.path.join(parts, "{}-of-{}".format(*settings.part))
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_use(folder, "finetune"))
        others = []
        if settings.part is None:
            others = [os.path.join(parts, name) for name in names_in(parts)]
            # Where another process was the last one, too, all is put together already.
            settings = replace(
                settings, overwrite=settings.overwrite and bool(others or not launched)
            )
        for part in others:
            stack.enter_context(in_use(part, "finetune"))
        results = _finetune(task, preset, place, folder, others, settings, launched)
    with contextlib.suppress(OSError):  # There was none, or another one is at work by now.
        os.rmdir(parts)
    return results


def _finetune(task, preset, place, output, parts, settings, launched):
    """Do the runs and write what comes out.

    Args:
        place: string. The folder of all runs.
        output: string. That, or the one of the part that the settings ask for.
        parts: paths of the parts whose runs are taken over.
        launched: bool. Whether processes of a launcher do it together.

    Returns:
        `(results, is_last)`: and whether the runs of all parts are done.
    """
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
    names = ("early_stopping", "class_weights", "method", "lora_rank", "pairs", "precision")
    model = settings.model or {}
    shared = {
        "task": task.as_dict() | {"settings": None},
        "preset": os.fspath(preset),
        "warmup": task.settings.warmup,
        "sequence_length": task.settings.sequence_length,
        **{name: getattr(settings, name) for name in names},
        "model": model,
        "data": _hash(train, dev),
        "backend": backend.name(),
    }
    dtype = {} if settings.precision is None else {"dtype": settings.precision}
    with lasting_interrupt() as check:
        search = Search(
            task=task,
            output=output,
            shared=json.loads(to_json(shared)),
            train=train,
            weights=_sample_weights(task, train.y, settings.class_weights),
            dev=dev,
            test=test,
            arguments=model | dtype,
            overwrite=settings.overwrite,
            verbose=settings.verbose,
            check_interrupt=check,
        )
        search.check_output()
        points = [
            {**point, "seed": seed} for point in task.settings.grid() for seed in settings.seeds
        ]
        names = {run_name(point) for point in points}
        if settings.part is not None:
            number, count = settings.part
            points = points[number - 1 :: count]
            if not points and not launched:
                raise ValueError(
                    f"part={number}/{count} has no run: all together are fewer than {number}."
                )
            if not settings.overwrite:
                there = runs_in(place)
                points = [point for point in points if run_name(point) not in there]
        for part in parts:
            # Of a launcher's processes the parts are new, also where they overwrite what was there.
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
        for number, point in enumerate(points, start=1):
            search.run(point, f"Run {number} of {len(points)}")
        if settings.part is not None:
            found = [
                runs_in(one) for one in glob.glob(f"{glob.escape(place)}/{PARTS}/*-of-{count}")
            ]
            earlier = set() if settings.overwrite else runs_in(place)
            return search.summary(), names <= earlier.union(*found)
        results = search.finish(notes)
        if settings.record_rate:
            rate = _best_rate(results["grid"], task.mode)
            presets.record_finetuning_learning_rate(preset, rate)
            search.say(f"The learning rate {rate:g} is recorded in '{preset}'.")
        return results, True


# === What is given ===


def _with_rate(task, preset, method, notes):
    """The task with the preset's learning rate in place of a paper's or SetFit's, or of none."""
    rate = None if method == "frozen" else presets.finetuning_learning_rate(preset)
    official = builtin_tasks().get(task.name)
    rates = task.settings.learning_rates
    is_own = rates is not None and (official is None or rates != official.settings.learning_rates)
    is_own = is_own and method != "setfit"
    if rate is None or is_own:
        return task
    notes.append(f"The learning rate {rate:g} is the one that '{preset}' records.")
    return replace(task, settings=replace(task.settings, learning_rates=(float(rate),)))


def _best_rate(grid, mode):
    """The learning rate of the best mean score over all other settings that it ran with."""
    means = {}
    for row in grid:
        if row["mean"] is not None:
            means.setdefault(row["learning_rate"], []).append(row["mean"])
    return (min if mode == "min" else max)(means, key=lambda rate: np.mean(means[rate]))


def _check_setfit(task, train):
    """Refuse what SetFit does not train on."""
    if not task.has_one_class:
        what = f"is for a {task.head}"
        if task.head == "text_classifier":
            what = "has any number of classes per text"
        raise ValueError(
            f"method='setfit' is for one class per text, and '{task.name}' {what}; use 'full', "
            "'lora' or 'frozen'."
        )
    if isinstance(train.x, tuple):
        raise ValueError(
            f"method='setfit' compares single texts, and '{task.name}' has pairs of them; use "
            "'full', 'lora' or 'frozen'."
        )


def _check_classes(task, train, method):
    """Refuse a single class where a regression is fitted, which has nothing to tell apart."""
    needs = {
        "setfit": "SetFit compares texts of two classes or more",
        "frozen": "a regression tells two classes or more apart",
    }
    if not task.has_one_class or method not in needs:
        return
    if len(set(map(str, train.y))) == 1:
        raise ValueError(
            f"All {len(train)} training examples are of the class {train.y[0]!r}; {needs[method]}. "
            "Label others too, or name a dev file: without one some are kept out of the training."
        )


def _train_and_dev(task, data, dev_share, notes):
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
    return train, dev


def _cut(task, train, share):
    """`(train, dev)`: dev is a share of the training examples, drawn from a fixed seed."""
    if not 0 < share < 1:
        raise ValueError(f"dev_share={share} has to be between 0 and 1.")
    return task.cut(train, share)


def _limited(splits, limit, notes):
    """The splits, `None` for none, of which no more than so many examples are drawn."""
    parts, said = [], []
    for name, examples in splits.items():
        if limit is not None and examples is not None and len(examples) > limit:
            said.append(f"{limit:,} of the {len(examples):,} {name} examples")
            rows = np.random.default_rng(0).permutation(len(examples))[:limit]
            examples = examples.take(sorted(rows.tolist()))
        parts.append(examples)
    if said:
        notes.append(
            f"With limit={limit}, {', '.join(said)} are drawn: scores and predictions are of "
            "these alone."
        )
    return parts


def _test(task, data, notes):
    """The test set, `None` where it cannot be had: an official one may be withheld."""
    if "test" not in task.splits:
        return None
    try:
        return task.read("test", data)
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
    if not task.has_one_class:
        what = "any number per text" if task.head == "text_classifier" else "none"
        raise ValueError(f"class_weights are for classes of texts, and '{task.name}' has {what}.")
    if class_weights == "balanced":
        names, counts = np.unique(y, return_counts=True)
        class_weights = dict(zip(names.tolist(), len(y) / (len(names) * counts)))
    elif not isinstance(class_weights, dict):
        raise ValueError(f'class_weights={class_weights!r} has to be a dict, or "balanced".')
    names = {name: known_name(written(name), task.labels) for name in class_weights}
    for name, weight in class_weights.items():
        if names[name] is None:
            raise ValueError(
                f"class_weights has a class '{name}'; those of '{task.name}' are "
                f"{', '.join(task.labels)}."
            )
        if not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
            raise ValueError(f"class_weights['{name}'] is {weight!r}; pass a number from 0.")
    weights = {names[name]: float(weight) for name, weight in class_weights.items()}
    return [weights.get(name, 1.0) for name in y]

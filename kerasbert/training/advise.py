"""`advise`: comparison of methods on a file's labels.

Files in the output folder, each written atomically:

    advice.md, advice.json       the report
    label_next.csv               unlabeled rows to label next
    check_labels.csv             rows whose labels may be wrong
    learning_curve.png, calibration.png
    runs/<run>.npz               the results of a finished run, which is not repeated
    settings.json                settings shared by all runs
"""

import json
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasbert import backend, presets
from kerasbert.base.aliases import AnyPath
from kerasbert.base.errors import check_choice, reading
from kerasbert.base.files import fills_output, names_in, new_file, output_folder, remove
from kerasbert.base.finite import NonFiniteError
from kerasbert.base.strict_json import to_json
from kerasbert.training import report
from kerasbert.training.advice_files import write_advice
from kerasbert.training.advise_settings import AdviseSettings
from kerasbert.training.arms import ARMS, Arms
from kerasbert.training.labeled import Labeled, digest_of, read_labeled
from kerasbert.training.recording import lasting_interrupt
from kerasbert.training.run_folder import RunFolder
from kerasbert.training.settings import takes_settings


@fills_output
@takes_settings(AdviseSettings)
def advise(
    data: Any, preset: AnyPath | None, output: AnyPath, *, settings: AdviseSettings
) -> dict[str, Any]:
    """Recommend a method to classify a file's texts, and rows to label or check.

    Cross-validates TF-IDF, the frozen encoder, SetFit, LoRA adapters and full fine-tuning on the
    same folds, for each seed and share of the labels. Repeat the call to resume it; more arms,
    seeds or shares add runs.

    Args:
        data: string, or a table in memory. Texts and labels, see `kerasbert.tasks.file_task`. Rows
            with an empty label are candidates for labeling.
        preset: string, as for `from_preset`; `None` tries only TF-IDF.
        output: the output folder.

    Returns:
        The content of `advice.json`: a dict of `advice` (sentences), `recommended` (an arm),
        `command` (which trains this arm), `arms` (scores, costs and calibration), `baseline`,
        `learning_curve`, `check_labels`, `label_next`, `data`, `notes` and `files`. Intervals cover
        95 % of 1,000 bootstrap resamples of the texts, the same for all arms, without the variation
        over training rows.

    Raises:
        ValueError: if data, preset or settings are unsuitable, before anything is written.
    """
    chosen = settings.arms or (tuple(ARMS) if preset is not None else ("tfidf",))
    for name in chosen:
        check_choice("arms", name, ARMS)
        if name != "tfidf" and preset is None:
            raise ValueError(f"arms: '{name}' needs an encoder; pass a preset.")
    if preset is not None:
        presets.check(preset)
    labeled = read_labeled(data, settings)
    if len(labeled.rows.x) > 1 and "setfit" in chosen:
        if settings.arms:
            raise ValueError("arms: 'setfit' does not support text pairs; omit it.")
        labeled.notes.append("SetFit is left out: it does not support text pairs.")
        chosen = tuple(name for name in chosen if name != "setfit")
    shared = {
        **settings.compared(),
        "preset": None if preset is None else os.fspath(preset),
        "data": labeled.digest(),
        "backend": backend.name(),
    }
    with lasting_interrupt() as check:
        runs = CrossValidation(
            output=output_folder(output, "output"),
            shared=json.loads(to_json(shared)),
            overwrite=settings.overwrite,
            verbose=settings.verbose,
            check_interrupt=check,
            labeled=labeled,
            names=[name for name in ARMS if name in chosen],
            settings=settings,
        )
        if chosen != ("tfidf",):
            # A damaged preset raises before anything is written.
            _ = runs.arms.embedder
        runs.check_output()
        runs.begin()
        return write_advice(runs, runs.run())


@dataclass
class CrossValidation(RunFolder):
    """The runs of `advise`, with their shared state.

    Args:
        labeled: the rows.
        names: list of the arms' names, the cheapest arm first.
        settings: an `AdviseSettings`.
    """

    labeled: Labeled
    names: list
    settings: AdviseSettings

    data_term = "labeled rows"

    def __post_init__(self):
        rows, pool = self.labeled.rows, self.labeled.pool
        self.arms = Arms(
            labels=self.labeled.labels,
            settings=self.settings,
            # By a hash of all texts, because other unlabeled rows need new embeddings.
            folder=self.path("vectors", digest_of(*rows.x, *pool.x)),
            texts=[text for column in (*rows.x, *pool.x) for text in column],
        )
        self.folds = {
            seed: self.labeled.folds(self.settings.folds, seed) for seed in self.settings.seeds
        }

    def run(self):
        """Do all runs: a dict of `(arm, share, seed)` to a result per fold."""
        settings, labeled = self.settings, self.labeled
        plan = [
            (name, share, seed)
            for name in self.names
            for share in reversed(settings.shares)
            for seed in settings.seeds
        ]
        count = len(plan) * settings.folds
        self.say(
            f"{len(labeled):,} labeled rows in {len(labeled.labels)} classes, "
            f"{len(labeled.pool):,} unlabeled; {count} runs."
        )
        for note in labeled.notes:
            self.say(note)
        found, number = {}, 0
        for name, share, seed in plan:
            folds = self.folds[seed]
            parts = found[name, share, seed] = []
            for fold in range(settings.folds):
                number += 1
                rest = np.flatnonzero(folds != fold)
                learned = labeled.subset(rest, share, [seed, fold])
                held_out = labeled.rows.part(np.flatnonzero(folds == fold).tolist())
                run = f"{name}-share{share:g}-seed{seed}-fold{fold}"
                title = f"{number} of {count}: {name}, {len(learned):,} labels, seed {seed}, "
                title += f"fold {fold + 1} of {settings.folds}"
                before = os.path.exists(self.path("runs", f"{run}.npz"))
                part = self.train(run, name, seed, learned, held_out)
                right = part["rows"].argmax(axis=1) == labeled.y[folds == fold]
                took = "already done" if before else report.duration(float(part["seconds"]))
                self.say(f"{title}: accuracy {right.mean():.3f}, {took}")
                parts.append(part)
        return found

    def train(self, run, name, seed, learned, asked):
        """Train an arm on `learned` and predict `asked`, or load the results of a finished run."""
        self.check_interrupt()
        path, folder = self.path("runs", f"{run}.npz"), self.path("runs", run)
        if not os.path.exists(path):
            arm = ARMS[name](self.arms, seed, folder)
            texts, y = self.labeled.rows.take(learned.tolist()), self.labeled.y[learned]
            arm.prepare()
            start = time.perf_counter()
            asked_texts = asked.take(range(len(asked)))
            try:
                arm.fit(texts, y)
                seconds = time.perf_counter() - start
                start = time.perf_counter()
                rows = arm.predict_proba(asked_texts)
            except NonFiniteError as error:
                raise ValueError(
                    f"The run '{run}' diverged; pass a lower learning rate. {error}"
                ) from None
            seconds_asked = (time.perf_counter() - start) / len(asked)
            vectors = arm.seconds_per_text * len(self.labeled.rows.x)
            with new_file(path) as file:
                np.savez(
                    file,
                    rows=rows.astype("float32"),
                    labels=len(learned),
                    seconds=seconds + arm.seconds_before + vectors * len(learned),
                    milliseconds=1000 * (seconds_asked + vectors),
                    megabytes=arm.megabytes,
                )
        if names_in(folder):
            remove(folder)
        with reading(path, "remove it and run the same command again"), np.load(path) as file:
            return {key: file[key] for key in file.files}

    def rows_of(self, parts, seed):
        """Combine the folds' out-of-fold probabilities (N, C) in row order."""
        rows = np.empty((len(self.labeled), len(self.labeled.labels)))
        for fold, part in enumerate(parts):
            rows[self.folds[seed] == fold] = part["rows"]
        return rows / rows.sum(axis=1, keepdims=True)

"""`advise`: compare methods on a file's labels, and choose rows to label or check.

Files in the output folder, each written atomically:

    advice.md, advice.json       the report
    label_next.csv               unlabeled rows to label next
    check_labels.csv             rows whose labels may be wrong
    learning_curve.png, calibration.png
    runs/<run>.npz               a finished run, which is not repeated
    settings.json                settings shared by all runs
"""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kerasbert import backend, presets
from kerasbert.base.errors import check_choice, reading
from kerasbert.base.files import (
    fills_output,
    names_in,
    new_file,
    output_folder,
    read_json,
    remove,
    write_json,
    write_text,
)
from kerasbert.base.finite import NonFiniteError
from kerasbert.base.strict_json import to_json
from kerasbert.metrics import reliability
from kerasbert.training import advice, report
from kerasbert.training.arms import ARMS, Arms, forget
from kerasbert.training.labelled import Labelled, digest_of, plain, read_labelled
from kerasbert.training.recording import lasting_interrupt
from kerasbert.training.settings import AdviseSettings, takes_settings
from kerasbert.visualize.calibration import label_curves, reliability_diagram
from kerasbert.visualize.figures import save

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import AnyPath


@fills_output
@takes_settings(AdviseSettings)
def advise(
    data: AnyPath, preset: AnyPath | None, output: AnyPath, *, settings: AdviseSettings
) -> dict[str, Any]:
    """Recommend a method to classify a file's texts, and choose rows to label or check.

    Cross-validates TF-IDF, the frozen encoder, SetFit, LoRA adapters and full fine-tuning on the
    same folds, over seeds and shares of the labels. After an interruption, the same call resumes;
    more arms, seeds or shares in a later call add runs.

    Args:
        data: string. A table of texts and labels, see `kerasbert.tasks.file_task`. Rows with an
            empty label are candidates for labeling.
        preset: string, as for `from_preset`; `None` tries only TF-IDF.
        output: string. The output folder.
        columns: list of strings. The text column, or two for pairs; "text" by default.
        label: string. The label column, "label" by default.
        encoding: string. Encoding of a file that is not UTF-8, such as "cp949" or "shift_jis".
        arms: list. Methods to compare: "tfidf", "frozen", "setfit", "lora", "full"; all by default.
        folds: int. Number of folds; classes with fewer different texts are left out.
        seeds: int or list of ints. Each draws its own folds.
        shares: floats. Shares of the training labels to learn from; 1 is always included.
        metric: string. Compared score: "macro_f1", with equal class weights, or "accuracy".
        batch_size, learning_rate, epochs: for full fine-tuning and adapters. The learning rate
            defaults to the preset's, or else 1e-4 for small encoders and 3e-5 for others; adapters
            take ten times that, up to 1e-3. Epochs default to 3, or up to 20 for few rows.
        lora_rank: int. Rank of the adapters.
        sequence_length: int. Maximum tokens per row.
        precision: string. "float32", "mixed_bfloat16" or "mixed_float16".
        limit: int. Maximum number of labeled rows and of unlabeled rows, drawn at random.
        label_next: int. Number of rows to suggest.
        overwrite: bool. Whether to remove earlier runs.
        verbose: bool. Whether to show progress.

    Returns:
        The content of `advice.json`: a dict of `advice` (sentences), `recommended` (an arm),
        `command` (which trains it), `arms` (scores, costs and calibration), `baseline`,
        `learning_curve`, `check_labels`, `label_next`, `data`, `notes` and `files`. Intervals cover
        95 % of 1,000 bootstrap resamples of the texts, the same for all arms; they exclude the
        variation of the training rows.

    Raises:
        ValueError: for unsuitable data, presets or settings, before anything is written.
    """
    chosen = settings.arms or (tuple(ARMS) if preset is not None else ("tfidf",))
    for name in chosen:
        check_choice("arms", name, ARMS)
        if name != "tfidf" and preset is None:
            raise ValueError(f"arms: '{name}' needs an encoder; pass a preset.")
    if preset is not None:
        presets.check(preset)
    labelled = read_labelled(os.fspath(data), settings)
    if len(labelled.rows.x) > 1 and "setfit" in chosen:
        if settings.arms:
            raise ValueError("arms: 'setfit' does not support text pairs; omit it.")
        labelled.notes.append("SetFit is left out: it does not support text pairs.")
        chosen = tuple(name for name in chosen if name != "setfit")
    output = output_folder(output, "output")
    shared = {
        **settings.compared(),
        "preset": None if preset is None else os.fspath(preset),
        "data": labelled.digest(),
        "backend": backend.name(),
    }
    with lasting_interrupt() as check:
        trial = Trial(
            labelled=labelled,
            arms=[name for name in ARMS if name in chosen],
            settings=settings,
            preset=preset,
            output=output,
            check_interrupt=check,
        )
        if chosen != ("tfidf",):
            # A broken preset must raise before anything is written.
            _ = trial.arguments.embedder
        trial.begin(json.loads(to_json(shared)))
        return trial.finish(trial.run(), os.fspath(data))


@dataclass
class Trial:
    """State shared by all runs of `advise`.

    Args:
        arms: list of names, cheapest first.
        check_interrupt: function that raises a swallowed `KeyboardInterrupt`.
    """

    labelled: Labelled
    arms: list
    settings: AdviseSettings
    preset: object
    output: str
    check_interrupt: object

    def __post_init__(self):
        rows, pool = self.labelled.rows, self.labelled.pool
        self.arguments = Arms(
            preset=self.preset,
            labels=self.labelled.labels,
            settings=self.settings,
            # Named by a hash of all texts, because changed unlabeled rows need new embeddings.
            folder=self.path("vectors", digest_of(*rows.x, *pool.x)),
            texts=[text for column in (*rows.x, *pool.x) for text in column],
        )
        self.folds = {
            seed: self.labelled.folds(self.settings.folds, seed) for seed in self.settings.seeds
        }

    def say(self, text):
        if self.settings.verbose:
            print(text, flush=True)

    def path(self, *names):
        return os.path.join(self.output, *names)

    # === Runs ===

    def begin(self, shared):
        """Create the folder; raises if it has other files, or runs with other settings."""
        path = self.path("settings.json")
        if names_in(self.output) and not os.path.exists(path):
            raise ValueError(f"The folder '{self.output}' has other files; name another one.")
        if self.settings.overwrite:
            remove(self.path("runs"))
            for name in names_in(self.output):
                if name != "settings.json":
                    remove(self.path(name))
        elif names_in(self.path("runs")):
            there = read_json(path)
            for name, value in shared.items():
                if there.get(name) != value:
                    what = f"{name}={there.get(name)!r}, not {value!r}"
                    what = "other labeled rows" if name == "data" else what
                    raise ValueError(
                        f"The runs in '{self.output}' have {what}; name another folder, or pass "
                        "--overwrite (overwrite=True)."
                    )
        os.makedirs(self.output, exist_ok=True)
        # Written first: it marks the folder as used by `advise`.
        write_json(path, shared)
        os.makedirs(self.path("runs"), exist_ok=True)

    def run(self):
        """Do all runs; returns a dict of `(arm, share, seed)` to a list with a result per fold."""
        settings, labelled = self.settings, self.labelled
        plan = [
            (name, share, seed)
            for name in self.arms
            for share in reversed(settings.shares)
            for seed in settings.seeds
        ]
        count = len(plan) * settings.folds
        self.say(
            f"{len(labelled):,} labeled rows in {len(labelled.labels)} classes, "
            f"{len(labelled.pool):,} unlabeled; {count} runs."
        )
        for note in labelled.notes:
            self.say(note)
        found, number = {}, 0
        for name, share, seed in plan:
            folds = self.folds[seed]
            parts = found[name, share, seed] = []
            for fold in range(settings.folds):
                number += 1
                rest = np.flatnonzero(folds != fold)
                learned = labelled.subset(rest, share, [seed, fold])
                held_out = labelled.rows.part(np.flatnonzero(folds == fold).tolist())
                run = f"{name}-share{share:g}-seed{seed}-fold{fold}"
                title = f"{number} of {count}: {name}, {len(learned):,} labels, seed {seed}, "
                title += f"fold {fold + 1} of {settings.folds}"
                before = os.path.exists(self.path("runs", f"{run}.npz"))
                part = self.train(run, name, seed, learned, held_out)
                right = part["rows"].argmax(axis=1) == labelled.y[folds == fold]
                took = "already done" if before else report.duration(float(part["seconds"]))
                self.say(f"{title}: accuracy {right.mean():.3f}, {took}")
                parts.append(part)
        return found

    def train(self, run, name, seed, learned, asked):
        """Train an arm on the rows `learned` and predict `asked`, or load the results if done."""
        self.check_interrupt()
        path, folder = self.path("runs", f"{run}.npz"), self.path("runs", run)
        if not os.path.exists(path):
            arm = ARMS[name](self.arguments, seed, folder)
            texts, y = self.labelled.rows.take(learned.tolist()), self.labelled.y[learned]
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
            vectors = arm.seconds_a_text * len(self.labelled.rows.x)
            with new_file(path) as file:
                np.savez(
                    file,
                    rows=rows.astype("float32"),
                    labels=len(learned),
                    seconds=seconds + arm.seconds_before + vectors * len(learned),
                    milliseconds=1000 * (seconds_asked + vectors),
                    megabytes=arm.megabytes,
                )
        forget(folder)
        with reading(path, "remove it and run the same command again"), np.load(path) as file:
            return {key: file[key] for key in file.files}

    def rows_of(self, parts, seed):
        """Return out-of-fold probabilities (N, C) in row order."""
        rows = np.empty((len(self.labelled), len(self.labelled.labels)))
        for fold, part in enumerate(parts):
            rows[self.folds[seed] == fold] = part["rows"]
        return rows / rows.sum(axis=1, keepdims=True)

    # === Results ===

    def finish(self, found, data):
        """Compare the arms and write all files; the recommended command names `data`."""
        settings, labelled = self.settings, self.labelled
        rows = {key: self.rows_of(parts, key[2]) for key, parts in found.items()}
        systems = [(name, share) for name in self.arms for share in settings.shares]
        predicted = [
            [rows[name, share, seed].argmax(axis=1) for seed in settings.seeds]
            for name, share in systems
        ]
        frequent = np.bincount(labelled.y).argmax()
        values, samples = advice.resampled(
            labelled.y,
            [*predicted, [np.full(len(labelled), frequent)]],
            labelled.groups,
            len(labelled.labels),
        )
        scores = {
            system: {
                metric: advice.interval(values[i, j], samples[:, i, j])
                for j, metric in enumerate(advice.METRICS)
            }
            for i, system in enumerate([*systems, "baseline"])
        }
        spread = {system: samples[:, i] for i, system in enumerate(systems)}
        baseline = {"label": labelled.labels[frequent], **scores["baseline"]}

        arms, diagrams, calibrated = {}, {}, []
        for name in self.arms:
            runs = [run for seed in settings.seeds for run in found[name, 1.0, seed]]
            facts, scaled = self.calibrate(name, rows)
            calibrated += scaled
            arms[name] = {
                "title": ARMS[name].title,
                **scores[name, 1.0],
                "seconds": round(float(np.mean([run["seconds"] for run in runs])), 3),
                "milliseconds": round(float(np.mean([run["milliseconds"] for run in runs])), 3),
                "megabytes": round(float(np.mean([run["megabytes"] for run in runs])), 2),
                "calibration": facts,
            }
            diagrams[ARMS[name].title] = {
                title: reliability(labelled.y, side, 10)
                for title, side in (
                    ("uncalibrated", rows[name, 1.0, settings.seeds[0]]),
                    ("temperature-scaled", scaled[0]),
                )
            }
        metric = settings.metric
        chosen = advice.choose(arms, {name: spread[name, 1.0] for name in self.arms}, metric)
        best = max(arms, key=lambda name: arms[name][metric]["value"])
        curves = {
            name: [
                {
                    "share": share,
                    "labels": round(
                        np.mean(
                            [r["labels"] for s in settings.seeds for r in found[name, share, s]]
                        )
                    ),
                    **scores[name, share],
                }
                for share in settings.shares
            ]
            for name in self.arms
        }
        sentences = advice.recommend(arms, chosen, baseline, metric)
        sentences.append(
            advice.curve_sentence(
                curves[chosen], [spread[chosen, share] for share in settings.shares], metric
            )
        )
        how = self.how(chosen, data)
        if how:
            sentences.append(f"To train it: {how}")
        notes = list(labelled.notes)
        checked = self.check_labels(advice.agreed(calibrated))
        sentences.append(
            f"{len(checked):,} of {len(labelled):,} labels may be wrong (check_labels.csv)."
            if checked
            else "No label seems wrong."
        )
        following = self.label_next(chosen)
        sentences.append(
            f"Label the {len(following):,} rows of label_next.csv next."
            if following
            else "All rows have labels; add unlabeled rows to learn which to label next."
        )
        files = ["advice.json", "advice.md"]
        files += self.write_rows("check_labels.csv", checked)
        files += self.write_rows("label_next.csv", following)
        titled = {ARMS[name].title: curve for name, curve in curves.items()}
        files += self.draw(titled, diagrams, notes)
        result = {
            "advice": sentences,
            "recommended": chosen,
            "command": how,
            "best": best,
            "metric": metric,
            "arms": arms,
            "baseline": baseline,
            "learning_curve": curves,
            "check_labels": checked,
            "label_next": following,
            "data": {
                "rows": len(labelled),
                "unlabelled": len(labelled.pool),
                "labels": dict(
                    zip(
                        labelled.labels,
                        np.bincount(labelled.y, minlength=len(labelled.labels)).tolist(),
                    )
                ),
                "folds": settings.folds,
                "seeds": list(settings.seeds),
            },
            "preset": None if self.preset is None else os.fspath(self.preset),
            "notes": notes,
            "files": [self.path(name) for name in files],
        }
        write_text(self.path("advice.md"), report.advice_text(result))
        write_json(self.path("advice.json"), result)
        return result

    def how(self, name, data):
        """Return the command that trains an arm, or `None` if there is none."""
        settings, arm = self.settings, ARMS[name](self.arguments, 0, "")
        # Only `advise` fits a head to the embeddings of both texts of a pair.
        if not arm.method or (name == "frozen" and len(self.labelled.rows.x) > 1):
            return None
        given = zip(("--text", "--text-b"), settings.columns or ())
        given = [*given, ("--label", settings.label), ("--encoding", settings.encoding)]
        words = ["kerasbert", "finetune", os.fspath(self.preset), "model_runs", "--train", data]
        words += [word for option, value in given if value for word in (option, value)]
        words += ["--sequence-length", str(settings.sequence_length)]
        return f"{shlex.join(words)} {arm.options(len(self.labelled))}"

    def calibrate(self, name, rows):
        """Return an arm's mean calibration, and its temperature-scaled probabilities per seed."""
        found = [
            advice.calibration(self.labelled.y, rows[name, 1.0, seed], self.folds[seed])
            for seed in self.settings.seeds
        ]
        mean = {
            key: round(float(np.mean([facts[key] for facts, _ in found])), 4) for key in found[0][0]
        }
        return mean, [scaled for _, scaled in found]

    def check_labels(self, rows):
        """Return rows whose label may be wrong, a list of dicts."""
        labelled, found = self.labelled, []
        named = advice.wrong_labels(labelled.y, rows)
        named += advice.contradictions(labelled.y, labelled.groups, [row for row, _ in named])
        for row, looks in named:
            found.append(
                {
                    labelled.rows.unit: labelled.rows.places[row],
                    "label": labelled.labels[labelled.y[row]],
                    "suggested": labelled.labels[looks],
                    "p_label": round(float(rows[row, labelled.y[row]]), 4),
                    "p_suggested": round(float(rows[row, looks]), 4),
                    **{n: column[row] for n, column in zip(labelled.rows.names, labelled.rows.x)},
                }
            )
        return found

    def label_next(self, name):
        """Return the unlabeled rows that are most useful to an arm, a list of dicts."""
        labelled, pool = self.labelled, self.labelled.pool
        if not len(pool):
            return []
        every, seed = np.arange(len(labelled)), self.settings.seeds[0]
        run = f"{name}-pool{digest_of(*pool.x)}-seed{seed}"
        self.say(f"{name} on all labels, to predict the unlabeled rows.")
        rows = self.train(run, name, seed, every, pool)["rows"].astype("float64")
        if "frozen" in self.arms:
            arm = ARMS["frozen"](self.arguments, seed, "")
            features = arm.features(pool.take(range(len(pool))))
        else:
            features = _words(pool)
        found, margins = [], advice.margins_of(rows)
        for row in advice.most_useful(rows, features, self.settings.label_next):
            looks = int(rows[row].argmax())
            found.append(
                {
                    pool.unit: pool.places[row],
                    "suggested": labelled.labels[looks],
                    "p_suggested": round(float(rows[row, looks]), 4),
                    "margin": round(float(margins[row]), 4),
                    **{n: column[row] for n, column in zip(pool.names, pool.x)},
                }
            )
        return found

    def write_rows(self, name, rows):
        """Write a CSV file for Excel, or remove an old one if there are no rows."""
        path = self.path(name)
        if not rows:
            remove(path)
            return []
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(rows)
        with new_file(path) as whole:
            whole.write(file.getvalue().encode("utf-8-sig", "replace"))
        return [name]

    def draw(self, curves, diagrams, notes):
        """Draw the figures; without matplotlib, add a note."""
        try:
            figures = {
                "learning_curve.png": label_curves(curves, self.settings.metric),
                "calibration.png": reliability_diagram(diagrams),
            }
        except ImportError as error:
            notes.append(str(error))
            self.say(notes[-1])
            return []
        for name, figure in figures.items():
            save(figure, self.path(name))
        return list(figures)


def _words(pool):
    """Return sparse TF-IDF features of texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [" ".join(map(plain, texts)) for texts in zip(*pool.x)]
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)).fit_transform(texts)

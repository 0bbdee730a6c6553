"""The files of `advise`: the report, rows to label or check, and figures."""

import csv
import io
import os
import shlex

import numpy as np

from kerasbert.base.files import new_file, remove, write_json, write_text
from kerasbert.heads.base.frames import is_path
from kerasbert.metrics import reliability
from kerasbert.training import advice, report
from kerasbert.training.arms import ARMS
from kerasbert.training.labeled import digest_of, plain
from kerasbert.training.results import Results
from kerasbert.visualize.calibration import label_curves, reliability_diagram


def write_advice(runs, found):
    """Compare the arms and write all files; return the content of `advice.json`.

    Args:
        runs: a `CrossValidation`.
        found: the results of its runs, as its method `run` returns them.
    """
    settings, labeled, metric = runs.settings, runs.labeled, runs.settings.metric
    rows = {key: runs.rows_of(parts, key[2]) for key, parts in found.items()}
    scores, spread, baseline = _scores(runs, rows)
    arms, diagrams, calibrated = {}, {}, []
    for name in runs.names:
        done = [run for seed in settings.seeds for run in found[name, 1.0, seed]]
        costs = {"seconds": 3, "milliseconds": 3, "megabytes": 2}  # Number of decimals.
        facts, scaled = _calibrate(runs, name, rows)
        calibrated += scaled
        arms[name] = {
            "title": ARMS[name].title,
            **scores[name, 1.0],
            **{x: round(float(np.mean([run[x] for run in done])), n) for x, n in costs.items()},
            "calibration": facts,
        }
        sides = {
            "uncalibrated": rows[name, 1.0, settings.seeds[0]],
            "temperature-scaled": scaled[0],
        }
        diagrams[ARMS[name].title] = {
            title: reliability(labeled.y, side, 10) for title, side in sides.items()
        }
    chosen = advice.choose(arms, {name: spread[name, 1.0] for name in runs.names}, metric)
    curves = {
        name: [
            {"share": share, "labels": _labels(runs, found, name, share), **scores[name, share]}
            for share in settings.shares
        ]
        for name in runs.names
    }
    sentences = advice.recommend(arms, chosen, baseline, metric, len(labeled))
    sentences.append(
        advice.curve_sentence(
            curves[chosen], [spread[chosen, share] for share in settings.shares], metric
        )
    )
    command = _command(runs, chosen)
    if command:
        sentences.append(f"To train it: {command}")
    notes = list(labeled.notes)
    checked = _labels_to_check(labeled, advice.agreed(calibrated))
    sentences.append(
        f"{len(checked):,} of {len(labeled):,} labels may be wrong (check_labels.csv)."
        if checked
        else "No label seems wrong."
    )
    following = _rows_to_label(runs, chosen)
    sentences.append(
        f"Label the {len(following):,} rows of label_next.csv next."
        if following
        else "All rows have labels; add unlabeled rows to learn which to label next."
    )
    files = ["advice.json", "advice.md"]
    files += _write_rows(runs.path("check_labels.csv"), checked)
    files += _write_rows(runs.path("label_next.csv"), following)
    titled = {ARMS[name].title: curve for name, curve in curves.items()}
    figures = {
        "learning_curve.png": lambda: label_curves(titled, metric),
        "calibration.png": lambda: reliability_diagram(diagrams),
    }
    files += runs.draw(figures, notes)
    counts = np.bincount(labeled.y, minlength=len(labeled.labels))
    result = Results(
        {
            "advice": sentences,
            "recommended": chosen,
            "command": command,
            "best": max(arms, key=lambda name: arms[name][metric]["value"]),
            "metric": metric,
            "arms": arms,
            "baseline": baseline,
            "learning_curve": curves,
            "check_labels": checked,
            "label_next": following,
            "data": {
                "rows": len(labeled),
                "unlabelled": len(labeled.pool),
                "labels": dict(zip(labeled.labels, counts.tolist())),
                "folds": settings.folds,
                "seeds": list(settings.seeds),
            },
            "preset": None if settings.preset is None else os.fspath(settings.preset),
            "notes": notes,
            "files": [runs.path(name) for name in files],
        }
    )
    write_text(runs.path("advice.md"), report.advice_text(result))
    write_json(runs.path("advice.json"), result)
    return result


def _scores(runs, rows):
    """Score all arms and the most frequent class.

    Args:
        rows: dict of `(arm, share, seed)` to out-of-fold probabilities (N, C).

    Returns:
        `(scores, spread, baseline)`: dicts of `(arm, share)` to intervals by metric, and to scores
        on resamples (R, 2); and the dict of the most frequent class and its intervals.
    """
    labeled, settings = runs.labeled, runs.settings
    systems = [(name, share) for name in runs.names for share in settings.shares]
    predicted = [
        [rows[name, share, seed].argmax(axis=1) for seed in settings.seeds]
        for name, share in systems
    ]
    frequent = np.bincount(labeled.y).argmax()
    values, samples = advice.resampled(
        labeled.y,
        [*predicted, [np.full(len(labeled), frequent)]],
        labeled.groups,
        len(labeled.labels),
    )
    scores = [
        {
            metric: advice.interval(values[i, j], samples[:, i, j])
            for j, metric in enumerate(advice.METRICS)
        }
        for i in range(len(systems) + 1)
    ]
    baseline = {"label": labeled.labels[frequent], **scores.pop()}
    spread = {system: samples[:, i] for i, system in enumerate(systems)}
    return dict(zip(systems, scores)), spread, baseline


def _labels(runs, found, name, share):
    """Return the mean number of labels on which an arm was trained."""
    seeds = runs.settings.seeds
    return round(np.mean([[run["labels"] for run in found[name, share, seed]] for seed in seeds]))


def _command(runs, name):
    """Return the command that trains an arm, or `None` if no command does."""
    settings, arm = runs.settings, ARMS[name](runs.arms, 0, "")
    # Only `advise` fits a head to the embeddings of text pairs.
    if not arm.method or (name == "frozen" and len(runs.labeled.rows.x) > 1):
        return None
    given = zip(("--text", "--text-b"), settings.columns or ())
    given = [*given, ("--label", settings.label), ("--encoding", settings.encoding)]
    words = ["kerasbert", "finetune", os.fspath(settings.preset), "model_runs"]
    # A table in memory has no name; this stands for the file to write it to.
    words += ["--train", os.fspath(settings.data) if is_path(settings.data) else "FILE"]
    words += [word for option, value in given if value for word in (option, value)]
    words += ["--sequence-length", str(settings.sequence_length)]
    return f"{shlex.join(words)} {arm.options(len(runs.labeled))}"


def _calibrate(runs, name, rows):
    """Return an arm's calibration, a mean over seeds, and its scaled probabilities per seed."""
    found = [
        advice.calibration(runs.labeled.y, rows[name, 1.0, seed], runs.folds[seed])
        for seed in runs.settings.seeds
    ]
    mean = {
        key: round(float(np.mean([facts[key] for facts, _ in found])), 4) for key in found[0][0]
    }
    return mean, [scaled for _, scaled in found]


def _labels_to_check(labeled, rows):
    """Return a list of dicts of rows with suspicious labels."""
    named = advice.wrong_labels(labeled.y, rows)
    named += advice.contradictions(labeled.y, labeled.groups, [row for row, _ in named])
    return [
        {
            labeled.rows.unit: labeled.rows.places[row],
            "label": labeled.labels[labeled.y[row]],
            "suggested": labeled.labels[looks],
            "p_label": round(float(rows[row, labeled.y[row]]), 4),
            "p_suggested": round(float(rows[row, looks]), 4),
            **{n: column[row] for n, column in zip(labeled.rows.names, labeled.rows.x)},
        }
        for row, looks in named
    ]


def _rows_to_label(runs, name):
    """Return a list of dicts of the unlabeled rows most useful to an arm."""
    labeled, pool = runs.labeled, runs.labeled.pool
    if not len(pool):
        return []
    every, seed = np.arange(len(labeled)), runs.settings.seeds[0]
    run = f"{name}-pool{digest_of(*pool.x)}-seed{seed}"
    runs.say(f"{name} on all labels, to predict the unlabeled rows.")
    rows = runs.train(run, name, seed, every, pool)["rows"].astype("float64")
    if "frozen" in runs.names:
        features = ARMS["frozen"](runs.arms, seed, "").features(pool.take(range(len(pool))))
    else:
        from sklearn.feature_extraction.text import TfidfVectorizer

        texts = [" ".join(map(plain, texts)) for texts in zip(*pool.x)]
        features = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)).fit_transform(texts)
    margins = advice.margins_of(rows)
    return [
        {
            pool.unit: pool.places[row],
            "suggested": labeled.labels[rows[row].argmax()],
            "p_suggested": round(float(rows[row].max()), 4),
            "margin": round(float(margins[row]), 4),
            **{n: column[row] for n, column in zip(pool.names, pool.x)},
        }
        for row in advice.most_useful(rows, features, runs.settings.label_next)
    ]


def _write_rows(path, rows):
    """Write a CSV file for Excel, or remove it without rows.

    Returns:
        List of the name of the file, or an empty list.
    """
    if not rows:
        remove(path)
        return []
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    with new_file(path) as whole:
        whole.write(file.getvalue().encode("utf-8-sig", "replace"))
    return [os.path.basename(path)]

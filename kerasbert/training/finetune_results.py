"""The files of `finetune`: results, predictions, figures and the best model."""

import csv
import glob
import io
import math
import os

from kerasbert.base.files import (
    json_in,
    link_files,
    new_folder,
    read_json,
    remove,
    write_json,
    write_text,
)
from kerasbert.heads.ensemble.model import describe_members
from kerasbert.training import report
from kerasbert.training.evaluation import RECORD, answer_all
from kerasbert.training.grid_search import GRID
from kerasbert.training.results import Results
from kerasbert.upload import write_card
from kerasbert.visualize.predictions import confusion_matrix
from kerasbert.visualize.training import finetuning_curves


def write_results(search, notes):
    """Predict and score with the best model, and write all results."""
    runs = search.done()
    best = search.best(runs)
    if search.rank(best) == -math.inf:
        # Earlier versions did not record the step of divergence.
        said = best["history"][-1].get("diverged") or "Their losses are not finite."
        raise ValueError(
            f"All runs diverged. {said} Pass learning rates below {best['learning_rate']:g} "
            f"and --overwrite (overwrite=True), which replaces the runs in '{search.output}'."
        )
    chosen = search.chosen(runs)
    task, directory = search.task, _take_model(search, chosen)
    dtype = {} if search.shared["precision"] is None else {"dtype": search.shared["precision"]}
    model = task.model_class.from_preset(directory, **dtype)
    predictions, scores, written = {}, {"test": None}, []
    for name, examples in (("dev", search.dev), ("test", search.test)):
        if examples is not None:
            found, _ = answer_all(task, model, examples, best["batch_size"], search.verbose)
            predictions[name] = found
            if examples.gold is not None:
                scores[name] = task.score(examples, found)
            threshold = scores["dev"].get("best_f1_threshold")
            written += task.write(search.path("predictions", name), examples, found, threshold)
    results = Results(
        {
            "task": task.name,
            "preset": search.shared["preset"],
            "method": search.shared["method"],
            "metric": task.main_metric,
            "best": {name: best[name] for name in ("run", *GRID, "epoch")},
            "kept": [run["run"] for run in chosen],
            "scores": scores["dev"],
            "classes": task.scores_by_class(search.dev, predictions["dev"]),
            "test_scores": scores["test"],
            "grid": report.over_seeds(runs, task.main_metric, task.mode),
            "runs": runs,
            "published": [vars(published) for published in task.published],
            "examples": {
                "train": len(search.train),
                "dev": len(search.dev),
                "test": 0 if search.test is None else len(search.test),
            },
            "model": directory,
            "predictions": written,
            "pictures": _draw(search, runs, best, predictions["dev"], notes),
            "notes": notes,
        }
    )
    _write_card(search, directory, results)
    write_text(search.path("results.csv"), _csv(runs, search.shared["method"]))
    write_json(search.path("results.json"), results)
    return results


def _take_model(search, chosen):
    """Move the chosen runs' models to their final place; several become an ensemble."""
    directory = search.path("model")
    members = glob.glob(os.path.join(glob.escape(directory), "members", "*"))
    made = [os.path.join(search.folder_of(run), "model") for run in chosen]
    places = {json_in(place, RECORD).get("run"): place for place in (directory, *members, *made)}
    for run in chosen:
        if run["run"] not in places:
            raise ValueError(
                f"'{search.output}' has lost the model of the best run, {run['run']}; remove "
                f"'{search.folder_of(run)}.json' and run the same command again."
            )
    if len(chosen) > 1:
        with new_folder(directory) as folder:
            for number, run in enumerate(chosen):
                member = os.path.join(folder, "members", str(number))
                os.makedirs(member)
                link_files(places[run["run"]], member)
            describe_members(folder, len(chosen))
            record = read_json(os.path.join(folder, "members", "0", RECORD))
            record["run"] = ", ".join(run["run"] for run in chosen)
            write_json(os.path.join(folder, RECORD), record)
    elif places[chosen[0]["run"]] != directory:
        with new_folder(directory) as folder:
            link_files(places[chosen[0]["run"]], folder)
    for other in os.scandir(search.path("runs")):
        if other.is_dir():
            remove(other.path)
    return directory


def _draw(search, runs, best, predictions, notes):
    """Draw the learning curves and, for exclusive classes, the confusion matrix."""
    task = search.task
    figures = {"learning_curve.png": lambda: finetuning_curves(runs, best["run"], task.main_metric)}
    if task.has_one_class:
        figures["confusion.png"] = lambda: confusion_matrix(
            search.dev.gold, predictions, task.labels
        )
    return [search.path(name) for name in search.draw(figures, notes)]


def _write_card(search, directory, results):
    """Write the model card, and add the scores to the preset's record."""
    task, best, base = search.task, results["best"], search.shared["preset"]
    path = os.path.join(directory, RECORD)
    write_json(path, read_json(path) | {"scores": results["scores"], "best": best})
    is_local = os.path.isdir(os.path.expanduser(base))
    name = os.path.basename(os.path.normpath(base)) if is_local else base
    count = len(results["kept"])
    several = f", an ensemble of {count} runs" if count > 1 else ""
    card = {
        "description": f"{name}, fine-tuned on {task.title}{several}.",
        "base": name,
        "data": f"{task.title}, {results['examples']['train']:,} examples"
        + (f" ({task.source.page})" if task.source.page else "")
        + f"; {'best run: ' if several else ''}{_training_of(search, best)}",
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
        best_runs = f"combines the best {count}" if several else "is the best"
        limits.append(
            f"It {best_runs} of {len(results['runs'])} runs on the dev examples, so scores "
            "there may be slightly optimistic."
        )
    limits += [note for note in results["notes"] if note.startswith("With limit=")]
    if limits:
        card["limits"] = " ".join(limits)
    # Parent folders mean nothing on other machines.
    place = f"{os.path.basename(os.path.normpath(search.output))}/model"
    write_card(directory, place, card, f"{name.rpartition('/')[2]}-{task.name}")


def _training_of(search, run):
    """Return a phrase on a run's training, for the model card."""
    method = search.shared["method"]
    if method == "frozen" and search.task.has_one_class:
        return "logistic regression on the frozen encoder"
    how = {
        "lora": f", LoRA adapters of rank {search.shared['lora_rank']}",
        "frozen": ", frozen encoder",
        "setfit": f", SetFit with pairs={search.shared['pairs']!r}",
    }
    return (
        f"{run['epoch']} epochs, batch size {run['batch_size']}, learning rate "
        f"{run['learning_rate']:g}, seed {run['seed']}{how.get(method, '')}"
    )


def _csv(runs, method):
    """Format the runs as CSV, one run per line."""
    scores = list(dict.fromkeys(name for run in runs for name in run["scores"]))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "method", *GRID, "epoch", "seconds", *scores])
    for run in runs:
        cells = [run["run"], method, *(run[name] for name in (*GRID, "epoch", "seconds"))]
        writer.writerow([*cells, *(run["scores"].get(name, "") for name in scores)])
    return file.getvalue()

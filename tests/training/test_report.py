"""Tables for display."""

import io

import pytest
from rich.console import Console

from kerasbert.tasks import get_task
from kerasbert.training import report

pytestmark = pytest.mark.backends("tensorflow")  # It does not depend on the backend.


def text(table):
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()


def run(seed, rate, **scores):
    return {"batch_size": 16, "learning_rate": rate, "epochs": 3, "seed": seed, "scores": scores}


def results():
    runs = [
        run(0, 2e-5, accuracy=0.7),
        run(1, 2e-5, accuracy=0.8),
        run(0, 5e-5),
        run(1, 5e-5, accuracy=0.65),
    ]
    return {
        "task": "rte",
        "method": "full",
        "metric": "accuracy",
        "best": {**runs[1], "run": "b"},
        "scores": {"accuracy": 0.8},
        "test_scores": None,
        "grid": report.over_seeds(runs, "accuracy"),
        "published": [vars(row) for row in get_task("rte").published],
    }


def test_settings_over_seeds():
    rows = results()["grid"]
    assert [(row["seeds"], row["diverged"], row["best"]) for row in rows] == [
        (2, 0, 0.8),
        (2, 1, 0.65),
    ]
    assert rows[1]["deviation"] is None
    shown = text(report.grid_table(results()))
    assert "2e-05" in shown and "0.7500" in shown and "best, with seed 1" in shown
    assert "2 (1 diverged)" in shown
    errors = [run(0, 2e-5, error=0.5), run(1, 2e-5, error=0.25)]
    assert report.over_seeds(errors, "error", "min")[0]["best"] == 0.25
    assert report.over_seeds([run(0, 2e-5)], "error")[0]["best"] is None


def test_scores_beside_the_published_ones():
    shown = text(report.score_table(results()))
    header, row = (line for line in shown.splitlines() if "this model" in line or "0.8000" in line)
    assert [cell.strip() for cell in header.strip("┃").split("┃")] == [
        "score",
        "this model, dev",
        "BERT-Base, test",
        "BERT-Large, test",
    ]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "accuracy",
        "0.8000",
        "0.6640",
        "0.7010",
    ]
    assert "arXiv 1810.04805, table 1" in shown
    # The table has scores of the test set, and scores that only the paper reports.
    both = text(report.score_table({**results(), "test_scores": {"accuracy": 0.75, "f1": 0.5}}))
    assert "this model, test" in both and "0.7500" in both


def test_scores_of_classes():
    from kerasbert.training.report import class_tables

    scores = {"f1": 0.5, "precision": 1.0, "recall": 0.25, "gold": 1200, "predicted": 3}
    (table,) = class_tables({"classes": {"[x]": scores}, "split": "new.csv"})
    header = ["class", "f1", "precision", "recall", "support", "predicted"]
    assert [column.header for column in table.columns] == header
    assert [list(column.cells)[0] for column in table.columns][1:] == [
        *("0.5000", "1.0000", "0.2500"),
        *("1,200", "3"),
    ]
    assert class_tables({"classes": {}}) == class_tables({}) == []

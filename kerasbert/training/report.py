"""Results for people: means over seeds, and tables beside the published scores."""

import statistics

from rich.table import Table

_SETTING = ("batch_size", "learning_rate", "epochs")


def over_seeds(runs, metric, mode="max"):
    """What each point of a grid gives over its seeds.

    Args:
        runs: list of dicts of `batch_size`, `learning_rate`, `epochs` and `scores`.
        metric: string. The score to look at.
        mode: string. "min" where less is better.

    Returns:
        List of dicts of the three settings, `seeds` (how many), `diverged` (how many of them),
        and `mean`, `deviation` (of the sample) and `best`, `None` where there is no number.

    >>> runs = [
    ...     {"batch_size": 16, "learning_rate": 5e-5, "epochs": 2, "scores": {"accuracy": x}}
    ...     for x in (0.8, 0.9)
    ... ]
    >>> row = over_seeds(runs, "accuracy")[0]
    >>> row["seeds"], round(row["mean"], 3), round(row["deviation"], 3), row["best"]
    (2, 0.85, 0.071, 0.9)
    """
    groups = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in _SETTING), []).append(run["scores"])
    rows = []
    for setting, scores in groups.items():
        values = [row[metric] for row in scores if row.get(metric) is not None]
        best = min if mode == "min" else max
        rows.append(
            {
                **dict(zip(_SETTING, setting)),
                "seeds": len(scores),
                "diverged": len(scores) - len(values),
                "mean": statistics.fmean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
                "best": best(values, default=None),
            }
        )
    return rows


def grid_table(results):
    """A rich table of the points of the grid, the one of the best run marked."""
    metric, best = results["metric"], results["best"]
    table = Table(title=f"{metric} on dev, method {results['method']}")
    for name in ("batch", "rate", "epochs", "seeds", "mean", "deviation", "best", ""):
        table.add_column(name, justify="left" if not name else "right")
    for row in results["grid"]:
        is_best = all(row[name] == best[name] for name in _SETTING)
        diverged = f" ({row['diverged']} diverged)" if row["diverged"] else ""
        table.add_row(
            str(row["batch_size"]),
            f"{row['learning_rate']:g}",
            str(row["epochs"]),
            f"{row['seeds']}{diverged}",
            *(_number(row[name]) for name in ("mean", "deviation", "best")),
            f"best, with seed {best['seed']}" if is_best else "",
            style="bold" if is_best else None,
        )
    return table


def score_table(results):
    """A rich table of the scores of a model beside the published ones."""
    columns = {}
    split = results.get("split", "dev")
    for name, scores in ((split, results["scores"]), ("test", results.get("test_scores"))):
        if scores is not None:
            columns[f"this model, {name}"] = scores
    metrics = list(results["scores"])
    for row in results["published"]:
        columns.setdefault(f"{row['model']}, {row['split']}", {})[row["metric"]] = row["value"]
        metrics += [row["metric"]] if row["metric"] not in metrics else []
    places = dict.fromkeys(row["where"] for row in results["published"])
    caption = "The others are of " + "; ".join(places) + "." if places else None
    method = f", method {results['method']}" if "method" in results else ""
    table = Table(title=results["task"] + method, caption=caption)
    table.add_column("score")
    for name in columns:
        table.add_column(name, justify="right")
    for metric in metrics:
        is_main = metric == results["metric"]
        cells = [_number(scores.get(metric)) for scores in columns.values()]
        table.add_row(metric, *cells, style="bold" if is_main else None)
    return table


def duration(seconds):
    """Seconds for people.

    >>> duration(4.21), duration(75), duration(7300)
    ('4.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _number(value):
    return "" if value is None else f"{value:.4f}"

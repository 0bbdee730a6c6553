"""Result tables: means over seeds, scores next to published ones, and the advice report."""

import re
import statistics

from rich.markup import escape
from rich.table import Table

_SETTING = ("batch_size", "learning_rate", "epochs")


def over_seeds(runs, metric, mode="max"):
    """Summarize the runs of each grid point over its seeds.

    Args:
        runs: list of dicts of `batch_size`, `learning_rate`, `epochs` and `scores`.
        metric: string. The score to summarize.
        mode: "min" if a lower score is better.

    Returns:
        List of dicts of the three settings, `seeds` and `diverged` (numbers of runs), `mean`,
        `deviation` (sample standard deviation) and `best`, the last three `None` if too few scores
        are finite.

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
    """Make a rich table of the grid points, with the best marked."""
    metric, best = results["metric"], results["best"]
    table = Table(title=f"{metric} on dev, method {results['method']}")
    for name in ("batch", "learning rate", "epochs", "mean", "", "seeds", "deviation", "best"):
        table.add_column(name, justify="left" if not name else "right")
    for row in results["grid"]:
        is_best = all(row[name] == best[name] for name in _SETTING)
        diverged = f" ({row['diverged']} diverged)" if row["diverged"] else ""
        table.add_row(
            str(row["batch_size"]),
            f"{row['learning_rate']:g}",
            str(row["epochs"]),
            _number(row["mean"]),
            f"best, with seed {best['seed']}" if is_best else "",
            f"{row['seeds']}{diverged}",
            *(_number(row[name]) for name in ("deviation", "best")),
            style="bold" if is_best else None,
        )
    return table


def score_table(results):
    """Make a rich table of a model's scores next to published ones."""
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
    caption = "Published scores from " + "; ".join(places) + "." if places else None
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


def class_tables(results):
    """Return a list of a rich table of any scores by class."""
    if not results.get("classes"):
        return []
    table = Table(title=f"by class, {results.get('split', 'dev')}")
    table.add_column("class")
    for name in ("f1", "precision", "recall", "support", "predicted"):
        table.add_column(name, justify="right")
    for name, scores in results["classes"].items():
        numbers = [_number(scores[score]) for score in ("f1", "precision", "recall")]
        table.add_row(
            escape(str(name)), *numbers, f"{scores['gold']:,}", f"{scores['predicted']:,}"
        )
    return [table]


def advice_table(results):
    """Make a rich table of the methods of `advise`, with the recommended one marked."""
    head, *rows = _advice_rows(results)
    data = results["data"]
    table = Table(
        title=f"{data['rows']:,} labels, {data['folds']} folds, {len(data['seeds'])} seed(s)",
        caption="In brackets: 95 % intervals from 1,000 bootstrap resamples of the texts.",
    )
    for name in head:
        table.add_column(name, justify="right" if name else "left")
    for row, arm in zip(rows, [*results["arms"], None]):
        table.add_row(*row, style="bold" if arm == results["recommended"] else None)
    return table


def advice_text(results):
    """Format the results of `advise` as Markdown."""
    data, shown = results["data"], 20
    first, *others = results["advice"]
    lines = ["# Advice", "", f"**{_plain(first)}**", "", *(f"- {_plain(x)}" for x in others)]
    lines += ["", "## Methods tried", "", *_markdown(_advice_rows(results)), ""]
    lines += [
        f"Each method was trained on {data['rows']:,} labels in {data['folds']} folds and scored "
        f"on the held-out rows; seeds {', '.join(map(str, data['seeds']))}; the encoder is "
        f"`{results['preset']}`. TF-IDF and the frozen encoder feed a logistic regression. In "
        "brackets: 95 % intervals from 1,000 bootstrap resamples of the texts, the same texts for "
        "all methods; they do not include the variation of the training rows. "
        "`behind` is the distance to the best method. Seconds are for one training on a fold's "
        "labels, milliseconds for the prediction of one row in a large batch, megabytes for the "
        "stored model. The calibration error is the expected difference between confidence and "
        "accuracy, before and after dividing the logits by the temperature T.",
        "",
    ]
    lines += ["## The value of more labels", ""]
    lines += _markdown(
        [["labels", *(arm["title"] for arm in results["arms"].values())]]
        + [
            [f"{points[0]['labels']:,}", *(_within(p[results["metric"]]) for p in points)]
            for points in zip(*results["learning_curve"].values())
        ]
    )
    names = [path.replace("\\", "/").rpartition("/")[2] for path in results["files"]]
    pictures = [name for name in names if name.endswith(".png")]
    lines += ["", *(f"![{name.partition('.')[0]}]({name})" for name in pictures)]
    for key, title in (
        ("check_labels", "Labels that may be wrong"),
        ("label_next", "Rows to label next"),
    ):
        rows = results[key]
        lines += ["", f"## {title}", ""]
        if rows:
            table = [list(rows[0]), *([str(v) for v in row.values()] for row in rows[:shown])]
            lines += _markdown(table)
        more = len(rows) - shown
        if more > 0 or not rows:
            lines += ["", f"{more:,} more in {key}.csv." if rows else "None."]
    lines += ["", "## The data", ""]
    lines += _markdown([["class", "rows"], *([k, f"{v:,}"] for k, v in data["labels"].items())])
    lines += ["", f"{data['unlabelled']:,} rows without a label."]
    lines += ["", *(f"- {_plain(note)}" for note in results["notes"])]
    return "\n".join([*lines, ""])


def _advice_rows(results):
    """Build the table's rows: the header, the methods, and the most frequent class."""
    rows = [["", "accuracy", "macro-F1", "behind", "seconds", "ms per row", "MB"]]
    rows[0] += ["calibration error", "T"]
    for arm in results["arms"].values():
        found = arm["calibration"]
        rows.append(
            [
                arm["title"],
                *(_within(arm[name]) for name in ("accuracy", "macro_f1", "behind")),
                f"{arm['seconds']:.1f}",
                f"{arm['milliseconds']:.1f}",
                f"{arm['megabytes']:.1f}",
                f"{found['error']:.3f} to {found['error_after']:.3f}",
                f"{found['temperature']:.2f}",
            ]
        )
    base = results["baseline"]
    scores = [_within(base[name]) for name in ("accuracy", "macro_f1")]
    return [*rows, [f"always {base['label']!r}", *scores, *[""] * (len(rows[0]) - 3)]]


def _within(found):
    return f"{found['value']:.3f} ({found['low']:.3f}-{found['high']:.3f})"


def _markdown(rows):
    """Format rows, the header first, as a Markdown table with escaped cells."""
    cells = [[_plain(cell)[:200] for cell in row] for row in rows]
    cells.insert(1, ["---"] * len(cells[0]))
    return ["| " + " | ".join(row) + " |" for row in cells]


def _plain(text):
    """Escape text for Markdown, and put it on one line.

    >>> print(_plain("a|b *c*\\n<d>"))
    a\\|b \\*c\\* &lt;d>
    """
    text = " ".join(str(text).split()).replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def duration(seconds):
    """Format a duration in seconds.

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

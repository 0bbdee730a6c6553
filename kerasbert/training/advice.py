"""Statistics and recommendations of `advise`, from out-of-fold probabilities.

N rows, C classes, R resamples, S systems.
"""

import numpy as np

from kerasbert.metrics import expected_calibration_error, fit_temperature, with_temperature
from kerasbert.training.report import duration

METRICS = ("accuracy", "macro_f1")
NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1"}
_RESAMPLES = 1000
_CLOSE = 0.02  # Largest difference between two scores that is called negligible.
_SAME = 0.005  # Largest lead for which a cheaper arm is recommended instead.
_MOST_LABELS = 20  # Largest multiple of the labels that the advice proposes.


# === Scores ===


def scores_of(confusion):
    """Return `(accuracy, macro-F1)` of a confusion matrix (C, C), true by predicted classes.

    >>> scores_of(np.array([[3, 1], [0, 4]]))
    array([0.875     , 0.87301587])
    """
    hits, sizes = np.diag(confusion), confusion.sum(axis=0) + confusion.sum(axis=1)
    there = sizes > 0
    return np.array([hits.sum() / confusion.sum(), np.mean(2 * hits[there] / sizes[there])])


def resampled(y, predictions, groups, classes, seed=0):
    """Score systems on all texts and on shared bootstrap resamples.

    Args:
        y: int array (N,).
        predictions: list of S lists of int arrays (N,), one per seed, over which scores are
            averaged.
        groups: int array (N,), see `Labeled`. Whole groups are resampled.
        classes: int. C.

    Returns:
        `(values, samples)`: accuracy and macro-F1, (S, 2), and on each resample, (R, S, 2).

    Source: Efron and Tibshirani 1993, the paired bootstrap.
    """
    cells = [[y * classes + column for column in columns] for columns in predictions]

    def scores(weights):
        confusions = (
            np.bincount(cell, weights, minlength=classes**2).reshape(classes, classes)
            for columns in cells
            for cell in columns
        )
        found = iter([scores_of(confusion) for confusion in confusions])
        return np.array([np.mean([next(found) for _ in columns], axis=0) for columns in cells])

    random, count = np.random.default_rng(seed), int(groups.max()) + 1
    samples = []
    for _ in range(_RESAMPLES):
        drawn = np.bincount(random.integers(0, count, count), minlength=count)
        samples.append(scores(drawn[groups].astype("float64")))
    return scores(np.ones(len(y))), np.array(samples)


def interval(value, samples):
    """Return a dict of `value`, and of `low` and `high`, the ends of its 95% interval."""
    low, high = np.percentile(samples, [2.5, 97.5])
    return {
        name: round(float(x), 4) for name, x in zip(("value", "low", "high"), (value, low, high))
    }


def calibration(y, rows, folds):
    """Measure calibration before and after temperature scaling.

    Args:
        y: int array (N,).
        rows: floats (N, C). Out-of-fold probabilities.
        folds: int array (N,). Each fold is scaled with the temperature of the others.

    Returns:
        `(facts, after)`: `facts` is a dict of `temperature` (of all rows) and expected calibration
        errors, `error` and `error_after` scaling; `after` are the scaled probabilities (N, C).
    """
    after = np.empty_like(rows)
    for fold in np.unique(folds):
        here = folds == fold
        after[here] = with_temperature(rows[here], fit_temperature(y[~here], rows[~here]))
    facts = {
        "temperature": fit_temperature(y, rows),
        "error": expected_calibration_error(y, rows),
        "error_after": expected_calibration_error(y, after),
    }
    return {name: round(value, 4) for name, value in facts.items()}, after


# === Rows ===


def wrong_labels(y, rows):
    """Find probably wrong labels, the least probable first, by confident learning.

    A class is confident for a row if its probability is at least its mean over the rows labeled
    with it. A row is listed if its label is neither its most probable class nor its most probable
    confident class, which is suggested.

    Args:
        y: int array (N,).
        rows: floats (N, C). Out-of-fold probabilities.

    Returns:
        List of `(row, class)` with the suggested class.

    >>> y = np.array([0, 0, 0, 1, 1])
    >>> rows = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    >>> wrong_labels(y, rows)
    [(2, 1)]

    Source: Northcutt, Jiang and Chuang 2021, arXiv 1911.00068, section 3.1; cleanlab lists the same
    rows by "confident_learning".
    """
    classes = np.unique(y)
    usual = np.full(rows.shape[1], np.inf)
    usual[classes] = [rows[y == number, number].mean() for number in classes]
    # By rounding, a mean of equal probabilities may be above them.
    sure = np.where(rows >= usual - 1e-6, rows, 0.0)
    looks = sure.argmax(axis=1)
    own = rows[np.arange(len(y)), y]
    found = (sure.max(axis=1) > 0) & (looks != y) & (rows.argmax(axis=1) != y)
    named = np.flatnonzero(found)
    order = named[np.argsort(own[named], kind="stable")]
    return [(int(row), int(looks[row])) for row in order]


def agreed(systems):
    """Combine systems by the geometric mean of their probabilities.

    It is confident only if all systems are. Of 500 TREC questions with 21 wrong labels, 33 rows had
    to be listed to find 16 of these, and 52 with the best single system.

    Args:
        systems: list of floats (N, C). Calibrated probabilities.

    Returns:
        Floats (N, C).
    """
    logs = np.mean([np.log(np.maximum(rows, 1e-12)) for rows in systems], axis=0)
    found = np.exp(logs - logs.max(axis=1, keepdims=True))
    return found / found.sum(axis=1, keepdims=True)


def contradictions(y, groups, known):
    """Find rows whose text has another label at least as often in other rows.

    Args:
        y, groups: int arrays (N,). Classes, and groups of equal texts.
        known: list of rows to leave out.

    Returns:
        List of `(row, class)` with the other label.

    >>> contradictions(np.array([0, 1, 1, 0]), np.array([5, 5, 5, 6]), [])
    [(0, 1)]
    """
    found, known = [], set(known)
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        classes, counts = np.unique(y[rows], return_counts=True)
        if len(classes) > 1:
            usual = dict(zip(classes.tolist(), counts.tolist()))
            for row in set(rows.tolist()) - known:
                others = {name: n for name, n in usual.items() if name != y[row]}
                other = max(others, key=others.get)
                if others[other] >= usual[int(y[row])]:
                    found.append((row, other))
    return sorted(found)


def most_useful(rows, features, count):
    """Choose rows to label next, which are uncertain and differ from each other.

    Of the `5 * count` rows with the smallest margins, in `count` k-means clusters, the smallest of
    each cluster is chosen.

    Args:
        rows: floats (P, C). Probabilities of P unlabeled rows.
        features: floats (P, F), dense or sparse.
        count: int.

    Returns:
        List of row indices, the most uncertain row first.

    Source: Zhdanov 2019, arXiv 1901.05954.
    """
    margins = margins_of(rows)
    nearest = np.argsort(margins, kind="stable")[: 5 * count]
    if len(nearest) <= count:
        return nearest.tolist()
    from sklearn.cluster import KMeans

    clusters = KMeans(count, n_init=1, random_state=0).fit_predict(features[nearest])
    _, first = np.unique(clusters, return_index=True)
    return nearest[np.sort(first)].tolist()


def margins_of(rows):
    """Return the difference of each row's two largest probabilities: floats (P,)."""
    ordered = np.sort(rows, axis=1)
    return ordered[:, -1] - ordered[:, -2]


# === Sentences ===


def choose(arms, samples, metric):
    """Choose the arm with the highest expected score, or a cheaper one that is as good in practice.

    Args:
        arms: dict of name to results, the cheapest arm first. `choose` adds two facts to each arm's
            results: `behind`, by how much its score is below the best arm's, with an interval, and
            `wins`, the share of resamples in which it is the best arm.
        samples: dict of name to floats (R, 2), the scores on resamples.
        metric: string.

    Returns:
        The name of the chosen arm.
    """
    place = METRICS.index(metric)
    best = max(arms, key=lambda name: arms[name][metric]["value"])
    first = np.argmax([samples[name][:, place] for name in arms], axis=0)
    for number, (name, arm) in enumerate(arms.items()):
        gap = arms[best][metric]["value"] - arm[metric]["value"]
        arm["behind"] = interval(gap, samples[best][:, place] - samples[name][:, place])
        arm["wins"] = round(float(np.mean(first == number)), 4)
    return next(name for name, arm in arms.items() if arm["behind"]["value"] <= _SAME)


def recommend(arms, chosen, baseline, metric, labels):
    """Return the recommendation, a list of sentences.

    Args:
        arms: see `choose`.
        chosen: name of the recommended arm.
        baseline: dict of the scores of always predicting the most frequent class.
        metric: string.
        labels: number of labeled rows.
    """
    said, score = NAMES[metric], arms[chosen][metric]
    if score["low"] <= baseline[metric]["value"]:
        return [
            "No method is clearly better than always predicting the most frequent class "
            f"({said} {baseline[metric]['value']:.3f}): label more rows, or check whether texts "
            "determine labels."
        ]
    first = f"{arms[chosen]['title']}: {said} {_of(score)}, {_cost(arms[chosen])}."
    if len(arms) == 1:
        return [f"Only one method was tried, {first}"]
    others = sorted((name for name in arms if name != chosen), key=lambda x: _gap(arms, x))
    rival = arms[others[0]]
    sentences = [
        f"Use {first}",
        f"It is the best method in {arms[chosen]['wins']:.0%} of the resamples, "
        f"{rival['title']} in {rival['wins']:.0%}.",
        "The others: "
        + "; ".join(
            f"{arms[x]['title']}, {arms[x][metric]['value']:.3f}, {_cost(arms[x])}" for x in others
        )
        + ".",
    ]
    gap = rival["behind"]
    if _gap(arms, others[0]) <= _SAME:
        sentences.append(
            f"{arms[chosen]['title']} and {rival['title']} are within {_SAME} of each other, so "
            "the cheaper one is recommended."
        )
    elif gap["low"] > 0:
        sentences.append(f"Its lead over {rival['title']}, {_of(gap)}, is more than chance.")
    else:
        needed = labels * ((gap["high"] - gap["low"]) / 2 / gap["value"]) ** 2
        sentences.append(
            f"Its lead over {rival['title']}, {_of(gap)}, may be chance. "
            + (
                f"About {_rounded(needed)} labels would settle it, if the lead stays as it is."
                if needed < _MOST_LABELS * labels
                else f"Even {_MOST_LABELS} times as many labels would hardly settle it."
            )
        )
    return sentences


def curve_sentence(curve, samples, metric):
    """Return a sentence on the use of more labels, by the last doubling.

    Args:
        curve: list of points, dicts of `share`, `labels` and the metric's name. The last has all
            labels.
        samples: list of floats (R, 2), one array per point.
        metric: string.
    """
    half = min(range(len(curve)), key=lambda i: abs(np.log(curve[i]["share"] / 0.5)))
    if len(curve) < 2 or curve[half]["share"] == 1:
        return "With one share of the labels (shares=1), the value of more is unknown."
    place, said = METRICS.index(metric), NAMES[metric]
    gain = curve[-1][metric]["value"] - curve[half][metric]["value"]
    gain = interval(gain, samples[-1][:, place] - samples[half][:, place])
    few, many = curve[half]["labels"], curve[-1]["labels"]
    value, low, high = (f"{gain[x]:+.3f}" for x in ("value", "low", "high"))
    start = f"From {few:,} to {many:,} labels, {said} changed by {value} ({low} to {high})"
    if gain["low"] > 0 and gain["value"] >= _CLOSE / 2:
        return (
            f"{start}: more labels help; as many again would add about {gain['value']:.3f} or less."
        )
    if gain["high"] < _CLOSE:
        return f"{start}: more labels of this kind would add little."
    return f"{start}: these rows do not show whether more labels help."


def _gap(arms, name):
    return arms[name]["behind"]["value"]


def _cost(arm):
    return f"{duration(arm['seconds'])} per training, {arm['megabytes']:,.0f} MB"


def _rounded(count):
    """Return a number with two significant digits.

    >>> _rounded(1234.5), _rounded(87.2)
    ('1,200', '87')
    """
    return f"{float(f'{count:.2g}'):,.0f}"


def _of(found):
    return f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"

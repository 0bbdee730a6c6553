"""The tasks' official scores: functions of what is right and what a model says.

N examples, W words.

A score is a fraction from 0 to 1 (a correlation from -1), as in scikit-learn, whatever the official
script prints. Each function takes `(y, predictions)`, N of each, and returns a number or a dict of
numbers by name. `ScoreCallback` puts them into the logs of `fit`.
"""

import collections
import functools
import re
import string
import types
import warnings
from dataclasses import dataclass

import keras
import numpy as np

from kerasbert.data.tagging import OUTSIDE, TagSet

# === Classes and numbers ===


def accuracy(y, predictions):
    """The share of right predictions.

    Args:
        y: class numbers or names (N,).
        predictions: the same (N,).

    >>> accuracy(["ham", "spam", "ham"], ["ham", "spam", "spam"])
    0.6666666666666666
    """
    y, predictions = _classes(y, predictions)
    return float(np.mean(y == predictions))


def f1(y, predictions, positive=1):
    """F1 of one class; 0 where it is neither right nor predicted anywhere.

    Args:
        y: class numbers or names (N,).
        predictions: the same (N,).
        positive: the class.

    >>> f1([1, 1, 0, 0], [1, 0, 1, 0])
    0.5
    """
    from sklearn.metrics import f1_score

    y, predictions = _classes(y, predictions)
    if (y.dtype.kind in "OSU") != isinstance(positive, str):
        raise ValueError(f"positive={positive!r} is no class like {y[0]!r}; pass the one to score.")
    return float(f1_score(y, predictions, labels=[positive], average="macro", zero_division=0))


def macro_f1(y, predictions):
    """The mean F1 of the classes that are right or predicted anywhere.

    Args:
        y: class numbers or names (N,).
        predictions: the same (N,).
    """
    from sklearn.metrics import f1_score

    return float(f1_score(*_classes(y, predictions), average="macro", zero_division=0))


def matthews(y, predictions):
    """Matthews' correlation of classes, of any number of them; 0 where there is one class only.

    Args:
        y: class numbers or names (N,).
        predictions: the same (N,).

    >>> matthews([1, 1, 0, 0], [1, 1, 0, 1])
    0.5773502691896258
    """
    from sklearn.metrics import matthews_corrcoef

    y, predictions = _classes(y, predictions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # One class only: 0 is right.
        return float(matthews_corrcoef(y, predictions))


def pearson(y, predictions):
    """Pearson's correlation of numbers; 0 where one side is all the same number.

    Args:
        y: floats (N,).
        predictions: floats (N,).

    >>> round(pearson([1.0, 2.0, 4.0], [2.0, 3.0, 5.0]), 6)
    1.0
    """
    return _correlation("pearsonr", y, predictions)


def spearman(y, predictions):
    """Pearson's correlation of the ranks, where equal numbers share their mean rank.

    Args:
        y: floats (N,).
        predictions: floats (N,).

    >>> round(spearman([1, 2, 3, 4], [1, 4, 9, 16]), 6)
    1.0
    """
    return _correlation("spearmanr", y, predictions)


def mean_absolute_error(y, predictions):
    """The mean distance of numbers; the less, the better.

    Args:
        y: floats (N,).
        predictions: floats (N,).
    """
    y, predictions = _numbers(y, predictions)
    return float(np.mean(np.abs(y - predictions)))


def f1_from(y, predictions, threshold=3.0):
    """F1 of "at least the threshold" on both sides, which KLUE reports of its similarities.

    Args:
        y: floats (N,).
        predictions: floats (N,).
        threshold: float.
    """
    y, predictions = _numbers(y, predictions)
    return f1((y >= threshold).astype(int), (predictions >= threshold).astype(int))


def _correlation(name, y, predictions):
    import scipy.stats

    y, predictions = _numbers(y, predictions)
    if len(y) < 2 or np.ptp(y) == 0 or np.ptp(predictions) == 0:
        return 0.0  # Undefined; a `nan` would stop those who watch it.
    with warnings.catch_warnings():
        # A column that is nearly constant: its correlation is not exact, but there is one.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return float(getattr(scipy.stats, name)(y, predictions).statistic)


def _sizes(y, predictions):
    if len(y) != len(predictions):
        raise ValueError(
            f"There are {len(y)} right answers but {len(predictions)} predictions; give one "
            "prediction for each."
        )
    if not len(y):
        raise ValueError("There is nothing to score: the list of right answers is empty.")


def _classes(y, predictions):
    _sizes(y, predictions)
    y, predictions = np.asarray(y), np.asarray(predictions)
    for name, column in (("y", y), ("predictions", predictions)):
        if column.ndim != 1:
            raise ValueError(
                f"{name} has the shape {column.shape}; pass one class number or name for each "
                "example."
            )
    if (y.dtype.kind in "OSU") != (predictions.dtype.kind in "OSU"):
        raise ValueError(
            f"The right classes are like {y[0]!r} but the predicted ones like {predictions[0]!r}; "
            "pass names for both, or numbers for both."
        )
    return y, predictions


def _numbers(y, predictions):
    _sizes(y, predictions)
    y, predictions = (np.asarray(column, "float64") for column in (y, predictions))
    return y.reshape(len(y)), predictions.reshape(len(predictions))


# === Answers ===


@dataclass(frozen=True)
class AnswerRules:
    """How a scorer compares an answer with a right one.

    Args:
        normalize: function of a string. Equal results are an exact match.
        units: function of a normalized string: the list whose overlap gives F1.
        empty_matches: bool. Whether two empty answers have an F1 of 1, as where "no answer" may be
            right; otherwise it is 0.
    """

    normalize: object
    units: object
    empty_matches: bool


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# KorQuAD's scorer puts a space where one of these was; other punctuation leaves none.
_KOREAN_BRACKETS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def _one_spaced(text):
    return " ".join(text.split())


def _normalize_english(text):
    return _one_spaced(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)))


def _normalize_korean(text):
    return _one_spaced(text.translate(_KOREAN_BRACKETS).lower().translate(_PUNCTUATION))


def _normalize_japanese(text):
    return _one_spaced(text.lower().rstrip("。"))


def _characters(text):
    return list(text.replace(" ", ""))


ANSWER_RULES = {
    "squad": AnswerRules(_normalize_english, str.split, False),
    "squad2": AnswerRules(_normalize_english, str.split, True),
    "korquad": AnswerRules(_normalize_korean, _characters, False),
    "jsquad": AnswerRules(_normalize_japanese, list, True),
}


def answer_scores(y, predictions, rules="squad"):
    """The exact match and the F1 of each answer with the right one that it fits best.

    Args:
        y: list of N lists of right answers, each a string; an empty list for no answer.
        predictions: list of N strings, "" for no answer.
        rules: string. "squad", "squad2", "korquad" or "jsquad".

    Returns:
        `(exact, f1)`, float64 (N,) each.

    >>> exact, f1 = answer_scores([["the red house"]], ["Red houses, a house"])
    >>> exact.tolist(), f1.tolist()
    ([0.0], [0.8])
    """
    if rules not in ANSWER_RULES:
        raise ValueError(f"rules={rules!r} are unknown; use one of {', '.join(ANSWER_RULES)}.")
    rules = ANSWER_RULES[rules]
    _sizes(y, predictions)
    scores = np.zeros((len(y), 2))
    for position, (golds, prediction) in enumerate(zip(y, predictions)):
        if isinstance(golds, str) or not isinstance(prediction, str):
            raise ValueError(
                f"The answers at position {position} are {golds!r} and {prediction!r}; pass a "
                "list of right answers and one string."
            )
        prediction = rules.normalize(prediction)
        golds = [rules.normalize(gold) for gold in golds]
        if rules.empty_matches:
            golds = list(filter(None, golds)) or [""]
        for gold in golds:
            pair = gold == prediction, _overlap(rules, gold, prediction)
            scores[position] = np.maximum(scores[position], pair)
    return scores[:, 0], scores[:, 1]


def _overlap(rules, gold, prediction):
    gold, prediction = rules.units(gold), rules.units(prediction)
    if not gold or not prediction:
        return float(rules.empty_matches and gold == prediction)
    same = sum((collections.Counter(gold) & collections.Counter(prediction)).values())
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall) if same else 0.0


def squad(y, predictions, rules="squad"):
    """Exact match and F1 of answers, as SQuAD 1.1's scorer has them.

    Args:
        y: list of N lists of right answers.
        predictions: list of N strings.
        rules: string. See `answer_scores`.

    Returns:
        Dict of `exact_match` and `f1`.

    >>> squad([["Denver Broncos", "the Broncos"], ["1066"]], ["Broncos!", "in 1066"])
    {'exact_match': 0.5, 'f1': 0.8333333333333333}

    Source: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1.
    """
    exact, overlap = answer_scores(y, predictions, rules)
    return {"exact_match": float(exact.mean()), "f1": float(overlap.mean())}


def squad2(y, predictions, null_scores=None):
    """SQuAD 2.0's scores: of all questions, of those with and without an answer, and at best.

    Args:
        y: list of N lists of right answers, empty where there is none.
        predictions: list of N strings, "" for no answer.
        null_scores: floats (N,). The higher, the more likely there is no answer. With them come
            the scores where all answers beyond a threshold are none: that of the most exact
            matches, and that of the most F1.

    Returns:
        Dict of `exact_match` and `f1`, of the same with `has_answer_` and `no_answer_` in front
        where there are such questions, and with `null_scores` of `best_exact_match`,
        `best_exact_match_threshold`, `best_f1` and `best_f1_threshold`.

    >>> scores = squad2([["Rome"], []], ["Rome", "Paris"], [-3.0, 2.5])
    >>> scores["f1"], scores["best_f1"], scores["best_f1_threshold"]
    (0.5, 1.0, -3.0)

    Source: Rajpurkar et al. 2018, arXiv 1806.03822, and its scorer; among equal null scores the
    order of the questions counts, as there.
    """
    exact, overlap = answer_scores(y, predictions, "squad2")
    has_answer = np.array([len(golds) > 0 for golds in y])
    scores = {"exact_match": exact, "f1": overlap}
    result = {name: float(values.mean()) for name, values in scores.items()}
    for prefix, which in (("has_answer_", has_answer), ("no_answer_", ~has_answer)):
        if which.any():
            result.update((prefix + name, float(v[which].mean())) for name, v in scores.items())
    if null_scores is None:
        return result
    _sizes(y, null_scores)
    null_scores = np.asarray(null_scores, "float64")
    answered = np.array([bool(prediction) for prediction in predictions])
    for name, values in scores.items():
        best, threshold = _best_threshold(values, answered, has_answer, null_scores)
        result[f"best_{name}"], result[f"best_{name}_threshold"] = best, threshold
    return result


def _best_threshold(scores, answered, has_answer, null_scores):
    """The best mean score, and the null score up to which to answer for it."""
    order = np.argsort(null_scores, kind="stable")
    # At first no question has an answer; then one after the other gets its own.
    gains = np.where(has_answer, scores, -answered.astype("float64"))[order]
    sums = np.cumsum(np.append(np.sum(~has_answer), gains))
    best = int(np.argmax(sums))
    if best:
        threshold = null_scores[order[best - 1]]
    else:
        # Below all of them; 0 is so of probabilities.
        threshold = min(0.0, np.nextafter(null_scores.min(), -np.inf))
    return float(sums[best] / len(scores)), float(threshold)


def with_threshold(predictions, null_scores, threshold):
    """Answers, but "" where the null score exceeds the threshold.

    >>> with_threshold(["Rome", "Paris"], [-3.0, 2.5], 0.0)
    ['Rome', '']
    """
    return ["" if score > threshold else answer for answer, score in zip(predictions, null_scores)]


# === Entities ===


def entities(y, predictions):
    """Precision, recall and F1 of entities, and the accuracy of tags, by the rules of `conlleval`.

    An entity is right if its first word, its last word and its type are. Tags may be of IOB1,
    IOB2 (BIO), IOE, BIOES, BILOU or IO, and need not be so on both sides.

    Args:
        y: list of N lists of tags, such as "B-PER", "I-PER", "O".
        predictions: the same.

    Returns:
        Dict of `f1`, `precision`, `recall` and `accuracy`.

    >>> scores = entities([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "O", "O", "B-LOC"]])
    >>> scores["f1"], scores["accuracy"]
    (0.5, 0.75)

    Source: Tjong Kim Sang and De Meulder 2003, the CoNLL-2003 shared task.
    """
    _check_tags(y, predictions)
    counts = sum(_entity_counts(y, predictions).values(), np.zeros(3, int))
    pairs = [(a, b) for gold, found in zip(y, predictions) for a, b in zip(gold, found)]
    right = sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0
    return {**_precision_recall(*counts), "accuracy": right}


def entities_by_type(y, predictions):
    """The lines of `conlleval`'s table: the scores of each type of entity.

    Args:
        y: list of N lists of tags.
        predictions: the same.

    Returns:
        Dict of type to a dict of `f1`, `precision`, `recall`, and `gold` and `predicted`, how many
        entities there are on each side.

    >>> entities_by_type([["B-PER", "O"]], [["B-PER", "B-LOC"]])["LOC"]
    {'f1': 0.0, 'precision': 0.0, 'recall': 0.0, 'gold': 0, 'predicted': 1}
    """
    _check_tags(y, predictions)
    return {
        type: {**_precision_recall(*counts), "gold": int(counts[0]), "predicted": int(counts[1])}
        for type, counts in sorted(_entity_counts(y, predictions).items())
    }


def klue_entities(y, predictions, labels=None):
    """KLUE's scores of entities in tags of characters: the mean F1 of types and that of tags.

    Args:
        y: list of N lists of tags, one a character that is no space.
        predictions: the same.
        labels: list of strings. All tags; one that is nowhere has an F1 of 1. By default those
            that there are.

    Returns:
        Dict of `entity_f1` and `char_f1`.

    Source: Park et al. 2021, arXiv 2105.09680, and its baseline code.
    """
    from sklearn.metrics import f1_score

    _check_tags(y, predictions)
    counts = _entity_counts(y, predictions).values()
    by_type = [_precision_recall(*count)["f1"] for count in counts]
    flat = [[tag for row in rows for tag in row] for rows in (y, predictions)]
    labels = sorted({*flat[0], *flat[1]}) if labels is None else labels
    char_f1 = f1_score(*flat, labels=labels, average="macro", zero_division=1.0)
    return {"entity_f1": float(np.mean(by_type)) if by_type else 0.0, "char_f1": float(char_f1)}


def _check_tags(y, predictions):
    _sizes(y, predictions)
    for position, (gold, found) in enumerate(zip(y, predictions)):
        if len(gold) != len(found):
            raise ValueError(
                f"At position {position} there are {len(gold)} right tags but {len(found)} "
                "predicted ones; give one for each word."
            )


def _entity_counts(y, predictions):
    """How many entities of each type are right answers, predictions, and both: ints (3,)."""
    names = sorted({tag for rows in (y, predictions) for row in rows for tag in row})
    if set(names) <= {OUTSIDE, *"BIELSU"}:
        names.append("B")  # Tags without types, even where none begins an entity.
    names = list(dict.fromkeys(names))
    tags = TagSet(names)
    number = {name: number for number, name in enumerate(names)}
    counts = collections.defaultdict(lambda: np.zeros(3, int))
    for rows in zip(y, predictions):
        gold, found = (set(tags.entities([number[tag] for tag in row])) for row in rows)
        for place, group in enumerate((gold, found, gold & found)):
            for type, _, _ in group:
                counts[type][place] += 1
    return counts


def _precision_recall(gold, found, right):
    precision = right / found if found else 0.0
    recall = right / gold if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": float(f1), "precision": float(precision), "recall": float(recall)}


# What a task names as its metrics. All but `squad2` and `klue_entities`, which know more, take
# `(y, predictions)` only.
METRICS = types.MappingProxyType(
    {
        "accuracy": accuracy,
        "f1": f1,
        "macro_f1": macro_f1,
        "matthews": matthews,
        "pearson": pearson,
        "spearman": spearman,
        "mean_absolute_error": mean_absolute_error,
        "f1_from_3": f1_from,
        "squad": squad,
        "squad2": squad2,
        "korquad": functools.partial(squad, rules="korquad"),
        "jsquad": functools.partial(squad, rules="jsquad"),
        "entities": entities,
        "klue_entities": klue_entities,
    }
)
# The score to look at of those that give several.
MAIN_SCORES = {
    "squad": "f1",
    "squad2": "best_f1",
    "korquad": "f1",
    "jsquad": "f1",
    "entities": "f1",
    "klue_entities": "entity_f1",
}


class ScoreCallback(keras.callbacks.Callback):
    """Scores the model at the end of every epoch of `fit`, on whatever the function looks at.

    The scores stand in the logs, and so in the progress bar and the history, and `EarlyStopping`,
    `ModelCheckpoint` and the like can watch them if they come later in the list of callbacks, with
    `mode="max"`.

    Args:
        score: function of a model that returns a dict of numbers, such as
            `lambda model: {"f1": f1(y, model.predict_proba(x).argmax(-1))}`, or
            `kerasbert.tasks.Task.score_callback`, which makes the whole.
        prefix: string. In front of their names.

    Example:

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x = np.arange(8.0)[:, None]
    >>> watch = ScoreCallback(lambda model: {"r": pearson(x, model.predict(x, verbose=0))})
    >>> history = model.fit(x, x, callbacks=[watch], verbose=0)
    >>> sorted(history.history)
    ['loss', 'val_r']
    """

    def __init__(self, score, prefix="val_"):
        super().__init__()
        self.score = score
        self.prefix = prefix

    def on_epoch_end(self, epoch, logs=None):
        scores = self.score(self.model)
        if logs is not None:
            logs.update((self.prefix + name, float(value)) for name, value in scores.items())

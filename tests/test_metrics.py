"""Scores against scikit-learn, scipy and the official scorers' rules, written down anew here.

The references are as plain as can be, for 1,000 random cases each.
"""

import itertools
import random
import re
import string
import warnings

import keras
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from kerasbert import metrics

# They know no backend, and scikit-learn takes its time.
pytestmark = pytest.mark.backends("tensorflow")
CASES = 1000


# === Classes and numbers ===


def class_cases(classes):
    """Right and predicted classes; at times of one class only."""
    rng = np.random.default_rng(0)
    for _ in range(CASES):
        size = rng.integers(1, 12)
        yield tuple(rng.integers(0, rng.integers(1, classes + 1), size) for _ in range(2))


def f1_by_hand(y, predicted, positive):
    both = sum(a == b == positive for a, b in zip(y, predicted))
    either = sum(a == positive for a in y) + sum(b == positive for b in predicted)
    return 2 * both / either if either else 0.0


def matthews_by_hand(y, predicted):
    """The correlation of the indicators of all classes, summed over them."""
    classes = sorted({*y, *predicted})
    a, b = (
        np.array([[c == k for k in classes] for c in column], float) for column in (y, predicted)
    )
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    norm = np.sqrt((a * a).sum() * (b * b).sum())
    return (a * b).sum() / norm if norm else 0.0


@pytest.mark.filterwarnings("error")
def test_scores_of_classes():
    for case, (y, predicted) in enumerate(class_cases(4)):
        positive = 1
        if case % 2:
            y, predicted, positive = [f"c{i}" for i in y], [f"c{i}" for i in predicted], "c1"
        ours = (
            metrics.matthews(y, predicted),
            metrics.macro_f1(y, predicted),
            metrics.f1(y, predicted, positive),
            metrics.accuracy(y, predicted),
        )
        by_hand = (
            matthews_by_hand(y, predicted),
            np.mean([f1_by_hand(y, predicted, c) for c in {*y, *predicted}]),
            f1_by_hand(y, predicted, positive),
            sum(a == b for a, b in zip(y, predicted)) / len(y),
        )
        assert ours == pytest.approx(by_hand, abs=1e-9)


def test_scores_are_those_of_scikit_learn():
    for y, predicted in itertools.islice(class_cases(2), 100):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # One class only.
            expected = (
                sklearn.metrics.accuracy_score(y, predicted),
                sklearn.metrics.matthews_corrcoef(y, predicted),
                sklearn.metrics.f1_score(y, predicted, zero_division=0),
            )
        ours = [metric(y, predicted) for metric in (metrics.accuracy, metrics.matthews, metrics.f1)]
        assert ours == pytest.approx(expected, abs=1e-12)


def test_one_class_only():
    assert metrics.matthews([1, 1, 1], [1, 1, 1]) == 0.0
    assert metrics.f1([0, 0], [0, 0]) == 0.0
    assert metrics.macro_f1(["a", "a"], ["a", "a"]) == 1.0


def ranks(values):
    """Ranks from 1, the mean of theirs for equal values."""
    return [
        sum(other < value for other in values) + (sum(o == value for o in values) + 1) / 2
        for value in values
    ]


def test_correlations():
    rng = np.random.default_rng(0)
    for case in range(CASES):
        size = rng.integers(3, 12)
        # Few different numbers, and so many ties, in every second case.
        draw = rng.normal if case % 2 else lambda size: rng.integers(0, 3, size) / 2
        y, predicted = draw(size=size), draw(size=size)
        if np.ptp(y) == 0 or np.ptp(predicted) == 0:
            assert metrics.pearson(y, predicted) == metrics.spearman(y, predicted) == 0.0
            continue
        pearson = scipy.stats.pearsonr(y, predicted).statistic
        spearman = scipy.stats.spearmanr(y, predicted).statistic
        assert metrics.pearson(list(y), list(predicted)) == pytest.approx(pearson, abs=1e-12)
        assert metrics.spearman(y, predicted) == pytest.approx(spearman, abs=1e-12)
        assert np.corrcoef(ranks(y), ranks(predicted))[0, 1] == pytest.approx(spearman, abs=1e-9)


def test_a_regressors_column_and_bad_numbers():
    y = [1.0, 2.0, 4.0]
    assert metrics.pearson(y, np.array([[1.0], [2.0], [4.0]])) == pytest.approx(1.0)
    assert np.isnan(metrics.pearson(y, [1.0, float("nan"), 2.0]))
    assert metrics.mean_absolute_error(y, [1, 1, 1]) == pytest.approx(4 / 3)
    assert metrics.pearson([1.0], [2.0]) == 0.0


def test_f1_of_what_is_at_least_three():
    y, predicted = [0.0, 3.0, 2.9, 5.0], [3.0, 3.1, 0.0, 2.0]
    assert metrics.f1_from(y, predicted) == 0.5
    assert metrics.METRICS["f1_from_3"](y, predicted) == 0.5


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.accuracy([1, 0], [1]), "There are 2 right answers but 1 predictions"),
        (lambda: metrics.pearson([], []), "the list of right answers is empty"),
        (lambda: metrics.matthews(["a"], [1]), "pass names for both, or numbers for both"),
        (lambda: metrics.accuracy([0, 1], np.zeros((2, 2))), "predictions has the shape (2, 2)"),
        (lambda: metrics.f1(["a", "b"], ["a", "b"]), "positive=1 is no class like"),
        (lambda: metrics.squad(["a"], ["a"]), "pass a list of right answers and one string"),
        (lambda: metrics.squad([["a"]], ["a"], "mlqa"), "rules='mlqa' are unknown; use one of squ"),
        (lambda: metrics.squad2([["a"]], ["a"], []), "There are 1 right answers but 0 predictions"),
        (lambda: metrics.entities([["O"]], [["O", "O"]]), "At position 0 there are 1 right tags"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


# === Answers: the rules of the scorers, one step after the other ===

PIECES = [
    "the",
    "The",
    "a",
    "an",
    "An",
    "red",
    "Red",
    "house",
    "house.",
    "(house)",
    "1,000",
    "1000",
]
PIECES += [
    "they",
    "and",
    "''",
    "--",
    ".",
    "'",
    '"',
    "The-end",
    "theme",
    " ",
    "\t",
    "\u00a0",
    "café",
]
KOREAN = [
    "서울",
    "《서울》",
    "<서울>",
    "‘서울’",
    "'서울'",
    "서울(수도)",
    "대한 민국",
    "a",
    ".",
    "",
    "「가」",
]
JAPANESE = [
    "東京",
    "東京。",
    "東京都。。",
    "東 京",
    "THE 塔",
    "the 塔",
    "。",
    "",
    "２０年",
    "20年、",
    "a. b",
]


def random_answer(rng, pieces):
    text = rng.choice([" ", "  ", ""]).join(rng.choice(pieces) for _ in range(rng.randint(0, 5)))
    return text if rng.random() < 0.9 else ""


def answer_cases(pieces, at_least=1):
    """1,000 times a few right answers and a prediction, which often has words of theirs."""
    rng = random.Random(0)
    golds, predictions = [], []
    for _ in range(CASES):
        answers = [random_answer(rng, pieces) for _ in range(rng.randint(at_least, 3))]
        prediction = random_answer(rng, pieces)
        if answers and rng.random() < 0.5:
            prediction = rng.choice(answers) + rng.choice(["", ".", " the", " x"])
        golds.append(answers)
        predictions.append(prediction)
    return golds, predictions


def english(text):
    text = text.lower()
    text = "".join(char for char in text if char not in string.punctuation)
    words = re.split(r"(\W+)", text)  # Words at the even places, what is between at the odd ones.
    words = [" " if word in ("a", "an", "the") else word for word in words]
    return " ".join("".join(words).split())


def korean(text):
    for mark in ["'", '"', "《", "》", "<", ">", "〈", "〉", "(", ")", "‘", "’"]:
        text = text.replace(mark, " ")
    text = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(text.split())


def japanese(text):
    text = text.lower()
    while text.endswith("。"):
        text = text[:-1]
    return " ".join(text.split())


def overlap_f1(gold, prediction, empty_matches):
    if empty_matches and (not gold or not prediction):
        return float(gold == prediction)
    left, same = list(gold), 0
    for unit in prediction:
        if unit in left:
            left.remove(unit)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def chars(text):
    return [char for char in text if char != " "]


@pytest.mark.parametrize(
    "rules, pieces, normalize, units, empty_matches",
    [
        ("squad", PIECES, english, str.split, False),
        ("squad2", PIECES, english, str.split, True),
        ("korquad", KOREAN, korean, chars, False),
        ("jsquad", JAPANESE, japanese, list, True),
    ],
)
def test_answers(rules, pieces, normalize, units, empty_matches):
    golds, predictions = answer_cases(pieces)
    exact, f1 = metrics.answer_scores(golds, predictions, rules)
    for position, (answers, prediction) in enumerate(zip(golds, predictions)):
        if empty_matches:
            answers = [answer for answer in answers if normalize(answer)] or [""]
        answers, prediction = [normalize(a) for a in answers], normalize(prediction)
        assert exact[position] == max(float(a == prediction) for a in answers), (
            answers,
            prediction,
        )
        assert f1[position] == pytest.approx(
            max(overlap_f1(units(a), units(prediction), empty_matches) for a in answers), abs=1e-12
        ), (answers, prediction)
    assert 0.1 < exact.mean() < 0.9 and 0.1 < f1.mean() < 0.9
    whole = metrics.squad(golds, predictions, rules)
    assert whole == {"exact_match": exact.mean(), "f1": f1.mean()}


def test_answers_at_the_edges():
    # SQuAD 1.1 finds no word in two empty answers; 2.0 takes them for a match.
    assert metrics.squad([[""]], [""]) == {"exact_match": 1.0, "f1": 0.0}
    assert metrics.squad([["the"]], ["..."]) == {"exact_match": 1.0, "f1": 0.0}
    assert metrics.squad2([[]], [""])["f1"] == 1.0
    assert metrics.squad2([["the"]], ["A"])["f1"] == 1.0
    assert metrics.squad([[]], ["x"]) == {"exact_match": 0.0, "f1": 0.0}
    # KorQuAD counts characters: 서울 in 서울시.
    assert metrics.METRICS["korquad"]([["서울"]], ["서울시"])["f1"] == pytest.approx(0.8)
    # JSQuAD counts the space too, and drops no article.
    assert metrics.METRICS["jsquad"]([["a b"]], ["a c"])["f1"] == pytest.approx(2 / 3)


def best_by_hand(scores, predictions, has_answer, null_scores):
    """As SQuAD 2.0's scorer: no answer at all first, then one question more after the other."""
    current = best = sum(not has for has in has_answer)
    threshold = 0.0
    for index in sorted(range(len(scores)), key=lambda i: null_scores[i]):
        if has_answer[index]:
            current += scores[index]
        elif predictions[index]:
            current -= 1
        if current > best:
            best, threshold = current, null_scores[index]
    return best / len(scores), threshold


def test_squad2_with_the_best_threshold():
    rng = random.Random(1)
    ties = 0
    for case in range(CASES):
        golds, predictions = [], []
        for _ in range(rng.randint(1, 8)):
            golds.append([rng.choice(["x", "x y", "the"])] if rng.random() < 0.5 else [])
            predictions.append(rng.choice(["x", "y", "x y z", ""]))
        # Probabilities, with ties in every second case.
        nulls = [rng.random() if case % 2 else rng.randint(1, 3) / 4 for _ in golds]
        ties += len(set(nulls)) < len(nulls)
        ours = metrics.squad2(golds, predictions, nulls)
        exact, f1 = metrics.answer_scores(golds, predictions, "squad2")
        has = [bool(answers) for answers in golds]
        for name, scores in (("exact_match", exact), ("f1", f1)):
            best, threshold = best_by_hand(scores, predictions, has, nulls)
            assert ours[f"best_{name}"] == pytest.approx(best, abs=1e-12)
            assert ours[f"best_{name}_threshold"] == threshold
            assert ours[name] == pytest.approx(sum(scores) / len(scores))
            for prefix, wanted in (("has_answer_", True), ("no_answer_", False)):
                part = [score for score, h in zip(scores, has) if h == wanted]
                assert (prefix + name in ours) == bool(part)
                if part:
                    assert ours[prefix + name] == pytest.approx(sum(part) / len(part))
        # Without ties, and answers that are nothing but an article, it gives what it says.
        if case % 2 and ["the"] not in golds:
            kept = metrics.with_threshold(predictions, nulls, ours["best_f1_threshold"])
            assert metrics.squad2(golds, kept)["f1"] == pytest.approx(ours["best_f1"])
    assert ties > CASES // 4


def test_a_threshold_below_all_log_odds():
    nulls = [-3.0, -1.0]
    scores = metrics.squad2([[], []], ["x", "y"], nulls)
    assert scores["best_f1"] == 1.0 and scores["best_f1_threshold"] < -3.0
    assert metrics.with_threshold(["x", "y"], nulls, scores["best_f1_threshold"]) == ["", ""]


# === Entities: `conlleval`'s rules between a word and the next ===


def chunks(tags):
    """The entities of one text, by the rules of where a chunk ends and starts."""
    found, start = set(), None
    before, before_type = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        letter, _, kind = tag.partition("-")
        ends = (before, letter) in {
            *(("B", b) for b in "BSO"),
            *(("I", b) for b in "BSO"),
            *((e, b) for e in "ES" for b in "BIESO"),
        }
        ends |= before != "O" and before_type != kind
        starts = letter in "BS" or (before, letter) in {
            *((e, b) for e in "OES" for b in "IE"),
        }
        starts |= letter != "O" and before_type != kind
        if ends and start is not None:
            found.add((before_type, start, place))
            start = None
        if starts:
            start = place
        before, before_type = letter, kind
    return found


def tag_rows(rng, letters, rows, types):
    return [
        [rng.choice(["O", *(f"{b}-{t}" if t else b for b in letters for t in types)]) for _ in row]
        for row in rows
    ]


@pytest.mark.parametrize("letters", ["I", "BI", "IE", "BIES"])
@pytest.mark.parametrize("types", [["PER", "LOC", "X-Y"], [""]])
def test_entities(letters, types):
    """Any order of the tags: IO, IOB1 and IOB2, IOE1 and IOE2, BIOES; with and without types."""
    rng = random.Random(2)
    for _ in range(CASES):
        rows = [range(rng.randint(0, 8)) for _ in range(rng.randint(1, 3))]
        gold, predicted = (tag_rows(rng, letters, rows, types) for _ in range(2))
        if rng.random() < 0.3:  # Nearly right.
            predicted = [row[:-1] + ["O"] if row else row for row in gold]
        scores = metrics.entities(gold, predicted)
        found = [
            [(i, *c) for i, row in enumerate(t) for c in chunks(row)] for t in (gold, predicted)
        ]
        right = len(set(found[0]) & set(found[1]))
        precision = right / len(found[1]) if found[1] else 0.0
        recall = right / len(found[0]) if found[0] else 0.0
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        pairs = [pair for rows in zip(gold, predicted) for pair in zip(*rows)]
        accuracy = sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0
        expected = {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}
        assert scores == pytest.approx(expected, abs=1e-12), (gold, predicted)
        by_type = metrics.entities_by_type(gold, predicted)
        for side, name in enumerate(("gold", "predicted")):
            assert sum(row[name] for row in by_type.values()) == len(found[side])


def test_entities_at_the_edges():
    nothing = metrics.entities([["O", "O"]], [["O", "O"]])
    assert nothing == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 1.0}
    # An entity does not go on in the next sentence.
    rows = [["B-PER"], ["I-PER"]]
    assert metrics.entities_by_type(rows, rows)["PER"]["gold"] == 2
    # IOB1 on one side, IOB2 on the other.
    iob1, iob2 = ["I-PER", "B-PER", "I-LOC"], ["B-PER", "B-PER", "B-LOC"]
    scores = metrics.entities([iob1], [iob2])
    assert scores["f1"] == 1.0 and scores["accuracy"] == pytest.approx(1 / 3)
    bilou = [["B-PER", "L-PER", "U-LOC", "O"]], [["B-PER", "I-PER", "B-LOC", "O"]]
    assert metrics.entities(*bilou)["f1"] == 1.0


def test_klue_entities():
    gold, predicted = [["B-PS", "I-PS", "O", "B-LC"]], [["B-PS", "I-PS", "B-LC", "O"]]
    labels = ["O", "B-PS", "I-PS", "B-LC", "I-LC"]
    scores = metrics.klue_entities(gold, predicted, labels)
    assert scores["entity_f1"] == 0.5  # PS 1, LC 0
    assert scores["char_f1"] == pytest.approx((0 + 1 + 1 + 0 + 1) / 5)  # I-LC is nowhere.
    assert metrics.klue_entities(gold, predicted)["char_f1"] == pytest.approx(2 / 4)


# === In `fit` ===


def test_others_watch_the_scores_in_fit(tmp_path):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")

    def model():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.1), loss)
        return model

    def score(model):
        return {"matthews": metrics.matthews(y, model.predict(x, verbose=0).argmax(-1))}

    plain, watched = model(), model()
    settings = {"epochs": 8, "batch_size": 4, "shuffle": False, "verbose": 0}
    plain.fit(x, y, **settings)
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.keras"), monitor="val_matthews", mode="max", save_best_only=True
    )
    callbacks = [metrics.ScoreCallback(score), best]
    history = watched.fit(x, y, callbacks=callbacks, **settings).history
    assert len(history["val_matthews"]) == 8
    assert history["val_matthews"][-1] == score(watched)["matthews"] > 0.5
    # Scoring leaves the training as it is.
    for ours, theirs in zip(watched.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    saved = keras.models.load_model(tmp_path / "best.keras")
    assert score(saved)["matthews"] == max(history["val_matthews"])

    stop = keras.callbacks.EarlyStopping("val_fixed", patience=2, mode="max")
    callbacks = [metrics.ScoreCallback(lambda model: {"fixed": 0.5}), stop]
    assert len(model().fit(x, y, epochs=9, callbacks=callbacks, verbose=0).epoch) == 3

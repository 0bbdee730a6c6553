"""Scores of answers compared with plain implementations of the official scorers' rules."""

import random
import re
import string

import pytest

from kerasbert import metrics

# No backend is involved, and scikit-learn is slow.
pytestmark = pytest.mark.backends("tensorflow")
CASES = 1000


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
    """Return 1,000 cases of a few right answers and a prediction, which often shares words."""
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
    # Words are at even places, and the text between them is at odd places.
    words = re.split(r"(\W+)", text)
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
    # SQuAD 1.1 finds no common word in two empty answers; 2.0 counts them as a match.
    assert metrics.squad([[""]], [""]) == {"exact_match": 1.0, "f1": 0.0}
    assert metrics.squad([["the"]], ["..."]) == {"exact_match": 1.0, "f1": 0.0}
    assert metrics.squad2([[]], [""])["f1"] == 1.0
    assert metrics.squad2([["the"]], ["A"])["f1"] == 1.0
    assert metrics.squad([[]], ["x"]) == {"exact_match": 0.0, "f1": 0.0}
    # KorQuAD compares characters: 서울 in 서울시.
    assert metrics.METRICS["korquad"]([["서울"]], ["서울시"])["f1"] == pytest.approx(0.8)
    # JSQuAD also counts spaces, and drops no articles.
    assert metrics.METRICS["jsquad"]([["a b"]], ["a c"])["f1"] == pytest.approx(2 / 3)


def best_by_hand(scores, predictions, has_answer, null_scores):
    """Return the best score as SQuAD 2.0's scorer does: starting with "no answer" for all
    questions, it accepts the answer of one more question at a time.
    """
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
        # Without ties, and without answers of only an article, the official scorer agrees.
        if case % 2 and ["the"] not in golds:
            kept = metrics.with_threshold(predictions, nulls, ours["best_f1_threshold"])
            assert metrics.squad2(golds, kept)["f1"] == pytest.approx(ours["best_f1"])
    assert ties > CASES // 4


def test_a_threshold_below_all_log_odds():
    nulls = [-3.0, -1.0]
    scores = metrics.squad2([[], []], ["x", "y"], nulls)
    assert scores["best_f1"] == 1.0 and scores["best_f1_threshold"] < -3.0
    assert metrics.with_threshold(["x", "y"], nulls, scores["best_f1_threshold"]) == ["", ""]

"""Scores of tags compared with a plain implementation of `conlleval`'s rules."""

import random

import pytest

from kerasbert import metrics

# No backend is involved, and scikit-learn is slow.
pytestmark = pytest.mark.backends("tensorflow")
CASES = 1000


def chunks(tags):
    """Return the entities of one text, by the rules for where a chunk ends and starts."""
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


@pytest.mark.slow
@pytest.mark.parametrize("letters", ["I", "BI", "IE", "BIES"])
@pytest.mark.parametrize("types", [["PER", "LOC", "X-Y"], [""]])
def test_entities(letters, types):
    """Any order of the tags: IO, IOB1 and IOB2, IOE1 and IOE2, BIOES; with and without types."""
    rng = random.Random(2)
    for _ in range(CASES):
        rows = [range(rng.randint(0, 8)) for _ in range(rng.randint(1, 3))]
        gold, predicted = (tag_rows(rng, letters, rows, types) for _ in range(2))
        if rng.random() < 0.3:  # Nearly correct predictions.
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
    # An entity does not continue in the next sentence.
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
    assert scores["char_f1"] == pytest.approx((0 + 1 + 1 + 0 + 1) / 5)  # I-LC occurs nowhere.
    assert metrics.klue_entities(gold, predicted)["char_f1"] == pytest.approx(2 / 4)

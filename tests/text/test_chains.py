"""Decoding of a CRF over words, compared with all paths over pieces."""

import itertools

import numpy as np
import pytest

from kerasbert.text.chains import Chains
from kerasbert.text.tagging import TagSet

pytestmark = pytest.mark.backends("tensorflow")  # NumPy runs this code on every backend.


@pytest.mark.parametrize("label_pieces", ["first", "all"])
@pytest.mark.parametrize("names", [["O", "B", "I"], ["O", "B-X", "I-X", "E-X", "S-X"]])
def test_all_paths(names, label_pieces):
    rng, classes, tags = np.random.default_rng(0), len(names), TagSet(names)
    transitions = rng.normal(size=(classes, classes))
    start, end = rng.normal(size=(2, classes))
    chains = Chains(transitions, start, end, names, label_pieces)
    for _ in range(10):
        counts = rng.integers(1, 4, rng.integers(1, 9))
        rows = np.sort(rng.integers(0, 4, len(counts)))
        first = np.cumsum(counts) - counts + rng.integers(0, 2)
        logits = rng.normal(size=(counts.sum() + 1, classes))
        labels, odds = chains.decode(logits, first, counts, rows)
        for row in set(rows):
            units = np.flatnonzero(rows == row)
            if len(units) > 4:
                continue
            paths = list(itertools.product(range(classes), repeat=len(units)))
            scores = []
            for path in paths:
                if label_pieces == "first":
                    pieces, steps = path, first[units]
                else:
                    table = tags.of_pieces()
                    pieces = [
                        table[label, int(place == 0), int(place == counts[unit] - 1)]
                        for label, unit in zip(path, units)
                        for place in range(counts[unit])
                    ]
                    steps = np.concatenate([first[u] + np.arange(counts[u]) for u in units])
                score = start[pieces[0]] + end[pieces[-1]] + logits[steps, pieces].sum()
                scores.append(score + sum(transitions[a, b] for a, b in zip(pieces, pieces[1:])))
            assert tuple(labels[units]) == paths[int(np.argmax(scores))]
            shares = np.exp(scores) / np.exp(scores).sum()
            for place, unit in enumerate(units):
                expected = [shares[[p[place] == c for p in paths]].sum() for c in range(classes)]
                np.testing.assert_allclose(odds[unit], expected, atol=1e-12)


def test_texts_are_decoded_in_parts(monkeypatch):
    rng = np.random.default_rng(1)
    chains = Chains(*(rng.normal(size=shape) for shape in ((3, 3), 3, 3)), [], "first")
    rows = np.sort(rng.integers(0, 20, 90))
    arguments = rng.normal(size=(90, 3)), np.arange(90), np.ones(90, int), rows
    whole = chains.decode(*arguments)
    monkeypatch.setattr("kerasbert.text.chains._MOST", 60)
    for one, part in zip(whole, chains.decode(*arguments), strict=True):
        np.testing.assert_allclose(part, one, atol=1e-12)
    nothing = chains.decode(np.zeros((0, 3)), *np.zeros((3, 0), int))
    assert [len(x) for x in nothing] == [0, 0]

"""The decoding of answer spans, compared with loops that follow the rules of BERT's release."""

import math

import numpy as np
import pytest

from kerasbert.heads.base.spans import MASKED, best_spans


def slow_spans(start_logits, end_logits, starts, ends, n_best, max_length, threshold):
    """Return `(spans, probabilities, null score)`, by one loop per rule."""
    found = []
    for n in (n_best, start_logits.shape[1]):
        for window in range(len(start_logits)):
            for i in highest(start_logits[window], n):
                for j in highest(end_logits[window], n):
                    if not starts[window][i] or not ends[window][j]:
                        continue
                    if j < i or j - i + 1 > max_length:
                        continue
                    total = float(start_logits[window][i]) + float(end_logits[window][j])
                    found.append((total, (window, i, j)))
        if found:
            break
    found = sorted(found, key=lambda pair: -pair[0])[:n_best]  # stable
    null = min(float(s[0]) + float(e[0]) for s, e in zip(start_logits, end_logits, strict=True))
    null_score = null - found[0][0]
    answers = list(found)
    if threshold is not None:
        answers.append((null - (0 if threshold == math.inf else threshold), (-1, -1, -1)))
    most = max(total for total, _ in answers)
    weights = [math.exp(total - most) for total, _ in answers]
    scored = [(span, w / sum(weights)) for (_, span), w in zip(answers, weights, strict=True)]
    if threshold is not None:
        null_entry = scored.pop()
        place = 0
        while place < len(found) and null - found[place][0] <= threshold:
            place += 1
        if threshold != math.inf:
            scored.insert(place, null_entry)
    return [span for span, _ in scored], [score for _, score in scored], null_score


def highest(logits, n):
    return sorted(range(len(logits)), key=lambda i: -logits[i])[:n]


def random_case(random):
    """Return logits of realistic rows: first token, question, context, separator, padding."""
    windows, question = random.integers(1, 5), random.integers(1, 5)
    lengths = random.integers(1, 40, windows)
    size = question + 3 + lengths.max()
    if random.random() < 0.5:
        logits = random.normal(0, 4, (2, windows, size))
    else:
        logits = random.integers(-2, 3, (2, windows, size))  # Many logits are equal.
    position = np.arange(size)
    logits[:, :, 0] += random.integers(0, 9)  # "No answer" is sometimes likely.
    padded = position >= (question + 3 + lengths)[:, None]
    logits = np.where(padded, MASKED, logits).astype("float32")
    begin = question + 2
    ends = (position >= begin) & (position < (begin + lengths)[:, None])
    starts = ends & (random.random(ends.shape) < 0.7)
    first = tuple(np.argwhere(ends)[0])
    starts[first] = True
    return *logits, starts, ends


@pytest.mark.slow
def test_a_thousand_random_cases_are_as_the_rules_say():
    random = np.random.default_rng(0)
    nulls = fallbacks = ties = 0
    for case in range(1000):
        start_logits, end_logits, starts, ends = random_case(random)
        n_best, max_length = random.choice([1, 3, 20]), random.choice([1, 5, 30])
        threshold = random.choice([None, -2.0, 0.0, 1.5, math.inf])
        arguments = (start_logits, end_logits, starts, ends, n_best, max_length, threshold)
        spans, scores, null_score = best_spans(*arguments)
        want_spans, want_scores, want_null = slow_spans(*arguments)
        assert [tuple(span) for span in spans] == want_spans, case
        np.testing.assert_allclose(scores, want_scores, rtol=1e-9)
        assert null_score == pytest.approx(want_null, abs=1e-12)
        assert threshold == math.inf or sum(scores) == pytest.approx(1)
        assert np.all(np.diff(scores) <= 1e-9)  # Best first, whatever the threshold.
        nulls += want_spans[0][0] == -1
        ties += len(set(want_scores)) < len(want_scores)
        window, first, _ = spans[-1]
        fallbacks += first not in highest(start_logits[window], n_best)
    # Each rule was applied at least once.
    assert min(nulls, fallbacks, ties) > 50


def test_what_may_be_no_answer_is_none():
    start, end = np.full((2, 1, 6), MASKED)
    start[0, :4], end[0, :4] = [9, 9, 1, 0], [9, 9, 0, 1]
    allowed = np.array([[False, False, True, True, False, False]])
    spans, scores, _ = best_spans(start, end, allowed, allowed)
    assert [tuple(span) for span in spans] == [(0, 2, 3), (0, 2, 2), (0, 3, 3)]
    assert np.all(np.diff(scores) <= 0)
    with pytest.raises(ValueError, match="The context has no token that may be an answer"):
        best_spans(start, end, allowed & False, allowed)


def test_null_score_is_of_the_window_that_sees_most_of_an_answer():
    start = np.array([[1.0, 0.0], [5.0, 0.0]])
    end = np.array([[2.0, 3.0], [5.0, 0.0]])
    allowed = np.array([[False, True]] * 2)
    spans, scores, null_score = best_spans(start, end, allowed, allowed, null_threshold=0.0)
    # 1 + 2 of the first window against 0 + 3: not above the threshold.
    assert null_score == 0.0 and tuple(spans[0]) == (0, 1, 1)
    assert scores[0] == pytest.approx(1 / (2 + math.exp(-3)))
    # "No answer" is in its place: after an equal span and before a worse one.
    assert tuple(spans[1]) == (-1, -1, -1) and scores[1] == scores[0] > scores[2]
    spans, _, _ = best_spans(start, end, allowed, allowed, null_threshold=-0.1)
    assert tuple(spans[0]) == (-1, -1, -1) and tuple(spans[1]) == (0, 1, 1)


def test_a_threshold_moves_the_null_answer_to_its_place():
    start, end = np.array([[4.0, 5.0, 1.0]]), np.array([[0.0, 5.0, 1.0]])
    allowed = np.array([[False, True, True]])
    for threshold, place in ((None, None), (math.inf, None), (1.0, 2), (-5.0, 1), (-7.0, 0)):
        spans, scores, _ = best_spans(start, end, allowed, allowed, 20, 30, threshold)
        found = [place for place, span in enumerate(spans) if span[0] < 0]
        assert found == ([] if place is None else [place])
        assert np.all(np.diff(scores) <= 0)
        assert (sum(scores) < 0.999) == (threshold == math.inf)

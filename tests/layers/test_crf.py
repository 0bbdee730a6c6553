"""`CRF`: likelihoods, best paths and marginals, compared with all paths and with pytorch-crf."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from kerasbert import backend
from kerasbert.layers import CRF
from tests.contracts import array
from tests.peers import Peer, torch

torchcrf = Peer("torchcrf")
# Rows with gaps, a single token, no token and all tokens.
MASK = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])


def random_crf(classes=3, allowed=None, seed=0):
    """Return a layer with random weights, and their values."""
    rng = np.random.default_rng(seed)
    layer = CRF(allowed)
    layer.build((None, None, classes))
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer, *map(array, (layer.transitions, layer.start, layer.end))


def random_row(shape, classes=3, seed=1):
    rng = np.random.default_rng(seed)
    emissions = 2 * rng.normal(size=(*shape, classes))
    return emissions.astype("float32"), rng.integers(0, classes, shape)


def all_paths(emissions, transitions, start, end):
    """Return all paths of a chain (C ** T, T) and their scores, without recursions."""
    paths = np.array(list(itertools.product(range(emissions.shape[1]), repeat=len(emissions))))
    scores = emissions[np.arange(len(emissions)), paths].sum(axis=1)
    scores += transitions[paths[:, :-1], paths[:, 1:]].sum(axis=1)
    return paths, scores + start[paths[:, 0]] + end[paths[:, -1]]


def log_sum_exp(scores):
    return np.log(np.exp(scores - scores.max()).sum()) + scores.max()


def test_losses_are_those_over_all_paths():
    layer, *weights = random_crf()
    emissions, labels = random_row(MASK.shape)
    labels[MASK == 0] = -100
    losses = array(layer.losses_of_tokens(emissions, labels, MASK))
    assert losses.dtype == np.float32 and not losses[MASK == 0].any()
    for row in range(len(MASK)):
        there = np.flatnonzero(MASK[row])
        for count in range(1, len(there) + 1):
            # The loss of a token is conditional on the labels before it.
            paths, scores = all_paths(emissions[row, there], *weights)
            before, now = (
                log_sum_exp(scores[(paths[:, :n] == labels[row, there[:n]]).all(axis=1)])
                for n in (count - 1, count)
            )
            assert losses[row, there[count - 1]] == pytest.approx(before - now, abs=1e-5)


@pytest.mark.parametrize("is_limited", [False, True])
def test_decoding_is_that_over_all_paths(is_limited):
    # Class 1 may not follow class 0 nor begin a chain, and class 2 may not end one.
    allowed = np.ones((4, 4), bool)
    allowed[[0, 3, 2], [1, 1, 3]] = False
    layer, *weights = random_crf(allowed=allowed.tolist() if is_limited else None)
    emissions, _ = random_row(MASK.shape)
    best, odds = array(layer.best_path(emissions, MASK)), array(layer.marginals(emissions, MASK))
    for row in range(len(MASK)):
        alone = MASK[row] == 0
        np.testing.assert_array_equal(best[row, alone], emissions[row, alone].argmax(-1))
        there = np.flatnonzero(MASK[row])
        if not len(there):
            continue
        paths, scores = all_paths(emissions[row, there], *weights)
        if is_limited:
            steps = np.pad(paths, [[0, 0], [1, 1]], constant_values=3)
            is_good = allowed[steps[:, :-1], steps[:, 1:]].all(axis=1)
            paths, scores = paths[is_good], scores[is_good]
        np.testing.assert_array_equal(best[row, there], paths[scores.argmax()])
        shares = np.exp(scores - log_sum_exp(scores))
        for place, position in enumerate(there):
            expected = [shares[paths[:, place] == label].sum() for label in range(3)]
            np.testing.assert_allclose(odds[row, position], expected, atol=1e-5)


def test_scores_for_metrics_have_the_best_path():
    layer, *_ = random_crf()
    emissions, labels = random_row(MASK.shape)
    layer.losses_of_tokens(emissions, labels, MASK)
    scores = array(layer.decoded_scores(emissions, MASK))
    best = array(layer.best_path(emissions, MASK))
    np.testing.assert_array_equal(scores.argmax(-1), best)
    others = np.arange(3) != best[:, :, None]
    odds = array(layer.marginals(emissions, MASK))
    np.testing.assert_allclose(np.exp(scores)[others], odds[others], atol=1e-5)


@pytest.mark.slow_on_tensorflow
def test_long_chains_in_half_precision():
    """Losses and gradients of 512 extreme tokens are finite; emissions are cast to float32."""
    layer, *_ = random_crf(classes=5)
    emissions, labels = random_row((2, 512), classes=5)
    mask = np.ones((2, 512))
    mask[1, 3:] = 0
    x = ops.cast(100 * emissions, "bfloat16")

    def total(weight):
        return ops.sum(layer.losses_of_tokens(weight * ops.cast(x, "float32"), labels, mask))

    value, gradient = backend.value_and_gradient(total, ops.ones(()))
    assert np.isfinite(value) and np.isfinite(gradient) and gradient > 0
    assert array(layer.losses_of_tokens(x, labels, mask)).dtype == np.float32


def test_config():
    layer = CRF(allowed=[[True, False], [True, True]])
    assert CRF.from_config(layer.get_config()).allowed == layer.allowed
    built = keras.Sequential([keras.Input((None, 1)), layer])
    assert [weight.path.split("/")[-1] for weight in built.weights] == [
        "transitions",
        "start",
        "end",
    ]
    assert {weight.dtype for weight in built.weights} == {"float32"}


@pytest.mark.peers
@pytest.mark.backends("tensorflow", "torch")
def test_as_in_pytorch_crf():
    """Masks of pytorch-crf are prefixes, so the other tokens of our rows are removed for it."""
    classes, rng = 7, np.random.default_rng(2)
    layer, transitions, start, end = random_crf(classes)
    emissions, labels = random_row((40, 30), classes)
    mask = rng.random((40, 30)) < rng.uniform(0.1, 1, (40, 1))
    mask[:, 4] = True
    theirs = torchcrf.CRF(classes, batch_first=True)
    with torch.no_grad():
        for ours, weight in (
            (transitions, theirs.transitions),
            (start, theirs.start_transitions),
            (end, theirs.end_transitions),
        ):
            weight.copy_(torch.from_numpy(ours.copy()))
    order = np.argsort(~mask, axis=1, kind="stable")
    in_order = [
        torch.from_numpy(np.take_along_axis(x, index, axis=1))
        for x, index in ((emissions, order[:, :, None]), (labels, order), (mask, order))
    ]
    expected = [-theirs(*in_order, reduction=name).item() for name in ("sum", "token_mean")]
    losses = array(layer.losses_of_tokens(emissions, labels, mask))
    np.testing.assert_allclose([losses.sum(), losses.sum() / mask.sum()], expected, rtol=1e-5)
    rows = -theirs(*in_order, reduction="none").detach().numpy()
    np.testing.assert_allclose(losses.sum(axis=1), rows, rtol=1e-5, atol=1e-5)
    best = array(layer.best_path(emissions, mask))
    paths = theirs.decode(in_order[0], mask=in_order[2])
    assert [row[there].tolist() for row, there in zip(best, mask)] == paths

"""Exported graphs validate requests: ranks, sizes and ranges of ids."""

import time

import numpy as np
import pytest
import tensorflow as tf

from kerasbert.base import runtimes
from kerasbert.export import (
    export_litert,
    export_onnx,
    export_openvino,
)
from kerasbert.heads.base.decoding import limit_windows
from kerasbert.heads.base.requests import axes_of, conditions, fail_unless, limits_of
from kerasbert.heads.base.served_models import served
from tests.campaigns import requests
from tests.export import tiny

NAMES = ("token_ids", "segment_ids", "padding_mask")
# The error for each invalid request, and the inputs that make it invalid.
WRONG = {
    "token_ids must be from 0 to 170": {"token_ids": [[1, -1, 0]]},
    "token_ids must be from 0 to": {"token_ids": [[1, 171, 0]]},
    "segment_ids must be from 0 to 1": {"segment_ids": [[0, 2, 0]]},
    "segment_ids must be from": {"segment_ids": [[0, -(2**31), 0]]},
    "padding_mask must be from 0 to 1": {"padding_mask": [[1, 2, 0]]},
    "padding_mask must have as many rows and tokens per row as": {"padding_mask": [[1]]},
    "segment_ids must have as many rows and tokens per row as": {"segment_ids": [[1] * 3] * 2},
    "A row must have 1 to 64 tokens": {name: np.zeros((1, 65)) for name in NAMES},
    "A row must have 1 to": {name: np.zeros((2, 0)) for name in NAMES},
}


def right(**changes):
    found = {"token_ids": [[1, 2, 3]], "segment_ids": [[0, 1, 1]], "padding_mask": [[1, 1, 0]]}
    return {name: np.array(x, "int32") for name, x in {**found, **changes}.items()}


def broken(model, features):
    """Return the messages of the conditions that a request violates."""
    specs = {name: tf.TensorSpec((None,) * x.ndim, x.dtype, name) for name, x in features.items()}
    limits = limits_of(model, specs)
    features = {name: tf.constant(x) for name, x in features.items()}
    return [text for text, met, _ in conditions(features, axes_of(specs), limits) if not met]


@pytest.mark.backends("tensorflow")
def test_conditions_of_token_ids():
    encoder = tiny.encoder()
    assert broken(encoder, right()) == []
    assert broken(encoder, {name: np.zeros((0, 3), "int32") for name in NAMES}) == []
    for said, changes in WRONG.items():
        (found, *_) = broken(encoder, right(**changes))
        assert found.startswith(said)
    rows = {"token_ids": np.zeros((2, 3), "int32")}
    for name in ("mask_positions", "word_starts", "word_counts"):
        assert broken(encoder, {**rows, name: np.array([[0], [2]], "int32")}) == []
        for place in (-1, 3):
            (found,) = broken(encoder, {**rows, name: np.array([[0], [place]], "int32")})
            assert found.startswith(f"{name} must be from 0 to the last position of the row")
        (found,) = broken(encoder, {**rows, name: np.zeros((3, 1), "int32")})
        assert found.startswith(f"{name} must have as many rows as token_ids")


@pytest.mark.backends("tensorflow")
def test_an_op_fails_where_a_condition_is_not_met():
    found = [("It must be so; it is", tf.constant(True), []), ("Or so", tf.constant(False), [])]
    features = {"padding_mask": tf.ones([2, 3], tf.int32), "token_ids": tf.ones([2, 3], tf.int32)}
    same = fail_unless(features, found[:1])
    assert all((same[name] == features[name]).numpy().all() for name in features)
    with pytest.raises(tf.errors.InvalidArgumentError):
        fail_unless(features, found)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_a_served_model_refuses_what_ended_its_process(export):
    path = export(tiny.task("TextClassifier"), tokens_only=True)
    tokens = tf.saved_model.load(path).signatures["tokens"]
    assert tokens(**right())["logits"].shape == (1, 3)
    assert tokens(**{name: np.zeros((0, 3), "int32") for name in NAMES})["logits"].shape == (0, 3)
    for shape in ((1,), (), (2, 3, 4)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected shape"):
            tokens(**{name: tf.zeros(shape, tf.int32) for name in NAMES})
    for said, changes in WRONG.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            tokens(**right(**changes))


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("export", [export_onnx, export_openvino, export_litert])
def test_files_for_other_runtimes_refuse_it_too(export, monkeypatch, tmp_path):
    tiny.write_here(monkeypatch)
    model = tiny.task("TextClassifier")
    fixed = export is export_litert
    path = export(model, tmp_path / "file", **({"sequence_length": 3} if fixed else {}))
    of = {export_onnx: runtimes.onnx_runtime, export_openvino: runtimes.openvino}
    run = of.get(export, runtimes.litert)(path)
    assert np.isfinite(run(right())["logits"]).all()
    for said, changes in WRONG.items():
        if said.startswith("A row") and export is not export_onnx:
            continue  # The runtimes check shapes themselves.
        if said.startswith("padding_mask must have") and export is export_litert:
            continue  # LiteRT resizes an input of fixed length and broadcasts it.
        if export is export_openvino:
            assert np.isnan(run(right(**changes))["logits"]).all(), said
            continue
        with pytest.raises(Exception, match="must|bounds|Shape mismatch"):
            run(right(**changes))
    assert np.isfinite(run(right())["logits"]).all()


@pytest.mark.backends("tensorflow")
def test_windows_are_counted_for_each_text():
    rows = tf.constant([0, 1, 1, 3, 3, 3])
    assert limit_windows(rows, 5, 3) is not None and limit_windows(rows, 5, None) is rows
    assert limit_windows(rows[:0], 0, 3).shape == (0,)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 2 windows"):
        limit_windows(rows, 5, 2)


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "name",
    ["QuestionAnswering", "TokenClassifier", "ReplacedTokenDetector", "CausalLM", "MaskedLM"],
)
def test_texts_of_too_many_windows_are_refused_at_once(name):
    settings = requests.CAUSAL if name == "CausalLM" else None
    task = served(tiny.task(name, encoder_settings=settings), settings={"max_windows": 9})
    task.labels = task.own_labels
    one = task.signatures()["serving_default"]
    answer = tf.function(one.checked, autograph=False).get_concrete_function(**one.inputs)
    few, many = "abcde [MASK] " * 5, "abcde [MASK] " * 20_000
    ask = {key: tf.constant([few, few]) for key in one.inputs}
    assert all(len(x) == 2 for x in answer(**ask).values())
    texts = {"question": ["who?"] * 2}
    ask = {key: tf.constant(texts.get(key, [few, many])) for key in ask}
    began = time.monotonic()
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 9 windows"):
        answer(**ask)
    assert time.monotonic() - began < 10  # Answering would take minutes.


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("format", requests.FORMATS)
@pytest.mark.parametrize("name", ["TextClassifier", "MaskedLM"])
def test_malformed_requests(name, format):
    assert requests.run(100, seed=1, only=[name], formats=[format]) == []

"""A process that was forked from one that used a model raises an error; it used to hang."""

import os
import pathlib
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from kerasbert.models import BertTextClassifier, BertTextClassifierPreprocessor
from tests.contracts import bert_tokenizer, tiny_backbone

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
]


def forked(action):
    """Return the error of an action in a forked process, `None` if it hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    for _ in range(600):
        if os.waitpid(child, os.WNOHANG)[0]:
            return os.read(reader, 10_000).decode()
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


@pytest.mark.slow
def test_each_way_into_a_model():
    tokenizer = bert_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length=8)
    model = BertTextClassifier(
        tiny_backbone(vocabulary_size=7), preprocessor=preprocessor, num_classes=2
    )
    model.classify("a b")
    arrays = {
        name: np.ones((2, 8), "int32") for name in ("token_ids", "segment_ids", "padding_mask")
    }
    for action in (
        lambda: tokenizer("a b"),
        lambda: preprocessor(["a b"]),
        lambda: model.classify("a b"),
        lambda: model.backbone(arrays),
        lambda: model(arrays),
        lambda: model.predict(arrays, verbose=0),
        lambda: model.fit(arrays, np.zeros(2), verbose=0),
        lambda: model.evaluate(arrays, np.zeros(2), verbose=0),
        lambda: tiny_backbone(),
    ):
        said = forked(action)
        assert said is not None, "it hangs"
        assert said.startswith("RuntimeError: ")
        assert f"This process was forked from process {os.getpid()}, which had used" in said
        assert "get_context('spawn')" in said


# What a parent process does before it forks, and whether a child can then classify.
USES = {
    "nothing": ("", True),
    "tensorflow_imported": ("import tensorflow", True),
    "tensorflow": ("import tensorflow as tf; tf.constant(1) + 1", False),
    "tf_data": ("import tensorflow as tf; list(tf.data.Dataset.range(3))", False),
    "tensorflow_1": (
        # Before kerasbert is imported, only an eager context can be detected.
        "import kerasbert, tensorflow as tf\n"
        "with tf.Graph().as_default(), tf.compat.v1.Session() as s: s.run(tf.constant(1) + 1)",
        False,
    ),
    "backend_imported": (f"import {keras.backend.backend()}", True),
    "keras": (
        "import keras, numpy as np\n"
        "m = keras.Sequential([keras.layers.Dense(600)])\n"
        "m.predict(np.ones((300, 800)), verbose=0)",
        False,
    ),
    "jax": ("import jax.numpy as jnp; jnp.ones(3) + 1", False),
    "torch": ("import torch; torch.ones(800, 800) @ torch.ones(800, 800)", False),
    "torch_few": ("import torch; torch.ones(3) + 1", True),
}
BACKENDS = {"jax": "jax", "torch": "torch", "torch_few": "torch"}
PROGRAM = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
{use}
for _ in range(2):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        try:
            import kerasbert
            model = kerasbert.models.BertTextClassifier.from_preset(
                "bert_tiny_demo_en_uncased", num_classes=2
            )
            model.classify(["a b"])
            said = "works"
        except RuntimeError as error:
            said = str(error)
        print(f"child of {{os.getppid()}}:", said, flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("hangs")
    import kerasbert  # The next child is forked after the import.
"""


def case(name):
    marks = [pytest.mark.backends(BACKENDS[name])] if name in BACKENDS else []
    return pytest.param(name, marks=[pytest.mark.slow, *marks])


@pytest.mark.parametrize("name", [case(name) for name in USES])
def test_whoever_used_a_runtime_before_the_fork(name):
    use, works = USES[name]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(use=use)],
        # Users have several threads; PyTorch's threads do not survive a fork.
        env={
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "PYTHONPATH": str(ROOT),
            "KERAS_BACKEND": keras.backend.backend(),
        },
        capture_output=True,
        text=True,
    )
    said = [line for line in ran.stdout.splitlines() if line.startswith("child of ")]
    assert len(said) == 2 and "hangs" not in ran.stdout, ran.stderr
    for line in said:
        parent = line.split(":")[0].removeprefix("child of ")
        # Few texts need no TensorFlow on other backends.
        others = "tensorflow" in use and keras.backend.backend() != "tensorflow"
        if works or (others and line.endswith(": works")):
            assert line.endswith(": works")
        else:
            assert f"was forked from process {parent}, which had used " in line
            assert "get_context('spawn')" in line


def test_a_server_is_told_only_where_a_model_is_needed(monkeypatch, capfd):
    """A worker may serve results that were computed before the fork."""
    from kerasbert.base import process as _process

    monkeypatch.setattr(_process, "_FORKS_WORKER", {(__name__, "forked"): None})
    model = tiny_backbone()
    assert forked(lambda: None) == ""  # The worker ended before its action.
    assert "This process was forked from process" in capfd.readouterr().err
    monkeypatch.setattr(_process, "_holds_model", lambda: False)
    assert forked(lambda: None) == "nothing"
    assert model.built

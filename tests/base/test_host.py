"""Triton and TensorFlow in one process, as with PyTorch for a GPU and `transformers`."""

import os
import subprocess
import sys

import pytest

# Each process here sets its own backend.
pytestmark = [pytest.mark.peers, pytest.mark.backends("tensorflow")]


def run(code, backend):
    import triton  # noqa: F401  Without it nothing is tested.

    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_other_order_aborts():
    """If this test fails because the process no longer aborts, `host` need not import Triton."""
    done = run("import tensorflow, triton", "tensorflow")
    assert done.returncode < 0 and "registered more than once" in done.stderr


ORDINARY = """
import sys
import kerasbert, torch
from transformers import BertModel
import torch._dynamo

torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]).zero_grad()
tokenizer = kerasbert.tokenizers.BertTokenizer.from_preset("bert_tiny_demo_en_uncased")
assert tokenizer("good") and {"triton", "tensorflow"} <= set(sys.modules)
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_kerasbert_first(backend):
    done = run(ORDINARY, backend)
    assert done.returncode == 0, done.stderr[-2000:]


COMMAND = """
import sys

sys.argv = ["kerasbert", "export", "nowhere", "out"]
from kerasbert.cli import main

main()
"""


def test_the_command():
    done = run(COMMAND, "torch")
    assert done.returncode == 2 and "nowhere" in done.stderr, done.stderr[-2000:]


WITHOUT_TENSORFLOW = """
import importlib.util
import sys

find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "tensorflow" else find(name)
from kerasbert.base import host

assert "triton" not in sys.modules
"""


def test_who_has_no_tensorflow_does_not_wait_for_triton():
    done = run(WITHOUT_TENSORFLOW, "torch")
    assert done.returncode == 0, done.stderr[-2000:]

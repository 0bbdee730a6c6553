"""A short run of the campaign of kills; see `kills.py` for the long one.

Killed runs of `finetune` and `advise` are resumed in `tests/training/`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(kills, *commands):
    """Run the campaign in a separate process, because a process that has used TensorFlow may not be
    forked.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.kills", "--seed", "13"]
        + ["--kills", str(kills), "--only", *commands],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(done.stdout)  # Counts for the log of CI.
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"{kills * len(commands)} kills, 0 failures, seed 13" in done.stdout


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize(
    "kills, commands",
    [
        (3, ["vocab", "save_to_preset", "deduplicate"]),
        (1, ["convert_huggingface", "convert_google", "write_examples"]),
        (1, ["pretrain"]),
        (1, ["export_serving"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_killed(kills, commands):
    run(kills, *commands)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_killed_with_a_runtime_of_others():
    run(1, "export_onnx")

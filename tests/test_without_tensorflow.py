"""On JAX and torch, encoders, `fit` on arrays and checkpoints do without TensorFlow.

The CI runs `without_tensorflow.py` in an environment that has none; here nothing finds it.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# One is enough: the CI runs the script itself on both.
pytestmark = pytest.mark.backends("torch")

HIDE_AND_RUN = """
    import runpy
    import sys
    from importlib.machinery import PathFinder

    class WithoutTensorFlow(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name.split(".")[0] not in ("tensorflow", "tensorflow_text"):
                return super().find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTensorFlow
    runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_without_tensorflow():
    script = Path(__file__).parent / "without_tensorflow.py"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(HIDE_AND_RUN), script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("loaded, trained, saved\n")

"""How the tests themselves run: by the settings in `pyproject.toml`."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_a_worker_that_dies_fails_the_run(tmp_path):
    """The failed run names the test that killed the worker; pytest-xdist alone would wait without
    end.
    """
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    dying = (
        "import os\ndef test_first(): pass\ndef test_dies(): os.abort()\ndef test_last(): pass\n"
    )
    (tmp_path / "test_0.py").write_text(dying)
    for number in range(1, 6):
        (tmp_path / f"test_{number}.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "."],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "FAILED test_0.py::test_dies - worker 'gw" in done.stdout

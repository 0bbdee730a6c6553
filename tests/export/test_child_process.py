"""The child process in which exports run TensorFlow."""

import os
import types

import pytest

from kerasbert.export import child_process


@pytest.mark.backends("tensorflow")
def test_what_a_killed_export_leaves_is_in_its_own_folder(monkeypatch, tmp_path):
    """Traced functions are files in TMPDIR, which a killed process used to leave there."""
    found = {}

    def run(command, env, **settings):
        found.update(env)
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setattr(child_process.subprocess, "run", run)
    child_process.run_child("kerasbert.export.write_saved_model", str(tmp_path), "Nothing")
    for name in ("TMPDIR", "TEMP", "TMP"):
        assert found[name].startswith(str(tmp_path)) and os.path.isdir(found[name])

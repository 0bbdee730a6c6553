"""Child process that runs a module with TensorFlow, and ends with its parent."""

import os
import subprocess
import sys
import threading

from kerasbert.base.system import child_environment


def run_child(module, folder, nothing):
    """Run `python -m module folder` with TensorFlow, in a process that ends with this one.

    Args:
        nothing: subject of the error message, such as "No SavedModel".

    Raises:
        RuntimeError: if the child process fails; the message has the cause in one sentence.
    """
    # The pipe becomes the child's standard input. The system closes the parent's end even if the
    # parent is killed, which ends the child.
    theirs, ours = os.pipe()
    # Temporary files of TensorFlow and the converters are removed with the folder.
    temporary = os.path.join(folder, "temporary")
    os.makedirs(temporary, exist_ok=True)
    environment = child_environment(
        "tensorflow",
        CUDA_VISIBLE_DEVICES="-1",  # The parent may hold all of the GPU's memory.
        TF_CPP_MIN_LOG_LEVEL="3",
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary),
    )
    try:
        done = subprocess.run(
            # With -P, a `keras.py` in the working directory is not imported.
            [sys.executable, "-P", "-m", module, folder],
            env=environment,
            stdin=theirs,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    finally:
        os.close(theirs)
        os.close(ours)
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    if done.returncode < 0:
        reason = f"it was killed by signal {-done.returncode}; is there enough memory?"
    raise RuntimeError(f"{nothing} was written, because TensorFlow's process failed: {reason}")


def end_with_parent():
    """Make this process, which `run_child` started, end as soon as its parent ends."""
    # On Windows, even a query for the type of standard input blocks while a thread reads from it.
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait():
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

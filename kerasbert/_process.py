"""Processes that are forked from one at work, and what TensorFlow writes when it starts in one."""

import contextlib
import importlib
import os
import signal
import sys
import threading

_first = None  # the process that used a backend or TensorFlow first


def check_process():
    """Raise in a process that was forked from one that had used a backend or TensorFlow.

    A fork takes none of their threads along: what waits for those waits for ever, on any backend.

    Raises:
        RuntimeError: with the way out.
    """
    global _first
    _first = _first or os.getpid()
    if _first != os.getpid():
        raise RuntimeError(
            f"This process was forked from process {_first}, which had used kerasbert; the threads "
            "of TensorFlow and of the backend are not here, and it would wait for them for ever. "
            "Start processes with multiprocessing.get_context('spawn'), or load the model in each "
            "process after the fork, and nothing before."
        )


@contextlib.contextmanager
def handled_signals(handler, numbers=(signal.SIGINT, signal.SIGTERM)):
    """Let a function `(number, frame)` handle Ctrl-C and SIGTERM, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before):
            signal.signal(number, old)


@contextlib.contextmanager
def silent_tensorflow():
    """Where TensorFlow is imported without its lines on what the machine has.

    It writes to the standard error before it reads how much it should. Errors of its operations
    are exceptions, too.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def run_silently(module, function, *arguments):
    """What a new process runs: a function of a module that imports TensorFlow."""
    with silent_tensorflow():
        module = importlib.import_module(module)
    getattr(module, function)(*arguments)

"""Processes that are forked from one at work, which cannot work themselves."""

import os

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

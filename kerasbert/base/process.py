"""Fork detection, signal handling and silent TensorFlow imports."""

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import time

from kerasbert.base import keras_internals

_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# Where servers fork workers, and the signal to stop the server: Celery would replace a worker;
# gunicorn stops if one exits with `_BOOT_ERROR`.
_FORKS_WORKER = {
    ("gunicorn.arbiter", "spawn_worker"): None,
    ("celery.concurrency.prefork", "on_start"): signal.SIGTERM,
}
_BOOT_ERROR = 3
_PROBE_SECONDS = 5
_is_probing = False

_pid = os.getpid()
_is_used = False  # whether this process has used kerasbert
_backend = None  # the runtime that Keras computes with, once it is known
_running_at_fork = ()
_lost = {}  # runtimes that an ancestor used before a fork, with the ancestor's process id
_unsure = None  # (a thread that may wait for lost PyTorch threads, the ancestor's process id)


def check_process(runtime=None):
    """Raise in a process that was forked after a runtime had started its threads.

    Threads do not survive a fork, so operations hang.

    Args:
        runtime: "tensorflow", "jax" or "torch", which the caller needs; `None` for Keras' backend.

    Raises:
        RuntimeError: if so, with parent process, runtime and remedy.
    """
    global _is_used
    _is_used = True
    if os.getpid() != _pid:  # C code forked without Python's hooks.
        _note_running()
        _note_fork()
    if _lost or _unsure:
        lost = _lost_of(runtime or _backend)
        if lost:
            raise RuntimeError(_explain(lost))


def set_backend(runtime):
    """Set the runtime that Keras computes with."""
    global _backend
    _backend = runtime


def _lost_of(*runtimes):
    """Return which of these runtimes, and kerasbert itself, were in use before a fork."""
    if "torch" in runtimes and not _lost:
        _try_torch()
    return [name for name in dict.fromkeys(("kerasbert", *runtimes)) if name in _lost]


def _explain(lost):
    names = " and ".join(_NAMES.get(name, name) for name in lost)
    return (
        f"This process was forked from process {_lost[lost[0]]}, which had used {names}; threads "
        "do not survive a fork, so a model would hang here. Load the model in each process after "
        "the fork, and use none of these before it (gunicorn: without --preload; Celery: in "
        "worker_process_init), or start processes with multiprocessing.get_context('spawn')."
    )


# === Detection of forks ===


def _running():
    """Yield the runtimes whose threads run in this process; imports nothing."""
    if keras_internals.runs_tensorflow():
        yield "tensorflow"
    elif "tensorflow" in sys.modules and "tf_Compute" in _thread_names():
        yield "tensorflow"  # Sessions of TensorFlow 1 run without the eager context.
    if keras_internals.runs_jax():
        yield "jax"


def _thread_names():
    """Yield the names of this process' threads, on Linux."""
    for path in _threads():
        with contextlib.suppress(OSError), open(f"{path}/comm", encoding="utf-8") as file:
            yield file.read().strip()


def _threads():
    with contextlib.suppress(OSError):
        return [f"/proc/self/task/{name}" for name in os.listdir("/proc/self/task")]
    return []


def _note_running():
    global _running_at_fork
    _running_at_fork = tuple(_running())


def _note_fork():
    """Record the parent's runtimes, and stop a server's worker that needs them."""
    global _pid, _is_used, _unsure
    if _is_probing:
        return
    parent, _pid = _pid, os.getpid()
    for name in (*_running_at_fork, *(["kerasbert"] if _is_used else [])):
        _lost.setdefault(name, parent)
    if "torch" in sys.modules:
        _unsure = threading.get_ident(), parent
    is_shared, _is_used = _is_used, False
    if _lost or _unsure:
        is_worker, stop = _forking_server()
        if is_worker and (_holds_model() or not is_shared):
            _stop_worker(_lost_of("tensorflow", _backend), stop)


def _stop_worker(lost, stop):
    """End this process and its server if a model could not run here."""
    if not lost:
        return
    # Fork hooks ignore exceptions, and `sys.exit` would wait for lost threads.
    os.write(2, f"kerasbert: {_explain(lost)}\n".encode())
    if stop is not None:
        os.kill(os.getppid(), stop)
    os._exit(_BOOT_ERROR)


def _note_earlier_fork():
    """Detect a fork that happened before this module was imported.

    Runtimes have then started, but there are only Python's threads.
    """
    global _unsure
    if not 0 < len(_threads()) <= threading.active_count():
        return
    for name in _running():
        _lost[name] = os.getppid()
    if "torch" in sys.modules:
        _unsure = threading.get_ident(), os.getppid()


def _try_torch():
    """Test in a forked probe whether a large PyTorch operation hangs in this thread.

    PyTorch's threads serve the thread that first computed; nothing else tells whether they started
    before the fork.
    """
    global _is_probing, _unsure
    if not _unsure or _unsure[0] != threading.get_ident():
        return  # Other threads get new PyTorch threads.
    parent, _unsure = _unsure[1], None
    torch = sys.modules.get("torch")
    if getattr(torch, "get_num_threads", lambda: 1)() == 1:
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    _is_probing = True  # The probe must not run the hooks.
    probe = os.fork()
    if probe == 0:
        try:
            torch.ones(1 << 17).exp_()
        finally:
            os._exit(0)
    _is_probing = False
    end = time.monotonic() + _PROBE_SECONDS
    while not os.waitpid(probe, os.WNOHANG)[0]:
        if time.monotonic() > end:
            _lost["torch"] = parent
            os.kill(probe, signal.SIGKILL)
            os.waitpid(probe, 0)
            break
        time.sleep(0.005)
    if hasattr(signal, "sigtimedwait"):  # Not on macOS.
        # A server would mistake the probe's SIGCHLD for a worker's.
        signal.sigtimedwait([signal.SIGCHLD], 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# === Workers of servers ===


def _forking_server():
    """Return whether a server is forking this process, and the signal to stop it."""
    frame = sys._getframe(1)
    while frame is not None:
        place = frame.f_globals.get("__name__"), frame.f_code.co_name
        if place in _FORKS_WORKER:
            return True, _FORKS_WORKER[place]
        frame = frame.f_back
    return False, None


def _holds_model():
    """Whether this process holds a Keras model."""
    model = getattr(sys.modules.get("keras"), "Model", None)
    return model is not None and any(issubclass(type(x), model) for x in gc.get_objects())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_running, after_in_child=_note_fork)
    _note_earlier_fork()


@contextlib.contextmanager
def handled_signals(handler, numbers=(signal.SIGINT, signal.SIGTERM)):
    """Handle Ctrl-C and SIGTERM with a function `(number, frame)`, in the main thread only."""
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
def uninterrupted():
    """Delay SIGINT and SIGTERM until the end of a context, such as a step of a training."""
    came = []
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    numbers = [number for number, handler in handlers.items() if callable(handler)]
    try:
        with handled_signals(lambda number, frame: came.append((number, frame)), numbers):
            yield
    finally:
        for number, frame in came:
            handlers[number](number, frame)


@contextlib.contextmanager
def silent_tensorflow():
    """Return a context in which the import of TensorFlow writes no log lines.

    TensorFlow writes to stderr before it reads its log level, so stderr is redirected.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (AttributeError, OSError):  # No console, such as IDLE on Windows.
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def run_silently(module, function, *arguments):
    """Call a function of a module that imports TensorFlow, in a new process."""
    with silent_tensorflow():
        module = importlib.import_module(module)
    getattr(module, function)(*arguments)

"""Memory allocator options, garbage collection and memory sizes of the process."""

import contextlib
import ctypes
import gc
import os
import platform

# glibc's environment variables, option numbers in malloc.h, and values. A trim threshold of -1
# never trims the heap.
_OPTIONS = {
    "MALLOC_TRIM_THRESHOLD_": (-1, -1),
    "MALLOC_TOP_PAD_": (-2, 1 << 28),
    "MALLOC_MMAP_MAX_": (-4, 0),
}


def keep_freed_memory():
    """Let glibc keep freed memory until `give_back`, unless the user set other options.

    Otherwise activations return to the system after each batch, and page faults take a quarter of
    the time of bfloat16 batches on two cores.

    Unless mappings are forbidden, glibc maps and unmaps each block of 32 MB or more, such as
    PyTorch's attention probabilities for 200 tokens, XLA's block per step, and TensorFlow's logits
    of a vocabulary. Without this, an epoch on paragraphs took 1.4 times as long on PyTorch, and a
    training step 1.2 times on JAX and, in pre-training, TensorFlow. It helps only the main thread.
    """
    if not _is_glibc():
        return
    malloc = ctypes.CDLL(None)
    for variable, (option, value) in _OPTIONS.items():
        if variable not in os.environ:
            malloc.mallopt(option, value)


def give_back():
    """Return freed memory to the system."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def collect_once():
    """Exclude existing objects from garbage collection, and collect once at the end.

    Traversing all imported objects takes 0.3 s each time. Objects frozen by the caller stay frozen.
    """
    frozen = gc.get_freeze_count() > 1000  # Python 3.12 itself freezes a few hundred objects.
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        gc.collect()


def _is_glibc():
    return platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"


def memory_bytes():
    """Return the physical memory of this machine; `None` if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None  # Windows


def peak_bytes():
    """Return the peak memory of this process; `None` if the system does not report it."""
    try:
        # On Linux, `resource` includes the parent's memory at the fork.
        with open("/proc/self/status", encoding="utf-8") as file:
            peak = next(line for line in file if line.startswith("VmHWM"))
        return 1024 * int(peak.split()[1])
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None  # Windows
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes.

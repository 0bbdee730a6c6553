"""How the process asks for memory, and when it looks for garbage."""

import contextlib
import ctypes
import gc
import os
import platform

# Numbers of glibc's malloc.h; a user sets them by variables of these names, see mallopt(3).
_OPTIONS = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_MMAP_MAX_": -4,
}


def keep_freed_memory():
    """Let glibc keep up to 1 GB of freed memory for what comes next.

    Otherwise each batch's activations go back to the system and are faulted in anew: a quarter of
    the time of bfloat16 batches on two cores. What a user has set stays.
    """
    _set(MALLOC_TRIM_THRESHOLD_=1 << 30, MALLOC_TOP_PAD_=1 << 28, MALLOC_MMAP_THRESHOLD_=1 << 25)


def keep_large_blocks():
    """Let glibc keep freed blocks of any size, until `give_back` is called.

    Whatever it is told, glibc has each block of 32 MB and more from the system, and gives it back
    at once, unless it may have none in that way. PyTorch's attention maps of 200 tokens are
    larger, and XLA has one block for all that a step computes: without this, an epoch of
    paragraphs took 1.4 times as long on PyTorch, and a training step 1.2 times on JAX. It is so
    for the main thread alone: others have small heaps of their own.
    """
    # mallopt(3) reads -1 as the largest number: the end of the heap stays, however large.
    _set(MALLOC_MMAP_MAX_=0, MALLOC_TRIM_THRESHOLD_=-1)


def give_back():
    """Give the system the memory that is free."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def collect_once():
    """Collect garbage at the end, and pass over all objects made before until then.

    For code that collects often: each time takes 0.3 s, which is how long it takes to go through
    all that imports have left. What the caller had frozen stays so.
    """
    frozen = gc.get_freeze_count() > 1000  # Python 3.12 freezes some hundreds itself.
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        gc.collect()


def _is_glibc():
    return platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"


def _set(**values):
    """Set what the user did not."""
    if not _is_glibc():
        return
    malloc = ctypes.CDLL(None)
    for variable, value in values.items():
        if variable not in os.environ:
            malloc.mallopt(_OPTIONS[variable], value)


def memory_bytes():
    """The physical memory of this machine; `None` where the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None  # Windows


def peak_bytes():
    """The most memory that this process has had at once; `None` where the system does not say."""
    try:
        # Not `resource`: on Linux that counts what the parent had when it started this process.
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM"))
        return 1024 * int(peak.split()[1])
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None  # Windows
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes.

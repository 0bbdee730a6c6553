"""How the process asks for memory."""

import ctypes
import os
import platform

# Of glibc's malloc.h: option, value in bytes, and the variable by which a user sets it.
_OPTIONS = (
    (-1, 1 << 30, "MALLOC_TRIM_THRESHOLD_"),
    (-2, 1 << 28, "MALLOC_TOP_PAD_"),
    (-3, 1 << 25, "MALLOC_MMAP_THRESHOLD_"),
)


def keep_freed_memory():
    """Let glibc keep up to 1 GB of freed memory for what comes next.

    Otherwise each batch's activations go back to the system and are faulted in anew: a quarter of
    the time of bfloat16 batches on two cores. What a user has set stays.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    malloc = ctypes.CDLL(None)
    for option, value, variable in _OPTIONS:
        if variable not in os.environ:
            malloc.mallopt(option, value)


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

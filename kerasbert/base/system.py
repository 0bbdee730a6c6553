"""Functions that differ between Windows and POSIX systems.

As a test checks, names of POSIX alone are used only here, in `process` and in `memory`.
"""

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import sys
import tempfile
import time

IS_WINDOWS = os.name == "nt"
FULL = (errno.ENOSPC, errno.EDQUOT)
# Seconds to wait for a virus scanner or indexer: Windows cannot move or remove open files.
_PATIENCE = 2


# === Processor ===


def cores():
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Only on Linux.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hold_to_cores(count):
    """Limit this process to `count` of its cores, on systems that support this."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


# === Processes ===


def child_environment(backend, **more):
    """Return the environment of a Python process that imports this package.

    Args:
        backend: string. Its Keras backend.
        **more: further variables.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        **more,
    }


# === Files ===


def rename(old, new):
    """Rename a file or folder; `new` must not exist."""
    _patiently(os.rename, old, new)


def replace(old, new):
    """Rename a file or folder, replacing a file."""
    _patiently(os.replace, old, new)


def unlink(path):
    """Remove a file."""
    _patiently(os.unlink, path)


def _patiently(function, *paths):
    """Call a function of `os`; on Windows, wait for open files.

    Raises:
        PermissionError: if the file stays open.
    """
    if not IS_WINDOWS:
        function(*paths)
        return
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            function(*paths)
            return
        except PermissionError as error:
            if time.monotonic() > end:
                raise PermissionError(
                    errno.EACCES,
                    f"Windows does not allow changes to '{paths[-1]}' ({error.strerror}); close "
                    "the programs that have it or a file in it open, and the objects that were "
                    "loaded from it, and try again",
                ) from error
        time.sleep(0.05)


def check_closed(path):
    """Check on Windows that no program has a file, or any file in a folder, open.

    This runs before any of the files is replaced.

    Raises:
        PermissionError: if a file is open; the message says what to do.
    """
    if not IS_WINDOWS:
        return
    inside = ((folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in [path, *(os.path.join(*place) for place in inside)]:
        if os.path.isfile(file):
            rename(file, file)


def make_private(folder):
    """Make a folder that only its owner may read, without effect on files moved out of it.

    On Windows it inherits its parent's permissions: with mode 0o700, Python 3.12 and 3.13 would set
    own ones, which moved files would keep.
    """
    os.mkdir(folder, 0o777 if IS_WINDOWS else 0o700)


def is_own(state):
    """Return whether this user owns a file; always true on Windows."""
    return not hasattr(os, "geteuid") or state.st_uid == os.geteuid()


def link_or_copy(path, link):
    """Make a symbolic link to a file, or copy it without permission for links."""
    try:
        os.symlink(path, link)
    except OSError:  # Windows without developer mode.
        shutil.copyfile(path, link)


def sync(path):
    """Flush a file or a folder's list of names to disk, if possible."""
    try:
        # Windows flushes only files open for writing, and no folders.
        handle = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def has_room(folder, size):
    """Return whether `size` more bytes fit on a folder's disk, if known."""
    if not hasattr(os, "posix_fallocate"):  # Windows and macOS.
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free >= size
        return True
    with tempfile.TemporaryFile(prefix=".kerasbert-", dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            return error.errno not in (*FULL, errno.EFBIG)
    return True


def can_exchange():
    """Return whether the system can exchange two folders in one step."""
    return _renameat2() is not None


def exchange(one, other):
    """Exchange two files or folders in one step."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if _renameat2()(here, os.fsencode(one), here, os.fsencode(other), exchange):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), other)


def take_over(folder, state):
    """Set a folder's mode, and where allowed its owner, to those of `state` (`os.stat`)."""
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):  # Only root can change the owner.
            os.chown(folder, state.st_uid, state.st_gid)
    os.chmod(folder, state.st_mode & 0o7777)


@functools.cache
def _renameat2():
    """Return Linux's system call that exchanges two files, or `None`."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)

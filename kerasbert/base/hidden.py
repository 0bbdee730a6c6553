"""Hidden folders for unfinished output, with locks.

However the process ends, the system releases its lock in the folder, so that the next writer
recognizes abandoned folders.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import stat
import time

from kerasbert.base import system

PREFIX = ".kerasbert-"
HIDDEN = re.compile(re.escape(PREFIX) + r"([0-9a-f]{12}|in-use.*)")
# Format of an `owner_record` in messages.
OWNED = "`{by}` (process {process} on {host}, since {since})"
LOCK = "lock"
OWNER = "owner.json"
MOVING = "moving.json"
ORIGIN = "made"  # Ties a move plan to this disk; see `moves`.


def make_in(place, work):
    """Make the hidden folder `work` in `place`, unless it exists."""
    try:
        system.make_private(work)
    except FileExistsError:
        if os.path.lexists(work) and not is_ours(work):
            raise PermissionError(
                errno.EPERM,
                f"'{work}' belongs to another user, is a link or holds one, so nothing is written "
                "next to it; remove it when nobody uses it, or name another folder",
            ) from None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise OSError(
            error.errno, f"Cannot write in '{place}': {error.strerror}; name another folder"
        ) from None


def owner_record(by):
    """Return a record of this process as the owner of a folder; `OWNED` formats it."""
    return {
        "by": by,
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def owner_of(work):
    """Describe the process that holds a hidden folder's lock."""
    try:
        with open(os.path.join(work, OWNER), encoding="utf-8") as file:
            return OWNED.format(**json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def take_lock(work, wait=0):
    """Lock a hidden folder, or return `None` if another holds or removes it."""
    import filelock

    lock = filelock.FileLock(os.path.join(work, LOCK), thread_local=False)
    try:
        lock.acquire(timeout=wait, poll_interval=0.02)
    except (filelock.Timeout, FileExistsError, FileNotFoundError):
        return None
    return lock


def hidden_in(folder):
    """List our hidden folders in a folder."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if HIDDEN.fullmatch(e.name)]
            return [e.name for e in found if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def is_ours(work):
    """Return whether a hidden folder is owned by this user, and neither is nor contains a link."""
    try:
        state = os.lstat(work)
        if not stat.S_ISDIR(state.st_mode) or not system.is_own(state):
            return False
        for name in (LOCK, OWNER, MOVING, ORIGIN):
            with contextlib.suppress(FileNotFoundError):
                state = os.lstat(os.path.join(work, name))
                is_plain = stat.S_ISREG(state.st_mode) and state.st_nlink <= 1
                if not is_plain or not system.is_own(state):
                    return False
    except FileNotFoundError:
        return True  # The folder's owner has just removed it.
    except OSError:
        return False
    return True


def delete(work, lock):
    """Remove a hidden folder and release its lock.

    The lock file is removed last, for the next process after an interruption. A folder with an
    unfinished move is kept for it.
    """
    with contextlib.suppress(OSError):
        if is_real_folder(work) and not os.path.exists(os.path.join(work, MOVING)):
            for name in set(os.listdir(work)) - {LOCK}:
                path = os.path.join(work, name)
                shutil.rmtree(path) if is_real_folder(path) else os.unlink(path)
            if system.IS_WINDOWS:
                # Windows cannot remove open files: if another process has the lock now, the file
                # stays.
                lock.release()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(work, LOCK))
            os.rmdir(work)
    lock.release()


def is_real_folder(path):
    """Return whether a path is a folder, not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)

"""Atomic writes of files and folders: temporary names, locks, cleanup after killed runs, JSON.

Output is written to a hidden folder on the same disk, which is renamed when it is complete. The
process holds a lock in that folder. The system releases the lock however the process ends, so the
next writer can recognize abandoned folders.
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import inspect
import json
import math
import ntpath
import os
import pathlib
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from kerasbert.base.strict_json import to_json

Function = TypeVar("Function", bound=Callable[..., Any])

_PREFIX = ".kerasbert-"
_HIDDEN = re.compile(re.escape(_PREFIX) + r"([0-9a-f]{12}|in-use.*)")
_LOCK = "lock"
_OWNER = "owner.json"
_MOVING = "moving.json"
_ORIGIN = "made"  # An empty file that ties a move plan to this disk; see `_origin`.
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Another process has just removed or created a folder, so it is writing there too.
_CHANGED = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
_hidden_here = set()  # the hidden folders of this process
# `s3://`, and URLs chained by fsspec such as `zip://a.txt::s3://`, but no Windows drives.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_CACHED = re.compile("(models|datasets|spaces)--")
_LOST_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)")


# === Files ===


@contextlib.contextmanager
def new_file(path):
    """Write a file atomically: it appears under its name only when complete.

    Raises:
        OSError: if the disk is full, with advice.
    """
    folder, name = os.path.split(os.path.abspath(path))
    try:
        with _hidden(folder) as work:
            partial = os.path.join(work, name)
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync(folder)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(
            error.errno,
            f"The disk of '{folder}' is full: '{name}' was not written. Free some space and run "
            "the same again: it resumes after the last complete file",
        ) from None


def write_text(path, text):
    """Write a text file atomically; returns its path."""
    with new_file(path) as file:
        file.write(text.encode())
    return path


def write_json(path, value, indent=1):
    """Write a JSON file atomically, without escaping non-ASCII letters."""
    text = to_json(value, ensure_ascii=False, indent=indent)
    if re.search("[\ud800-\udfff]", text):  # File names may hold bytes that are not UTF-8.
        text = to_json(value, indent=indent)
    return write_text(path, text + "\n")


def inside(directory, name, source, nested=False):
    """Return the path of a file or folder in a directory, for a name that was read from a file.

    Every name read from a file (of a run, shard, module or submission) must pass this check before
    it becomes part of a path; `tests/test_names_from_files.py` enforces that.

    Args:
        directory: string. A folder or a URL.
        name: a string without separators that names neither the directory itself nor a device.
        source: string. The path of the file that holds the name, for the error message.
        nested: bool. Whether "/" may lead into subfolders.

    Raises:
        ValueError: if the name is invalid or leads out of the directory, possibly through a link.
            Links in a snapshot of the Hugging Face hub's cache may lead to the blobs of its
            repository.
    """
    check_name(name, source, nested)
    if not is_url(directory) and not _stays_inside(directory, name):
        raise _leaves(name, source)
    return f"{directory.rstrip('/')}/{name}" if is_url(directory) else os.path.join(directory, name)


def check_name(name, source, nested=False):
    """Check a name like `inside`, but without a directory and its links."""
    if not _is_name(name, nested):
        raise _leaves(name, source)


def _leaves(name, source):
    return ValueError(
        f"'{source}' names {name!r:.200}, which leaves its directory or is not a valid file name; "
        "do not use it."
    )


def _is_name(name, nested):
    if not isinstance(name, str) or set(name) & {"\\", "\0"} or name.startswith("/"):
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    parts = [part for part in name.split("/") if part not in ("", ".")] if nested else [name]
    if not nested or os.name == "nt":
        if any(_DEVICE.fullmatch(part) or ntpath.splitdrive(part)[0] for part in parts):
            return False
    # Windows strips dots and spaces from the end of a name.
    return bool(parts) and all(part.rstrip(". ") and "/" not in part for part in parts)


def _stays_inside(directory, name):
    root = pathlib.Path(os.path.realpath(directory))
    found = pathlib.Path(os.path.realpath(os.path.join(directory, name)))
    if found.is_relative_to(root):
        return True
    # In the hub's cache, snapshots/REVISION and its subfolders link to the repository's blobs.
    for parent in root.parents:
        if parent.name == "snapshots" and _CACHED.match(parent.parent.name):
            return found.is_relative_to(parent.parent / "blobs")
    return False


def read_log(path):
    """Read the lines of a log as dicts, up to a line truncated by a power failure."""
    rows = []
    if os.path.exists(path):
        with contextlib.suppress(ValueError), open(path, encoding="utf-8") as file:
            for line in file:
                rows.append(json.loads(line))
    return rows


def read_json(path, kind=dict):
    """Read a JSON file from elsewhere.

    Args:
        path: string.
        kind: type. The expected type of its content: `dict` or `list`.

    Raises:
        ValueError: if it is missing, invalid or not a regular file, or has content of another type.
    """
    check_regular(path)
    try:
        with open(path, encoding="utf-8-sig") as file:
            value = json.load(file)
    except FileNotFoundError as error:
        raise ValueError(f"'{path}' is missing; download the whole checkpoint again.") from error
    except RecursionError:
        raise ValueError(
            f"'{path}' is nested too deeply to be read, so it is not a checkpoint's; "
            "download it again."
        ) from None
    except ValueError as error:
        raise ValueError(f"'{path}' is not valid JSON ({error}); download it again.") from error
    if not isinstance(value, kind):
        expected = {dict: "an object", list: "a list"}[kind]
        raise ValueError(f"'{path}' holds a {type(value).__name__}, but must hold {expected}.")
    return value


def write_files(directory, files):
    """Write files, a dict of name to bytes, into a directory that no process reads yet."""
    for name, data in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)


def json_in(directory, name):
    """Return the content of a JSON file in a directory; an empty dict if there is none."""
    path = os.path.join(directory, name)
    return read_json(path) if os.path.exists(path) else {}


def check_regular(path):
    """Check that a path is not a pipe, a socket or a device, which may block a reader forever.

    Raises:
        ValueError: if it is one.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # Opening it will raise a clear error.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a pipe or socket" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "a device"
        raise ValueError(f"'{path}' is {kind}; it must be a regular file.")


def file_sha256(path):
    """Return the SHA-256 of a file in hexadecimal; takes a second per 1 or 2 GB."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path):
    """Return a file's size and hash for `check_file`: `{"bytes", "sha256"}`."""
    return {"bytes": os.path.getsize(path), "sha256": file_sha256(path)}


def check_file(path, described, hashed, then):
    """Check that a file exists and matches its description.

    Args:
        path: string.
        described: dict from `describe_file`; missing entries are not compared.
        hashed: bool. Whether to compare the hash as well as the size.
        then: string. What the user should do; it ends the error message.

    Raises:
        ValueError: if it is missing or differs.
    """
    check_regular(path)
    if not os.path.exists(path):
        raise ValueError(f"'{path}' is missing; {then}.")
    size = os.path.getsize(path)
    if size != described.get("bytes", size):
        what = f"it has {size:,} bytes, expected {described['bytes']:,}"
        raise ValueError(f"'{path}' is damaged ({what}); {then}.")
    if hashed and "sha256" in described and file_sha256(path) != described["sha256"]:
        raise ValueError(f"'{path}' is damaged (its SHA-256 is not the recorded one); {then}.")


def check_regular_tree(directory, depth=3):
    """Call `check_regular` for the files of a folder, down to `depth` levels."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_file() and not _HIDDEN.fullmatch(entry.name):
                check_regular(entry.path)
                if depth > 1 and entry.is_dir():
                    check_regular_tree(entry.path, depth - 1)


# === Folders ===


def is_url(path):
    """Return whether a string is a storage URL, as `kerasbert.base.storage` reads and writes.

    >>> is_url("s3://bucket/books"), is_url("C:/books"), is_url("books")
    (True, False, False)
    """
    return isinstance(path, str) and _URL.match(path) is not None


def as_path(given):
    """Return a given path or URL as a string, with `~` expanded and `file://` removed.

    Raises:
        ValueError: for a URL from which `pathlib` removed a slash.
    """
    path = os.fspath(given)
    if isinstance(given, os.PathLike) and isinstance(path, str) and _LOST_SLASH.match(path):
        raise ValueError(f"{given!r} is not a URL: `Path` removes a slash; pass a string.")
    if isinstance(path, str) and path.startswith("file://"):
        path = "/" + path.removeprefix("file://").lstrip("/")
    return path if is_url(path) else os.path.expanduser(path)


def output_folder(path, name, urls=False):
    """Return the absolute path of an output folder, after cleaning up after killed runs there.

    Args:
        path: string or path. What the user gave.
        name: string. The name of the argument, for error messages.
        urls: bool. Whether a URL is allowed, see `kerasbert.base.storage`; it is returned without a
            trailing slash.

    Raises:
        ValueError: if it is empty, a file or inside one, or a URL that is not allowed.
    """
    given = as_path(path)
    if not given:
        raise ValueError(f"{name}={given!r} names no folder; pass '.' for the current one.")
    if is_url(given):
        if not urls:
            raise ValueError(
                f"{name}={given!r} is a URL, but only a local folder can be written here; name "
                "one, and copy it to the URL."
            )
        if not is_url(given.rstrip("/")):
            raise ValueError(
                f"{name}={given!r} names no folder; add one, as in 's3://bucket/folder'."
            )
        return given.rstrip("/")
    path = os.path.abspath(given)
    place = _existing(path)
    if not os.path.isdir(place):
        which = "it" if place == path else f"'{place}'"
        raise ValueError(f"Cannot write to '{path}': {which} is a file, not a folder.")
    # Clean up here too: a run that finds its output complete, because the previous run was killed
    # just before its end, writes nothing.
    for folder in _above(os.path.realpath(path)):
        sweep(folder)
    return path


def names_in(folder):
    """Return the sorted names in a folder without our hidden folders; empty if it is missing."""
    if not os.path.isdir(folder):
        return []
    return sorted(name for name in os.listdir(folder) if not _HIDDEN.fullmatch(name))


@contextlib.contextmanager
def in_use(folder, by):
    """Lock a folder for writing; other processes get an error that names the one using it.

    The folder is created if needed, and removed again if it stays empty. URLs are not locked.

    Args:
        folder: string.
        by: string. The command that writes to it, such as "pretrain".

    Raises:
        BlockingIOError: if another process, or this one, is writing to it already.
    """
    if is_url(folder):
        yield
        return
    made = _make(os.path.realpath(folder))
    try:
        with _alone(folder, "in-use", folder, by):
            for path, _, _ in os.walk(folder):
                sweep(path)
            yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # It is not empty.
                os.rmdir(path)


def fills_output(function: Function) -> Function:
    """Decorate a function to lock the folder of its argument `output`; see `in_use`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            output = signature.bind(*args, **kwargs).arguments["output"]
        except TypeError:
            return function(*args, **kwargs)  # Raises the usual error for missing arguments.
        with in_use(output_folder(output, "output", urls=True), function.__name__):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def scratch(target, by=None):
    """Make a hidden folder on the disk of `target`, for its new content; see `put`.

    Args:
        target: string. The folder to replace or create; links are followed. Not changed here.
        by: string. The command that writes `target`, such as "convert", and locks it meanwhile;
            `None` does not lock it.

    Raises:
        BlockingIOError: if another process has locked it.
    """
    target = os.path.realpath(target)
    place = target if _stays(target) else _existing(os.path.dirname(target))
    for folder in _above(target):
        sweep(folder)
    name = "in-use-" + os.path.relpath(target, place).replace(os.sep, "-")[-150:]
    alone = _alone(place, name, target, by) if by else contextlib.nullcontext()
    with alone, _hidden(place) as work:
        yield work
    for folder in _above(target):
        sweep(folder)


@contextlib.contextmanager
def new_folder(target, keep=False, by=None):
    """Yield a folder that becomes `target` if all goes well; see `scratch` and `put`."""
    with scratch(target, by) as work:
        folder = os.path.join(work, "new")
        os.mkdir(folder)
        yield folder
        put(folder, target, keep)


@contextlib.contextmanager
def new_files(folder):
    """Yield a folder whose files all move into the existing `folder` if all goes well."""
    with _hidden(folder) as work:
        new = os.path.join(work, "new")
        os.mkdir(new)
        yield new
        put(new, folder, keep=True)


def put(folder, target, keep=False):
    """Replace `target`, or create it, with a complete folder from a `scratch`.

    On Linux the two are exchanged in one step, so that a complete folder always exists. On other
    systems, and for a folder that cannot be renamed (a mount point, the current directory, one in a
    read-only parent), entries are moved one by one. If that is interrupted, the next writer
    (`sweep`) completes it, and readers get an error (`settle`).

    Args:
        folder: string. Directly in the scratch folder.
        target: string. As passed to `scratch`.
        keep: bool. Whether to keep other files of `target`. They are linked, not copied.
    """
    target = os.path.realpath(target)
    folder = os.path.realpath(folder)
    work = os.path.dirname(folder)
    _open_to_all(folder, work)
    for path, _ in _all_in(folder):
        _sync(path)
    is_inside = os.path.dirname(work) == target
    for attempt in range(100):
        try:
            if not os.path.lexists(target):
                _put_new(folder, target)
            elif is_inside:
                _move_in(folder, target, keep)
            elif not _swap(folder, target, keep):
                with _hidden(target) as inside:
                    moved = os.path.join(inside, "new")
                    os.rename(folder, moved)
                    _move_in(moved, target, keep)
            break
        except OSError as error:
            if error.errno not in _CHANGED or attempt == 99 or not os.path.isdir(folder):
                raise
    _sync(os.path.dirname(target))


def temporary_folder():
    """Make a hidden folder in the system's temporary folder, removed when the context ends.

    The next such folder also cleans up after a killed process.
    """
    return _hidden(tempfile.gettempdir())


def link_files(folder, new):
    """Add all files of a folder to `new`, by hard links if possible, otherwise by copies."""
    try:
        _link_others(folder, new)
    except OSError:
        shutil.copytree(folder, new, symlinks=True, dirs_exist_ok=True)


def remove(path):
    """Remove a file or a folder, if it exists, in one step."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return
    with _hidden(folder) as work:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, os.path.join(work, "old"))


def is_unfinished(path):
    """Return whether a path is in a hidden folder of this process."""
    path = os.path.realpath(path)
    return any(path.startswith(hidden + os.sep) for hidden in tuple(_hidden_here))


def settle(folder):
    """Wait, before a folder is read, for a process that is moving files into it.

    It moves nothing itself, because reading must not have side effects. Move plans that this user
    did not begin here, such as those in a downloaded folder, are ignored with a warning.

    Raises:
        OSError: if a process ended in the middle of a move, or is still moving after 60 s.
    """
    for name in _hidden_in(folder):
        work, lock = os.path.join(folder, name), None
        if not _has_own_plan(work):
            continue
        with contextlib.suppress(OSError):  # Nobody writes to a read-only file system.
            lock = _lock(work, wait=60)
        try:
            if not _has_own_plan(work):
                continue
            raise OSError(
                errno.EBUSY,
                f"A write to '{folder}' was interrupted, or is still running, so it holds old and "
                "new files; run the command that wrote it again, or complete the move with "
                f"`kerasbert.base.files.sweep({folder!r})`",
            )
        finally:
            if lock is not None:
                lock.release()


def sweep(folder):
    """Remove what killed processes left in a folder, and complete the moves that they began.

    It ignores other users' hidden folders, links, and move plans in a copied or downloaded folder.
    """
    for name in _hidden_in(folder) if os.access(folder, os.W_OK) else []:
        with contextlib.suppress(OSError):  # Another process removed it.
            _clear(os.path.join(folder, name))


def check_room(folder, weights):
    """Check that the disk has room for a model's weights as HDF5.

    If the disk fills up while h5py 3.14 writes, the process dies without an exception.

    Raises:
        OSError: if they do not fit.
    """
    if weights:
        size = sum(math.prod(w.shape) * np.dtype(w.dtype).itemsize + 4096 for w in weights)
        check_space(folder, size, "weights")


def check_space(folder, size, what):
    """Check that the disk of a folder has room for `size` more bytes.

    Raises:
        OSError: if they do not fit.
    """
    if not size or not hasattr(os, "posix_fallocate"):
        return
    with tempfile.TemporaryFile(prefix=_PREFIX, dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (*_FULL, errno.EFBIG):
                return  # The file system cannot tell.
            raise OSError(
                error.errno,
                f"The disk of '{folder}' has no room for {size:,} bytes of {what}; free some "
                "space, or name another folder",
            ) from None


# === Hidden folders ===


@contextlib.contextmanager
def _hidden(place):
    """Make a hidden folder with a lock in `place`, removed at the end."""
    sweep(place)
    while True:
        work = os.path.join(place, _PREFIX + secrets.token_hex(6))
        _make_in(place, work)
        lock = _lock(work)
        if lock is not None:  # Otherwise another process considered it abandoned.
            break
    known = os.path.realpath(work)
    _hidden_here.add(known)
    try:
        yield work
    finally:
        _hidden_here.discard(known)
        _delete(work, lock)


@contextlib.contextmanager
def _alone(place, name, target, by):
    """Hold the lock of this name in `place`, and record who holds it."""
    work = os.path.join(place, _PREFIX + name)
    lock = None
    for _ in range(5):  # Another process may be testing the lock.
        _make_in(place, work)
        lock = _lock(work, wait=0.1)
        if lock is not None:
            break
    if lock is None:
        raise BlockingIOError(
            errno.EWOULDBLOCK,
            f"'{target}' is being written by {_owner(work)}; wait until it is done, or name "
            "another folder",
        )
    try:
        owner = {
            "by": by,
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        path = os.path.join(work, _OWNER)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "x", encoding="utf-8") as file:
            file.write(to_json(owner))
        yield
    finally:
        _delete(work, lock)


def _make_in(place, work):
    try:
        os.mkdir(work, 0o700)
    except FileExistsError:
        if os.path.lexists(work) and not _is_ours(work):
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


def _owner(work):
    try:
        with open(os.path.join(work, _OWNER), encoding="utf-8") as file:
            return "`{by}` (process {process} on {host}, since {since})".format(**json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _lock(work, wait=0):
    """Lock a hidden folder; returns `None` if another process or thread holds or removes it."""
    import filelock

    lock = filelock.FileLock(os.path.join(work, _LOCK), thread_local=False)
    try:
        lock.acquire(timeout=wait, poll_interval=0.02)
    except (filelock.Timeout, FileExistsError, FileNotFoundError):
        return None
    return lock


def _hidden_in(folder):
    """List our hidden folders in a folder."""
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if _HIDDEN.fullmatch(e.name)]
            return [e.name for e in found if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_ours(work):
    """Return whether a hidden folder is a real folder of this user, without links inside."""
    try:
        state = os.lstat(work)
    except FileNotFoundError:
        return True  # Its owner has just removed it.
    except OSError:
        return False
    try:
        if not stat.S_ISDIR(state.st_mode) or not _is_own(state):
            return False
        for name in (_LOCK, _OWNER, _MOVING, _ORIGIN):
            with contextlib.suppress(FileNotFoundError):
                state = os.lstat(os.path.join(work, name))
                if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1 or not _is_own(state):
                    return False
    except OSError:
        return False
    return True


def _is_own(state):
    """Return whether this user owns a file; always true on Windows, which has no user ids."""
    return not hasattr(os, "geteuid") or state.st_uid == os.geteuid()


def _clear(work):
    """Remove an abandoned hidden folder, after completing its move."""
    if not _is_ours(work):
        return
    is_moving = os.path.exists(os.path.join(work, _MOVING))
    if not is_moving and not os.path.exists(os.path.join(work, _LOCK)):
        os.rmdir(work)  # Fails unless it is empty.
        return
    if is_moving and not _has_own_plan(work):
        return
    # A reader may hold the lock for a moment.
    lock = _lock(work, wait=1 if is_moving else 0)
    if lock is not None:
        try:
            _end_move(work, os.path.dirname(work))
        except BaseException:
            lock.release()
            raise
        _delete(work, lock)


def _delete(work, lock):
    """Remove a hidden folder and release its lock.

    The lock file is removed last, so that the next process can take the lock after an interruption.
    A folder whose move failed halfway is kept for the next process.
    """
    with contextlib.suppress(OSError):
        if _is_folder(work) and not os.path.exists(os.path.join(work, _MOVING)):
            for name in set(os.listdir(work)) - {_LOCK}:
                _delete_tree(os.path.join(work, name))
            os.unlink(os.path.join(work, _LOCK))
            os.rmdir(work)
    lock.release()


def _is_folder(path):
    """Return whether a path is a folder, not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def _delete_tree(path):
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


# === Names ===


def _upwards(path):
    """List an absolute path and all its parents, up to the root."""
    return [path, *map(str, pathlib.Path(path).parents)]


def _existing(folder):
    """Return a folder, or its nearest existing parent."""
    return next(filter(os.path.exists, _upwards(folder)))


def _above(target):
    """List the folders where unfinished work for `target` may be: in it and its parents."""
    return _upwards(_existing(target))


def _make(folder):
    """Make a folder; returns the paths that were created, innermost first."""
    made = [path for path in _upwards(folder) if not os.path.lexists(path)]
    os.makedirs(folder, exist_ok=True)
    return made


def _stays(target):
    """Return whether an existing folder cannot be renamed."""
    if not os.path.isdir(target):
        return False
    if os.path.ismount(target) or not os.access(os.path.dirname(target), os.W_OK | os.X_OK):
        return True
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return False
    return os.path.commonpath([os.path.realpath(here), target]) == target


def _put_new(folder, target):
    """Rename a folder to a path that does not exist, and create its parents, in one step."""
    top = target
    while not os.path.lexists(os.path.dirname(top)):
        top = os.path.dirname(top)
    if top == target:
        os.rename(folder, target)
        return
    made = os.path.join(os.path.dirname(folder), "above")
    inside = os.path.join(made, os.path.relpath(target, top))
    os.makedirs(os.path.dirname(inside))
    os.rename(folder, inside)
    try:
        os.rename(made, top)
    except OSError:
        os.rename(inside, folder)
        shutil.rmtree(made)
        raise


def _swap(folder, target, keep):
    """Exchange two folders; returns whether that was possible."""
    if _renameat2() is None:
        return False
    device = os.stat(target).st_dev
    for path, folders, _ in os.walk(target):
        if any(os.lstat(os.path.join(path, name)).st_dev != device for name in folders):
            return False  # Another disk is mounted inside.
    try:
        if keep:
            _link_others(target, folder)
        state = os.stat(target)
        with contextlib.suppress(OSError):  # Only root can change the owner.
            os.chown(folder, state.st_uid, state.st_gid)
        os.chmod(folder, state.st_mode & 0o7777)
        _sync(folder)
        _exchange(folder, target)
    except OSError as error:
        if error.errno in _CHANGED:
            raise
        return False
    if keep:  # Files that were added meanwhile.
        _link_others(folder, target)
    return True


def _link_others(old, new):
    """Link entries that exist only in the old folder into the new one."""
    with os.scandir(old) as entries:
        for entry in entries:
            other = os.path.join(new, entry.name)
            if _HIDDEN.fullmatch(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                if not os.path.lexists(other):
                    os.mkdir(other)
                    shutil.copymode(entry.path, other)
                if os.path.isdir(other):
                    _link_others(entry.path, other)
            elif not os.path.lexists(other):
                os.link(entry.path, other, follow_symlinks=False)


@functools.cache
def _renameat2():
    """Return Linux's system call that exchanges two files, or `None`."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _exchange(one, other):
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if _renameat2()(here, os.fsencode(one), here, os.fsencode(other), exchange):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), other)


def _move_in(folder, target, keep):
    """Move the content of a folder into `target`, by a plan that `_end_move` can complete."""
    work = os.path.dirname(folder)
    new = set(os.listdir(folder))
    removed = [] if keep else [name for name in names_in(target) if name not in new]
    with open(os.path.join(work, _ORIGIN), "w", encoding="utf-8"):
        pass
    plan = {"folder": os.path.basename(folder), "keep": keep, "removed": removed}
    plan["made"] = _origin(work)
    path = os.path.join(work, _MOVING)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(to_json(plan))
        file.flush()
        os.fsync(file.fileno())
    before = _count(work)
    os.rename(path + ".new", path)
    _sync(work)
    try:
        _end_move(work, target)
    except OSError:
        if _count(work) == before:  # Nothing was moved, so cancel the plan.
            os.unlink(path)
        raise


def _count(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


def _origin(work):
    """Return numbers that tie a move plan to this disk, to recognize copies (from an archive).

    Inode numbers alone could be guessed, but the change time of an inode cannot be set.
    """
    made = os.lstat(os.path.join(work, _ORIGIN))
    place = os.stat(os.path.dirname(work))
    return [place.st_ino, os.lstat(work).st_ino, made.st_ino, made.st_ctime_ns]


def _has_own_plan(work):
    """Return whether there is a plan that this user began here; warns about other plans."""
    path = os.path.join(work, _MOVING)
    if not os.path.lexists(path):
        return False
    if _is_ours(work) and _read_plan(work) is not None:
        return True
    if os.path.lexists(path):  # Otherwise the move has been completed.
        warnings.warn(
            f"'{work}' describes a move of files that this user did not begin on this disk, so it "
            "is ignored; remove it unless another user is writing there.",
            stacklevel=4,
        )
    return False


def _read_plan(work):
    """Read the plan in a hidden folder, a dict; `None` if it is damaged or was not made here."""
    try:
        with open(os.path.join(work, _MOVING), encoding="utf-8") as file:
            plan = json.load(file)
        names = [plan["folder"], *plan["removed"]]
        is_plain = all(os.path.basename(x) == x and x not in ("", ".", "..") for x in names)
        if is_plain and isinstance(plan["keep"], bool) and plan["made"] == _origin(work):
            return plan
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _end_move(work, target):
    """Complete a move, if one was begun."""
    path = os.path.join(work, _MOVING)
    if not os.path.exists(path):
        return
    plan = _read_plan(work)
    if plan is None:
        raise OSError(errno.EINVAL, f"'{path}' was not made here, or is damaged; remove it")
    old = os.path.join(work, "old")
    os.makedirs(old, exist_ok=True)
    folder = os.path.join(work, plan["folder"])
    if not _is_folder(old) or (os.path.lexists(folder) and not _is_folder(folder)):
        raise OSError(errno.ELOOP, f"'{work}' holds a link where a folder belongs; remove it")
    if os.path.lexists(folder):
        _merge(folder, target, plan["keep"], old)
    for name in plan["removed"]:
        with contextlib.suppress(FileNotFoundError):
            _set_aside(os.path.join(target, name), old)
    _sync(target)
    os.unlink(path)


def _merge(folder, target, keep, old):
    for name in sorted(os.listdir(folder)):
        one, other = os.path.join(folder, name), os.path.join(target, name)
        is_folder, was_folder = _is_folder(one), _is_folder(other)
        if keep and is_folder and was_folder:
            _merge(one, other, keep, old)
            continue
        if is_folder or was_folder:
            with contextlib.suppress(FileNotFoundError):
                _set_aside(other, old)
        os.replace(one, other)


def _set_aside(path, old):
    os.rename(path, os.path.join(old, secrets.token_hex(6)))


# === The disk ===


def _open_to_all(folder, work):
    """Apply the umask to a folder's content, since some libraries let only the owner read."""
    probe = os.path.join(work, "probe")
    os.mkdir(probe)
    mode = os.stat(probe).st_mode & 0o777
    os.rmdir(probe)
    for path, is_folder in _all_in(folder):
        os.chmod(path, mode if is_folder else mode & 0o666)


def _all_in(folder):
    """Yield a folder and everything in it except links, innermost first: `(path, is_folder)`."""
    for path, _, names in os.walk(folder, topdown=False):
        files = (os.path.join(path, name) for name in names)
        yield from ((file, False) for file in files if not os.path.islink(file))
        yield path, True


def _sync(path):
    """Flush a file, or the names in a folder, to disk where that is supported."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)

"""Reading and atomic writing of files and folders.

Output is written to a hidden folder on the same disk (`kerasbert.base.hidden`), and renamed when
complete (`kerasbert.base.moves`).
"""

import contextlib
import errno
import functools
import inspect
import json
import math
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from kerasbert.base import system
from kerasbert.base.hidden import (
    HIDDEN,
    OWNER,
    PREFIX,
    delete,
    hidden_in,
    make_in,
    owner_of,
    owner_record,
    take_lock,
)
from kerasbert.base.moves import has_own_plan, hidden_folder, link_others, put, sweep
from kerasbert.base.paths import as_path, check_regular, is_url
from kerasbert.base.strict_json import to_json

Function = TypeVar("Function", bound=Callable[..., Any])


# === Files ===


@contextlib.contextmanager
def new_file(path):
    """Write a file atomically: it appears under its name only when complete.

    Raises:
        OSError: if the disk is full, with advice.
    """
    folder, name = os.path.split(os.path.abspath(path))
    try:
        with hidden_folder(folder) as work:
            partial = os.path.join(work, name)
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            system.replace(partial, path)
            system.sync(folder)
    except OSError as error:
        if error.errno not in system.FULL:
            raise
        raise OSError(
            error.errno,
            f"The disk of '{folder}' is full: '{name}' was not written. Free some space and run "
            "the same again: it resumes after the last complete file",
        ) from None


def write_text(path, text):
    """Write a text file atomically; return its path."""
    with new_file(path) as file:
        file.write(text.encode())
    return path


def write_files(directory, files):
    """Write `files`, a dict of name to bytes, into a new directory."""
    for name, data in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)


def remove(path):
    """Remove a file or a folder, if it exists, in one step."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return
    with hidden_folder(folder) as work, contextlib.suppress(FileNotFoundError):
        system.rename(path, os.path.join(work, "old"))


def check_room(folder, weights):
    """Check that a model's weights fit on the disk as HDF5.

    On a full disk, h5py 3.14 kills the process.

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
    if size and not system.has_room(folder, size):
        raise OSError(
            errno.ENOSPC,
            f"The disk of '{folder}' has no room for {size:,} bytes of {what}; free some space, or "
            "name another folder",
        )


# === JSON ===


def write_json(path, value):
    """Write a JSON file atomically, without escaping non-ASCII letters."""
    text = to_json(value, ensure_ascii=False, indent=1)
    if re.search("[\ud800-\udfff]", text):  # File names may not be UTF-8.
        text = to_json(value, indent=1)
    return write_text(path, text + "\n")


def read_json(path, kind=dict):
    """Read a JSON file that this process did not write.

    Args:
        path: string.
        kind: type. The expected type of its content: `dict` or `list`.

    Raises:
        ValueError: if it is missing, invalid, irregular, or of another type.
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


def json_in(directory, name):
    """Return the content of a JSON file in a directory, or an empty dict."""
    path = os.path.join(directory, name)
    return read_json(path) if os.path.exists(path) else {}


def read_log(path):
    """Read the lines of a JSON Lines log as dicts, up to a line truncated by a power failure."""
    rows = []
    if os.path.exists(path):
        with contextlib.suppress(ValueError), open(path, encoding="utf-8") as file:
            for line in file:
                rows.append(json.loads(line))
    return rows


# === Output folders ===


def output_folder(path, name, urls=False):
    """Remove leftovers of killed runs from an output folder; return its absolute path.

    Args:
        path: string or path, as the user passed it.
        name: the name of the argument, for error messages.
        urls: whether a URL is allowed, returned without a trailing slash.

    Raises:
        ValueError: if the path is empty, a file, inside a file, or a disallowed URL.
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
    # If the previous run was killed just before its end, this run writes nothing, and no later step
    # cleans up.
    _sweep_above(os.path.realpath(path))
    return path


@contextlib.contextmanager
def in_use(folder, by):
    """Lock a folder for writing, or raise with the process that uses it.

    A new folder is removed again if it stays empty. URLs are not locked.

    Args:
        folder: string.
        by: the command that writes to it, such as "pretrain".

    Raises:
        BlockingIOError: if another process or call is writing to it.
    """
    if is_url(folder):
        yield
        return
    # Innermost first.
    made = [path for path in _upwards(os.path.realpath(folder)) if not os.path.lexists(path)]
    os.makedirs(os.path.realpath(folder), exist_ok=True)
    try:
        with _alone(folder, "in-use", folder, by):
            for path, _, _ in os.walk(folder):
                sweep(path)
            yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # The folder is not empty.
                os.rmdir(path)


def fills_output(function: Function) -> Function:
    """Decorate a function to lock the folder of its argument `output`; see `in_use`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            output = signature.bind(*args, **kwargs).arguments["output"]
        except TypeError:
            return function(*args, **kwargs)  # The usual error for missing arguments.
        with in_use(output_folder(output, "output", urls=True), function.__name__):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def _alone(place, name, target, by):
    """Hold the lock `name` in the folder `place`, and record its holder."""
    work = os.path.join(place, PREFIX + name)
    for _ in range(5):  # Another process may be testing the lock.
        make_in(place, work)
        lock = take_lock(work, wait=0.1)
        if lock is not None:
            break
    else:
        raise BlockingIOError(
            errno.EWOULDBLOCK,
            f"'{target}' is being written by {owner_of(work)}; wait until it is done, or name "
            "another folder",
        )
    try:
        path = os.path.join(work, OWNER)
        with contextlib.suppress(FileNotFoundError):
            system.unlink(path)
        with open(path, "x", encoding="utf-8") as file:
            file.write(to_json(owner_record(by)))
        yield
    finally:
        delete(work, lock)


def names_in(folder):
    """Return the sorted names in a folder, without our hidden folders."""
    if not os.path.isdir(folder):
        return []
    return sorted(name for name in os.listdir(folder) if not HIDDEN.fullmatch(name))


def check_regular_tree(directory, depth=3):
    """Call `check_regular` for the files of a folder, down to `depth` levels."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_file() and not HIDDEN.fullmatch(entry.name):
                check_regular(entry.path)
                if depth > 1 and entry.is_dir():
                    check_regular_tree(entry.path, depth - 1)


def settle(folder):
    """Wait until no process is moving files into a folder to read.

    Reading has no side effects, so this moves nothing. Move plans of others, such as in a
    downloaded folder, are ignored with a warning.

    Raises:
        OSError: if a process ended in the middle of a move, or is still moving after 60 s.
    """
    for name in hidden_in(folder):
        work, lock = os.path.join(folder, name), None
        if not has_own_plan(work):
            continue
        with contextlib.suppress(OSError):  # On a read-only file system no process is moving files.
            lock = take_lock(work, wait=60)
        try:
            if not has_own_plan(work):
                continue
            raise OSError(
                errno.EBUSY,
                f"A write to '{folder}' was interrupted, or is still running, so it holds old and "
                "new files; rerun the command that wrote it, or complete the move with "
                f"`kerasbert.base.files.sweep({folder!r})`",
            )
        finally:
            if lock is not None:
                lock.release()


# === Complete folders ===


@contextlib.contextmanager
def scratch(target, by=None):
    """Make a hidden folder for the new content of `target`, on its disk; see `put`.

    Args:
        target: the folder that `put` will replace or create later; links are followed.
        by: the command that writes and locks `target`, such as "convert"; `None` does not lock.

    Raises:
        BlockingIOError: if another process has locked it.
    """
    target = os.path.realpath(target)
    place = target if _stays(target) else _existing(os.path.dirname(target))
    _sweep_above(target)
    name = "in-use-" + os.path.relpath(target, place).replace(os.sep, "-")[-150:]
    alone = _alone(place, name, target, by) if by else contextlib.nullcontext()
    with alone, hidden_folder(place) as work:
        yield work
    _sweep_above(target)


@contextlib.contextmanager
def new_folder(target, keep=False, by=None):
    """Yield a folder that becomes `target` without an error; see `scratch` and `put`."""
    with scratch(target, by) as work:
        folder = os.path.join(work, "new")
        os.mkdir(folder)
        yield folder
        put(folder, target, keep)


@contextlib.contextmanager
def new_files(folder):
    """Yield a folder, whose files all move into `folder` without an error."""
    with hidden_folder(folder) as work:
        new = os.path.join(work, "new")
        os.mkdir(new)
        yield new
        put(new, folder, keep=True)


def temporary_folder():
    """Make a hidden folder in the system's temporary folder, removed at the end or by the next
    call.
    """
    return hidden_folder(tempfile.gettempdir())


def link_files(folder, new):
    """Add all files of a folder to `new`, by hard links or copies."""
    try:
        link_others(folder, new)
    except OSError:
        shutil.copytree(folder, new, symlinks=True, dirs_exist_ok=True)


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
    return pathlib.Path(os.path.realpath(here)).is_relative_to(target)


def _upwards(path):
    """List an absolute path and all its parents, up to the root."""
    return [path, *map(str, pathlib.Path(path).parents)]


def _existing(folder):
    """Return a folder, or its nearest existing parent."""
    for path in _upwards(folder):
        if os.path.exists(path):
            return path
    raise FileNotFoundError(
        errno.ENOENT, f"'{folder}' is on a drive that does not exist; name another folder"
    )


def _sweep_above(target):
    """Sweep `target` and its parents, which `scratch` may have used."""
    for folder in _upwards(_existing(target)):
        sweep(folder)

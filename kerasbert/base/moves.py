"""Moves of complete output to its final place.

A complete folder is exchanged with the old one, or its entries are moved by a plan on disk, which
the next writer completes if the process is killed.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
import warnings

from kerasbert.base import system
from kerasbert.base.hidden import (
    HIDDEN,
    LOCK,
    MOVING,
    ORIGIN,
    PREFIX,
    delete,
    hidden_in,
    is_ours,
    is_real_folder,
    make_in,
    take_lock,
)

# Errors if another process has removed or created a folder.
_CHANGED = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
_hidden_here = set()  # The hidden folders of this process.


# === Hidden folders ===


@contextlib.contextmanager
def hidden_folder(place):
    """Make a hidden folder with a lock in `place`, removed at the end."""
    sweep(place)
    lock = None
    while lock is None:  # Another process may remove the folder.
        work = os.path.join(place, PREFIX + secrets.token_hex(6))
        make_in(place, work)
        lock = take_lock(work)
    known = os.path.realpath(work)
    _hidden_here.add(known)
    try:
        yield work
    finally:
        _hidden_here.discard(known)
        delete(work, lock)


def sweep(folder):
    """Remove hidden folders of killed processes, and complete their moves.

    Those of other users, links, and plans in copied folders are ignored.
    """
    for name in hidden_in(folder) if os.access(folder, os.W_OK) else []:
        with contextlib.suppress(OSError):  # Another process removed it.
            _clear(os.path.join(folder, name))


def _clear(work):
    """Remove an abandoned hidden folder, after completing its move."""
    if not is_ours(work):
        return
    is_moving = os.path.exists(os.path.join(work, MOVING))
    if not is_moving and not os.path.exists(os.path.join(work, LOCK)):
        os.rmdir(work)  # Fails unless the folder is empty.
        return
    if is_moving and not has_own_plan(work):
        return
    # A reader may hold the lock for a moment.
    lock = take_lock(work, wait=1 if is_moving else 0)
    if lock is not None:
        try:
            _end_move(work, os.path.dirname(work))
        except BaseException:
            lock.release()
            raise
        delete(work, lock)


def is_unfinished(path):
    """Return whether a path is in a hidden folder of this process."""
    path = os.path.realpath(path)
    return any(path.startswith(hidden + os.sep) for hidden in tuple(_hidden_here))


# === Complete folders ===


def put(folder, target, keep=False):
    """Replace `target`, or create it, with a complete folder from a `scratch`.

    On Linux, folders are exchanged in one step. On other systems, and for a folder that cannot be
    renamed (a mount point, the current directory or in a read-only parent), entries are moved one
    by one. The next writer (`sweep`) completes an interrupted move; until then, readers get an
    error (`settle`).

    Args:
        folder: the complete folder, directly in the scratch folder.
        target: string, as passed to `scratch`.
        keep: whether to keep other files of `target`, as links.
    """
    target = os.path.realpath(target)
    folder = os.path.realpath(folder)
    work = os.path.dirname(folder)
    _open_to_all(folder, work)
    for path, _ in _all_in(folder):
        system.sync(path)
    is_inside = os.path.dirname(work) == target
    for attempt in range(100):
        try:
            if not os.path.lexists(target):
                _put_new(folder, target)
            elif is_inside:
                _move_in(folder, target, keep)
            elif not _swap(folder, target, keep):
                with hidden_folder(target) as inside:
                    moved = os.path.join(inside, "new")
                    system.rename(folder, moved)
                    _move_in(moved, target, keep)
            break
        except OSError as error:
            if error.errno not in _CHANGED or attempt == 99 or not os.path.isdir(folder):
                raise
    system.sync(os.path.dirname(target))


def _open_to_all(folder, work):
    """Apply the umask to a folder's content: some libraries write files only for their owner."""
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


def _put_new(folder, target):
    """Rename a folder to a new path, with missing parents in the same step."""
    top = target
    while not os.path.lexists(os.path.dirname(top)):
        top = os.path.dirname(top)
    if top == target:
        system.rename(folder, target)
        return
    made = os.path.join(os.path.dirname(folder), "above")
    inside = os.path.join(made, os.path.relpath(target, top))
    os.makedirs(os.path.dirname(inside))
    system.rename(folder, inside)
    try:
        system.rename(made, top)
    except OSError:
        system.rename(inside, folder)
        shutil.rmtree(made)
        raise


def _swap(folder, target, keep):
    """Exchange two folders; return whether that was possible."""
    if not system.can_exchange():
        return False
    device = os.stat(target).st_dev
    for path, folders, _ in os.walk(target):
        if any(os.lstat(os.path.join(path, name)).st_dev != device for name in folders):
            return False  # Another disk is mounted inside.
    try:
        if keep:
            link_others(target, folder)
        state = os.stat(target)
        system.take_over(folder, state)
        system.sync(folder)
        system.exchange(folder, target)
    except OSError as error:
        if error.errno in _CHANGED:
            raise
        return False
    if keep:  # Files may have been added to the old folder meanwhile.
        link_others(folder, target)
    return True


def link_others(old, new):
    """Link entries that exist only in the old folder into the new one."""
    with os.scandir(old) as entries:
        for entry in entries:
            other = os.path.join(new, entry.name)
            if HIDDEN.fullmatch(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                if not os.path.lexists(other):
                    os.mkdir(other)
                    shutil.copymode(entry.path, other)
                if os.path.isdir(other):
                    link_others(entry.path, other)
            elif not os.path.lexists(other):
                os.link(entry.path, other, follow_symlinks=False)


# === Moves by a plan ===


def _move_in(folder, target, keep):
    """Move a folder's content into `target`, with a plan for `_end_move` to complete it."""
    work = os.path.dirname(folder)
    new = set(os.listdir(folder))
    removed = set() if keep else set(os.listdir(target)) - new
    removed = sorted(name for name in removed if not HIDDEN.fullmatch(name))
    for name in (*new, *removed):
        system.check_closed(os.path.join(target, name))
    with open(os.path.join(work, ORIGIN), "w", encoding="utf-8"):
        pass
    plan = {"folder": os.path.basename(folder), "keep": keep, "removed": removed}
    plan["made"] = _origin(work)
    path = os.path.join(work, MOVING)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps(plan))
        file.flush()
        os.fsync(file.fileno())
    before = _count(work)
    system.rename(path + ".new", path)
    system.sync(work)
    try:
        _end_move(work, target)
    except OSError:
        if _count(work) == before:  # Nothing was moved, so cancel the plan.
            os.unlink(path)
        raise


def _count(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


def _end_move(work, target):
    """Complete a move, if one was begun."""
    path = os.path.join(work, MOVING)
    if not os.path.exists(path):
        return
    plan = _read_plan(work)
    if plan is None:
        raise OSError(errno.EINVAL, f"'{path}' was copied here or is damaged; remove it")
    old = os.path.join(work, "old")
    os.makedirs(old, exist_ok=True)
    folder = os.path.join(work, plan["folder"])
    if not is_real_folder(old) or (os.path.lexists(folder) and not is_real_folder(folder)):
        raise OSError(errno.ELOOP, f"'{work}' holds a link where a folder belongs; remove it")
    if os.path.lexists(folder):
        _merge(folder, target, plan["keep"], old)
    for name in plan["removed"]:
        with contextlib.suppress(FileNotFoundError):
            _set_aside(os.path.join(target, name), old)
    system.sync(target)
    system.unlink(path)


def _merge(folder, target, keep, old):
    for name in sorted(os.listdir(folder)):
        one, other = os.path.join(folder, name), os.path.join(target, name)
        is_folder, was_folder = is_real_folder(one), is_real_folder(other)
        if keep and is_folder and was_folder:
            _merge(one, other, keep, old)
            continue
        if is_folder or was_folder:
            with contextlib.suppress(FileNotFoundError):
                _set_aside(other, old)
        system.replace(one, other)


def _set_aside(path, old):
    system.rename(path, os.path.join(old, secrets.token_hex(6)))


def _origin(work):
    """Return numbers that tie a move plan to this disk, to recognize copies.

    Inode numbers could be guessed, but an inode's change time cannot be set.
    """
    made = os.lstat(os.path.join(work, ORIGIN))
    place = os.stat(os.path.dirname(work))
    return [place.st_ino, os.lstat(work).st_ino, made.st_ino, made.st_ctime_ns]


def has_own_plan(work):
    """Return whether `work` has a plan of this user and disk; others cause a warning."""
    path = os.path.join(work, MOVING)
    if not os.path.lexists(path):
        return False
    if is_ours(work) and _read_plan(work) is not None:
        return True
    if os.path.lexists(path):  # Otherwise the move has been completed.
        warnings.warn(
            f"'{work}' describes a move of files that this user did not begin on this disk, so it "
            "is ignored; remove it unless another user is writing there.",
            stacklevel=4,
        )
    return False


def _read_plan(work):
    """Read the plan in a hidden folder, or `None` if damaged or copied."""
    try:
        with open(os.path.join(work, MOVING), encoding="utf-8") as file:
            plan = json.load(file)
        names = [plan["folder"], *plan["removed"]]
        is_plain = all(os.path.basename(x) == x and x not in ("", ".", "..") for x in names)
        if is_plain and isinstance(plan["keep"], bool) and plan["made"] == _origin(work):
            return plan
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None

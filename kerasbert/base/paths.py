"""Paths and URLs, names from files, and checks of files."""

import hashlib
import ntpath
import os
import pathlib
import re
import stat
import urllib.request
from importlib import resources

from kerasbert.base import system

# Matches `s3://`, and URLs chained by fsspec such as `zip://a.txt::s3://`, but no Windows drives.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_LOST_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_FORBIDDEN = set('<>:"|?*')  # In Windows file names; "a:b" is a stream of the file "a".
_CACHED = re.compile("(models|datasets|spaces)--")


# === Paths from users ===


def is_url(path):
    """Return whether a string is a storage URL.

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
        if system.IS_WINDOWS:
            path = urllib.request.url2pathname(path)
    return path if is_url(path) else os.path.expanduser(path)


def packaged(folder, in_checkout):
    """Return a folder of files that come with the package.

    Args:
        folder: string. Its name in an installed package; pyproject.toml has both names.
        in_checkout: string. Its path in a checkout.
    """
    package = resources.files("kerasbert")
    installed = package / folder
    return installed if installed.is_dir() else package.joinpath("..", in_checkout)


# === Names from files ===


def inside(directory, name, source, nested=False):
    """Join a directory and a checked name from a file.

    Every name read from a file must pass it before it becomes part of a path;
    `tests/test_names_from_files.py` enforces that.

    Args:
        directory: a folder or a URL.
        name: the name: a string without separators that names neither the directory itself nor a
            device.
        source: the path of the file that holds the name, for the error message.
        nested: whether "/" may lead into subfolders.

    Raises:
        ValueError: if the name is invalid or leads out of the directory, also by a link, except to
            the blobs of the Hugging Face hub's cache.
    """
    check_name(name, source, nested, directory)
    return f"{directory.rstrip('/')}/{name}" if is_url(directory) else os.path.join(directory, name)


def check_name(name, source, nested=False, directory=None):
    """Check a name like `inside`, and links only with a directory."""
    is_free = directory is None or is_url(directory)
    if not _is_name(name, nested) or not (is_free or _stays_inside(directory, name)):
        raise ValueError(
            f"'{source}' names {name!r:.200}, which leaves its directory or is not a valid file "
            "name; do not use it."
        )


def _is_name(name, nested):
    if not isinstance(name, str) or set(name) & {"\\", "\0"} or name.startswith("/"):
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    parts = [part for part in name.split("/") if part not in ("", ".")] if nested else [name]
    if not nested or system.IS_WINDOWS:
        if any(_DEVICE.fullmatch(part) or ntpath.splitdrive(part)[0] for part in parts):
            return False
    if system.IS_WINDOWS and set(name) & _FORBIDDEN:
        return False
    # Windows strips final dots and spaces.
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


# === Files ===


def check_regular(path):
    """Check that a path is not a pipe, a socket or a device, which may block forever.

    Raises:
        ValueError: if it is one.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # Opening it raises a clear error.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "a pipe or socket" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "a device"
        raise ValueError(f"'{path}' is {kind}; it must be a regular file.")


def file_sha256(path):
    """Return the SHA-256 of a file in hexadecimal (1 to 2 GB per second)."""
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
        hashed: whether to compare the hash too.
        then: string. What to do; it ends the error.

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

"""Files at local paths and, through fsspec, at URLs (`s3://`, `gs://`, `hdfs://`).

fsspec needs the protocol's package (s3fs, gcsfs, adlfs), which finds its credentials.

Writes are atomic: object stores show only complete uploads; elsewhere, files are written under a
hidden name and renamed. There are no locks; see `kerasbert.base.working_folder`.
"""

import contextlib
import errno
import glob
import os
import re
import secrets

from kerasbert.base import files
from kerasbert.base.errors import first_line
from kerasbert.base.paths import inside, is_url

# Protocols with atomic uploads, and read-only protocols.
WHOLE_PUTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "hf")
READ_ONLY = ("http", "https", "data", "zip", "tar", "github")
# Schemes of preset handles, which are not storage.
HUBS = ("hf://", "kaggle://", "modelscope://")


# === Names ===


def join(folder, *names):
    """Join names to a folder's path or URL."""
    if not is_url(folder):
        return os.path.join(folder, *names)
    return "/".join([folder.rstrip("/"), *names])


def find(given):
    """Find files and their sizes, sorted by name; hidden files are skipped.

    Args:
        given: a file, a folder (searched recursively), or a glob pattern.

    Returns:
        `(kind, dict of path to bytes)`, where `kind` is "file", "folder" or "pattern".
    """
    if not is_url(given):
        return _find_here(given)
    with _reaching(given):
        fs, path = _place(given)
        info = _info(fs, path)
        if info is not None and info["type"] == "file":
            return "file", {given: info.get("size") or 0}
        kind, below = "folder", path.rstrip("/") + "/"
        found = fs.find(path, detail=True)
        if not found and re.search(r"[*?[]", path):
            kind, below = "pattern", re.split(r"[*?[]", path)[0].rpartition("/")[0] + "/"
            found = fs.glob(path, detail=True)
    sizes = {
        _url(given, path, fs, name): info.get("size") or 0
        for name, info in sorted(found.items())
        if info["type"] == "file" and not _is_hidden(name.removeprefix(below))
    }
    return kind, sizes


def _find_here(given):
    if os.path.isdir(given):
        files.settle(given)
        kind, paths, seen = "folder", [], set()
        for parent, folders, names in os.walk(given, followlinks=True):
            real = os.path.realpath(parent)
            if real in seen:  # A symbolic link to a visited folder.
                folders.clear()
                continue
            seen.add(real)
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [os.path.join(parent, name) for name in names if not name.startswith(".")]
        paths.sort(key=_by_name)
    elif os.path.exists(given):
        kind, paths = "file", [given]
    else:
        kind = "pattern"
        paths = sorted(filter(os.path.isfile, glob.iglob(given, recursive=True)), key=_by_name)
    return kind, {path: os.path.getsize(path) for path in paths}


def _by_name(path):
    """Return the sort key of a path, the same on all systems."""
    return path.replace(os.sep, "/")


def _is_hidden(name):
    return any(part.startswith(".") for part in name.split("/"))


def _url(given, path, fs, name):
    """Return the URL of `name` below the URL `given` with the path `path`."""
    url = given.rstrip("/")
    if url.endswith(path):  # fsspec left out the URL's host, so it is put back.
        return url.removesuffix(path) + name
    return fs.unstrip_protocol(name)


def exists(path):
    """Return whether a file or folder exists."""
    if not is_url(path):
        return os.path.exists(path)
    with _reaching(path):
        return _info(*_place(path)) is not None


def _info(fs, path):
    """Return a store's information on a file or folder, or `None`.

    `fs.exists` and `fs.isfile` return False also for failed requests, after which the run would
    start over.
    """
    try:
        return fs.info(path)
    except FileNotFoundError:
        return None


def folders_in(path):
    """List the subfolders of a folder, sorted."""
    if not is_url(path):
        found = glob.glob(os.path.join(glob.escape(path), "*", ""))
        return [folder.rstrip(os.sep) for folder in sorted(found, key=_by_name)]
    if _protocol(path) in READ_ONLY:
        return []
    with _reaching(path):
        fs, there = _place(path)
        try:
            found = fs.ls(there, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(_url(path, there, fs, x["name"]) for x in found if x["type"] == "directory")


# === Reading ===


def open_file(path):
    """Open a seekable file for reading bytes."""
    if not is_url(path):
        return open(path, "rb")
    with _reaching(path):
        fs, there = _place(path)
        return _File(fs.open(there, "rb"), path)


class _File:
    """An fsspec file that raises this module's errors."""

    def __init__(self, file, url):
        self._file, self._url = file, url
        self.closed = False

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed = True
        self._file.close()

    def read(self, size=-1):
        with _reaching(self._url):
            return self._file.read(size)


def read_json(path, missing=None):
    """Read a dict from a JSON file, or return any `missing` without it.

    Raises:
        ValueError: as `files.read_json`.
    """
    if missing is not None and not exists(path):
        return missing
    if not is_url(path):
        return files.read_json(path)
    with files.temporary_folder() as folder:
        copy = os.path.join(folder, "value.json")
        get(path, copy)
        try:
            return files.read_json(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(copy, path)) from None


def get(url, path):
    """Download the file at a URL to a path."""
    with _reaching(url):
        fs, there = _place(url)
        fs.get_file(there, path)


def get_folder(url, folder, left_out=(), seen=None):
    """Download all files below a URL to a folder: a dict of remote name to local path.

    Args:
        left_out: names directly below the URL that are skipped.
        seen: dict of name to the store's information, to update; unchanged files are skipped.
    """
    copies, seen = {}, {} if seen is None else seen
    with _reaching(url):
        fs, there = _place(url)
        below = there.rstrip("/") + "/"
        for path, info in sorted(fs.find(there, detail=True).items()):
            name = path.removeprefix(below)
            if name.split("/")[0] in left_out or _is_hidden(name) or seen.get(name) == repr(info):
                continue
            copies[name] = inside(folder, name, url, nested=True)
            os.makedirs(os.path.dirname(copies[name]), exist_ok=True)
            fs.get_file(path, copies[name])
            seen[name] = repr(info)
    return copies


# === Writing ===


@contextlib.contextmanager
def new_file(path):
    """Open a file that appears under its name only once it is completely written."""
    if not is_url(path):
        with files.new_file(path) as file:
            yield file
        return
    with files.temporary_folder() as folder:
        copy = os.path.join(folder, "file")
        with open(copy, "wb") as file:
            yield file
        put(copy, path)


def write_text(path, text):
    """Write a text file atomically."""
    with new_file(path) as file:
        file.write(text.encode())


def check_writable(folder):
    """Check that files can be written below a URL, before any work.

    Raises:
        OSError, ValueError, ImportError: with a one-sentence message.
    """
    if is_url(folder):
        probe = join(folder, f".{secrets.token_hex(6)}.partial")
        with files.temporary_folder() as work:
            put(files.write_text(os.path.join(work, "probe"), ""), probe, folder)
        with contextlib.suppress(OSError):
            remove(probe)


def put(path, url, place=None):
    """Upload a file to a URL atomically; errors name `place` or the URL.

    Raises:
        OSError, ValueError, ImportError: with a one-sentence message.
    """
    place = place or url
    if _protocol(url) in READ_ONLY or "::" in url:
        raise ValueError(f"'{place}' is read-only; choose another place to write to.")
    with _reaching(place, "written"):
        fs, there = _place(url)
        if _protocol(url) in WHOLE_PUTS:
            fs.put_file(path, there)
            return
        folder, _, name = there.rpartition("/")
        fs.makedirs(folder, exist_ok=True)
        partial = f"{folder}/.{name}.{secrets.token_hex(6)}.partial"
        try:
            fs.put_file(path, partial)
            _move(fs, partial, there)
        except BaseException:
            with contextlib.suppress(Exception):
                fs.rm_file(partial)
            raise


def _move(fs, partial, path):
    """Rename a file, replacing an existing one."""
    refused = None
    try:
        fs.mv(partial, path)
    except OSError as error:
        refused = error
    # Some stores do not replace a file, some without an error.
    if _info(fs, partial) is not None:
        if refused is not None and _info(fs, path) is None:
            raise refused
        fs.rm_file(path)
        fs.mv(partial, path)


def remove(path):
    """Remove a file if it exists."""
    if not is_url(path):
        files.remove(path)
        return
    with _reaching(path, "removed"):
        fs, there = _place(path)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(there)


# === fsspec ===


def _protocol(url):
    return url.partition(":")[0].lower()


class _Refused(ValueError):
    """An error whose message is already one sentence."""


def _place(url):
    """Return a URL's file system, without cached listings, and the path in it."""
    from fsspec.core import url_to_fs

    protocol = _protocol(url)
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        raise ImportError(
            f"'{url}' needs the package for '{protocol}': "
            + (f"run `pip install {package}`." if package else f"{first_line(error)}.")
        ) from None
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise _Refused(
            f"'{url}' has the unknown protocol '{protocol}'; use s3, gs, abfs, hdfs, hf or "
            "another protocol of fsspec."
        ) from None
    if not path.strip("/"):
        raise _Refused(
            f"'{url}' names no bucket or folder; expected a URL such as 's3://bucket/folder'."
        )
    fs.invalidate_cache()
    return fs, path


_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    "hdfs": "pyarrow",
    "oss": "ossfs",
    "sftp": "paramiko",
    "webhdfs": "requests",
}


@contextlib.contextmanager
def _reaching(url, done="read"):
    """Replace a file system's error by one sentence."""
    try:
        yield
    except (_Refused, ImportError):
        raise
    except Exception as error:
        reason = first_line(error)[:300].rstrip(".")
        if type(error).__name__ not in reason and not isinstance(error, OSError):
            reason = f"{type(error).__name__}: {reason}"
        number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO
        raise OSError(
            getattr(error, "errno", None) or number,
            f"'{url}' cannot be {done}: {reason}; check that it exists and that you have access",
        ) from error

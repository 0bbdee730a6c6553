"""Files wherever they are: paths of this machine, or URLs (`s3://`, `gs://`, `hdfs://`) by fsspec.

fsspec finds the package of a protocol, which has to be installed (s3fs, gcsfs, adlfs), and its
credentials where that package looks for them. Local paths go to `open` and to `kerasbert.files`.

A file is there whole, or not at all. An object store shows an object when all of it has come;
elsewhere it is written under a hidden name, and moved. No store has locks: see `WorkingFolder`.
"""

import contextlib
import errno
import glob
import os
import re
import secrets
import socket
import time
import warnings

from kerasbert import files
from kerasbert._errors import first_line
from kerasbert._json import to_json
from kerasbert.files import in_use, is_url, temporary_folder

# Protocols of stores that show an object when it is whole, and those that are only read.
WHOLE_PUTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "hf")
READ_ONLY = ("http", "https", "data", "zip", "tar", "github")
# Handles of presets, which are no storage.
HUBS = ("hf://", "kaggle://", "modelscope://")
OWNER = "running.json"


# === Names ===


def join(folder, *names):
    """A path below a folder or a URL."""
    if not is_url(folder):
        return os.path.join(folder, *names)
    return "/".join([folder.rstrip("/"), *names])


def find(given):
    """Files by their sizes, sorted by name, without hidden ones: `(kind, dict of path to bytes)`.

    Args:
        given: string. A file, a folder, with all folders in it, or a pattern: that is `kind`, then.
            The dict is empty where there is none.
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
            if real in seen:  # A link that leads back.
                folders.clear()
                continue
            seen.add(real)
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [os.path.join(parent, name) for name in names if not name.startswith(".")]
        paths.sort()
    elif os.path.exists(given):
        kind, paths = "file", [given]
    else:
        kind = "pattern"
        paths = sorted(filter(os.path.isfile, glob.iglob(given, recursive=True)))
    return kind, {path: os.path.getsize(path) for path in paths}


def _is_hidden(name):
    return any(part.startswith(".") for part in name.split("/"))


def _url(given, path, fs, name):
    """The URL of what fsspec names below a URL whose path is given."""
    url = given.rstrip("/")
    if url.endswith(path):  # With the host, which fsspec leaves out of names.
        return url.removesuffix(path) + name
    return fs.unstrip_protocol(name)


def exists(path):
    """Whether there is such a file or folder."""
    if not is_url(path):
        return os.path.exists(path)
    with _reaching(path):
        return _info(*_place(path)) is not None


def _info(fs, path):
    """What a store says of a file or folder; `None` where there is none.

    `fs.exists` and `fs.isfile` take a failure for that, and a run would begin anew.
    """
    try:
        return fs.info(path)
    except FileNotFoundError:
        return None


def folders_in(path):
    """The folders in a folder, sorted."""
    if not is_url(path):
        found = glob.glob(os.path.join(glob.escape(path), "*", ""))
        return [folder.rstrip(os.sep) for folder in sorted(found)]
    if _protocol(path) in READ_ONLY:
        return []
    with _reaching(path):
        fs, inside = _place(path)
        try:
            found = fs.ls(inside, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(_url(path, inside, fs, x["name"]) for x in found if x["type"] == "directory")


# === Reading ===


def open_file(path):
    """A file to read bytes from, which can be sought in."""
    if not is_url(path):
        return open(path, "rb")
    with _reaching(path):
        fs, inside = _place(path)
        return _File(fs.open(inside, "rb"), path)


class _File:
    """A file of fsspec's whose errors are ours."""

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
    """What a JSON file holds, a dict; `missing` where there is none, unless that is `None`.

    Raises:
        ValueError: as `files.read_json`.
    """
    if missing is not None and not exists(path):
        return missing
    if not is_url(path):
        return files.read_json(path)
    with temporary_folder() as folder:
        copy = os.path.join(folder, "value.json")
        get(path, copy)
        try:
            return files.read_json(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(copy, path)) from None


def get(url, path):
    """Copy the file of a URL to a path."""
    with _reaching(url):
        fs, inside = _place(url)
        fs.get_file(inside, path)


def get_folder(url, folder, left_out=(), seen=None):
    """Copy what is below a URL into a folder: dict of names there to the copies.

    Args:
        left_out: names in the folder that stay where they are.
        seen: dict of names to what the store said of them, which is brought up to date: what it
            says the same of is not copied again.
    """
    copies, seen = {}, {} if seen is None else seen
    with _reaching(url):
        fs, inside = _place(url)
        below = inside.rstrip("/") + "/"
        for path, info in sorted(fs.find(inside, detail=True).items()):
            name = path.removeprefix(below)
            if name.split("/")[0] in left_out or _is_hidden(name) or seen.get(name) == repr(info):
                continue
            copies[name] = files.inside(folder, name, url, nested=True)
            os.makedirs(os.path.dirname(copies[name]), exist_ok=True)
            fs.get_file(path, copies[name])
            seen[name] = repr(info)
    return copies


# === Writing ===


@contextlib.contextmanager
def new_file(path):
    """A file to write that is there, under its name, when all is written, or not at all."""
    if not is_url(path):
        with files.new_file(path) as file:
            yield file
        return
    with temporary_folder() as folder:
        copy = os.path.join(folder, "file")
        with open(copy, "wb") as file:
            yield file
        put(copy, path)


def write_text(path, text):
    """Write a whole text file."""
    with new_file(path) as file:
        file.write(text.encode())


def check_writable(folder):
    """Raise where files cannot be put below a URL, before work is done for them.

    Raises:
        OSError, ValueError, ImportError: in a sentence.
    """
    if is_url(folder):
        probe = join(folder, f".{secrets.token_hex(6)}.partial")
        with temporary_folder() as work:
            put(files.write_text(os.path.join(work, "probe"), ""), probe, folder)
        with contextlib.suppress(OSError):
            remove(probe)


def put(path, url, place=None):
    """Copy a file to a URL: whole, or not at all. An error names the URL, or another place.

    Raises:
        OSError, ValueError, ImportError: in a sentence.
    """
    place = place or url
    if _protocol(url) in READ_ONLY or "::" in url:
        raise ValueError(f"'{place}' can be read, but not be written to; name another place.")
    with _reaching(place, "written"):
        fs, inside = _place(url)
        if _protocol(url) in WHOLE_PUTS:
            fs.put_file(path, inside)
            return
        folder, _, name = inside.rpartition("/")
        fs.makedirs(folder, exist_ok=True)
        partial = f"{folder}/.{name}.{secrets.token_hex(6)}.partial"
        try:
            fs.put_file(path, partial)
            _move(fs, partial, inside)
        except BaseException:
            with contextlib.suppress(Exception):
                fs.rm_file(partial)
            raise


def _move(fs, partial, path):
    """Give a file its name, which may be there."""
    refused = None
    try:
        fs.mv(partial, path)
    except OSError as error:
        refused = error
    if _info(fs, partial) is not None:  # Some do not replace what is there; not all say so.
        if refused is not None and _info(fs, path) is None:
            raise refused
        fs.rm_file(path)
        fs.mv(partial, path)


def remove(path):
    """Remove a file, if it is there."""
    if not is_url(path):
        files.remove(path)
        return
    with _reaching(path, "removed"):
        fs, inside = _place(path)
        with contextlib.suppress(FileNotFoundError):
            fs.rm_file(inside)


# === A folder to work in ===


class WorkingFolder:
    """A folder to fill: `folder`, of this machine, which stands for `output`, that or a URL.

    What is at the URL comes down with `pull`, and goes up with `push`, each file whole, in the
    order in which they were written; those that are gone here go there too. So a process that is
    killed leaves there what it had when it last pushed, or a part of what came after.

    A store has no locks. Instead the run that writes says so at the URL, and the one that began
    last goes on: before it pushes, each looks whether it still is that one.

    Args:
        output: string, as of `output_folder`.
        by: string. What fills it, such as "pretrain".
        left_out: names of folders that are written to the URL directly.
    """

    def __init__(self, output, by, left_out=()):
        self.output, self.folder, self.by, self.left_out = output, output, by, left_out
        self.is_url = is_url(output)
        self._stack = contextlib.ExitStack()
        self._owner = None
        # By their names, what the files were when they went up or came down, here and there.
        self._known, self._seen = {}, {}

    def __enter__(self):
        if self.is_url:
            work = self._stack.enter_context(temporary_folder())
            self.folder = os.path.join(work, os.path.basename(self.output) or "output")
            os.mkdir(self.folder)
        return self

    def __exit__(self, kind, error, trace):
        with self._stack:
            if self._owner and (kind is None or issubclass(kind, KeyboardInterrupt)):
                self.push()
            if self._owner and self._is_ours():
                with contextlib.suppress(OSError):
                    remove(join(self.output, OWNER))

    def own(self):
        """Become the one that writes, and fetch what is there.

        Raises:
            BlockingIOError: where another process of this machine fills a local folder.
            OSError: where the URL cannot be written.
        """
        if not self.is_url:
            self._stack.enter_context(in_use(self.output, self.by))
            return
        place = join(self.output, OWNER)
        before = read_json(place, {})
        if before:
            warnings.warn(
                f"'{self.output}' was being written by {_said(before)}, which did not say that it "
                "ended: if it still runs, it stops before it writes there again.",
                stacklevel=2,
            )
        self._owner = {
            "by": self.by,
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "id": secrets.token_hex(8),
        }
        write_text(place, to_json(self._owner))
        self.pull()

    def pull(self):
        """Fetch what is at the URL."""
        if self.is_url:
            left_out = (OWNER, *self.left_out)
            copies = get_folder(self.output, self.folder, left_out, self._seen)
            self._known |= {name: _state(path) for name, path in copies.items()}

    def push(self):
        """Let the URL have what is here.

        Raises:
            BlockingIOError: where another run has begun to write there.
            OSError: in a sentence where it cannot be written.
        """
        if not self.is_url:
            return
        if not self._is_ours():
            other = read_json(join(self.output, OWNER), {})
            self._owner = None
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                f"'{self.output}' is written by {_said(other)} now, which began later: this run "
                "stops, and wrote nothing more there",
            )
        here = {
            os.path.relpath(path, self.folder).replace(os.sep, "/"): _state(path)
            for path in find(self.folder)[1]
        }
        changed = [name for name in here if here[name] != self._known.get(name)]
        # A preset is none without its config.json.
        for name in sorted(changed, key=lambda name: (name.endswith("config.json"), here[name])):
            put(os.path.join(self.folder, name), join(self.output, name))
            self._known[name] = here[name]
        for name in sorted(self._known.keys() - here.keys()):
            remove(join(self.output, name))
            del self._known[name]

    def _is_ours(self):
        return read_json(join(self.output, OWNER), {}) == self._owner


def _state(path):
    state = os.stat(path)
    return state.st_mtime_ns, state.st_size


def _said(owner):
    try:
        return "`{by}` (process {process} on {host}, since {since})".format(**owner)
    except KeyError:
        return "another run"


# === fsspec ===


def _protocol(url):
    return url.partition(":")[0].lower()


class _Refused(ValueError):
    """In a sentence already."""


def _place(url):
    """The file system of a URL, which sees what others wrote meanwhile, and the path in it."""
    from fsspec.core import url_to_fs

    protocol = _protocol(url)
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        raise ImportError(
            f"'{url}' needs a package for '{protocol}': "
            + (f"`pip install {package}`." if package else f"{first_line(error)}.")
        ) from None
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise _Refused(
            f"'{url}' has the unknown protocol '{protocol}'; there are s3, gs, abfs, hdfs, hf and "
            "the others of fsspec."
        ) from None
    if not path.strip("/"):
        raise _Refused(f"'{url}' names no bucket or folder, as 's3://bucket/folder' does.")
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
    """Say in a sentence what is wrong with a URL: each package raises errors of its own."""
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
            f"'{url}' cannot be {done}: {reason}; see that the place is there, and that you may "
            "go there",
        ) from error

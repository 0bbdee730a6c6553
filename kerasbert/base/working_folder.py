"""`WorkingFolder`: a folder that a command fills, on this machine or at a URL."""

import contextlib
import errno
import os
import secrets
import warnings

from kerasbert.base.files import in_use, temporary_folder
from kerasbert.base.hidden import OWNED, owner_record
from kerasbert.base.paths import is_url
from kerasbert.base.storage import find, get_folder, join, put, read_json, remove, write_text
from kerasbert.base.strict_json import to_json

OWNER = "running.json"


class WorkingFolder:
    """A local `folder` to fill: `output` itself, or a copy of it if `output` is a URL.

    `pull` downloads the files at the URL. `push` uploads changed files, each atomically, in order
    of writing, and deletes those deleted locally. If the process is killed, the URL has the last
    push, and perhaps some of the next.

    As stores have no locks, each run records itself at the URL, and checks this before each push,
    so that only the run that started last writes.

    Args:
        output: string, as in `output_folder`.
        by: name of the writing command, such as "pretrain".
        left_out: folders written to the URL directly.
    """

    def __init__(self, output, by, left_out=()):
        self.output, self.folder, self.by, self.left_out = output, output, by, left_out
        self.is_url = is_url(output)
        self._stack = contextlib.ExitStack()
        self._owner = None
        # By file name: states of the local and the store's file at the last transfer.
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
        """Record this run as the writer, and download the files at the URL.

        Raises:
            BlockingIOError: if another process on this machine is filling a local folder.
            OSError: if the URL cannot be written.
        """
        if not self.is_url:
            self._stack.enter_context(in_use(self.output, self.by))
            return
        place = join(self.output, OWNER)
        before = read_json(place, {})
        if before:
            warnings.warn(
                f"'{self.output}' was being written by {_said(before)}, which did not record its "
                "end: if it still runs, it will stop before it writes there again.",
                stacklevel=2,
            )
        self._owner = {**owner_record(self.by), "id": secrets.token_hex(8)}
        write_text(place, to_json(self._owner))
        self.pull()

    def pull(self):
        """Download new and changed files."""
        if self.is_url:
            left_out = (OWNER, *self.left_out)
            copies = get_folder(self.output, self.folder, left_out, self._seen)
            self._known |= {name: _state(path) for name, path in copies.items()}

    def push(self):
        """Upload changes to the URL.

        Raises:
            BlockingIOError: if another run has started to write there.
            OSError: if it cannot be written, with a one-sentence message.
        """
        if not self.is_url:
            return
        if not self._is_ours():
            other = read_json(join(self.output, OWNER), {})
            self._owner = None
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                f"'{self.output}' is now being written by {_said(other)}, which started later; "
                "this run stops and has written nothing more there",
            )
        here = {
            os.path.relpath(path, self.folder).replace(os.sep, "/"): _state(path)
            for path in find(self.folder)[1]
        }
        changed = [name for name in here if here[name] != self._known.get(name)]
        # config.json is uploaded last, because it marks a complete preset.
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
        return OWNED.format(**owner)
    except KeyError:
        return "another run"

"""Files that are whole under their names, or not there."""

import contextlib
import errno
import json
import math
import os
import tempfile

import numpy as np


@contextlib.contextmanager
def new_file(path):
    """A file that is there under its name when all is written, or not at all.

    Raises:
        OSError: in a sentence where the disk is full.
    """
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"The disk of '{folder}' is full: '{name}' was not written. Free some space and run "
            "the same again: it goes on after the last complete file",
        ) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


def check_room(folder, weights):
    """Raise unless the disk takes the weights of a model as HDF5.

    Where it is full in the middle of a file, h5py does not raise: the process dies (3.14).

    Raises:
        OSError: in a sentence where they do not fit.
    """
    if not weights or not hasattr(os, "posix_fallocate"):
        return
    size = sum(math.prod(w.shape) * np.dtype(w.dtype).itemsize + 4096 for w in weights)
    with tempfile.TemporaryFile(prefix=".kerasbert-", dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return  # The file system cannot tell.
            raise OSError(
                error.errno,
                f"The disk of '{folder}' has no room for {size:,} bytes of weights; free some "
                "space, or name another folder",
            ) from None


def write_text(path, text):
    """Write a whole text file, see `new_file`; returns its path."""
    with new_file(path) as file:
        file.write(text.encode())
    return path


def read_log(path):
    """The lines of a log, as dicts; one cut short by a power failure ends it."""
    rows = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
    return rows

"""A store like some real ones: in a folder, but slow, unavailable, or unable to replace files. The
module is small, because processes that are killed import it.
"""

import errno
import os
import time

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Unreliable(LocalFileSystem):
    """A folder whose files do not replace others, as in some stores, and that can be slow or
    unavailable.
    """

    protocol = "unreliable"
    away = False
    slow = 0.0

    def info(self, path, **kwargs):
        if self.away:
            raise ConnectionError("the network is down")
        return super().info(path, **kwargs)

    def mv(self, path1, path2, **kwargs):
        if os.path.exists(path2):
            raise FileExistsError(errno.EEXIST, "it is there", path2)
        os.rename(path1, path2)

    def put_file(self, lpath, rpath, **kwargs):
        with open(lpath, "rb") as source, open(rpath, "wb") as file:
            while data := source.read(1 << 16):
                file.write(data)
                file.flush()
                time.sleep(self.slow)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("unreliable://"))


fsspec.register_implementation("unreliable", Unreliable, clobber=True)

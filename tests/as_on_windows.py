"""Run the main features under the rules of a Korean Windows, as far as Linux can imitate them.

Open files can be neither moved nor removed, names are never exchanged, links need rights, folders
cannot be opened, the code page of pipes is cp949, and nothing reads text without an encoding.

Usage: KERAS_BACKEND=torch PYTHONIOENCODING=cp949 python tests/as_on_windows.py
"""

import errno
import gc
import os
import shutil
import stat
import sys
import tempfile
import warnings

import filelock  # noqa: F401  Others choose what they use by what this system has.
import keras
import keras_hub  # noqa: F401
import numpy as np
import sklearn.metrics  # noqa: F401

# === What Windows refuses ===

_IS_MISSING = "chown fork geteuid getuid mkfifo posix_fallocate".split()
_IS_MISSING += "sched_getaffinity sched_setaffinity sysconf".split()


def opened_below(path):
    """Yield the open and mapped files of this process that are `path` or in it."""
    path = os.path.realpath(path)
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        found += [line.split(None, 5)[5].rstrip("\n") for line in file if line.count(" ") > 5]
    yield from (name for name in found if name == path or name.startswith(path + os.sep))


def refusing(function, replaces=False):
    """Wrap a function of `os` so that it refuses open files, and existing targets."""

    def call(*paths, **named):
        if "dir_fd" not in named:
            for path in paths:
                for name in opened_below(path):
                    raise PermissionError(errno.EACCES, "used by another process", name)
            if len(set(paths)) == 2 and os.path.lexists(paths[1]):
                if not replaces:
                    raise FileExistsError(errno.EEXIST, "exists", paths[1])
                if stat.S_ISDIR(os.lstat(paths[1]).st_mode):
                    raise PermissionError(errno.EACCES, "is a folder", paths[1])
        return function(*paths, **named)

    return call


def pretend():
    """Make this process behave as on Windows; call this before the import of kerasbert."""
    for name in _IS_MISSING:
        if hasattr(os, name):
            delattr(os, name)
    os.rename = refusing(os.rename)
    os.replace = refusing(os.replace, replaces=True)
    os.unlink = os.remove = refusing(os.unlink)
    shutil.rmtree.__globals__["_use_fd_functions"] = False

    def symlink(*_, **__):
        raise OSError(errno.EPERM, "A required privilege is not held by the client")

    true_open, true_mkdir = os.open, os.mkdir

    def open_file(path, flags, *more, **named):
        if not flags & getattr(os, "O_DIRECTORY", 0) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "is a folder", path)
        return true_open(path, flags, *more, **named)

    def mkdir(path, mode=0o777, **named):
        assert mode != 0o700 or not os.path.basename(path).startswith(".kerasbert-")
        true_mkdir(path, mode, **named)

    os.symlink, os.open, os.mkdir = symlink, open_file, mkdir
    warnings.filterwarnings("error", category=EncodingWarning, module="kerasbert")

    from kerasbert.base import system

    system.IS_WINDOWS = True
    system._renameat2 = lambda: None
    system._PATIENCE = 0.2


# === What must work ===

TEXTS = ["좋은 영화", "나쁜 영화", "良い 映画", "悪い 映画", "good film é", "bad film ✓"]
LABELS = ["좋음", "나쁨"] * 3


def main():
    import kerasbert
    from kerasbert.cli import main as command

    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as top:
        place = os.path.join(top, "한국어 모델 é")
        os.makedirs(place)
        path = os.path.join(place, "리뷰 レビュー.csv")
        with open(path, "w", encoding="cp949", newline="") as file:
            rows = zip(["좋은 영화", "나쁜 영화"] * 6, LABELS * 2)
            file.write("text,label\r\n" + "".join(f"{text},{label}\r\n" for text, label in rows))
        done = kerasbert.vocab(
            path,
            os.path.join(place, "vocab"),
            size=40,
            unused=0,
            strip_accents=False,
            encoding="cp949",
        )
        assert done["size"] > 10, done

        preset, where = "bert_mini_demo_ko_ja", os.path.join(place, "model")
        model = kerasbert.models.BertTextClassifier.from_preset(preset, labels=["좋음", "나쁨"])
        model.fit(TEXTS, LABELS, batch_size=2, verbose=0)
        model.save_to_preset(where)
        model = kerasbert.models.BertTextClassifier.from_preset(where)
        before = model.predict(TEXTS, verbose=0)
        model.save_to_preset(where)  # This replaces the files from which the model was loaded.
        kerasbert.convert(model, os.path.join(place, "hf"), format="huggingface")
        kerasbert.convert(os.path.join(place, "hf"), where, overwrite=True)
        again = kerasbert.models.BertTextClassifier.from_preset(where)
        np.testing.assert_allclose(again.predict(TEXTS, verbose=0), before, atol=1e-5)
        model.save(os.path.join(place, "모델.keras"))
        keras.models.load_model(os.path.join(place, "모델.keras"))

        embedder = kerasbert.models.BertTextEmbedder.from_preset("bert_mini_demo_ko_ja")
        index = kerasbert.SearchIndex(embedder, TEXTS)
        where = os.path.join(place, "index")
        index.save(where)
        index = kerasbert.SearchIndex.load(where)
        assert index.search("좋은 영화", top_k=1)[0]["text"] == "좋은 영화"
        try:
            index.save(where, overwrite=True)
        except PermissionError as error:
            assert "close the" in error.strerror, error
        else:
            raise AssertionError("files that are mapped were replaced")
        del index
        gc.collect()  # Deleting the index closes the mapped files.
        kerasbert.SearchIndex.load(where, mmap=False).save(os.path.join(place, "again"))

        for arguments in (
            ["predict", os.path.join(place, "model"), path, "--encoding", "cp949"],
            ["predict", os.path.join(place, "model"), path, "--encoding", "cp949", "--json"],
            ["embed", path, "-o", os.path.join(place, "out"), "--preset", "bert_mini_demo_ko_ja"]
            + ["--encoding", "cp949", "--format", "npy"],
        ):
            sys.argv = ["kerasbert", *arguments]
            try:
                command()
            except SystemExit as end:
                assert not end.code, arguments
        left = [n for _, names, _ in os.walk(top) for n in names if n.startswith(".kerasbert-")]
        assert not left, left
    print("as on Windows: saved, replaced, converted, searched ✓ é")


if __name__ == "__main__":
    assert sys.flags.warn_default_encoding, "start Python with -X warn_default_encoding"
    pretend()
    main()

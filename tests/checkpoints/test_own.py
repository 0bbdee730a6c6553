"""Errors while a preset loads: only errors of reading its files report it as damaged."""

import errno

import h5py
import keras
import pytest

from kerasbert.checkpoints import own
from kerasbert.models import BertTextClassifier
from tests.contracts import tiny_backbone


class Users(BertTextClassifier):
    """A user's class that raises an error set by the test."""

    error = None

    def __init__(self, backbone, preprocessor=None, num_classes=None, **kwargs):
        if self.error is not None:
            raise self.error
        super().__init__(backbone, preprocessor, num_classes, **kwargs)


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("own") / "preset")
    model = BertTextClassifier(tiny_backbone(), num_classes=2, preprocessor=None)
    model.save_to_preset(folder)
    return folder


def load(cls, preset):
    return cls.from_preset(preset, num_classes=2, preprocessor=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("This process was forked"),
        RuntimeError("CUDA out of memory"),
        RecursionError("maximum recursion depth exceeded"),
        MemoryError("no memory"),
        TypeError("mine"),
        KeyError("mine"),
        AttributeError("mine"),
        OSError(errno.EMFILE, "Too many open files"),
        ValueError("several\nlines"),
    ],
    ids=repr,
)
def test_errors_of_a_users_class_keep_their_words(preset, monkeypatch, error):
    monkeypatch.setattr(Users, "error", error)
    with pytest.raises(type(error)) as raised:
        load(Users, preset)
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory"),
        RuntimeError("can't start new thread"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EIO, "Input/output error"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("place", ["File", "assign"])
def test_errors_of_the_machine_keep_their_words(preset, monkeypatch, error, place):
    def fail(*args, **kwargs):
        raise error

    if place == "File":
        if type(error) is RuntimeError:
            pytest.skip("h5py raises this type for damaged files")
        monkeypatch.setattr(h5py, "File", fail)
    else:
        monkeypatch.setattr(keras.Variable, "assign", fail)
    with pytest.raises(type(error)) as raised:
        BertTextClassifier.from_preset(preset, preprocessor=None)
    assert raised.value is error


@pytest.mark.parametrize(
    "error", [RuntimeError("bad heap"), OSError("truncated file"), KeyError("x")]
)
def test_what_h5py_says_of_files(error):
    source = own.OwnPreset("folder")
    code = compile("def fail(error): raise error", "h5py", "exec")
    names = {"__name__": "h5py._hl.files"}
    exec(code, names)
    # The error must come from a package that reads presets, which this test's frames are not.
    caller = {"__name__": "kerasbert.models", "source": source, "fail": names["fail"]}
    exec("def run(error):\n with source.whole():\n  fail(error)", caller)
    with pytest.raises(ValueError, match="is incomplete or damaged") as raised:
        caller["run"](error)
    assert raised.value.__cause__ is error

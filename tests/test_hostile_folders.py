"""Hidden folders from elsewhere must not affect anything outside of their folder."""

import contextlib
import json
import os
import shutil
import stat
import tarfile
import tempfile
import threading
import warnings

import pytest

from kerasbert.base import files
from kerasbert.models import BertTextClassifier
from tests.base.test_files import NEW, OLD, read, write

NAME = ".kerasbert-0123456789ab"
OTHER = 12345  # The id of another user.


@pytest.fixture
def home(tmp_path):
    """Make files outside that must stay unchanged: a folder of keys, and a file."""
    write(tmp_path / "home", {"ssh/id": "secret", "rc": "mine"})
    yield tmp_path / "home"
    assert read(tmp_path / "home") == {"ssh/id": "secret", "rc": "mine"}
    assert stat.S_IMODE(os.stat(tmp_path / "home" / "ssh").st_mode) == 0o755


def interrupted(target, monkeypatch):
    """Interrupt a move of this process; return the hidden folder that it leaves."""
    write(target, OLD)
    true = os.replace

    def stopped(one, other):
        if os.path.basename(other) == "weights":
            raise KeyboardInterrupt
        true(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_stays", os.path.isdir)
        patch.setattr(os, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            with files.new_folder(str(target)) as folder:
                write(folder, NEW)
    (work,) = [name for name in os.listdir(target) if name.startswith(".kerasbert-")]
    return target / work


def plant(folder, **changes):
    """Make a hidden folder with a plan, as in a malicious archive; changes are `name=link to`."""
    plan = {"folder": "new", "keep": True, "removed": ["weights"], "made": [1, 2, 3, 4]}
    work = folder / NAME
    write(work, {"lock": "", "moving.json": json.dumps(plan), "made": "", "new/config.json": "bad"})
    for name, to in changes.items():
        path = work / name.replace("_json", ".json")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(path) if path.is_dir() else os.unlink(path)
        os.symlink(to, path)
    return work


def used(folder):
    """Read and write a folder in all ways, ignoring errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files.settle(str(folder))
        with contextlib.suppress(OSError), files.in_use(str(folder), "test"):
            pass
        files.sweep(str(folder))
        files.output_folder(str(folder), "output")
        with contextlib.suppress(OSError), files.new_folder(str(folder), keep=True, by="me") as new:
            write(new, {"more": "new"})
        files.write_text(str(folder / "file"), "text")
        files.remove(str(folder / "file"))


@pytest.mark.parametrize("link", ["new", "old", "lock", "moving_json", "made", "owner_json"])
def test_planted_plans_with_links(link, home, tmp_path):
    write(tmp_path / "model", OLD)
    is_file = link in ("lock", "moving_json", "made", "owner_json")
    plant(tmp_path / "model", **{link: home / ("rc" if is_file else "ssh")})
    used(tmp_path / "model")
    shown = {name: x for name, x in read(tmp_path / "model").items() if NAME not in name}
    assert shown == {**OLD, "more": "new"}


@pytest.mark.parametrize("planted", ["lock", "owner.json"])
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_planted_locks(kind, planted, home, tmp_path):
    """Locks with known names, which the next writer would use as its own."""
    work = tmp_path / "model" / ".kerasbert-in-use"
    write(tmp_path / "model", OLD)
    work.mkdir()
    if kind == "pipe":
        os.mkfifo(work / planted)
    else:
        (os.symlink if kind == "link" else os.link)(home / "rc", work / planted)
    with pytest.raises(PermissionError, match="in-use' belongs to another user, is a link or hold"):
        with files.in_use(str(tmp_path / "model"), "pretrain"):
            pass
    files.settle(str(tmp_path / "model"))
    assert read(home)["rc"] == "mine"


def test_hidden_folders_that_are_links(home, tmp_path):
    write(tmp_path / "model", OLD)
    for name in (NAME, ".kerasbert-in-use"):
        os.symlink(home / "ssh", tmp_path / "model" / name)
    write(home / "ssh", {"lock": "", "moving.json": "{}"})
    used(tmp_path / "model")
    assert sorted(os.listdir(home / "ssh")) == ["id", "lock", "moving.json"]
    os.unlink(home / "ssh" / "lock")
    os.unlink(home / "ssh" / "moving.json")


def test_a_preset_with_a_planted_move(tiny_preset, home, tmp_path):
    """The preset loads as if the hidden folder were not there."""
    preset = shutil.copytree(tiny_preset, tmp_path / "preset")
    plant(preset, new=home / "ssh")
    os.mkfifo(preset / NAME / "pipe")
    with pytest.warns(UserWarning, match="describes a move of files that this user did not begin"):
        BertTextClassifier.from_preset(str(preset))
    assert not (preset / "id").exists()


@pytest.mark.parametrize("way", ["archive", "copy", "other folder"])
def test_a_plan_that_was_moved_to_another_place_is_no_plan(way, tmp_path, monkeypatch):
    """If the hidden folder of an interrupted write was moved to another place, it is not completed
    there.
    """
    work = interrupted(tmp_path / "model", monkeypatch)
    target = tmp_path / "there" / "model"
    if way == "archive":
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            archive.add(tmp_path / "model", "model")
        with tarfile.open(tmp_path / "a.tar") as archive:
            archive.extractall(tmp_path / "there", filter="data")
    elif way == "copy":
        shutil.copytree(tmp_path / "model", target)
    else:
        write(target, OLD)
        os.rename(work, target / work.name)
    before = read(target)
    with pytest.warns(UserWarning, match="so it is ignored; remove it unless another"):
        files.settle(str(target))
    with pytest.warns(UserWarning, match="so it is ignored"):
        files.sweep(str(target))
    assert read(target) == before


def test_an_interrupted_write_of_ours(tmp_path, monkeypatch):
    """Readers get an error and change nothing; the next writer completes it."""
    target = tmp_path / "model"
    interrupted(target, monkeypatch)
    before = read(target)
    for _ in range(2):
        with pytest.raises(OSError, match="was interrupted.* rerun the command that wrote it"):
            files.settle(str(target))
        assert read(target) == before
    os.rename(target, tmp_path / "renamed")  # The same folder by another name.
    files.write_text(str(tmp_path / "renamed" / "file"), "text")
    assert read(tmp_path / "renamed") == {**NEW, "file": "text"}


def test_a_reader_waits_for_a_move_that_goes_on(tmp_path, monkeypatch):
    target = tmp_path / "model"
    write(target, OLD)
    monkeypatch.setattr(files, "_stays", os.path.isdir)
    moving, go_on, true = threading.Event(), threading.Event(), os.replace

    def slowly(one, other):
        moving.set()
        go_on.wait(10)
        true(one, other)

    monkeypatch.setattr(os, "replace", slowly)

    def write_it():
        with files.new_folder(str(target)) as folder:
            write(folder, NEW)

    writer = threading.Thread(target=write_it)
    writer.start()
    assert moving.wait(10)
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    files.settle(str(target))
    assert read(target)["weights"] == "new"
    writer.join()
    assert read(target) == NEW


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("owned", ["folder", "lock", "plan"])
def test_hidden_folders_of_other_users(owned, tmp_path, monkeypatch):
    """Even root neither follows nor removes them."""
    target = tmp_path / "model"
    work = interrupted(target, monkeypatch)
    os.chown({"folder": work, "lock": work / "lock", "plan": work / "moving.json"}[owned], OTHER, 0)
    before = read(target)
    with pytest.warns(UserWarning, match="this user did not begin"):
        files.settle(str(target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files.sweep(str(target))
    assert read(target) == before
    write(tmp_path / NAME, {"lock": "", "theirs": "theirs"})
    os.chown(tmp_path / NAME, OTHER, 0)
    files.write_text(str(tmp_path / "file"), "text")
    assert read(tmp_path / NAME) == {"lock": "", "theirs": "theirs"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_two_users_in_one_folder(tmp_path):
    """In a shared /tmp, each user removes only their own files, and errors name the other user."""
    shared = tempfile.mkdtemp()
    os.chmod(shared, 0o1777)
    mine = os.path.join(shared, NAME)
    write(mine, {"lock": "", "mine": "mine"})
    try:
        with files.in_use(shared, "vocab"):
            write(mine, {"lock": "", "mine": "mine"})
            child = os.fork()
            if child == 0:
                os.setresuid(OTHER, OTHER, OTHER)
                files.sweep(shared)
                files.write_text(os.path.join(shared, "theirs"), "text")
                try:
                    with files.in_use(shared, "pretrain"):
                        os._exit(1)
                except PermissionError as error:
                    os._exit(0 if "belongs to another user" in str(error) else 2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert os.stat(os.path.join(shared, "theirs")).st_uid == OTHER
            assert os.path.isdir(mine)
    finally:
        shutil.rmtree(shared)


def test_a_hidden_folder_that_is_removed_meanwhile(tmp_path, monkeypatch):
    """If the owner of a hidden folder has just finished, the next writer tries again and does not
    blame another user.
    """
    true, calls = os.mkdir, []

    def mkdir(path, *arguments):
        if str(path).endswith("in-use"):
            calls.append(path)
            if len(calls) == 1:
                raise FileExistsError
        true(path, *arguments)

    lexists = os.path.lexists
    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os.path, "lexists", lambda path: len(calls) == 1 or lexists(path))
    with files.in_use(str(tmp_path), "test"):
        assert calls


@pytest.mark.parametrize("name", ["vocab", "in_use", "scratch", "temporary"])
def test_writers_in_a_folder_full_of_traps(name, home, tmp_path, monkeypatch):
    """A writer either succeeds or is refused, and nothing outside changes."""
    write(tmp_path / "model", OLD)
    for number, link in enumerate(("new", "old", "lock", "moving_json", "owner_json")):
        work = plant(tmp_path / "model", **{link: home / "ssh"})
        os.rename(work, f"{work}"[:-1] + "cdef0"[number])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "model"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "vocab":
            with files.new_files(str(tmp_path / "model")) as new:
                write(new, {"vocab.txt": "words"})
        elif name == "temporary":
            with files.temporary_folder() as folder:
                write(folder, NEW)
        else:
            with getattr(files, name)(str(tmp_path / "model"), "me"):
                pass
    expected = {**OLD, "vocab.txt": "words"} if name == "vocab" else OLD
    shown = {x: text for x, text in read_here(tmp_path / "model").items()}
    assert shown == expected


def read_here(folder):
    """As `read`, but without hidden folders, whose links lead elsewhere."""
    found = {}
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".kerasbert-")]
        for name in names:
            with open(os.path.join(path, name)) as file:
                found[os.path.relpath(os.path.join(path, name), folder)] = file.read()
    return found

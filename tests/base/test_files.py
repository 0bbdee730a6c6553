"""Atomic writes of files and folders: killed at each step, concurrent, with links and locks."""

import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from kerasbert.base import files, system
from tests.campaigns.planted import write

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

OLD = {"config.json": "old", "weights": "old", "assets/words": "old", "assets/gone": "old"}
NEW = {"config.json": "new", "weights": "new", "assets/words": "new", "more": "new"}
OTHERS = {"notes.txt": "mine", "assets/mine": "mine", "logs/log": "mine"}


def read(folder):
    """Return all files below a folder, including hidden ones."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(path, name)
            with open(file) as opened:
                found[os.path.relpath(file, folder)] = opened.read()
    return found


def shown(folder):
    """Return the content of a folder without our hidden folders."""
    return {name: text for name, text in read(folder).items() if ".kerasbert-" not in name}


def hidden_below(folder):
    return [p for p, names, _ in os.walk(folder) for n in names if n.startswith(".kerasbert-")]


# Functions that change names on the disk; a process is killed between two calls.
STEPS = ("rename", "replace", "mkdir", "unlink", "rmdir", "link")


def killed_at(step, action, *arguments):
    """Run an action in a process that is killed before a step; return whether it was killed."""
    child = os.fork()
    if child == 0:
        left = step

        def counted(call):
            def run(*args, **named):
                nonlocal left
                if left == 0:
                    os._exit(9)
                left -= 1
                return call(*args, **named)

            return run

        try:
            for name in STEPS:
                setattr(os, name, counted(getattr(os, name)))
            system.exchange = counted(system.exchange)
            action(*arguments)
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), "the child raised"
    return status == 9


def replace(target, keep):
    with files.new_folder(target, keep=keep) as folder:
        write(folder, NEW)


@pytest.fixture
def quick_disk(monkeypatch):
    """Skip fsync, because a kill, unlike a power failure, loses no unsynchronized data."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("way", ["exchanged", "no exchange here", "one that stays"])
def test_a_folder_replaced_by_a_process_that_is_killed_at_each_step(
    way, keep, tmp_path, monkeypatch
):
    """After each kill, the folder is complete, with either the old or the new files; the next
    writer cleans up.
    """
    if way == "no exchange here":
        monkeypatch.setattr(system, "can_exchange", lambda: False)
    elif way == "one that stays":
        monkeypatch.setattr(files, "_stays", os.path.isdir)
    old = {**OLD, **OTHERS}
    new = {**old, **NEW} if keep else NEW
    found, step = [], 0
    while True:
        place = tmp_path / str(step)
        target = str(place / "model")
        write(target, old)
        died = killed_at(step, replace, target, keep)
        try:
            before = read(place)
            files.settle(target)  # Readers call this first.
            found.append(shown(target) == new)
            assert shown(target) in (old, new), f"step {step}"
        except OSError as error:
            assert way != "exchanged" and "was interrupted" in str(error)
        assert read(place) == before  # Reading moves nothing.
        replace(target, keep)
        assert shown(target) == read(target) == new, f"step {step}"
        assert not hidden_below(place), f"step {step}"
        if not died:
            break
        step += 1
    assert not found[0] and found[-1] and found == sorted(found) and step > 10
    assert way == "exchanged" or len(found) < step  # At some steps, readers get an error.


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_a_new_folder_below_folders_that_are_not_there(tmp_path):
    """Either the folder and all its missing parents are created, or none of them."""
    step = 0
    while killed_at(step, replace, str(tmp_path / str(step) / "a" / "model"), False):
        place = tmp_path / str(step)
        assert not place.exists() or read(place / "a" / "model") == NEW
        replace(str(place / "a" / "model"), False)
        assert read(place) == {f"a/model/{name}": text for name, text in NEW.items()}
        step += 1
    assert step > 10
    replace(str(tmp_path / "0" / "model"), False)
    assert not hidden_below(tmp_path)


def test_a_folder_that_cannot_be_put_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="Input/output error"):
        replace(str(tmp_path / "a" / "model"), False)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("quick_disk")
def test_a_file_written_by_a_process_that_is_killed_at_each_step(tmp_path):
    step, found = 0, []
    while True:
        path = tmp_path / str(step) / "file"
        write(path.parent, {"file": "old"})
        died = killed_at(step, files.write_text, str(path), "new")
        found.append(path.read_text())
        files.write_text(str(path), "newest")
        assert read(path.parent) == {"file": "newest"} and not hidden_below(path.parent)
        if not died:
            break
        step += 1
    assert set(found) == {"old", "new"} and found == sorted(found, reverse=True)


@pytest.mark.usefixtures("quick_disk")
def test_what_is_removed_goes_at_once(tmp_path):
    step = 0
    while True:
        folder = tmp_path / str(step) / "model"
        write(folder, OLD)
        died = killed_at(step, files.remove, str(folder))
        assert not folder.exists() or read(folder) == OLD
        files.remove(str(folder))
        assert os.listdir(tmp_path / str(step)) == []
        if not died:
            break
        step += 1
    assert step > 5


def test_a_failure_in_the_middle_of_a_move_is_ended_by_the_next(tmp_path, monkeypatch):
    target = str(tmp_path / "model")
    write(target, OLD)
    monkeypatch.setattr(files, "_stays", os.path.isdir)
    true = os.replace

    def fails(one, other):
        if os.path.basename(other) == "weights":
            raise OSError(5, "Input/output error")
        true(one, other)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="Input/output error"):
        replace(target, False)
    monkeypatch.setattr(os, "replace", true)
    before = read(target)
    with pytest.raises(OSError, match=r"A write to '.*model' was interrupted.*files.sweep\("):
        files.settle(target)
    assert read(target) == before
    files.sweep(target)
    files.settle(target)
    assert read(target) == NEW


def test_what_is_not_ours_stays(tmp_path):
    write(tmp_path, {".kerasbert-mine/a": "mine", ".kerasbert-0123456789ab/a": "without a lock"})
    before = read(tmp_path)
    with files.new_folder(str(tmp_path / "model")) as folder:
        write(folder, NEW)
        running = os.path.dirname(folder)
        files.sweep(str(tmp_path))  # Sweep as another process does that starts now.
        assert os.path.isdir(running)
    assert read(tmp_path) == {**before, **{f"model/{name}": text for name, text in NEW.items()}}


@pytest.mark.usefixtures("quick_disk")
def test_a_run_that_goes_no_further_clears_up_too(tmp_path):
    """A run that is killed at its very end leaves a complete output and a hidden folder; the next
    run removes the latter.
    """
    target, step = tmp_path / "model", 0
    while not hidden_below(tmp_path) or not target.exists():
        assert killed_at(step, replace, str(target), False)
        step += 1
    files.output_folder(target, "target")
    assert read(tmp_path) == {f"model/{name}": text for name, text in NEW.items()}


def test_names_in_shows_no_hidden_folders(tmp_path):
    assert files.names_in(str(tmp_path / "none")) == []
    with files.in_use(str(tmp_path), "pretrain"):
        assert files.names_in(str(tmp_path)) == []
        files.write_text(str(tmp_path / "a"), "a")
        assert files.names_in(str(tmp_path)) == ["a"]


# === Kinds of folders ===


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    write(tmp_path / "real", OLD)
    os.symlink("real", tmp_path / "link")
    replace(files.output_folder(tmp_path / "link", "target"), False)
    assert os.readlink(tmp_path / "link") == "real" and read(tmp_path / "real") == NEW


def test_the_folder_that_we_are_in_stays_the_same(tmp_path, monkeypatch):
    write(tmp_path / "model", OLD)
    for here in ("model", "model/assets"):
        monkeypatch.chdir(tmp_path / here)
        number = os.stat(tmp_path / "model").st_ino
        replace(files.output_folder(tmp_path / "model", "target"), True)
        assert os.stat(tmp_path / "model").st_ino == number
        assert read(tmp_path / "model") == {**OLD, **NEW} and os.getcwd()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone exchanges folders")
def test_others_files_are_linked_and_modes_stay(tmp_path):
    write(tmp_path / "model", {**OLD, **OTHERS})
    os.chmod(tmp_path / "model", 0o2750)
    os.symlink("/nowhere", tmp_path / "model" / "link")
    number = os.stat(tmp_path / "model" / "notes.txt").st_ino
    replace(str(tmp_path / "model"), True)
    assert os.stat(tmp_path / "model" / "notes.txt").st_ino == number
    assert stat.S_IMODE(os.stat(tmp_path / "model").st_mode) == 0o2750
    assert os.readlink(tmp_path / "model" / "link") == "/nowhere"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_below_one_that_we_may_not_write(tmp_path):
    write(tmp_path / "safe" / "model", OLD)
    os.chmod(tmp_path / "safe", 0o555)
    try:
        replace(str(tmp_path / "safe" / "model"), False)
        assert read(tmp_path / "safe" / "model") == NEW
        with pytest.raises(PermissionError, match="Cannot write in '.*safe': .*; name another"):
            replace(str(tmp_path / "safe" / "other"), False)
    finally:
        os.chmod(tmp_path / "safe", 0o755)


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_modes_follow_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        replace(str(tmp_path / "a" / "model"), False)
        files.write_text(str(tmp_path / "a" / "file"), "text")
    finally:
        os.umask(before)
    for path, folders, names in os.walk(tmp_path / "a"):
        for kind, found in ((0o777, folders), (0o666, names)):
            for name in found:
                mode = stat.S_IMODE(os.stat(os.path.join(path, name)).st_mode)
                assert mode == kind & ~umask, name


@pytest.mark.parametrize("given", ["", "file"])
def test_what_is_no_folder_is_named(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"file": ""})
    message = "target='' names no folder; pass '.'" if not given else "it is a file, not a folder"
    with pytest.raises(ValueError, match=message):
        files.output_folder(given, "target")


# === Concurrent writers ===


def test_two_threads_that_write_one_file(tmp_path):
    path, texts = str(tmp_path / "file"), [str(i) * 100_000 for i in range(4)]
    failed = []

    def run(text):
        try:
            for _ in range(20):
                files.write_text(path, text)
                with open(path) as file:
                    assert file.read() in texts
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and os.listdir(tmp_path) == ["file"]


def put_often(target, text, times):
    for _ in range(times):
        with files.new_folder(target) as folder:
            write(folder, dict.fromkeys(OLD, text))


def test_two_processes_that_replace_one_folder(tmp_path):
    target = str(tmp_path / "model")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=put_often, args=(target, text, 30)) for text in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        time.sleep(0.01)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert read(target) in [dict.fromkeys(OLD, text) for text in "ab"]
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("way", ["in_use", "scratch"])
def test_who_writes_a_folder_is_said_to_the_next(way, tmp_path):
    """The error names the process that writes the folder, until that process ends in any way."""
    target = str(tmp_path / "out")
    code = (
        "import time; from kerasbert.base import files\n"
        f"with files.{way}({target!r}, 'pretrain'):\n"
        "    print('in', flush=True)\n    time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"in\n"
        with pytest.raises(
            BlockingIOError,
            match=rf"out' is being written by `pretrain` \(process {holder.pid} on .*, since "
            r"20..-.*\); wait until it is done, or name another folder",
        ):
            with getattr(files, way)(target, "vocab"):
                pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert hidden_below(tmp_path)
    with getattr(files, way)(target, "vocab"):
        pass
    assert os.listdir(tmp_path) in ([], ["out"]) and not hidden_below(tmp_path)


def test_a_folder_in_use_stays_if_it_was_there_or_holds_something(tmp_path):
    with files.in_use(str(tmp_path / "a" / "b"), "vocab"):
        assert (tmp_path / "a" / "b").is_dir()
    assert os.listdir(tmp_path) == []
    (tmp_path / "there").mkdir()
    with files.in_use(str(tmp_path / "there"), "vocab"):
        pass
    with files.in_use(str(tmp_path / "full"), "vocab"):
        write(tmp_path / "full", NEW)
    assert sorted(os.listdir(tmp_path)) == ["full", "there"]


def test_json_of_names_that_are_no_text(tmp_path):
    """File names may have any bytes; Python represents invalid UTF-8 by surrogates."""
    path = str(tmp_path / "a.json")
    value = {"files": ["caf\udce9.txt", "日本語"]}
    files.write_json(path, value)
    assert files.read_json(path) == value
    files.write_json(path, {"language": "日本語"})
    assert "日本語" in (tmp_path / "a.json").read_text(encoding="utf-8")

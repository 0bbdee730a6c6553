"""Differences between operating systems, with Windows imitated where possible."""

import ast
import errno
import nturl2path
import os
import pathlib
import subprocess
import sys
import urllib.request

import pytest

import kerasbert
from kerasbert.base import files, paths, system
from kerasbert.data.shards import own_names

PACKAGE = pathlib.Path(kerasbert.__file__).parent
ROOT = PACKAGE.parent
# Modules, and names of `os` and `signal`, that Windows lacks.
MODULES = set("fcntl grp posix pty pwd resource select syslog termios tty".split())
NAMES = set(
    "chown fchmod fchown fork forkpty getegid geteuid getgid getloadavg getpgid getuid killpg "
    "lchown mkfifo mknod openpty posix_fallocate posix_spawn pthread_sigmask register_at_fork "
    "sched_getaffinity sched_setaffinity setsid sigtimedwait statvfs sync sysconf uname "
    "waitpid WNOHANG alarm setitimer pass_fds preexec_fn "
    "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGUSR1 SIGUSR2".split()
)
# Functions that move or remove files, which Windows refuses while others have them open.
MOVES = {"rename", "renames", "symlink"}
# Modules with an equivalent for Windows, or that check first whether a name exists.
KNOWN = {"base/system.py", "base/process.py", "base/memory.py"}


def used(tree):
    """Yield the names that a file takes from `os`, `signal` and modules of POSIX, and keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("os", "signal"):
                yield node.attr
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "signal", *MODULES):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def test_one_module_knows_what_windows_lacks():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        names = set(used(ast.parse(path.read_text("utf-8")))) & (MODULES | NAMES | MOVES)
        # Exports may rename files inside a new folder, because no other process uses it.
        if path.parent.name == "export":
            names -= {"rename"}
        if names and str(path.relative_to(PACKAGE).as_posix()) not in KNOWN:
            found[str(path)] = names
    assert not found


def opens(tree):
    """Yield the calls that open text without an encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        words = {word.arg: word.value for word in node.keywords}
        if "encoding" in words or None in words:
            continue
        of_os = ast.unparse(node.func).startswith(("os.", "webbrowser.", "tarfile.", "gzip."))
        if name in ("open", "fdopen", "TemporaryFile", "NamedTemporaryFile") and not of_os:
            place = 0 if name.endswith("File") else 1
            mode = words.get("mode", node.args[place] if len(node.args) > place else None)
            is_text = mode is None if name == "open" else mode is not None
            if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
                is_text = "b" not in mode.value
            if is_text and isinstance(node.func, ast.Name):
                yield node
        elif name == "fdopen" or (name == "read_text" and not node.args):
            yield node
        elif words.keys() & {"text", "universal_newlines"} and name in ("run", "Popen"):
            yield node


def test_text_is_opened_with_an_encoding():
    """On Windows, the default encoding is the code page: cp949 in Korea, cp932 in Japan."""
    found = []
    for folder in (PACKAGE, ROOT / "examples"):
        for path in folder.rglob("*.py"):
            for node in opens(ast.parse(path.read_text("utf-8"))):
                found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert not found


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    monkeypatch.setattr(system, "_PATIENCE", 0.2)


@pytest.mark.usefixtures("windows")
def test_a_file_that_another_program_has_open(monkeypatch, tmp_path):
    """A virus scanner closes the file soon; if a program keeps it, the error says what to do."""
    refusals = [0] * 2
    true = os.replace

    def refuses(*paths):
        if refusals:
            refusals.pop()
            raise PermissionError(errno.EACCES, "being used by another process")
        true(*paths)

    monkeypatch.setattr(os, "replace", refuses)
    files.write_text(str(tmp_path / "a"), "new")
    assert (tmp_path / "a").read_text() == "new" and not refusals
    refusals += [0] * 1000
    with pytest.raises(PermissionError, match="'.*a' .*used by another process.*close the"):
        files.write_text(str(tmp_path / "a"), "newer")
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "new"


@pytest.mark.usefixtures("windows")
def test_names_on_windows(monkeypatch):
    monkeypatch.setattr(urllib.request, "url2pathname", nturl2path.url2pathname)
    assert paths.as_path("file:///C:/my%20texts/a.txt") == r"C:\my texts\a.txt"
    for name in ("a:b", "con", "b/nul.txt", "a?", "c:/d", "a|b"):
        with pytest.raises(ValueError, match="not a valid file name"):
            paths.check_name(name, "config.json", nested=True)
    paths.check_name("onnx/한국어.onnx", "config.json", nested=True)
    monkeypatch.setattr(os, "sep", "\\")
    assert own_names([r"D:\a\b\one.txt", r"D:\a\two.txt"]) == ["b/one.txt", "two.txt"]
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(FileNotFoundError, match="drive that does not exist"):
        files._existing(r"Z:\models")


@pytest.mark.usefixtures("windows")
def test_hidden_folders_have_the_rights_of_their_parent(monkeypatch, tmp_path):
    """On Windows, files of a folder with mode 0o700 would keep its permissions when they are moved
    out of it.
    """
    modes = []
    monkeypatch.setattr(os, "mkdir", lambda path, mode=0o777: modes.append(mode))
    system.make_private(str(tmp_path / "a"))
    assert modes == [0o777]


def test_space_where_files_cannot_be_reserved(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    files.check_space(str(tmp_path), 1000, "weights")
    with pytest.raises(OSError, match="has no room for .* bytes of weights") as caught:
        files.check_space(str(tmp_path), 1 << 60, "weights")
    assert caught.value.errno == errno.ENOSPC


def test_links_are_copies_where_users_may_not_link(monkeypatch, tmp_path):
    def refuses(*_):
        raise OSError(errno.EPERM, "A required privilege is not held by the client")

    (tmp_path / "a").write_text("text")
    monkeypatch.setattr(os, "symlink", refuses)
    system.link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "text"


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc for open files")
def test_as_on_windows(tmp_path):
    script = ROOT / "tests" / "as_on_windows.py"
    run = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONIOENCODING": "cp949",
            "KERAS_BACKEND": "torch",
        },
        cwd=tmp_path,
        capture_output=True,
        encoding="cp949",
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "as on Windows: saved, replaced, converted, searched" in run.stdout

"""Shared behavior of all commands: quick help, one-sentence errors, only results on stdout."""

import errno
import io
import json
import os
import subprocess
import sys

import keras
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from kerasbert import __version__, builtin_presets
from kerasbert.cli import app
from kerasbert.cli.app import command, settings, show
from kerasbert.heads.base.file_readers import read_inputs

# Each test starts a process, and one backend is enough.
pytestmark = pytest.mark.backends("torch")

COMMANDS = [info.name or info.callback.__name__ for info in app.registered_commands]


def kerasbert(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name):
    done = kerasbert(name, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.output and f"kerasbert {name}" in done.output


def test_all_that_read_text_take_an_encoding():
    commands = typer.main.get_command(app).commands
    named = {
        name
        for name, one in commands.items()
        if any("--encoding" in option.opts for option in one.params)
    }
    assert named == set(COMMANDS) - {
        "convert",
        "doctor",
        "export-vectors",
        "play",
        "presets",
        "tasks",
    }


def test_help_and_completion_come_without_keras(tmp_path):
    script = tmp_path / "kerasbert"
    script.write_text(
        "import sys\n"
        "from kerasbert.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    slow = {'keras', 'numpy', 'tensorflow', 'torch', 'jax'} & set(sys.modules)\n"
        "    print('imported:', sorted(slow))\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "PYTHONPATH": root}

    def run(*arguments, **more):
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.rstrip().endswith("imported: []"), done.stdout + done.stderr
        return done

    done = run("finetune", "--help")
    assert done.returncode == 0 and "--learning-rates" in done.stdout
    assert run("finetune", "only_one").returncode == 2
    words = {"COMP_WORDS": "kerasbert fine", "COMP_CWORD": "1"}
    assert "finetune" in run(_KERASBERT_COMPLETE="complete_bash", **words).stdout
    # `torchrun -m kerasbert` starts the command in this way.
    done = subprocess.run(
        [sys.executable, "-m", "kerasbert", "pretrain", "--help"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "--mesh" in done.stdout


def test_version():
    done = kerasbert("--version")
    assert done.exit_code == 0 and done.output == f"kerasbert {__version__}\n"


@pytest.mark.parametrize("encoding", ["cp949", "ascii"])
def test_a_code_page_that_lacks_a_letter(encoding, tmp_path):
    """Letters that the code page lacks are escaped as in JSON; an error would come after the work
    is done.
    """
    table = tmp_path / "한국어 日本語 é 😀.csv"
    table.write_text("text\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kerasbert", "evaluate", "no preset", str(table)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    code = "import sys; sys.argv[1:] = ['--version']; import kerasbert.cli as c; c.app = lambda: "
    code += "print(c.to_json('한국어 日本語 é 😀', ensure_ascii=False)); c.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout.decode(encoding)) == "한국어 日本語 é 😀"


def test_one_sentence_for_a_mistake():
    done = kerasbert("predict", "no_such_preset", __file__)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "Unknown preset 'no_such_preset'" in done.stderr


def test_a_backend_is_chosen_before_keras():
    other = next(name for name in ("torch", "jax") if name != keras.backend.backend())
    done = kerasbert("evaluate", "any", __file__, "--backend", other)
    assert done.exit_code == 2
    assert f"start another one for --backend {other}" in done.stderr
    assert kerasbert("evaluate", "any", "--backend", "abacus").exit_code == 2


def test_progress_is_not_a_result(capsys):
    with command():
        print("at work")
    print("result")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("result\n", "at work\n")


def test_stopped(capsys):
    with pytest.raises(typer.Exit) as error, command(stopped="Come back."):
        raise KeyboardInterrupt
    assert error.value.exit_code == 130
    assert capsys.readouterr().err == "\nCome back.\n"
    with pytest.raises(typer.Exit), command():
        raise KeyboardInterrupt("Stopped after step 5.")
    assert capsys.readouterr().err == "\nStopped after step 5.\n"


def test_settings():
    assert settings("--set", ["a=1", "b=x", "c=[1, 2]", "d=null", "e="]) == {
        "a": 1,
        "b": "x",
        "c": [1, 2],
        "d": None,
        "e": "",
    }
    with pytest.raises(ValueError, match="--set 'a' is not name=value"):
        settings("--set", ["a"])


def test_tasks():
    names = [row["name"] for row in json.loads(kerasbert("tasks", "--json").stdout)]
    assert "rte" in names and "squad2" in names
    shown = kerasbert("tasks").stdout
    assert "https://gluebenchmark.com/tasks" in shown and "matthews" in shown


def test_errors_of_the_system_come_without_their_number(capsys):
    with pytest.raises(typer.Exit):
        with command():
            raise BlockingIOError(errno.EWOULDBLOCK, "'out' is being written by `vocab`; wait")
    assert capsys.readouterr().err == "'out' is being written by `vocab`; wait\n"
    with pytest.raises(typer.Exit):
        with command():
            open("/nowhere/at/all")
    assert capsys.readouterr().err.endswith("No such file or directory: '/nowhere/at/all'\n")


def test_inputs_to_warm_up_with_are_named_by_their_lines(tmp_path):
    path = tmp_path / "inputs.jsonl"
    path.write_text('"a text"\n\n{')
    with pytest.raises(ValueError, match="line 3 is not valid JSON"):
        read_inputs(str(path))
    path.write_text('"a text"\n\n["a", "pair"]\n')
    assert read_inputs(str(path)) == ["a text", ["a", "pair"]]


# === Tables ===


class Screen(io.StringIO):
    """A terminal of a given width."""

    def isatty(self):
        return True


def shown(monkeypatch, width, *tables):
    """Return tables as shown in a terminal, or in a pipe for `None`."""
    screen = Screen() if width else io.StringIO()
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    show(*tables)
    return screen.getvalue()


def wide_table():
    names = [f"a_name_of_{i}_{'long_' * 6}words" for i in range(3)]
    table = Table("name", "second\nline", "third", "last", title="A title " * 12)
    for name in names:
        table.add_row(name, "x" * 20, "several words in a cell", "y" * 150)
    return table, names


@pytest.mark.parametrize(
    ("width", "columns"), [(None, 4), (300, 4), (100, 3), (80, 2), (60, 1), (20, 1)]
)
def test_names_never_break(monkeypatch, width, columns):
    table, names = wide_table()
    said = shown(monkeypatch, width, table)
    assert all(f" {name} " in said for name in names) and "…" not in said
    parts = ["x" * 20, "several words in a cell", "y" * 150]
    assert [part in said for part in parts] == [columns > 1, columns > 2, columns > 3]
    left_out = ["second line", "third", "last"][columns - 1 :]
    assert (f"narrow terminal: {', '.join(left_out)}." in said) == bool(left_out)
    if width and columns > 1:
        rows = [line for line in said.splitlines() if "│" in line]
        assert max(map(len, rows)) <= width


@pytest.mark.parametrize(
    "name", ["[red]", "[/food]", ":heart:", "[bold]긍정[/bold]", "👩‍👩‍👧", "ｶﾞ"]
)
def test_names_are_no_markup(monkeypatch, name):
    table = Table("class", "f1")
    table.add_row(name, "0.9")
    for width in (None, 80, 20):
        assert f" {name} " in shown(monkeypatch, width, table)


@pytest.mark.parametrize("command", ["presets", "tasks"])
def test_lists_at_80_columns(monkeypatch, command):
    names = [row["name"] for row in json.loads(kerasbert(command, "--json").stdout)]
    piped = kerasbert(command).stdout
    tables = []
    module = "kerasbert.cli.checkpoints" if command == "presets" else "kerasbert.cli.tasks"
    monkeypatch.setattr(f"{module}.show", lambda *given: tables.extend(given))
    kerasbert(command)
    said = shown(monkeypatch, 80, *tables)
    for text in (piped, said):
        words = set(text.split())
        assert set(names) <= words and "…" not in text
    assert "narrow terminal" in said and "narrow terminal" not in piped
    assert all(row["handle"] in piped for row in builtin_presets().values()) or command == "tasks"

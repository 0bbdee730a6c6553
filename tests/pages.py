"""Run the code blocks of a page, of README and of the site."""

import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def blocks(file, *kinds):
    """Return `(kind, text)` of the blocks of these kinds in a page, in order."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(kind, block) for kind, block in found if kind in kinds]


def commands(block):
    """Return the commands of a block, one per line, without comments."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    lines = [re.sub(r"(^|\s+)# .*", "", line).strip() for line in lines]
    return [line for line in lines if line]


def run(folder, monkeypatch, file, *kinds):
    """Run a page's Python and bash blocks one after the other in a folder.

    `kerasbert` runs in this process, which has already imported Keras, and exports write in it,
    too. The checkout's examples are available.

    Returns:
        Python's variables.
    """
    from typer.testing import CliRunner

    from kerasbert.cli import app
    from tests.export import tiny

    tiny.write_here(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "examples").symlink_to(ROOT / "examples")
    names = {}
    for kind, block in blocks(file, *kinds):
        if kind == "python":
            exec(compile(block, file, "exec"), names)
            continue
        for line in commands(block):
            program, *arguments = shlex.split(line)
            if program == "kerasbert":
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, f"{line}\n{result.output}"
            else:
                subprocess.run(line, shell=True, check=True)
    return names


def check_options(file):
    """Check that a page's commands have the options that it uses; return the commands."""
    import typer

    from kerasbert.cli import app

    known = typer.main.get_command(app).commands
    lines = [line for _, block in blocks(file, "bash", "sh") for line in commands(block)]
    lines = [line for line in lines if line.startswith("kerasbert ")]
    for line in lines:
        _, name, *words = shlex.split(line)
        parts = known[name].params
        options = {option for part in parts for option in (*part.opts, *part.secondary_opts)}
        assert {word for word in words if re.match("-[-a-z]", word)} <= options, line
    return lines

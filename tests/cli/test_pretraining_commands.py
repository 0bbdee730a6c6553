"""`vocab` and `pretrain`, from text to a preset, interrupted by a real signal and resumed."""

import glob
import os
import random
import re
import signal
import subprocess
import sys

import pytest

from kerasbert.base.errors import how_to_install
from kerasbert.data import read_examples
from tests.cli.test_commands import kerasbert

WORDS = "the a old good bad film was seen by ann lee in rome it and they went home".split()


@pytest.fixture
def text(tmp_path):
    """A file of documents, one sentence per line."""
    draw = random.Random(0)
    documents = (
        "\n".join(" ".join(draw.choices(WORDS, k=7)) + " ." for _ in range(12)) for _ in range(400)
    )
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


def options(vocabulary, *phases):
    found = ["--vocabulary", vocabulary, "--layers", "1", "--hidden", "64", "--no-xla"]
    found += ["--reading", "sentences=lines", "--workers", "1", "--log-every", "2"]
    return [*found, *(part for phase in phases for part in ("--phase", phase))]


@pytest.mark.backends("torch")
def test_examples_beforehand(text, tmp_path):
    assert kerasbert("vocab", text, "-o", tmp_path / "vocab", "--size", 165).exit_code == 0
    out = tmp_path / "examples"
    given = ["examples", text, "-o", out, "--vocabulary", tmp_path / "vocab"]
    more = ["--sequence-length", "24", "--reading", "sentences=lines", "--set", "mask_unit=word"]
    done = kerasbert(*given, *more)
    assert done.exit_code == 0, done.output
    said = re.fullmatch(r"([\d,]+) examples with [\d,]+ tokens, from 400 .* -> (.*)\n", done.stdout)
    assert said[2] == str(out)
    data = read_examples(out, 32, repeat=False, masking="static")
    rows = [x["token_ids"].shape for x, *_ in data]
    assert sum(row[0] for row in rows) == int(said[1].replace(",", ""))
    for options, message in (
        (("--set", "mask_rate=1"), "--set has no argument 'mask_rate'"),
        (("--reading", "sentence=lines"), "--reading has no argument 'sentence'; did you mean"),
        (("--beam", "region=x"), "--beam 'region=x' needs a --runner"),
    ):
        done = kerasbert(*given, *options)
        assert done.exit_code == 2 and message in done.stderr, done.output


@pytest.mark.backends("torch")
def test_from_text_to_a_preset(text, tmp_path):
    done = kerasbert("vocab", text, "-o", tmp_path / "vocab", "--size", 165)
    assert done.exit_code == 0 and done.stderr == ""
    assert re.match(r"\d+ tokens \(.*\) from 38,400 words \(19 distinct\); 0.00% ", done.stdout)
    again = kerasbert("vocab", text, "-o", tmp_path / "vocab")
    assert again.exit_code == 2 and "choose another folder" in again.stderr
    more = ["--optimizer", "lamb", "--precision", "mixed_bfloat16", "--tensorboard"]
    given = options(tmp_path / "vocab" / "vocab.txt", "16:4:8", "24:2:4")
    done = kerasbert("pretrain", text, "-o", tmp_path / "out", *given, *more)
    assert done.exit_code == 0, done.output
    # One progress line per interval.
    lines = [line for line in done.stderr.splitlines() if re.match(r"\d/6: loss", line)]
    assert [line[0] for line in lines] == ["2", "4", "6"]
    assert "masked words" in lines[0]
    assert re.search(r" 0:00 left, held out \d+\.\d+$", lines[2])
    assert "held out, mlm_perplexity: " in done.stdout
    assert done.stdout.splitlines()[-1] == f"6 steps -> {tmp_path / 'out' / 'preset'}"
    assert glob.glob(str(tmp_path / "out" / "tensorboard" / "*" / "events.*"))
    # Pre-training continues from the preset, with the optimizer's state.
    more = ["--preset", tmp_path / "out", "--optimizer", "lamb", "--optimizer-state", "kept"]
    given = options("")[-6:]
    done = kerasbert("pretrain", text, "-o", tmp_path / "more", *given, *more, "--phase", "16:2:8")
    assert done.exit_code == 0 and done.stdout.splitlines()[-1].startswith("2 steps -> ")
    # Errors are one sentence, and no preset is written.
    for wrong, message in (
        (["--phase", "16:2"], "--phase '16:2' is not length:steps:batch_size"),
        (["--phase", "16:2:8", "--encoder", "dropout"], "--encoder 'dropout' is not name=value"),
        (["--phase", "16:2:8", "--encoding", "klingon"], "encoding='klingon' is unknown"),
        (
            ["--phase", "16:2:8", "--layers", "0"],
            "num_layers=0 must be a whole number of at least 1.",
        ),
    ):
        done = kerasbert("pretrain", text, "-o", tmp_path / "no", *options("")[4:], *wrong)
        assert (done.exit_code, done.stdout) == (2, ""), done.output
        assert message in done.stderr.splitlines()[-1]
        assert not (tmp_path / "no" / "preset").exists()


@pytest.mark.backends("torch")
def test_tensorboard_is_missing(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    given = options(text, "16:2:8")
    done = kerasbert("pretrain", text, "-o", tmp_path / "out", *given, "--tensorboard")
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"run {how_to_install('tensorboard')}.")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_a_real_signal(text, tmp_path):
    assert kerasbert("vocab", text, "-o", tmp_path, "--size", 165).exit_code == 0
    out = tmp_path / "out"
    arguments = ["pretrain", text, "-o", out, *options(tmp_path / "vocab.txt", "16:80:8")]
    command = [sys.executable, "-c", "from kerasbert.cli import main; main()"]
    command += map(str, arguments)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        for line in process.stderr:
            if line.startswith("4/80"):
                process.send_signal(signal.SIGINT)
                break
        last = process.stderr.read().splitlines()[-1]
    assert process.returncode == 130
    found = re.fullmatch(r"Stopped after step (\d+), which is saved; the same call resumes.", last)
    done = kerasbert(*arguments)
    assert done.exit_code == 0 and f"resuming after step {found[1]} of 80" in done.stderr
    assert done.stdout.splitlines()[-1] == f"80 steps -> {out / 'preset'}"

"""Run the contestants of a benchmark against each other on the same machine and the same data.

Each contestant is a child process (a backend is fixed before the import), limited to the same
cores. All contestants are prepared one after the other, and then run one at a time in rounds (A B C
A B C), so that a slow minute of the machine affects all of them. A run waits until other processes
are idle. The share of the cores that other processes took during the run is reported with the
result, because two threads that share two cores with another process wait for each other, and lose
far more time than that share.
"""

import importlib.metadata
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from statistics import median
from time import monotonic, sleep

import real_data
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

PACKAGES = (
    "kerasbert keras keras-hub tensorflow tensorflow-text jax torch transformers tokenizers numpy"
).split()
# Sizes of MiniLM (6 layers of width 384), for `MATMULS` and `flops`.
LAYERS, WIDTH, INNER = 6, 384, 1536
MATMULS = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH))
# Maximum share of the machine's cores that other processes may take in a valid run.
QUIET = 0.1
# Wide enough that table rows can be pasted, whatever the width of the terminal.
console = Console(width=160, highlight=False)


def chosen(specs, only):
    """Return the contestants that `--only` selects by prefix, and the matmul limits; without
    `--only`, return all of them.
    """
    beginnings = tuple(filter(None, only.split(",")))
    return [spec for spec in specs if not beginnings or spec.startswith(("limit/", *beginnings))]


def reviews(count, seed=0):
    """Return `count` shuffled pairs `(text, 1 fresh | 0 rotten)` of the real snippets."""
    pairs = [
        (text, int(kind == "fresh")) for kind, text in real_data.film_reviews() if kind != "plot"
    ]
    return random.Random(seed).sample(pairs, count)


INFORMATIVE = 374  # The first 374 of the 500 documents of the Brown corpus; the others are fiction.


def paragraphs(count, seed=0, sentences=4):
    """Return `count` pairs `(text, 1 informative | 0 fiction)` of the Brown corpus."""
    pairs = []
    for number, document in enumerate(real_data.brown_tagged()):
        lines = [" ".join(word for word, _ in sentence) for sentence in document]
        for start in range(0, len(lines) - sentences + 1, sentences):
            text = " ".join(lines[start : start + sentences])
            pairs.append((text, int(number < INFORMATIVE)))
    return random.Random(seed).sample(pairs, count)


TEXTS = {"reviews": reviews, "paragraphs": paragraphs}


def flops(lengths):
    """Return the number of floating-point operations of the encoder on texts of these lengths,
    without padding.

    A token costs two floating-point operations per weight; attention adds two products of T x T x D
    per layer.
    """
    weights = sum(rows * columns for rows, columns in MATMULS)
    return sum(LAYERS * (2 * weights * n + 4 * n * n * WIDTH) for n in lengths)


def environment(spec, threads, gpu=False):
    """Return the environment variables of the child process of a contestant
    `library/backend/...`.
    """
    # The child imports kerasbert from the checkout that this file is in, even if another version is
    # installed.
    clone = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Children share a GPU, so JAX must not take its memory beforehand.
    device = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    # Settings that the parent's libraries made for themselves must not affect other contestants.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    return {
        **inherited,
        **device,
        "PYTHONPATH": os.pathsep.join(filter(None, [clone, os.environ.get("PYTHONPATH")])),
        "KERAS_BACKEND": spec.split("/")[1],
        "OMP_NUM_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
        "HF_HUB_OFFLINE": "1",
    }


class Child:
    """A contestant's process: it prepares itself, then runs once on each request."""

    def __init__(self, script, spec, threads, settings):
        self.spec = spec
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, script, "--contestant", spec, "--settings", json.dumps(settings)],
            env=environment(spec, threads, settings.get("gpu", False)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            preexec_fn=lambda: _hold_to_cores(threads),
        )
        self.ready = self._answer()
        self.rounds = []
        self.memory_mb = 0.0

    def run(self):
        """Run another round; a contestant that failed stays failed."""
        if "error" in self.ready:
            return
        since = busy_seconds(), busy_seconds(self.process.pid), monotonic()
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        result = self._answer()
        if "error" in result:
            self.ready = result
            return
        result["others"] = others_share(*since, self.process.pid)
        self.rounds.append(result)
        self.memory_mb = peak_mb(self.process.pid)

    def median(self, key="seconds"):
        return median(done[key] for done in self.rounds)

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _answer(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        said = [line for line in self.errors.read().splitlines() if line.strip()]
        return {"error": said[-1] if said else f"ended with {self.process.returncode}"}


def peak_mb(pid):
    """Return the peak memory of a process in megabytes; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0.0


def busy_seconds(pid=None):
    """Return the CPU seconds that the machine, or one process, has used so far; 0 if unknown."""
    try:
        with open("/proc/stat" if pid is None else f"/proc/{pid}/stat") as file:
            fields = file.readline().rsplit(")", 1)[-1].split()
    except OSError:
        return 0.0
    # Machine: cpu user nice system idle iowait irq softirq. Process: fields 11 and 12 after its
    # name, and 13 and 14 for its ended children.
    ticks = [fields[i] for i in ((1, 2, 3, 6, 7) if pid is None else (11, 12, 13, 14))]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def others_share(machine_since, own_since, since, pid=None):
    """Return the share of the machine's cores that processes other than `pid` have taken since the
    given times.
    """
    own = busy_seconds(pid) - own_since if pid else 0
    spent = max(monotonic() - since, 1e-3) * os.cpu_count()
    return max(0.0, busy_seconds() - machine_since - own) / spent


def wait_until_quiet(seconds):
    """Wait until other processes take less than a tenth of the cores for 2 seconds; give up after
    `seconds`.
    """
    until = monotonic() + seconds
    while monotonic() < until:
        since = busy_seconds(), 0, monotonic()
        sleep(2)
        if others_share(*since) < QUIET:
            return


def race(script, specs, rounds, threads, settings, wait=60, announce=True):
    """Run the contestants and return their `Child`ren, in the order of `specs`.

    Args:
        script: path of the benchmark, which calls `serve` when it is given `--contestant`.
        specs: list of strings `library/backend/...`.
        rounds: int. Runs of each contestant after its warm-up.
        threads: int. Cores and threads of each.
        settings: dict, passed to the `prepare` function of every contestant. If its `gpu` is true,
            the contestants may use a GPU.
        wait: number. Maximum seconds that a run waits for the machine to be quiet.
    """
    # A GPU may lack memory for all contestants, so each one ends before the next begins.
    groups = [[spec] for spec in specs] if settings.get("gpu") else [specs]
    children = []
    for group in groups:
        children += _race(script, group, rounds, threads, settings, wait, announce)
    return children


def _race(script, specs, rounds, threads, settings, wait, announce):
    children = []
    for spec in specs:
        wait_until_quiet(wait)
        child = Child(script, spec, threads, settings)
        children.append(child)
        if announce:
            said = ", ".join(f"{key} {_short(value)}" for key, value in child.ready.items())
            console.print(f"ready: {spec}: {said}", soft_wrap=True)
    for number in range(rounds):
        for child in children:
            if "error" not in child.ready:
                wait_until_quiet(wait)
            child.run()
            if announce and "error" not in child.ready:
                said = f"{child.rounds[-1]['seconds']:.2f} s"
                others = child.rounds[-1]["others"]
                said += f", others took {others:.0%} of the machine" if others > QUIET else ""
                console.print(f"round {number + 1}: {child.spec}: {said}")
    for child in children:
        child.close()
    return children


def serve(prepare, spec, settings):
    """Run a contestant in the child process: prepare it, then answer each line of the input with
    the result of one run.

    Args:
        prepare: function `(spec, settings)` that returns `(ready, run)`: a dict to report, and a
            function without arguments that runs once and returns a dict.
    """
    # Output that libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ready, run = prepare(spec, settings)
    answers.write(json.dumps(ready) + "\n")
    answers.flush()
    for _ in sys.stdin:
        answers.write(json.dumps(run()) + "\n")
        answers.flush()


def matmul_limit(spec, settings):
    """Prepare a contestant `limit/backend/dtype`, which computes only the encoder's matmuls.

    These are all matrix products of the 6 layers for 32 texts of 32 tokens, or those that `tokens`
    and `matmuls` in the settings describe.
    """
    _, library, dtype = spec.split("/")
    tokens, seconds = settings.get("tokens", 32 * 32), settings.get("limit_seconds", 1.0)
    matmuls = settings.get("matmuls", MATMULS)
    operations = LAYERS * sum(2 * tokens * rows * columns for rows, columns in matmuls)
    if library == "torch":
        import torch

        torch.set_num_threads(settings["threads"])
        kind = {"dtype": getattr(torch, dtype), "device": "cuda" if settings.get("gpu") else "cpu"}
        pairs = [(torch.rand(tokens, a, **kind), torch.rand(a, b, **kind)) for a, b in matmuls]

        def once():
            for _ in range(LAYERS):
                for x, w in pairs:
                    torch.mm(x, w)
            if settings.get("gpu"):
                torch.cuda.synchronize()

    else:
        import jax
        import numpy as np

        pairs = [
            (jax.numpy.asarray(np.random.rand(tokens, a), dtype), np.random.rand(a, b))
            for a, b in matmuls
        ]
        pairs = [(x, jax.numpy.asarray(w, dtype)) for x, w in pairs]
        product = jax.jit(lambda x, w: x @ w)

        def once():
            for _ in range(LAYERS):
                done = [product(x, w) for x, w in pairs]
                jax.block_until_ready(done)

    def run():
        from time import perf_counter

        once()
        count, start = 0, perf_counter()
        while perf_counter() - start < seconds:
            once()
            count += 1
        spent = perf_counter() - start
        return {"seconds": spent, "gflops": count * operations / spent / 1e9}

    run()
    return {}, run


LIMITS = ["limit/torch/float32", "limit/jax/float32", "limit/torch/bfloat16", "limit/jax/bfloat16"]


def best_limit(children, dtype):
    """Return the highest GFLOP/s of the matmuls in `dtype` that any library reached in any
    round.
    """
    found = [c for c in children if c.spec.startswith("limit/") and c.spec.endswith(f"/{dtype}")]
    return max(done["gflops"] for child in found for done in child.rounds)


def disturbed(children):
    """Return the largest share of the machine that other processes took during any valid run."""
    return max(done["others"] for child in ran(children) for done in child.rounds)


def limits_line(children, operations, unit):
    """Return a line with each library's matmul rate and the `unit` per second that this rate would
    allow.
    """
    limits = [c for c in ran(children) if c.spec.startswith("limit/")]
    rates = ", ".join(
        f"{c.spec.removeprefix('limit/')} {max(done['gflops'] for done in c.rounds):.0f}"
        for c in limits
    )
    bounds = ", ".join(
        f"{dtype} {best_limit(children, dtype) * 1e9 / operations:.0f}"
        for dtype in sorted({c.spec.split("/")[2] for c in limits}, reverse=True)
    )
    return f"Matmuls alone, GFLOP/s: {rates}; so at most, {unit}/s: {bounds}."


def machine(threads, gpu=False):
    """Return a line on the machine and one on the versions."""
    model = platform.processor() or platform.machine()
    flags = ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            text = file.read()
        model = next(
            (x.split(":")[1].strip() for x in text.splitlines() if "model name" in x), model
        )
        flags = " ".join(
            x for x in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {x} " in text
        )
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    python = f"Python {platform.python_version()}"
    if gpu:
        import torch

        model = f"{torch.cuda.get_device_name()}; {model}"
    return f"{model}, {os.cpu_count()} cores, {threads} threads used; {flags}\n" + ", ".join(
        [python, *versions]
    )


def table(title, columns, rows):
    """Print a table as Markdown, ready to paste, with numbers aligned to the right."""
    made = Table(title=title, title_justify="left", box=MARKDOWN)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        made.add_row(*map(str, row))
    console.print(made)


def failed(children):
    """Name the contestants that did not run, with the end of their output."""
    for child in children:
        if "error" in child.ready:
            console.print(f"not run: {child.spec}: {child.ready['error']}", soft_wrap=True)


def ran(children):
    return [child for child in children if child.rounds and "error" not in child.ready]


def _hold_to_cores(threads):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _short(value):
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value

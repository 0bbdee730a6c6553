"""Speed of our package and of the fastest peer in all workloads that users compare.

    python benchmarks/peers.py                             # about an hour on 2 cores
    python benchmarks/peers.py --only embedding,one_text --rounds 2
    python benchmarks/peers.py --save                      # and renders README.md with the figures

The script runs the contestants of the other scripts, in rounds within each area, and prints for
each of ours how many times as fast it is as the best peer of the same precision; values of 0.95 and
less are red. Memory is the peak memory of each process.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Annotated

import one_text
import page
import serving
import typer
from contest import console, disturbed, failed, machine, race, ran, table

HERE = Path(__file__).parent
BACKENDS = ("tensorflow", "jax", "torch")
FLOATS = ("float32", "bfloat16")


@dataclass
class Area:
    """One script, and the numbers to take from its children.

    Args:
        specs: list of lists of strings. The contestants of each race; those of one race must fit
            into memory together.
        settings: dict, as its own command makes them; `folder` is added.
        figures: function of a child that returns a dict of work to `(figure, unit)`.
        before: function of the folder, called first.
    """

    specs: list
    settings: dict
    figures: object
    before: object = None


def _of_library(*ours, peers):
    return [*(f"kerasbert/{backend}/{dtype}" for backend in BACKENDS for dtype in ours), *peers]


def _embedding(child):
    dtype = child.spec.split("/")[2]
    rate = child.rounds[0]["texts"] / child.median()
    return {f"embedding 1,500 texts, {dtype}": (rate, "texts/s")}


def _finetuning(child):
    dtype = child.spec.split("/")[2]
    rate = child.rounds[0]["examples"] / child.median()
    cold = child.rounds[0]["examples"] / child.ready["first_epoch_s"]
    return {
        f"fine-tuning, a cold epoch of 640, {dtype}": (cold, "examples/s"),
        f"fine-tuning, a later epoch, {dtype}": (rate, "examples/s"),
    }


def _pretraining(child):
    dtype = child.spec.split("/")[2]
    rate = child.rounds[0]["examples"] * 128 / child.median()
    return {f"pre-training mini 32 x 128, {dtype}": (rate, "tokens/s")}


def _one_text(child):
    names = child.rounds[0]["ms"]
    ms = {name: median(done["ms"][name] for done in child.rounds) for name in names}
    return {f"one text, {name}": (value, "ms") for name, value in ms.items()}


def _serving(child):
    return {
        f"served, {size} text{'s' * (size != '1')}": (
            1000 * median(one for done in child.rounds for one in done["spent"][size]),
            "ms",
        )
        for size in child.rounds[0]["spent"]
    }


def areas(threads):
    """Return the areas by name, at the size of the table."""
    both = [f"transformers/torch/{dtype}" for dtype in FLOATS]
    size = {"size": "mini", "batch_size": 32, "steps": 8, "length": 128, "gpu": False}
    return {
        "one_text": Area(
            [one_text.SPECS],
            {"repeats": 5},
            _one_text,
            before=lambda folder: one_text.write("bert_tiny_demo_en_uncased", folder),
        ),
        "embedding": Area(
            [_of_library(*FLOATS, peers=both)],
            {"texts": 1500, "keras_hub_texts": 96, "batch_sizes": [64]},
            _embedding,
        ),
        "finetuning": Area(
            [
                [f"kerasbert/{one}" for one in ours] + [f"transformers/torch/{dtype}"]
                for dtype in FLOATS
                for ours in (
                    [f"jax/{dtype}", f"torch/{dtype}"],
                    [f"tensorflow/{dtype}"] + ["tensorflow/float32/xla"] * (dtype == "float32"),
                )
            ],
            {
                "texts": "paragraphs",
                "train": 640,
                "test": 64,
                "padded_train": 64,
                "seeds": 1,
                "epochs": 1,
            },
            _finetuning,
        ),
        "pretraining": Area(
            [
                [f"kerasbert/{backend}/{dtype}" for backend in BACKENDS]
                + [f"{peer}/{dtype}" for peer in ("transformers/torch", "keras_hub/tensorflow")]
                for dtype in FLOATS
            ],
            size,
            _pretraining,
        ),
        "serving": Area(
            [
                [
                    "kerasbert/tensorflow/float32",
                    "kerasbert/tensorflow/float32/caller",
                    "kerasbert/onnx/float32",
                    "transformers/onnx/float32",
                    "transformers/torch/float32",
                ]
            ],
            {"singles": 200, "batches": 10, "clients": 1},
            _serving,
            before=lambda folder: [
                serving.export(spec, {"folder": folder, "threads": threads})
                for spec in ("export/tensorflow/-", "export/torch/-")
            ],
        ),
    }


def measured(children, figures):
    """Return the rows of a result file, as in `page.py`, from the contestants of one race."""
    found = {}
    for child in ran(children):
        library, backend, _, *form = child.spec.split("/")
        name = "/".join([library, backend, *form])  # The name of the work includes the precision.
        for work, (value, unit) in figures(child).items():
            row = {"work": work, "unit": unit, "values": {}, "memory_mb": {}}
            row = found.setdefault(work, row)
            row["values"][name] = value
            row["memory_mb"][name] = round(child.memory_mb)
    for row in found.values():
        times = {name: page.ratio(row, name) for name in row["values"] if _is_ours(name)}
        row["times_peer"] = {name: round(one, 2) for name, one in times.items() if one is not None}
        row["values"] = {name: _rounded(value) for name, value in row["values"].items()}
    return list(found.values())


def merged(races):
    """Merge the rows of several races; a peer that ran in each has a list of numbers."""
    found = {}
    for row in [row for rows in races for row in rows]:
        known = found.setdefault(row["work"], row)
        if known is row:
            continue
        for name, value in row["values"].items():
            before = known["values"].get(name, [])
            before = before if isinstance(before, list) else [before]
            known["values"][name] = [*before, value] if before else value
            largest = max(known["memory_mb"].get(name, 0), row["memory_mb"][name])
            known["memory_mb"][name] = largest
        known["times_peer"] |= row["times_peer"]
    return list(found.values())


def compare(rows):
    """Return rows of the printed table: each of ours and the best peer for the same work."""
    found = []
    for row in rows:
        peer, values, memory = page.best_peer(row), row["values"], row["memory_mb"]
        for name in filter(_is_ours, values):
            ratio = row["times_peer"].get(name)
            found.append(
                (
                    row["work"],
                    name.removeprefix("kerasbert/"),
                    page.number(values[name]),
                    f"{page.number(values[peer])} ({peer})" if peer else "-",
                    row["unit"],
                    f"{memory[name]:,}" + (f" / {memory[peer]:,}" if peer else ""),
                    "-" if ratio is None else _colored(ratio),
                )
            )
    return found


def _is_ours(name):
    return name.startswith("kerasbert/")


def _rounded(value):
    return round(value, 1) if value < 100 else round(value)


def _colored(ratio):
    text = f"{ratio:.2f}"
    return f"[red]{text}[/red]" if ratio <= page.BEHIND else text


def main(
    rounds: int = 3,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated areas (default: all)")] = "",
    save: Annotated[bool, typer.Option(help="write results/*.json and render README.md")] = False,
):
    """Run all areas one after the other, and print the table of each when it is done."""
    hardware, versions = machine(threads).split("\n")
    console.print(f"{hardware}\n{versions}", soft_wrap=True)
    columns = ("work", "ours", "figure", "best peer", "unit", "MB, ours / peer", "times the peer")
    for name, area in areas(threads).items():
        if only and name not in only.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            # An empty cache of compiled code, so that the first epoch on JAX really is cold.
            os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(folder, "jax")
            if area.before:
                area.before(folder)
            settings = {"threads": threads, "folder": folder, **area.settings}
            script = os.fspath(HERE / f"{name}.py")
            races, others = [], 0.0
            for specs in area.specs:
                children = race(script, specs, rounds, threads, settings, wait)
                failed(children)
                races.append(measured(children, area.figures))
                others = max(others, disturbed(children))
        rows = merged(races)
        disturbance = f"other processes took at most {others:.0%} of the machine"
        console.print(f"In a run {disturbance}.")
        title = f"{name.replace('_', ' ')}: kerasbert beside the best peer"
        table(title, columns, compare(rows))
        if save:
            result = {
                **page.read(name),
                "command": " ".join(["python benchmarks/peers.py", *sys.argv[1:]]),
                "date": str(date.today()),
                "machine": hardware,
                "versions": versions,
                "note": disturbance,
                "rows": rows,
            }
            page.save(name, result)
    if save:
        page.main()


if __name__ == "__main__":
    typer.run(main)

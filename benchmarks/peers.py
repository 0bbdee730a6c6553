"""All of the work that people compare, ours beside the fastest peer.

    python benchmarks/peers.py                             # about an hour on 2 cores
    python benchmarks/peers.py --only embedding,one_text --rounds 2

It runs the other scripts' contestants, each area interleaved as there, and prints for each of ours
how many times as fast it is as the best peer of the same precision; 0.95 and less in red. Memory
is the most that each process held.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import one_text
import serving
import typer
from contest import console, disturbed, failed, machine, race, ran, table

HERE = Path(__file__).parent
BACKENDS = ("tensorflow", "jax", "torch")
FLOATS = ("float32", "bfloat16")
BEHIND = 0.95


@dataclass
class Area:
    """One script, and the figures that are read off a child of it.

    Args:
        specs: list of lists of strings. Its contestants, those of a list in one race: together
            they have to fit the memory.
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
    """The areas by name, at the size of the table."""
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


def compare(children, figures):
    """Rows of a table: each of ours beside the best peer that does the same work."""
    work = {}
    for child in ran(children):
        for name, (value, unit) in figures(child).items():
            work.setdefault((name, unit), {})[child.spec] = value
    memory = {child.spec: child.memory_mb for child in ran(children)}
    rows = []
    for (name, unit), found in work.items():
        faster = min if unit == "ms" else max
        peers = {spec: value for spec, value in found.items() if not spec.startswith("kerasbert/")}
        peer = faster(peers, key=peers.get) if peers else None
        for spec, value in found.items():
            if spec in peers:
                continue
            ratio = None
            if peer:
                ratio = peers[peer] / value if unit == "ms" else value / peers[peer]
            rows.append(
                (
                    name,
                    spec.removeprefix("kerasbert/"),
                    _number(value),
                    f"{_number(peers[peer])} ({peer})" if peer else "-",
                    unit,
                    f"{memory[spec]:,.0f}" + (f" / {memory[peer]:,.0f}" if peer else ""),
                    "-" if ratio is None else _colored(ratio),
                )
            )
    return rows


def _number(value):
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _colored(ratio):
    text = f"{ratio:.2f}"
    return f"[red]{text}[/red]" if round(ratio, 2) <= BEHIND else text


def main(
    rounds: int = 3,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated areas; all by default")] = "",
):
    """Run all areas, one after the other, and print a table of each as soon as it is there."""
    console.print(machine(threads), soft_wrap=True)
    columns = ("work", "ours", "figure", "best peer", "unit", "MB, ours / peer", "times the peer")
    for name, area in areas(threads).items():
        if only and name not in only.split(","):
            continue
        with tempfile.TemporaryDirectory() as folder:
            # Empty, so that a cold epoch on JAX is one.
            os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(folder, "jax")
            if area.before:
                area.before(folder)
            settings = {"threads": threads, "folder": folder, **area.settings}
            script = os.fspath(HERE / f"{name}.py")
            rows, others = [], 0.0
            for specs in area.specs:
                children = race(script, specs, rounds, threads, settings, wait)
                failed(children)
                rows += compare(children, area.figures)
                others = max(others, disturbed(children))
        console.print(f"Others took at most {others:.0%} of the machine during a run.")
        table(f"{name.replace('_', ' ')}: kerasbert beside the best peer", columns, rows)


if __name__ == "__main__":
    typer.run(main)

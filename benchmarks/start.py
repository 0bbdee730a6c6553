"""Seconds from starting Python to the first embedding of one text, ours and peers.

    python benchmarks/start.py

Each contestant runs in a fresh process, in rounds (A B C A B C); the table has the medians. The
first round is left out, because it may read the files from disk instead of the system's cache.
"import" starts with the interpreter; "first" includes tracing and compiling.
"""

import os
import resource
import subprocess
import sys
from statistics import median
from time import monotonic, time
from typing import Annotated

import real_data
import typer
from contest import (
    busy_seconds,
    chosen,
    console,
    environment,
    machine,
    others_share,
    table,
    wait_until_quiet,
)

SPECS = [
    "kerasbert/torch",
    "kerasbert/jax",
    "kerasbert/tensorflow",
    "transformers/torch",
    "keras_hub/torch",
    "keras_hub/jax",
    "keras_hub/tensorflow",
]
TEXT = "The weather is lovely today."

# Code as users write it. Each script ends by printing the first 3 numbers of the embedding.
KERASBERT = """
import keras
from keras import ops
import kerasbert
imported()
backbone = kerasbert.models.BertBackbone.from_preset(folder)
preprocessor = kerasbert.models.BertTextClassifierPreprocessor.from_preset(folder)
loaded()
inputs = preprocessor([text])
outputs = backbone(inputs)["sequence_output"]
mask = ops.cast(inputs["padding_mask"], "float32")[:, :, None]
vector = ops.normalize(ops.sum(outputs * mask, axis=1), axis=-1)
vector = ops.convert_to_numpy(vector)
"""
KERAS_HUB = """
import keras_hub
imported()
embedder = keras_hub.models.BertTextEmbedder.from_preset(folder)
loaded()
vector = embedder.predict([text], verbose=0)
"""
TRANSFORMERS = """
import torch
from transformers import AutoModel, AutoTokenizer
imported()
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder).eval()
loaded()
with torch.inference_mode():
    inputs = tokenizer([text], return_tensors="pt")
    outputs = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][:, :, None]
    vector = torch.nn.functional.normalize((outputs * mask).sum(1), dim=-1).numpy()
"""
SCRIPTS = {"kerasbert": KERASBERT, "keras_hub": KERAS_HUB, "transformers": TRANSFORMERS}
FRAME = """
import sys, time
folder, text, times = sys.argv[1], sys.argv[2], []
imported = loaded = lambda: times.append(time.time())
{script}
times.append(time.time())
print("TIMES", *times, *vector[0][:3])
"""


def once(spec, threads):
    """Return a tuple and the embedding. The tuple has the seconds of import, loading, the first
    embedding and the whole run, and the share of the cores that other processes took.
    """
    script = FRAME.format(script=SCRIPTS[spec.split("/")[0]])
    since, own, start = (busy_seconds(), 0, monotonic()), _children_seconds(), time()
    done = subprocess.run(
        [sys.executable, "-c", script, real_data.minilm_dir(), TEXT],
        env=environment(spec, threads),
        capture_output=True,
        text=True,
    )
    own = _children_seconds() - own
    others = others_share(since[0] + own, *since[1:])
    said = [line for line in done.stdout.splitlines() if line.startswith("TIMES")]
    if not said:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    imported, loaded, first, *vector = map(float, said[0].split()[1:])
    return (imported - start, loaded - imported, first - loaded, first - start, others), vector


def _children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(
    rounds: int = 3,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
):
    """Time each contestant from the start of Python to its first embedding."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    specs = chosen(SPECS, only)
    results, vectors = {spec: [] for spec in specs}, {}
    for number in range(rounds + 1):
        for spec in list(results):
            try:
                wait_until_quiet(wait)
                times, vectors[spec] = once(spec, threads)
            except RuntimeError as error:
                console.print(f"not run: {spec}: {error}", soft_wrap=True)
                del results[spec]
                continue
            if number:
                results[spec].append(times)
    console.print(machine(threads), soft_wrap=True)
    rows = []
    for spec, times in sorted(results.items(), key=lambda item: median(t[3] for t in item[1])):
        *seconds, _ = (f"{median(part):.1f}" for part in zip(*times))
        rows.append((spec, *seconds, *(f"{x:.4f}" for x in vectors[spec])))
    others = max((t[4] for times in results.values() for t in times), default=0)
    console.print(f"Others took at most {others:.0%} of the machine during a run.")
    columns = ("contestant", "import, s", "load, s", "first vector, s", "all, s")
    table("Start", (*columns, "vector[0]", "[1]", "[2]"), rows)


if __name__ == "__main__":
    typer.run(main)

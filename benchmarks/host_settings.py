"""Speedup by kerasbert's process settings on JAX and PyTorch, without TensorFlow in the process.

    python benchmarks/host_settings.py --backend torch

Each variant leaves out one setting and runs in a fresh process, in rounds (A B C A B C). The table
has the best time of all rounds, because other processes can only make a run slower. The model has
MiniLM's size and random weights. "one text" is the median of 60 calls.
"""

import json
import subprocess
import sys
from typing import Annotated

import typer
from contest import console, environment, machine, table, wait_until_quiet

VARIANTS = {
    "torch": ["all settings", "OpenMP's threads spin", "malloc's defaults"],
    "jax": ["all settings", "malloc's defaults", "asynchronous dispatch"],
}
SCRIPT = """
import json, os, sys, time
from importlib.machinery import PathFinder
class WithoutTensorFlow(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] not in ("tensorflow", "tensorflow_text"):
            return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTensorFlow
variant = sys.argv[1]
if variant == "OpenMP's threads spin":
    import keras  # Where Keras is first, kerasbert leaves OpenMP alone.
if variant == "malloc's defaults":
    from kerasbert.base import memory
    memory._OPTIONS = {}
if variant == "asynchronous dispatch":
    os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "true"
import kerasbert.models as models
import numpy as np
preprocessor = models.BertTextClassifierPreprocessor.from_preset("bert_mini_demo_en_uncased")
backbone = models.BertBackbone(
    vocabulary_size=preprocessor.tokenizer.vocabulary_size(), num_layers=6, num_heads=12,
    hidden_dim=384, intermediate_dim=1536,
)
model = models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor)
random = np.random.default_rng(0)
words = "the film was a long and quiet story of people who lived near water".split()
texts = [" ".join(random.choice(words, random.integers(4, 60))) for _ in range(256)]
labels = random.integers(0, 2, 256)
found = {}
def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
model.classify(texts[0])
singles = [timed(lambda: model.classify(texts[0])) for _ in range(60)]
found["one text, ms"] = 1e3 * float(np.median(singles))
predict = lambda: model.predict(texts, verbose=0)
fit = lambda: model.fit(texts, labels, epochs=1, verbose=0)
predict()
found["predict 256, s"] = min(timed(predict) for _ in range(3))
fit()
found["epoch of 256, s"] = min(timed(fit) for _ in range(2))
assert "tensorflow" not in sys.modules
print("FOUND", json.dumps(found))
"""


def once(variant, backend, threads):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, variant],
        env=environment(f"kerasbert/{backend}", threads),
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    if not said:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return json.loads(said[0].removeprefix("FOUND"))


def main(
    backend: str = "torch",
    rounds: int = 3,
    threads: int = 2,
    wait: Annotated[int, typer.Option(help="seconds to wait for a quiet machine")] = 60,
):
    """Time each variant in rounds, and print the best times."""
    results = {variant: [] for variant in VARIANTS[backend]}
    for _ in range(rounds):
        for variant, found in results.items():
            wait_until_quiet(wait)
            found.append(once(variant, backend, threads))
    console.print(machine(threads), soft_wrap=True)
    names = list(found[0])
    rows = [
        (variant, *(f"{min(one[name] for one in found):.2f}" for name in names))
        for variant, found in results.items()
    ]
    table(f"Settings on {backend}", ("variant", *names), rows)


if __name__ == "__main__":
    typer.run(main)

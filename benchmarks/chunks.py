"""Memory and time of one training step on many pairs, in chunks and at once.

    python benchmarks/chunks.py
    KERAS_BACKEND=tensorflow python benchmarks/chunks.py --sizes 32/0,1024/32

MiniLM-L6 runs one step with multiple negatives ranking on pairs of statement and reply, of at most
32 tokens each. A size in `--sizes` is `pairs/chunk`, where a chunk of 0 means no chunks; each size
runs in a separate process. Memory is the peak memory of the process minus its memory after the
model was built.
"""

import os
import subprocess
import sys
from time import perf_counter
from typing import Annotated

os.environ.setdefault("KERAS_BACKEND", "torch")

import typer


def step(pairs, chunk):
    import kerasbert.models  # Before the other imports, because it sets how PyTorch's threads wait.

    # isort: split
    import keras
    import real_data
    from contest import peak_mb
    from training_embedders import pairs_of

    keras.utils.set_random_seed(0)
    minilm = real_data.minilm_dir()
    model = kerasbert.models.BertTextEmbedder.from_preset(
        minilm, sequence_length=32, dropout=0.0, attention_dropout=0.0
    )
    model.compile(kerasbert.optimizers.AdamW(5e-5), chunk_size=chunk or None)
    texts, _ = pairs_of(pairs, 0)
    model.embed(list(texts[0][:32]))
    before, start = peak_mb(os.getpid()), perf_counter()
    losses = model.fit(tuple(map(list, texts)), batch_size=pairs, epochs=1, verbose=0).history
    seconds = perf_counter() - start
    memory = peak_mb(os.getpid()) - before
    chunks = f"in chunks of {chunk}" if chunk else "at once"
    loss = losses["loss"][0]
    print(f"{pairs:5} pairs {chunks}: {memory:,.0f} MB, {seconds:.0f} s, loss {loss:.4f}")


def main(
    sizes: Annotated[str, typer.Option(help="comma-separated pairs/chunk")] = (
        "32/0,128/0,512/0,512/32,2048/32"
    ),
    one: Annotated[str, typer.Option(hidden=True)] = "",
):
    if one:
        return step(*map(int, one.split("/")))
    for size in sizes.split(","):
        subprocess.run([sys.executable, __file__, "--one", size], check=True)


if __name__ == "__main__":
    typer.run(main)

"""Throughput and memory of making pre-training records from text, compared with plain Python.

    python benchmarks/examples.py                            # 10 MB and 1 GB, about 6 minutes
    python benchmarks/examples.py --megabytes 10 --rounds 3

The text is the Brown corpus, one sentence per line, repeated up to that size. `kerasbert` makes
next-sentence examples of 128 tokens with one copy, including tokenization and gzip, in two
processes of one core each. `plain` follows the published rules in plain Python on one core, as
google-research/bert does, on the first 2 MB, all in memory; its records are not compressed.
Start-up (processes, imports, tracing) is excluded: each process handles a small corpus first.
Memory is the peak over all processes together; memory that several processes share counts once,
where the system reports it. The targets are 15 times the throughput of `plain`, and memory that
changes by at most 10% from 10 MB to 1 GB of text.
"""

import json
import os
import random
import tempfile
import threading
from time import perf_counter
from typing import Annotated

import real_data
import typer
from contest import console, disturbed, failed, machine, race, ran, serve, table

T, PREDICTIONS = 128, 20
PLAIN_BYTES = 2_000_000


def write_text(path, size):
    """Write the Brown corpus repeatedly, up to about `size` bytes."""
    documents = [
        "".join(" ".join(word for word, _ in sentence) + "\n" for sentence in document) + "\n"
        for document in real_data.brown_tagged()
    ]
    # Shuffle the documents each time, so that blocks do not repeat.
    order, written = random.Random(0), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            order.shuffle(documents)
            for document in documents:
                written += file.write(document)
                if written >= size:
                    break


class Memory:
    """The peak memory of this process and its children in MB, sampled every 50 ms."""

    def __enter__(self):
        self.peak, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def _watch(self):
        while not self.done.wait(0.05):
            held = map(_memory, [os.getpid(), *_children(os.getpid())])
            self.peak = max(self.peak, sum(held) / 1e6)


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            own = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return own + [other for child in own for other in _children(child)]


def _memory(pid):
    """Return bytes; pages that several processes share count once among them."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            with open(f"/proc/{pid}/{name}") as file:
                return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(field))
        except OSError:
            continue
    return 0


def kerasbert(settings):
    """Return a function from a path to `(seconds, tokens)`."""
    from kerasbert.data import write_examples
    from kerasbert.tokenizers import BertTokenizer

    tokenizer = BertTokenizer.from_files(real_data.minilm_dir())

    def once(path):
        began = []

        def progress(share, examples):
            began.append((perf_counter(), examples))

        with tempfile.TemporaryDirectory() as folder:
            manifest = write_examples(
                path,
                folder,
                tokenizer,
                sequence_length=T,
                workers=settings["threads"],
                progress=progress,
            )
        # The time until each process has started on its first block is left out.
        skip = settings["threads"]
        (start, before), (end, after) = began[skip - 1], began[-1]
        share = (after - before) / after
        return end - start, manifest["counts"]["tokens"] * share

    return once


def plain(settings):
    import tensorflow as tf

    from tests.data import reference_examples
    from tests.text import reference

    with open(os.path.join(real_data.minilm_dir(), "vocab.txt"), encoding="utf-8") as file:
        vocabulary = {token: id for id, token in enumerate(file.read().splitlines())}
    cls, sep, mask = (vocabulary[token] for token in ("[CLS]", "[SEP]", "[MASK]"))

    def once(path):
        start = perf_counter()
        with open(path, encoding="utf-8") as file:
            text = file.read(PLAIN_BYTES)
        documents, tokens = [[]], 0
        for line in text.split("\n"):
            ids = [vocabulary[piece] for piece in reference.tokenize(line, vocabulary)]
            tokens += len(ids)
            if ids:
                documents[-1].append(ids)
            else:
                documents.append([])
        documents = list(filter(None, documents))
        rng = random.Random(0)
        rng.shuffle(documents)
        ids = list(vocabulary.values())
        made = list(
            reference_examples.examples(documents, T, PREDICTIONS, cls, sep, mask, ids, rng)
        )
        rng.shuffle(made)
        with (
            tempfile.TemporaryDirectory() as folder,
            tf.io.TFRecordWriter(os.path.join(folder, "x.tfrecord")) as writer,
        ):
            for pair, seen, segments, places, hidden in made:
                row = seen, segments, places, hidden, pair.is_random
                writer.write(reference_examples.serialized(*row, T, PREDICTIONS))
        return perf_counter() - start, tokens

    return once


def contestant(spec, settings):
    """Prepare a contestant for `serve`; one run makes the examples of a corpus."""
    library, _, megabytes = spec.split("/")
    make = {"kerasbert": kerasbert, "plain": plain}[library](settings)
    paths = settings["paths"]
    if library == "plain":
        make(paths["small"])

    def run():
        with Memory() as memory:
            seconds, tokens = make(paths[megabytes])
        return {"seconds": seconds, "tokens": tokens, "memory": memory.peak}

    return {}, run


def main(
    rounds: int = 1,
    threads: int = 2,
    megabytes: Annotated[str, typer.Option(help="comma-separated text sizes")] = "10,1000",
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    contestant_: Annotated[str, typer.Option("--contestant", hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "{}",
):
    """Make examples and print tokens per second and memory."""
    if contestant_:
        serve(contestant, contestant_, json.loads(settings))
        return
    sizes = megabytes.split(",")
    with tempfile.TemporaryDirectory() as folder:
        paths = {size: os.path.join(folder, f"{size}.txt") for size in ("small", *sizes)}
        for size, path in paths.items():
            write_text(path, 200_000 if size == "small" else int(size) * 1_000_000)
        specs = [f"plain/tensorflow/{sizes[0]}", *(f"kerasbert/tensorflow/{n}" for n in sizes)]
        shared = {"paths": paths, "threads": threads}
        children = race(__file__, specs, rounds, threads, shared, wait)
    console.print(machine(threads), soft_wrap=True)
    failed(children)
    rates = {c.spec: c.median("tokens") / c.median() for c in ran(children)}
    base = next((rate for spec, rate in rates.items() if spec.startswith("plain")), None)
    rows = []
    for child in ran(children):
        library, _, size = child.spec.split("/")
        rate = rates[child.spec]
        rows.append(
            (
                library,
                "2 of them" if library == "plain" else size,
                f"{child.median('tokens'):,.0f}",
                f"{rate:,.0f}",
                f"{rate / base:.1f}" if base else "",
                f"{child.median('memory'):,.0f}",
            )
        )
    if rows:
        console.print(f"Others took at most {disturbed(children):.0%} of the machine.")
        columns = ("contestant", "MB of text", "tokens", "tokens/s", "times plain", "MB of memory")
        table("Examples", columns, rows)


if __name__ == "__main__":
    typer.run(main)

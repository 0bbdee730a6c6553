"""Measurements for the estimated cost of 1 TB of text on 1,000 workers, on one core.

    python benchmarks/cluster.py                  # about 4 minutes
    python benchmarks/cluster.py --shards 1000    # about 1,000 shards, by 2 and by 8 processes

The text is the Brown corpus, 20 sentences per document. Each part of the work runs alone in this
process with one thread. The script prints its throughput per second of CPU time, which other
processes on the machine hardly affect, and the bytes that it sends through the network. With
`--shards`, the script compares the bytes that 2 and 8 processes write, and measures their
wall-clock time.
"""

import collections
import hashlib
import itertools
import os
import tempfile
from time import perf_counter, process_time
from typing import Annotated

import real_data
import typer
from contest import console, table

T, BATCH = 128, 256
TERABYTE, WORKERS = 1e12, 1000
SENTENCES = 20


def write_text(path, size):
    """Write documents of the Brown corpus up to about `size` bytes, each with its own number."""
    documents = [
        [" ".join(word for word, _ in sentence) for sentence in document[start : start + SENTENCES]]
        for document in real_data.brown_tagged()
        for start in range(0, len(document), SENTENCES)
    ]
    with open(path, "w", encoding="utf-8") as file:
        written = number = 0
        while written < size:
            # The number makes the copies different; otherwise they would be near duplicates.
            place, turn = number % len(documents), number // len(documents)
            lines = documents[place][turn:] + documents[place - 1][:turn]
            written += file.write("\n".join(lines) + "\n\n")
            number += 1


def timed(function):
    start = process_time()
    result = function()
    return process_time() - start, result


def parts(path, folder, tokenizer):
    """Yield `(part, bytes of text, seconds, bytes through the network per byte of text)`."""
    from kerasbert.data import documents, read_examples, write_examples
    from kerasbert.data.deduplicate import bands, signature
    from kerasbert.data.vocabulary import _counter
    from kerasbert.models import BertTextEmbedder

    size = os.path.getsize(path)
    found = list(documents(path, sentences="lines"))

    def drained(iterable):
        return collections.deque(iterable, maxlen=0)

    seconds, _ = timed(lambda: drained(documents(path, sentences="split")))
    yield "read, split into sentences", size, seconds, 0

    def words():
        sent, count = 0, _counter(True)
        some = iter(found)
        while part := list(itertools.islice(some, 1000)):
            counted = count(line for lines in part for line in lines)
            # Counted without Beam's combiner, which would first merge the counts of a worker's
            # bundle.
            sent += sum(len(word.encode()) + 5 for word in counted)
        return sent

    seconds, sent = timed(words)
    yield "count words", size, seconds, sent / size

    def signatures():
        sent = 0
        for lines in found:
            for band in bands(signature("\n".join(lines)), 0.8):
                sent += len(band) + 128 + 10
        return sent

    seconds, sent = timed(signatures)
    yield "signatures of near duplicates", size, seconds, sent / size

    texts = ["\n".join(lines) for lines in found]
    batches = [texts[start : start + 64] for start in range(0, len(texts), 64)]
    tokenizer(batches[0])
    seconds, tokens = timed(lambda: sum(len(row) for some in batches for row in tokenizer(some)))
    yield f"tokenize ({size / tokens:.2f} bytes per token)", size, seconds, 0

    small = os.path.join(folder, "small.txt")
    write_text(small, 100_000)
    made = {"tokenizer": tokenizer, "sequence_length": T, "workers": 1, "sentences": "split"}
    write_examples(small, os.path.join(folder, "warm"), **made)
    out = os.path.join(folder, "records")
    seconds, manifest = timed(lambda: write_examples(path, out, **made))
    written = sum(shard["bytes"] for shard in manifest["shards"])
    yield (
        f"records, all of it ({written / size:.2f} bytes a byte)",
        size,
        seconds,
        1 + written / size,
    )

    data = read_examples(out, BATCH, tokenizer=tokenizer, repeat=False)
    drained(data.take(2))
    rows = manifest["counts"]["examples"]
    seconds, _ = timed(lambda: drained(data))
    name = f"read for training ({rows / seconds:,.0f} rows/s of {T})"
    yield name, size, seconds, written / size

    embedder = BertTextEmbedder.from_preset(real_data.minilm_dir())
    some = texts[: BATCH * 2]
    embedder.embed(some)
    seconds, _ = timed(lambda: embedder.embed(some))
    share = sum(len(text.encode()) for text in some)
    name = f"embed by MiniLM, 6 x 384 ({len(some) / seconds:.0f} documents/s)"
    yield name, share, seconds, 1 + len(some) * 384 * 4 / share


def made_and_read(count, folder, tokenizer):
    """Yield a row of the table for 2 workers and one for 8 workers."""
    from kerasbert.data import read_examples, write_examples

    path = os.path.join(folder, "many.txt")
    write_text(path, count * 25_000)
    for workers in (2, 8):
        out = os.path.join(folder, f"by-{workers}")
        start = perf_counter()
        write_examples(
            path,
            out,
            tokenizer,
            sequence_length=T,
            workers=workers,
            block_bytes=25_000,
            blocks_per_shard=1,
        )
        wrote = perf_counter() - start
        shards, rows = hashlib.sha256(), collections.Counter()
        names = sorted(name for name in os.listdir(out) if name.endswith(".gz"))
        for name in names:
            with open(os.path.join(out, name), "rb") as file:
                shards.update(file.read())
        start = perf_counter()
        for index in range(workers):
            data = read_examples(out, BATCH, repeat=False, masking="static", shard=(index, workers))
            for x, _, weights in data:
                real = weights["nsp_logits"].numpy() > 0
                rows.update(row.tobytes() for row in x["token_ids"].numpy()[real])
        read = perf_counter() - start
        digest = hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()[:12]
        yield workers, len(names), wrote, read, shards.hexdigest()[:12], digest, rows.total()


def main(
    megabytes: Annotated[float, typer.Option(help="Megabytes of text.")] = 10.0,
    shards: Annotated[int, typer.Option(help="Write and read this number of shards instead.")] = 0,
):
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(name, "1")
    from kerasbert.tokenizers import BertTokenizer

    tokenizer = BertTokenizer.from_files(real_data.minilm_dir())
    with tempfile.TemporaryDirectory() as folder:
        if shards:
            columns = [
                "workers",
                "shards",
                "s to make",
                "s to read",
                "their hash",
                "hash of rows",
                "rows",
            ]
            rows = [
                [str(x) if not isinstance(x, float) else f"{x:.1f}" for x in row]
                for row in made_and_read(shards, folder, tokenizer)
            ]
            table(f"{shards} shards", columns, rows)
            return
        path = os.path.join(folder, "text.txt")
        write_text(path, megabytes * 1e6)
        rows = []
        for name, size, seconds, sent in parts(path, folder, tokenizer):
            rate = size / seconds
            minutes = TERABYTE / WORKERS / rate / 60
            rows.append([name, f"{rate / 1e6:.2f}", f"{minutes:,.1f}", f"{sent:.2f}"])
            console.print(rows[-1])
        columns = ["part", "MB/s a core", "1 TB on 1,000 cores, min", "TB through the network"]
        table("1 TB on 1,000 workers", columns, rows)


if __name__ == "__main__":
    typer.run(main)

"""Searching a million vectors of 384 numbers in one process: `SearchIndex` and faiss.

    python benchmarks/search.py                       # a million, about 10 minutes and 6 GB of disk
    python benchmarks/search.py --count 100000 --graphs

The vectors are random, of length 1, with a decaying spectrum as in real embeddings; a query is a
vector with added noise. The contestants run one after the other in separate processes, with 2
threads. Ours load a saved index with its texts, and return ids and texts; faiss has its vectors in
memory and returns row numbers. Milliseconds are medians, for one query at a time and for 100 at
once. "found" is recall@10 with respect to an exact search of the float32 vectors. "memory" is the
memory of the process after the searches, without that of the packages and of mapped files, which
the system may drop.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

WIDTH, TOP, BLOCK = 384, 10, 50_000
DTYPES = ("float32", "float16", "int8", "binary")
OURS = [f"kerasbert/{dtype}" for dtype in DTYPES]
FAISS = ["faiss/IndexFlatIP", "faiss/SQfp16", "faiss/SQ8", "faiss/IndexBinaryFlat"]
GRAPHS = ["kerasbert/float32/faiss", "kerasbert/float32/usearch"]


def make_data(folder, count):
    generator = np.random.default_rng(0)
    scales = np.arange(1, WIDTH + 1, dtype="float32") ** -0.5
    # The vectors are rotated, because otherwise their first dimensions would carry more information
    # than the last.
    turn = np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0].astype("float32")

    def draw(rows):
        return (generator.standard_normal((rows, WIDTH), dtype="float32") * scales) @ turn

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    vectors = np.lib.format.open_memmap(folder / "x.npy", "w+", "float32", (count, WIDTH))
    for start in range(0, count, BLOCK):
        vectors[start : start + BLOCK] = unit(draw(min(BLOCK, count - start)))
    queries = vectors[generator.integers(0, count, 100)] + 0.5 * unit(draw(100))
    np.save(folder / "queries.npy", unit(queries))


def prepare(spec, folder):
    """Return a function of queries and a number of hits that returns row numbers; the seconds to
    build the index; and the memory before it.
    """
    library, kind, *engine = spec.split("/")
    vectors = np.load(folder / "x.npy", mmap_mode="r")
    importlib.import_module("faiss" if library == "faiss" else "kerasbert.search")
    before, start = own_memory(), perf_counter()
    if library == "kerasbert":
        search = ours(vectors, kind, *engine, folder=folder)
    else:
        search = theirs(vectors, kind)
    return search, perf_counter() - start, before


def ours(vectors, dtype, engine="exact", *, folder):
    from kerasbert import SearchIndex

    path = folder / f"{dtype}-{engine}"
    if not path.exists():
        index = SearchIndex(None, dtype=dtype, engine=engine)
        for start in range(0, len(vectors), BLOCK):
            block = vectors[start : start + BLOCK]
            index.add([f"text {start + i}" for i in range(len(block))], vectors=block)
        index.search_vectors(vectors[0])
        index.save(path)
        # A separate process builds the index, so that its memory is not measured with that of the
        # searches.
        os.execv(sys.executable, [sys.executable, *sys.argv])
    index = SearchIndex.load(path)
    return lambda queries, count: [
        [hit["id"] for hit in hits] for hits in index.search_vectors(queries, count)
    ]


def theirs(vectors, kind):
    import faiss

    faiss.omp_set_num_threads(2)
    if kind == "IndexBinaryFlat":
        index = faiss.IndexBinaryFlat(WIDTH)
        for start in range(0, len(vectors), BLOCK):
            index.add(np.packbits(vectors[start : start + BLOCK] > 0, axis=1))

        def search(queries, count):
            rows = index.search(np.packbits(queries > 0, axis=1), 4 * count)[1]
            # Retrieve four times as many candidates, and score them by the float32 vectors in the
            # file.
            best = []
            for query, some in zip(queries, rows):
                best.append(some[np.argsort(-(vectors[some] @ query))[:count]])
            return best

        return search
    if kind == "IndexFlatIP":
        index = faiss.IndexFlatIP(WIDTH)
    else:
        kinds = {"SQfp16": "QT_fp16", "SQ8": "QT_8bit"}
        quantizer = getattr(faiss.ScalarQuantizer, kinds[kind])
        index = faiss.IndexScalarQuantizer(WIDTH, quantizer, faiss.METRIC_INNER_PRODUCT)
        index.train(np.ascontiguousarray(vectors[:BLOCK]))
    for start in range(0, len(vectors), BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
    return lambda queries, count: index.search(queries, count)[1]


def measure(spec, folder):
    search, seconds, before = prepare(spec, folder)
    queries = np.load(folder / "queries.npy")
    search(queries[:1], TOP)
    search(queries[:100], TOP)

    def milliseconds(calls):
        taken = []
        for part in calls:
            start = perf_counter()
            search(part, TOP)
            taken.append(1e3 * (perf_counter() - start))
        return statistics.median(taken)

    return {
        "ready": seconds,
        "one": milliseconds([queries[i : i + 1] for i in range(25)]),
        "hundred": milliseconds([queries] * 5),
        "rows": np.asarray(search(queries, TOP)).tolist(),
        "memory": own_memory() - before,
    }


def own_memory():
    """Return the megabytes of this process that are not mapped from files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1e3


def main(
    count: int = 1_000_000,
    graphs: Annotated[
        bool, typer.Option(help="also measure graphs of faiss and usearch, which is slow")
    ] = False,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    folder: Annotated[str, typer.Option(help="folder that keeps the data for the next run")] = "",
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
):
    if contestant:
        print(json.dumps(measure(contestant, Path(folder))))
        return
    specs = [*OURS, *FAISS, *(GRAPHS if graphs else [])]
    chosen = [spec for spec in specs if spec.startswith(tuple(only.split(",")))]
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(folder or temporary)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "queries.npy").exists():
            make_data(place, count)
        print(f"{count:,} vectors of {WIDTH}; load averages {os.getloadavg()}")
        print("| contestant | one query, ms | 100 at once, ms | found | memory, MB | ready, s |")
        print("|---|---:|---:|---:|---:|---:|")
        exact = None
        for spec in [OURS[0], *(spec for spec in chosen if spec != OURS[0])]:
            command = [sys.executable, __file__, "--folder", str(place), "--contestant", spec]
            output = subprocess.run(command, env=environment, capture_output=True, text=True)
            if output.returncode:
                raise SystemExit(output.stderr)
            found = json.loads(output.stdout.splitlines()[-1])
            exact = exact or found["rows"]
            shared = [len({*a} & {*b}) / TOP for a, b in zip(found["rows"], exact)]
            print(
                f"| {spec} | {found['one']:.1f} | {found['hundred']:.0f} | {np.mean(shared):.3f} "
                f"| {found['memory']:,.0f} | {found['ready']:.1f} |",
                flush=True,
            )
        print(f"Load averages at the end {os.getloadavg()}")


if __name__ == "__main__":
    typer.run(main)

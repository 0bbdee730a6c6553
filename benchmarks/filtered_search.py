"""Filtered and hybrid search in `SearchIndex`, Chroma and LanceDB: milliseconds and recall.

    pip install chromadb lancedb
    python benchmarks/filtered_search.py                 # 100,000 passages
    python benchmarks/filtered_search.py --passages 10000 --queries 20

Passages are random words with Zipf frequencies, with random vectors of width 384 whose spectrum
decays, as in `search.py`, and metadata `bucket`, uniform from 0 to 99. A query is the vector of a
passage with noise, and four of its words. All engines get the same vectors and filters, in one
process, on one thread each. For each query, the engines answer in turn, several times, so that all
of them run under the same load; the shortest time of an engine counts.

- all: the 10 nearest passages,
- 50%, 10%, 1%: the same among the passages with `bucket` below 50, 10 or 1,
- hybrid, hybrid 10%: vectors and BM25, fused by reciprocal ranks (Chroma has no BM25 of its own).

The table has the median time per query, queries per second relative to `SearchIndex` (the median of
the ratios, query by query), and recall@10: the share of the 10 passages that NumPy finds by exact
dot products. `SearchIndex` and LanceDB without a vector index are exact; Chroma searches its
default HNSW graph. The rankings by BM25 of two engines are not comparable, so hybrid rows have no
recall.
"""

import os
import tempfile
import time
from typing import Annotated

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LANCE_CPU_THREADS", "1")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("LANCE_LOG", "error")

import numpy as np
import typer
from contest import table

WIDTH, TOP = 384, 10
# Decaying, as in real embeddings.
SPECTRUM = np.arange(1, WIDTH + 1) ** -0.5
ROWS = {  # Limit of `bucket`, and whether the search is hybrid.
    "all": (None, False),
    "50%": (50, False),
    "10%": (10, False),
    "1%": (1, False),
    "hybrid": (None, True),
    "hybrid 10%": (10, True),
}


def corpus(count, rng):
    """Return texts, unit vectors and buckets."""
    ranks = np.arange(1, 30_001)
    words = rng.choice(len(ranks), (count, 20), p=(1 / ranks) / (1 / ranks).sum())
    texts = [" ".join(f"w{word}" for word in row) for row in words.tolist()]
    vectors = rng.normal(size=(count, WIDTH)) * SPECTRUM
    return texts, unit(vectors), rng.integers(0, 100, count).tolist()


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype("float32")


def ours(texts, vectors, buckets, folder):
    from kerasbert import SearchIndex

    class Given:
        """Returns the query's vector."""

        def embed(self, texts, batch_size=32):
            return self.vectors

    index = SearchIndex(Given(), keywords=True)
    index.add(texts, vectors=vectors, metadata=[{"bucket": bucket} for bucket in buckets])

    def search(vector, text, limit, is_hybrid):
        index.embedder.vectors = vector[None]
        where = {"bucket": {"$lt": limit}} if limit else None
        hits = index.search(text, TOP, where=where, alpha=None if is_hybrid else 1)
        return [hit["id"] for hit in hits]

    return search


def chroma(texts, vectors, buckets, folder):
    import chromadb

    client = chromadb.PersistentClient(os.path.join(folder, "chroma"))
    table = client.create_collection(
        "passages", configuration={"hnsw": {"space": "ip"}}, embedding_function=None
    )
    for start in range(0, len(texts), 5000):
        part = slice(start, start + 5000)
        table.add(
            ids=[str(i) for i in range(start, start + len(texts[part]))],
            documents=texts[part],
            embeddings=vectors[part],
            metadatas=[{"bucket": bucket} for bucket in buckets[part]],
        )

    def search(vector, text, limit, is_hybrid):
        if is_hybrid:
            return None
        where = {"bucket": {"$lt": limit}} if limit else None
        found = table.query(query_embeddings=vector[None], n_results=TOP, where=where)
        return [int(id) for id in found["ids"][0]]

    return search


def lance(texts, vectors, buckets, folder):
    import lancedb
    from lancedb.rerankers import RRFReranker

    rows = [
        {"id": i, "text": text, "vector": vector, "bucket": bucket}
        for i, (text, vector, bucket) in enumerate(zip(texts, vectors, buckets))
    ]
    table = lancedb.connect(os.path.join(folder, "lance")).create_table("x", rows)
    table.create_scalar_index("bucket")
    table.create_fts_index("text")
    reranker = RRFReranker()

    def search(vector, text, limit, is_hybrid):
        if is_hybrid:
            query = table.search(query_type="hybrid").vector(vector).text(text).rerank(reranker)
        else:
            query = table.search(vector).distance_type("dot")
        query = query.where(f"bucket < {limit}", prefilter=True) if limit else query
        return query.limit(TOP).select(["id", "text"]).to_arrow()["id"].to_pylist()

    return search


def main(
    passages: Annotated[int, typer.Option(help="Number of passages.")] = 100_000,
    queries: Annotated[int, typer.Option(help="Number of queries per row.")] = 30,
    repeats: Annotated[int, typer.Option(help="Answers of each engine to each query.")] = 3,
):
    rng = np.random.default_rng(0)
    texts, vectors, buckets = corpus(passages, rng)
    lines, load = [], [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for name, make in (("kerasbert", ours), ("chroma", chroma), ("lancedb", lance)):
            start = time.perf_counter()
            engines[name] = make(texts, vectors, buckets, folder)
            print(f"{name}: added in {time.perf_counter() - start:.0f} s", flush=True)
        for row, (limit, is_hybrid) in ROWS.items():
            allowed = np.flatnonzero(np.array(buckets) < (limit or 100))
            times, recalls = {}, {}
            for turn in range(queries + 1):
                place = int(rng.integers(passages))
                vector = unit(vectors[place] + 0.5 / WIDTH**0.5 * rng.normal(size=WIDTH))
                text = " ".join(texts[place].split()[:4])
                exact = allowed[np.argsort(-vectors[allowed] @ vector)[:TOP]].tolist()
                spent = {}
                for _ in range(repeats):
                    for name, search in engines.items():
                        start = time.perf_counter()
                        found = search(vector, text, limit, is_hybrid)
                        seconds = time.perf_counter() - start
                        if found is None:
                            continue
                        spent[name] = min(seconds, spent.get(name, seconds))
                        recalls.setdefault(name, []).append(len({*found} & {*exact}) / TOP)
                if turn:  # The first query loads and counts.
                    for name, seconds in spent.items():
                        times.setdefault(name, []).append(seconds)
            load.append(os.getloadavg()[0])
            for name, values in times.items():
                ratio = np.median(np.array(times["kerasbert"]) / values)
                recall = "" if is_hybrid else f"{np.mean(recalls[name]):.3f}"
                lines.append([row, name, f"{1e3 * np.median(values):.2f}", f"{ratio:.2f}", recall])
                print(*lines[-1], flush=True)
    titles = ["search", "engine", "ms per query", "queries per second, relative", "recall@10"]
    table(f"{passages:,} passages, load average {min(load):.1f} to {max(load):.1f}", titles, lines)


if __name__ == "__main__":
    typer.run(main)

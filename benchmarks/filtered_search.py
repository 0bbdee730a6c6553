"""Filtered and hybrid search in `SearchIndex`, Chroma and LanceDB: milliseconds per query.

    pip install chromadb lancedb
    python benchmarks/filtered_search.py                 # 100,000 passages, several minutes
    python benchmarks/filtered_search.py --passages 10000 --rounds 20

Passages are random words of a vocabulary with Zipf frequencies, with random unit vectors of width
384 and metadata `year` (uniform over 10 years). All engines get the same vectors, in one process,
on one thread; queries are interleaved, so that all engines run under the same load. Each row is the
median over queries of one engine, and the median of the ratios to `SearchIndex`, query by query.

- all: the 10 nearest passages,
- half, tenth: the same among the passages of five years, or of one year,
- hybrid: vectors and BM25, fused by reciprocal ranks (Chroma has no BM25),
- recall: share of the 10 exact nearest passages, for "all" and for "tenth".

`SearchIndex` and LanceDB without an index are exact; Chroma searches its default HNSW graph.
"""

import os
import tempfile
import time
from typing import Annotated

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LANCE_CPU_THREADS", "1")

import numpy as np
import typer

WIDTH, TOP = 384, 10


def corpus(count, rng):
    """Return texts, unit vectors and years."""
    ranks = np.arange(1, 30_001)
    words = rng.choice(len(ranks), (count, 20), p=(1 / ranks) / (1 / ranks).sum())
    texts = [" ".join(f"w{word}" for word in row) for row in words.tolist()]
    vectors = rng.normal(size=(count, WIDTH)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return texts, vectors, rng.integers(2015, 2025, count).tolist()


def ours(texts, vectors, years, folder):
    from kerasbert import SearchIndex

    class Given:
        """Returns the query's vector."""

        def embed(self, texts, batch_size=32):
            return self.vectors

    index = SearchIndex(Given(), keywords=True)
    index.add(texts, vectors=vectors, metadata=[{"year": year} for year in years])

    def search(vector, text, low, is_hybrid):
        index.embedder.vectors = vector[None]
        where = {"year": {"$gte": low}} if low else None
        hits = index.search(text, TOP, where=where, alpha=None if is_hybrid else 1)
        return [hit["id"] for hit in hits]

    return search


def chroma(texts, vectors, years, folder):
    import chromadb

    client = chromadb.PersistentClient(os.path.join(folder, "chroma"))
    table = client.create_collection("x", metadata={"hnsw:space": "ip"}, embedding_function=None)
    for start in range(0, len(texts), 5000):
        part = slice(start, start + 5000)
        table.add(
            ids=[str(i) for i in range(start, start + len(texts[part]))],
            documents=texts[part],
            embeddings=vectors[part],
            metadatas=[{"year": year} for year in years[part]],
        )

    def search(vector, text, low, is_hybrid):
        if is_hybrid:
            return None
        where = {"year": {"$gte": low}} if low else None
        found = table.query(query_embeddings=vector[None], n_results=TOP, where=where)
        return [int(id) for id in found["ids"][0]]

    return search


def lance(texts, vectors, years, folder):
    import lancedb
    from lancedb.rerankers import RRFReranker

    rows = [
        {"id": i, "text": text, "vector": vector, "year": year}
        for i, (text, vector, year) in enumerate(zip(texts, vectors, years))
    ]
    table = lancedb.connect(os.path.join(folder, "lance")).create_table("x", rows)
    table.create_scalar_index("year")
    table.create_fts_index("text")
    reranker = RRFReranker()

    def search(vector, text, low, is_hybrid):
        if is_hybrid:
            query = table.search(query_type="hybrid").vector(vector).text(text).rerank(reranker)
        else:
            query = table.search(vector).distance_type("dot")
        query = query.where(f"year >= {low}", prefilter=True) if low else query
        return query.limit(TOP).select(["id", "text"]).to_arrow()["id"].to_pylist()

    return search


def main(
    passages: Annotated[int, typer.Option(help="Number of passages.")] = 100_000,
    rounds: Annotated[int, typer.Option(help="Number of queries per row.")] = 50,
):
    rng = np.random.default_rng(0)
    texts, vectors, years = corpus(passages, rng)
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for name, make in (("kerasbert", ours), ("chroma", chroma), ("lancedb", lance)):
            start = time.perf_counter()
            engines[name] = make(texts, vectors, years, folder)
            print(f"{name}: added in {time.perf_counter() - start:.0f} s", flush=True)
        for row, low, is_hybrid in (
            ("all", None, False),
            ("half", 2020, False),
            ("tenth", 2024, False),
            ("hybrid", None, True),
        ):
            times, recalls = {}, {}
            for turn in range(rounds + 2):
                place = int(rng.integers(passages))
                vector = vectors[place] + 0.1 * rng.normal(size=WIDTH).astype("float32")
                vector = (vector / np.linalg.norm(vector)).astype("float32")
                text = " ".join(texts[place].split()[:4])
                exact = None
                for name, search in engines.items():
                    start = time.perf_counter()
                    found = search(vector, text, low, is_hybrid)
                    spent = 1e3 * (time.perf_counter() - start)
                    if found is None or turn < 2:  # The first queries load and count.
                        continue
                    exact = found if exact is None else exact
                    times.setdefault(name, []).append(spent)
                    recalls.setdefault(name, []).append(len({*found} & {*exact}) / len(exact))
            for name, values in times.items():
                ratio = np.median(np.array(values) / times["kerasbert"])
                recall = "" if is_hybrid else f", recall {np.mean(recalls[name]):.3f}"
                print(
                    f"{row} {name}: {np.median(values):.2f} ms, ratio {ratio:.2f}{recall}",
                    flush=True,
                )


if __name__ == "__main__":
    typer.run(main)

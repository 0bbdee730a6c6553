"""Vector search, BM25 and hybrid search in `SearchIndex`: nDCG@10 with 95% intervals.

    python benchmarks/hybrid.py                     # every task, about 5 minutes on idle CPUs
    python benchmarks/hybrid.py --tasks ko-pages,ja-pages --seeds 0

The tasks are the retrieval tasks of `preset_tables.py`, with at most 1,000 texts: each query has
one relevant text. English is embedded by MiniLM-L6, Korean and Japanese by `bert_mini_demo_ko_ja`,
from at most 64 tokens. No setting was tuned on any of them: k=60 and alpha=0.5 are common values.

- BM25 letters: the index's keywords, which are words, and character bigrams in Korean and Japanese,
- BM25 subwords: the tokens of the embedder's tokenizer as keywords,
- hybrid: vectors and BM25 letters, fused by reciprocal ranks,
- hybrid subwords: vectors and BM25 subwords, fused by reciprocal ranks,
- hybrid mean: the mean of the scaled scores of vectors and BM25 letters (alpha=0.5).

Intervals are from 2,000 resamples of the seeds and of each seed's queries. The difference is
"hybrid" minus the better of "vectors" and "BM25 letters", on the same queries.
"""

import os
from collections import defaultdict
from typing import Annotated

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import preset_tables
import real_data
import typer

METHODS = ("vectors", "BM25 letters", "BM25 subwords", "hybrid", "hybrid subwords", "hybrid mean")
ALPHAS = {"vectors": 1, "BM25 letters": 0, "BM25 subwords": 0, "hybrid mean": 0.5}


def load(language):
    from kerasbert.models import BertTextEmbedder

    preset = real_data.minilm_dir() if language == "en" else "bert_mini_demo_ko_ja"
    settings = {"sequence_length": 64, "pooling": "mean", "normalize": True}
    return BertTextEmbedder.from_preset(preset, **settings)


def gains(embedder, task, seed):
    """Return a dict of method to the nDCG@10 of each query."""
    from kerasbert import SearchIndex
    from kerasbert.search.keywords import Keywords

    queries, texts = preset_tables.asked(task, seed)
    index = SearchIndex(embedder, texts, keywords=True)
    letters, tokenizer = index._keywords, embedder.preprocessor.tokenizer
    subwords = Keywords(lambda text: list(map(str, np.asarray(tokenizer([text])[0]).tolist())))
    found = {}
    for method in METHODS:
        index._keywords = subwords if method.endswith("subwords") else letters
        ranks = [
            next((rank for rank, hit in enumerate(hits) if hit["id"] == place), None)
            for place, hits in enumerate(index.search(queries, 10, alpha=ALPHAS.get(method)))
        ]
        found[method] = [0.0 if rank is None else 1 / np.log2(2 + rank) for rank in ranks]
    return found


def main(
    tasks: Annotated[str, typer.Option(help="comma-separated tasks")] = ",".join(
        preset_tables.RETRIEVAL
    ),
    seeds: Annotated[str, typer.Option(help="comma-separated seeds")] = "0,1",
):
    print("| | texts | " + " | ".join(METHODS) + " | difference |", flush=True)
    print("|---|---:|" + "---:|" * len(METHODS) + "---|")
    embedders = {}
    for task in tasks.split(","):
        language = "en" if task.startswith("en") else "ko, ja"
        if language not in embedders:
            embedders[language] = load(language)
        scores = defaultdict(dict)
        for seed in map(int, seeds.split(",")):
            for method, rows in gains(embedders[language], task, seed).items():
                run = {"key": [task, method, "", 0, seed], "rows": {"gain": rows}}
                scores[method][seed] = preset_tables.resampled(run, "nDCG@10")
        cells = []
        for method in METHODS:
            value, low, high = preset_tables.over_seeds(list(scores[method].values()))
            cells.append(f"{value:.3f} [{low:.3f}, {high:.3f}]")
        alone = max(METHODS[:2], key=lambda x: np.mean([run[0] for run in scores[x].values()]))
        difference = preset_tables.against(scores["hybrid"], scores[alone])
        print(f"| {task} | {len(rows)} | " + " | ".join(cells) + f" | {difference} |", flush=True)


if __name__ == "__main__":
    typer.run(main)

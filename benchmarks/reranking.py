"""Reranking and embedding passages: seconds, ours and sentence-transformers'.

    python benchmarks/reranking.py
    python benchmarks/reranking.py --only sentence-transformers,kerasbert/torch --rounds 5

A cross-encoder with MiniLM-L6's encoder and a new head, the same weights for both libraries, ranks
100 passages of Brown (four sentences each) for a question of TREC, three questions per run. Then
MiniLM embeds 500 other passages. Both libraries read raw strings in batches of 32 with 2 threads;
sentence-transformers has its default settings. Scores must agree within 1e-4, or the script stops.
"""

import json
import os
import tempfile
from time import perf_counter
from typing import Annotated

import numpy as np
import real_data
import typer
from contest import chosen, console, disturbed, failed, machine, paragraphs, race, ran, serve, table

SPECS = [
    "sentence-transformers/torch/float32",
    "kerasbert/torch/float32",
    "kerasbert/jax/float32",
    "kerasbert/tensorflow/float32",
]
PASSAGES, EMBEDDED = 100, 500


def kerasbert_models(cross_encoder):
    from kerasbert.models import BertReranker, BertTextEmbedder

    reranker = BertReranker.from_preset(cross_encoder, sequence_length=256)
    embedder = BertTextEmbedder.from_preset(real_data.minilm_dir(), sequence_length=256)
    return reranker, lambda texts: embedder.embed(texts)


def sentence_transformers_models(cross_encoder):
    from sentence_transformers import CrossEncoder, SentenceTransformer

    reranker = CrossEncoder(cross_encoder, device="cpu", max_length=256)
    embedder = SentenceTransformer(real_data.minilm_dir(), device="cpu")
    return reranker, lambda texts: embedder.encode(texts, normalize_embeddings=True)


def prepare(spec, settings):
    library, backend, _ = spec.split("/")
    if backend == "torch":
        import torch

        torch.set_num_threads(settings["threads"])
    make = kerasbert_models if library == "kerasbert" else sentence_transformers_models
    reranker, embed = make(settings["cross_encoder"])
    questions = [text for _, _, text in real_data.trec_questions()[: settings["questions"]]]
    texts = [text for text, _ in paragraphs(PASSAGES + EMBEDDED)]
    passages, others = texts[:PASSAGES], texts[PASSAGES:]

    def run():
        start = perf_counter()
        hits = [reranker.rank(question, passages) for question in questions]
        between = perf_counter()
        embed(others)
        end = perf_counter()
        scores = {(n, hit["corpus_id"]): hit["score"] for n, row in enumerate(hits) for hit in row}
        return {
            "seconds": end - start,
            "reranking": (between - start) / len(questions),
            "embedding": end - between,
            "scores": [float(scores[key]) for key in sorted(scores)],
        }

    run()  # The first call compiles and loads.
    return {}, run


def write_cross_encoder(folder):
    """Write MiniLM's encoder and a new head, for both libraries."""
    import keras

    import kerasbert

    keras.utils.set_random_seed(0)
    preset, written = os.path.join(folder, "preset"), os.path.join(folder, "cross_encoder")
    made = kerasbert.models.BertReranker.from_preset(real_data.minilm_dir(), new_head=True)
    made.save_to_preset(preset)
    kerasbert.convert(preset, written)
    return written


def main(
    rounds: int = 3,
    questions: Annotated[int, typer.Option(help="Questions per run.")] = 3,
    threads: Annotated[int, typer.Option(help="Cores and threads of each contestant.")] = 2,
    only: Annotated[str, typer.Option(help="Comma-separated prefixes of contestants.")] = "",
    wait: Annotated[int, typer.Option(help="Maximum seconds to wait for a quiet machine.")] = 60,
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    if contestant:
        return serve(prepare, contestant, json.loads(settings))
    console.print(machine(threads), soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        given = {"threads": threads, "questions": questions}
        given["cross_encoder"] = write_cross_encoder(folder)
        children = race(__file__, chosen(SPECS, only), rounds, threads, given, wait)
    failed(children)
    runners = ran(children)
    first = runners[0]
    rows = []
    for child in runners:
        gap = np.abs(np.subtract(child.rounds[0]["scores"], first.rounds[0]["scores"])).max()
        if gap > 1e-4:
            raise SystemExit(f"{child.spec}: scores are {gap:.1e} off those of {first.spec}.")
        cells = [child.spec]
        for key in ("reranking", "embedding"):
            own = child.median(key)
            cells += [f"{own:.2f}", f"{first.median(key) / own:.2f}"]
        rows.append(cells)
    title = f"{PASSAGES} passages for a question, {EMBEDDED} passages embedded; {rounds} rounds"
    ratio = f"x {first.spec.split('/')[0]}"
    table(title, ["contestant", "reranking, s", ratio, "embedding, s", ratio], rows)
    console.print(f"Others took at most {disturbed(children):.0%} of the machine during a run.")


if __name__ == "__main__":
    typer.run(main)

"""Late interaction on pairs of statement and reply: the effect of some training steps.

    python benchmarks/late_interaction.py --steps 50

MiniLM-L6, with a new projection to 128 dimensions, ColBERT's roles and queries of 32 tokens, learns
which film reply belongs to which statement, with the other replies of a batch of 16 as negatives
(see `training_embedders.py` for the pairs). Then each of 300 held-out statements retrieves its
reply by MaxSim. The score is MRR@10, before and after the training, compared with BM25 and the
encoder's own mean embeddings.
"""

from time import perf_counter
from typing import Annotated

import keras
import numpy as np
import real_data
import typer
from training_embedders import bm25, mrr, pairs_of

from kerasbert.models import BertTextEmbedder
from kerasbert.optimizers import AdamW

BATCH, HELD_OUT = 16, 300


def quality(model, held_out):
    """Return the MRR@10 of statements (N,) and their replies (N,)."""
    queries, texts = (
        model.predict(list(column), role=role, verbose=0)
        for column, role in zip(held_out, ("query", "text"), strict=True)
    )
    scores = [keras.ops.convert_to_numpy(model.similarity(row[None], texts)) for row in queries]
    return mrr(np.concatenate(scores))


def main(
    steps: Annotated[int, typer.Option(help="Training steps of 16 pairs.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order.")] = 0,
):
    train, held_out = pairs_of(steps * BATCH, 0)
    held_out = [column[:HELD_OUT] for column in held_out]
    pooled = BertTextEmbedder.from_preset(real_data.minilm_dir())
    vectors = [pooled.embed(list(column)) for column in held_out]
    try:
        print(f"BM25 {bm25(held_out):.3f}")
    except ImportError:
        print("BM25 needs the package bm25s")
    print(f"mean vectors, untrained {mrr(vectors[0] @ vectors[1].T):.3f}")
    keras.utils.set_random_seed(seed)
    model = BertTextEmbedder.from_preset(
        real_data.minilm_dir(),
        pooling="tokens",
        projection_dim=128,
        normalize=True,
        sequence_length=64,
        query_token="[unused0]",
        text_token="[unused1]",
        query_length=32,
        expand_queries=True,
    )
    print(f"late interaction, untrained {quality(model, held_out):.3f}")
    model.compile(AdamW(5e-5, weight_decay=0.01))
    start = perf_counter()
    model.fit(tuple(map(list, train)), batch_size=BATCH, epochs=1, verbose=0)
    seconds = perf_counter() - start
    print(f"after {steps} steps, {seconds:.0f} s, {quality(model, held_out):.3f}")


if __name__ == "__main__":
    typer.run(main)

"""SPLADE on passages of the Brown corpus: the effect of some training steps, ours and a peer's.

    python benchmarks/sparse_search.py --steps 150
    python benchmarks/sparse_search.py --steps 150 --library sentence-transformers
    python benchmarks/sparse_search.py --steps 150 --active-words 0    # unshifted logits

One of every three sentences is a query, and the two others are the passage that it must retrieve
among those of other documents (the inverse cloze task). `bert_tiny_demo_en_uncased` is trained with
the other passages of a batch of 32 as negatives, dot products, the default weights of `Sparse`,
AdamW with ten per cent warmup, and without dropout. Then each of 500 held-out queries retrieves its
passage; the score is MRR@10, compared with BM25. No passage contains its query, so BM25 retrieves
passages that repeat its words. The first version of the preset, to which the notes refer, had been
pre-trained on text that includes the Brown corpus, but not on such pairs.
"""

import random
import re
import tempfile
from time import perf_counter
from typing import Annotated

import keras
import real_data
import typer
from training_embedders import BATCH, bm25, mrr, peer_settings

import kerasbert
from kerasbert.models import BertSparseEmbedder
from kerasbert.optimizers import AdamW, LinearDecay

PRESET, LENGTH, HELD_OUT = "bert_tiny_demo_en_uncased", 48, 500


def passages(count, seed=0):
    """Return `(train, held_out)`, from different documents; each is a list of queries and a list of
    passages.
    """
    rng, documents = random.Random(seed), []
    for tagged in real_data.brown_tagged():
        sentences = [re.sub("``|''", '"', " ".join(word for word, _ in one)) for one in tagged]
        rows = []
        for three in zip(*(sentences[i::3] for i in range(3))):
            long = [i for i, sentence in enumerate(three) if len(sentence.split()) >= 8]
            if long:
                chosen = rng.choice(long)
                rows.append((three[chosen], " ".join(three[:chosen] + three[chosen + 1 :])))
        documents.append(rows)
    rng.shuffle(documents)
    parts = []
    for some, size in ((documents[100:], count), (documents[:100], HELD_OUT)):
        rows = [row for document in some for row in document]
        rng.shuffle(rows)
        parts.append(tuple(map(list, zip(*rows[:size]))))
    return parts


def quality(embed, held_out):
    """Return MRR@10 and the number of active words in queries and passages, as a string."""
    queries, texts = map(embed, held_out)
    counts = [(vectors > 0).sum() / HELD_OUT for vectors in (queries, texts)]
    words = " and ".join(f"{count:.0f}" for count in counts)
    return f"MRR@10 {mrr((queries @ texts.T).toarray()):.3f}, {words} words"


def train_ours(model, train, rate, steps, seed):
    model.compile(AdamW(LinearDecay(rate, steps, steps // 10), weight_decay=0.01))
    model.fit(train, batch_size=BATCH, epochs=1, verbose=0)
    return model.embed


def train_theirs(model, train, rate, steps, seed):
    import datasets
    from scipy import sparse
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder import (
        SparseEncoderTrainer,
        SparseEncoderTrainingArguments,
        losses,
    )

    with tempfile.TemporaryDirectory() as folder:
        kerasbert.convert(model, f"{folder}/model")
        theirs = SparseEncoder(f"{folder}/model", device="cpu")
        loss = losses.SparseMultipleNegativesRankingLoss(theirs)
        arguments = SparseEncoderTrainingArguments(folder, **peer_settings(rate, seed))
        SparseEncoderTrainer(
            theirs,
            arguments,
            datasets.Dataset.from_dict({"query": train[0], "passage": train[1]}),
            loss=losses.SpladeLoss(theirs, loss, 3e-5, 5e-5),
        ).train()
    return lambda texts: sparse.csr_array(theirs.encode(texts).to_dense().numpy())


def main(
    steps: Annotated[int, typer.Option(help="Training steps of 32 pairs.")] = 150,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    active_words: Annotated[
        int, typer.Option(help="Active words after shifting the logits; 0 does not shift.")
    ] = 50,
    library: Annotated[str, typer.Option(help="kerasbert or sentence-transformers.")] = "kerasbert",
    seed: Annotated[int, typer.Option(help="Seed of the order.")] = 0,
):
    train, held_out = passages(steps * BATCH)
    try:
        print(f"BM25 {bm25(held_out):.3f}")
    except ImportError:
        print("BM25 needs the package bm25s")
    keras.utils.set_random_seed(seed)
    model = BertSparseEmbedder.from_preset(
        PRESET, sequence_length=LENGTH, dropout=0.0, attention_dropout=0.0
    )
    print(f"untrained, {quality(model.embed, held_out)}")
    if active_words:
        shift = model.shift_logits(
            [text for column in train for text in column[:100]], active_words
        )
        print(f"logits shifted by {shift:.1f}, {quality(model.embed, held_out)}", flush=True)
    start = perf_counter()
    fit = train_ours if library == "kerasbert" else train_theirs
    embed = fit(model, train, rate, steps, seed)
    seconds = perf_counter() - start
    print(f"after {steps} steps of {library}, {seconds:.0f} s, {quality(embed, held_out)}")


if __name__ == "__main__":
    typer.run(main)

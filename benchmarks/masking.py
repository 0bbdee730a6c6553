"""Throughput of masking real film reviews: ours by each unit, KerasHub's, transformers'.

    python benchmarks/masking.py                  # 2 threads, 3 rounds, about two minutes
    python benchmarks/masking.py --only kerasbert --length 512

All 13,905 texts are tokenized with MiniLM's WordPiece, concatenated, split into rows of `--length`
tokens, and masked dynamically in batches of 32. Our masker and KerasHub's are mapped over a
`tf.data.Dataset`; transformers' collator is called for each batch. The target is 1 million tokens
per second on 2 cores. Each contestant must mask between 14% and 16% of the tokens, or the script
stops. The rows "long words" have only words of 3 to 7 subwords, so that nearly every row needs the
exact search for words whose lengths add up to the number of tokens to mask.
"""

import json
import os
from time import perf_counter
from typing import Annotated

import numpy as np
import real_data
import typer
from contest import chosen, console, disturbed, failed, machine, race, ran, serve, table

# library/backend/unit
SPECS = [
    "kerasbert/tensorflow/token",
    "kerasbert/tensorflow/word",
    "kerasbert/tensorflow/span",
    "kerasbert/tensorflow/ngram",
    "kerasbert/tensorflow/word, long words",
    "keras_hub/tensorflow/token",
    "transformers/torch/token",
    "transformers/torch/word",
]
BATCH = 32
RATE = 0.15


def tokens_of(length):
    """Return rows (N, length) of token ids between [CLS] and [SEP], and the tokenizer. N is a
    multiple of the batch size.
    """
    from kerasbert.tokenizers import BertTokenizer

    tokenizer = BertTokenizer.from_files(real_data.minilm_dir())
    texts = [text for _, text in real_data.film_reviews()]
    ids = np.concatenate([np.array(row, "int32") for row in tokenizer(texts)])
    width = length - 2
    count = len(ids) // (width * BATCH) * BATCH
    rows = np.full((count, length), tokenizer.start_token_id, "int32")
    rows[:, 1:-1] = ids[: count * width].reshape(count, width)
    rows[:, -1] = tokenizer.end_token_id
    return rows, tokenizer


def kerasbert(unit, rows, tokenizer, threads):
    import tensorflow as tf

    from kerasbert.data import map_ahead, mask_tokens, word_starts

    unit, *long_words = unit.split(", ")
    edges = tokenizer.word_edges()
    special = np.isin(np.arange(len(edges)), tokenizer.special_token_ids)
    if long_words:
        sizes = np.random.default_rng(0).integers(3, 8, rows.shape)
        given = np.zeros(rows.shape, bool)
        for row, ends in zip(given, 1 + np.cumsum(sizes, axis=1), strict=True):
            row[ends[ends < len(row)]] = True

    def mask(ids, starts, seed):
        starts = starts if long_words else word_starts(ids, edges)
        return mask_tokens(
            ids,
            ~tf.gather(special, ids),
            seed,
            vocabulary_size=len(edges),
            mask_token_id=tokenizer.mask_token_id,
            mask_selection_rate=RATE,
            unit=unit,
            word_starts=starts,
        )

    starts = given if long_words else np.zeros((len(rows), 0), bool)
    parts = tf.data.Dataset.from_tensor_slices((rows, starts)).batch(BATCH)
    seeds = tf.data.Dataset.random(1, rerandomize_each_iteration=True).batch(2)
    dataset = tf.data.Dataset.zip((parts, seeds))
    dataset = map_ahead(dataset, lambda part, seed: mask(*part, seed))

    def once():
        return sum(float(batch["mask_weights"].numpy().sum()) for batch in dataset)

    return once


def keras_hub(unit, rows, tokenizer, threads):
    import keras_hub
    import tensorflow as tf

    masker = keras_hub.layers.MaskedLMMaskGenerator(
        vocabulary_size=tokenizer.vocabulary_size(),
        mask_selection_rate=RATE,
        mask_token_id=tokenizer.mask_token_id,
        mask_selection_length=round(RATE * rows.shape[1]),
        unselectable_token_ids=tokenizer.special_token_ids,
    )
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH)
    dataset = dataset.map(masker, num_parallel_calls=threads).prefetch(4)

    def once():
        return sum(float(batch["mask_weights"].numpy().sum()) for batch in dataset)

    return once


def transformers(unit, rows, tokenizer, threads):
    import torch
    import transformers

    torch.set_num_threads(threads)
    path = os.path.join(real_data.minilm_dir(), "vocab.txt")
    theirs = transformers.BertTokenizerFast(vocab=path)
    collator = transformers.DataCollatorForLanguageModeling(
        theirs, mlm_probability=RATE, whole_word_mask=unit == "word"
    )
    examples = [{"input_ids": row} for row in rows]
    if unit == "word":
        # Offsets as their tokenizer gives them: a word begins where the previous one ends.
        inside = [token.startswith("##") for token in tokenizer.vocabulary]
        places = np.cumsum(np.where(np.array(inside)[rows], 1, 2), axis=1)
        for example, starts in zip(examples, places, strict=True):
            example["offset_mapping"] = np.stack([starts, starts + 1], axis=1)

    def once():
        return sum(
            int((collator([dict(one) for one in examples[i : i + BATCH]])["labels"] >= 0).sum())
            for i in range(0, len(rows), BATCH)
        )

    return once


def contestant(spec, settings):
    """Prepare a contestant for `serve`; one run processes all rows."""
    library, _, unit = spec.split("/")
    rows, tokenizer = tokens_of(settings["length"])
    once = globals()[library](unit, rows, tokenizer, settings["threads"])
    share = once() / rows.size
    if not 0.14 <= share <= 0.16:
        raise RuntimeError(f"{share:.1%} of the tokens are masked, not {RATE:.0%}")

    def run():
        start = perf_counter()
        once()
        return {"seconds": perf_counter() - start}

    return {"tokens": rows.size, "masked": share}, run


def main(
    rounds: int = 3,
    threads: int = 2,
    length: Annotated[int, typer.Option(help="tokens per row")] = 128,
    wait: Annotated[int, typer.Option(help="maximum seconds to wait for a quiet machine")] = 60,
    only: Annotated[str, typer.Option(help="comma-separated prefixes of contestants")] = "",
    contestant_: Annotated[str, typer.Option("--contestant", hidden=True)] = "",
    settings: Annotated[str, typer.Option(hidden=True)] = "{}",
):
    """Race the maskers and print their tokens per second."""
    if contestant_:
        serve(contestant, contestant_, json.loads(settings))
        return
    specs = chosen(SPECS, only)
    children = race(__file__, specs, rounds, threads, {"length": length, "threads": threads}, wait)
    console.print(machine(threads), soft_wrap=True)
    failed(children)
    rows = []
    for child in ran(children):
        rates = [child.ready["tokens"] / done["seconds"] / 1e6 for done in child.rounds]
        rate = child.ready["tokens"] / child.median() / 1e6
        masked = f"{child.ready['masked']:.1%}"
        rows.append((child.spec, masked, f"{rate:.2f}", f"{min(rates):.2f}-{max(rates):.2f}"))
    if rows:
        console.print(f"Others took at most {disturbed(children):.0%} of the machine.")
        title = f"Masking, {length} tokens per row"
        table(title, ("contestant", "masked", "million tokens/s", "min-max"), rows)


if __name__ == "__main__":
    typer.run(main)

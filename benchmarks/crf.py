"""Entity F1 of taggers with and without a conditional random field, on names in the Brown corpus.

    KERAS_BACKEND=torch python benchmarks/crf.py FOLDER

The taggers learn, on top of MiniLM-L6, either the whole model ("fine-tuned") or a BiLSTM on the
frozen encoder's features ("frozen"). An entity is a run of words that Brown tags as proper nouns or
as parts of a title. It is a TITLE if a word in it is part of a title ("Fulton County Grand Jury"),
otherwise a NAME. The tags are O, B-NAME, I-NAME, B-TITLE and I-TITLE; sentences have at most 40
words and at least one entity.

Every fifth document is for the test and every fifth for validation. A seed draws the training
sentences and the weights of the head; its taggers train on the same sentences and are scored on the
same 400. Of several learning rates, the one with the best F1 on the validation sentences is taken,
with a seed that is not reported. FOLDER keeps the results, and finished runs are not repeated.
Intervals are 95% t intervals over the seeds.
"""

import itertools
import json
import random
from pathlib import Path
from typing import Annotated

import keras
import numpy as np
import real_data
import scipy.stats
import typer
from contest import console, table

from kerasbert.metrics import entities
from kerasbert.models import BertTokenClassifier
from kerasbert.optimizers import AdamW, LinearDecay

TRAIN, SCORED, BATCH = 400, 400, 16
EPOCHS = {"fine-tuned": 3, "frozen": 3}
# Learning rates, and factors for the CRF's transitions. On frozen features, transitions learn at
# about 0.1, as in `finetune(method="frozen")`.
RATES = {"fine-tuned": (1e-4, 3e-4), "frozen": (3e-3,)}
FACTORS = {"fine-tuned": (100,), "frozen": (30,)}
CHOOSING_SEED = 1000


def sentences():
    """Return lists of sentences `(words, tags)`: for training, validation and test."""
    parts = [], [], []
    for number, document in enumerate(real_data.brown_tagged()):
        part = {3: 1, 4: 2}.get(number % 5, 0)
        for sentence in document:
            words, marks = zip(*sentence)
            found = list(tags(marks))
            if len(words) <= 40 and set(found) != {"O"}:
                parts[part].append((list(words), found))
    return parts


def tags(marks):
    """Yield the tag of each word for Brown's tags."""
    for is_entity, run in itertools.groupby(marks, lambda x: x.startswith("np") or "-tl" in x):
        run = list(run)
        kind = "TITLE" if any("-tl" in mark for mark in run) else "NAME"
        yield from [f"{'I' if i else 'B'}-{kind}" if is_entity else "O" for i in range(len(run))]


def score(encoder, rate, factor, seed, train, tested):
    """Train a tagger and return its F1; `factor` is `None` without a CRF."""
    drawn = random.Random(seed).sample(train, TRAIN)
    keras.utils.set_random_seed(seed)
    is_frozen = encoder == "frozen"
    tagger = BertTokenClassifier.from_preset(
        real_data.minilm_dir(),
        labels=["NAME", "TITLE"],
        scheme="BIO",
        sequence_length=64,
        crf=factor is not None,
        bilstm_units=128 if is_frozen else 0,
    )
    tagger.backbone.trainable = not is_frozen
    steps = EPOCHS[encoder] * -(-TRAIN // BATCH)
    multipliers = None if factor is None else {"crf": factor}
    tagger.compile(
        AdamW(LinearDecay(rate, steps, steps // 10), learning_rate_multipliers=multipliers)
    )
    words, labels = map(list, zip(*drawn))
    tagger.fit(words, labels, batch_size=BATCH, epochs=EPOCHS[encoder], verbose=0)
    words, labels = map(list, zip(*tested))
    return 100 * entities(labels, tagger.predict_labels(words))["f1"]


def interval(values):
    """Return the mean and half of the 95% t interval, as text."""
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * scipy.stats.sem(values)
    return f"{np.mean(values):.2f} ± {half:.2f}"


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
):
    """Run what is missing, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    done = {tuple(row["key"]): row["f1"] for row in rows}
    train, *held_out = sentences()
    held_out = [random.Random(0).sample(part, SCORED) for part in held_out]
    console.print(f"{len(train):,} sentences to draw from")

    def scored(part, encoder, rate, factor, seed):
        key = (part, encoder, rate, factor, seed)
        if key not in done:
            tested = held_out[part == "test"]
            done[key] = score(encoder, rate, factor, seed, train, tested)
            with open(path, "a") as file:
                file.write(json.dumps({"key": key, "f1": done[key]}) + "\n")
        return done[key]

    lines = []
    for encoder in EPOCHS:
        chosen = []
        for factors in ((None,), FACTORS[encoder]):
            options = list(itertools.product(RATES[encoder], factors))
            if len(options) > 1:
                options.sort(key=lambda one: scored("validation", encoder, *one, CHOOSING_SEED))
            chosen.append(options[-1])
        found = [
            [scored("test", encoder, *option, seed) for option in chosen] for seed in range(seeds)
        ]
        for (rate, factor), values in zip(chosen, zip(*found)):
            name = "no CRF" if factor is None else f"CRF, transitions x {factor}"
            lines.append([f"{encoder}, {name}, rate {rate:g}", interval(values), ""])
        lines[-1][-1] = interval(np.diff(found, axis=1)[:, 0])
    table(f"{seeds} seeds, {TRAIN} sentences", ["tagger", "F1", "CRF minus none"], lines)


if __name__ == "__main__":
    typer.run(main)

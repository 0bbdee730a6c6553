"""Fine-tuning with few labels: adversarial training, R-Drop, label smoothing and new top layers.

    KERAS_BACKEND=torch python benchmarks/regularizing.py FOLDER

The model of `--preset` learns to classify TREC's questions (6 classes) and film reviews (fresh or
rotten). Each seed draws `--labels` training texts per class, the same for all options, and the
weights of the head; 500 other texts are for the test. All options train in batches of 16 for 20
epochs, with a peak learning rate of 5e-4, warmup and decay. Each option has one strength that is
not tuned: the default of `compile` for adversarial training, otherwise a usual value (R-Drop 1,
label smoothing 0.1, one new layer). FOLDER keeps the results, and finished runs are not repeated.
Intervals are 95% t intervals over the seeds.
"""

import json
import random
from pathlib import Path
from typing import Annotated

import keras
import numpy as np
import real_data
import typer
from contest import table
from crf import interval

from kerasbert.models import BertTextClassifier
from kerasbert.optimizers import AdamW, LinearDecay

BATCH, EPOCHS, RATE, LENGTH = 16, 20, 5e-4, 48
TESTED = 500
TASKS = "questions", "reviews"
# For each option, the arguments of `compile` or the number of new layers.
OPTIONS = {
    "none": {},
    "FGM": {"adversarial": "fgm"},
    "AWP": {"adversarial": "awp", "adversarial_strength": 0.001},
    "R-Drop": {"r_drop": 1.0},
    "label smoothing": {"label_smoothing": 0.1},
    "new top layers": {"layers": 1},
}


def drawn(name, labels, seed):
    """Return texts and classes for training and test."""
    if name == "questions":
        rows = [(text, kind) for kind, _, text in real_data.trec_questions()]
    else:
        rows = [(text, kind) for kind, text in real_data.film_reviews() if kind != "plot"]
    rows = sorted(set(rows))
    random.Random(seed).shuffle(rows)
    train, rest, counts = [], [], {}
    for row in rows:
        counts[row[1]] = counts.get(row[1], 0) + 1
        (train if counts[row[1]] <= labels else rest).append(row)
    return train, rest[:TESTED]


def score(preset, name, labels, seed, option):
    """Return the accuracy on the test set."""
    train, test = drawn(name, labels, seed)
    keras.utils.set_random_seed(seed)
    classes = sorted({kind for _, kind in train})
    model = BertTextClassifier.from_preset(preset, labels=classes, sequence_length=LENGTH)
    option = dict(option)
    if layers := option.pop("layers", 0):
        model.backbone.reinitialize_layers(layers)
    steps = EPOCHS * -(-len(train) // BATCH)
    model.compile(AdamW(LinearDecay(RATE, steps, steps // 10)), **option)
    keras.utils.set_random_seed(seed)
    model.fit(*map(list, zip(*train)), batch_size=BATCH, epochs=EPOCHS, verbose=0)
    texts, kinds = map(list, zip(*test))
    predicted = [row["label"] for row in model.classify(texts)]
    return 100 * float(np.mean([a == b for a, b in zip(kinds, predicted)]))


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    preset: Annotated[str, typer.Option()] = "bert_tiny_demo_en_uncased",
    labels: Annotated[int, typer.Option(help="Training texts per class.")] = 32,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
):
    """Run what is missing, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    done = {json.dumps(row["key"]): row["accuracy"] for row in rows}

    def accuracy(name, seed, option):
        key = [preset, name, labels, seed, option]
        if json.dumps(key) not in done:
            done[json.dumps(key)] = found = score(*key)
            with open(path, "a") as file:
                file.write(json.dumps({"key": key, "accuracy": found}) + "\n")
        return done[json.dumps(key)]

    # By seed first, so that an interrupted run has complete seeds.
    found = {
        (title, name, seed): accuracy(name, seed, option)
        for seed in range(seeds)
        for name in TASKS
        for title, option in OPTIONS.items()
    }
    lines = []
    for title in OPTIONS:
        cells = []
        for name in TASKS:
            own, plain = (
                np.array([found[one, name, seed] for seed in range(seeds)])
                for one in (title, "none")
            )
            cells += [interval(own), interval(own - plain) if title != "none" else ""]
        lines.append([title, *cells])
    titles = ["questions", "gain", "reviews", "gain"]
    table(f"{preset}, {labels} texts per class, {seeds} seeds", ["option", *titles], lines)


if __name__ == "__main__":
    typer.run(main)

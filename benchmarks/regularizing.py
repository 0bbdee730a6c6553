"""Fine-tuning with few labels: adversarial training, R-Drop, label smoothing and new top layers.

    KERAS_BACKEND=torch python benchmarks/regularizing.py FOLDER

The model of `--preset` learns to classify TREC's questions (6 classes) and film reviews (fresh or
rotten). Each seed draws `--labels` training texts per class, the same for all options, and the
weights of the head; 300 other texts are for validation and 500 for the test. The table has the test
accuracy of each option with the strength that has the best mean validation accuracy over the seeds.
All options train in batches of 16 for 20 epochs, with a peak learning rate of 5e-4, warmup and
decay. FOLDER keeps the results,
and finished runs are not repeated. Intervals are 95% t intervals over the seeds.
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
VALIDATED, TESTED = 300, 500
# For each option, the arguments of `compile` or the number of new layers, by strength.
OPTIONS = {
    "none": [{}],
    "FGM": [{"adversarial": "fgm", "adversarial_strength": x} for x in (0.3, 1.0, 3.0)],
    "AWP": [{"adversarial": "awp", "adversarial_strength": x} for x in (0.003, 0.01, 0.03)],
    "R-Drop": [{"r_drop": x} for x in (1.0, 4.0)],
    "label smoothing": [{"label_smoothing": x} for x in (0.1, 0.2)],
    "new top layers": [{"layers": x} for x in (1,)],
}


def drawn(name, labels, seed):
    """Return texts and classes for training, validation and test."""
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
    return train, rest[:VALIDATED], rest[VALIDATED : VALIDATED + TESTED]


def score(preset, name, labels, seed, option):
    """Return the accuracy on the validation set and on the test set."""
    train, *held_out = drawn(name, labels, seed)
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
    found = []
    for rows in held_out:
        texts, kinds = map(list, zip(*rows))
        predicted = [row["label"] for row in model.classify(texts)]
        found.append(100 * float(np.mean([a == b for a, b in zip(kinds, predicted)])))
    return found


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
    done = {json.dumps(row["key"]): row["scores"] for row in rows}
    keys = [
        [preset, name, labels, seed, option]
        for seed in range(seeds)
        for name in ("questions", "reviews")
        for options in OPTIONS.values()
        for option in options
    ]
    for key in keys:
        if json.dumps(key) not in done:
            done[json.dumps(key)] = scores = score(*key)
            with open(path, "a") as file:
                file.write(json.dumps({"key": key, "scores": scores}) + "\n")

    def of(name, option):
        """Return an option's accuracy (seeds, 2)."""
        keys = [[preset, name, labels, seed, option] for seed in range(seeds)]
        return np.array([done[json.dumps(key)] for key in keys])

    lines = []
    for title, options in OPTIONS.items():
        cells = []
        for name in ("questions", "reviews"):
            best = max(options, key=lambda option: of(name, option)[:, 0].mean())
            strength = [x for x in best.values() if not isinstance(x, str)]
            gain = of(name, best)[:, 1] - of(name, {})[:, 1]
            cells += [*(strength or [""]), interval(of(name, best)[:, 1])]
            cells.append(interval(gain) if title != "none" else "")
        lines.append([title, *cells])
    titles = ["strength", "questions", "gain", "strength", "reviews", "gain"]
    table(f"{preset}, {labels} texts per class, {seeds} seeds", ["option", *titles], lines)


if __name__ == "__main__":
    typer.run(main)

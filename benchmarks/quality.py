"""Accuracy of fine-tuning on real text: MiniLM's weights, the same model from random ones, TF-IDF.

    python benchmarks/quality.py                              # reviews and questions, 3 seeds
    KERAS_BACKEND=jax python benchmarks/quality.py --only trec --seeds 5

Reviews are film snippets, fresh or rotten; trec are questions of 6 classes. Every contestant sees
the same texts of a split that the seed draws, and is scored on the same others. MiniLM-L6 and the
random model train alike (AdamW, linear warmup over a tenth of the steps, then linear decay); the
linear model is logistic regression on TF-IDF of words and pairs of words. One more row names the
largest class every time. What each seed gave is appended to `--output`, one line of JSON each.
"""

import json
import os
import random
import warnings
from collections import Counter
from pathlib import Path
from statistics import mean, pstdev
from time import perf_counter
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import real_data
import typer
from contest import console, table
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import kerasbert
from kerasbert.models import BertTextClassifier


def reviews():
    return [(text, kind) for kind, text in real_data.film_reviews() if kind != "plot"]


def trec():
    return [(text, coarse) for coarse, _, text in real_data.trec_questions()]


TASKS = {"reviews": reviews, "trec": trec}
SEQUENCE_LENGTH = 64  # tokens; nearly all of these texts are shorter


def minilm(train, test, labels, seed, settings, pretrained=True):
    """Accuracy on `test` of MiniLM, from its own weights or from random ones."""
    keras.utils.set_random_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the head is new
        classifier = BertTextClassifier.from_preset(
            real_data.minilm_dir(),
            load_weights=pretrained,
            labels=labels,
            sequence_length=SEQUENCE_LENGTH,
        )
    batch_size, epochs = settings["batch_size"], settings["epochs"]
    steps = -(-len(train[0]) // batch_size) * epochs
    rate = kerasbert.optimizers.LinearDecay(settings["rate"], steps, warmup_steps=steps // 10)
    classifier.compile(
        optimizer=kerasbert.optimizers.AdamW(rate), jit_compile=settings["jit_compile"]
    )
    classifier.fit(*train, batch_size=batch_size, epochs=epochs, verbose=0)
    return classifier.evaluate(*test, verbose=0, return_dict=True)["accuracy"]


def random_weights(train, test, labels, seed, settings):
    return minilm(train, test, labels, seed, settings, pretrained=False)


def linear(train, test, labels, seed, settings):
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10, max_iter=1000, random_state=seed),
    )
    return model.fit(*train).score(*test)


def largest_class(train, test, labels, seed, settings):
    name = Counter(train[1]).most_common(1)[0][0]
    return float(np.mean([label == name for label in test[1]]))


CONTESTANTS = {
    "MiniLM-L6, its weights": minilm,
    "MiniLM-L6, random weights": random_weights,
    "TF-IDF, logistic regression": linear,
    "largest class": largest_class,
}


def main(
    only: Annotated[str, typer.Option(help="comma-separated tasks")] = "reviews,trec",
    train: Annotated[int, typer.Option(help="texts to train on")] = 3000,
    test: Annotated[int, typer.Option(help="texts to score on")] = 2000,
    seeds: int = 3,
    epochs: int = 3,
    batch_size: int = 32,
    rate: float = 5e-5,
    jit_compile: bool = False,
    output: Annotated[Path | None, typer.Option(help="a file for each seed's result")] = None,
):
    """Train and score every contestant on every task; print means over the seeds."""
    settings = {
        "epochs": epochs,
        "batch_size": batch_size,
        "rate": rate,
        "jit_compile": jit_compile or keras.backend.backend() == "jax",
    }
    for task in only.split(","):
        pairs = TASKS[task]()
        labels = sorted({label for _, label in pairs})
        found = {}
        for seed in range(seeds):
            drawn = random.Random(seed).sample(pairs, min(train + test, len(pairs)))
            texts, names = map(list, zip(*drawn, strict=True))
            parts = (texts[:train], names[:train]), (texts[train:], names[train:])
            for name, run in CONTESTANTS.items():
                start = perf_counter()
                accuracy = run(*parts, labels, seed, settings)
                found.setdefault(name, []).append(accuracy)
                row = {
                    "task": task,
                    "seed": seed,
                    "contestant": name,
                    "accuracy": accuracy,
                    "seconds": round(perf_counter() - start, 1),
                    "train": len(parts[0][0]),
                    "test": len(parts[1][0]),
                    "backend": keras.backend.backend(),
                    **settings,
                }
                console.print(json.dumps(row), soft_wrap=True)
                if output:
                    with open(output, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
        rows = [
            (name, f"{mean(each):.3f}", f"{pstdev(each):.3f}", " ".join(f"{x:.3f}" for x in each))
            for name, each in found.items()
        ]
        title = f"{task}: {train:,} to train, {len(parts[1][0]):,} held out, {epochs} epochs"
        table(title, ("contestant", "mean accuracy", "standard deviation", "each seed"), rows)


if __name__ == "__main__":
    typer.run(main)

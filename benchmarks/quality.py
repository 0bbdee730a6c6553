"""Accuracy of fine-tuning on real text: MiniLM's weights, the same model from random ones, others.

    python benchmarks/quality.py                              # all tasks, 3 seeds
    KERAS_BACKEND=jax python benchmarks/quality.py --only trec --seeds 5

Reviews are film snippets, fresh or rotten; trec are questions of 6 classes; brown is the part of
speech of each word. Every contestant sees the same texts of a split that the seed draws, and is
scored on the same others. MiniLM-L6 and the random model train alike (AdamW, linear warmup over a
tenth of the steps, then linear decay). The linear model is logistic regression on TF-IDF of words
and pairs of words; the most frequent tag is that of the word in training, of all words for one
that is not there. What each seed gave is appended to `--output`, one line of JSON each.
"""

import json
import os
import random
import re
import warnings
from collections import Counter, defaultdict
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
from kerasbert.models import BertTextClassifier, BertTokenClassifier


def reviews():
    return [(text, kind) for kind, text in real_data.film_reviews() if kind != "plot"]


def trec():
    return [(text, coarse) for coarse, _, text in real_data.trec_questions()]


def brown():
    """Words and tags of sentences; of "nn-tl", a noun in a title, and "pps+bez" the first part."""
    for document in real_data.brown_tagged():
        for sentence in document:
            words, tags = zip(*sentence)
            yield list(words), [re.split(r"(?<=.)[-+](?=\w)", tag)[0] for tag in tags]


SEQUENCE_LENGTH = 64  # tokens; nearly all of these texts are shorter


def minilm(train, test, labels, seed, settings, pretrained=True):
    """Accuracy on `test` of MiniLM, from its own weights or from random ones."""
    keras.utils.set_random_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the head is new
        cls = BertTextClassifier if isinstance(train[0][0], str) else BertTokenClassifier
        classifier = cls.from_preset(
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


def most_frequent_tag(train, test, labels, seed, settings):
    of_word, of_all = defaultdict(Counter), Counter()
    for words, tags in zip(*train):
        for word, tag in zip(words, tags):
            of_word[word][tag] += 1
            of_all[tag] += 1
    best = of_all.most_common(1)[0][0]
    best_of = {word: tags.most_common(1)[0][0] for word, tags in of_word.items()}
    return float(
        np.mean(
            [
                best_of.get(word, best) == tag
                for words, tags in zip(*test)
                for word, tag in zip(words, tags)
            ]
        )
    )


MINILM = {"MiniLM-L6, its weights": minilm, "MiniLM-L6, random weights": random_weights}
OF_TEXTS = {**MINILM, "TF-IDF, logistic regression": linear, "largest class": largest_class}
# What makes the pairs, and who takes part.
TASKS = {
    "reviews": (reviews, OF_TEXTS),
    "trec": (trec, OF_TEXTS),
    "brown": (brown, {**MINILM, "most frequent tag of the word": most_frequent_tag}),
}


def main(
    only: Annotated[str, typer.Option(help="comma-separated tasks")] = "reviews,trec,brown",
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
        read, contestants = TASKS[task]
        pairs = list(read())
        labels = sorted({one for _, label in pairs for one in np.ravel(label).tolist()})
        found = {}
        for seed in range(seeds):
            drawn = random.Random(seed).sample(pairs, min(train + test, len(pairs)))
            texts, names = map(list, zip(*drawn, strict=True))
            parts = (texts[:train], names[:train]), (texts[train:], names[train:])
            for name, run in contestants.items():
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

"""Train a two-layer BiLSTM on precomputed features of a frozen encoder: six choices of layers.

    python examples/features_bilstm.py                     # 10 minutes on 2 busy cores
    KERAS_BACKEND=jax python examples/features_bilstm.py   # the same on JAX, or on torch
    python examples/features_bilstm.py --sentences 6000 --units 256

Section 5.3 of the BERT paper (arXiv 1810.04805), with part-of-speech tags of the Brown corpus in
place of named entities, and with MiniLM-L6 (6 layers x 384). Training and held-out sentences come
from different documents. Expected output with TensorFlow and seed 0:

    most frequent tag    accuracy 0.818, of words not in the training data 0.285
    embeddings                    0.927                                    0.726
    second_to_last                0.924                                    0.760
    last                          0.890                                    0.706
    sum_last_four                 0.935                                    0.792
    concat_last_four              0.936                                    0.793
    sum_all                       0.941                                    0.794
"""

import os
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import kerasbert.models  # noqa: F401  Before Keras, as it sets how PyTorch's threads wait.

# isort: split
import keras
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from kerasbert.models import BertBackbone, BertTextEmbedder, BertTextEmbedderPreprocessor

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import real_data

# The paper's F1 on the named entities of CoNLL-2003, in the order of its table.
LAYERS = {
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "sum_last_four": 95.9,
    "concat_last_four": 96.1,
    "sum_all": 95.5,
}
LONGEST = 40  # Words. Longer sentences are left out, as all are padded to the longest.


def brown(sentences, seed):
    """Read training and held-out sentences of `(word, tag)`; every fifth document is held out."""
    documents = real_data.brown_tagged()
    parts = []
    for held_out, count in ((False, sentences), (True, max(1, sentences // 3))):
        found = [
            # "nn-tl", a noun in a title, and "pps+bez", "it's", count as "nn" and "pps".
            [(word, re.split(r"(?<=.)[-+](?=\w)", tag)[0]) for word, tag in sentence]
            for i, document in enumerate(documents)
            if (i % 5 == 0) == held_out
            for sentence in document
            if len(sentence) <= LONGEST
        ]
        parts.append(random.Random(seed).sample(found, min(count, len(found))))
    return parts


def word_vectors(embedder, sentences):
    """Return the features of each word's first piece: (N, T, D'), with zeros as padding."""
    texts = [" ".join(words) for words in sentences]
    _, starts, _ = embedder.preprocessor.tokenizer.tokenize_with_offsets(texts)
    features = np.zeros(
        (len(texts), max(map(len, sentences)), embedder.output.shape[-1]), "float32"
    )
    for row, words, begins, vectors in zip(features, sentences, starts, embedder.embed(texts)):
        places = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
        row[: len(words)] = vectors[1 + np.searchsorted(begins, places)]  # [CLS] comes first.
    return features


def tagger(width, tags, units):
    """Build a two-layer BiLSTM on features (N, T, `width`)."""
    return keras.Sequential(
        [
            keras.Input((None, width)),
            keras.layers.Masking(),
            keras.layers.Bidirectional(keras.layers.LSTM(units, return_sequences=True)),
            keras.layers.Bidirectional(keras.layers.LSTM(units, return_sequences=True)),
            keras.layers.Dense(tags),
        ]
    )


def most_frequent_tag(train, test):
    """Tag each word with its most frequent tag in the training sentences, as a baseline."""
    of_word, of_all = defaultdict(Counter), Counter()
    for sentence in train:
        for word, tag in sentence:
            of_word[word][tag] += 1
            of_all[tag] += 1
    return [
        [
            (of_word[word] if word in of_word else of_all).most_common(1)[0][0]
            for word, _ in sentence
        ]
        for sentence in test
    ]


def accuracy(guesses, test, known=()):
    """Return the share of correct tags among the words that are not in `known`."""
    pairs = [
        (guess, tag)
        for tags, sentence in zip(guesses, test)
        for guess, (word, tag) in zip(tags, sentence)
        if word not in known
    ]
    return sum(guess == tag for guess, tag in pairs) / max(1, len(pairs))


def main(
    sentences: Annotated[
        int, typer.Option(help="training sentences; a third as many are held out")
    ] = 2000,
    preset: Annotated[str, typer.Option(help="preset name or folder; default: MiniLM-L6")] = "",
    units: Annotated[int, typer.Option(help="LSTM units per direction; 768 in the paper")] = 128,
    epochs: int = 8,
    seed: int = 0,
):
    """Train a tagger on the features of each choice of layers and print the accuracies."""
    train, test = brown(sentences, seed)
    tags = sorted({tag for sentence in train for _, tag in sentence})
    number = {tag: i for i, tag in enumerate(tags)}
    known = {word for sentence in train for word, _ in sentence}
    y = np.zeros((len(train), max(map(len, train))), "int32")
    mask = np.zeros(y.shape, "float32")
    for i, sentence in enumerate(train):
        y[i, : len(sentence)] = [number[tag] for _, tag in sentence]
        mask[i, : len(sentence)] = 1
    words = [[word for word, _ in sentence] for sentence in (*train, *test)]

    preset = preset or real_data.minilm_dir()
    backbone = BertBackbone.from_preset(preset, pooler=False)
    preprocessor = BertTextEmbedderPreprocessor.from_preset(preset)
    table = Table(
        *("features", "width", "accuracy", "new words", "features, s", "training, s", "paper, NER"),
        title=f"{len(train)} training sentences, {len(test)} held out, {len(tags)} tags",
    )
    guesses = most_frequent_tag(train, test)
    scores = accuracy(guesses, test), accuracy(guesses, test, known)
    table.add_row("most frequent tag", "-", *(f"{x:.4f}" for x in scores), "-", "-", "-")
    for layers, paper in LAYERS.items():
        keras.utils.set_random_seed(seed)
        start = perf_counter()
        embedder = BertTextEmbedder(backbone, preprocessor, pooling="tokens", layers=layers)
        features = word_vectors(embedder, words)  # Computed once, not in every epoch.
        features /= features[: len(train)].std()  # One learning rate then fits all layers.
        between = perf_counter()
        model = tagger(features.shape[-1], len(tags), units)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss)
        model.fit(
            features[: len(train), : y.shape[1]],
            y,
            sample_weight=mask,
            batch_size=32,
            epochs=epochs,
            verbose=2,
        )
        logits = model.predict(features[len(train) :], batch_size=128, verbose=0)
        guesses = [
            [tags[i] for i in row[: len(sentence)]]
            for row, sentence in zip(logits.argmax(-1), test)
        ]
        table.add_row(
            layers,
            str(features.shape[-1]),
            f"{accuracy(guesses, test):.4f}",
            f"{accuracy(guesses, test, known):.4f}",
            f"{between - start:.0f}",
            f"{perf_counter() - between:.0f}",
            f"{paper}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

"""Pre-train ELMo, GPT, BERT, XLNet and ELECTRA at one size on the same text, and probe each.

    python examples/family_tree.py text.txt en_ewt-ud-test.conllu.gz en_ewt-ud-dev.conllu.gz
    python examples/family_tree.py TEXT TRAIN DEV --epochs 20 --seeds 0,1,2

TEXT has one sentence per line, in any language; treebanks of the same language are at
https://universaldependencies.org (CoNLL-U files, each with its own license). Each model has two
layers of 128, is pre-trained on TEXT for the same number of steps and words, and is then frozen.
Linear classifiers on the last layer's embedding of each word predict its part of speech, its
dependency relation to its head, and the part of speech of the next word. Two rows are baselines
without pre-training: the most frequent answer, and a BERT with random weights (`BERT at its
start`). `BERT on sinusoids` has the position encoding of Vaswani et al. 2017 in place of learned
position embeddings. Words are separated by white space: segment Japanese first, with
`fugashi -Owakati`.

benchmarks/notes/family_tree.md has the results for English, Korean and Japanese after 1,200 steps.
Models that predict every word have mostly higher scores after so few steps; BERT learns only from
the masked tokens, a seventh of all. In many epochs over little text, GPT memorizes the text. The
papers' scores on GLUE's dev sets, each with its own size and text: ELMo 71.2, GPT 78.8, BERT base
82.2, ELECTRA base 85.1 (Clark et al. 2020, table 1).
"""

import os
import tempfile
import time
from collections import Counter
from statistics import mean
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import kerasbert.models  # Before Keras, as it sets how PyTorch's threads wait.

# isort: split
import keras
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from kerasbert.layers import SinusoidalPositions
from kerasbert.lineage import (
    ElmoBackbone,
    ElmoEmbedder,
    ElmoPretrainer,
    XLNetBackbone,
    XLNetPretrainer,
    word_vocabulary,
)
from kerasbert.lineage.xlnet.preprocessor import XLNetPretrainerPreprocessor
from kerasbert.models import BertBackbone, BertCausalLM, BertMaskedLM, ElectraPretrainer
from kerasbert.optimizers import AdamW, LinearDecay
from kerasbert.tasks import read_conllu
from kerasbert.tokenizers import BertTokenizer

LENGTH = 64  # Tokens per row.
WORDS = 40  # Words per row; most rows then have fewer than LENGTH tokens.
SIZE = {"num_layers": 2, "num_heads": 2, "hidden_dim": 128, "intermediate_dim": 512}
# With BERT's 0.02, small encoders learn nothing for some hundred steps.
START = {"dropout": 0.0, "initializer_range": 0.05}


def rows_of(path, limit):
    """Join sentences into at most `limit` rows of `WORDS` words."""
    rows, words = [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            words += line.split()
            while len(words) >= WORDS:
                rows.append(" ".join(words[:WORDS]))
                words = words[WORDS:]
            if len(rows) >= limit:
                return rows[:limit]
    return rows


# === Models: each function takes a tokenizer and returns the model to train and its encoder ===


def bert(tokenizer, family="bert", **settings):
    return BertBackbone.from_family(
        family,
        vocabulary_size=tokenizer.vocabulary_size(),
        max_sequence_length=LENGTH,
        **SIZE,
        **START,
        **settings,
    )


def masked(tokenizer):
    model = BertMaskedLM(bert(tokenizer, pooler=False), tokenizer_packer(BertMaskedLM, tokenizer))
    return model, model.backbone


def masked_on_sinusoids(tokenizer):
    model, encoder = masked(tokenizer)
    table = encoder.position_embedding_layer
    # Scaled to the magnitude of the initial word embeddings.
    waves = SinusoidalPositions(LENGTH)(np.zeros((1, LENGTH, SIZE["hidden_dim"]), "float32"))[0]
    table.set_weights([START["initializer_range"] * keras.ops.convert_to_numpy(waves)])
    table.trainable = False
    return model, encoder


def causal(tokenizer):
    encoder = bert(tokenizer, "gpt2")
    packer = BertCausalLM.preprocessor_cls(tokenizer, LENGTH, add_start_token=True)
    return BertCausalLM(encoder, packer), encoder


def permuted(tokenizer):
    encoder = XLNetBackbone(
        vocabulary_size=tokenizer.vocabulary_size(), memory_length=0, **SIZE, **START
    )
    packer = XLNetPretrainerPreprocessor(tokenizer, sequence_length=LENGTH)
    return XLNetPretrainer(encoder, packer), encoder


def replaced(tokenizer):
    encoder = bert(tokenizer, "electra")
    packer = tokenizer_packer(ElectraPretrainer, tokenizer)
    return ElectraPretrainer(encoder, packer, {"num_layers": 1, "hidden_dim": 64}), encoder


def tokenizer_packer(cls, tokenizer):
    return cls.preprocessor_cls(tokenizer, sequence_length=LENGTH)


MODELS = {
    "BERT at its start": masked,
    "GPT": causal,
    "BERT": masked,
    "BERT on sinusoids": masked_on_sinusoids,
    "XLNet": permuted,
    "ELECTRA": replaced,
}


def elmo(rows, vocabulary_size):
    """Build an ELMo of width 64 per direction, with the words of `rows` as its vocabulary."""
    encoder = ElmoBackbone(
        num_layers=2,
        units=128,
        projection_dim=64,
        filters=[(1, 16), (2, 32), (3, 64)],
        character_dim=16,
        dropout=0.0,
    )
    return ElmoPretrainer(encoder, word_vocabulary(rows, vocabulary_size)), encoder


def pretrained(model, rows, epochs, rate, batch_size=64):
    steps = epochs * -(-len(rows) // batch_size)
    model.compile(AdamW(LinearDecay(rate, steps, steps // 10), weight_decay=0.01))
    return model.fit(rows, batch_size=batch_size, epochs=epochs, verbose=0).history["loss"][-1]


# === Probing ===


def word_vectors(encoder, tokenizer, sentences, batch_size=64):
    """Return an array (W, D) per sentence: the mean embedding of each word's pieces."""
    if isinstance(encoder, ElmoBackbone):
        return ElmoEmbedder(encoder, layers="last").embed(sentences)
    known = sorted({word for sentence in sentences for word in sentence})
    pieces = dict(zip(known, tokenizer(known)))
    ends = isinstance(encoder, XLNetBackbone)
    first, last = tokenizer.start_token_id, tokenizer.end_token_id
    before, after = ([], [last, first]) if ends else ([first], [last])
    found = []
    for begin in range(0, len(sentences), batch_size):
        # Empty rows pad the last batch, so that all batches have one shape.
        some = sentences[begin : begin + batch_size]
        ids = np.zeros((batch_size, LENGTH), "int32")
        mask, places = np.zeros_like(ids), []
        for i, sentence in enumerate(some):
            parts = [pieces[word] for word in sentence]
            row = [*before, *(piece for part in parts for piece in part)][: LENGTH - len(after)]
            row += after
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
            places.append(np.cumsum([len(before), *map(len, parts)]))
        x = {"token_ids": ids, "padding_mask": mask}
        if encoder.num_segments:
            x["segment_ids"] = np.zeros_like(ids)
        states = keras.ops.convert_to_numpy(encoder.predict_on_batch(x)["sequence_output"])
        for state, at in zip(states, places):
            # A word without subwords gets the embedding of the next subword, and a word beyond the
            # end of the row that of the row's last token.
            at = np.minimum(at, LENGTH - 1)
            found.append(np.stack([state[a : max(b, a + 1)].mean(0) for a, b in zip(at, at[1:])]))
    return found


def labels_of(trees):
    """Return the labels of all words, a dict of task to list."""
    tags = [list(tree.tags) for tree in trees]
    return {
        "part of speech": [tag for row in tags for tag in row],
        # Without language-specific subtypes, such as "pass" of "nsubj:pass".
        "relation": [name.split(":")[0] for tree in trees for name in tree.relations],
        "part of speech of the next word": [tag for row in tags for tag in [*row[1:], "end"]],
    }


def linear_accuracy(vectors, labels, others, wanted, epochs=15):
    """Train a linear classifier on `vectors` and `labels`; return its accuracy on `others`."""
    known = {label: number for number, label in enumerate(sorted(set(labels)))}
    middle, spread = vectors.mean(0), vectors.std(0) + 1e-6
    classifier = keras.Sequential([keras.layers.Dense(len(known))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(3e-3), loss)
    targets = np.array([known[label] for label in labels])
    classifier.fit((vectors - middle) / spread, targets, batch_size=256, epochs=epochs, verbose=0)
    logits = keras.ops.convert_to_numpy(classifier((others - middle) / spread))
    targets = np.array([known.get(label, -1) for label in wanted])
    return float((logits.argmax(-1) == targets).mean())


def scores_of(encoder, tokenizer, learned, held_out):
    """Return the accuracies on the three tasks, in the order of `labels_of`."""
    vectors, others = (
        np.concatenate(word_vectors(encoder, tokenizer, [list(tree.words) for tree in trees]))
        for trees in (learned, held_out)
    )
    train, dev = labels_of(learned), labels_of(held_out)
    return [linear_accuracy(vectors, train[task], others, dev[task]) for task in train]


def most_frequent(learned, held_out):
    train, dev = labels_of(learned), labels_of(held_out)
    majority = {task: Counter(labels).most_common(1)[0][0] for task, labels in train.items()}
    return [dev[task].count(majority[task]) / len(dev[task]) for task in train]


def main(
    text: Annotated[str, typer.Argument(help="text file with one sentence per line")],
    train: Annotated[str, typer.Argument(help="CoNLL-U file to train the classifiers on")],
    dev: Annotated[str, typer.Argument(help="CoNLL-U file to score on")],
    epochs: int = 12,
    rows: Annotated[int, typer.Option(help="maximum number of rows of 40 words from TEXT")] = 3200,
    vocabulary_size: int = 4000,
    rate: Annotated[float, typer.Option(help="peak learning rate")] = 1e-3,
    seeds: Annotated[str, typer.Option(help="such as 0,1,2")] = "0",
    only: Annotated[str, typer.Option(help="names of models, such as BERT,XLNet")] = "",
):
    """Pre-train each model and print the accuracy of the classifiers on its embeddings."""
    console = Console()
    texts = rows_of(text, rows)
    learned, held_out = (
        [tree for tree in read_conllu(path) if 3 <= len(tree.words) <= 40] for path in (train, dev)
    )
    with tempfile.TemporaryDirectory() as folder:
        made = kerasbert.vocab(text, folder, size=vocabulary_size, unused=0)["file"]
        tokenizer = BertTokenizer.from_files(os.path.dirname(made))
    names = only.split(",") if only else ["ELMo", *MODELS]
    found = {name: [] for name in names}
    for seed in map(int, seeds.split(",")):
        for name in names:
            keras.utils.set_random_seed(seed)
            start = time.perf_counter()
            if name == "ELMo":
                model, encoder = elmo(texts, vocabulary_size)
            else:
                model, encoder = MODELS[name](tokenizer)
            loss = float("nan")
            if name != "BERT at its start":
                loss = pretrained(model, texts, epochs, rate)
            seconds = time.perf_counter() - start
            found[name].append(scores_of(encoder, tokenizer, learned, held_out))
            shown = " ".join(f"{score:.3f}" for score in found[name][-1])
            console.print(f"seed {seed}, {name}: loss {loss:.2f} in {seconds:.0f} s, {shown}")
    table = Table("embeddings of", *labels_of(held_out))
    table.add_row("the most frequent", *(f"{x:.3f}" for x in most_frequent(learned, held_out)))
    for name, runs in found.items():
        cells = [f"{mean(x):.3f} ({min(x):.3f}-{max(x):.3f})" for x in zip(*runs)]
        table.add_row(name, *cells)
    console.print(
        f"{len(texts)} rows of {WORDS} words, {epochs} epochs; {len(learned)} training "
        f"sentences, {len(held_out)} to score on"
    )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)

"""How much syntax is in each layer? Structural probes on a treebank (Hewitt and Manning 2019).

    python examples/probe_syntax.py en_ewt-ud-test.conllu.gz en_ewt-ud-dev.conllu.gz
    python examples/probe_syntax.py TRAIN DEV --preset hf://google-bert/bert-base-uncased

Treebanks of many languages are at https://universaldependencies.org (CoNLL-U files, each with its
own license). For each layer, a matrix is trained to predict the distances between words in the
trees. UUAS is the share of the edges of held-out trees that these distances recover. The first two
rows are baselines without syntax: a tree that joins each word to the next one, and layer 0, the
embeddings.

Expected with MiniLM-L6 (all-MiniLM-L6-v2), trained on the test part of English EWT and scored on
400 sentences of its dev part, seed 0, on TensorFlow:

    each word to the next    UUAS 0.420    Spearman 0.566
    0                             0.470             0.621
    1                             0.507             0.647
    2                             0.571             0.711
    3                             0.592             0.739
    4                             0.548             0.701
    5                             0.374             0.443
    6                             0.271             0.252
"""

import os
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import kerasbert.models  # Before Keras, as it sets how PyTorch's threads wait.

# isort: split
import keras
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from kerasbert.metrics import distance_spearman, uuas
from kerasbert.models import BertStructuralProbe
from kerasbert.tasks import read_conllu


def chain(tree):
    """Return the distances in a tree that joins each word to the next one: (W, W)."""
    places = np.arange(len(tree.words))
    return np.abs(places[:, None] - places)


def sentences(path, count, most=50):
    """Read the first `count` trees of a file that have 2 to `most` words."""
    return [tree for tree in read_conllu(path) if 2 <= len(tree.words) <= most][:count]


def main(
    train: Annotated[str, typer.Argument(help="CoNLL-U file to train on")],
    dev: Annotated[str, typer.Argument(help="CoNLL-U file to score on")],
    preset: Annotated[str, typer.Option(help="preset name or folder of an encoder")] = (
        "bert_tiny_demo_en_uncased"
    ),
    count: Annotated[int, typer.Option(help="training sentences; a third to score on")] = 1200,
    layers: Annotated[str, typer.Option(help="such as 0,3,6; default: all")] = "",
    rank: Annotated[int, typer.Option(help="rank of the matrix")] = 64,
    epochs: int = 20,
    seed: int = 0,
    picture: Annotated[str, typer.Option(help="image file for the arcs of one sentence")] = "",
):
    """Train a probe on each layer and print its scores."""
    learned, held_out = sentences(train, count), sentences(dev, max(1, count // 3))
    table = Table("layer", "UUAS", "Spearman of distances")
    distances = [chain(tree) for tree in held_out]
    scores = {"each word to the next": [f(held_out, distances) for f in (uuas, distance_spearman)]}
    first = BertStructuralProbe.from_preset(preset, rank=rank, new_head=True)
    backbone = first.backbone
    chosen = [int(one) for one in layers.split(",")] if layers else range(backbone.num_layers + 1)
    best = None
    for layer in chosen:
        keras.utils.set_random_seed(seed)
        probe = BertStructuralProbe(backbone, first.preprocessor, layer=layer, rank=rank)
        probe.compile(keras.optimizers.Adam(0.001))
        probe.fit(learned, learned, epochs=epochs, verbose=0)
        distances = probe.predict(held_out, verbose=0)
        scores[str(layer)] = [f(held_out, distances) for f in (uuas, distance_spearman)]
        if best is None or scores[str(layer)] > scores[str(best[0])]:
            best = layer, probe
    for name, row in scores.items():
        table.add_row(name, *(f"{value:.3f}" for value in row))
    console = Console()
    console.print(f"{len(learned)} training sentences, {len(held_out)} to score on")
    console.print(table)
    if picture:
        tree = next((one for one in held_out if 6 <= len(one.words) <= 14), held_out[0])
        edges = best[1].parse(list(tree.words))
        kerasbert.visualize.dependency_arcs(tree, edges).savefig(Path(picture))
        console.print(f"layer {best[0]}: {picture}")


if __name__ == "__main__":
    typer.run(main)

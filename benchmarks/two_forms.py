"""Latency of algorithms that exist in NumPy and in TensorFlow's graph, on one text and on a
thousand.

    python benchmarks/two_forms.py

The NumPy form is called as in the model's method, for each text or for all texts. The graph form is
a `tf.function` that was traced before; its time includes the transfer of arrays. CONTRIBUTING.md
has the table.
"""

import os
from statistics import median
from time import perf_counter

import numpy as np
import tensorflow as tf

from kerasbert.heads.base import decoding, spans
from kerasbert.heads.masked_lm import model as masked_lm
from kerasbert.heads.masked_lm import served as served_masked_lm
from kerasbert.lineage.elmo.characters import character_ids, character_ids_in_graph
from kerasbert.metrics.trees import spanning_edges
from kerasbert.text import tagging
from kerasbert.text.characters import code_points

TEXT = "Anna met Bob in Rome, Italy (not in Paris), and they talked of 東京; O'Neill's idea."
NAMES = tagging.tag_names(["PER", "LOC", "ORG"], "BIO")
RANDOM = np.random.default_rng(0)


def in_graph(function, *arrays):
    """Return `function` traced for arrays of any sizes, with NumPy arrays as its results."""
    arrays = [np.asarray(x) for x in arrays]
    specs = [tf.TensorSpec([None] * x.ndim, tf.as_dtype(tf.constant(x).dtype)) for x in arrays]
    traced = tf.function(function, input_signature=specs, autograph=False)
    return lambda: tf.nest.map_structure(lambda x: x.numpy(), traced(*map(tf.constant, arrays)))


def best_spans(count):
    logits = RANDOM.normal(size=(2, count, 384)).astype("float32")
    inside = np.broadcast_to((np.arange(384) > 20) & (np.arange(384) < 380), (count, 384))
    rows = [slice(i, i + 1) for i in range(count)]
    return (
        lambda: [
            spans.best_spans(*(x[row] for x in (*logits, inside, inside)), 20, 30) for row in rows
        ],
        in_graph(
            lambda *x: decoding.best_spans(*x, 20, 30, None, 1),
            *(*logits, inside, inside, np.arange(count + 1)),
        ),
    )


def mask_windows(count):
    lengths, places = np.full(count, 600), [[100, 400]] * count

    def run(lengths, places):
        places = tf.RaggedTensor.from_tensor(places)
        return served_masked_lm.mask_windows(lengths, places, 510)

    return (
        lambda: [masked_lm.mask_windows(600, x, 510) for x in places],
        in_graph(run, lengths, places),
    )


def words(count):
    texts = [TEXT] * count
    return (
        lambda: [tagging.word_spans(text) for text in texts],
        in_graph(lambda x: decoding.word_units(code_points(x)), texts),
    )


def entities(count):
    classes, scores = RANDOM.integers(0, len(NAMES), (count, 30)), RANDOM.random((count, 30))
    tags = tagging.TagSet(NAMES)
    rows, starts = np.repeat(np.arange(count), 30), np.tile(3 * np.arange(30), count)
    return (
        lambda: [
            [(kind, row[a:b].mean()) for kind, a, b in tags.entities(best)]
            for best, row in zip(classes, scores)
        ],
        in_graph(
            lambda *x: [y.flat_values for y in decoding.entities(*x, NAMES, count)],
            *(classes.ravel(), scores.ravel(), rows, starts, starts + 2),
        ),
    )


def trees(count):
    distances = RANDOM.random((count, 20, 20)).astype("float32")
    distances += distances.transpose(0, 2, 1)
    return (
        lambda: [spanning_edges(one) for one in distances],
        in_graph(decoding.spanning_trees, distances, np.full(count, 20, "int32")),
    )


def characters(count):
    sentences = [TEXT.split()] * count
    return (
        lambda: character_ids(sentences),
        in_graph(
            lambda words: character_ids_in_graph(
                tf.RaggedTensor.from_uniform_row_length(words, len(sentences[0])), 50
            ),
            np.ravel(sentences).astype(object),
        ),
    )


def milliseconds(call, times):
    """Return the median time of some calls, after two calls that are not counted."""
    taken = []
    for _ in range(times + 2):
        start = perf_counter()
        call()
        taken.append(1e3 * (perf_counter() - start))
    return median(taken[2:])


def main():
    print(f"{os.cpu_count()} cores, TensorFlow {tf.__version__}; milliseconds")
    print(
        "| algorithm | NumPy, 1 | graph, 1 | NumPy, 1,000 | graph, 1,000 |\n|---|---|---|---|---|"
    )
    for case in (best_spans, mask_windows, words, entities, trees, characters):
        found = [
            milliseconds(call, times)
            for count, times in ((1, 100), (1000, 7))
            for call in case(count)
        ]
        print(f"| {case.__name__} |", " | ".join(f"{x:.3g}" for x in found), "|", flush=True)


if __name__ == "__main__":
    main()

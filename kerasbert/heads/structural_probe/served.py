"""Serving of `BertStructuralProbe`: the words of a text with their edges or depths.

N texts, T tokens per row, W words per text, U words of all texts.
"""

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base import decoding
from kerasbert.heads.base.served import PROSE, SHORT, Served
from kerasbert.metrics.trees import spanning_edges
from kerasbert.text.characters import code_points, substrings
from kerasbert.text.pieces import units_of_texts


class ServedProbe(Served):
    """SavedModel signatures of `BertStructuralProbe`."""

    fills = {"word": "", "start": -1, "end": -1, "first": -1, "second": -1, "depth": -1.0}

    @property
    def kind(self):
        return self.model.probe.kind

    @property
    def output(self):
        return {"distance": "distances", "depth": "depths"}[self.kind]

    def random_features(self):
        batches = super().random_features()
        for batch in batches:
            rows, length = batch["token_ids"].shape
            # Words have one and two pieces in turn; words that do not fit are padding.
            counts = np.tile(np.arange(length) % 2 + 1, (rows, 1))
            starts = 1 + np.cumsum(counts, axis=1) - counts
            there = starts + counts < length
            batch["word_starts"] = np.where(there, starts, 0).astype("int32")
            batch["word_counts"] = np.where(there, counts, 0).astype("int32")
        return batches

    def pack(self, text):
        return self._packed(text)[0]

    def _packed(self, text):
        """Return the network's inputs, and the text indices, starts and ends of the words, (U,)."""
        preprocessor = self.preprocessor
        points = code_points(text)
        ids, starts, ends = decoding.with_long_rows(
            preprocessor.tokenizer.tokenize_with_offsets(text)
        )
        pieces = ids.value_rowids(), starts.flat_values, ends.flat_values
        units = tuple(decoding.word_units(points))
        rows, starts, ends, first, count, _ = units_of_texts(pieces, units)
        first -= tf.gather(ids.row_starts(), rows)  # Count from the start of the word's text.
        of_words = (
            tf.RaggedTensor.from_value_rowids(tf.cast(x, "int32"), rows, ids.nrows(), False)
            for x in (first, count)
        )
        features = self.features_in_graph(preprocessor.pack((ids, *of_words)))
        return features, (points, rows, starts, ends)

    def answer(self, text):
        features, (points, rows, starts, ends) = self._packed(text)
        words = features["word_counts"] > 0  # (N, T)
        count = tf.reduce_sum(tf.cast(words, "int32"), axis=1)
        # At least one column: servers cannot split empty outputs.
        most = tf.reduce_max(tf.concat([count, [1]], 0))
        words = words[:, :most]  # (N, W)
        columns = {
            "word": substrings(points, rows, starts, ends),
            "start": tf.cast(starts, "int32"),
            "end": tf.cast(ends, "int32"),
        }
        for name, values in columns.items():
            of_texts = tf.RaggedTensor.from_value_rowids(values, rows, points.nrows(), False)
            values = of_texts.to_tensor(self.fills[name], shape=tf.stack([-1, most]))
            columns[name] = tf.where(words, values, self.fills[name])
        found = self.graph(features)[self.output]
        if self.kind == "depth":
            columns["depth"] = tf.where(words, found[:, :most], self.fills["depth"])
        else:
            edges = decoding.spanning_trees(found[:, :most, :most], count)
            columns.update(zip(("first", "second"), edges))
        return {**columns, "count": count}

    def probes(self):
        return [("serving_default", {"text": [*SHORT, PROSE]})]

    def expected(self, signature, inputs):
        preprocessor, texts = self.preprocessor, inputs["text"]
        pieces = preprocessor.read(texts)
        features = preprocessor(texts)
        counts = (np.asarray(features["word_counts"]) > 0).sum(axis=1)
        found = self.model.predict(features, verbose=0)
        rows, clear = [], []
        for text, begin, count, numbers in zip(texts, pieces.unit_splits, counts, found):
            places = slice(begin, begin + count)
            starts, ends = (x[places].tolist() for x in (pieces.starts, pieces.ends))
            row = {"word": [text[a:b] for a, b in zip(starts, ends)], "start": starts, "end": ends}
            if self.kind == "depth":
                row["depth"] = numbers[:count].tolist()
            else:
                distances = numbers[:count, :count]
                edges = sorted(spanning_edges(distances))
                row["first"], row["second"] = (list(x) for x in zip(*edges)) if edges else ([], [])
                clear.append(_lead(distances, edges) > self.margin)
            rows.append(row)
        columns = {}
        for name in rows[0]:
            most = max(1, *(len(row[name]) for row in rows))
            fill = [self.fills[name]]
            columns[name] = [row[name] + fill * (most - len(row[name])) for row in rows]
        if self.kind == "distance":
            columns["clear"] = clear
        return {**columns, "count": counts.tolist()}


def _lead(distances, edges):
    """Return the smallest gap between a tree edge and a replacement."""
    tree = np.full(distances.shape, np.inf)
    np.fill_diagonal(tree, 0)
    for edge in edges:
        tree[edge] = tree[edge[::-1]] = distances[edge]
    outside = np.isinf(tree)
    # The longest edge on the path between any two words (Floyd-Warshall).
    longest = tree
    for word in range(len(tree)):
        longest = np.minimum(longest, np.maximum(longest[:, word, None], longest[word]))
    return (distances - longest)[outside].min(initial=np.inf)

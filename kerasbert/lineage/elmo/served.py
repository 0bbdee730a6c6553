"""Serving of `ElmoEmbedder`: the words of a text and their embeddings.

N texts, W words per text, T tokens (words plus sentence start and end), C characters per token.
"""

import re

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base import decoding
from kerasbert.heads.base.served import PROSE, SHORT, Served, filled, padded
from kerasbert.heads.base.served import spec as tensor_spec
from kerasbert.lineage.elmo.characters import character_ids, character_ids_in_graph
from kerasbert.text.characters import code_points, substrings


class ServedElmo(Served):
    """SavedModel signatures of `ElmoEmbedder`."""

    output = "embedding"
    needs_preprocessor = False
    fills = {"word": "", "start": -1, "end": -1}

    def random_features(self):
        random, most = np.random.default_rng(0), self.model.backbone.characters_per_token
        batches = []
        for counts in ((7, 3, 1), (40,)):
            words = [["w" * random.integers(1, 60) for _ in range(count)] for count in counts]
            batches.append(dict(zip(self.model.input, character_ids(words, most))))
        return batches

    def token_specs(self):
        shape = (None, None, self.model.backbone.characters_per_token)
        return {
            "character_ids": tf.TensorSpec(shape, "int32", "character_ids"),
            "padding_mask": tensor_spec("padding_mask", 2, "int32"),
        }

    def pack(self, text):
        return self._packed(text)[0]

    def _packed(self, text):
        """Return the network's inputs and the ragged columns of `fills`."""
        points = code_points(text)
        rows, starts, ends = decoding.spaced_units(points)

        def ragged(values):
            return tf.RaggedTensor.from_value_rowids(values, rows, points.nrows(), False)

        words = ragged(substrings(points, rows, starts, ends))
        columns = {
            "word": words,
            "start": ragged(tf.cast(starts, "int32")),
            "end": ragged(tf.cast(ends, "int32")),
        }
        return character_ids_in_graph(words, self.model.backbone.characters_per_token), columns

    def answer(self, text):
        # Without rows, TensorFlow's convolutions have the wrong width, so add an empty text.
        count = tf.size(text)
        text = tf.concat([text, tf.fill([tf.cast(count == 0, "int32")], "")], 0)
        return {name: x[:count] for name, x in self._answer(text).items()}

    def _answer(self, text):
        features, columns = self._packed(text)
        vectors = self.graph(features)[self.output][:, 1:]  # Drop the sentence start.
        found = padded(self.fills, columns)
        most = tf.shape(found["word"])[1]
        # With the sentence end, `vectors` has a column even without words.
        there = tf.sequence_mask(found["count"], most)
        there = tf.reshape(there, tf.concat([tf.shape(there), [1] * (vectors.shape.rank - 2)], 0))
        return {**found, "embedding": tf.where(there, vectors[:, :most], 0.0)}

    def probes(self):
        return [("serving_default", {"text": [*SHORT, PROSE[:500]]})]

    def expected(self, signature, inputs):
        texts = inputs["text"]
        rows = [
            [
                {"word": part[0], "start": part.start(), "end": part.end()}
                for part in re.finditer(r"\S+", text)
            ]
            for text in texts
        ]
        found = filled(self.fills, rows)
        vectors = self.model.embed(texts, batch_size=len(texts))
        shape = (len(texts), len(found["word"][0]), *vectors[0].shape[1:])
        embedding = np.zeros(shape, "float32")
        for row, vector in zip(embedding, vectors):
            row[: len(vector)] = vector
        return {**found, "embedding": embedding}

    def tokens_of(self, signature, features):
        # Features are converted here, because Keras' RNN needs integers.
        outputs = self.run(keras.tree.map_structure(keras.ops.convert_to_tensor, features))
        return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}

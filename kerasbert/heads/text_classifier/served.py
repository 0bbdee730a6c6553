"""Serving of `BertTextClassifier`: probabilities and a label per text. N texts, C classes."""

import functools

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served import CLASSIFY
from kerasbert.heads.base.served_texts import ServedTexts, of_classes

_SOFTMAX = """\
odds = np.exp(outputs["logits"] - outputs["logits"].max(axis=-1, keepdims=True))
odds /= odds.sum(axis=-1, keepdims=True)
"""
_SIGMOID = """\
odds = 1 / (1 + np.exp(-outputs["logits"]))
"""
_RANKED = """\
return [sorted(zip(labels, map(float, row)), key=lambda x: -x[1]) for row in odds]
"""


class ServedClassifier(ServedTexts):
    """SavedModel signatures of `BertTextClassifier`."""

    of_examples = ("classify", CLASSIFY, "probabilities")

    @property
    def own_labels(self):
        return list(self.model.label_names)

    @functools.cached_property
    def net(self):
        # The graph ends before the final activation, with calibrated logits.
        logits = self.model.output_activation.input
        if self.model.temperature != 1:
            logits = logits / self.model.temperature
        return keras.Model(self.model.input, logits)

    def probabilities(self, logits):
        """Convert logits (N, C) to probabilities."""
        if self.model.activation != keras.activations.linear:
            return self.model.activation(logits)
        return keras.ops.sigmoid(logits) if self.model.multi_label else keras.ops.softmax(logits)

    def _odds(self):
        """Return "softmax" or "sigmoid" if it gives the probabilities, otherwise `None`."""
        return {
            keras.activations.linear: "sigmoid" if self.model.multi_label else "softmax",
            keras.activations.sigmoid: "sigmoid",
            keras.activations.softmax: "softmax",
        }.get(self.model.activation)

    def page(self):
        odds = self._odds()
        return odds and of_classes(self, self.own_labels, odds)

    def program(self):
        lines = {"softmax": _SOFTMAX, "sigmoid": _SIGMOID}.get(self._odds())
        return lines and of_texts("(label, probability) pairs, best first", lines + _RANKED)

    def decode(self, outputs, features):
        probabilities = self.probabilities(outputs["logits"])  # (N, C)
        return {"probabilities": probabilities, "score": keras.ops.max(probabilities, axis=-1)}

    def answer_rows(self, features):
        outputs = super().answer_rows(features)
        best = tf.argmax(outputs["probabilities"], axis=-1)
        return {**outputs, "label": tf.gather(tf.constant(self.labels), best)}

    def answer_examples(self, inputs):
        scores = self.answer_rows(self.pack_examples(inputs))["probabilities"]
        classes = tf.broadcast_to(tf.constant([self.labels]), tf.shape(scores))
        return {"classes": classes, "scores": scores}

    def expected(self, signature, inputs):
        if signature == "classify":
            scores = self.expected_of_examples(inputs)
            return {"scores": scores, "classes": [self.labels] * len(scores)}
        found = super().expected(signature, inputs)
        if signature == "preprocess":
            return found
        best = found["probabilities"].argmax(-1)
        ranked = np.sort(found["probabilities"], axis=-1)
        clear = ranked[:, -1] - ranked[:, -2:-1].max(-1, initial=-1) > self.margin
        return {**found, "label": [self.labels[i] for i in best], "clear": clear}

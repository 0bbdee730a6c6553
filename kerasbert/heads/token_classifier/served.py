"""Serving of `BertTokenClassifier`: the entities of a text of any length.

N texts, R windows, T tokens per row, C classes, U units of all texts, E entities per text.
"""

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base import decoding
from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served import MOST_WINDOWS, SHORT, Served
from kerasbert.text.characters import code_points, substrings
from kerasbert.text.tagging import TagSet, classes_of_pieces
from kerasbert.text.windows import take_windows

_TAGS = """\
found = []
for row, best in zip(rows, outputs["logits"].argmax(axis=-1)):
    pieces = zip(row.offsets, row.special_tokens_mask, best)
    found.append([(*span, labels[i]) for span, special, i in pieces if not special])
return found
"""


class ServedPieces(Served):
    """Base class for tasks that label each piece of a text of any length."""

    settings = {"max_windows": MOST_WINDOWS}
    # Output axes after rows and tokens.
    sizes = ()

    def pack(self, text):
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(text)))

    def of_pieces(self, text):
        """Return the texts' code points, and the pieces (rows, starts, ends) with their logits."""
        preprocessor = self.preprocessor
        points = code_points(text)
        found = preprocessor.tokenizer.tokenize_with_offsets(text)
        ids, starts, ends = decoding.with_long_rows(found)
        rows, *windows = preprocessor.windows_in_graph(tf.cast(ids.row_lengths(), tf.int32))
        rows = decoding.limit_windows(rows, tf.size(text), self.settings["max_windows"])
        windows = rows, *windows
        features = self.features_in_graph(preprocessor.pack((take_windows(ids, *windows),)))
        logits = decoding.in_windows(
            lambda part: self.graph(part)["logits"],
            features,
            (tf.shape(features["token_ids"])[1], *self.sizes),
        )  # (R, T, C)
        rows, begins, lengths = windows
        firsts = tf.gather(ids.row_starts(), rows) + tf.cast(begins, tf.int64)
        window, place, _ = decoding.most_context(firsts, lengths, tf.size(ids.values))
        logits = tf.gather_nd(logits, tf.stack([window, place + 1], axis=1))  # (pieces, C)
        return points, (ids.value_rowids(), starts.flat_values, ends.flat_values), logits

    def probes(self):
        preprocessor = self.preprocessor
        prose = self.prose(preprocessor.stride or max((preprocessor.sequence_length - 2) // 2, 1))
        return [("serving_default", {"text": [*SHORT, prose]})]


class ServedTagger(ServedPieces):
    """Signatures of `BertTokenClassifier`."""

    fills = {"label": "", "text": "", "start": -1, "end": -1, "score": 0.0}

    @property
    def sizes(self):
        return (self.model.num_classes,)

    @property
    def own_labels(self):
        return list(self.model.label_names)

    def check_labels(self):
        old, new = (
            [m and m[1:] for m in TagSet(x).meanings] for x in (self.own_labels, self.labels)
        )
        types = {}
        if old != new or any(types.setdefault(a, b) != b for a, b in self._types()):
            raise ValueError(
                f"labels={self.labels} must rename the types of the model's own labels "
                f"{self.own_labels}, in the same order and with the same 'B-', 'I-' or 'O'."
            )

    def program(self):
        return of_texts("start, end and label of each token", _TAGS)

    def page(self):
        own, names = self.preprocessor, self.own_labels
        return {
            "panel": "tag",
            "meanings": TagSet(names).meanings,
            "table": classes_of_pieces(names, len(names)).tolist(),
            "label_pieces": own.label_pieces,
            "stride": own.stride or max((own.sequence_length - 2) // 2, 1),
        }

    def _types(self):
        """Return pairs of the model's and the given type, for each class with a type."""
        old, new = (TagSet(names).meanings for names in (self.own_labels, self.labels))
        return [(a[0], b[0]) for a, b in zip(old, new) if a is not None and b is not None]

    def answer(self, text):
        preprocessor = self.preprocessor
        points, pieces, logits = self.of_pieces(text)
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float64))
        whole = preprocessor.label_pieces == "first"
        units = decoding.word_units(points) if whole else decoding.piece_units(*pieces)
        rows, starts, ends, first, count = decoding.units_of(pieces, tuple(units))
        probabilities = decoding.unit_probabilities(
            probabilities, first, count, preprocessor.names, preprocessor.label_pieces
        )
        found = decoding.entities(
            tf.argmax(probabilities, axis=-1),
            tf.reduce_max(probabilities, axis=-1),
            *(rows, starts, ends, self.labels, points.nrows()),
        )
        labels, starts, ends, _ = found
        texts = substrings(points, labels.value_rowids(), starts.flat_values, ends.flat_values)
        columns = dict(zip(("label", "start", "end", "score"), found))
        columns["text"] = labels.with_values(texts)
        return self.padded(columns)

    def expected(self, signature, inputs):
        texts = inputs["text"]
        clear = []
        for probabilities in self.model.predict_proba(texts):
            ranked = np.sort(probabilities, axis=-1)
            gap = ranked[:, -1] - ranked[:, -2:-1].max(-1, initial=-1)
            clear.append(gap.min(initial=1) > self.margin)
        found = self.model.tag(texts)
        types = dict(self._types())
        for row in found:
            for entity in row:
                entity["label"] = types[entity["label"]]
        return {**self.filled(found), "clear": clear}

"""Serving of `BertReplacedTokenDetector`: the probability that each token was replaced."""

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base.program import of_texts
from kerasbert.heads.base.served import filled, padded
from kerasbert.heads.token_classifier.served import ServedPieces
from kerasbert.text.characters import substrings
from kerasbert.text.pieces import pieces_as_units, units_of_texts

# N texts, U units of all texts: tokens, merged if they share a character.

_SCORES = """\
found = []
for row, logits in zip(rows, outputs["logits"]):
    pieces = zip(row.offsets, row.special_tokens_mask, 1 / (1 + np.exp(-logits)))
    found.append([(*span, float(score)) for span, special, score in pieces if not special])
return found
"""


class ServedDetector(ServedPieces):
    """SavedModel signatures of `BertReplacedTokenDetector`."""

    fills = {"text": "", "start": -1, "end": -1, "score": 0.0}

    def program(self):
        return of_texts("start, end and probability of each token", _SCORES)

    def answer(self, text):
        points, pieces, logits = self.of_pieces(text)
        rows, starts, ends, first, count, _ = units_of_texts(pieces, pieces_as_units(*pieces))
        odds = tf.sigmoid(tf.cast(logits, tf.float64))
        sums = tf.concat([tf.zeros([1], tf.float64), tf.cumsum(odds)], 0)
        scores = tf.gather(sums, first + count) - tf.gather(sums, first)
        columns = {
            "text": substrings(points, rows, starts, ends),
            "start": tf.cast(starts, tf.int32),
            "end": tf.cast(ends, tf.int32),
            "score": tf.cast(scores / tf.cast(tf.maximum(count, 1), tf.float64), tf.float32),
        }
        return padded(
            self.fills,
            {
                name: tf.RaggedTensor.from_value_rowids(x, rows, points.nrows(), validate=False)
                for name, x in columns.items()
            },
        )

    def expected(self, signature, inputs):
        return filled(self.fills, self.model.detect(inputs["text"]))

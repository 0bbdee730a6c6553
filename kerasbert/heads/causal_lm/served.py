"""Serving of `BertCausalLM`: scores of a text's tokens.

N texts, R windows, T tokens per row, P tokens per text.
"""

import functools

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base import decoding
from kerasbert.heads.base.served import MOST_WINDOWS, SHORT, Served, filled, long_text, padded
from kerasbert.heads.causal_lm.model import TokenScorer
from kerasbert.text.ops import rows_where
from kerasbert.text.windows import take_windows


class ServedCausalLM(Served):
    """SavedModel signatures of `BertCausalLM`."""

    settings = {"max_windows": MOST_WINDOWS}
    fills = {"token": "", "token_id": -1, "start": -1, "end": -1, "score": 0.0}

    @functools.cached_property
    def _scores(self):
        """The scores (B, T) of tokens, as a graph function."""
        scorer = TokenScorer(self.model)
        specs = [self.token_specs()]
        return tf.function(lambda x: scorer(x), input_signature=specs, autograph=False)

    def _padded(self, rows):
        length = self.preprocessor.bucket(tf.cast(tf.reduce_max(rows.row_lengths()), tf.int32))
        return self.features_in_graph(self.preprocessor.padded(rows, length))

    def _tokens(self, text):
        tokenizer = self.preprocessor.tokenizer
        return self.preprocessor.with_start(
            *decoding.with_long_rows(tokenizer.tokenize_with_offsets(text))
        )

    def pack(self, text):
        return self._padded(self._tokens(text)[0][:, : self.preprocessor.sequence_length])

    def answer(self, text):
        ids, starts, ends = self._tokens(text)
        size, stride = self.preprocessor.sequence_length, self.preprocessor.usual_stride()
        lengths = tf.cast(ids.row_lengths(), tf.int32)  # (N,)
        counts = 1 + tf.maximum(-(-(lengths - size) // stride), 0)
        rows = tf.repeat(tf.range(tf.size(lengths)), counts)  # (R,)
        rows = decoding.limit_windows(rows, tf.size(text), self.settings["max_windows"])
        first = tf.cumsum(counts, exclusive=True)  # (N,), the first window of each text
        begins = (tf.range(tf.size(rows)) - tf.gather(first, rows)) * stride
        sizes = tf.minimum(tf.gather(lengths, rows) - begins, size)
        features = self._padded(take_windows(ids, rows, begins, sizes))
        scores = decoding.in_windows(
            self._scores, features, (tf.shape(features["token_ids"])[1],)
        )  # (R, T)
        # Each later token's score is from the first window that contains it.
        row = tf.cast(ids.value_rowids(), tf.int32)
        place = tf.range(tf.size(row)) - tf.cast(tf.gather(ids.row_starts(), row), tf.int32)
        columns = rows_where(
            place > 0, row, place, ids.flat_values, starts.flat_values, ends.flat_values
        )
        row, place, ids, starts, ends = columns
        window = tf.maximum(-(-(place + 1 - size) // stride), 0)
        index = tf.stack([tf.gather(first, row) + window, place - window * stride], axis=1)
        found = {
            "token": tf.gather(tf.constant(self.preprocessor.tokenizer.get_vocabulary()), ids),
            "token_id": ids,
            "start": starts,
            "end": ends,
            "score": tf.gather_nd(scores, index),
        }
        return padded(
            self.fills,
            {
                name: tf.RaggedTensor.from_value_rowids(
                    values, tf.cast(row, tf.int64), tf.size(lengths, tf.int64), validate=False
                )
                for name, values in found.items()
            },
        )

    def probes(self):
        prose = long_text(self, self.preprocessor.usual_stride())
        return [("serving_default", {"text": [*SHORT, prose]})]

    def expected(self, signature, inputs):
        return filled(self.fills, self.model.score(inputs["text"]))

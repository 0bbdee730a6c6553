"""Serving of `BertMaskedLM`: predictions for masked tokens.

N texts, M masks per text, R windows, B windows at a time, P masks per window, K tokens per mask,
V tokens in the vocabulary.
"""

import functools

import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.heads.base import decoding
from kerasbert.heads.base.program import Program
from kerasbert.heads.base.served import PROSE, Served
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.windows import take_windows

_FILL = '''\
MASK = tokenizer.token_to_id({mask!r})


@answers("texts", is_text)
def answer(texts, top_k={top_k}):
    """Return the likeliest tokens, their ids and probabilities, for each mask of each text."""
    rows = tokenizer.encode_batch(texts)
    places = [[i for i, id in enumerate(row.ids) if id == MASK] for row in rows]
    most = max([1, *map(len, places)])
    positions = np.array([[*row, *[0] * (most - len(row))] for row in places], "int32")
    outputs = run({{**packed(rows), "mask_positions": positions}})["{output}"]
    return [[best(x, top_k) for x in row[: len(at)]] for row, at in zip(outputs, places)]


def best(logits, top_k):
    """Return the likeliest tokens at one mask."""
    logits = logits[: tokenizer.get_vocab_size()].astype("float64")
    odds = np.exp(logits - logits.max())
    odds /= odds.sum()
    ids = np.argsort(-odds, kind="stable")[:top_k].tolist()
    return [(tokenizer.decode([id], skip_special_tokens=False), id, float(odds[id])) for id in ids]
'''


class ServedMaskedLM(Served):
    """SavedModel signatures of `BertMaskedLM`."""

    # Each mask of a long text gets a window, and each candidate a copy of the text.
    settings = {"top_k": 5, "max_windows": 128}
    # Padding values for texts with fewer masks than others.
    fills = {"token": "", "token_id": -1, "score": 0.0, "text": ""}
    # Name of the output with the logits.
    _logits = "logits"

    @functools.cached_property
    def packing(self):
        """A preprocessor that packs rows without masking."""
        own = self.preprocessor
        return BertPreprocessor(own.tokenizer, own.sequence_length, own.truncate, own.num_segments)

    def program(self):
        if self.preprocessor is None:
            return None
        mask = self.preprocessor.tokenizer.mask_token
        body = _FILL.format(mask=mask, top_k=self.settings["top_k"], output=self._logits)
        return Program(body, f'"Lunch at {mask}?" "A {mask} of tea."')

    def page(self):
        own = self.preprocessor.tokenizer
        return {
            "panel": "fill",
            "output": self._logits,
            "mask": own.mask_token,
            "mask_id": own.mask_token_id,
            "vocabulary": own.vocabulary_size(),
            "top_k": min(8, own.vocabulary_size()),
        }

    def _tokens(self, text):
        """Return tokens, character offsets, and mask positions: ragged (N, None)."""
        tokenizer = self.preprocessor.tokenizer.with_special_tokens()
        ids, starts, _ = decoding.with_long_rows(tokenizer.tokenize_with_offsets(text))
        at = tf.where(ids.values == tokenizer.mask_token_id)[:, 0]
        rows = tf.gather(ids.value_rowids(), at)
        places = at - tf.gather(ids.row_starts(), rows)
        places = tf.RaggedTensor.from_value_rowids(places, rows, ids.nrows(), validate=False)
        return ids, starts, places

    def _rows(self, ids, positions):
        """Convert windows of tokens (R, None) and mask positions in them (R, None) to inputs."""
        features = self.packing.pack((ids,))
        return self.features_in_graph({**features, "mask_positions": positions.to_tensor()})

    def pack(self, text):
        ids, _, places = self._tokens(text)
        room, first = self.preprocessor.room, self.preprocessor.tokenizer.frame.first
        return self._rows(ids, tf.ragged.boolean_mask(places, places < room) + first)

    def answer(self, text):
        preprocessor = self.preprocessor
        ids, starts, places = self._tokens(text)
        room = preprocessor.room
        counts = places.row_lengths()  # (N,)
        text_of, place = places.value_rowids(), places.values  # (masks,)
        window, rows, begins = mask_windows(ids.row_lengths(), places, room)
        rows = decoding.limit_windows(rows, tf.size(text, tf.int64), self.settings["max_windows"])
        with tf.control_dependencies([rows]):
            text_of = tf.identity(text_of)  # The limit also limits copies of texts.
        position = place - tf.gather(begins, window) + preprocessor.tokenizer.frame.first
        size = tf.minimum(tf.gather(ids.row_lengths(), rows), room)
        taken = take_windows(ids, *(tf.cast(x, tf.int32) for x in (rows, begins, size)))
        slots = tf.RaggedTensor.from_value_rowids(
            tf.cast(position, tf.int32), window, tf.size(rows, tf.int64), validate=False
        )
        features = self._rows(taken, slots)
        slot = tf.range(tf.size(place, tf.int64)) - tf.gather(slots.row_starts(), window)
        vocabulary = preprocessor.tokenizer.vocabulary_size()
        top_k = min(self.settings["top_k"], vocabulary)

        def best(part):
            """Return each mask's best tokens and probabilities."""
            logits = self.graph(part)[self._logits][..., :vocabulary]  # (B, P, V)
            values, tokens = tf.math.top_k(logits, top_k)
            logits = tf.cast(logits, tf.float64)
            values = tf.cast(values, tf.float64)
            total = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
            # Floats have 24 bits of precision, enough for token ids.
            tokens = tf.cast(tokens, tf.float32)
            return tf.stack([tokens, tf.cast(tf.exp(values - total), tf.float32)], axis=-1)

        slot_count = tf.shape(features["mask_positions"])[1]
        found = decoding.in_windows(best, features, (slot_count, top_k, 2))  # (R, P, K, 2)
        found = tf.gather_nd(found, tf.stack([window, slot], axis=1))  # (masks, K, 2)
        tokens, scores = tf.cast(found[..., 0], tf.int32), found[..., 1]
        tokens = tf.ensure_shape(tokens, [None, top_k])
        at = tf.gather(ids.row_starts(), text_of) + place
        previous = tf.gather(tf.concat([[-1], ids.values], 0), at)
        previous = tf.where(place > 0, previous, -1)
        start = tf.gather(starts.flat_values, at)
        # In TensorFlow 2.12, the tokenizer's end offset differs for masks.
        end = start + len(preprocessor.tokenizer.mask_token)
        names, texts = preprocessor.fill_in_graph(text, text_of, start, end, previous, tokens)
        columns = {"token": names, "token_id": tokens, "score": scores, "text": texts}
        shape = tf.stack([tf.size(counts, tf.int64), tf.reduce_max(tf.concat([counts, [1]], 0))])
        padded = {
            name: places.with_values(x).to_tensor(
                self.fills[name], shape=tf.concat([shape, [top_k]], 0)
            )
            for name, x in columns.items()
        }
        return {**padded, "count": tf.cast(counts, tf.int32)}

    def probes(self):
        mask = self.preprocessor.tokenizer.mask_token
        middle = len(PROSE) // 2
        texts = [
            f"Lunch at {mask}?",
            mask,
            f"The {mask} of France is {mask}, naïve № {mask}",
            f"日本の{mask}は",
            "nothing is hidden",
            f"{PROSE[:middle]} {mask} {PROSE[middle:]} {mask}",
        ]
        return [("serving_default", {"text": texts})]

    def expected(self, signature, inputs):
        if signature == "pair":
            return self._pair_expected(inputs)
        mask, top_k = self.preprocessor.tokenizer.mask_token, self.settings["top_k"]
        top_k = min(top_k, self.preprocessor.tokenizer.vocabulary_size())
        texts = inputs["text"]
        filled = iter(self.model.fill_mask([t for t in texts if mask in t], top_k + 1))
        rows = []
        for text in texts:
            row = next(filled) if mask in text else []
            rows.append([row] if row and isinstance(row[0], dict) else row)
        most = max(map(len, rows))
        columns = {
            name: [
                [[one[name] for one in place[:top_k]] for place in row]
                + [[fill] * top_k] * (most - len(row))
                for row in rows
            ]
            for name, fill in self.fills.items()
        }
        clear = []
        for row in rows:
            odds = np.array([[np.log(one["score"]) for one in place] for place in row])
            gaps = odds[:, :-1] - odds[:, 1:] if row else np.ones((1, 1))
            clear.append(gaps.min(initial=1) > self.margin)
        return {**columns, "count": [len(row) for row in rows], "clear": clear}

    def example(self):
        return {"text": f"Lunch at {self.preprocessor.tokenizer.mask_token}?"}


def mask_windows(lengths, places, room):
    """Choose windows around masks, like `kerasbert.heads.masked_lm.model.mask_windows`.

    Args:
        lengths: int64 (N,). Number of tokens per text.
        places: ragged int64 (N, None). Token positions of the masks.
        room: maximum number of tokens per window.

    Returns:
        `(window, rows, begins)`: each mask's window, int64 (masks,), and each window's text and
        first token, int64 (R,).
    """
    counts, fits = places.row_lengths(), lengths <= room
    windows = tf.where(fits, tf.minimum(counts, 1), counts)
    text_of, place = places.value_rowids(), places.values
    index = tf.range(tf.size(place, tf.int64)) - tf.gather(places.row_starts(), text_of)
    index = tf.where(tf.gather(fits, text_of), tf.zeros_like(index), index)
    window = tf.gather(tf.cumsum(windows, exclusive=True), text_of) + index
    last = tf.maximum(tf.gather(lengths, text_of) - room, 0)
    first = tf.minimum(tf.maximum(place - room // 2, 0), last)
    rows = tf.repeat(tf.range(tf.size(lengths, tf.int64)), windows)
    return window, rows, tf.math.unsorted_segment_min(first, window, tf.size(rows))

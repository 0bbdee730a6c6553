"""Serving of `BertTokenClassifier`: the entities of a text of any length.

N texts, R windows, T tokens per row, C classes, U units of all texts, E entities per text.
"""

import inspect

import numpy as np

from kerasbert.backend import chains
from kerasbert.backend.tensorflow import tf
from kerasbert.base.strict_json import to_json
from kerasbert.heads.base import decoding
from kerasbert.heads.base.program import Program, of_texts
from kerasbert.heads.base.served import MOST_WINDOWS, SHORT, Served, filled, long_text, padded
from kerasbert.text.chains import decode
from kerasbert.text.characters import code_points, substrings
from kerasbert.text.pieces import pieces_as_units, units_of_texts
from kerasbert.text.tagging import (
    CJK_CHARACTER,
    TagSet,
    classes_of_pieces,
    unit_probabilities,
)
from kerasbert.text.windows import context_windows, take_windows

_TAGS = """\
found = []
for row, best in zip(rows, outputs["logits"].argmax(axis=-1)):
    pieces = zip(row.offsets, row.special_tokens_mask, best)
    found.append([(*span, labels[i]) for span, special, i in pieces if not special])
return found
"""
# A CRF decodes with the code of `tag`, and words of `word_spans`.
_CHAIN = '''\
START, END = np.array({start}), np.array({end})
TRANSITIONS = np.array([{transitions}])


@answers("texts", is_text)
def answer(texts):
    """Return start, end and label of each {unit} for each text in a list, or for a single text."""
    rows = tokenizer.encode_batch(texts)
    outputs = run(packed(rows))
    return [tags(*one) for one in zip(texts, rows, outputs["logits"])]


def tags(text, row, logits):
    places = units(text, row)
    if not places:
        return []
    scores = logits[[place for _, _, place in places]].astype("float64")
    scores[0] += START
    scores[-1] += END
    kinds = np.zeros((1, len(scores)), "int64")
    best, _ = decode(scores[None], np.array([len(scores)]), TRANSITIONS, kinds)
    return [(start, end, labels[i]) for (start, end, _), i in zip(places, best[0])]


{units}

{decode}'''
_PIECES = '''\
def units(text, row):
    """Return start, end and token of each piece."""
    pieces = enumerate(zip(row.offsets, row.special_tokens_mask))
    return [(*span, place) for place, (span, special) in pieces if not special]
'''
_WORDS = '''\
import re
import unicodedata

CJK = re.compile({cjk!a})


def kind(char):
    """Return "s" for white space, "a" for a word of its own, "m" for a mark, "l" for a letter."""
    category = unicodedata.category(char)
    if category[0] == "Z" or char.isspace():
        return "s"
    if category[0] == "P" or (category[0] == "S" and char.isascii()) or CJK.match(char):
        return "a"
    return "m" if category[0] == "M" or category in ("Cc", "Cf") else "l"


def units(text, row):
    """Return start, end and first token of each word."""
    words = [m.span() for m in re.finditer("m*am*|[lm]+", "".join(map(kind, text)))]
    found, at = {{}}, 0
    for place, ((start, end), special) in enumerate(zip(row.offsets, row.special_tokens_mask)):
        if special:
            continue
        while at < len(words) and words[at][1] <= start:
            at += 1
        if at < len(words) and words[at][0] < end:
            found.setdefault(at, place)
    return [(*words[at], place) for at, place in found.items()]
'''


class ServedPieces(Served):
    """Base class for tasks that label each piece of a text of any length."""

    settings = {"max_windows": MOST_WINDOWS}
    # Output axes after rows and tokens.
    sizes = ()

    def pack(self, text):
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(text)))

    def of_pieces(self, text):
        """Return the code points of texts, and their pieces (rows, starts, ends) with logits."""
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
        window, place, _ = context_windows(firsts, lengths, tf.size(ids.values))
        place = place + preprocessor.tokenizer.frame.first
        logits = tf.gather_nd(logits, tf.stack([window, place], axis=1))  # (pieces, C)
        return points, (ids.value_rowids(), starts.flat_values, ends.flat_values), logits

    def probes(self):
        prose = long_text(self, self.preprocessor.window_stride)
        return [("serving_default", {"text": [*SHORT, prose]})]


class ServedTagger(ServedPieces):
    """SavedModel signatures of `BertTokenClassifier`."""

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
        if self.model.crf and self.preprocessor is not None:
            return self._chain_program()
        return of_texts("start, end and label of each token", _TAGS)

    def _chain_program(self):
        own = self.model.chains(self.preprocessor)
        scores = dict(zip(("start", "end"), own.edges), transitions=own.transitions)
        is_first = self.preprocessor.label_pieces == "first"
        body = _CHAIN.format(
            **{name: to_json(x.tolist()) for name, x in scores.items()},
            unit="word" if is_first else "token",
            units=_WORDS.format(cjk=CJK_CHARACTER) if is_first else _PIECES,
            decode=inspect.getsource(decode),
        )
        return Program(body)

    def page(self):
        own, names = self.preprocessor, self.own_labels
        chain = {}
        if self.model.crf:
            scores = self.model.chains(own)
            parts = ("transitions", "steps", "ends")
            chain = {"chain": {name: getattr(scores, name).tolist() for name in parts}}
        return {
            **chain,
            "panel": "tag",
            "meanings": TagSet(names).meanings,
            "table": classes_of_pieces(names, len(names)).tolist(),
            "label_pieces": own.label_pieces,
            "stride": own.window_stride,
        }

    def _types(self):
        """Return pairs (the model's entity type, the given one) for each class with a type."""
        old, new = (TagSet(names).meanings for names in (self.own_labels, self.labels))
        return [(a[0], b[0]) for a, b in zip(old, new) if a is not None and b is not None]

    def answer(self, text):
        preprocessor = self.preprocessor
        points, pieces, logits = self.of_pieces(text)
        whole = preprocessor.label_pieces == "first"
        units = decoding.word_units(points) if whole else pieces_as_units(*pieces)
        rows, starts, ends, first, count, _ = units_of_texts(pieces, tuple(units))
        if self.model.crf:
            best, scores = self._best_paths(logits, first, count, rows, points.nrows())
        else:
            probabilities = unit_probabilities(
                tf.nn.softmax(tf.cast(logits, tf.float64)),
                *(first, count, preprocessor.names, preprocessor.label_pieces),
            )
            best = tf.argmax(probabilities, axis=-1)
            scores = tf.reduce_max(probabilities, axis=-1)
        found = decoding.entities(best, scores, rows, starts, ends, self.labels, points.nrows())
        labels, starts, ends, _ = found
        texts = substrings(points, labels.value_rowids(), starts.flat_values, ends.flat_values)
        columns = dict(zip(("label", "start", "end", "score"), found))
        columns["text"] = labels.with_values(texts)
        return padded(self.fills, columns)

    def _best_paths(self, logits, first, count, rows, texts):
        """Return each unit's class and marginal probability, like `Chains.decode`."""
        with tf.init_scope():  # Outside the graph, weights have values.
            own = self.model.chains(self.preprocessor)
        emissions, kinds = own.of_units(logits, first, count, rows)
        rows = tf.RaggedTensor.from_value_rowids(emissions, rows, texts, validate=False)
        counts = tf.cast(rows.row_lengths(), tf.int32)
        size = tf.reduce_max(tf.concat([counts, [1]], 0))
        classes = own.steps.shape[-1]
        padded = rows.to_tensor(shape=tf.stack([tf.size(counts), size, classes]))
        kinds = rows.with_values(kinds).to_tensor(shape=tf.stack([tf.size(counts), size]))
        chain = (
            tf.ensure_shape(padded, [None, None, classes]),
            counts,
            tf.constant(own.steps),
            kinds,
        )
        is_in = tf.sequence_mask(counts, size)
        best = tf.boolean_mask(chains.best_path(*chain), is_in)
        odds = tf.boolean_mask(chains.marginals(*chain), is_in)
        return best, tf.gather(odds, best, batch_dims=1)

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
        return {**filled(self.fills, found), "clear": clear}

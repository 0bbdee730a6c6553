"""What is served of each task: its signatures, and what they have to answer.

A signature runs in TensorFlow's graph, in a process of its own; what it has to answer comes from
the model's own methods, on any backend.

N texts, T tokens of a row, C classes or choices, E entities, M masks, K answers, D width.
"""

import dataclasses
import functools

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf_modules
from kerasbert.data.tagging import TagSet
from kerasbert.data.windows import cut_windows_in_graph, take_windows
from kerasbert.export import decoding
from kerasbert.export.by_length import by_length
from kerasbert.models import (
    BertBackbone,
    BertMaskedLM,
    BertMultipleChoice,
    BertMultiTask,
    BertNextSentencePredictor,
    BertPretrainer,
    BertQuestionAnswering,
    BertTextClassifier,
    BertTextEmbedder,
    BertTextRegressor,
    BertTokenClassifier,
)
from kerasbert.models.task import own_preprocessor
from kerasbert.preprocessors.packing import BertPreprocessor

# Texts on which the SavedModel has to answer as the model does.
SHORT = [
    "Win a FREE prize now!",
    "",
    "?",
    "Größe, naïve café № 1",
    "日本語のテキスト",
    "Привет, мир",
    "مرحبا بالعالم",
    "👩‍👩‍👧 🙂",
    "a\tb\nc\0d\u200be\ufffd",
]
LONG = ["word " * 2000, "x" * 10_000]
_SYLLABLES = "ka mo ri ta san du pel ni gra vo lu fi ber tho ze qua".split()
# Prose that repeats nothing, so that no two answers are equally good: in several windows.
PROSE = " ".join(
    _SYLLABLES[i % 16] + _SYLLABLES[i * i // 7 % 16] + ("" if i % 3 else "," if i % 2 else " 東京.")
    for i in range(700)
)
# Where the best answer is ahead of the next by less, another backend may choose that one: of a
# quantized model, numbers that round the other way are far off.
MARGIN = {None: 1e-4, "int8": 0.2}

PREDICT, CLASSIFY, REGRESS = (
    f"tensorflow/serving/{name}" for name in ("predict", "classify", "regress")
)


@dataclasses.dataclass
class Signature:
    """A function of tensors by keyword that returns a dict of tensors, and its inputs' specs."""

    function: object
    inputs: dict
    method: str = PREDICT


def _tf():
    return tf_modules("export_serving")[0]


def _spec(name, rank=1, dtype="string"):
    tf = _tf()
    return tf.TensorSpec((None,) * rank, dtype, name)


def _with_long_rows(ragged):
    """Ragged tensors of integers, as int32 with rows in int64: tokenizers differ in it."""
    tf = _tf()
    return [tf.cast(x.with_row_splits_dtype("int64"), tf.int32) for x in ragged]


def served(model, preprocessor=None, labels=None, settings=None):
    """The `Served` of a model.

    Raises:
        TypeError: for a model that cannot be served.
    """
    for cls in type(model).__mro__:
        if cls in TASKS:
            return TASKS[cls](model, preprocessor, labels, settings or {})
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    kind = "the class" if isinstance(model, type) else "a"
    names = ", ".join(cls.__name__ for cls in TASKS)
    raise TypeError(f"export_serving takes one of {names}, not {kind} {name}.")


class Served:
    """Base of the tasks: `tokens`, and what is to be checked.

    Args:
        model: of the task's class.
        preprocessor: of the model, or for it; `None` for `tokens` alone.
        labels: list of C strings, where the task has classes.
        settings: dict. Those of `settings`, set otherwise.

    `parts` are the tasks of a model by name, `margin` is how clear an answer has to be to be
    compared.
    """

    # Names of the inputs of `serving_default`.
    columns = ("text",)
    # What a caller may set, and its default.
    settings = {}
    # The name of the output, where the model has one.
    output = "logits"

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        self.parts = {"": self}
        self.margin = MARGIN[None]
        self.model = model
        self.preprocessor = preprocessor or getattr(model, "preprocessor", None)
        self.labels = labels
        self.settings = {**self.settings, **(settings or {})}

    @property
    def own_labels(self):
        """The model's own names of its classes; `None` where it has no classes."""
        return None

    def check_labels(self):
        """Raise where labels that were given do not do for the model's own."""

    def model_settings(self):
        """What of `settings` shows in the card."""
        return self.settings

    # === The network ===

    @functools.cached_property
    def net(self):
        """A Keras model from token ids to what `tokens` gives."""
        return self.model

    def run(self, features):
        """What `tokens` gives, on any backend: a dict."""
        outputs = self.net(features, training=False)
        return outputs if isinstance(outputs, dict) else {self.output: outputs}

    @functools.cached_property
    def graph(self):
        """`run` as a function of the graph, traced once for all signatures."""
        tf = _tf()
        return tf.function(self.run, input_signature=[self.token_specs()], autograph=False)

    def token_specs(self):
        """The inputs of `tokens`."""
        return {name: _spec(name, len(x.shape), "int32") for name, x in self.model.input.items()}

    def features_in_graph(self, features):
        """Only what the network takes, int32."""
        tf = _tf()
        return {name: tf.cast(features[name], tf.int32) for name in self.model.input}

    def random_features(self):
        """Batches of token ids, for `tokens`: a list of dicts of int32 arrays."""
        rng = np.random.default_rng(0)
        batches = []
        for shape in self._shapes():
            lengths = rng.integers(1, shape[-1] + 1, shape[:-1])
            lengths.flat[0] = shape[-1]
            mask = np.arange(shape[-1]) < lengths[..., None]
            ids = rng.integers(0, self._encoder.vocabulary_size, shape)
            batch = {
                "token_ids": ids * mask,
                "padding_mask": mask,
                "segment_ids": rng.integers(0, max(self._encoder.num_segments, 1), shape) * mask,
                "mask_positions": rng.integers(0, shape[-1], (shape[0], 2)),
            }
            batches.append({name: batch[name].astype("int32") for name in self.model.input})
        return batches

    @property
    def _encoder(self):
        return getattr(self.model, "backbone", self.model)

    def _shapes(self):
        return [(3, min(16, self._longest())), (1, self._longest())]

    def _longest(self):
        return min(self._encoder.max_sequence_length, 512)

    def batches(self):
        """`(signature, features)` on which the network has to answer as the model's own does."""
        return [("tokens", features) for features in self.random_features()]

    def tokens_of(self, signature, features):
        """What that signature has to give for them: a dict of arrays."""
        features = {name: keras.ops.convert_to_tensor(x) for name, x in features.items()}
        outputs = self.run(features)
        return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}

    # === Signatures ===

    def signatures(self, tokens_only=False):
        """A dict of name to `Signature`."""
        tokens = {"tokens": Signature(lambda **x: self.graph(x), self.token_specs())}
        return tokens if tokens_only else {**self.text_signatures(), **tokens}

    def text_signatures(self):
        """Those that take strings."""
        specs = self.column_specs()
        return {
            "serving_default": Signature(self.answer, specs),
            "preprocess": Signature(self.pack, specs),
        }

    def column_specs(self):
        """The inputs of `serving_default`."""
        return {name: _spec(name) for name in self.columns}

    def answer(self, **columns):
        """What `serving_default` gives, in the graph."""
        raise NotImplementedError

    def pack(self, **columns):
        """What the network takes for the same strings, in the graph."""
        raise NotImplementedError

    # === Checks ===

    def probes(self):
        """Texts to compare on: a list of `(signature, inputs)`, inputs a dict of lists."""
        raise NotImplementedError

    def expected(self, signature, inputs):
        """What the model itself says of them: arrays by the names of the signature's outputs.

        `clear`, if there, says of each row whether its answer is the best by a margin.
        """
        raise NotImplementedError

    def warmup_inputs(self, item):
        """`(signature, inputs)` of a warmup item; `None` for one that does not fit."""
        row = (item,) if isinstance(item, str) else item
        if not isinstance(row, (tuple, list)) or len(row) != len(self.columns):
            return None
        if not all(isinstance(text, str) for text in row):
            return None
        return "serving_default", {name: [text] for name, text in zip(self.columns, row)}

    def wanted_item(self):
        """What a warmup item has to be, for errors."""
        names = ", ".join(self.columns)
        return "a string" if len(self.columns) == 1 else f"a tuple ({names}) of strings"

    def example(self):
        """Inputs of `serving_default` for the card: one row."""
        return {name: f"An example of {name}." for name in self.columns}


# === Texts and pairs of texts ===


class ServedTexts(Served):
    """Base of the tasks that give an answer a text or a pair of texts."""

    takes = ("serving_default", "pair")

    def text_signatures(self):
        specs = {name: _spec(name) for name in ("text", "text_b")}
        pair = {"pair": Signature(self.answer, specs)} if "pair" in self.takes else {}
        return {**super().text_signatures(), **pair, **self._more()}

    def answer(self, **columns):
        return self._answer(self.pack(**columns))

    def _more(self):
        """Further signatures."""
        return {}

    def pack(self, text, text_b=None):
        """Strings (N,) to what the network takes (N, T), in the graph."""
        columns = (text,) if text_b is None else (text, text_b)
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(columns)))

    def pack_examples(self, inputs):
        """Serialized `tf.train.Example`s with `text`, perhaps `text_b`, to packed rows."""
        tf, preprocessor = _tf(), self.preprocessor
        texts = tf.io.FixedLenFeature([], tf.string), tf.io.RaggedFeature(tf.string)
        parsed = tf.io.parse_example(inputs, dict(zip(("text", "text_b"), texts)))
        second = parsed["text_b"]
        has_second = second.row_lengths() > 0  # (N,)
        second = second[:, :1].to_tensor("", shape=(None, 1))[:, 0]
        a, b = preprocessor.tokenize((parsed["text"], second))
        lengths = [preprocessor.packed_lengths(x) for x in ((a,), (a, b))]
        length = preprocessor.bucket(tf.reduce_max(tf.where(has_second, lengths[1], lengths[0])))
        one, two = (preprocessor.pack(x, length) for x in ((a,), (a, b)))
        rows = {name: tf.where(has_second[:, None], two[name], one[name]) for name in one}
        return self.features_in_graph(rows)

    @functools.cached_property
    def _rows_graph(self):
        """`graph`, where its answer has no axis of tokens a few rows of like length at a time."""
        tf = _tf()
        outputs = self.graph.get_concrete_function().structured_outputs
        if len(outputs) > 1 or any(None in x.shape[1:] for x in outputs.values()):
            return self.graph
        (name,) = outputs
        rows = by_length(lambda features: self.graph(features)[name])
        specs = [self.token_specs()]
        return tf.function(lambda features: {name: rows(features)}, specs, autograph=False)

    def _answer(self, features):
        return self.decode(self._rows_graph(features), features)

    def decode(self, outputs, features):
        """From what `tokens` gives to the answer, on any backend."""
        return outputs

    def probes(self):
        single = [("serving_default", {"text": texts}) for texts in (SHORT, LONG)]
        pairs = [
            ("serving_default" if "pair" not in self.takes else "pair", {"text": a, "text_b": b})
            for a, b in ((SHORT, SHORT[::-1]), (LONG, LONG[::-1]))
        ]
        packed = ("preprocess", dict(zip(self.columns, (SHORT, SHORT[::-1]))))
        return [packed, *(single if len(self.columns) == 1 else []), *pairs]

    def expected(self, signature, inputs):
        features = self.preprocessor(tuple(inputs.values()))
        features = {name: keras.ops.cast(features[name], "int32") for name in self.model.input}
        if signature == "preprocess":
            return {name: keras.ops.convert_to_numpy(x) for name, x in features.items()}
        outputs = self.decode(self.run(features), features)
        return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}

    def warmup_inputs(self, item):
        pair = isinstance(item, (tuple, list)) and len(item) == 2
        if not pair or "pair" not in self.takes:
            return super().warmup_inputs(item)
        if not all(isinstance(text, str) for text in item):
            return None
        return "pair", {"text": [item[0]], "text_b": [item[1]]}

    def wanted_item(self):
        both = "pair" in self.takes
        return "a string, or a tuple of two" if both else super().wanted_item()


class ServedClassifier(ServedTexts):
    """`BertTextClassifier`."""

    @property
    def own_labels(self):
        return list(self.model.label_names)

    @functools.cached_property
    def net(self):
        # Without an activation that it may end with.
        return keras.Model(self.model.input, self.model.output_activation.input)

    def probabilities(self, logits):
        """Logits (N, C) to probabilities (N, C), as the model's own activation and task have it."""
        if self.model.activation != keras.activations.linear:
            return self.model.activation(logits)
        multi_label = self.model.multi_label
        return keras.ops.sigmoid(logits) if multi_label else keras.ops.softmax(logits)

    def decode(self, outputs, features):
        probabilities = self.probabilities(outputs["logits"])  # (N, C)
        return {"probabilities": probabilities, "score": keras.ops.max(probabilities, axis=-1)}

    def _answer(self, features):
        tf = _tf()
        outputs = super()._answer(features)
        best = tf.argmax(outputs["probabilities"], axis=-1)
        return {**outputs, "label": tf.gather(tf.constant(self.labels), best)}

    def _more(self):
        return {"classify": Signature(self._classify, {"inputs": _spec("inputs")}, CLASSIFY)}

    def _classify(self, inputs):
        tf = _tf()
        scores = self._answer(self.pack_examples(inputs))["probabilities"]
        classes = tf.broadcast_to(tf.constant([self.labels]), tf.shape(scores))
        return {"classes": classes, "scores": scores}

    def probes(self):
        mixed = [(text,) if i % 2 else (text, SHORT[-i]) for i, text in enumerate(SHORT)]
        return [*super().probes(), ("classify", {"inputs": mixed})]

    def expected(self, signature, inputs):
        if signature == "classify":
            rows = [super(ServedClassifier, self).expected("", _columns(x)) for x in _rows(inputs)]
            scores = np.concatenate([row["probabilities"] for row in rows])
            return {"scores": scores, "classes": [self.labels] * len(scores)}
        found = super().expected(signature, inputs)
        if signature == "preprocess":
            return found
        best = found["probabilities"].argmax(-1)
        ranked = np.sort(found["probabilities"], axis=-1)
        clear = ranked[:, -1] - ranked[:, -2:-1].max(-1, initial=-1) > self.margin
        return {**found, "label": [self.labels[i] for i in best], "clear": clear}


class ServedRegressor(ServedTexts):
    """`BertTextRegressor`."""

    output = "score"

    def _more(self):
        def regress(inputs):
            return {"outputs": self._answer(self.pack_examples(inputs))["score"]}

        return {"regress": Signature(regress, {"inputs": _spec("inputs")}, REGRESS)}

    def probes(self):
        mixed = [(text,) if i % 2 else (text, SHORT[-i]) for i, text in enumerate(SHORT)]
        return [*super().probes(), ("regress", {"inputs": mixed})]

    def expected(self, signature, inputs):
        if signature == "regress":
            rows = [super(ServedRegressor, self).expected("", _columns(x)) for x in _rows(inputs)]
            return {"outputs": np.concatenate([row["score"] for row in rows])}
        return super().expected(signature, inputs)


def _rows(inputs):
    return inputs["inputs"]


def _columns(row):
    """A single text or pair as columns of one row."""
    return {name: [text] for name, text in zip(("text", "text_b"), row)}


class ServedNextSentence(ServedTexts):
    """`BertNextSentencePredictor`."""

    columns = ("text", "text_b")
    takes = ("serving_default",)

    def decode(self, outputs, features):
        return {"probability": follows(outputs["logits"])}


def follows(logits):
    """Logits (N, 2) to the probability that B follows A."""
    return keras.ops.sigmoid(logits[:, 0] - logits[:, 1])


class ServedEmbedder(ServedTexts):
    """`BertTextEmbedder`."""

    output = "embedding"

    def decode(self, outputs, features):
        if self.model.pooling != "tokens":
            return outputs
        return {**outputs, "count": keras.ops.sum(features["padding_mask"], axis=-1)}


class ServedEncoder(ServedTexts):
    """`BertBackbone`, with the output names of TF Hub's encoders."""

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        # It has to fit as that of a task.
        super().__init__(
            model, own_preprocessor(model, preprocessor, BertPreprocessor), labels, settings
        )

    def decode(self, outputs, features):
        default = outputs.get("pooled_output")
        more = {} if default is None else {"default": default}
        return {**outputs, **more, "padding_mask": features["padding_mask"]}


# === Windows of long texts ===


class ServedTagger(Served):
    """`BertTokenClassifier`."""

    # What fills the columns of a row with fewer entities than another.
    fills = {"label": "", "text": "", "start": -1, "end": -1, "score": 0.0}

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
                f"labels={self.labels} has to say of the model's own {self.own_labels}, in their "
                "order, with the same 'B-', 'I-' or 'O', what their types are called."
            )

    def _types(self):
        """The type of each class that has one, by the model's names and by those given."""
        old, new = (TagSet(names).meanings for names in (self.own_labels, self.labels))
        return [(a[0], b[0]) for a, b in zip(old, new) if a is not None and b is not None]

    def pack(self, text):
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(text)))

    def answer(self, text):
        tf, preprocessor = _tf(), self.preprocessor
        points = decoding.code_points(text)
        ids, starts, ends = _with_long_rows(preprocessor.tokenizer.tokenize_with_offsets(text))
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        sizes = tf.fill(tf.shape(lengths), preprocessor._window_size())
        windows = cut_windows_in_graph(lengths, sizes, preprocessor._stride())
        features = self.features_in_graph(preprocessor.pack((take_windows(ids, *windows),)))
        logits = decoding.in_windows(
            lambda part: self.graph(part)["logits"],
            features,
            (tf.shape(features["token_ids"])[1], self.model.num_classes),
        )  # (R, T, C)
        rows, begins, lengths = windows
        firsts = tf.gather(ids.row_starts(), rows) + tf.cast(begins, tf.int64)
        window, place, _ = decoding.most_context(firsts, lengths, tf.size(ids.values))
        logits = tf.gather_nd(logits, tf.stack([window, place + 1], axis=1))  # (pieces, C)
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float64))
        pieces = ids.value_rowids(), starts.flat_values, ends.flat_values
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
        texts = decoding.substrings(
            points, labels.value_rowids(), starts.flat_values, ends.flat_values
        )
        columns = dict(zip(("label", "start", "end", "score"), found))
        columns["text"] = labels.with_values(texts)
        count = labels.row_lengths()
        # One column at least: what holds nothing at all is no row to a server.
        shape = tf.stack([tf.size(count, tf.int64), tf.reduce_max(tf.concat([count, [1]], 0))])
        padded = {name: x.to_tensor(self.fills[name], shape=shape) for name, x in columns.items()}
        return {**padded, "count": tf.cast(count, tf.int32)}

    def probes(self):
        return [("serving_default", {"text": [*SHORT, PROSE]})]

    def expected(self, signature, inputs):
        texts = inputs["text"]
        pieces, probabilities = self.model._probabilities(texts, 32, "tag()")
        ranked = np.sort(probabilities, axis=-1)
        gap = ranked[:, -1] - ranked[:, -2:-1].max(-1, initial=-1)
        rows = np.split(gap, pieces.unit_splits[1:-1])
        clear = [row.min(initial=1) > self.margin for row in rows]
        found = self.model.tag(texts)
        types = dict(self._types())
        for row in found:
            for entity in row:
                entity["label"] = types[entity["label"]]
        most = max(1, *map(len, found))
        columns = {
            name: [[e[name] for e in row] + [fill] * (most - len(row)) for row in found]
            for name, fill in self.fills.items()
        }
        return {**columns, "count": [len(row) for row in found], "clear": clear}


class ServedReader(Served):
    """`BertQuestionAnswering`."""

    columns = ("question", "context")
    settings = {"top_k": 1, "null_threshold": None, "max_answer_length": 30, "n_best": 20}

    def pack(self, question, context):
        """Windows (N, W, T), of which the first `count` (N,) are there.

        Not one after the other: a server that batches cuts outputs where requests end.
        """
        tf, preprocessor = _tf(), self.preprocessor
        segments = preprocessor.tokenize((question, context))
        rows, *_ = preprocessor._cut(segments)  # (R,)
        features = self.features_in_graph(preprocessor.assemble(segments))  # (R, T)
        fills = {"token_ids": preprocessor.tokenizer.pad_token_id}
        packed = {}
        for name, x in features.items():
            x = tf.RaggedTensor.from_value_rowids(x, rows, tf.size(question), validate=False)
            packed[name] = x.to_tensor(fills.get(name, 0))
        return {**packed, "count": tf.cast(x.row_lengths(), tf.int32)}

    def answer(self, question, context):
        tf, preprocessor = _tf(), self.preprocessor
        points = decoding.code_points(context)
        segments = _with_long_rows(preprocessor.tokenize((question, context)))
        questions, contexts, starts, ends = segments
        rows, begins, lengths = preprocessor._cut(segments)  # (R,)
        features = self.features_in_graph(preprocessor.assemble(segments))  # (R, T)
        length = tf.shape(features["token_ids"])[1]

        def both(part):
            outputs = self.graph(part)
            return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)

        logits = decoding.in_windows(both, features, (length, 2))  # (R, T, 2)
        firsts = tf.gather(contexts.row_starts(), rows) + tf.cast(begins, tf.int64)
        *_, chosen = decoding.most_context(firsts, lengths, tf.size(contexts.values))
        shift = tf.gather(preprocessor._begin_of_context(questions), rows)  # (R,)
        position = tf.range(length) - shift[:, None]  # (R, T)
        inside = (position >= 0) & (position < lengths[:, None])
        element = tf.cast(chosen.row_starts(), tf.int32)[:, None] + position
        flags = tf.concat([chosen.values, [False]], 0)
        counts = inside & tf.gather(flags, tf.where(inside, element, 0))
        splits = tf.searchsorted(rows, tf.range(tf.size(context) + 1))
        top_k = self.settings["top_k"]
        spans, scores, null_scores = decoding.best_spans(
            *(logits[:, :, 0], logits[:, :, 1], counts, inside, splits),
            n_best=self.settings["n_best"],
            max_length=self.settings["max_answer_length"],
            null_threshold=self.settings["null_threshold"],
            top_k=top_k,
        )
        window, first, last = tf.unstack(tf.reshape(spans, [-1, 3]), axis=1)  # (N * K,)
        found = window >= 0
        window = tf.where(found, window, 0)
        to_token = firsts - tf.cast(shift, tf.int64)
        first, last = (
            tf.where(found, tf.gather(to_token, window) + tf.cast(x, tf.int64), 0)
            for x in (first, last)
        )
        start, end = (
            tf.where(found, tf.gather(tf.concat([x.flat_values, [0]], 0), i), -1)
            for x, i in ((starts, first), (ends, last))
        )
        example = tf.repeat(tf.range(tf.size(context)), top_k)
        texts = decoding.substrings(points, example, tf.maximum(start, 0), tf.maximum(end, 0))
        shape = (-1,) if top_k == 1 else (-1, top_k)
        columns = {"answer": texts, "start": start, "end": end, "score": scores}
        columns = {name: tf.reshape(x, shape) for name, x in columns.items()}
        return {**columns, "null_score": null_scores}

    def probes(self):
        # The model itself takes no context without a token.
        contexts = [
            *SHORT,
            PROSE,
            "Anna met Bob in Rome (Italy) in 1999, not in Paris: 東京ではない。",
        ]
        tokens = self.preprocessor.tokenizer.tokenize(contexts)
        contexts = [text for text, ids in zip(contexts, tokens) if ids]
        questions = ["Who met Bob?", "Где?", "", "日本語?"]
        questions = [questions[i % 4] for i in range(len(contexts))]
        inputs = {"question": questions, "context": contexts}
        return [("serving_default", inputs), ("preprocess", inputs)]

    def expected(self, signature, inputs):
        if signature == "preprocess":
            return self._packed(inputs)
        top_k = self.settings["top_k"]
        rows = self.model.answer(
            inputs["question"], inputs["context"], **{**self.settings, "top_k": top_k + 1}
        )
        clear = []
        for row in rows:
            scores = np.array([answer["score"] for answer in row] + [0.0])
            clear.append((scores[:-1] - scores[1:])[:top_k].min() > self.margin)
            if self.settings["null_threshold"] is not None:
                gap = row[0]["null_score"] - self.settings["null_threshold"]
                clear[-1] &= abs(gap) > self.margin
        missing = {"answer": "", "start": None, "end": None, "score": 0.0}
        columns = {"null_score": [row[0]["null_score"] for row in rows], "clear": clear}
        for name, fill in missing.items():
            column = [[*(a[name] for a in row), *[fill] * top_k][:top_k] for row in rows]
            column = [[-1 if value is None else value for value in row] for row in column]
            columns[name] = [row[0] for row in column] if top_k == 1 else column
        return columns

    def _packed(self, inputs):
        """What `preprocess` has to give."""
        x = inputs["question"], inputs["context"]
        rows = self.preprocessor.windows(x).examples
        count = np.bincount(rows, minlength=len(x[0]))
        place = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        found = {"count": count.astype("int32")}
        features = self.preprocessor(x)
        for name in self.model.input:
            values = keras.ops.convert_to_numpy(features[name])  # (R, T)
            fill = self.preprocessor.tokenizer.pad_token_id if name == "token_ids" else 0
            shape = (len(count), count.max(), values.shape[1])
            found[name] = np.full(shape, fill, "int32")
            found[name][rows, place] = values
        return found

    def example(self):
        return {"question": "Who met Bob?", "context": "Anna met Bob in Rome."}


# === Choices ===


class ServedChooser(Served):
    """`BertMultipleChoice`."""

    columns = ("prompt", "choices")

    def column_specs(self):
        return {"prompt": _spec("prompt"), "choices": _spec("choices", 2)}

    def pack(self, prompt, choices):
        return self.features_in_graph(self.preprocessor._call_in_graph((prompt, choices)))

    def answer(self, prompt, choices):
        tf = _tf()
        logits = self.graph(self.pack(prompt, choices))["logits"]
        scores = tf.nn.softmax(logits)
        # Columns of padding alone are gone.
        missing = tf.shape(choices)[1] - tf.shape(scores)[1]
        scores = tf.pad(scores, [[0, 0], [0, missing]])
        index = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return {
            "choice": tf.gather(choices, index, batch_dims=1),
            "index": index,
            "score": tf.reduce_max(scores, axis=-1),
            "scores": scores,
        }

    def _shapes(self):
        return [(2, 3, min(16, self._longest())), (1, 1, self._longest())]

    def probes(self):
        prompts = [*SHORT[:4], PROSE]
        choices = [["noon?", "x"], SHORT[2:6], ["北京", "", "b"], ["a"], ["one", "two", PROSE]]
        most = max(map(len, choices))
        choices = [row + [""] * (most - len(row)) for row in choices]
        return [("serving_default", {"prompt": prompts, "choices": choices})]

    def expected(self, signature, inputs):
        prompts, rows = inputs["prompt"], inputs["choices"]
        rows = [row[: 1 + max(i for i, x in enumerate(row) if x)] for row in rows]
        found = self.model.choose(prompts, rows)
        most = len(inputs["choices"][0])
        columns = {name: [row[name] for row in found] for name in ("choice", "index", "score")}
        columns["scores"] = [row["scores"] + [0.0] * (most - len(row["scores"])) for row in found]
        ranked = np.sort(columns["scores"], axis=-1)
        return {**columns, "clear": ranked[:, -1] - ranked[:, -2] > self.margin}

    def warmup_inputs(self, item):
        if not isinstance(item, (tuple, list)) or len(item) != 2 or not isinstance(item[0], str):
            return None
        choices = item[1]
        if not isinstance(choices, (tuple, list)) or not choices or not choices[-1]:
            return None
        if not all(isinstance(text, str) for text in choices):
            return None
        return "serving_default", {"prompt": [item[0]], "choices": [list(choices)]}

    def wanted_item(self):
        return "a tuple of a prompt and a list of choices, the last of which is not empty"

    def example(self):
        return {"prompt": "Lunch at", "choices": ["noon?", "a prize?"]}


# === Hidden tokens ===


class ServedMaskedLM(Served):
    """`BertMaskedLM`."""

    settings = {"top_k": 5}
    # What fills the columns of a text with fewer masks than another.
    fills = {"token": "", "token_id": -1, "score": 0.0, "text": ""}
    # The output that has the logits.
    _logits = "logits"

    @functools.cached_property
    def packing(self):
        """What packs rows of which nothing is hidden."""
        own = self.preprocessor
        return BertPreprocessor(own.tokenizer, own.sequence_length, own.truncate, own.num_segments)

    def _tokens(self, text):
        """Tokens, where they start, and the places of masks among them: ragged (N, None)."""
        tf = _tf()
        tokenizer = self.preprocessor.tokenizer.with_special_tokens()
        ids, starts, _ = _with_long_rows(tokenizer.tokenize_with_offsets(text))
        at = tf.where(ids.values == tokenizer.mask_token_id)[:, 0]
        rows = tf.gather(ids.value_rowids(), at)
        places = at - tf.gather(ids.row_starts(), rows)
        places = tf.RaggedTensor.from_value_rowids(places, rows, ids.nrows(), validate=False)
        return ids, starts, places

    def _rows(self, ids, positions):
        """Windows of tokens (R, None) and positions in them (R, None) to inputs."""
        features = self.packing.pack((ids,))
        return self.features_in_graph({**features, "mask_positions": positions.to_tensor()})

    def pack(self, text):
        tf = _tf()
        ids, _, places = self._tokens(text)
        room = self.preprocessor.sequence_length - 2
        return self._rows(ids, tf.ragged.boolean_mask(places, places < room) + 1)

    def answer(self, text):
        tf, preprocessor = _tf(), self.preprocessor
        points = decoding.code_points(text)
        ids, starts, places = self._tokens(text)
        room = preprocessor.sequence_length - 2
        lengths, counts = ids.row_lengths(), places.row_lengths()  # (N,)
        # A text that is too long has a window for each mask, with the mask in its middle.
        fits = lengths <= room
        windows = tf.where(fits, tf.minimum(counts, 1), counts)
        text_of, place = places.value_rowids(), places.values  # (masks,)
        short = tf.gather(fits, text_of)
        index = tf.range(tf.size(place, tf.int64)) - tf.gather(places.row_starts(), text_of)
        before = tf.cumsum(windows, exclusive=True)
        window = tf.gather(before, text_of) + tf.where(short, tf.zeros_like(index), index)
        last = tf.gather(lengths, text_of) - room
        first = tf.minimum(tf.maximum(place - room // 2, 0), tf.maximum(last, 0))
        rows = tf.repeat(tf.range(tf.size(lengths, tf.int64)), windows)  # (R,)
        begins = tf.math.unsorted_segment_min(first, window, tf.size(rows))
        begins = tf.where(tf.gather(fits, rows), tf.zeros_like(begins), begins)
        position = place - tf.gather(begins, window) + 1
        size = tf.minimum(tf.gather(lengths, rows), room)
        taken = take_windows(ids, *(tf.cast(x, tf.int32) for x in (rows, begins, size)))
        slots = tf.RaggedTensor.from_value_rowids(
            tf.cast(position, tf.int32), window, tf.size(rows, tf.int64), validate=False
        )
        features = self._rows(taken, slots)
        slot = tf.range(tf.size(place, tf.int64)) - tf.gather(slots.row_starts(), window)
        vocabulary = preprocessor.tokenizer.vocabulary_size()
        top_k = min(self.settings["top_k"], vocabulary)

        def best(part):
            """The best tokens and their probabilities in each slot, side by side."""
            logits = self.graph(part)[self._logits][..., :vocabulary]  # (B, P, V)
            values, tokens = tf.math.top_k(logits, top_k)
            logits = tf.cast(logits, tf.float64)
            values = tf.cast(values, tf.float64)
            total = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
            # As floats, whose 24 bits hold any token id.
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
        # The mask itself stands there; TensorFlow 2.12 counts other characters for its stand-in.
        end = start + len(preprocessor.tokenizer.mask_token)
        names, texts = decoding.with_tokens(
            *(preprocessor.tokenizer, points, text_of, start, end, previous, tokens)
        )
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
        mask = self.preprocessor.tokenizer.mask_token
        return {"text": f"Lunch at {mask}?"}


class ServedPretrainer(ServedMaskedLM):
    """`BertPretrainer`."""

    _logits = "mlm_logits"

    def text_signatures(self):
        found = super().text_signatures()
        if self.model.next_sentence:
            specs = {name: _spec(name) for name in ("text", "text_b")}
            found["pair"] = Signature(self._pair, specs)
        return found

    def _pair(self, text, text_b):
        tf = _tf()
        features = self.packing.pack(self.packing.tokenize((text, text_b)))
        first = tf.zeros_like(features["token_ids"][:, :1])
        outputs = self.graph(self.features_in_graph({**features, "mask_positions": first}))
        return {"probability": follows(outputs["nsp_logits"])}

    def probes(self):
        pair = ("pair", {"text": SHORT, "text_b": SHORT[::-1]})
        return [*super().probes(), *([pair] if self.model.next_sentence else [])]

    def _pair_expected(self, inputs):
        features = self.packing(tuple(inputs.values()))
        first = np.zeros((len(inputs["text"]), 1), "int32")
        features = {**features, "mask_positions": keras.ops.convert_to_tensor(first)}
        features = {name: keras.ops.cast(features[name], "int32") for name in self.model.input}
        probability = follows(self.run(features)["nsp_logits"])
        return {"probability": keras.ops.convert_to_numpy(probability)}


# === Several tasks ===


class ServedTasks(Served):
    """`BertMultiTask`: the signatures of each task under its name."""

    def __init__(self, model, preprocessor=None, labels=None, settings=None):
        parts = {name: served(task) for name, task in model.tasks.items()}
        super().__init__(model)
        self.parts = parts
        self.labels = labels
        self.first = next(iter(self.parts))
        self.columns = self.parts[self.first].columns

    @property
    def labels(self):
        """A dict of name to labels, of the tasks that have some."""
        return {name: part.labels for name, part in self.parts.items() if part.labels}

    @labels.setter
    def labels(self, labels):
        for name, names in (labels or {}).items():
            self.parts[name].labels = names

    @property
    def own_labels(self):
        return {name: part.own_labels for name, part in self.parts.items() if part.own_labels}

    def model_settings(self):
        return {name: part.settings for name, part in self.parts.items() if part.settings}

    def signatures(self, tokens_only=False):
        found = {}
        for name, part in self.parts.items():
            for key, signature in part.signatures(tokens_only).items():
                key = self._name(name, key)
                if key in {*found, "serving_default"}:
                    raise ValueError(
                        f"Two signatures would have the name '{key}'; give the tasks other names."
                    )
                found[key] = signature
        if not tokens_only:
            found["serving_default"] = found[self.first]
        return found

    @staticmethod
    def _name(task, signature):
        return task if signature == "serving_default" else f"{task}_{signature}"

    def batches(self):
        """`(signature, features)` of all tasks, for `tokens`."""
        for name, part in self.parts.items():
            for signature, features in part.batches():
                yield self._name(name, signature), features

    def probes(self):
        return [
            (self._name(name, signature), inputs)
            for name, part in self.parts.items()
            for signature, inputs in part.probes()
        ]

    def _part(self, signature):
        """The task of a signature, the longest name that fits, and its own name for it."""
        names = [n for n in self.parts if signature == n or signature.startswith(f"{n}_")]
        name = max(names, key=len)
        return self.parts[name], signature[len(name) + 1 :] or "serving_default"

    def expected(self, signature, inputs):
        part, own = self._part(signature)
        return part.expected(own, inputs)

    def tokens_of(self, signature, features):
        part, own = self._part(signature)
        return part.tokens_of(own, features)

    def warmup_inputs(self, item):
        found = self.parts[self.first].warmup_inputs(item)
        return found and (self._name(self.first, found[0]), found[1])

    def wanted_item(self):
        return self.parts[self.first].wanted_item()

    def example(self):
        return self.parts[self.first].example()


TASKS = {
    BertTextClassifier: ServedClassifier,
    BertTextRegressor: ServedRegressor,
    BertNextSentencePredictor: ServedNextSentence,
    BertTextEmbedder: ServedEmbedder,
    BertTokenClassifier: ServedTagger,
    BertQuestionAnswering: ServedReader,
    BertMultipleChoice: ServedChooser,
    BertMaskedLM: ServedMaskedLM,
    BertPretrainer: ServedPretrainer,
    BertMultiTask: ServedTasks,
    BertBackbone: ServedEncoder,
}

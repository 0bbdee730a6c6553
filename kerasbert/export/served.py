"""What is served of a model: its signatures, and what they have to answer.

A signature runs in TensorFlow's graph, in a process of its own; what it has to answer comes from
the model's own methods, on any backend. Each kind of head has a file with its own `Served`, which
its row in `kerasbert/kinds.py` names.

N texts, T tokens of a row.
"""

import dataclasses
import functools
import os

import keras
import numpy as np

from kerasbert import private_names
from kerasbert.backend.tensorflow import tf
from kerasbert.export.by_length import by_length
from kerasbert.export.requests import Limits, checked, limits_of
from kerasbert.files import read_json
from kerasbert.kinds import KINDS, Kind, kinds_with
from kerasbert.lineage import ElmoEmbedder, TransformerSeq2SeqLM
from kerasbert.models import BertBackbone
from kerasbert.models.task import BertTask
from kerasbert.parts import encoder_of
from kerasbert.preprocessors.packing import TRUNCATE

# What is served and has no row in `kerasbert.kinds`, or none in its models; only the first is a
# graph from one text's token ids.
_ENCODER = {BertBackbone: Kind("encoder", models="BertBackbone", export="ServedEncoder")}
_OTHERS = _ENCODER | {
    ElmoEmbedder: Kind("elmo_embedder", models="ElmoEmbedder", export="ServedElmo"),
    TransformerSeq2SeqLM: Kind(
        "seq2seq_lm", models="TransformerSeq2SeqLM", export="ServedSeq2SeqLM"
    ),
}

# `kerasbert.search` is above this room.
SEARCH_INDEX = Kind("search_index", models="SearchIndex", export="ServedIndex")

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
# The most windows per text: 65,000 tokens if windows are 128 tokens apart.
MOST_WINDOWS = 512
# Where the best answer is ahead of the next by less, another backend may choose that one: of a
# quantized model, numbers that round the other way are far off.
MARGIN = {None: 1e-4, "int8": 0.2}

PREDICT, CLASSIFY, REGRESS = (
    f"tensorflow/serving/{name}" for name in ("predict", "classify", "regress")
)


@dataclasses.dataclass
class Signature:
    """A function of tensors by keyword that returns a dict of tensors, and its inputs' specs.

    `limits` are the valid ranges of integer inputs such as token ids.
    """

    function: object
    inputs: dict
    method: str = PREDICT
    limits: Limits = Limits({})

    @property
    def checked(self):
        """`function`, after a check of the request against `inputs` and `limits`."""
        return checked(self.function, self.inputs, self.limits)


def spec(name, rank=1, dtype="string"):
    """The `tf.TensorSpec` of an input of any sizes."""
    return tf.TensorSpec((None,) * rank, dtype, name)


def served(model, preprocessor=None, labels=None, settings=None, call="export_serving"):
    """The `Served` of a model.

    Raises:
        TypeError: for a model that cannot be served; `call` is who says so.
    """
    kind = KINDS.get(model.kind) if isinstance(model, BertTask) else None
    # What serves a kind rests on the methods of its class, which those of `lineage` may not have.
    if kind is not None and kind.models not in [cls.__name__ for cls in type(model).__mro__]:
        kind = None
    others = _OTHERS if call == "export_serving" else _ENCODER
    kind = next((row for cls, row in others.items() if isinstance(model, cls)), kind)
    is_class = isinstance(model, type)
    is_index = getattr(model, "kind", None) == SEARCH_INDEX.name and not is_class
    if is_index and call == "export_serving":
        kind = SEARCH_INDEX
    if kind is None or not kind.export:
        wrong = f"the class {model.__name__}" if is_class else f"a {type(model).__name__}"
        rows = *kinds_with("export"), *others.values()
        rows = (*rows, SEARCH_INDEX) if call == "export_serving" else rows
        names = ", ".join(row.models for row in rows)
        raise TypeError(f"{call} takes one of {names}, not {wrong}.")
    return kind.load("export")(model, preprocessor, labels, settings)


def saved_class(model):
    """The name under which Keras has the class of ours that a model is or refines."""
    if getattr(model, "kind", None) == SEARCH_INDEX.name:
        return SEARCH_INDEX.name
    kind = KINDS.get(getattr(model, "kind", None))
    own = kind and kind.models and keras.saving.get_registered_name(kind.load("models"))
    names = map(keras.saving.get_registered_name, type(model).__mro__)
    return next(name for name in names if name == own or name.startswith("kerasbert>"))


def load(preset, name, mode=None):
    """`(model, preprocessor)` of a preset; in float32, unless it is quantized.

    The preprocessor is `None` where the model has its own.
    """
    if name == SEARCH_INDEX.name:
        return SEARCH_INDEX.load("export").read(preset), None
    cls = keras.saving.get_registered_object(name)
    model = cls.from_preset(preset, **({} if mode else {"dtype": "float32"}))
    preprocessor, own = None, os.path.join(preset, "preprocessor")
    if os.path.exists(own):
        name = read_json(os.path.join(own, "preprocessor.json"))["registered_name"]
        preprocessor = keras.saving.get_registered_object(name).from_preset(own)
    return model, preprocessor


def quantization_modes(model):
    """In what a model's weights are quantized: a set, empty for floats."""
    policies = [layer.dtype_policy for layer in private_names.flatten_layers(model)]
    return {getattr(policy, "quantization_mode", None) for policy in policies} - {None}


def of_classes(task, labels, activation, pair=False):
    """`Served.page` of what says one thing of a text, or of a pair: bars.

    Args:
        labels: list of C strings.
        activation: string. "softmax", "sigmoid", or "none" for a number that is no probability.
        pair: bool. Whether there have to be two texts.
    """
    own = {"output": task.output, "labels": labels, "activation": activation}
    truncate = TRUNCATE[task.preprocessor.truncate]
    return {"panel": "classify", **own, "pair": pair, "pairs": True, "truncate": truncate}


def are_texts(values):
    """Whether this is a list or a tuple of strings."""
    return isinstance(values, (tuple, list)) and all(isinstance(text, str) for text in values)


def named_inputs(model):
    """The symbols of a model's inputs by name; those of several tasks begin with the task's."""
    return {x.name: x for x in keras.tree.flatten(model.input)}


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
    # Whether texts are read by a preprocessor.
    needs_preprocessor = True
    # Of answers of many parts a text: what fills the columns of a row with fewer than another.
    fills = {}
    # What a caller may set, and its default.
    settings = {}
    # The name of the output, where the network has one.
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

    @property
    def title(self):
        """What the card calls the model."""
        return type(self.model).__name__

    @property
    def models(self):
        """The Keras models whose weights are served."""
        return [self.model]

    # === From process to process ===

    def save(self, folder):
        """Write what `load` makes the same model of."""
        self.model.save_to_preset(folder)
        if self.preprocessor is not None and not isinstance(self.model, BertTask):
            self.preprocessor.save_to_preset(os.path.join(folder, "preprocessor"))

    def anew(self, folder, name, mode):
        """The same of the model as `save` wrote it."""
        return type(self)(*load(folder, name, mode), self.labels, self.settings)

    def more_bytes(self):
        """How much there is to save beside the weights."""
        return 0

    # === The network ===

    @functools.cached_property
    def net(self):
        """A Keras model from token ids to what `tokens` gives."""
        return self.model

    def run(self, features):
        """What `tokens` gives, on any backend: a dict.

        `features` has the model's inputs by their names; the outputs of several tasks begin with
        the task's.
        """
        values = [features[name] for name in named_inputs(self.model)]
        features = keras.tree.pack_sequence_as(self.model.input, values)
        outputs = self.net(features, training=False)
        return {
            "_".join(path) or self.output: x for path, x in keras.tree.flatten_with_path(outputs)
        }

    def run_as_transformers(self, features):
        """What the class of the same head in transformers gives, by our names: a dict."""
        return self.run({name: features[name] for name in named_inputs(self.model)})

    def check_transformers(self):
        """Raise where transformers has no place for the model."""

    def write_as_transformers(self, folder):
        """Write what transformers and its like need of this kind beside `config.json`."""

    def program(self):
        """The `Program` that answers by an exported graph; `None` where there is none."""
        return None

    def page(self):
        """What the page of `export_web` has to know of this kind; `None` where it has none.

        `panel` is what it shows (a function of `page/answers.mjs`), the rest are its settings.
        """
        return None

    @functools.cached_property
    def graph(self):
        """`run` as a function of the graph, traced once for all signatures."""
        return tf.function(self.run, input_signature=[self.token_specs()], autograph=False)

    def token_specs(self):
        """The inputs of `tokens`."""
        return {name: spec(name, len(x.shape), "int32") for name, x in self.model.input.items()}

    def features_in_graph(self, features):
        """Only what the network takes, int32."""
        return {name: tf.cast(features[name], tf.int32) for name in self.model.input}

    def random_features(self):
        """Batches of token ids, for `tokens`: a list of dicts of int32 arrays."""
        rng, encoder = np.random.default_rng(0), encoder_of(self.model)
        batches = []
        for shape in self._shapes():
            lengths = rng.integers(1, shape[-1] + 1, shape[:-1])
            lengths.flat[0] = shape[-1]
            mask = np.arange(shape[-1]) < lengths[..., None]
            ids = rng.integers(0, encoder.vocabulary_size, shape)
            batch = {
                "token_ids": ids * mask,
                "padding_mask": mask,
                "segment_ids": rng.integers(0, max(encoder.num_segments, 1), shape) * mask,
                "mask_positions": rng.integers(0, shape[-1], (shape[0], 2)),
            }
            names = (name for name in self.model.input if name in batch)
            batches.append({name: batch[name].astype("int32") for name in names})
        return batches

    def _shapes(self):
        return [(3, min(16, self._longest())), (1, self._longest())]

    def _longest(self):
        return min(encoder_of(self.model).max_sequence_length, 512)

    def batches(self):
        """`(signature, features)` on which the network has to answer as the model's own does."""
        return [("tokens", features) for features in self.random_features()]

    def tokens_of(self, signature, features):
        """What that signature has to give for them: a dict of arrays."""
        features = {name: keras.ops.convert_to_tensor(x) for name, x in features.items()}
        return {name: keras.ops.convert_to_numpy(x) for name, x in self.run(features).items()}

    # === Signatures ===

    def signatures(self, tokens_only=False):
        """A dict of name to `Signature`."""
        specs = self.token_specs()
        limits = limits_of(self.model, specs)
        tokens = {"tokens": Signature(lambda **x: self.graph(x), specs, limits=limits)}
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
        return {name: spec(name) for name in self.columns}

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

    def padded(self, columns):
        """Ragged columns (N, None) as `filled` has them, in the graph."""
        count = next(iter(columns.values())).row_lengths()
        shape = tf.stack([tf.size(count, tf.int64), tf.reduce_max(tf.concat([count, [1]], 0))])
        padded = {name: x.to_tensor(self.fills[name], shape=shape) for name, x in columns.items()}
        return {**padded, "count": tf.cast(count, tf.int32)}

    def filled(self, rows):
        """Lists of dicts, one a text, as columns of one width, and how much of each row is there.

        The reverse of what a person's method does with `serving_default`'s answer.
        """
        # One column at least: what holds nothing at all is no row to a server.
        most = max(1, *map(len, rows))
        columns = {
            name: [[one[name] for one in row] + [fill] * (most - len(row)) for row in rows]
            for name, fill in self.fills.items()
        }
        return {**columns, "count": [len(row) for row in rows]}

    def warmup_inputs(self, item):
        """`(signature, inputs)` of a warmup item; `None` for one that does not fit."""
        row = (item,) if isinstance(item, str) else item
        if not are_texts(row) or len(row) != len(self.columns):
            return None
        return "serving_default", {name: [text] for name, text in zip(self.columns, row)}

    def requests(self, items, name="text", of=""):
        """`(signature, inputs)` of each warmup item of a list.

        Args:
            name, of: strings, for errors. What an item is called, and what it is one of.
        """
        found = [self.warmup_inputs(item) for item in items]
        for position, row in enumerate(found):
            if row is None:
                raise ValueError(
                    f"The {name} at position {position}{of} is {items[position]!r}; pass "
                    f"{self.wanted_item()}."
                )
        return found

    def columns_of(self, texts):
        """The signature that takes a list of warmup items, and its inputs: a dict of lists.

        Raises:
            ValueError: for items that do not fit, or not the same signature.
        """
        found = self.requests(texts)
        if not found:
            raise ValueError("There are no texts.")
        for position, row in enumerate(found):
            if row[0] != found[0][0]:
                raise ValueError(
                    f"The text at position {position} is {texts[position]!r}, and the first is "
                    f"{texts[0]!r}; pass single texts or pairs, not both."
                )
        names = found[0][1]
        return found[0][0], {name: [row[name][0] for _, row in found] for name in names}

    def packed(self, columns):
        """What the network takes for columns of texts: int32 arrays; windows of a text are rows."""

        def tensor(values):
            if isinstance(values[0], str):
                return tf.constant(values)
            return tf.ragged.constant(values).to_tensor("")

        packed = self.pack(**{name: tensor(values) for name, values in columns.items()})
        inputs = named_inputs(self.model)
        found = {name: np.asarray(packed[name], "int32") for name in inputs}
        if found["token_ids"].ndim > len(inputs["token_ids"].shape):
            there = found["padding_mask"].any(axis=-1)
            found = {name: x[there] for name, x in found.items()}
        return found

    def prose(self, stride):
        """`PROSE`, truncated to what fits into `max_windows`."""
        text, most = PROSE, self.settings["max_windows"] * stride
        while len(self.preprocessor.tokenizer.tokenize(text)) > most:
            text = text[: len(text) // 2]
        return text

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
    # The signature that takes `tf.train.Example`s, if any: its name, its method, and its output
    # that has the numbers.
    of_examples = None

    def text_signatures(self):
        found = super().text_signatures()
        if "pair" in self.takes:
            found["pair"] = Signature(self.answer, {x: spec(x) for x in ("text", "text_b")})
        if self.of_examples:
            name, method, _ = self.of_examples
            specs = {"inputs": spec("inputs")}
            found[name] = Signature(lambda inputs: self.answer_examples(inputs), specs, method)
        return found

    def answer(self, **columns):
        return self.answer_rows(self.pack(**columns))

    def answer_examples(self, inputs):
        """What the signature `of_examples` gives, in the graph."""
        raise NotImplementedError

    def pack(self, text, text_b=None):
        """Strings (N,) to what the network takes (N, T), in the graph."""
        columns = (text,) if text_b is None else (text, text_b)
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(columns)))

    def pack_examples(self, inputs):
        """Serialized `tf.train.Example`s with `text`, perhaps `text_b`, to packed rows."""
        preprocessor = self.preprocessor
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
    def rows_graph(self):
        """`graph`, where its answer has no axis of tokens a few rows of like length at a time."""
        outputs = self.graph.get_concrete_function().structured_outputs
        if len(outputs) > 1 or any(None in x.shape[1:] for x in outputs.values()):
            return self.graph
        (name,) = outputs
        rows = by_length(lambda features: self.graph(features)[name])
        specs = [self.token_specs()]
        return tf.function(lambda features: {name: rows(features)}, specs, autograph=False)

    def answer_rows(self, features):
        """The answer to packed rows, in the graph."""
        return self.decode(self.rows_graph(features), features)

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
        found = [packed, *(single if len(self.columns) == 1 else []), *pairs]
        if self.of_examples:
            mixed = [(text,) if i % 2 else (text, SHORT[-i]) for i, text in enumerate(SHORT)]
            found.append((self.of_examples[0], {"inputs": mixed}))
        return found

    def read(self, signature, inputs):
        """What the network takes for the inputs of a signature, on any backend."""
        return self.preprocessor(tuple(inputs.values()))

    def expected(self, signature, inputs):
        features = self.read(signature, inputs)
        features = {name: keras.ops.cast(features[name], "int32") for name in self.model.input}
        if signature == "preprocess":
            return {name: keras.ops.convert_to_numpy(x) for name, x in features.items()}
        outputs = self.decode(self.run(features), features)
        return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}

    def expected_of_examples(self, inputs):
        """The numbers (N, ...) that the signature `of_examples` has to give."""
        rows = [
            ServedTexts.expected(self, "", {x: [text] for x, text in zip(("text", "text_b"), row)})
            for row in inputs["inputs"]
        ]
        return np.concatenate([row[self.of_examples[2]] for row in rows])

    def warmup_inputs(self, item):
        if "pair" in self.takes and are_texts(item) and len(item) == 2:
            return "pair", {"text": [item[0]], "text_b": [item[1]]}
        return super().warmup_inputs(item)

    def wanted_item(self):
        return "a string, or a tuple of two" if "pair" in self.takes else super().wanted_item()

"""`Served`, the base class of a model's SavedModel signatures and their reference answers.

A signature runs in TensorFlow's graph, in a separate process; its reference answers come from the
model's own methods, on any backend. The `Served` of each kind of head is in its `served.py`.

N texts, T tokens per row, C classes.
"""

import dataclasses
import functools
import os

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base import keras_internals
from kerasbert.base.files import read_json
from kerasbert.base.lazy import load_models
from kerasbert.base.parts import encoder_of
from kerasbert.heads.base.by_length import by_length
from kerasbert.heads.base.requests import Limits, checked, limits_of
from kerasbert.heads.base.task import BertTask
from kerasbert.kinds import ENCODER, KINDS, SEARCH_INDEX, SERVED, kind_of, kinds_with
from kerasbert.text.packing import TRUNCATE

# Texts for which the answers of the SavedModel must match the model's.
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
# Prose without repetitions, so that no two answers tie; it is several windows long.
PROSE = " ".join(
    _SYLLABLES[i % 16] + _SYLLABLES[i * i // 7 % 16] + ("" if i % 3 else "," if i % 2 else " 東京.")
    for i in range(700)
)
# The most windows per text: 65,000 tokens if windows are 128 tokens apart.
MOST_WINDOWS = 512
# Answers that lead the next best by less than this may differ on another backend. Quantized models
# need a larger margin, because rounding the other way changes a value a lot.
MARGIN = {None: 1e-4, "int8": 0.2}

PREDICT, CLASSIFY, REGRESS = (
    f"tensorflow/serving/{name}" for name in ("predict", "classify", "regress")
)


@dataclasses.dataclass
class Signature:
    """A function that maps keyword tensors to a dict of tensors, and its input specs.

    `limits` are the valid ranges of integer inputs such as token ids.
    """

    function: object
    inputs: dict
    method: str = PREDICT
    limits: Limits = Limits({})

    @property
    def checked(self):
        """`function`, preceded by a check of the request against `inputs` and `limits`."""
        return checked(self.function, self.inputs, self.limits)


def spec(name, rank=1, dtype="string"):
    """Return the `tf.TensorSpec` of an input of any size."""
    return tf.TensorSpec((None,) * rank, dtype, name)


def served(model, preprocessor=None, labels=None, settings=None, call="export_serving"):
    """Return the `Served` of a model.

    Raises:
        TypeError: for a model that cannot be served; the error names the function `call`.
    """
    # Besides tasks, only the encoder can be exported as a graph of one text's token ids.
    others = SERVED if call == "export_serving" else (ENCODER,)
    # Looked up by class: tasks of `lineage` have a kind, but may lack the methods of its class.
    known = {row.model: row for row in (*KINDS.values(), *others) if row.model}
    # KerasHub has classes with the same names.
    is_task = isinstance(model, BertTask)
    classes = type(model).__mro__
    names = [x.__name__ for x in classes if is_task or x.__module__.startswith("kerasbert.")]
    kind = next((known[name] for name in names if name in known), None)
    is_class = isinstance(model, type)
    if SEARCH_INDEX in others and getattr(model, "kind", None) == SEARCH_INDEX.name:
        kind = None if is_class else SEARCH_INDEX  # Also for results of `ServedIndex.read`.
    if kind is None or not kind.served:
        wrong = f"the class {model.__name__}" if is_class else f"a {type(model).__name__}"
        names = ", ".join(row.model for row in (*kinds_with("served"), *others))
        raise TypeError(f"{call} supports {names}, got {wrong}.")
    return kind.load("served")(model, preprocessor, labels, settings)


def saved_class(model):
    """Return the registered name of a model's kerasbert class, its own or an inherited one."""
    if getattr(model, "kind", None) == SEARCH_INDEX.name:
        return SEARCH_INDEX.name
    kind = kind_of(model)
    own = kind and kind.model and keras.saving.get_registered_name(kind.load("model"))
    names = map(keras.saving.get_registered_name, type(model).__mro__)
    return next(name for name in names if name == own or name.startswith("kerasbert>"))


def load(preset, name, mode=None):
    """Return `(model, preprocessor)` of a preset, in float32 unless it is quantized.

    The preprocessor is `None` if the model has its own.
    """
    if name == SEARCH_INDEX.name:
        return SEARCH_INDEX.load("served").read(preset), None
    load_models()
    cls = keras.saving.get_registered_object(name)
    model = cls.from_preset(preset, **({} if mode else {"dtype": "float32"}))
    preprocessor, own = None, os.path.join(preset, "preprocessor")
    if os.path.exists(own):
        name = read_json(os.path.join(own, "preprocessor.json"))["registered_name"]
        preprocessor = keras.saving.get_registered_object(name).from_preset(own)
    return model, preprocessor


def quantization_modes(model):
    """Return the set of a model's quantization modes; empty for floats."""
    policies = [layer.dtype_policy for layer in keras_internals.flatten_layers(model)]
    return {getattr(policy, "quantization_mode", None) for policy in policies} - {None}


def of_classes(task, labels, activation, pair=False):
    """Return `Served.page` of classifiers of texts or pairs, with results shown as bars.

    Args:
        labels: list of C strings.
        activation: string. "softmax", "sigmoid", or "none" for scores that are not probabilities.
        pair: bool. Whether two texts are required.
    """
    own = {"output": task.output, "labels": labels, "activation": activation}
    truncate = TRUNCATE[task.preprocessor.truncate]
    return {"panel": "classify", **own, "pair": pair, "pairs": True, "truncate": truncate}


def are_texts(values):
    """Return whether this is a list or a tuple of strings."""
    return isinstance(values, (tuple, list)) and all(isinstance(text, str) for text in values)


def named_inputs(model):
    """Return a model's symbolic inputs by name, prefixed with the task's name for several tasks."""
    return {x.name: x for x in keras.tree.flatten(model.input)}


class Served:
    """Base class: the `tokens` signature, and the inputs and answers for checks.

    Args:
        model: a model of the task's class.
        preprocessor: a preprocessor for the model; `None` takes the model's, if any.
        labels: list of C strings, for tasks with classes.
        settings: dict. Overrides of `settings`.

    `parts` are a model's tasks by name. Answers are compared only if they lead by `margin`.
    """

    # Names of the inputs of `serving_default`.
    columns = ("text",)
    # Whether texts need a preprocessor.
    needs_preprocessor = True
    # Padding values of the columns of ragged answers.
    fills = {}
    # Options of the export and their defaults.
    settings = {}
    # Name of the output if the network returns a single tensor.
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
        """The names of the model's classes; `None` without classes."""
        return None

    def check_labels(self):
        """Raise if the given labels do not fit the model's own."""

    def model_settings(self):
        """Return the settings that the card shows."""
        return self.settings

    @property
    def title(self):
        """The name of the model in the card."""
        return type(self.model).__name__

    @property
    def models(self):
        """The Keras models with the served weights."""
        return [self.model]

    # === Between processes ===

    def save(self, folder):
        """Write the folder from which `load` restores the model."""
        self.model.save_to_preset(folder)
        if self.preprocessor is not None and not isinstance(self.model, BertTask):
            self.preprocessor.save_to_preset(os.path.join(folder, "preprocessor"))

    def anew(self, folder, name, mode):
        """Return this `Served` for the model that `save` wrote."""
        return type(self)(*load(folder, name, mode), self.labels, self.settings)

    def more_bytes(self):
        """Return the size in bytes of saved data other than weights."""
        return 0

    # === The network ===

    @functools.cached_property
    def net(self):
        """A Keras model from token ids to the outputs of `tokens`."""
        return self.model

    def run(self, features):
        """Compute the outputs of `tokens` as a dict, on any backend.

        `features` has the model's inputs by name; outputs of several tasks are prefixed with the
        task's name.
        """
        values = [features[name] for name in named_inputs(self.model)]
        features = keras.tree.pack_sequence_as(self.model.input, values)
        outputs = self.net(features, training=False)
        return {
            "_".join(path) or self.output: x for path, x in keras.tree.flatten_with_path(outputs)
        }

    def run_as_transformers(self, features):
        """Compute the outputs of the transformers class, as a dict with our names."""
        return self.run({name: features[name] for name in named_inputs(self.model)})

    def check_transformers(self):
        """Raise if transformers does not support the model."""

    def write_as_transformers(self, folder):
        """Write the files of this kind that transformers and others expect beside `config.json`."""

    def program(self):
        """Return the `Program` that answers with an exported graph; `None` if there is none."""
        return None

    def page(self):
        """Return the settings of this kind in the page of `export_web`; `None` if unsupported.

        `panel` names a function of `page/answers.mjs`; the others are its settings.
        """
        return None

    @functools.cached_property
    def graph(self):
        """`run` as a graph function, traced once for all signatures."""
        return tf.function(self.run, input_signature=[self.token_specs()], autograph=False)

    def token_specs(self):
        """Return the input specs of `tokens`."""
        return {name: spec(name, len(x.shape), "int32") for name, x in self.model.input.items()}

    def features_in_graph(self, features):
        """Return only the network's inputs, as int32."""
        return {name: tf.cast(features[name], tf.int32) for name in self.model.input}

    def random_features(self):
        """Return random batches of inputs of `tokens`, as a list of dicts of int32 arrays."""
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
        """Return `(signature, features)` on which network and model outputs are compared."""
        return [("tokens", features) for features in self.random_features()]

    def tokens_of(self, signature, features):
        """Return the reference outputs of a signature of token ids, as a dict of arrays."""
        features = {name: keras.ops.convert_to_tensor(x) for name, x in features.items()}
        return {name: keras.ops.convert_to_numpy(x) for name, x in self.run(features).items()}

    # === Signatures ===

    def signatures(self, tokens_only=False):
        """Return the signatures as a dict of name to `Signature`."""
        specs = self.token_specs()
        limits = limits_of(self.model, specs)
        tokens = {"tokens": Signature(lambda **x: self.graph(x), specs, limits=limits)}
        return tokens if tokens_only else {**self.text_signatures(), **tokens}

    def text_signatures(self):
        """Return the signatures that take strings."""
        specs = self.column_specs()
        return {
            "serving_default": Signature(self.answer, specs),
            "preprocess": Signature(self.pack, specs),
        }

    def column_specs(self):
        """Return the input specs of `serving_default`."""
        return {name: spec(name) for name in self.columns}

    def answer(self, **columns):
        """Compute the outputs of `serving_default` in the graph."""
        raise NotImplementedError

    def pack(self, **columns):
        """Compute the network's inputs for the same strings in the graph."""
        raise NotImplementedError

    # === Checks ===

    def probes(self):
        """Return texts to compare answers on: a list of `(signature, inputs)`, dicts of lists."""
        raise NotImplementedError

    def expected(self, signature, inputs):
        """Return the model's own answers: arrays by the names of the signature's outputs.

        The entry `clear` tells whether each row's answer leads by the margin.
        """
        raise NotImplementedError

    def padded(self, columns):
        """Pad ragged columns (N, None) in the graph, as `filled` does, and add `count`."""
        count = next(iter(columns.values())).row_lengths()
        shape = tf.stack([tf.size(count, tf.int64), tf.reduce_max(tf.concat([count, [1]], 0))])
        padded = {name: x.to_tensor(self.fills[name], shape=shape) for name, x in columns.items()}
        return {**padded, "count": tf.cast(count, tf.int32)}

    def filled(self, rows):
        """Convert lists of dicts, one list per text, to padded columns, and add `count`.

        `expected` then has the form of `serving_default`'s answer.
        """
        # At least one column, because a server cannot split empty outputs by rows.
        most = max(1, *map(len, rows))
        columns = {
            name: [[one[name] for one in row] + [fill] * (most - len(row)) for row in rows]
            for name, fill in self.fills.items()
        }
        return {**columns, "count": [len(row) for row in rows]}

    def warmup_inputs(self, item):
        """Return `(signature, inputs)` of a warmup item; `None` if it does not fit."""
        row = (item,) if isinstance(item, str) else item
        if not are_texts(row) or len(row) != len(self.columns):
            return None
        return "serving_default", {name: [text] for name, text in zip(self.columns, row)}

    def requests(self, items, name="text", of=""):
        """Return `(signature, inputs)` of each warmup item in a list.

        Args:
            name, of: strings, for errors. Name of an item, and of the list that it belongs to.
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
        """Return the signature for a list of warmup items, and its inputs as a dict of lists.

        Raises:
            ValueError: for items that do not fit, or that need different signatures.
        """
        found = self.requests(texts)
        if not found:
            raise ValueError("texts is empty; pass at least one.")
        for position, row in enumerate(found):
            if row[0] != found[0][0]:
                raise ValueError(
                    f"The text at position {position} is {texts[position]!r}, but the first is "
                    f"{texts[0]!r}; pass single texts or pairs, not both."
                )
        names = found[0][1]
        return found[0][0], {name: [row[name][0] for _, row in found] for name in names}

    def packed(self, columns):
        """Return the network's inputs for columns of texts, int32; each window is a row."""

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
        """Return `PROSE`, truncated to `max_windows`."""
        text, most = PROSE, self.settings["max_windows"] * stride
        while len(self.preprocessor.tokenizer.tokenize(text)) > most:
            text = text[: len(text) // 2]
        return text

    def wanted_item(self):
        """Describe a valid warmup item, for errors."""
        names = ", ".join(self.columns)
        return "a string" if len(self.columns) == 1 else f"a tuple ({names}) of strings"

    def example(self):
        """Return one row of inputs of `serving_default`, for the card."""
        return {name: f"An example of {name}." for name in self.columns}


# === Texts and pairs of texts ===


class ServedTexts(Served):
    """Base class of tasks with one answer per text or pair of texts."""

    takes = ("serving_default", "pair")
    # Name, method and numeric output of the signature that takes `tf.train.Example`s, if any.
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
        """Compute the outputs of the signature `of_examples` in the graph."""
        raise NotImplementedError

    def pack(self, text, text_b=None):
        """Convert strings (N,) to the network's inputs (N, T), in the graph."""
        columns = (text,) if text_b is None else (text, text_b)
        preprocessor = self.preprocessor
        return self.features_in_graph(preprocessor.pack(preprocessor.tokenize(columns)))

    def pack_examples(self, inputs):
        """Pack serialized `tf.train.Example`s with `text` and an optional `text_b`."""
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
        """`graph`, run on a few rows of similar length at a time unless outputs have token axes."""
        outputs = self.graph.get_concrete_function().structured_outputs
        if len(outputs) > 1 or any(None in x.shape[1:] for x in outputs.values()):
            return self.graph
        (name,) = outputs
        rows = by_length(lambda features: self.graph(features)[name])
        specs = [self.token_specs()]
        return tf.function(lambda features: {name: rows(features)}, specs, autograph=False)

    def answer_rows(self, features):
        """Compute the answer to packed rows in the graph."""
        return self.decode(self.rows_graph(features), features)

    def decode(self, outputs, features):
        """Convert the outputs of `tokens` to the answer, on any backend."""
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
        """Return the network's inputs for the inputs of a signature, on any backend."""
        return self.preprocessor(tuple(inputs.values()))

    def expected(self, signature, inputs):
        features = self.read(signature, inputs)
        features = {name: keras.ops.cast(features[name], "int32") for name in self.model.input}
        if signature == "preprocess":
            return {name: keras.ops.convert_to_numpy(x) for name, x in features.items()}
        outputs = self.decode(self.run(features), features)
        return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}

    def expected_of_examples(self, inputs):
        """Return the reference numbers (N, ...) of the signature `of_examples`."""
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

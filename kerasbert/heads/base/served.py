"""`Served`, the base class of a model's SavedModel signatures and their reference answers.

Signatures run in TensorFlow's graph, in a separate process; reference answers come from the model's
methods, on any backend.

N texts, T tokens per row, C classes.
"""

import dataclasses
import functools
import os

import keras
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.parts import encoder_of
from kerasbert.heads.base.requests import Limits, checked, limits_of
from kerasbert.heads.base.served_models import load
from kerasbert.heads.base.task import BertTask
from kerasbert.text.long_texts import LongTexts

# Texts for which the SavedModel and the model must return the same answers.
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
# A text of several windows, without repetitions, so that no two answers have the same score.
PROSE = " ".join(
    _SYLLABLES[i % 16] + _SYLLABLES[i * i // 7 % 16] + ("" if i % 3 else "," if i % 2 else " 東京.")
    for i in range(700)
)
# Windows per text: 65,000 tokens with a stride of 128.
MOST_WINDOWS = 512
# If an answer leads by less, another backend may return the next best one. Quantized models need
# more, because they round more.
MARGIN = {None: 1e-4, "int8": 0.2}

PREDICT, CLASSIFY, REGRESS = (
    f"tensorflow/serving/{name}" for name in ("predict", "classify", "regress")
)


@dataclasses.dataclass
class Signature:
    """A function of keyword tensors to a dict of tensors, and its inputs.

    `limits` are the valid ranges of integer inputs such as token ids.
    """

    function: object
    inputs: dict
    method: str = PREDICT
    limits: Limits = Limits({})

    @property
    def checked(self):
        """`function` after a check of the request."""
        return checked(self.function, self.inputs, self.limits)


def spec(name, rank=1, dtype="string"):
    """Return the `tf.TensorSpec` of an input of any size."""
    return tf.TensorSpec((None,) * rank, dtype, name)


def are_texts(values):
    """Return whether this is a list or a tuple of strings."""
    return isinstance(values, (tuple, list)) and all(isinstance(text, str) for text in values)


def named_inputs(model):
    """Return a model's symbolic inputs by name, prefixed with the task's name for several tasks."""
    return {x.name: x for x in keras.tree.flatten(model.input)}


def longest_row(model):
    """Return the longest row's tokens in `Served.random_features`."""
    return min(encoder_of(model).max_sequence_length, 512)


class Served:
    """Base class: the `tokens` signature, and checks.

    Subclasses that take texts define four methods:

    - `answer(**columns)` computes the outputs of `serving_default` in the graph;
    - `pack(**columns)` computes the network's inputs for them, in the graph;
    - `probes()` returns texts to compare, a list of `(signature, inputs)`, with `inputs` a dict of
      lists;
    - `expected(signature, inputs)` returns the model's own answers: arrays by output. `clear` is
      true in rows where the best answer leads by the margin.

    Args:
        model: a model of the task's class.
        preprocessor: a preprocessor; `None` takes the model's.
        labels: list of C strings, for tasks with classes.
        settings: dict. Overrides of `settings`.

    `parts` are a model's tasks by name. Only answers with the lead `margin` are compared.
    """

    # Inputs of `serving_default`.
    columns = ("text",)
    # Whether texts need a preprocessor.
    needs_preprocessor = True
    # Padding of ragged answers.
    fills = {}
    # Options of the export and their defaults.
    settings = {}
    # Output name of a single tensor.
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
        """Return the settings that the model's card shows."""
        return self.settings

    @property
    def long(self):
        """The `LongTexts` of the preprocessor or, without one, of the model."""
        own = getattr(self.model, "long", None)
        return getattr(self.preprocessor, "long", own) or LongTexts()

    @property
    def title(self):
        """The name of the model in its card."""
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

    def reload(self, folder, name, mode):
        """Return an equal `Served` for the model that `save` wrote."""
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

        `features` are the model's inputs. Outputs of several tasks are prefixed with the task's
        name.
        """
        values = [features[name] for name in named_inputs(self.model)]
        features = keras.tree.pack_sequence_as(self.model.input, values)
        outputs = self.net(features, training=False)
        return {
            "_".join(path) or self.output: x for path, x in keras.tree.flatten_with_path(outputs)
        }

    def run_as_transformers(self, features):
        """Compute the outputs of transformers' class, with our names."""
        return self.run({name: features[name] for name in named_inputs(self.model)})

    def check_transformers(self):
        """Raise if transformers does not support the model."""

    def write_as_transformers(self, folder):
        """Write this kind's files besides `config.json` for transformers and others."""

    def program(self):
        """Return the `Program` that answers with an exported graph; `None` for none."""
        return None

    def page(self):
        """Return this kind's settings in the page of `export_web`; `None` if unsupported.

        `panel` is a function of `page/answers.mjs`; the others are its arguments.
        """
        return None

    @functools.cached_property
    def graph(self):
        """`run` as a graph function, traced once."""
        return tf.function(self.run, input_signature=[self.token_specs()], autograph=False)

    def token_specs(self):
        """Return the input specs of `tokens`."""
        return {name: spec(name, len(x.shape), "int32") for name, x in self.model.input.items()}

    def features_in_graph(self, features):
        """Return those features that are inputs of the network, as int32."""
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
        most = longest_row(self.model)
        if all(len(x.shape) == 3 for x in named_inputs(self.model).values()):
            return [(2, 3, min(16, most)), (1, 1, most)]  # Several choices or windows.
        return [(3, min(16, most)), (1, most)]

    def batches(self):
        """Return a list of `(signature, features)` to compare."""
        return [("tokens", features) for features in self.random_features()]

    def tokens_of(self, signature, features):
        """Return the reference outputs of token ids, as a dict of arrays."""
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

    # === Checks ===

    def warmup_inputs(self, item):
        """Return `(signature, inputs)` of a warmup item, or `None`."""
        row = (item,) if isinstance(item, str) else item
        if not are_texts(row) or len(row) != len(self.columns):
            return None
        return "serving_default", {name: [text] for name, text in zip(self.columns, row)}

    def wanted_item(self):
        """Describe a valid warmup item, for error messages."""
        names = ", ".join(self.columns)
        return "a string" if len(self.columns) == 1 else f"a tuple ({names}) of strings"

    def example(self):
        """Return one example row of inputs of `serving_default`, for the card."""
        return {name: f"An example of {name}." for name in self.columns}


# === Functions that heads and exports call ===


def padded(fills, columns):
    """Pad ragged columns (N, None) in the graph, as `filled` does, and add `count`.

    `fills` is a dict of column to padding value, as in `Served`.
    """
    count = next(iter(columns.values())).row_lengths()
    shape = tf.stack([tf.size(count, tf.int64), tf.reduce_max(tf.concat([count, [1]], 0))])
    found = {name: x.to_tensor(fills[name], shape=shape) for name, x in columns.items()}
    return {**found, "count": tf.cast(count, tf.int32)}


def filled(fills, rows):
    """Convert lists of dicts, one per text, to padded columns, as `serving_default` answers, and
    add `count`.
    """
    # At least one column, because servers cannot split empty outputs by rows.
    most = max(1, *map(len, rows))
    columns = {
        name: [[one[name] for one in row] + [fill] * (most - len(row)) for row in rows]
        for name, fill in fills.items()
    }
    return {**columns, "count": [len(row) for row in rows]}


def long_text(task, stride):
    """Return `PROSE`, truncated to `max_windows`."""
    text, most = PROSE, task.settings["max_windows"] * stride
    while len(task.preprocessor.tokenizer.tokenize(text)) > most:
        text = text[: len(text) // 2]
    return text


def requests_of(task, items, name="text", of=""):
    """Return `(signature, inputs)` of each warmup item in a list.

    Args:
        name, of: strings, for errors. Name of an item, and of the list.
    """
    found = [task.warmup_inputs(item) for item in items]
    for position, row in enumerate(found):
        if row is None:
            raise ValueError(
                f"The {name} at position {position}{of} is {items[position]!r}; pass "
                f"{task.wanted_item()}."
            )
    return found


def columns_of(task, texts):
    """Return the signature and inputs (a dict of lists) of warmup items.

    Raises:
        ValueError: for items without a common signature.
    """
    found = requests_of(task, texts)
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


def packed(task, columns):
    """Return the network's inputs, int32, for columns of texts, a row per window."""

    def tensor(values):
        if isinstance(values[0], str):
            return tf.constant(values)
        return tf.ragged.constant(values).to_tensor("")

    features = task.pack(**{name: tensor(values) for name, values in columns.items()})
    inputs = named_inputs(task.model)
    found = {name: np.asarray(features[name], "int32") for name in inputs}
    if found["token_ids"].ndim > len(inputs["token_ids"].shape):
        there = found["padding_mask"].any(axis=-1)
        found = {name: x[there] for name, x in found.items()}
    return found

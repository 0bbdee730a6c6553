"""`SubwordTokenizer`, base class of tokenizers: input checks, offsets, decoding, special tokens."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import reprlib
import threading
import warnings
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice, check_fields, check_value
from kerasbert.base.files import inside, read_json
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.process import uninterrupted
from kerasbert.base.subclasses import as_called
from kerasbert.text import ops
from kerasbert.text.alignment import FORMS, align, character_sizes, in_form, valid_utf8
from kerasbert.text.tokenizer_files import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor
    from kerasbert.checkpoints.checkpoint import Checkpoint

# Shapes: N texts, P pieces of a text, V tokens in the vocabulary.

# Special tokens with a second name in KerasHub.
_NAMES = {"cls": ("cls", "start"), "sep": ("sep", "end")}
# Types of the settings of all tokenizers; see `check_value`.
SETTINGS = {
    **{f"{role}_token": "name?" for role in ROLES},
    "special_tokens_in_strings": "flag",
    "lowercase": "flag",
    "strip_accents": "flag?",
    "split_on_cjk": "flag",
    "split_on_punctuation": "flag",
    "split_characters": "flag",
    "split_on": "name",
    "suffix_indicator": "name",
    "keep_accents": "flag",
    "add_prefix_space": "flag",
    "normalization": "name?",
    "max_input_chars_per_word": "count",
    "normalize": "name?",
}
# Preprocessors tokenize in several threads.
_tracing = threading.RLock()
_is_reported = contextvars.ContextVar("is_reported", default=True)


@contextlib.contextmanager
def unreported():
    """Return a context that suppresses warnings about texts, for texts that are not the user's."""
    token = _is_reported.set(False)
    try:
        yield
    finally:
        _is_reported.reset(token)


def is_reported():
    """Return whether texts are the user's; see `unreported`."""
    return _is_reported.get()


def _check_form(form):
    if form is not None:
        check_choice("normalize", form, FORMS)


def _nested(nesting, rows):
    """Arrange rows in the nesting of `_flattened`."""
    return next(rows) if nesting == 0 else [_nested(one, rows) for one in nesting]


def once(make):
    """Cache a method's result until the tokenizer's vocabulary changes."""

    @functools.wraps(make)
    def made(self):
        if make.__name__ not in self._graphs:
            self._graphs[make.__name__] = make(self)
        return self._graphs[make.__name__]

    return made


class SubwordTokenizer(FromPreset, keras_hub.tokenizers.Tokenizer):
    """Base class of tokenizers: text to token ids, eagerly and in TensorFlow graphs.

    Python inputs give Python outputs: a list of ids for a `str`, a list of lists for a list of
    strings. A `tf.Tensor` or `tf.RaggedTensor` of any rank gives a `tf.RaggedTensor` with one more
    axis. Both run the same graph, with ops that a stock TensorFlow Serving 2.12 supports.

    Subclasses define `_tokenize(text)` and `_tokenize_with_offsets(text)`, from strings (N,) to
    ragged (N, P), the inverse `_detokenize(ids)`, `_word_edges(token)` and the assets.
    """

    # Number of separators between the two texts of a pair.
    num_separators = 1
    # Whether the last of these is a start token, with which the second text begins.
    begins_second = False
    # Whether `report_control` has warned.
    _has_reported = False
    # Whether other markers of the vocabulary stay text despite `special_tokens_in_strings`.
    _only_control = False

    def __init__(
        self,
        special_tokens_in_strings: bool,
        unk_token: str,
        cls_token: str,
        sep_token: str,
        pad_token: str,
        mask_token: str,
        normalize: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "int32")
        super().__init__(**kwargs)
        _check_form(normalize)
        self.normalize = normalize
        self.special_tokens_in_strings = special_tokens_in_strings
        self.unk_token = unk_token
        self.cls_token = cls_token
        self.sep_token = sep_token
        self.pad_token = pad_token
        self.mask_token = mask_token
        # Otherwise, Keras would consume a batch in each `fit` to build the tokenizer.
        self.built = True
        self._forget_graphs()

    def __setattr__(self, name, value):
        if name in SETTINGS:
            check_value(name, value, SETTINGS[name])
        super().__setattr__(name, value)

    def __call__(self, inputs: Tensor, **kwargs: Any) -> Any:
        # Not Keras' own `__call__`, which traverses every string and rewords every error.
        return self.tokenize(inputs)

    def call(self, inputs: Tensor) -> Tensor:
        return self.tokenize(inputs)

    def tokenize(self, inputs: Tensor) -> Any:
        """Convert text to token ids.

        Args:
            inputs: `str`, or a (nested) list of strings, or a string array or tensor.

        Returns:
            int32 ids: lists for Python inputs, else a `tf.RaggedTensor` (..., P), or (P,) for a
            scalar.

        Raises:
            TypeError: for anything but text, with its value and position.
            ValueError: for `bytes` that are not UTF-8.
        """
        return self._run("_tokenize", inputs)[0]

    def tokenize_with_offsets(self, inputs: Tensor) -> tuple[Any, Any, Any]:
        """Convert text to token ids and their positions in the text.

        Args:
            inputs: as for `tokenize`.

        Returns:
            `(ids, starts, ends)`, each shaped like the ids, in characters (code points) of the
            original string: `text[start:end]` became the token.
        """
        return self._run("_tokenize_with_offsets", inputs)

    def detokenize(self, inputs: Tensor) -> Any:
        """Convert token ids to text.

        Args:
            inputs: ids, (P,) or (N, P): lists, arrays or tensors, including ragged ones.

        Returns:
            `str` or a list of strings for Python inputs, else a string tensor.

        Raises:
            ValueError: for an id outside the vocabulary.
        """
        self._check_vocabulary()
        if not ops.is_tensor(inputs):
            if keras.ops.is_tensor(inputs):
                inputs = keras.ops.convert_to_numpy(inputs)
            if hasattr(inputs, "tolist"):
                inputs = inputs.tolist()
            if isinstance(inputs, (list, tuple)):
                inputs = [x.tolist() if hasattr(x, "tolist") else x for x in inputs]
            self._check_ids(inputs)
            nested = len(inputs) > 0 and not isinstance(inputs[0], int)
            texts = self._decode(list(inputs) if nested else [inputs])
            return texts if nested else texts[0]
        inputs = tf.cast(inputs, "int32")
        if not isinstance(inputs, tf.RaggedTensor):
            flat = inputs[tf.newaxis] if inputs.shape.rank == 1 else inputs
            flat = tf.RaggedTensor.from_tensor(flat)
            texts = self.graph("_detokenize")(flat)
            return texts[0] if inputs.shape.rank == 1 else texts
        return self.graph("_detokenize")(inputs.with_row_splits_dtype("int64"))

    def get_vocabulary(self) -> list[str]:
        """Return all tokens, in the order of their ids."""
        self._check_vocabulary()
        return list(self.vocabulary)

    def vocabulary_size(self) -> int:
        self._check_vocabulary()
        return len(self.vocabulary)

    def id_to_token(self, id: int) -> str:
        self._check_vocabulary()
        if not 0 <= id < len(self.vocabulary):
            raise ValueError(
                f"Token id {id} is outside the vocabulary's 0 to {len(self.vocabulary) - 1}."
            )
        return self.vocabulary[id]

    def token_to_id(self, token: str) -> int:
        self._check_vocabulary()
        try:
            return self._token_ids[token]
        except KeyError:
            raise ValueError(
                f"The vocabulary of this {type(self).__name__} ({len(self.vocabulary)} tokens) "
                f"has no token {token!r}."
            ) from None

    @once
    def word_edges(self) -> np.ndarray:
        """Return which tokens begin a word, and after which tokens a word begins.

        Words are those of BERT, whatever the vocabulary marks: the parts between white space, and
        each punctuation mark. In byte-pair and SentencePiece vocabularies, which mark only white
        space, each piece of scripts without spaces (Chinese, Japanese, Thai, ...) is a word.

        Returns:
            bool array (V, 2), for `kerasbert.data.word_starts`.
        """
        self._check_vocabulary()
        return np.array([self._word_edges(token) for token in self.vocabulary], bool)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "special_tokens_in_strings": self.special_tokens_in_strings,
            "unk_token": self.unk_token,
            "cls_token": self.cls_token,
            "sep_token": self.sep_token,
            "pad_token": self.pad_token,
            "mask_token": self.mask_token,
            **({} if self.normalize is None else {"normalize": self.normalize}),
        }

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> Self:
        return checkpoint.make_tokenizer(**kwargs)

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        # KerasHub's loader requires the encoder's config.json in the same directory.
        path = os.path.join(directory, "tokenizer.json")
        saved = read_json(path)
        name = saved.get("registered_name")
        saved_class, config = as_called(saved, cls)
        if not (isinstance(saved_class, type) and issubclass(saved_class, SubwordTokenizer)):
            raise ValueError(
                f"'{path}' names the class {name!r}, which is not a tokenizer of kerasbert; save "
                "or download the preset again."
            )
        if not isinstance(config, dict):
            raise ValueError(f"'{path}' has no 'config'; save or download the preset again.")
        check_fields(config, SETTINGS, path)
        tokenizer = saved_class.from_config({**config, **kwargs})
        tokenizer.load_preset_assets(directory)
        return tokenizer

    def load_preset_assets(self, preset: AnyPath) -> None:
        # `config_file` determines the folder, which must stay inside the preset.
        folder, source = self.config_file.split(".")[0], os.path.join(preset, "tokenizer.json")
        inside(os.path.join(preset, "assets"), folder, source)
        for asset in self.file_assets:
            inside(preset, f"assets/{folder}/{asset}", source, nested=True)
        super().load_preset_assets(preset)

    # Vocabulary and special tokens

    def _set_tokens(self, vocabulary):
        """Store the tokens in the order of their ids; `None` if there are none yet."""
        self._forget_graphs()
        # Bypasses Keras' attribute tracking, which takes 3 seconds for 256,000 tokens.
        tokens = None if vocabulary is None else tuple(vocabulary)
        object.__setattr__(self, "vocabulary", tokens)
        object.__setattr__(self, "_token_ids", None)
        if vocabulary is not None:
            self._check_tokens()
            ids = {token: id for id, token in enumerate(tokens)}
            object.__setattr__(self, "_token_ids", ids)
            if len(self._token_ids) < len(self.vocabulary):
                self._report_duplicates()
        special = self._special_tokens()
        for role, token in special.items():
            for name in _NAMES.get(role, (role,)):
                setattr(self, f"{name}_token", token)
                setattr(self, f"{name}_token_id", (self._token_ids or {}).get(token))
        known = special.values() if vocabulary is None else self._token_ids
        names = [role for role, token in special.items() if token not in known]
        if names:
            listed = ", ".join(f"{special[role]!r} ({role}_token)" for role in names)
            raise ValueError(
                f"The vocabulary of {len(self.vocabulary)} tokens lacks {listed}, which "
                f"{type(self).__name__} needs; add them to the vocabulary, or name the ones that "
                f"it has, as in {type(self).__name__}(..., {names[0]}_token='...')."
            )

    def _special_tokens(self):
        return {role: getattr(self, f"{role}_token") for role in ROLES}

    def _check_tokens(self):
        try:
            "".join(self.vocabulary).encode()
        except (TypeError, UnicodeEncodeError):
            for id, token in enumerate(self.vocabulary):
                if not isinstance(token, str) or re.search("[\ud800-\udfff]", token):
                    raise ValueError(
                        f"Token {id} of the vocabulary, {token!r}, must be a string without lone "
                        "surrogates."
                    ) from None
            raise

    def _report_duplicates(self):
        first = {}
        for id, token in enumerate(self.vocabulary):
            if first.setdefault(token, id) != id:
                raise ValueError(
                    f"The vocabulary has {token!r} twice, as ids {first[token]} and {id}; each "
                    "token must occur once."
                )

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens, without duplicates."""
        return list(dict.fromkeys(self._special_tokens().values()))

    @property
    def special_token_ids(self) -> list[int]:
        """Ids of the special tokens, without duplicates."""
        return [self.token_to_id(token) for token in self.special_tokens]

    def _check_vocabulary(self):
        if self.vocabulary is None:
            raise ValueError(
                f"This {type(self).__name__} has no vocabulary yet; pass one to the constructor, "
                "or load it with `from_preset`, `from_files` or `load_assets`."
            )

    def with_special_tokens(self) -> Self:
        """Return this tokenizer with `special_tokens_in_strings`, sharing the vocabulary."""
        return self._with("special_tokens_in_strings", True)

    def with_normal_form(self, form: str) -> Self:
        """Return this tokenizer with `normalize`, sharing the vocabulary.

        Raises:
            ValueError: unless `form` is "NFC", "NFKC" or `None`.
        """
        _check_form(form)
        return self._with("normalize", form)

    def _with(self, name, value):
        if getattr(self, name) == value:
            return self
        key = f"with {name}={value}"
        if key not in self._graphs:
            # Not copy.copy, which Keras implements by saving and loading.
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__)
            other.__dict__[name] = value
            if name == "special_tokens_in_strings":
                other.__dict__["_only_control"] = True
            other._forget_graphs()
            self._graphs[key] = other
        return self._graphs[key]

    def report_control(self, texts: Any) -> None:
        """Warn once about a text with a control token, which is treated as text.

        Args:
            texts: list of strings, or string tensor (N,).
        """
        if self.special_tokens_in_strings or self._has_reported or not is_reported():
            return
        texts = texts.numpy() if ops.is_tensor(texts) else texts
        texts = [
            text.encode("utf-8", "replace") if isinstance(text, str) else text for text in texts
        ]
        every = b"\0".join(texts)
        tokens = [token for token in self.control_tokens if token and token.encode() in every]
        if not tokens:
            return
        object.__setattr__(self, "_has_reported", True)
        place, token = next(
            (i, token) for i, text in enumerate(texts) for token in tokens if token.encode() in text
        )
        text = reprlib.repr(texts[place].decode("utf-8", "replace"))
        warnings.warn(
            f"The text {text} contains {token!r}, a control token of the model. It is treated as "
            "ordinary text, so that no text can end or mask another one; transformers turns it "
            "into the token. Pass special_tokens_in_strings=True to from_preset for that. Further "
            "texts with control tokens are not reported.",
            stacklevel=2,
        )

    # Graph execution

    def _forget_graphs(self):
        # Bypasses Keras' and TensorFlow's attribute tracking, which would save the functions too.
        object.__setattr__(self, "_graphs", {})

    def graph(self, name: str) -> Callable[..., Any]:
        """Return the method `name`, compiled for eager calls; it always runs on the CPU."""
        self._check_vocabulary()

        def on_cpu(x):
            with tf.device("cpu"):
                if self.normalize is None or name == "_detokenize":
                    return getattr(self, name)(x)
                return self._of_normal_form(name, x)

        if not tf.executing_eagerly():
            return on_cpu
        with _tracing:
            return self._compiled(name, on_cpu)

    def _of_normal_form(self, name, text):
        """Run `name` on texts (N,) in normal form; offsets refer to the original texts."""
        text = valid_utf8(text)
        found = getattr(self, name)(in_form(text, self.normalize))
        if not isinstance(found, tuple):
            return found
        ids, starts, ends = found
        points = tf.strings.unicode_decode(text, "UTF-8")
        sizes = character_sizes(points, lambda x: in_form(x, self.normalize), "UTF8_CHAR")
        return ids, *align(ids, starts.flat_values, ends.flat_values, points, *sizes)

    def _compiled(self, name, on_cpu):
        if name not in self._graphs:
            shape = tf.TensorSpec([None], "string")
            if name == "_detokenize":
                shape = tf.RaggedTensorSpec([None, None], "int32")
            function = tf.function(on_cpu, input_signature=[shape], autograph=False)
            # Concrete, because TensorFlow warns of "retracing" when many tokenizers are created.
            with uninterrupted():
                self._graphs[name] = function.get_concrete_function()
        return self._graphs[name]

    def ragged(self, texts: Any, offsets: bool = False) -> tuple[Any, ...]:
        """Convert a flat column of texts to token ids.

        Args:
            texts: list of strings (N,), or a string tensor (N,).
            offsets: bool. Whether to return positions too; see `tokenize_with_offsets`.

        Returns:
            `(ids,)` or `(ids, starts, ends)`, int32 (N, P): `kerasbert.text.ops.Ragged` of a list,
            `tf.RaggedTensor` of a tensor.
        """
        name = "_tokenize_with_offsets" if offsets else "_tokenize"
        if ops.is_tensor(texts):
            return self._run_tensor(name, texts)
        self._check_vocabulary()
        self.report_control(texts)
        return self._encode(name, texts)

    def _encode(self, name, texts):
        """Run `name` on a list of strings; return a tuple of `Ragged`."""
        with tf.device("cpu"):
            found = self.graph(name)(tf.constant(texts, tf.string, shape=(len(texts),)))
        found = found if isinstance(found, tuple) else (found,)
        return tuple(ops.cast(ops.as_ragged(x), "int32") for x in found)

    def check_graph(self) -> None:
        """Raise unless the tokenizer can run in a TensorFlow graph.

        Raises:
            ValueError: with the step that cannot.
        """

    def _run(self, name, inputs):
        """Run `name`, from strings (N,) to one or more ragged (N, P), on text of any nesting."""
        self._check_vocabulary()
        if ops.is_tensor(inputs) or ops.in_graph():
            is_text = not ops.is_tensor(inputs)
            return self._run_tensor(name, self._to_tensor(inputs) if is_text else inputs)
        texts = []
        nested = self._flattened(inputs, texts)
        rows = [x.to_list() for x in self.ragged(texts, offsets=name != "_tokenize")]
        return tuple(_nested(nested, iter(one)) for one in rows)

    def _run_tensor(self, name, text):
        """Run `name` on a string tensor of any rank."""
        if text.dtype != tf.string:
            raise TypeError(
                f"{type(self).__name__} expected text, got a tensor of {text.dtype.name}."
            )
        rank = text.shape.rank
        if rank is None:
            raise ValueError(f"{type(self).__name__} needs a tensor of known rank, got {text}.")
        if rank > 1 and not isinstance(text, tf.RaggedTensor):
            text = tf.RaggedTensor.from_tensor(text, ragged_rank=rank - 1)
        flat = text.flat_values if isinstance(text, tf.RaggedTensor) else text
        if tf.executing_eagerly():
            self.report_control(tf.reshape(flat, [-1]))
        outputs = self.graph(name)(flat[tf.newaxis] if rank == 0 else flat)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if rank == 0:
            return tuple(x.flat_values for x in outputs)
        if isinstance(text, tf.RaggedTensor):
            return tuple(
                text.with_flat_values(x.with_row_splits_dtype(text.row_splits.dtype))
                for x in outputs
            )
        return outputs

    def _flattened(self, inputs, texts):
        """Append the texts of nested lists to `texts`, and return the nesting: 0 for each text."""
        if hasattr(inputs, "tolist"):  # Arrays and data frame columns.
            inputs = inputs.tolist()
        if not isinstance(inputs, (list, tuple)):
            texts.append(self._to_utf8(inputs).decode())
            return 0
        inputs = [x.tolist() if hasattr(x, "tolist") else x for x in inputs]
        are_lists = [isinstance(x, (list, tuple)) for x in inputs]
        if any(are_lists):
            if not all(are_lists):
                raise TypeError(
                    f"{type(self).__name__} got a list that mixes texts and lists; pass one "
                    "level of nesting."
                )
            return [self._flattened(x, texts) for x in inputs]
        texts.extend(self._to_utf8(x, i).decode() for i, x in enumerate(inputs))
        return [0] * len(inputs)

    def _to_tensor(self, inputs):
        """Convert Python text to a string tensor, ragged if nested, in a graph."""
        if hasattr(inputs, "tolist"):  # Arrays and data frame columns.
            inputs = inputs.tolist()
        if isinstance(inputs, (list, tuple)):
            if any(isinstance(x, (list, tuple)) or hasattr(x, "tolist") for x in inputs):
                inputs = [x.tolist() if hasattr(x, "tolist") else x for x in inputs]
                rows = [self._to_tensor(x) for x in inputs]
                if any(row.shape.rank == 0 for row in rows):
                    raise TypeError(
                        f"{type(self).__name__} got a list that mixes texts and lists; pass one "
                        "level of nesting."
                    )
                return tf.ragged.stack(rows)
            inputs = [self._to_utf8(x, i) for i, x in enumerate(inputs)]
            return tf.constant(inputs, "string", shape=(len(inputs),))
        return tf.constant(self._to_utf8(inputs))

    def _to_utf8(self, text, position=None):
        where = "" if position is None else f" at position {position}"
        if isinstance(text, str):
            try:
                return text.encode("utf-8")
            except UnicodeEncodeError:  # Lone surrogates.
                return re.sub("[\ud800-\udfff]", "\ufffd", text).encode("utf-8")
        if isinstance(text, bytes):
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{type(self).__name__} got bytes{where} that are not UTF-8 (byte "
                    f"{text[error.start]:#04x} at {error.start}); decode them first, for example "
                    "with `data.decode('latin-1')`."
                ) from None
            return text
        raise TypeError(
            f"{type(self).__name__} expected text, got {text!r} ({type(text).__name__}){where}; "
            "remove it or convert it to a string."
        )

    def _decode(self, rows):
        """Convert lists of ids to a list of strings."""
        ids = ops.as_tensor(ops.Ragged.from_lists(rows))
        texts = self.graph("_detokenize")(ids).numpy()
        return [text.decode("utf-8", "replace") for text in texts]

    def _check_ids(self, ids, place="position "):
        if not isinstance(ids, (list, tuple)):
            raise TypeError(f"`detokenize` expected a list of token ids, got {ids!r}.")
        for i, id in enumerate(ids):
            if isinstance(id, (list, tuple)):
                self._check_ids(id, f"{place}{i}, ")
            elif not isinstance(id, int) or not 0 <= id < len(self.vocabulary):
                raise ValueError(
                    f"`detokenize` got {id!r} at {place}{i}, expected a token id from 0 to "
                    f"{len(self.vocabulary) - 1}."
                )

"""`SubwordTokenizer`, base class of tokenizers: input checks, offsets, decoding, special tokens."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice, check_fields, check_value
from kerasbert.base.files import read_json
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.paths import inside
from kerasbert.base.process import uninterrupted
from kerasbert.base.subclasses import as_called
from kerasbert.text import ops
from kerasbert.text.alignment import FORMS, run_in_form
from kerasbert.text.languages import check_languages
from kerasbert.text.packing import Frame
from kerasbert.text.text_warnings import report_control
from kerasbert.text.tokenizer_files import ROLES
from kerasbert.text.tokenizer_inputs import as_string_tensor, check_ids, flattened, nested
from kerasbert.text.vocabulary_files import token_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor
    from kerasbert.checkpoints.checkpoint import Checkpoint


# Special tokens with a second name in KerasHub.
_NAMES = {"cls": ("cls", "start"), "sep": ("sep", "end")}
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
    "languages": "names?",
}
# Preprocessors tokenize in threads, of which only one may trace at a time.
_tracing = threading.RLock()


def _check_form(form):
    if form is not None:
        check_choice("normalize", form, FORMS)


def once(make):
    """Cache a method's result until the vocabulary changes."""

    @functools.wraps(make)
    def made(self):
        if make.__name__ not in self._graphs:
            self._graphs[make.__name__] = make(self)
        return self._graphs[make.__name__]

    return made


def variant(tokenizer, key, changes):
    """Return a tokenizer with the same vocabulary, but other attributes.

    Args:
        tokenizer: a `SubwordTokenizer`.
        key: name of the variant, which is made once.
        changes: function that returns a dict of the other attributes.
    """
    if key not in tokenizer._graphs:
        # Keras implements `copy.copy` by saving and loading.
        other = object.__new__(type(tokenizer))
        other.__dict__.update({**tokenizer.__dict__, **changes()})
        other._forget_graphs()
        tokenizer._graphs[key] = other
    return tokenizer._graphs[key]


def in_languages(tokenizer, languages, language):
    """Return a tokenizer with the same vocabulary, but other languages.

    An argument of `None` keeps the tokenizer's own.
    """
    languages = tokenizer.languages if languages is None else languages
    language = tokenizer.language if language is None else language
    check_languages(languages, language)
    changes = {"languages": languages, "language": language}
    return variant(tokenizer, f"languages={languages}, {language}", lambda: changes)


class SubwordTokenizer(FromPreset, keras_hub.tokenizers.Tokenizer):
    """Base class of tokenizers: text to token ids, eagerly and in TensorFlow graphs.

    Python inputs give Python objects: a list of ids for a `str`, a list of lists for a list of
    strings. A `tf.Tensor` or `tf.RaggedTensor` gives a `tf.RaggedTensor` with one more axis. The
    graph has only ops of an unmodified TensorFlow Serving 2.12.

    Subclasses define `_tokenize(text)` and `_tokenize_with_offsets(text)` of strings (N,) to ragged
    (N, P); the inverse, `_detokenize(ids)`, and for lists `_decode(rows)`; `_word_edges(token)`;
    and the assets.
    """

    # Separators between the two texts of a pair.
    num_separators = 1
    # Whether the last of these is the second text's start token.
    begins_second = False
    # Whether `special_tokens_in_strings` matches only control tokens, no other markers.
    _only_control = False
    # Whether methods for graphs apply the normal form.
    _forms_in_graph = False

    def __init__(
        self,
        special_tokens_in_strings: bool,
        unk_token: str,
        cls_token: str,
        sep_token: str,
        pad_token: str,
        mask_token: str,
        normalize: str | None = None,
        languages: Sequence[str] | None = None,
        language: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "int32")
        super().__init__(**kwargs)
        _check_form(normalize)
        self.normalize = normalize
        # See `kerasbert.text.languages`.
        self.languages = list(languages) if isinstance(languages, tuple) else languages
        self.language = language
        check_languages(languages, language)
        self.special_tokens_in_strings = special_tokens_in_strings
        self.unk_token = unk_token
        self.cls_token = cls_token
        self.sep_token = sep_token
        self.pad_token = pad_token
        self.mask_token = mask_token
        # Otherwise, Keras would read a batch in each `fit` to build the tokenizer.
        self.built = True
        self._forget_graphs()

    def __setattr__(self, name, value):
        if name in SETTINGS:
            check_value(name, value, SETTINGS[name])
        super().__setattr__(name, value)

    def __call__(self, inputs: Tensor, **kwargs: Any) -> Any:
        # Keras' `__call__` traverses every string and changes error messages.
        return self.tokenize(inputs)

    def tokenize(self, inputs: Tensor) -> Any:
        """Convert text to token ids.

        Args:
            inputs: `str`, or a (nested) list of strings, or a string array or tensor.

        Returns:
            int32 ids: lists for Python inputs, else a `tf.RaggedTensor` (..., P), or (P,) for a
            scalar.

        Raises:
            TypeError: if an input is not text, with its value and position.
            ValueError: if `bytes` are not UTF-8.
        """
        return self._run("_tokenize", inputs)[0]

    def tokenize_with_offsets(self, inputs: Tensor) -> tuple[Any, Any, Any]:
        """Convert text to token ids and their positions.

        Args:
            inputs: as for `tokenize`.

        Returns:
            `(ids, starts, ends)`, all of the same shape. A token was made from `text[start:end]`,
            in characters (code points) of the original string.
        """
        return self._run("_tokenize_with_offsets", inputs)

    def detokenize(self, inputs: Tensor) -> Any:
        """Convert token ids to text.

        Args:
            inputs: ids, (P,) or (N, P): lists, arrays, tensors or ragged tensors.

        Returns:
            `str` or a list of strings for Python inputs, else a string tensor.

        Raises:
            ValueError: if an id is not in the vocabulary.
        """
        self._check_vocabulary()
        if not ops.is_tensor(inputs):
            if keras.ops.is_tensor(inputs):
                inputs = keras.ops.convert_to_numpy(inputs)
            if hasattr(inputs, "tolist"):
                inputs = inputs.tolist()
            if isinstance(inputs, (list, tuple)):
                inputs = [x.tolist() if hasattr(x, "tolist") else x for x in inputs]
            check_ids(inputs, len(self.vocabulary))
            batched = len(inputs) > 0 and not isinstance(inputs[0], int)
            texts = self._decode(list(inputs) if batched else [inputs])
            return texts if batched else texts[0]
        inputs = tf.cast(inputs, "int32")
        if isinstance(inputs, tf.RaggedTensor):
            return self.graph("_detokenize")(inputs.with_row_splits_dtype("int64"))
        flat = inputs[tf.newaxis] if inputs.shape.rank == 1 else inputs
        texts = self.graph("_detokenize")(tf.RaggedTensor.from_tensor(flat))
        return texts[0] if inputs.shape.rank == 1 else texts

    def get_vocabulary(self) -> list[str]:
        """Return all tokens by id."""
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

        Words are BERT's: the parts between white space, and each punctuation mark. In byte-pair and
        SentencePiece vocabularies, each piece in a script without spaces (Chinese, Japanese, Thai,
        ...) is a word.

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
            **{
                name: getattr(self, name)
                for name in ("normalize", "languages", "language")
                if getattr(self, name) is not None
            },
        }

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> Self:
        return checkpoint.make_tokenizer(**kwargs)

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        # KerasHub's loader requires the encoder's config.json beside it.
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
        # The folder of `config_file`, which must be inside the preset.
        folder, source = self.config_file.split(".")[0], os.path.join(preset, "tokenizer.json")
        inside(os.path.join(preset, "assets"), folder, source)
        for asset in self.file_assets:
            inside(preset, f"assets/{folder}/{asset}", source, nested=True)
        super().load_preset_assets(preset)

    # Vocabulary and special tokens

    def _set_tokens(self, vocabulary):
        """Set the vocabulary, tokens by id, or `None` for none yet."""
        self._forget_graphs()
        # Keras would take 3 seconds to track these attributes with 256,000 tokens.
        tokens = None if vocabulary is None else tuple(vocabulary)
        object.__setattr__(self, "vocabulary", tokens)
        object.__setattr__(self, "_token_ids", None if tokens is None else token_ids(tokens))
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

    @property
    def special_tokens(self) -> list[str]:
        """Special tokens, without duplicates."""
        return list(dict.fromkeys(self._special_tokens().values()))

    @property
    def frame(self) -> Frame:
        """The special tokens around the texts of a row."""
        start, end = self.start_token_id, self.end_token_id
        begin = (start,) if self.begins_second else ()
        between = (end,) * (self.num_separators - len(begin))
        return Frame((start,), between, begin, (end,))

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
        """Return a tokenizer with this vocabulary and `special_tokens_in_strings`."""
        if self.special_tokens_in_strings:
            return self
        changes = {"special_tokens_in_strings": True, "_only_control": True}
        return variant(self, "special tokens", lambda: changes)

    def with_normal_form(self, form: str) -> Self:
        """Return a tokenizer with this vocabulary and another `normalize`.

        Raises:
            ValueError: if `form` is not "NFC", "NFKC" or `None`.
        """
        _check_form(form)
        if self.normalize == form:
            return self
        return variant(self, f"normalize={form}", lambda: {"normalize": form})

    # Graph execution

    def _forget_graphs(self):
        # Keras and TensorFlow would track this attribute, and save the functions.
        object.__setattr__(self, "_graphs", {})

    def graph(self, name: str) -> Callable[..., Any]:
        """Return the method `name`, compiled for eager calls on the CPU."""
        self._check_vocabulary()

        def on_cpu(x):
            with tf.device("cpu"):
                if self.normalize is None or self._forms_in_graph or name == "_detokenize":
                    return getattr(self, name)(x)
                return run_in_form(getattr(self, name), x, self.normalize)

        if not tf.executing_eagerly():
            return on_cpu
        with _tracing:
            if name not in self._graphs:
                shape = tf.TensorSpec([None], "string")
                if name == "_detokenize":
                    shape = tf.RaggedTensorSpec([None, None], "int32")
                function = tf.function(on_cpu, input_signature=[shape], autograph=False)
                # A concrete function avoids warnings of "retracing" with many tokenizers.
                with uninterrupted():
                    self._graphs[name] = function.get_concrete_function()
            return self._graphs[name]

    def ragged(self, texts: Any, offsets: bool = False) -> tuple[Any, ...]:
        """Convert a flat column of texts to token ids.

        Args:
            texts: list of strings (N,), or a string tensor (N,).
            offsets: bool. See `tokenize_with_offsets`.

        Returns:
            `(ids,)` or `(ids, starts, ends)`, int32 (N, P): `kerasbert.text.ops.Ragged` for a list,
            `tf.RaggedTensor` for a tensor.
        """
        name = "_tokenize_with_offsets" if offsets else "_tokenize"
        if ops.is_tensor(texts):
            return self._run_tensor(name, texts)
        self._check_vocabulary()
        report_control(self, texts)
        return self._encode(name, texts)

    def _encode(self, name, texts):
        """Run `name` on a list of strings, and return a tuple of `Ragged`."""
        with tf.device("cpu"):
            found = self.graph(name)(tf.constant(texts, tf.string, shape=(len(texts),)))
        found = found if isinstance(found, tuple) else (found,)
        return tuple(ops.cast(ops.as_ragged(x), "int32") for x in found)

    def check_graph(self) -> None:
        """Raise unless the tokenizer can run in a TensorFlow graph.

        Raises:
            ValueError: if it cannot, with the unsupported step.
        """

    def _run(self, name, inputs):
        """Run `name`, from strings (N,) to one or more ragged (N, P), on nested texts."""
        self._check_vocabulary()
        if ops.is_tensor(inputs) or ops.in_graph():
            if not ops.is_tensor(inputs):
                inputs = as_string_tensor(inputs, type(self).__name__)
            return self._run_tensor(name, inputs)
        texts, nesting = flattened(inputs, type(self).__name__)
        rows = [x.to_list() for x in self.ragged(texts, offsets=name != "_tokenize")]
        return tuple(nested(nesting, iter(one)) for one in rows)

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
            report_control(self, tf.reshape(flat, [-1]))
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

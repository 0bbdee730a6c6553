"""`BertPreprocessor`, the base class of all preprocessors: texts to packed batches.

Shapes: N examples, B batch, T tokens of the packed row.
"""

from __future__ import annotations

import inspect
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np

from kerasbert.backend.tensorflow import Traced, tf
from kerasbert.base.errors import check_choice, check_fields, check_whole, is_whole
from kerasbert.base.files import read_json
from kerasbert.base.from_preset import FromPreset
from kerasbert.base.keywords import own_class
from kerasbert.base.subclasses import as_called, own_object, with_known
from kerasbert.families import LINEAGE, get_family
from kerasbert.families.settings import PACKINGS
from kerasbert.text import ops
from kerasbert.text.batching import (
    Batches,
    batch_dataset,
    bucket_length,
    buckets_up_to,
    cheap_shapes,
    draw_seeds,
    given_batches,
    map_ahead,
    runs_in_numpy,
    similar_length_batches,
    sorted_batches,
)
from kerasbert.text.text_warnings import looks_of
from kerasbert.text.texts import dict_columns, label_rows, text_columns, weights
from kerasbert.text.wordpiece import BertTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor
    from kerasbert.checkpoints.checkpoint import Checkpoint
    from kerasbert.text.subword import SubwordTokenizer

# Fields of a `preprocessor.json`, for all tasks.
_FIELDS = {
    "sequence_length": "count",
    "truncate": "name",
    "num_segments": "whole",
    "num_classes": "count?",
    "labels": "names?",
    "multi_label": "flag",
    "next_sentence": "flag",
    "query_length": "count?",
    "expand_queries": "flag",
    "attend_to_expansion": "flag",
    "skiplist_words": "names",
    "add_start_token": "flag",
    "add_end_token": "flag",
    "normalize": "name?",
}
# Truncation strategies, with KerasHub's names for them.
TRUNCATE = {
    "longest_first": "longest_first",
    "only_second": "only_second",
    "only_first": "only_first",
    "round_robin": "round_robin",
    "waterfall": "only_second",
}
CHUNK = 1024  # texts per thread and step of tokenization


@keras.saving.register_keras_serializable(package="kerasbert")
class BertPreprocessor(FromPreset, keras_hub.models.Preprocessor):
    """Packs a text or a pair of texts as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Called on `x`, `(x, y)` or `(x, y, sample_weight)`, eagerly or mapped over a `tf.data.Dataset`
    of batches. `x` is a string, a list, NumPy array, pandas column or tensor of strings; for pairs,
    a tuple of two of these, a list of pairs, a table of two columns or a dict of `text` and
    `text_b`. The result is a dict:

    - `token_ids`: int32 (B, T),
    - `segment_ids`: int32 (B, T), 1 for B and its `[SEP]`; only with `num_segments` above 0,
    - `padding_mask`: bool (B, T), true for tokens.

    T is the batch's longest row, rounded up to a bucket (`kerasbert.text.batching.BUCKETS`), at
    most `sequence_length`. A single string gives unbatched results. Inside `tf.data`, unbatched
    strings are padded to `sequence_length`, so batch first.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: int. Maximum tokens per row, special tokens included.
        truncate: string. How to truncate long pairs. "longest_first" shortens the longer text until
            both fit, as in transformers; if both are truncated to an odd total, the longer text
            gets the extra token, the second text if they are equally long. "only_second" and
            "only_first" truncate the other text only if it is too long by itself. KerasHub's
            "round_robin" is "longest_first" with the extra token for the first text; its
            "waterfall" is "only_second".
        num_segments: int. 0 omits `segment_ids`, 1 fills it with zeros.
        normalize: string. Unicode normal form to apply before tokenizing, "NFC" or "NFKC"; offsets
            refer to the original texts. It is a setting of the tokenizer, saved in presets, exports
            and files for `transformers`. `None` keeps the tokenizer's setting.

    Raises:
        ValueError: for invalid settings, such as a `sequence_length` without room for the special
            tokens, and for inputs that are not text.
        ImportError: in `tf.data`, or with a SentencePiece tokenizer, without TensorFlow installed.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> preprocessor = BertPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features = preprocessor((["Who?"], ["Me!"]))
    >>> np.asarray(features["token_ids"])[0].tolist()
    [2, 5, 7, 3, 6, 8, 3, 0]

    Source: Devlin et al. 2019, arXiv 1810.04805, section 3; truncation as in transformers.
    """

    # Constructor arguments in the config; the attributes have the same names.
    settings = ("sequence_length", "truncate", "num_segments")
    usual_tokenizer = BertTokenizer  # For errors about keywords that are its arguments.
    # Whether `assemble` takes a `seed`, for tasks that draw at random in every epoch.
    draws = False
    # Form of the rows; see `PACKINGS`.
    packing = "class_first"

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        normalize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.built = True
        if not hasattr(tokenizer, "num_separators"):
            raise ValueError(
                f"tokenizer={tokenizer!r} is not a tokenizer of `kerasbert.tokenizers`; "
                "make one with its `from_preset` or `from_files`."
            )
        self.tokenizer = tokenizer
        if normalize is not None:
            self.normalize = normalize
        self.sequence_length = sequence_length
        check_choice("truncate", truncate, TRUNCATE)
        self.truncate = truncate
        check_whole("num_segments", num_segments, 0)
        self.num_segments = num_segments

    @property
    def sequence_length(self) -> int:
        """Maximum tokens per row."""
        return self._sequence_length

    @sequence_length.setter
    def sequence_length(self, value: Any) -> None:
        special = 2 + self.tokenizer.num_separators
        if not is_whole(value) or value < special:
            raise ValueError(
                f"sequence_length={value!r} must be a whole number of at least {special}, the "
                "special tokens of a pair."
            )
        self._sequence_length = value

    @property
    def normalize(self) -> str | None:
        """Unicode normal form applied to texts, or `None`."""
        return self.tokenizer.normalize

    @normalize.setter
    def normalize(self, value: Any) -> None:
        self.tokenizer = self.tokenizer.with_normal_form(value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in self.settings}}

    @classmethod
    def check_family(cls, family: str | None, where: str = "") -> None:
        """Raise an error if encoders of a family need rows of another form.

        Args:
            family: string; `None` for an encoder without a family.
            where: string. Where the encoder was found, for the error.
        """
        needed = cls.packing if family is None else get_family(family).packing
        if needed != cls.packing:
            raise ValueError(
                f"A {cls.__name__} packs {PACKINGS[cls.packing]}, but the encoder{where} is of the "
                f"family '{family}', which needs {PACKINGS[needed]}; use its classes in "
                f"kerasbert.{'lineage' if family in LINEAGE else 'models'} with their "
                "preprocessors, or preprocessor=None and token ids."
            )

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> Self:
        cls.check_family(checkpoint.family, f" in '{checkpoint.source}'")
        settings = checkpoint.encoder_settings()
        parameters = inspect.signature(own_class(cls).__init__).parameters
        length = parameters["sequence_length"].default
        longest = min(length, settings.get("max_sequence_length", 512))
        known = {
            "sequence_length": int(min(longest, checkpoint.longest or longest)),
            "num_segments": min(settings.get("num_segments", 2), checkpoint.num_segments),
            **checkpoint.preprocessor.get(getattr(cls, "kind", None), {}),
        }
        known = {name: value for name, value in known.items() if name in parameters}
        settings = _tokenizer_settings(cls, kwargs)
        tokenizer = kwargs.pop("tokenizer", None) or checkpoint.make_tokenizer(**settings)
        return cls(tokenizer, **{**known, **kwargs})

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        """Load from a local directory that `save_to_preset` wrote.

        The preprocessor of another task provides only tokenizer, length, truncation and segments.
        """
        saved_cls, config = as_called(_read_json(directory, "preprocessor.json"), cls)
        fits = saved_cls is not None and issubclass(saved_cls, cls)
        made = saved_cls if cls is BertPreprocessor and fits else cls
        made.check_family(_family_in(directory), f" in '{directory}'")
        config = dict(config or {})
        check_fields(config, _FIELDS, os.path.join(directory, "preprocessor.json"))
        # A subclass that belongs to another task does not replace the requested class.
        if not fits or cls is not BertPreprocessor and own_class(saved_cls) is not own_class(cls):
            backbone = _read_json(directory, "config.json").get("config", {})
            config = {"num_segments": backbone.get("num_segments", 2), **config}
            shared = {"tokenizer", "sequence_length", "truncate", "num_segments"}
            shared &= set(inspect.signature(own_class(cls).__init__).parameters)
            config = {key: config[key] for key in shared if key in config}
            saved_cls = cls
        if "tokenizer" not in config and "tokenizer" not in kwargs:
            config["tokenizer"] = with_known(_read_json(directory, "tokenizer.json"))
            if not config["tokenizer"]:
                raise ValueError(
                    f"'{directory}' has neither preprocessor.json nor tokenizer.json; pass "
                    "a directory that `save_to_preset` wrote, or pass `tokenizer`."
                )
        settings = _tokenizer_settings(cls, kwargs)
        if settings:
            saved = config["tokenizer"]
            config["tokenizer"] = {**saved, "config": {**saved["config"], **settings}}
        preprocessor = saved_cls.from_config({**config, **kwargs})
        if "tokenizer" not in kwargs:
            preprocessor.load_preset_assets(directory)
        return preprocessor

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        # Keras' `__call__` would take the second text of `((a, b),)` for labels, and list all
        # arguments in each error.
        if not ops.in_graph():
            return self.call(x, y, sample_weight)
        return tf.autograph.experimental.do_not_convert(self.call)(x, y, sample_weight)

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Tensor:
        if ops.in_graph():
            return self._call_in_graph(x, y, sample_weight)
        columns, batched = self.columns(x)
        if not batched:
            y, sample_weight = (None if v is None else [v] for v in (y, sample_weight))
        y, sample_weight = self._targets(y, sample_weight, columns)
        segments = self._tokenize_columns(columns)
        self._look_for_cut(columns, segments)
        outputs = self.assemble(segments, y, sample_weight)
        if not batched:
            outputs = keras.tree.map_structure(lambda rows: rows[0], outputs)
        return as_tensors(outputs)

    def _call_in_graph(self, x, y=None, sample_weight=None, **drawn):
        columns = self.columns_in_graph(x)
        batched = columns[0].shape.rank == 1
        if not batched:
            columns, y, sample_weight = keras.tree.map_structure(
                lambda one: one if one is None else ops.convert_to_tensor(one)[None],
                (columns, y, sample_weight),
            )
        y = None if y is None else self.check_labels_in_graph(y)
        length = None if batched else self.sequence_length
        outputs = self.assemble(self._tokenize_in_graph(columns), y, sample_weight, length, **drawn)
        return outputs if batched else keras.tree.map_structure(lambda rows: rows[0], outputs)

    # === Columns, for tasks to override ===

    def columns(self, x: Any) -> tuple[Any, ...]:
        """Read texts in memory into `(columns, batched)`, as `text_columns` does."""
        return text_columns(x)

    def columns_in_graph(self, x: Any) -> list[Any]:
        """Return the one or two string tensors of a `tf.data` element."""
        return _graph_columns(x)

    def _targets(self, y, sample_weight, columns):
        count = len(columns[0])
        y = None if y is None else self.check_labels(y, count)
        return y, None if sample_weight is None else weights(sample_weight, count)

    # === Labels, for tasks to override ===

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        """Check the labels of `count` texts and return them as a 32-bit array."""
        y = np.asarray(label_rows(y, count))
        return y.astype({"int64": "int32", "float64": "float32"}.get(y.dtype.name, y.dtype))

    def check_labels_in_graph(self, y: Any) -> Tensor:
        """Check a tensor of labels inside `tf.data`, with assertions."""
        return y

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        """Warn about examples that leave nothing to learn."""

    # === Tokens ===

    def tokenize(self, x: Any) -> Any:
        """Tokenize `x`, in any form that a call accepts, without special tokens.

        Returns:
            A tuple of `kerasbert.text.ops.Ragged` int32 (N, None), one for texts, two for pairs;
            of `tf.RaggedTensor` in a graph.
        """
        if not ops.in_graph():
            return self._tokenize_columns(self.columns(x)[0])
        columns = self.columns_in_graph(x)
        if columns[0].shape.rank == 0:
            columns = [column[None] for column in columns]
        return self._tokenize_in_graph(columns)

    def _tokenize_columns(self, columns, most=None, owners=None):
        """Tokenize lists of strings, in parallel chunks.

        Args:
            columns: one or two lists of strings.
            most: int. Maximum row length; tokens that no row can hold are dropped.
            owners: ints (M,). Index of each second text's first text; `None` pairs one to one.
        """

        def tokenize(chunk):
            tokens = ops.as_ragged(self._tokens(chunk))
            lengths = tokens.row_lengths()
            is_long = most is not None and np.max(lengths, initial=0) > most
            return (tokens[:, : most + len(columns) - 1] if is_long else tokens), lengths

        found = [self._tokenize_column(column, tokenize) for column in columns]
        segments = [tokens for tokens, _ in found]
        if most is not None and len(found) == 2:
            # Truncation depends on which text is longer, so the shorter text loses one more token.
            first, second = (lengths for _, lengths in found)
            first = first if owners is None else first[owners]
            segments[1] = _without_last(segments[1], (second < first) & (second > most))
        return tuple(segments)

    def _tokenize_column(self, column, tokenize):
        """Run `tokenize`, from a list of strings to arrays and ragged rows, on parallel chunks."""
        chunks = in_chunks(len(column), lambda chunk: tokenize(column[chunk]))
        found = chunks[0]
        if len(chunks) > 1:
            found = tuple(ops.concat(parts, axis=0) for parts in zip(*chunks))
        looks_of(self).at_tokens(self.tokenizer, column, found[0].flat_values)
        return found

    # === Checks of the texts; see `looks` ===

    def _look_for_cut(self, columns, segments):
        """Warn once about truncated texts, except in tasks with windows."""
        looks = looks_of(self)
        if not looks.is_cut_told and type(self)._examples is BertPreprocessor._examples:
            looks.at_cut(self._is_cut(segments), columns[-1], self.sequence_length)

    def _looking(self, dataset):
        """Check the first batch of a `tf.data.Dataset` of texts when it is read."""
        spec = dataset.element_spec
        parts = keras.tree.flatten(spec[0] if isinstance(spec, tuple) else spec)
        # Not in distribution strategies, whose workers may be other machines.
        if tf.distribute.has_strategy() or any(
            not isinstance(part, tf.TensorSpec) or part.dtype != tf.string or part.shape.rank != 1
            for part in parts
        ):
            return dataset

        def look(*columns):
            columns = [column.numpy().tolist() for column in columns]
            if all(columns):
                self._look_for_cut(columns, self._tokenize_columns(columns))
            return np.int32(0)

        @tf.autograph.experimental.do_not_convert
        def looked_at(number, *batch):
            columns = keras.tree.flatten(batch[0])
            done = ops.cond(
                number == 0,
                lambda: tf.ensure_shape(tf.py_function(look, columns, "int32"), []),
                lambda: 0,
            )
            with tf.control_dependencies([done]):
                batch = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
            return batch if isinstance(spec, tuple) else batch[0]

        def numbered(number, batch):
            return looked_at(number, *(batch if isinstance(spec, tuple) else (batch,)))

        return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(numbered))

    def _is_cut(self, segments):
        """Return which rows lose tokens, bools (N,)."""
        special = 2 if len(segments) == 1 else 2 + self.tokenizer.num_separators
        lengths = sum(np.diff(segment.row_splits) for segment in segments)
        return lengths + special > self.sequence_length

    def _tokenize_in_graph(self, columns):
        return tuple(self._tokens(column) for column in columns)

    def _tokens(self, texts):
        """Tokenize strings (N,), a list or a tensor, to ragged int32 (N, None) for `pack`."""
        return ops.cast(self.tokenizer.ragged(texts)[0], "int32")

    # === Packing ===

    def packed_lengths(self, segments: Any) -> Any:
        """Return the tokens of each packed row, special ones included: int32 (N,)."""
        special = 2 if len(segments) == 1 else 2 + self.tokenizer.num_separators
        return sum(self._kept(segments)) + special

    def _kept(self, segments):
        """Return the fitting tokens of each segment: a list of int32 (N,)."""
        lengths = [ops.cast(segment.row_lengths(), "int32") for segment in segments]
        if len(lengths) == 1:
            return [ops.minimum(lengths[0], self.sequence_length - 2)]
        budget = self.sequence_length - 2 - self.tokenizer.num_separators
        a, b = lengths
        truncate = TRUNCATE[self.truncate]
        if truncate in ("longest_first", "round_robin"):
            half = (budget + 1) // 2
            if truncate == "longest_first":
                half = ops.where(b < a, half, budget // 2)
            a = ops.minimum(a, ops.maximum(half, budget - b))
        elif truncate == "only_second":
            a = ops.minimum(a, budget)
        else:
            a = ops.minimum(a, budget - ops.minimum(b, budget))
        return [a, ops.minimum(b, budget - a)]

    def bucket(self, length: int) -> Any:
        """Return the padded length for a longest row of `length` tokens (int or tensor)."""
        if not ops.is_tensor(length):
            return min(bucket_length(length), self.sequence_length)
        buckets = tf.constant(buckets_up_to(self.sequence_length))
        return tf.gather(buckets, tf.reduce_sum(tf.cast(buckets < length, tf.int32)))

    def pack(self, segments: Any, length: int | None = None) -> Any:
        """Truncate and join segments, add special tokens and pad.

        Args:
            segments: tuple of one or two ragged int32 (B, None); see `tokenize`.
            length: int. T; by default the bucket of the longest row.

        Returns:
            The dict that the class documents.
        """
        kept = [keep[:, None] for keep in self._kept(segments)]  # (B, 1)
        total = self.packed_lengths(segments)
        length = self.bucket(ops.reduce_max(total)) if length is None else length
        total = total[:, None]
        ids = self.tokenizer
        special = [ids.start_token_id, ids.end_token_id, ids.pad_token_id]
        values = ops.concat([segment.values for segment in segments] + [special], axis=0)
        size = ops.size(values)
        start, end, pad = size - 3, size - 2, size - 1
        starts = [ops.cast(segment.row_starts(), "int32")[:, None] for segment in segments]
        position = ops.range(length)[None]  # (1, T)
        # Index into `values` of the token at each position.
        index = ops.where(position <= kept[0], starts[0] + position - 1, end)  # (B, T)
        in_second = None
        if len(segments) == 2:
            second = 1 + kept[0] + ids.num_separators  # (B, 1), where B begins
            in_second = (position >= second) & (position < total)
            starts_b = starts[1] + ops.size(segments[0].values)
            in_text = in_second & (position < second + kept[1])
            index = ops.where(in_text, starts_b + position - second, index)
            if ids.begins_second:
                index = ops.where(position == second - 1, start, index)
        index = ops.where(position < total, index, pad)
        index = ops.where(position == 0, start, index)
        features = {"token_ids": ops.gather(values, index), "padding_mask": position < total}
        if self.num_segments:
            is_pair = self.num_segments > 1 and in_second is not None
            features["segment_ids"] = (
                ops.cast(in_second, "int32") if is_pair else ops.zeros_like(index)
            )
        return features

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        """Turn a batch of segments into `x`, `(x, y)` or `(x, y, sample_weight)`.

        Tasks override it; it must run eagerly and in graphs.
        """
        return keras.utils.pack_x_y_sample_weight(self.pack(segments, length), y, sample_weight)

    # === Batches for `fit`, `evaluate` and `predict` ===

    def batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int | None = None,
        buckets: bool = True,
        shape_cost: float = 0,
        first_epoch: int = 0,
    ) -> Any:
        """Batch examples of similar length for `fit`, reshuffled every epoch.

        All texts are tokenized once, now. Each epoch has every example once.

        Args:
            x: texts or pairs, as for a call.
            y: labels (N, ...).
            sample_weight: floats (N, ...).
            batch_size: int.
            shuffle: bool. `False` keeps the given order, with mixed lengths in a batch.
            seed: int. `None` draws one from Python's generator, as Keras does, reproducible after
                `keras.utils.set_random_seed`.
            buckets: bool. `False` pads only to the batch's longest row, for models that are not
                compiled per shape.
            shape_cost: number. Cost of one more compiled shape, in padding tokens per epoch; see
                `kerasbert.text.batching.cheap_shapes`.
            first_epoch: int. Epoch of the first pass: with the same seed, a resumed run sees the
                batches of an uninterrupted one.

        Returns:
            A `tf.data.Dataset` of `(x, y, sample_weight)`, without those not given; on JAX and
            PyTorch a `keras.utils.PyDataset`.
        """
        segments, targets = self._examples(x, y, sample_weight)
        self.check_variety(segments, *targets)
        lengths = np.asarray(self.packed_lengths(segments))
        seed = random.randrange(2**31) if seed is None else seed
        shapes = {}
        if shuffle and buckets and shape_cost and len(lengths):
            buckets, short = cheap_shapes(lengths, batch_size, shape_cost)
            buckets[-1] = min(buckets[-1], self.sequence_length)
            buckets = tuple(buckets)
            shapes = {"buckets": buckets, "short": short}

        def plan(epoch):
            if shuffle:
                return similar_length_batches(lengths, batch_size, seed, epoch, **shapes)
            return given_batches(lengths, batch_size)

        return self._dataset(
            segments, targets, plan, buckets, lambda epoch: (seed, epoch), first_epoch
        )

    def sorted_batches(
        self,
        x: Any,
        batch_size: int = 32,
        y: Any = None,
        sample_weight: Any = None,
        buckets: Any = True,
        few: int = 0,
    ) -> tuple[Any, Any]:
        """Batch examples by length, the longest first, for `predict` and `evaluate`.

        The other arguments are those of `batches`.

        Args:
            few: int. Return up to this many rows as a list of NumPy batches, without the overhead
                of a pipeline.

        Returns:
            `(dataset, order)`; `kerasbert.data.restore_order(outputs, order)` restores the order.
        """
        check_whole("batch_size", batch_size)
        segments, targets = self._examples(x, y, sample_weight)
        count = len(segments[0])
        if count <= batch_size:
            rows = [np.arange(count)]
        else:
            rows = sorted_batches(np.asarray(self.packed_lengths(segments)), batch_size)
        order = np.concatenate(rows)
        if count > few:
            return self._dataset(segments, targets, lambda epoch: rows, buckets), order
        make = self._maker(segments, targets, buckets)
        seeds = zip(draw_seeds((0,), len(rows))) if self.draws else [()] * len(rows)
        return [make(batch, *seed) for batch, seed in zip(rows, seeds)], order

    def _examples(self, x, y, sample_weight):
        """Return segments and `[labels, weights]`, with `None` for those not given."""
        columns, batched = self.columns(x)
        if not batched:
            raise ValueError("Got one text where a list is needed; pass a list.")
        targets = self._targets(y, sample_weight, columns)
        # Longer texts are truncated now, to save memory.
        segments = self._tokenize_columns(columns, most=self.sequence_length)
        self._look_for_cut(columns, segments)
        return segments, list(targets)

    def _maker(self, segments, targets, buckets):
        """Return a function from row numbers (B,), and a seed if the task draws, to a batch."""

        def make(rows, *seed):
            parts = tuple(ops.gather(segment, rows) for segment in segments)
            longest = None if buckets is True else ops.reduce_max(self.packed_lengths(parts))
            if isinstance(buckets, tuple):
                longest = ops.gather(buckets, ops.searchsorted(buckets, [longest])[0])
            chosen = [None if one is None else ops.gather(one, rows) for one in targets]
            drawn = {"seed": seed[0]} if self.draws else {}
            return self.assemble(parts, *chosen, length=longest, **drawn)

        return make

    def _dataset(self, segments, targets, plan, buckets, seeds=lambda epoch: (0,), first_epoch=0):
        if runs_in_numpy():
            make = self._maker(segments, targets, buckets)
            return Batches(plan, make, seeds if self.draws else None, first_epoch)
        with tf.device("cpu"):
            segments = tuple(map(ops.as_tensor, segments))
            given = [target is not None for target in targets]
            tensors = [
                *segments,
                *(ops.as_tensor(target) for target in targets if target is not None),
            ]

            def of_tensors(rows, *parts):
                seed, parts = parts[: self.draws], parts[self.draws :]
                chosen = iter(parts[len(segments) :])
                targets = [next(chosen) if one else None for one in given]
                return self._maker(parts[: len(segments)], targets, buckets)(rows, *seed)

            # Later calls reuse the graph for other texts.
            traced = self.traced(("batch", buckets, len(segments), *given), of_tensors)
            return batch_dataset(
                plan,
                lambda rows, *seed: traced(rows, *seed, *tensors),
                seeds if self.draws else None,
                first_epoch,
            )

    def map_dataset(self, dataset: Any, anew: bool = True) -> Any:
        """Preprocess a `tf.data.Dataset` of batches of texts.

        Args:
            dataset: yields `x`, `(x, y)` or `(x, y, sample_weight)`.
            anew: bool. Whether random draws differ between passes.
        """
        dataset = self._looking(dataset)
        if not self.draws:
            return map_ahead(dataset, self)

        @tf.autograph.experimental.do_not_convert
        def make(seed, batch):
            batch = keras.utils.unpack_x_y_sample_weight(batch)
            return self._call_in_graph(*batch, seed=seed)

        # Seeds depend on the position of a batch, not on the timing of threads.
        seed = random.randrange(2**31) if anew else 0
        seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=anew).batch(2)
        return map_ahead(tf.data.Dataset.zip((seeds, dataset)), make)

    def traced(self, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of tensors in `Traced`, once for the current settings.

        Args:
            name: hashable. Identifies the function within this preprocessor.
            function: see `Traced`.
        """
        # `setattr` would make Keras and SavedModel track it.
        traces = self.__dict__.setdefault("_traces", {})
        names = dict.fromkeys((*BertPreprocessor.settings, *self.settings))
        key = (name, self.tokenizer, *(repr(getattr(self, setting)) for setting in names))
        return traces.setdefault(key, Traced(function))


def _tokenizer_settings(cls, kwargs):
    """Pop the tokenizer's settings from the arguments of `from_preset`."""
    name = "special_tokens_in_strings"
    if name not in kwargs:
        return {}
    if "tokenizer" in kwargs:
        raise ValueError(
            f"{name} was passed together with `tokenizer`; set it on that tokenizer instead."
        )
    return {name: kwargs.pop(name)}


def as_tensors(outputs):
    """Convert nested TensorFlow tensors to tensors of the current backend."""
    return keras.tree.map_structure(
        lambda rows: keras.ops.convert_to_tensor(np.asarray(rows)), outputs
    )


def _without_last(tokens, rows):
    """Drop the last token of the rows where `rows` (N,) is true."""
    if not rows.any():
        return tokens
    kept = np.ones(tokens.flat_values.shape[0], bool)
    kept[tokens.row_limits()[rows] - 1] = False
    return ops.Ragged.from_row_lengths(tokens.flat_values[kept], tokens.row_lengths() - rows)


def in_chunks(count, run):
    """Run a function of slices on parallel chunks of `count` texts; return its results."""
    if count <= CHUNK:
        return [run(slice(0, count))]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        starts = range(0, count, CHUNK)
        return list(threads.map(lambda start: run(slice(start, start + CHUNK)), starts))


def _graph_columns(x):
    x = dict_columns(x) if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else (x,)
    columns = [ops.convert_to_tensor(column) for column in x]
    if len(columns) not in (1, 2):
        raise ValueError(f"The dataset yields {len(columns)} columns of text; yield one or two.")
    for column in columns:
        if column.dtype != tf.string or column.shape.rank not in (0, 1):
            raise ValueError(
                f"The dataset yields {column.dtype.name} of shape {column.shape} as text; "
                "yield strings, single or in batches of rank 1."
            )
    return columns


def _family_in(directory):
    """Return the family of a preset's encoder; `None` without one."""
    encoder = _read_json(directory, "config.json")
    cls = own_object(encoder.get("registered_name"))
    return getattr(cls, "family", None) or encoder.get("config", {}).get("family")


def _read_json(directory, name):
    """Read a JSON file; return an empty dict if it does not exist."""
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return {}
    return read_json(path)

"""`BertPreprocessor`, the base class of all preprocessors.

Shapes: N examples, B batch, T tokens per row.
"""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING

import keras
import keras_hub
import numpy as np

from kerasbert.backend.tensorflow import tf
from kerasbert.base.errors import check_choice, check_whole, is_whole
from kerasbert.base.from_preset import FromPreset
from kerasbert.families import LINEAGE, get_family
from kerasbert.families.settings import PACKINGS
from kerasbert.text import ops
from kerasbert.text.batch_plans import (
    cheap_shapes,
    given_batches,
    similar_length_batches,
    sorted_batches,
)
from kerasbert.text.batches import as_tensors, draw_seeds, map_ahead
from kerasbert.text.examples_in_memory import assembled_batches, batch_maker, tokenize_columns
from kerasbert.text.languages import row_segments, segment_ids
from kerasbert.text.long_texts import LongTexts
from kerasbert.text.packing import ROW_SETTINGS, TRUNCATE, kept_lengths, pack_rows
from kerasbert.text.preprocessor_presets import checkpoint_arguments, load_preset
from kerasbert.text.subword import in_languages
from kerasbert.text.text_warnings import looking, looks_of
from kerasbert.text.texts import graph_columns, label_rows, text_columns, weights
from kerasbert.text.wordpiece import BertTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from kerasbert.base.aliases import AnyPath, Tensor
    from kerasbert.checkpoints.checkpoint import Checkpoint
    from kerasbert.text.subword import SubwordTokenizer


@keras.saving.register_keras_serializable(package="kerasbert")
class BertPreprocessor(FromPreset, keras_hub.models.Preprocessor):
    """Packs a text or a pair of texts as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Call it with `x`, `(x, y)` or `(x, y, sample_weight)`, or map it over a `tf.data.Dataset` of
    batches. `x` is a string, or a list, NumPy array, pandas column or tensor of strings; for text
    pairs, a tuple of two of these, a list of pairs, a table of two columns or a dict of `text` and
    `text_b`. The result is a dict:

    - `token_ids`: int32 (B, T),
    - `segment_ids`: int32 (B, T), 1 for text B and its `[SEP]`, or the languages; only with
      `num_segments` above 0,
    - `padding_mask`: bool (B, T), true for tokens.

    T is that of the longest row, rounded up to a bucket (`kerasbert.text.batch_plans.BUCKETS`), at
    most `sequence_length`. A single string gives no batch axis. Inside `tf.data`, single strings
    are padded to `sequence_length`, so batch the dataset before mapping.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: maximum number of tokens per row, special tokens included.
        truncate: string. How to truncate long pairs. "longest_first" shortens the longer text until
            both fit, as in transformers; an odd token goes to the longer text, or to the second of
            equals. "only_second" and "only_first" truncate the other text only if it alone is too
            long. KerasHub's "round_robin" is "longest_first", except that the first text keeps one
            token more; its "waterfall" is "only_second".
        num_segments: int. With 0, `segment_ids` is omitted; with 1, it is all zeros.
        normalize: Unicode normal form applied before tokenizing, "NFC" or "NFKC". Offsets refer to
            the original texts. It is saved with the tokenizer, also in exports and files for
            `transformers`. `None` keeps the tokenizer's setting.
        languages, language: names of all languages of an encoder with language embeddings, and the
            name of the language of the texts, or two for pairs; see `kerasbert.text.languages`.
            Segment ids are then indices of `languages`. Both are saved with the tokenizer.

    Raises:
        ValueError: if a setting is invalid, such as a `sequence_length` without room for the
            special tokens, or if an input is not text.
        ImportError: without TensorFlow, for texts in `tf.data` or a SentencePiece tokenizer.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> preprocessor = BertPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features = preprocessor((["Who?"], ["Me!"]))
    >>> np.asarray(features["token_ids"])[0].tolist()
    [2, 5, 7, 3, 6, 8, 3, 0]

    Source: Devlin et al. 2019, arXiv 1810.04805, section 3; truncation as in transformers.
    """

    # Constructor arguments and attributes that are in the config.
    settings = ROW_SETTINGS
    # Named in errors about keywords that are a tokenizer's arguments.
    usual_tokenizer = BertTokenizer
    # Whether `assemble` has an argument `seed`, for random draws in every epoch.
    draws = False
    # Whether too long texts are truncated, not divided by the task.
    truncates = True
    # A setting of some subclasses, for texts that do not fit into a row.
    long = LongTexts()
    # Form of the rows; see `PACKINGS`.
    packing = "class_first"
    sequence_length: int

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        normalize: str | None = None,
        languages: Sequence[str] | None = None,
        language: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.built = True
        if not hasattr(tokenizer, "frame"):
            raise ValueError(
                f"tokenizer={tokenizer!r} is not a tokenizer of `kerasbert.tokenizers`; "
                "make one with its `from_preset` or `from_files`."
            )
        self.tokenizer = tokenizer
        if languages is not None or language is not None:
            self.tokenizer = in_languages(tokenizer, languages, language)
        if normalize is not None:
            self.normalize = normalize
        self.sequence_length = sequence_length
        check_choice("truncate", truncate, TRUNCATE)
        self.truncate = truncate
        check_whole("num_segments", num_segments, 0)
        self.num_segments = num_segments

    def __setattr__(self, name, value):
        if name == "sequence_length":
            least = max(self.tokenizer.frame.count(2), 1)
            if not is_whole(value) or value < least:
                raise ValueError(
                    f"sequence_length={value!r} must be a whole number of at least {least}, the "
                    "special tokens of a pair."
                )
        super().__setattr__(name, value)

    @property
    def room(self) -> int:
        """Maximum number of tokens of a single text, without special tokens."""
        return self.sequence_length - self.tokenizer.frame.count(1)

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
        """Raise a `ValueError` if encoders of a family need rows of another form.

        Args:
            family: string. `None` for an encoder without a family.
            where: source of the encoder, for the error.
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
        return cls(**checkpoint_arguments(cls, checkpoint, kwargs))

    @classmethod
    def from_own_preset(cls, directory: AnyPath, **kwargs: Any) -> Self:
        """Load from a local directory that `save_to_preset` wrote.

        Of another task's preprocessor, only tokenizer, length, truncation and segments are loaded.
        """
        return load_preset(cls, directory, kwargs, BertPreprocessor)

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        # Keras' `__call__` would take the second text of `((a, b),)` for labels, and list all
        # arguments in errors.
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
        looks_of(self).at_cut(self, columns, segments)
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
        length = None if batched else self.long.buckets(self.sequence_length)[-1]
        outputs = self.assemble(self._tokenize_in_graph(columns), y, sample_weight, length, **drawn)
        return outputs if batched else keras.tree.map_structure(lambda rows: rows[0], outputs)

    # === Columns, for tasks to override ===

    def columns(self, x: Any) -> tuple[Any, ...]:
        """Convert texts in memory to `(columns, batched)`, as `text_columns` does."""
        return text_columns(x)

    def columns_in_graph(self, x: Any) -> list[Any]:
        """Return the one or two string tensors of a `tf.data` element."""
        return graph_columns(x)

    def _targets(self, y, sample_weight, columns):
        count = len(columns[0])
        y = None if y is None else self.check_labels(y, count)
        return y, None if sample_weight is None else weights(sample_weight, count)

    # === Labels, for tasks to override ===

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        """Check the labels of `count` texts: an array of a 32-bit type."""
        y = np.asarray(label_rows(y, count))
        return y.astype({"int64": "int32", "float64": "float32"}.get(y.dtype.name, y.dtype))

    def check_labels_in_graph(self, y: Any) -> Tensor:
        """Check a tensor of labels inside `tf.data`, and return it."""
        return y

    def check_variety(self, segments: Any, y: Any = None, sample_weight: Any = None) -> None:
        """Warn if examples teach nothing."""

    # === Tokens ===

    def tokenize(self, x: Any) -> Any:
        """Tokenize `x`, in any form that a call accepts, without special tokens.

        Returns:
            A tuple of one or two (pairs) `kerasbert.text.ops.Ragged`, int32 (N, None);
            `tf.RaggedTensor` in graphs.
        """
        if not ops.in_graph():
            return self._tokenize_columns(self.columns(x)[0])
        columns = self.columns_in_graph(x)
        if columns[0].shape.rank == 0:
            columns = [column[None] for column in columns]
        return self._tokenize_in_graph(columns)

    def _tokenize_columns(self, columns, most=None, owners=None):
        return tokenize_columns(self, columns, most, owners)

    def _tokenize_in_graph(self, columns):
        return tuple(self._tokens(column) for column in columns)

    def _tokens(self, texts):
        """Tokenize strings (N,) to the ragged int32 (N, None) of `pack`."""
        return ops.cast(self.tokenizer.ragged(texts)[0], "int32")

    # === Packing ===

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        """Return the number of tokens in each packed row, with special tokens: int32 (N,).

        `truncated=False` returns lengths without truncation.
        """
        lengths = sum(_lengths(segments)) + self.tokenizer.frame.count(len(segments))
        return ops.minimum(lengths, self.sequence_length) if truncated else lengths

    def bucket(self, length: int) -> Any:
        """Return the padded length of a batch whose longest row has `length` tokens.

        `length` is an int or a tensor.
        """
        buckets = np.array(self.long.buckets(self.sequence_length), "int32")
        fitting = ops.reduce_sum(ops.cast(length <= buckets, "int32"))
        return ops.gather(buckets, len(buckets) - fitting)

    def pack(self, segments: Any, length: int | None = None) -> Any:
        """Truncate and join segments, add special tokens and pad.

        Args:
            segments: tuple of one or two ragged int32 (B, None); see `tokenize`.
            length: int. T; by default the bucket of the longest row.

        Returns:
            The dict described at the class.
        """
        total = self.packed_lengths(segments)
        length = self.bucket(ops.reduce_max(total)) if length is None else length
        frame = self.tokenizer.frame
        room = self.sequence_length - frame.count(len(segments))
        counts = kept_lengths(_lengths(segments), room, TRUNCATE[self.truncate])
        values = [segment.values for segment in segments]
        starts = [ops.cast(segment.row_starts(), "int32")[:, None] for segment in segments]
        if len(segments) == 2:
            starts[1] = starts[1] + ops.size(values[0])
        packed = pack_rows(
            values, starts, [x[:, None] for x in counts], frame, self.tokenizer.pad_token_id, length
        )
        features = {name: packed[name] for name in ("token_ids", "padding_mask")}
        if self.num_segments:
            segments = row_segments(self.tokenizer, self.num_segments)
            features["segment_ids"] = segment_ids(packed, *segments)
        return features

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        """Convert a batch of segments to `x`, `(x, y)` or `(x, y, sample_weight)`.

        Tasks override this method, which must also run in graphs.
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
        """Batch examples of similar length for `fit`, shuffled in every epoch.

        All texts are tokenized once, in this call.

        Args:
            x: texts or pairs, as for a call.
            y: labels (N, ...).
            sample_weight: floats (N, ...).
            batch_size: int.
            shuffle: bool. `False` keeps the given order.
            seed: int. `None` draws a seed from Python's generator, as Keras does.
            buckets: bool. `False` pads only to the longest row, for models that are not compiled.
            shape_cost: number. Cost of one more compiled shape, in padding tokens per epoch; see
                `kerasbert.text.batch_plans.cheap_shapes`.
            first_epoch: epoch of the first pass. With the same seed, resumed training has the same
                batches.

        Returns:
            A `tf.data.Dataset`, or on JAX and PyTorch a `keras.utils.PyDataset`, of `(x, y,
            sample_weight)`, of which the last two are optional.
        """
        segments, targets = self._examples(x, y, sample_weight)
        self.check_variety(segments, *targets)
        lengths = np.asarray(self.packed_lengths(segments))
        seed = random.randrange(2**31) if seed is None else seed
        shapes = {}
        if shuffle and buckets and shape_cost and len(lengths):
            known = self.long.buckets(self.sequence_length)
            several = known if lengths.max() > self.sequence_length else None
            buckets, short = cheap_shapes(lengths, batch_size, shape_cost, several)
            buckets[-1] = min(buckets[-1], known[-1])
            buckets = tuple(buckets)
            shapes = {"buckets": buckets, "short": short}

        def plan(epoch):
            if shuffle:
                return similar_length_batches(lengths, batch_size, seed, epoch, **shapes)
            return given_batches(lengths, batch_size)

        return assembled_batches(
            self, segments, targets, plan, buckets, lambda epoch: (seed, epoch), first_epoch
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
        """Batch examples, the longest first, for `predict` and `evaluate`.

        Args:
            few: int. Up to this number of rows, the dataset is a list of NumPy batches, without the
                overhead of a pipeline.

        Returns:
            `(dataset, order)`. `kerasbert.data.restore_order(outputs, order)` restores the original
            order.
        """
        check_whole("batch_size", batch_size)
        segments, targets = self._examples(x, y, sample_weight)
        lengths = np.asarray(self.packed_lengths(segments))
        # A text of several windows has several rows.
        counts = np.maximum(-(-lengths // self.sequence_length), 1)
        if counts.sum() <= batch_size:
            rows = [np.arange(len(lengths))]
        else:
            rows = sorted_batches(lengths, batch_size, counts)
        order = np.concatenate(rows)
        if len(order) > few:
            return assembled_batches(self, segments, targets, lambda epoch: rows, buckets), order
        make = batch_maker(self, segments, targets, buckets)
        seeds = zip(draw_seeds((0,), len(rows))) if self.draws else [()] * len(rows)
        return [make(batch, *seed) for batch, seed in zip(rows, seeds)], order

    def _examples(self, x, y, sample_weight):
        """Return segments and `[labels, weights]`, which may be `None`."""
        columns, batched = self.columns(x)
        if not batched:
            raise ValueError("Got one text where a list is needed; pass a list.")
        targets = self._targets(y, sample_weight, columns)
        # Too long texts are truncated already here, to save memory.
        segments = self._tokenize_columns(columns, most=self.sequence_length)
        looks_of(self).at_cut(self, columns, segments)
        return segments, list(targets)

    def map_dataset(self, dataset: Any, dynamic: bool = True, *, anew: bool | None = None) -> Any:
        """Preprocess a `tf.data.Dataset` of batches of texts.

        Args:
            dataset: yields `x`, `(x, y)` or `(x, y, sample_weight)`.
            dynamic: whether random masks differ between passes.
            anew: deprecated name of `dynamic`.
        """
        if anew is not None:
            warnings.warn(
                "map_dataset(anew=...) is deprecated and will be removed; use dynamic=....",
                DeprecationWarning,
                stacklevel=2,
            )
            dynamic = anew
        dataset = looking(self, dataset)
        if not self.draws:
            return map_ahead(dataset, self)

        @tf.autograph.experimental.do_not_convert
        def make(seed, batch):
            batch = keras.utils.unpack_x_y_sample_weight(batch)
            return self._call_in_graph(*batch, seed=seed)

        # Seeds depend on a batch's position, not on the timing of threads.
        seed = random.randrange(2**31) if dynamic else 0
        seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=dynamic).batch(2)
        return map_ahead(tf.data.Dataset.zip((seeds, dataset)), make)


def _lengths(segments):
    return [ops.cast(segment.row_lengths(), "int32") for segment in segments]

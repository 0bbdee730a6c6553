"""Preprocessing for structural probes: sentences of words with their dependency trees.

N sentences, B batch, T tokens per row, W words, P pieces per sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.base.errors import check_choice
from kerasbert.data.trees import DependencyTree
from kerasbert.heads.token_classifier.preprocessor import BertTokenClassifierPreprocessor
from kerasbert.layers.probe import PROBES
from kerasbert.text import ops
from kerasbert.text.batches import as_tensors
from kerasbert.text.pieces import Pieces
from kerasbert.text.preprocessor import BertPreprocessor
from kerasbert.text.texts import weights

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Tensor
    from kerasbert.text.subword import SubwordTokenizer

NO_LABEL = -1


@keras.saving.register_keras_serializable(package="kerasbert")
class BertStructuralProbePreprocessor(BertPreprocessor):
    """Packs sentences and locates the pieces (subwords) of their words.

    `x` is a list of sentences: lists of words, `kerasbert.data.DependencyTree` objects, or texts,
    split into words at white space, punctuation and CJK characters. `y` has a `DependencyTree` for
    each, or its words' heads, counted from 1, with 0 for the root.

    The result is the dict of `BertPreprocessor` with `word_starts`, the position of each word's
    first piece, and `word_counts`, its number of pieces, int32 (B, W), padded with 0. Labels are
    distances (B, W, W) or depths (B, W), int32, padded with -1. W is T. Words beyond
    `sequence_length` have no pieces or labels.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: maximum tokens per row.
        kind: kind of labels, "distance" or "depth".
        num_segments: int. See `BertPreprocessor`.

    Raises:
        ValueError: for heads that are not a tree or do not match the words, with the sentence's
            position.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "bark"]
    >>> preprocessor = BertStructuralProbePreprocessor(BertTokenizer(tokens), kind="depth")
    >>> features, y = preprocessor([["dogs", "bark"]], [[2, 0]])
    >>> starts, counts = features["word_starts"], features["word_counts"]
    >>> np.asarray(starts)[0, :3].tolist(), np.asarray(counts)[0, :3].tolist()
    ([1, 3, 0], [2, 1, 0])
    >>> np.asarray(y)[0, :3].tolist()
    [1, 0, -1]

    Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word
    Representations", NAACL.
    """

    truncates = False
    settings = ("sequence_length", "truncate", "num_segments", "kind")

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        kind: str = "distance",
        num_segments: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(tokenizer, sequence_length, num_segments=num_segments, **kwargs)
        check_choice("kind", kind, PROBES)
        self.kind = kind

    def read(self, x: Any) -> Any:
        """Tokenize lists of words, trees or texts into a `Pieces`; return a `Pieces` unchanged."""
        if isinstance(x, Pieces):
            return x
        if isinstance(x, DependencyTree):
            raise ValueError("Got one tree where a list is needed; pass a list.")
        if not isinstance(x, (str, bytes, dict)) and hasattr(x, "__iter__"):
            x = list(x) if hasattr(x, "__next__") else x
            if any(isinstance(row, DependencyTree) for row in x):
                x = [list(row.words) if isinstance(row, DependencyTree) else row for row in x]
        reader = self.__dict__.get("_reader")
        if reader is None:
            reader = BertTokenClassifierPreprocessor(self.tokenizer)
            self.__dict__["_reader"] = reader  # `setattr` would make Keras track it.
        return reader.read(x)

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Tensor:
        if ops.in_graph():
            raise ValueError(
                "Sentences and trees cannot be read inside tf.data; pass them to fit(), "
                "evaluate() and predict() as lists."
            )
        segments, (y, sample_weight) = self._examples(x, y, sample_weight)
        outputs = self.assemble(segments, y, sample_weight)
        return as_tensors(outputs)

    def _examples(self, x, y, sample_weight):
        pieces = self.read(x)
        count = len(pieces.rows)
        y = None if y is None else self._trees(pieces, y)
        sample_weight = None if sample_weight is None else weights(sample_weight, count)
        ids = ops.Ragged(pieces.ids.astype("int32"), pieces.splits)
        begins = np.repeat(pieces.splits[:-1], np.diff(pieces.unit_splits))
        starts = ops.Ragged((pieces.first - begins).astype("int32"), pieces.unit_splits)
        counts = ops.Ragged(pieces.count.astype("int32"), pieces.unit_splits)
        y = None if y is None else self._labels(y)
        return (ids, starts, counts), [y, sample_weight]

    def _trees(self, pieces, y):
        """Convert `y` to a list with one tree per sentence."""
        y = list(y)
        if len(y) != len(pieces.rows):
            raise ValueError(
                f"There are {len(pieces.rows)} sentences but {len(y)} trees; pass one for each."
            )
        trees = []
        splits = pieces.unit_splits
        for position, (row, tree) in enumerate(zip(pieces.rows, y)):
            begin, end = splits[position : position + 2]
            if not isinstance(tree, DependencyTree):
                words = row
                if not pieces.words:
                    places = zip(pieces.starts[begin:end], pieces.ends[begin:end])
                    words = [row[start:stop] for start, stop in places]
                try:
                    tree = DependencyTree(tuple(words), tuple(np.asarray(tree).tolist()))
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"The heads at position {position} are not a tree: {error}"
                    ) from None
            if len(tree.heads) != end - begin:
                raise ValueError(
                    f"The sentence at position {position} has {end - begin} words, but its tree "
                    f"has {len(tree.heads)}; pass one head for each word."
                )
            trees.append(tree)
        return trees

    def _labels(self, trees):
        """Return ragged int32 labels: depths (N, W), or distances (N, W, W)."""
        lengths = [len(tree.heads) for tree in trees]
        if self.kind == "depth":
            values = np.concatenate([tree.depths for tree in trees]).astype("int32")
            return ops.Ragged.from_row_lengths(values, lengths)
        values = np.concatenate([tree.distances.ravel() for tree in trees]).astype("int32")
        rows = ops.Ragged.from_row_lengths(values, np.repeat(lengths, lengths))
        return ops.Ragged.from_row_lengths(rows, lengths)

    # === Packing: segments are pieces, and starts and counts of words ===

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        return super().packed_lengths(segments[:1], truncated)

    def pack(self, segments: Any, length: int | None = None) -> Any:
        features = super().pack(segments[:1], length)
        width = ops.shape(features["token_ids"])[1]
        starts, counts = (_to_width(words.to_tensor(0), width, 0) for words in segments[1:])
        kept = self.packed_lengths(segments)[:, None] - self.tokenizer.frame.count(1)
        there = (counts > 0) & (starts + counts <= kept)
        return {
            **features,
            "word_starts": ops.where(there, starts + self.tokenizer.frame.first, 0),
            "word_counts": ops.where(there, counts, 0),
        }

    def assemble(
        self, segments: Any, y: Any = None, sample_weight: Any = None, length: int | None = None
    ) -> Any:
        features = self.pack(segments, length)
        if y is not None:
            width = ops.shape(features["token_ids"])[1]
            there = features["word_counts"] > 0
            y = _to_width(y.to_tensor(NO_LABEL), width, NO_LABEL)
            if self.kind == "distance":
                there = there[:, :, None] & there[:, None, :]
            y = ops.where(there, y, NO_LABEL)
        return keras.utils.pack_x_y_sample_weight(features, y, sample_weight)


def _to_width(x, width, value):
    """Truncate or pad all axes but the first to a width."""
    for axis in range(1, len(x.shape)):
        x = ops.gather(x, ops.range(ops.minimum(ops.shape(x)[axis], width)), axis=axis)
        missing = width - ops.shape(x)[axis]
        pads = [[0, missing if one == axis else 0] for one in range(len(x.shape))]
        x = ops.pad(x, pads, constant_values=value)
    return x

"""Preprocessing for XLNet: rows `A <sep> B <sep> <cls>`, padded on the left.

B batch, T tokens of the packed row, P predictions, S spans.
"""

import keras
import numpy as np

from kerasbert.base.errors import check_whole
from kerasbert.heads.multiple_choice.preprocessor import BertMultipleChoicePreprocessor
from kerasbert.heads.question_answering.preprocessor import BertQuestionAnsweringPreprocessor
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.heads.text_regressor.preprocessor import BertTextRegressorPreprocessor
from kerasbert.heads.token_classifier.preprocessor import BertTokenClassifierPreprocessor
from kerasbert.text import ops
from kerasbert.text.preprocessor import BertPreprocessor

# Segment ids of `<cls>` and of padding; texts have 0 and 1.
OF_CLS, OF_PADDING = 2, 3


class XLNetPacking:
    """Mixin for preprocessors: rows end with `<sep> <cls>`, and padding comes first.

    It must be the first base class.
    """

    packing = "class_last"

    def pack(self, segments, length=None):
        """Pack as `BertPreprocessor`, but in XLNet's order; `<cls>` has segment 2, padding 3."""
        features = super().pack(segments, length)
        ids, mask = features["token_ids"], features["padding_mask"]
        count = ops.reduce_sum(ops.cast(mask, "int32"), axis=1, keepdims=True)  # (B, 1)
        width = ops.shape(ids)[1]
        place = ops.range(width)[None] - (width - count)  # (B, T), position without padding
        is_token, is_last = place >= 0, place == count - 1
        # Move `<cls>`, which the base class packs first, to the end.
        source = ops.where(is_token & ~is_last, place + 1, 0)
        moved = ops.gather(ids, source, batch_dims=1)
        features["token_ids"] = ops.where(is_token, moved, self.tokenizer.pad_token_id)
        features["padding_mask"] = is_token
        if self.num_segments:
            of = ops.gather(features["segment_ids"], source, batch_dims=1)
            of = ops.where(is_last, OF_CLS, of)
            features["segment_ids"] = ops.where(is_token, of, OF_PADDING)
        return features


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTextClassifierPreprocessor(XLNetPacking, BertTextClassifierPreprocessor):
    """Packs texts or pairs as `A <sep> <cls>` or `A <sep> B <sep> <cls>`, padded on the left.

    Segments are 0 for A, 1 for B, 2 for `<cls>` and 3 for padding. All else is as in
    `BertTextClassifierPreprocessor`.

    Example:

    >>> from kerasbert.lineage.xlnet.preprocessor import XLNetTextClassifierPreprocessor
    >>> XLNetTextClassifierPreprocessor.__mro__[2].__name__
    'BertTextClassifierPreprocessor'
    """


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTextRegressorPreprocessor(XLNetPacking, BertTextRegressorPreprocessor):
    """Packs texts or pairs for `XLNetTextRegressor`; see `XLNetTextClassifierPreprocessor`.

    Arguments and labels are those of `BertTextRegressorPreprocessor`.
    """


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTokenClassifierPreprocessor(XLNetPacking, BertTokenClassifierPreprocessor):
    """Packs words or texts as `text <sep> <cls>`, padded on the left, and labels their pieces.

    Arguments and labels are those of `BertTokenClassifierPreprocessor`. Labels and weights (B, T)
    have the order `<cls> text <sep>`, in which `XLNetTokenClassifier` returns its logits.
    """


class _XLNetPreprocessor(XLNetPacking, BertPreprocessor):
    """XLNet's packing as the base of a class that packs rows by `super().pack`."""


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetMultipleChoicePreprocessor(BertMultipleChoicePreprocessor, _XLNetPreprocessor):
    """Packs each choice with its prompt as `prompt <sep> choice <sep> <cls>`, padded on the left.

    Arguments and labels are those of `BertMultipleChoicePreprocessor`.
    """


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetQuestionAnsweringPreprocessor(XLNetPacking, BertQuestionAnsweringPreprocessor):
    """Packs questions and windows of their contexts as `question <sep> window <sep> <cls>`.

    Arguments are those of `BertQuestionAnsweringPreprocessor`. Positions in labels and windows
    refer to the order `<cls> question <sep> window <sep>`, in which `XLNetQuestionAnswering`
    returns its logits.
    """


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetPretrainerPreprocessor(XLNetPacking, BertPreprocessor):
    """Packs texts, and draws the predicted tokens and their order for each batch.

    In every `context_factor` * L tokens, a random span of L tokens, from 1 to `max_span`, is
    predicted. In a random order, each predicted token attends to those before it, and to all
    others. A call returns `(x, y, sample_weight)`. `x` also has `hidden_mask` (B, T, T), 1 where a
    token must not attend to another one, and `target_mapping` (B, P, T), 1 at the position of each
    prediction; `y` holds the predicted tokens (B, P).

    Args:
        tokenizer, sequence_length, truncate, num_segments: see `BertPreprocessor`.
        context_factor: int. K in the paper: one of K tokens is predicted.
        max_span: maximum tokens per span.

    Source: Yang et al. 2019, arXiv 1906.08237, sections 2.3 and 3.1, and its released code.
    """

    settings = (*BertPreprocessor.settings, "context_factor", "max_span")
    draws = True

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate="longest_first",
        num_segments=2,
        context_factor=6,
        max_span=5,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, truncate, num_segments, **kwargs)
        check_whole("context_factor", context_factor)
        check_whole("max_span", max_span)
        self.context_factor = context_factor
        self.max_span = max_span

    def check_labels(self, y, count):
        raise ValueError("XLNet's pre-training makes its own labels; pass texts without labels.")

    def check_labels_in_graph(self, y):
        return self.check_labels(y, None)

    def assemble(self, segments, y=None, sample_weight=None, length=None, seed=None):
        features = self.pack(segments, length)
        if seed is None:
            seed = ops.draw_seed()
        ids = features["token_ids"]
        batch, width = ops.unstack(ops.shape(ids))
        seeds = ops.split_seed(seed, 3)
        chosen = self._spans(batch, width, features["padding_mask"], seeds)
        special = np.array([self.tokenizer.start_token_id, self.tokenizer.end_token_id], "int32")
        is_special = ops.reduce_any(ids[:, :, None] == special, axis=-1)
        chosen = chosen & ~is_special & features["padding_mask"]
        # All tokens attend to those that are not predicted.
        order = ops.stateless_uniform(ops.shape(ids), seeds[2])
        order = ops.where(chosen, order, -1.0)
        hidden = (order[:, :, None] <= order[:, None]) & chosen[:, None]
        most = width // self.context_factor + self.max_span
        places = ops.sort(ops.where(chosen, ops.range(width)[None], width), axis=-1)[:, :most]
        features["hidden_mask"] = ops.cast(hidden, "int32")
        features["target_mapping"] = ops.one_hot(places, width)
        there = ops.cast(places < width, "float32")
        if sample_weight is not None:
            there = there * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        labels = ops.gather(ids, ops.minimum(places, width - 1), batch_dims=1)
        return features, ops.where(places < width, labels, 0), there

    def _spans(self, batch, width, mask, seeds):
        """Draw which tokens are in a span: bool (B, T)."""
        count = width // self.context_factor + 1  # enough spans even if each has one token
        sizes = ops.stateless_uniform((batch, count), seeds[0], 1, self.max_span + 1, dtype="int32")
        contexts = sizes * self.context_factor
        begins = ops.cumsum(contexts, axis=1, exclusive=True)
        room = ops.cast(contexts - sizes + 1, "float32")
        draw = ops.stateless_uniform((batch, count), seeds[1])
        begins = begins + ops.cast(draw * room, "int32")
        first = width - ops.reduce_sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
        place = (ops.range(width)[None] - first)[:, :, None]  # (B, T, 1)
        inside = (place >= begins[:, None]) & (place < (begins + sizes)[:, None])
        return ops.reduce_any(inside, axis=-1)

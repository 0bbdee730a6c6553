"""XLNet's tasks: text classification, question answering and pretraining.

B batch, T tokens, P predictions, D width, V tokens in the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.base.parts import own_preprocessor
from kerasbert.heads.base.head_metrics import TOKEN_CLASSES
from kerasbert.heads.base.task import BertTask
from kerasbert.heads.masked_lm.model import vocabulary_head
from kerasbert.heads.question_answering.model import BertQuestionAnswering
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.layers.block import tokens_at
from kerasbert.lineage.xlnet.model import XLNetBackbone
from kerasbert.lineage.xlnet.preprocessor import (
    XLNetPretrainerPreprocessor,
    XLNetQuestionAnsweringPreprocessor,
    XLNetTextClassifierPreprocessor,
)
from kerasbert.losses import Perplexity, TokenAccuracy, TokenCrossEntropy

if TYPE_CHECKING:
    from typing import Any


def _of_predictions(task):
    """Return the query stream's embedding, which only pretraining uses."""
    return task.backbone.mask_embedding.weights


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTextClassifier(BertTextClassifier):
    """Classifies texts or pairs of texts from XLNet's last token, `<cls>`.

    The head is a dense layer with tanh, then the logits. Methods and arguments are those of
    `BertTextClassifier`, with an `XLNetBackbone` and an `XLNetTextClassifierPreprocessor`.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> classifier = XLNetTextClassifier(backbone, labels=["ham", "spam"])
    >>> classifier.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3, 2)

    Source: Yang et al. 2019, arXiv 1906.08237.
    """

    backbone_cls = XLNetBackbone
    preprocessor_cls = XLNetTextClassifierPreprocessor

    def untrained_weights(self) -> list[Any]:
        return _of_predictions(self)


class _LastFirst(keras.layers.Layer):
    """Reorders rows `... <cls>`, padded on either side, to `<cls> ...` with padding at the end."""

    def call(self, inputs, padding_mask):
        mask = ops.cast(padding_mask, "int32")
        batch, length = ops.shape(mask)
        count = ops.sum(mask, axis=1, keepdims=True)  # (B, 1)
        first = ops.cast(ops.argmax(mask, axis=1, keepdims=True), "int32")
        place = ops.broadcast_to(ops.arange(length, dtype="int32")[None], (batch, length))
        last = first + ops.maximum(count, 1) - 1
        source = ops.where(place == 0, last, ops.clip(first + place - 1, 0, length - 1))
        return tokens_at(inputs, source), ops.cast(place < count, "int32")

    def compute_output_spec(self, inputs, padding_mask):
        mask = keras.KerasTensor(padding_mask.shape, dtype="int32")
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype), mask


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetQuestionAnswering(BertQuestionAnswering):
    """Extracts answers with a simple span head over XLNet's tokens.

    Rows are `question <sep> window <sep> <cls>`. Logits (B, T) and labels are ordered as `<cls>`
    (no answer), the other tokens, padding.

    Arguments and methods are those of `BertQuestionAnswering`, with an `XLNetBackbone`. The
    beam-search head of XLNet's paper is not implemented.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = XLNetQuestionAnswering(backbone)
    >>> model.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0)["end_logits"].shape
    (3, 5)
    """

    backbone_cls = XLNetBackbone
    preprocessor_cls = XLNetQuestionAnsweringPreprocessor

    def untrained_weights(self) -> list[Any]:
        return _of_predictions(self)

    def _in_order(self, logits, padding_mask):
        return _LastFirst(dtype=self.backbone.dtype_policy, name="last_first")(logits, padding_mask)


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetPretrainer(BertTask):
    """Permutation language modeling, XLNet's pretraining.

    Inputs are those of the encoder plus `hidden_mask` (B, T, T), 1 where a token must not attend to
    another one, and `target_mapping` (B, P, T), 1 at the position of each prediction. The output
    is logits (B, P, V). `fit` and `evaluate` take raw texts, or preprocessed arrays with token ids
    (B, P) as labels.

    Args:
        backbone: an `XLNetBackbone`.
        preprocessor: an `XLNetPretrainerPreprocessor`, or `None` for preprocessed arrays.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = XLNetPretrainer(backbone)
    >>> x = {"token_ids": np.array([[7, 3, 5]]), "hidden_mask": [[[0, 1, 0]] * 3],
    ...      "target_mapping": np.array([[[0.0, 1.0, 0.0]]])}
    >>> tuple(model({name: np.array(value) for name, value in x.items()}).shape)
    (1, 1, 100)

    Source: Yang et al. 2019, arXiv 1906.08237, sections 2.2 to 2.4.
    """

    backbone_cls = XLNetBackbone
    preprocessor_cls = XLNetPretrainerPreprocessor
    kind = "pretrainer"

    def __init__(
        self,
        backbone: XLNetBackbone,
        preprocessor: XLNetPretrainerPreprocessor | None = None,
        **kwargs: Any,
    ) -> None:
        self._check_encoder(backbone)
        self.backbone = backbone
        self.preprocessor = own_preprocessor(backbone, preprocessor, self.preprocessor_cls)
        self.head_activation, self.head_bias, self.head_norm_epsilon = None, True, 1e-12
        self.output_bias = self.tie_weights = True
        self.lm_head = vocabulary_head(self, "lm_head")
        inputs = {
            **backbone.input,
            "hidden_mask": keras.Input((None, None), dtype="int32", name="hidden_mask"),
            "target_mapping": keras.Input((None, None), dtype="float32", name="target_mapping"),
        }
        vectors = backbone.predict_targets(
            {name: inputs[name] for name in backbone.input},
            inputs["hidden_mask"],
            inputs["target_mapping"],
        )
        super().__init__(inputs=inputs, outputs=self.lm_head(vectors), **kwargs)

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return False

    @classmethod
    def output_weight(cls, settings: Any) -> str:
        return "lm_head/bias"

    def untrained_weights(self) -> list[Any]:
        return []

    def _needs_labels(self, is_raw):
        return not is_raw

    def default_loss(self) -> Any:
        """Return the cross-entropy, averaged over the predictions."""
        return TokenCrossEntropy()

    def default_metrics(self) -> Any:
        """Return accuracy and perplexity over the predictions."""
        return [TokenAccuracy(), Perplexity()]

    def metric_forms(self) -> Any:
        return TOKEN_CLASSES, self.backbone.vocabulary_size

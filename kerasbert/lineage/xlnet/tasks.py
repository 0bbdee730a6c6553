"""XLNet's tasks.

B batch, T tokens, P predictions, D width, V tokens in the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from kerasbert.backend.layers import tokens_at
from kerasbert.heads.base.writing_task import TokenTask
from kerasbert.heads.masked_lm.model import vocabulary_head
from kerasbert.heads.multiple_choice.model import BertMultipleChoice
from kerasbert.heads.question_answering.model import BertQuestionAnswering
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.heads.text_regressor.model import BertTextRegressor
from kerasbert.heads.token_classifier.model import BertTokenClassifier
from kerasbert.lineage.xlnet.model import XLNetBackbone
from kerasbert.lineage.xlnet.preprocessor import (
    XLNetMultipleChoicePreprocessor,
    XLNetPretrainerPreprocessor,
    XLNetQuestionAnsweringPreprocessor,
    XLNetTextClassifierPreprocessor,
    XLNetTextRegressorPreprocessor,
    XLNetTokenClassifierPreprocessor,
)

if TYPE_CHECKING:
    from typing import Any


class _XLNetTask:
    """Mixin for heads on XLNet; must be the first base class."""

    backbone_cls = XLNetBackbone

    def untrained_weights(self) -> list[Any]:
        """Return the weights of the query stream's embedding, which only pre-training uses."""
        return self.backbone.mask_embedding.weights


class _LastFirst(keras.layers.Layer):
    """Layer that reorders rows `... <cls>`, padded on either side, to `<cls> ...` plus padding."""

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


class _XLNetTokenTask(_XLNetTask):
    """Mixin for heads that compute each token; logits have the order `<cls> text <sep>`."""

    def _in_order(self, logits, padding_mask):
        return _LastFirst(dtype=self.backbone.dtype_policy, name="last_first")(logits, padding_mask)


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTextClassifier(_XLNetTask, BertTextClassifier):
    """Classifies texts or pairs of texts from XLNet's last token, `<cls>`.

    The head is a dense layer with tanh, then the logits. Otherwise it works like
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

    preprocessor_cls = XLNetTextClassifierPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTextRegressor(_XLNetTask, BertTextRegressor):
    """Predicts a number for texts or pairs of texts from XLNet's last token, `<cls>`.

    The head is that of `XLNetTextClassifier`. Otherwise it works like `BertTextRegressor`, with an
    `XLNetBackbone` and an `XLNetTextRegressorPreprocessor`.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> regressor = XLNetTextRegressor(backbone)
    >>> regressor.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3,)

    Source: Yang et al. 2019, arXiv 1906.08237, section 3.3 (STS-B).
    """

    preprocessor_cls = XLNetTextRegressorPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetTokenClassifier(_XLNetTokenTask, BertTokenClassifier):
    """Tags words from XLNet's tokens.

    Rows are `text <sep> <cls>`. Logits (B, T, C) and labels have the order `<cls>`, other tokens,
    padding. Otherwise it works like `BertTokenClassifier`, with an `XLNetBackbone` and an
    `XLNetTokenClassifierPreprocessor`.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> tagger = XLNetTokenClassifier(backbone, labels=["PER", "LOC"], scheme="BIO")
    >>> tagger.predict({"token_ids": np.ones((3, 7), "int32")}, verbose=0).shape
    (3, 7, 5)

    Source: Yang et al. 2019, arXiv 1906.08237.
    """

    preprocessor_cls = XLNetTokenClassifierPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetMultipleChoice(_XLNetTask, BertMultipleChoice):
    """Selects the choice that best fits a prompt, from XLNet's last token, `<cls>`, of each row.

    The head is that of `XLNetTextClassifier`. Otherwise it works like `BertMultipleChoice`, with an
    `XLNetBackbone` and an `XLNetMultipleChoicePreprocessor`.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = XLNetMultipleChoice(backbone)
    >>> model.predict({"token_ids": np.ones((3, 4, 5), "int32")}, verbose=0).shape
    (3, 4)

    Source: Yang et al. 2019, arXiv 1906.08237, section 3.3 (RACE).
    """

    preprocessor_cls = XLNetMultipleChoicePreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetQuestionAnswering(_XLNetTokenTask, BertQuestionAnswering):
    """Extractive question answering with a simple span head on XLNet's tokens.

    Rows are `question <sep> window <sep> <cls>`. Logits (B, T) and labels have the order `<cls>`
    (no answer), other tokens, padding.

    Arguments and methods are those of `BertQuestionAnswering`, with an `XLNetBackbone`, without the
    paper's beam-search head.

    Example:

    >>> backbone = XLNetBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> model = XLNetQuestionAnswering(backbone)
    >>> model.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0)["end_logits"].shape
    (3, 5)
    """

    preprocessor_cls = XLNetQuestionAnsweringPreprocessor


@keras.saving.register_keras_serializable(package="kerasbert")
class XLNetPretrainer(TokenTask):
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
        self._set_parts(backbone, preprocessor)
        self.head_activation, self.head_bias, self.head_norm_epsilon = None, True, 1e-12
        self.output_bias, self.tie_weights, self.head_dim = True, True, None
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

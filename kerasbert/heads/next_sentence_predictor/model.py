"""Next-sentence prediction: whether one text follows another.

B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.families import head_settings
from kerasbert.heads.base.head_metrics import CLASSES
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings, pair_pooling
from kerasbert.heads.base.inputs import as_lists
from kerasbert.heads.next_sentence_predictor.preprocessor import (
    BertNextSentencePredictorPreprocessor,
)
from kerasbert.losses.logits import ClassAccuracy, ClassCrossEntropy

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertNextSentencePredictor(HeadedTask):
    """Next-sentence predictor: predicts whether text B of a pair follows text A.

    The output is logits (B, 2), as in BERT: class 0 if text B follows text A, and 1 if not. With
    `sentence_order`, it predicts which text comes first: 0 for A, 1 for B.

    Args:
        backbone: a `BertBackbone` with a pooler, or a causal one, which uses mean pooling.
        preprocessor: a `BertNextSentencePredictorPreprocessor`, or `None` for preprocessed arrays.
        dropout: dropout before the logits. Defaults to the family's setting.
        sentence_order: bool. See `BertPretrainer`.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> predictor = BertNextSentencePredictor(backbone)
    >>> predictor.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3, 2)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 3.1.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertNextSentencePredictorPreprocessor
    kind = "next_sentence_predictor"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertNextSentencePredictorPreprocessor | None = None,
        dropout: float | None = None,
        sentence_order: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor)
        row = head_settings(backbone.family, self.kind)
        self._set_given({"sentence_order": sentence_order}, row)
        self._make_head(2, HeadSettings(dropout, pair_pooling(backbone)))
        self.output_activation = keras.layers.Activation(None, dtype="float32", name="predictions")
        outputs = self.output_activation(self._logits(backbone.input))  # (B, 2)
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the cross-entropy."""
        return ClassCrossEntropy(from_logits=True)

    def default_metrics(self) -> Any:
        """Return the accuracy."""
        return [ClassAccuracy()]

    def metric_forms(self) -> Any:
        return CLASSES, 2

    def follows(self, a: Texts, b: Texts, batch_size: int = 32) -> Any:
        """Return the probability that `b` follows `a`.

        Args:
            a: a string or a list of N strings.
            b: like `a`.
            batch_size: int.

        Returns:
            float64 (N,), or a float for a single pair.
        """
        texts, single = as_lists(self, (a, b), "follows()")
        logits = np.asarray(self.predict(texts, batch_size=batch_size, verbose=0), "float64")
        scores = 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))
        return float(scores[0]) if single else scores

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sentence_order": self.sentence_order}

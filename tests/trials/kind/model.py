"""A kind of head for a trial: it predicts how many of some words a text contains.

B batch.
"""

import keras
import numpy as np
from keras import ops
from kerasbert.heads.text_counter.preprocessor import BertTextCounterPreprocessor

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings
from kerasbert.heads.base.inputs import as_lists


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextCounter(HeadedTask):
    """Text counter; the output is the logarithm of the expected number, (B,)."""

    backbone_cls = BertBackbone
    preprocessor_cls = BertTextCounterPreprocessor
    kind = "text_counter"

    def __init__(self, backbone, preprocessor=None, dropout=None, pooling=None, **kwargs):
        self._set_parts(backbone, preprocessor)
        self._make_head(1, HeadSettings(dropout=dropout, pooling=pooling))
        outputs = ops.cast(self._logits(backbone.input)[:, 0], "float32")  # (B,)
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    def default_loss(self):
        return PoissonOfLogarithm()

    def default_metrics(self):
        return []

    def count(self, texts, batch_size=32):
        """Return the expected number of each text: float32 (N,), or a float for a single text."""
        texts, single = as_lists(self, texts, "count()")
        counts = np.exp(self.predict(texts, batch_size=batch_size, verbose=0))
        return float(counts[0]) if single else counts


@keras.saving.register_keras_serializable(package="kerasbert")
class PoissonOfLogarithm(keras.losses.Loss):
    """Minus the log-likelihood of counts (B,) whose expected number has the logarithm (B,)."""

    def call(self, y_true, y_pred):
        return ops.exp(y_pred) - ops.cast(y_true, y_pred.dtype) * y_pred

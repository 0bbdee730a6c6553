"""Regression on texts and text pairs.

B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import NUMBERS
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings
from kerasbert.heads.base.inputs import as_lists
from kerasbert.heads.text_regressor.preprocessor import BertTextRegressorPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class SquaredError(keras.losses.Loss):
    """Squared error of each number (B,), which Keras' own loss treats as one row.

    >>> y, weights = np.array([1.0, 2.0]), np.array([1.0, 0.0])
    >>> float(SquaredError()(y, y + 2, sample_weight=weights))
    2.0
    """

    def call(self, y_true, y_pred):
        return ops.square(y_pred - ops.cast(y_true, y_pred.dtype))


@keras.saving.register_keras_serializable(package="kerasbert")
def _absolute_error(y_true, y_pred):
    return ops.abs(y_pred - ops.cast(y_true, y_pred.dtype))


@keras.saving.register_keras_serializable(package="kerasbert")
class BertTextRegressor(HeadedTask):
    """Regressor: predicts a number for texts or text pairs, such as a grade or a similarity.

    `fit`, `evaluate` and `predict` take raw strings; the output is (B,).

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertTextRegressorPreprocessor`, or `None` for preprocessed arrays.
        dropout, pooling, head_activation, head_bias, head_norm, dropout_first, bilstm_units,
            output_bias, long: see `BertTextClassifier`.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> regressor = BertTextRegressor(backbone)
    >>> regressor.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3,)

    Source: Devlin et al. 2019, arXiv 1810.04805, section 4.1 (STS-B).
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertTextRegressorPreprocessor
    kind = "text_regressor"
    takes_long = True

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertTextRegressorPreprocessor | None = None,
        dropout: float | None = None,
        pooling: str | None = None,
        head_activation: str | None = None,
        head_bias: bool | None = None,
        head_norm: bool | None = None,
        dropout_first: bool | None = None,
        bilstm_units: int | None = None,
        output_bias: bool | None = None,
        long: Any = None,
        **kwargs: Any,
    ) -> None:
        self._set_parts(backbone, preprocessor, long=long)
        self._make_head(
            1,
            HeadSettings(
                dropout,
                pooling,
                head_activation,
                head_bias,
                head_norm,
                dropout_first,
                bilstm_units,
                output_bias,
            ),
        )
        # Losses need float32.
        inputs = self._window_inputs()
        outputs = ops.cast(self._logits(inputs)[:, 0], "float32")  # (B,)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self) -> Any:
        """Return the mean squared error."""
        return SquaredError()

    def default_metrics(self) -> Any:
        """Return the mean absolute error."""
        return [keras.metrics.MeanMetricWrapper(_absolute_error, name="mae")]

    def metric_forms(self) -> Any:
        return NUMBERS, None

    def score(self, texts: Texts, batch_size: int = 32) -> Any:
        """Predict the number of each text.

        Args:
            texts: a string, a list of strings, or a tuple of two of either for pairs.
            batch_size: int.

        Returns:
            float32 (N,), or a float for a single text.
        """
        texts, single = as_lists(self, texts, "score()")
        scores = np.asarray(self.predict(texts, batch_size=batch_size, verbose=0), "float32")
        return float(scores[0]) if single else scores

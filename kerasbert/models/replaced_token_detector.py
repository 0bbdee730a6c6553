"""Replaced-token detection: which tokens of a text another model put there.

N texts, B batch, T tokens, P pieces of a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.losses.logits import BinaryTokenAccuracy, BinaryTokenCrossEntropy
from kerasbert.models.backbone import BertBackbone
from kerasbert.models.head_metrics import TOKEN_FLAGS
from kerasbert.models.headed_task import HeadedTask, HeadSettings
from kerasbert.parts import own_preprocessor
from kerasbert.preprocessors.replaced_token_detector import (
    BertReplacedTokenDetectorPreprocessor,
)

if TYPE_CHECKING:
    from typing import Any

    from kerasbert._typing import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertReplacedTokenDetector(HeadedTask):
    """Tells tokens that were replaced from those that were there, as ELECTRA is pre-trained.

    ELECTRA's published discriminators load with their head. The output is logits (B, T), above 0
    where a token was replaced; labels are 1 there and 0 elsewhere, with weights (B, T) that are 0
    at padding and special tokens. `fit`, `evaluate` and `predict` take raw texts and words too.

    Args:
        backbone: a `BertBackbone`; it needs no pooler.
        preprocessor: a `BertReplacedTokenDetectorPreprocessor`, or `None` for ready arrays.
        head_activation: string. Of the head's dense layer; by default the encoder's.

    Example:

    >>> backbone = BertBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    ... )
    >>> detector = BertReplacedTokenDetector(backbone)
    >>> detector.predict({"token_ids": np.ones((3, 5), "int32")}, verbose=0).shape
    (3, 5)

    Source: Clark et al. 2020, arXiv 2003.10555.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertReplacedTokenDetectorPreprocessor
    kind = "replaced_token_detector"

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertReplacedTokenDetectorPreprocessor | None = None,
        head_activation: str | None = None,
        **kwargs: Any,
    ) -> None:
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = own_preprocessor(backbone, preprocessor, self.preprocessor_cls)
        activation = backbone.activation if head_activation is None else head_activation
        self._make_head(1, HeadSettings(dropout=0.0, pooling="tokens", head_activation=activation))
        # Losses and probabilities are computed in float32 whatever the encoder runs in.
        self.output_activation = keras.layers.Activation(None, dtype="float32", name="predictions")
        outputs = self.output_activation(self._logits(backbone.input))  # (B, T, 1)
        super().__init__(inputs=backbone.input, outputs=ops.squeeze(outputs, -1), **kwargs)

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return False

    def default_loss(self) -> Any:
        """Binary cross-entropy, the mean over the tokens by their weights."""
        return BinaryTokenCrossEntropy()

    def default_metrics(self) -> Any:
        """Accuracy of the tokens that count."""
        return [BinaryTokenAccuracy()]

    def metric_forms(self) -> Any:
        return TOKEN_FLAGS, None

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Logits of ready arrays (B, T), or of the pieces of texts or lists of words.

        Returns:
            For texts and lists of words a list of N arrays (P,), in their order: a logit for each
            piece that `tokenizer.tokenize` gives of the text, however long it is.
        """
        if not self._is_raw(x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        pieces = self.preprocessor.read(x)
        return np.split(self._logits_of(pieces, batch_size, **kwargs), pieces.splits[1:-1])

    def detect(self, x: Texts, batch_size: int = 32) -> Any:
        """How likely each token of a text was replaced.

        Args:
            x: a string, a list of strings, or a list of lists of words.
            batch_size: int.

        Returns:
            For each text a list of dicts, one a token, or one a word of lists of words: `text`,
            `start` and `end` in characters (of lists of words their number and the next one), and
            `score`, the probability that it was replaced. One list for a single string.
        """
        if self.preprocessor is None:
            raise ValueError(
                "detect() takes texts or lists of words, and this model has no preprocessor."
            )
        single = isinstance(x, (str, bytes))
        pieces = self.preprocessor.read([x] if single else x)
        logits = self._logits_of(pieces, batch_size, verbose=0).astype("float64")
        # Of a word of several pieces, and of a character of several, the mean.
        sums = np.append(0, np.cumsum(1 / (1 + np.exp(-logits))))
        scores = sums[pieces.first + pieces.count] - sums[pieces.first]
        scores = scores / np.maximum(pieces.count, 1)
        found, splits = [], pieces.unit_splits
        for row, begin, end in zip(pieces.rows, splits[:-1], splits[1:]):
            columns = (pieces.starts[begin:end], pieces.ends[begin:end], scores[begin:end])
            found.append(
                [
                    {
                        "text": row[start] if pieces.words else row[start:stop],
                        "start": start,
                        "end": stop,
                        "score": score,
                    }
                    for start, stop, score in zip(*(column.tolist() for column in columns))
                ]
            )
        return found[0] if single else found

    def _logits_of(self, pieces, batch_size, **kwargs):
        """Logits (pieces of all texts,)."""
        dataset, order = self._sorted_batches(pieces, batch_size=batch_size)
        outputs = self._batch_outputs(dataset, **kwargs)
        rows = (np.asarray(row)[:, None] for _, batch in outputs for row in batch)
        return self.preprocessor.join_windows(pieces, rows, order)[:, 0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "head_activation": self.head_activation}

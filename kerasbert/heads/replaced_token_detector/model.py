"""Replaced-token detection: find the tokens that another model replaced in a text.

N texts, B batch, T tokens, P subwords per text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.base.head_metrics import TOKEN_FLAGS
from kerasbert.heads.base.headed_task import HeadedTask, HeadSettings
from kerasbert.heads.base.inputs import is_raw, sorted_batches
from kerasbert.heads.base.steps import batch_outputs
from kerasbert.heads.replaced_token_detector.preprocessor import (
    BertReplacedTokenDetectorPreprocessor,
)
from kerasbert.losses.logits import BinaryTokenAccuracy, BinaryTokenCrossEntropy

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.base.aliases import Texts


@keras.saving.register_keras_serializable(package="kerasbert")
class BertReplacedTokenDetector(HeadedTask):
    """Detector of replaced tokens, such as ELECTRA's discriminator.

    ELECTRA's published discriminators are loaded with their heads. The output is logits (B, T),
    above 0 for replaced tokens. Labels are 1 for replaced tokens and 0 for others, with sample
    weights (B, T) of 0 at padding and special tokens. `fit`, `evaluate` and `predict` also take raw
    texts and lists of words.

    Args:
        backbone: a `BertBackbone`; it needs no pooler.
        preprocessor: a `BertReplacedTokenDetectorPreprocessor`, or `None` for preprocessed arrays.
        head_activation: activation of the head's dense layer; defaults to the encoder's.

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
        self._set_parts(backbone, preprocessor)
        activation = backbone.activation if head_activation is None else head_activation
        self._make_head(1, HeadSettings(dropout=0.0, pooling="tokens", head_activation=activation))
        # Losses need float32.
        self.output_activation = keras.layers.Activation(None, dtype="float32", name="predictions")
        outputs = self.output_activation(self._logits(backbone.input))  # (B, T, 1)
        super().__init__(inputs=backbone.input, outputs=ops.squeeze(outputs, -1), **kwargs)

    @classmethod
    def needs_pooler(cls, settings: Any) -> bool:
        return False

    def default_loss(self) -> Any:
        """Return the binary cross-entropy, averaged over tokens by their sample weights."""
        return BinaryTokenCrossEntropy()

    def default_metrics(self) -> Any:
        """Return the accuracy over the tokens with a weight above 0."""
        return [BinaryTokenAccuracy()]

    def metric_forms(self) -> Any:
        return TOKEN_FLAGS, None

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return logits (B, T) for preprocessed arrays, or logits per subword for raw input.

        Returns:
            For texts and lists of words of any length, a list of N arrays (P,): one logit per
            subword of `tokenizer.tokenize`.
        """
        if not is_raw(self, x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        pieces = self.preprocessor.read(x)
        return np.split(self._logits_of(pieces, batch_size, **kwargs), pieces.splits[1:-1])

    def detect(self, x: Texts, batch_size: int = 32) -> Any:
        """Compute the probability that each token of a text was replaced.

        Args:
            x: a string, a list of strings, or a list of lists of words.
            batch_size: int.

        Returns:
            For each text, a list of dicts, one per token, or per word for lists of words: `text`,
            `start` and `end` (in characters; for lists of words, the word's index and the next),
            and `score`, the probability of replacement. For a string, one list.
        """
        if self.preprocessor is None:
            raise ValueError(
                "detect() takes texts or lists of words, but this model has no preprocessor."
            )
        single = isinstance(x, (str, bytes))
        pieces = self.preprocessor.read([x] if single else x)
        logits = self._logits_of(pieces, batch_size, verbose=0).astype("float64")
        # Words and characters of several subwords get the mean.
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
        """Return the logits of the subwords of all texts in one array."""
        dataset, order = sorted_batches(self, pieces, batch_size=batch_size)
        outputs = batch_outputs(self, dataset, **kwargs)
        rows = (np.asarray(row)[:, None] for _, batch in outputs for row in batch)
        return self.preprocessor.join_windows(pieces, rows, order)[:, 0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "head_activation": self.head_activation}

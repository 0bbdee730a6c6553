"""Preprocessing for replaced-token detection: labels pieces as original or replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from kerasbert.heads.token_classifier.preprocessor import BertTokenClassifierPreprocessor
from kerasbert.text.pieces import checked_spans, units_touched

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.text.subword import SubwordTokenizer

_REPLACED = "replaced"


@keras.saving.register_keras_serializable(package="kerasbert")
class BertReplacedTokenDetectorPreprocessor(BertTokenClassifierPreprocessor):
    """Packs words or texts, and labels the pieces (subwords) that were replaced.

    Unlike in `BertTokenClassifierPreprocessor`, the labels of a list of words are 1 for replaced
    words, 0 for others, and `None` for words to ignore; all pieces of a word get its label. The
    labels of a text are the replaced spans, `(start, end)` in characters; touching pieces get 1.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: maximum tokens per row, and so per window.
        stride: number of pieces between window starts; `None` means half a window.
        num_segments: int. See `BertPreprocessor`.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "fake", "##d"]
    >>> preprocessor = BertReplacedTokenDetectorPreprocessor(BertTokenizer(tokens))
    >>> features, y, weights = preprocessor(["the fox faked"], [[(8, 13)]])
    >>> np.asarray(y)[0, :6].tolist(), np.asarray(weights)[0, :6].tolist()
    ([0, 0, 0, 1, 1, 0], [0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    """

    settings = ("sequence_length", "truncate", "num_segments", "stride")

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        stride: int | None = None,
        num_segments: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            tokenizer,
            sequence_length,
            stride=stride,
            label_pieces="all",
            num_classes=2,
            num_segments=num_segments,
            **kwargs,
        )

    def _of_spans(self, pieces, rows):
        labels = np.zeros(len(pieces.starts), "int32")
        for position, (text, row) in enumerate(zip(pieces.rows, rows, strict=True)):
            if isinstance(row, (list, tuple)):
                row = [(*s, _REPLACED) if isinstance(s, tuple) and len(s) == 2 else s for s in row]
            for start, stop, _ in checked_spans(row, text, (_REPLACED,), position):
                low, high = units_touched(pieces, position, start, stop)
                labels[low:high] = 1
        return labels

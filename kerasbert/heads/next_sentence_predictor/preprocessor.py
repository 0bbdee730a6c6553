"""Preprocessing for next-sentence prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.text.preprocessor import BertPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.text.subword import SubwordTokenizer


@keras.saving.register_keras_serializable(package="kerasbert")
class BertNextSentencePredictorPreprocessor(BertTextClassifierPreprocessor):
    """Packs pairs of texts; labels `y` (B,) are 0 if B follows A, and 1 if not.

    Takes the arguments of `BertPreprocessor`.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> preprocessor = BertNextSentencePredictorPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y = preprocessor((["Who?"], ["Me!"]), [0])
    >>> np.asarray(features["segment_ids"]).tolist()
    [[0, 0, 0, 0, 1, 1, 1, 0]]
    """

    settings = BertPreprocessor.settings

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            tokenizer, sequence_length, truncate, num_segments, num_classes=2, **kwargs
        )

    def packed_lengths(self, segments: Any, truncated: bool = True) -> Any:
        if len(segments) != 2:
            raise ValueError(
                "Got single texts where pairs are needed; pass a tuple of two columns, or pairs."
            )
        return super().packed_lengths(segments, truncated)

"""Preprocessing for BERT pre-training: text pairs with masked tokens.

B batch, P predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.heads.masked_lm.preprocessor import MaskingPreprocessor
from kerasbert.heads.next_sentence_predictor.preprocessor import (
    BertNextSentencePredictorPreprocessor,
)
from kerasbert.text import ops

if TYPE_CHECKING:
    from typing import Any

    import numpy as np

    from kerasbert.base.aliases import Tensor
    from kerasbert.text.subword import SubwordTokenizer


@keras.saving.register_keras_serializable(package="kerasbert")
class BertPretrainerPreprocessor(MaskingPreprocessor):
    """Packs text pairs and masks tokens, for both of BERT's pre-training tasks.

    Called on pairs and labels `y` (B,), 0 if text B follows text A and 1 if not, it returns `(x, y,
    sample_weight)`: `x` as for `BertMaskedLMPreprocessor`, and labels and weights as dicts of
    `mlm_logits` (B, P), for the masked tokens, and `nsp_logits` (B,), for the pairs. With
    `next_sentence=False`, texts or pairs have no labels and no `nsp_logits`.

    Args:
        tokenizer, sequence_length, truncate, num_segments: see `BertPreprocessor`.
        mask_selection_rate, mask_selection_length, mask_token_rate, random_token_rate, mask_unit,
            word_boundaries: see `BertMaskedLMPreprocessor`.
        next_sentence: whether the labels of pairs are predicted.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> preprocessor = BertPretrainerPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y, weights = preprocessor((["Who?", "Me?"], ["Me!", "Who!"]), [0, 1])
    >>> {name: np.asarray(labels).shape for name, labels in y.items()}
    {'mlm_logits': (2, 1), 'nsp_logits': (2,)}
    """

    settings = (*MaskingPreprocessor.settings, "next_sentence")

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        mask_selection_rate: float = 0.15,
        mask_selection_length: int | None = None,
        mask_token_rate: float = 0.8,
        random_token_rate: float = 0.1,
        next_sentence: bool = True,
        mask_unit: str = "token",
        word_boundaries: str = "marks",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            tokenizer,
            sequence_length,
            truncate,
            num_segments,
            mask_selection_rate,
            mask_selection_length,
            mask_token_rate,
            random_token_rate,
            mask_unit,
            word_boundaries,
            **kwargs,
        )
        self.next_sentence = next_sentence

    def assemble(
        self,
        segments: Any,
        y: Any = None,
        sample_weight: Any = None,
        length: int | None = None,
        seed: Any = None,
    ) -> Any:
        if self.next_sentence and len(segments) != 2:
            raise ValueError(
                "Got single texts where pairs are needed; pass a tuple of two columns, or set "
                "next_sentence=False to pretrain without pairs."
            )
        if self.next_sentence and y is None:
            raise ValueError(
                "The pairs have no labels; pass y, 0 if the second text follows the first and 1 if "
                "not, or set next_sentence=False."
            )
        features, mask_ids, weights = self.masked(segments, sample_weight, length, seed)
        labels, weights = {"mlm_logits": mask_ids}, {"mlm_logits": weights}
        if self.next_sentence:
            labels["nsp_logits"] = y
            one = ops.ones_like(y, "float32")
            weights["nsp_logits"] = one if sample_weight is None else sample_weight
        return features, labels, weights

    def _pair_labels(self):
        """Return the preprocessor that checks labels of pairs."""
        if not self.next_sentence:
            raise ValueError(
                "Got labels, but next_sentence=False predicts only masked tokens; pass texts "
                "without labels, or set next_sentence=True."
            )
        return BertNextSentencePredictorPreprocessor(self.tokenizer)

    def check_labels(self, y: Any, count: int) -> np.ndarray:
        return self._pair_labels().check_labels(y, count)

    def check_labels_in_graph(self, y: Any) -> Tensor:
        return self._pair_labels().check_labels_in_graph(y)

"""Preprocessing for ELECTRA pre-training: texts with masked tokens.

B batch, P predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.heads.masked_lm.preprocessor import BertMaskedLMPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.text.subword import SubwordTokenizer

# As in pretrain/pretrain_helpers.py of google-research/electra; in the paper, all are masked.
MASKING = {"mask_token_rate": 0.85, "random_token_rate": 0.0}


@keras.saving.register_keras_serializable(package="kerasbert")
class ElectraPretrainerPreprocessor(BertMaskedLMPreprocessor):
    """Packs texts or pairs and masks tokens to train ELECTRA's generator.

    Unlike in `BertMaskedLMPreprocessor`, labels and weights are dicts of `mlm_logits` (B, P);
    sample weights (B,) are added as `detection_logits`. Of the selected tokens, 85% are masked and
    the others kept, as in ELECTRA's code; in the paper all are masked (`mask_token_rate=1.0`).
    ELECTRA-large used `mask_selection_rate=0.25`.

    Args:
        tokenizer, sequence_length, truncate, num_segments: see `BertPreprocessor`.
        mask_selection_rate, mask_selection_length, mask_token_rate, random_token_rate, mask_unit,
            word_boundaries: see `BertMaskedLMPreprocessor`.

    Example:

    >>> from kerasbert.tokenizers import BertTokenizer
    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "me", "?", "!"]
    >>> preprocessor = ElectraPretrainerPreprocessor(BertTokenizer(tokens, lowercase=True))
    >>> features, y, weights = preprocessor(["Who?", "Me me me"])
    >>> np.asarray(features["mask_positions"]).shape, np.asarray(y["mlm_logits"]).shape
    ((2, 1), (2, 1))

    Source: Clark et al. 2020, arXiv 2003.10555, and its released code.
    """

    def __init__(
        self,
        tokenizer: SubwordTokenizer,
        sequence_length: int = 512,
        truncate: str = "longest_first",
        num_segments: int = 2,
        mask_selection_rate: float = 0.15,
        mask_selection_length: int | None = None,
        mask_token_rate: float = MASKING["mask_token_rate"],
        random_token_rate: float = MASKING["random_token_rate"],
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

    def assemble(
        self,
        segments: Any,
        y: Any = None,
        sample_weight: Any = None,
        length: int | None = None,
        seed: Any = None,
    ) -> Any:
        features, mask_ids, weights = self.masked(segments, sample_weight, length, seed)
        weights = {"mlm_logits": weights}
        if sample_weight is not None:
            weights["detection_logits"] = sample_weight
        return features, {"mlm_logits": mask_ids}, weights

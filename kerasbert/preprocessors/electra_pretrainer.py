"""Preprocessing for ELECTRA's pre-training: texts with hidden tokens.

B batch, P predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from kerasbert.preprocessors.masked_lm import BertMaskedLMPreprocessor

if TYPE_CHECKING:
    from typing import Any

    from kerasbert.tokenizers.subword import SubwordTokenizer

# Of the tokens that are chosen 85 % are hidden, and the rest stay as they are: so it is in
# pretrain/pretrain_helpers.py of google-research/electra, where the paper says that all are hidden.
MASKING = {"mask_token_rate": 0.85, "random_token_rate": 0.0}


@keras.saving.register_keras_serializable(package="kerasbert")
class ElectraPretrainerPreprocessor(BertMaskedLMPreprocessor):
    """Packs texts or pairs and hides tokens, as ELECTRA's generator is trained.

    As `BertMaskedLMPreprocessor`, but labels and weights are dicts of `mlm_logits` (B, P), and with
    weights of the texts these also have `detection_logits` (B,). Of the tokens that are chosen 85 %
    are hidden, and the rest are seen as they are, as in ELECTRA's code; the paper hides all
    (`mask_token_rate=1.0`). ELECTRA-large took `mask_selection_rate=0.25`.

    Args:
        tokenizer: a tokenizer of `kerasbert.tokenizers`.
        sequence_length: int. The most tokens in a row.
        truncate: string. See `BertPreprocessor`.
        num_segments: int. See `BertPreprocessor`.
        mask_selection_rate: float. See `BertMaskedLMPreprocessor`, as for all that follow.
        mask_selection_length: int.
        mask_token_rate: float.
        random_token_rate: float.
        mask_unit: string.
        word_boundaries: string.

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

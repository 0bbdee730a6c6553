"""Losses and metrics on logits, parse trees and text embeddings."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.losses.logits import (
    ClassAccuracy,
    Perplexity,
    TokenAccuracy,
    TokenCrossEntropy,
    TreeLoss,
)
from kerasbert.losses.vectors import (
    ActiveWords,
    AdaptiveLayer,
    BatchHardTriplet,
    Contrastive,
    CoSENT,
    CosineRegression,
    DistillKL,
    EmbeddingLoss,
    MarginMSE,
    MatchingCosine,
    Matryoshka,
    MultipleNegativesRanking,
    Sparse,
    Triplet,
    flops,
    max_similarity,
)

__all__ = [
    "ActiveWords",
    "AdaptiveLayer",
    "BatchHardTriplet",
    "ClassAccuracy",
    "CoSENT",
    "Contrastive",
    "CosineRegression",
    "DistillKL",
    "EmbeddingLoss",
    "MarginMSE",
    "MatchingCosine",
    "Matryoshka",
    "MultipleNegativesRanking",
    "Perplexity",
    "Sparse",
    "TokenAccuracy",
    "TokenCrossEntropy",
    "TreeLoss",
    "Triplet",
    "flops",
    "max_similarity",
]

# Aliases until the next version; see the CHANGELOG.
_NO_LONGER_PUBLIC = (
    "BinaryTokenAccuracy",
    "BinaryTokenCrossEntropy",
    "ClassCrossEntropy",
    "ClassScore",
    "PairAccuracy",
    "PairCrossEntropy",
    "PairSquaredError",
    "PositiveShare",
    "TokenMean",
    "is_first_choice",
    "token_cross_entropy",
)
if not TYPE_CHECKING:  # Type checkers would otherwise accept any name.
    __getattr__ = deprecated("kerasbert.losses", dict.fromkeys(_NO_LONGER_PUBLIC, "losses.logits"))

"""Losses and metrics on logits, parse trees and text embeddings."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.losses.chains import ChainCrossEntropy
from kerasbert.losses.distillation import (
    DistillKL,
    EmbeddingLoss,
    MarginMSE,
)
from kerasbert.losses.logits import (
    ClassAccuracy,
    Perplexity,
    TokenAccuracy,
    TokenCrossEntropy,
    TreeLoss,
)
from kerasbert.losses.ranking import (
    BatchHardTriplet,
    Contrastive,
    CoSENT,
    CosineRegression,
    MatchingCosine,
    MultipleNegativesRanking,
    Triplet,
)
from kerasbert.losses.similarity import max_similarity
from kerasbert.losses.wrapping import (
    ActiveWords,
    AdaptiveLayer,
    Matryoshka,
    Sparse,
    flops,
)

__all__ = [
    "ActiveWords",
    "AdaptiveLayer",
    "BatchHardTriplet",
    "ChainCrossEntropy",
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

# Deprecated aliases, which stay until the next version; see the CHANGELOG.
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

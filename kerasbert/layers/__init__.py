"""Layers of encoders, decoders and task heads."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.layers.attention import AttentionMask, CrossAttention, SelfAttention
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.decoder_block import TransformerDecoderBlock
from kerasbert.layers.dense import TokenDense
from kerasbert.layers.disentangled_attention import DisentangledAttention, DistanceEmbedding
from kerasbert.layers.embeddings import PositionEmbedding, SinusoidalPositions
from kerasbert.layers.heads import (
    BiLSTM,
    MaskedLMHead,
    Pooling,
    ScalarMix,
    WordWeights,
)
from kerasbert.layers.norm import TokenNorm
from kerasbert.layers.probe import StructuralProbe, WordMean
from kerasbert.layers.replacement import TokenReplacement

__all__ = [
    "AttentionMask",
    "BiLSTM",
    "CrossAttention",
    "DisentangledAttention",
    "DistanceEmbedding",
    "MaskedLMHead",
    "Pooling",
    "PositionEmbedding",
    "ScalarMix",
    "SelfAttention",
    "SinusoidalPositions",
    "StructuralProbe",
    "TokenDense",
    "TokenNorm",
    "TokenReplacement",
    "TransformerBlock",
    "TransformerDecoderBlock",
    "WordMean",
    "WordWeights",
]

# Aliases until the next version; see the CHANGELOG.
_NO_LONGER_PUBLIC = ("ChoicesToRows", "RowsToChoices")
if not TYPE_CHECKING:  # Type checkers would otherwise accept any name.
    __getattr__ = deprecated("kerasbert.layers", dict.fromkeys(_NO_LONGER_PUBLIC, "layers.heads"))

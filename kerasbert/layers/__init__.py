"""Layers of the encoder and of the heads."""

from kerasbert.layers.attention import AttentionMask, CrossAttention, SelfAttention
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.decoder_block import TransformerDecoderBlock
from kerasbert.layers.dense import TokenDense
from kerasbert.layers.disentangled_attention import DisentangledAttention, DistanceEmbedding
from kerasbert.layers.embeddings import PositionEmbedding, SinusoidalPositions
from kerasbert.layers.heads import (
    BiLSTM,
    ChoicesToRows,
    MaskedLMHead,
    Pooling,
    RowsToChoices,
    ScalarMix,
    WordWeights,
)
from kerasbert.layers.norm import TokenNorm
from kerasbert.layers.probe import StructuralProbe, WordMean
from kerasbert.layers.replacement import TokenReplacement

__all__ = [
    "AttentionMask",
    "BiLSTM",
    "ChoicesToRows",
    "CrossAttention",
    "DisentangledAttention",
    "DistanceEmbedding",
    "MaskedLMHead",
    "Pooling",
    "PositionEmbedding",
    "RowsToChoices",
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

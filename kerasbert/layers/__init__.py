"""The layers that the encoder and the heads are made of."""

from kerasbert.layers.attention import AttentionMask, SelfAttention
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.dense import TokenDense
from kerasbert.layers.embeddings import PositionEmbedding
from kerasbert.layers.heads import (
    BiLSTM,
    ChoicesToRows,
    MaskedLMHead,
    Pooling,
    RowsToChoices,
    ScalarMix,
)
from kerasbert.layers.norm import TokenNorm
from kerasbert.layers.probe import StructuralProbe, WordMean
from kerasbert.layers.replacement import TokenReplacement

__all__ = [
    "AttentionMask",
    "BiLSTM",
    "ChoicesToRows",
    "MaskedLMHead",
    "Pooling",
    "PositionEmbedding",
    "RowsToChoices",
    "ScalarMix",
    "SelfAttention",
    "StructuralProbe",
    "TokenDense",
    "TokenNorm",
    "TokenReplacement",
    "TransformerBlock",
    "WordMean",
]

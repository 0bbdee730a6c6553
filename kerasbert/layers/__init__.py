"""Layers of encoders, decoders and task heads."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.layers.attention import AttentionMask, CrossAttention, SelfAttention
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.convolution import TokenConvolution
from kerasbert.layers.crf import CRF
from kerasbert.layers.decoder_block import TransformerDecoderBlock
from kerasbert.layers.disentangled_attention import DisentangledAttention, DistanceEmbedding
from kerasbert.layers.embeddings import PositionEmbedding, SinusoidalPositions
from kerasbert.layers.global_attention import GlobalAttention, GlobalTokens
from kerasbert.layers.heads import (
    BiLSTM,
    MaskedLMHead,
    Pooling,
    ScalarMix,
    WordWeights,
)
from kerasbert.layers.position_bias import AlibiBias, RelativePositionBias
from kerasbert.layers.probe import StructuralProbe, WordMean
from kerasbert.layers.recurrent import AttentionDecoder, RecurrentEncoder
from kerasbert.layers.replacement import TokenReplacement
from kerasbert.layers.token_layers import TokenDense, TokenNorm, TokenRMSNorm

__all__ = [
    "CRF",
    "AlibiBias",
    "AttentionDecoder",
    "AttentionMask",
    "BiLSTM",
    "CrossAttention",
    "DisentangledAttention",
    "DistanceEmbedding",
    "GlobalAttention",
    "GlobalTokens",
    "MaskedLMHead",
    "Pooling",
    "PositionEmbedding",
    "RecurrentEncoder",
    "RelativePositionBias",
    "ScalarMix",
    "SelfAttention",
    "SinusoidalPositions",
    "StructuralProbe",
    "TokenConvolution",
    "TokenDense",
    "TokenNorm",
    "TokenRMSNorm",
    "TokenReplacement",
    "TransformerBlock",
    "TransformerDecoderBlock",
    "WordMean",
    "WordWeights",
]

# Deprecated aliases, which stay until the next version; see the CHANGELOG.
_NO_LONGER_PUBLIC = ("ChoicesToRows", "RowsToChoices")
if not TYPE_CHECKING:  # Type checkers would otherwise accept any name.
    __getattr__ = deprecated("kerasbert.layers", dict.fromkeys(_NO_LONGER_PUBLIC, "layers.heads"))

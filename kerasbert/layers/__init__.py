"""The layers that the encoder and the heads are made of."""

from kerasbert.layers.attention import AttentionMask, SelfAttention
from kerasbert.layers.block import TransformerBlock
from kerasbert.layers.dense import TokenDense
from kerasbert.layers.embeddings import PositionEmbedding
from kerasbert.layers.heads import Pooling, ScalarMix

__all__ = [
    "AttentionMask",
    "Pooling",
    "PositionEmbedding",
    "ScalarMix",
    "SelfAttention",
    "TokenDense",
    "TransformerBlock",
]

"""Tokenizers, which run in memory and in TensorFlow graphs."""

from kerasbert.base import host  # noqa: F401
from kerasbert.text.byte_fallback import ByteFallbackTokenizer
from kerasbert.text.byte_pair_families import (
    GPT2Tokenizer,
    GPTTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
)
from kerasbert.text.choose import tokenizer_from_files
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.moses import FlaubertTokenizer, XLMTokenizer
from kerasbert.text.sentence_piece_families import (
    AlbertTokenizer,
    BertGenerationTokenizer,
    CamembertTokenizer,
    DebertaV3Tokenizer,
    RemBertTokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)
from kerasbert.text.wordpiece import BertTokenizer, MPNetTokenizer

CLASSES = (
    AlbertTokenizer,
    BertGenerationTokenizer,
    BertTokenizer,
    ByteFallbackTokenizer,
    CamembertTokenizer,
    DebertaV3Tokenizer,
    FastTokenizer,
    FlaubertTokenizer,
    GPT2Tokenizer,
    GPTTokenizer,
    MPNetTokenizer,
    ModernBertTokenizer,
    RemBertTokenizer,
    RobertaTokenizer,
    XLMTokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)

# `MarianTokenizer` is public, but not in `CLASSES`, because no encoder of the BERT family uses it.
__all__ = [
    "AlbertTokenizer",
    "BertGenerationTokenizer",
    "BertTokenizer",
    "ByteFallbackTokenizer",
    "CamembertTokenizer",
    "DebertaV3Tokenizer",
    "FastTokenizer",
    "FlaubertTokenizer",
    "GPT2Tokenizer",
    "GPTTokenizer",
    "MPNetTokenizer",
    "MarianTokenizer",
    "ModernBertTokenizer",
    "RemBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "XLMTokenizer",
    "XLNetTokenizer",
    "tokenizer_from_files",
]

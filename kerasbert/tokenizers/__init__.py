"""Tokenizers; all but `FastTokenizer` also run in TensorFlow graphs."""

from kerasbert.base import host  # noqa: F401
from kerasbert.text.byte_fallback import ByteFallbackTokenizer
from kerasbert.text.byte_pair import GPT2Tokenizer, ModernBertTokenizer, RobertaTokenizer
from kerasbert.text.choose import tokenizer_from_files
from kerasbert.text.fast import FastTokenizer
from kerasbert.text.gpt import GPTTokenizer
from kerasbert.text.marian import MarianTokenizer
from kerasbert.text.sentence_piece import (
    AlbertTokenizer,
    DebertaV3Tokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)
from kerasbert.text.wordpiece import BertTokenizer

CLASSES = (
    AlbertTokenizer,
    BertTokenizer,
    ByteFallbackTokenizer,
    DebertaV3Tokenizer,
    FastTokenizer,
    GPT2Tokenizer,
    GPTTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)

# `MarianTokenizer` is public but not in `CLASSES`: no encoder of the BERT family uses it.
__all__ = [
    "AlbertTokenizer",
    "BertTokenizer",
    "ByteFallbackTokenizer",
    "DebertaV3Tokenizer",
    "FastTokenizer",
    "GPT2Tokenizer",
    "GPTTokenizer",
    "MarianTokenizer",
    "ModernBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "XLNetTokenizer",
    "tokenizer_from_files",
]

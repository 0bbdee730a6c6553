"""The encoder and the task models, with their preprocessors and tokenizers."""

from kerasbert.models.backbone import BertBackbone
from kerasbert.models.text_classifier import BertTextClassifier
from kerasbert.preprocessors.packing import BertPreprocessor
from kerasbert.preprocessors.text_classifier import BertTextClassifierPreprocessor
from kerasbert.tokenizers import (
    AlbertTokenizer,
    BertTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

# KerasHub's loader finds the tokenizer and the preprocessor of a preset by its backbone.
BertPreprocessor.backbone_cls = BertBackbone
for _tokenizer in (
    AlbertTokenizer,
    BertTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
):
    _tokenizer.backbone_cls = BertBackbone

__all__ = [
    "AlbertTokenizer",
    "BertBackbone",
    "BertPreprocessor",
    "BertTextClassifier",
    "BertTextClassifierPreprocessor",
    "BertTokenizer",
    "ModernBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
]

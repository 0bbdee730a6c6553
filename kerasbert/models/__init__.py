"""The encoder and the task models, with their preprocessors and tokenizers."""

from kerasbert.models.backbone import BertBackbone
from kerasbert.models.distiller import BertDistiller
from kerasbert.models.next_sentence_predictor import BertNextSentencePredictor
from kerasbert.models.text_classifier import BertTextClassifier
from kerasbert.models.text_regressor import BertTextRegressor
from kerasbert.preprocessors.next_sentence_predictor import BertNextSentencePredictorPreprocessor
from kerasbert.preprocessors.packing import BertPreprocessor
from kerasbert.preprocessors.text_classifier import BertTextClassifierPreprocessor
from kerasbert.preprocessors.text_regressor import BertTextRegressorPreprocessor
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
    "BertDistiller",
    "BertNextSentencePredictor",
    "BertNextSentencePredictorPreprocessor",
    "BertPreprocessor",
    "BertTextClassifier",
    "BertTextClassifierPreprocessor",
    "BertTextRegressor",
    "BertTextRegressorPreprocessor",
    "BertTokenizer",
    "ModernBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
]

"""The encoder and the task models, with their preprocessors and tokenizers."""

from kerasbert.models.backbone import BertBackbone
from kerasbert.models.distiller import BertDistiller
from kerasbert.models.masked_lm import BertMaskedLM
from kerasbert.models.multi_task import BertMultiTask
from kerasbert.models.multiple_choice import BertMultipleChoice
from kerasbert.models.next_sentence_predictor import BertNextSentencePredictor
from kerasbert.models.pretrainer import BertPretrainer
from kerasbert.models.question_answering import BertQuestionAnswering
from kerasbert.models.text_classifier import BertTextClassifier
from kerasbert.models.text_embedder import BertTextEmbedder
from kerasbert.models.text_regressor import BertTextRegressor
from kerasbert.models.token_classifier import BertTokenClassifier
from kerasbert.preprocessors.masked_lm import BertMaskedLMPreprocessor
from kerasbert.preprocessors.multiple_choice import BertMultipleChoicePreprocessor
from kerasbert.preprocessors.next_sentence_predictor import BertNextSentencePredictorPreprocessor
from kerasbert.preprocessors.packing import BertPreprocessor
from kerasbert.preprocessors.pretrainer import BertPretrainerPreprocessor
from kerasbert.preprocessors.question_answering import BertQuestionAnsweringPreprocessor
from kerasbert.preprocessors.text_classifier import BertTextClassifierPreprocessor
from kerasbert.preprocessors.text_embedder import BertTextEmbedderPreprocessor
from kerasbert.preprocessors.text_regressor import BertTextRegressorPreprocessor
from kerasbert.preprocessors.token_classifier import BertTokenClassifierPreprocessor
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
    "BertMaskedLM",
    "BertMaskedLMPreprocessor",
    "BertMultiTask",
    "BertMultipleChoice",
    "BertMultipleChoicePreprocessor",
    "BertNextSentencePredictor",
    "BertNextSentencePredictorPreprocessor",
    "BertPreprocessor",
    "BertPretrainer",
    "BertPretrainerPreprocessor",
    "BertQuestionAnswering",
    "BertQuestionAnsweringPreprocessor",
    "BertTextClassifier",
    "BertTextClassifierPreprocessor",
    "BertTextEmbedder",
    "BertTextEmbedderPreprocessor",
    "BertTextRegressor",
    "BertTextRegressorPreprocessor",
    "BertTokenClassifier",
    "BertTokenClassifierPreprocessor",
    "BertTokenizer",
    "ModernBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
]

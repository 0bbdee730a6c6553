"""The encoder and the task models, with their preprocessors and tokenizers."""

from kerasbert.models.backbone import BertBackbone
from kerasbert.models.causal_lm import BertCausalLM
from kerasbert.models.distiller import BertDistiller
from kerasbert.models.electra_pretrainer import ElectraPretrainer
from kerasbert.models.masked_lm import BertMaskedLM
from kerasbert.models.multi_task import BertMultiTask
from kerasbert.models.multiple_choice import BertMultipleChoice
from kerasbert.models.next_sentence_predictor import BertNextSentencePredictor
from kerasbert.models.pretrainer import BertPretrainer
from kerasbert.models.question_answering import BertQuestionAnswering
from kerasbert.models.replaced_token_detector import BertReplacedTokenDetector
from kerasbert.models.reranker import BertReranker
from kerasbert.models.sparse_embedder import BertSparseEmbedder
from kerasbert.models.structural_probe import BertStructuralProbe
from kerasbert.models.text_classifier import BertTextClassifier
from kerasbert.models.text_embedder import BertTextEmbedder
from kerasbert.models.text_regressor import BertTextRegressor
from kerasbert.models.token_classifier import BertTokenClassifier
from kerasbert.preprocessors import (
    BertCausalLMPreprocessor,
    BertMaskedLMPreprocessor,
    BertMultipleChoicePreprocessor,
    BertNextSentencePredictorPreprocessor,
    BertPreprocessor,
    BertPretrainerPreprocessor,
    BertQuestionAnsweringPreprocessor,
    BertReplacedTokenDetectorPreprocessor,
    BertRerankerPreprocessor,
    BertSparseEmbedderPreprocessor,
    BertStructuralProbePreprocessor,
    BertTextClassifierPreprocessor,
    BertTextEmbedderPreprocessor,
    BertTextRegressorPreprocessor,
    BertTokenClassifierPreprocessor,
    ElectraPretrainerPreprocessor,
)
from kerasbert.tokenizers import (
    AlbertTokenizer,
    BertTokenizer,
    ByteFallbackTokenizer,
    DebertaV3Tokenizer,
    GPT2Tokenizer,
    GPTTokenizer,
    ModernBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
    XLNetTokenizer,
)

__all__ = [
    "AlbertTokenizer",
    "BertBackbone",
    "BertCausalLM",
    "BertCausalLMPreprocessor",
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
    "BertReplacedTokenDetector",
    "BertReplacedTokenDetectorPreprocessor",
    "BertReranker",
    "BertRerankerPreprocessor",
    "BertSparseEmbedder",
    "BertSparseEmbedderPreprocessor",
    "BertStructuralProbe",
    "BertStructuralProbePreprocessor",
    "BertTextClassifier",
    "BertTextClassifierPreprocessor",
    "BertTextEmbedder",
    "BertTextEmbedderPreprocessor",
    "BertTextRegressor",
    "BertTextRegressorPreprocessor",
    "BertTokenClassifier",
    "BertTokenClassifierPreprocessor",
    "BertTokenizer",
    "ByteFallbackTokenizer",
    "DebertaV3Tokenizer",
    "ElectraPretrainer",
    "ElectraPretrainerPreprocessor",
    "GPT2Tokenizer",
    "GPTTokenizer",
    "ModernBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "XLNetTokenizer",
]

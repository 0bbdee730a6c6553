"""The encoder and the task models, with their preprocessors and tokenizers."""

from kerasbert.base import host  # noqa: F401
from kerasbert.encoder.backbone import BertBackbone
from kerasbert.heads.causal_lm.model import BertCausalLM
from kerasbert.heads.distiller.model import BertDistiller
from kerasbert.heads.electra_pretrainer.model import ElectraPretrainer
from kerasbert.heads.ensemble.model import BertEnsemble
from kerasbert.heads.masked_lm.model import BertMaskedLM
from kerasbert.heads.multi_task.model import BertMultiTask
from kerasbert.heads.multiple_choice.model import BertMultipleChoice
from kerasbert.heads.next_sentence_predictor.model import BertNextSentencePredictor
from kerasbert.heads.pretrainer.model import BertPretrainer
from kerasbert.heads.question_answering.model import BertQuestionAnswering
from kerasbert.heads.replaced_token_detector.model import BertReplacedTokenDetector
from kerasbert.heads.reranker.model import BertReranker
from kerasbert.heads.sparse_embedder.model import BertSparseEmbedder
from kerasbert.heads.structural_probe.model import BertStructuralProbe
from kerasbert.heads.text_classifier.model import BertTextClassifier
from kerasbert.heads.text_embedder.model import BertTextEmbedder
from kerasbert.heads.text_regressor.model import BertTextRegressor
from kerasbert.heads.token_classifier.model import BertTokenClassifier
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
    BertGenerationTokenizer,
    BertTokenizer,
    ByteFallbackTokenizer,
    CamembertTokenizer,
    DebertaV3Tokenizer,
    FlaubertTokenizer,
    GPT2Tokenizer,
    GPTTokenizer,
    ModernBertTokenizer,
    MPNetTokenizer,
    RemBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
    XLMTokenizer,
    XLNetTokenizer,
)

__all__ = [
    "AlbertTokenizer",
    "BertBackbone",
    "BertCausalLM",
    "BertCausalLMPreprocessor",
    "BertDistiller",
    "BertEnsemble",
    "BertGenerationTokenizer",
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
    "CamembertTokenizer",
    "DebertaV3Tokenizer",
    "ElectraPretrainer",
    "ElectraPretrainerPreprocessor",
    "FlaubertTokenizer",
    "GPT2Tokenizer",
    "GPTTokenizer",
    "MPNetTokenizer",
    "ModernBertTokenizer",
    "RemBertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "XLMTokenizer",
    "XLNetTokenizer",
]

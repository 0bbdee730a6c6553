"""Preprocessors, from texts to batches: one for the encoder and one for each task."""

from kerasbert.preprocessors.causal_lm import BertCausalLMPreprocessor
from kerasbert.preprocessors.electra_pretrainer import ElectraPretrainerPreprocessor
from kerasbert.preprocessors.masked_lm import BertMaskedLMPreprocessor
from kerasbert.preprocessors.multiple_choice import BertMultipleChoicePreprocessor
from kerasbert.preprocessors.next_sentence_predictor import BertNextSentencePredictorPreprocessor
from kerasbert.preprocessors.packing import BertPreprocessor
from kerasbert.preprocessors.pretrainer import BertPretrainerPreprocessor
from kerasbert.preprocessors.question_answering import BertQuestionAnsweringPreprocessor
from kerasbert.preprocessors.replaced_token_detector import BertReplacedTokenDetectorPreprocessor
from kerasbert.preprocessors.reranker import BertRerankerPreprocessor
from kerasbert.preprocessors.sparse_embedder import BertSparseEmbedderPreprocessor
from kerasbert.preprocessors.structural_probe import BertStructuralProbePreprocessor
from kerasbert.preprocessors.text_classifier import BertTextClassifierPreprocessor
from kerasbert.preprocessors.text_embedder import BertTextEmbedderPreprocessor
from kerasbert.preprocessors.text_regressor import BertTextRegressorPreprocessor
from kerasbert.preprocessors.token_classifier import BertTokenClassifierPreprocessor

__all__ = [
    "BertCausalLMPreprocessor",
    "BertMaskedLMPreprocessor",
    "BertMultipleChoicePreprocessor",
    "BertNextSentencePredictorPreprocessor",
    "BertPreprocessor",
    "BertPretrainerPreprocessor",
    "BertQuestionAnsweringPreprocessor",
    "BertReplacedTokenDetectorPreprocessor",
    "BertRerankerPreprocessor",
    "BertSparseEmbedderPreprocessor",
    "BertStructuralProbePreprocessor",
    "BertTextClassifierPreprocessor",
    "BertTextEmbedderPreprocessor",
    "BertTextRegressorPreprocessor",
    "BertTokenClassifierPreprocessor",
    "ElectraPretrainerPreprocessor",
]

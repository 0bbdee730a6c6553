"""Preprocessors, from texts to batches: one for the encoder and one for each task."""

from kerasbert.base import host  # noqa: F401
from kerasbert.heads.causal_lm.preprocessor import BertCausalLMPreprocessor
from kerasbert.heads.electra_pretrainer.preprocessor import ElectraPretrainerPreprocessor
from kerasbert.heads.masked_lm.preprocessor import BertMaskedLMPreprocessor
from kerasbert.heads.multiple_choice.preprocessor import BertMultipleChoicePreprocessor
from kerasbert.heads.next_sentence_predictor.preprocessor import (
    BertNextSentencePredictorPreprocessor,
)
from kerasbert.heads.pretrainer.preprocessor import BertPretrainerPreprocessor
from kerasbert.heads.question_answering.preprocessor import BertQuestionAnsweringPreprocessor
from kerasbert.heads.replaced_token_detector.preprocessor import (
    BertReplacedTokenDetectorPreprocessor,
)
from kerasbert.heads.reranker.preprocessor import BertRerankerPreprocessor
from kerasbert.heads.sparse_embedder.preprocessor import BertSparseEmbedderPreprocessor
from kerasbert.heads.structural_probe.preprocessor import BertStructuralProbePreprocessor
from kerasbert.heads.text_classifier.preprocessor import BertTextClassifierPreprocessor
from kerasbert.heads.text_embedder.preprocessor import BertTextEmbedderPreprocessor
from kerasbert.heads.text_regressor.preprocessor import BertTextRegressorPreprocessor
from kerasbert.heads.token_classifier.preprocessor import BertTokenClassifierPreprocessor
from kerasbert.text.preprocessor import BertPreprocessor

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

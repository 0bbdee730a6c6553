"""Related models with an architecture of their own: ELMo, XLNet and others."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.lineage.elmo.characters import character_ids
from kerasbert.lineage.elmo.model import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.elmo.pretrainer import ElmoPretrainer, word_vocabulary
from kerasbert.lineage.recurrent.backbone import RecurrentSeq2SeqBackbone
from kerasbert.lineage.recurrent.model import Alignment, RecurrentSeq2SeqLM
from kerasbert.lineage.recurrent.preprocessor import RecurrentSeq2SeqLMPreprocessor
from kerasbert.lineage.seq2seq.backbone import TransformerSeq2SeqBackbone
from kerasbert.lineage.seq2seq.model import TransformerSeq2SeqLM
from kerasbert.lineage.seq2seq.preprocessor import TransformerSeq2SeqLMPreprocessor
from kerasbert.lineage.transformer_xl.model import TransformerXLBackbone, TransformerXLLM
from kerasbert.lineage.xlnet.model import XLNetBackbone
from kerasbert.lineage.xlnet.tasks import (
    XLNetMultipleChoice,
    XLNetPretrainer,
    XLNetQuestionAnswering,
    XLNetTextClassifier,
    XLNetTextRegressor,
    XLNetTokenClassifier,
)

# Classes by the family's name in checkpoints, and by kind of head (`None` for the encoder); see
# `kerasbert.kinds`.
CLASSES = {
    "marian": {None: TransformerSeq2SeqBackbone, "seq2seq_lm": TransformerSeq2SeqLM},
    "transformer_xl": {None: TransformerXLBackbone, "causal_lm": TransformerXLLM},
    "xlnet": {
        None: XLNetBackbone,
        "text_classifier": XLNetTextClassifier,
        "text_regressor": XLNetTextRegressor,
        "token_classifier": XLNetTokenClassifier,
        "multiple_choice": XLNetMultipleChoice,
        "question_answering": XLNetQuestionAnswering,
        "pretrainer": XLNetPretrainer,
    },
}

__all__ = [
    "Alignment",
    "ElmoBackbone",
    "ElmoEmbedder",
    "ElmoPretrainer",
    "RecurrentSeq2SeqBackbone",
    "RecurrentSeq2SeqLM",
    "RecurrentSeq2SeqLMPreprocessor",
    "TransformerSeq2SeqBackbone",
    "TransformerSeq2SeqLM",
    "TransformerSeq2SeqLMPreprocessor",
    "TransformerXLBackbone",
    "TransformerXLLM",
    "XLNetBackbone",
    "XLNetMultipleChoice",
    "XLNetPretrainer",
    "XLNetQuestionAnswering",
    "XLNetTextClassifier",
    "XLNetTextRegressor",
    "XLNetTokenClassifier",
    "character_ids",
    "word_vocabulary",
]

# Deprecated alias, removed in the next version; see the CHANGELOG.
if not TYPE_CHECKING:  # Type checkers would otherwise accept any name.
    __getattr__ = deprecated("kerasbert.lineage", {"MarianTokenizer": "tokenizers"})

"""Models related to BERT that need an architecture of their own: ELMo, XLNet and others."""

from typing import TYPE_CHECKING

from kerasbert.base import host  # noqa: F401
from kerasbert.base.lazy import deprecated
from kerasbert.lineage.elmo.characters import character_ids
from kerasbert.lineage.elmo.model import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.elmo.pretrainer import ElmoPretrainer, word_vocabulary
from kerasbert.lineage.seq2seq.model import TransformerSeq2SeqBackbone, TransformerSeq2SeqLM
from kerasbert.lineage.seq2seq.preprocessor import TransformerSeq2SeqLMPreprocessor
from kerasbert.lineage.transformer_xl.model import TransformerXLBackbone, TransformerXLLM
from kerasbert.lineage.xlnet.model import XLNetBackbone
from kerasbert.lineage.xlnet.tasks import (
    XLNetPretrainer,
    XLNetQuestionAnswering,
    XLNetTextClassifier,
)

# Classes by model family, as checkpoints name it, and by kind of head; see `kerasbert.kinds`.
CLASSES = {
    "marian": {None: TransformerSeq2SeqBackbone, "seq2seq_lm": TransformerSeq2SeqLM},
    "transformer_xl": {None: TransformerXLBackbone, "causal_lm": TransformerXLLM},
    "xlnet": {
        None: XLNetBackbone,
        "text_classifier": XLNetTextClassifier,
        "question_answering": XLNetQuestionAnswering,
        "pretrainer": XLNetPretrainer,
    },
}

__all__ = [
    "ElmoBackbone",
    "ElmoEmbedder",
    "ElmoPretrainer",
    "TransformerSeq2SeqBackbone",
    "TransformerSeq2SeqLM",
    "TransformerSeq2SeqLMPreprocessor",
    "TransformerXLBackbone",
    "TransformerXLLM",
    "XLNetBackbone",
    "XLNetPretrainer",
    "XLNetQuestionAnswering",
    "XLNetTextClassifier",
    "character_ids",
    "word_vocabulary",
]

# Deprecated alias, removed in the next version; see the CHANGELOG.
if not TYPE_CHECKING:  # Type checkers would otherwise accept any name.
    __getattr__ = deprecated("kerasbert.lineage", {"MarianTokenizer": "tokenizers"})

"""Models related to BERT that need an architecture of their own: ELMo, XLNet and others."""

from typing import TYPE_CHECKING

from kerasbert._lazy import deprecated
from kerasbert.lineage.elmo import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.elmo_pretrainer import ElmoPretrainer, word_vocabulary
from kerasbert.lineage.seq2seq import TransformerSeq2SeqBackbone, TransformerSeq2SeqLM
from kerasbert.lineage.transformer_xl import TransformerXLBackbone, TransformerXLLM
from kerasbert.lineage.xlnet import XLNetBackbone
from kerasbert.lineage.xlnet_tasks import (
    XLNetPretrainer,
    XLNetQuestionAnswering,
    XLNetTextClassifier,
)
from kerasbert.preprocessors.elmo import character_ids
from kerasbert.preprocessors.seq2seq import TransformerSeq2SeqLMPreprocessor

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

# An alias until the next version; see the CHANGELOG.
if not TYPE_CHECKING:  # Type checkers would otherwise accept any name.
    __getattr__ = deprecated("kerasbert.lineage", {"MarianTokenizer": "tokenizers"})

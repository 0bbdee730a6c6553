"""Models taught beside BERT that are no setting of its encoder."""

from kerasbert.lineage.elmo import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.elmo_pretrainer import ElmoPretrainer, word_vocabulary
from kerasbert.lineage.transformer_xl import TransformerXLBackbone, TransformerXLLM
from kerasbert.lineage.xlnet import XLNetBackbone
from kerasbert.lineage.xlnet_tasks import (
    XLNetPretrainer,
    XLNetQuestionAnswering,
    XLNetTextClassifier,
)
from kerasbert.preprocessors.elmo import character_ids

# The classes by the family that their checkpoints name, and by the kind of head; see `kinds`.
CLASSES = {
    "transformer_xl": {None: TransformerXLBackbone},
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
    "TransformerXLBackbone",
    "TransformerXLLM",
    "XLNetBackbone",
    "XLNetPretrainer",
    "XLNetQuestionAnswering",
    "XLNetTextClassifier",
    "character_ids",
    "word_vocabulary",
]

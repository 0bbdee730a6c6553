"""Models taught beside BERT that are no setting of its encoder."""

from kerasbert.lineage.elmo import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.seq2seq import TransformerSeq2SeqBackbone, TransformerSeq2SeqLM
from kerasbert.preprocessors.seq2seq import TransformerSeq2SeqLMPreprocessor
from kerasbert.tokenizers.marian import MarianTokenizer

# As in `kerasbert.models`, for KerasHub's loader.
for _cls in (TransformerSeq2SeqLMPreprocessor, MarianTokenizer):
    _cls.backbone_cls = TransformerSeq2SeqBackbone

__all__ = [
    "ElmoBackbone",
    "ElmoEmbedder",
    "MarianTokenizer",
    "TransformerSeq2SeqBackbone",
    "TransformerSeq2SeqLM",
    "TransformerSeq2SeqLMPreprocessor",
]

"""Models taught beside BERT that are no setting of its encoder."""

from kerasbert.lineage.elmo import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.transformer_xl import TransformerXLBackbone, TransformerXLLM
from kerasbert.lineage.xlnet import XLNetBackbone

# The classes by the family that their checkpoints name, and by the kind of head; see `kinds`.
CLASSES = {
    "transformer_xl": {None: TransformerXLBackbone},
    "xlnet": {None: XLNetBackbone},
}

__all__ = [
    "ElmoBackbone",
    "ElmoEmbedder",
    "TransformerXLBackbone",
    "TransformerXLLM",
    "XLNetBackbone",
]

"""Models taught beside BERT that are no setting of its encoder."""

from kerasbert.lineage.elmo import ElmoBackbone, ElmoEmbedder

__all__ = ["ElmoBackbone", "ElmoEmbedder"]

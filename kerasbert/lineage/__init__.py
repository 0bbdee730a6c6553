"""Models taught beside BERT that are no setting of its encoder."""

from kerasbert.lineage.elmo import ElmoBackbone, ElmoEmbedder
from kerasbert.lineage.elmo_pretrainer import ElmoPretrainer, word_vocabulary
from kerasbert.preprocessors.elmo import character_ids

__all__ = ["ElmoBackbone", "ElmoEmbedder", "ElmoPretrainer", "character_ids", "word_vocabulary"]

"""What makes batches of texts: of the encoder, and of each kind of head."""

from kerasbert.kinds import classes
from kerasbert.preprocessors.packing import BertPreprocessor

_OF_KINDS = {cls.__name__: cls for cls in classes("preprocessors").values()}
globals().update(_OF_KINDS)

__all__ = ["BertPreprocessor", *_OF_KINDS]

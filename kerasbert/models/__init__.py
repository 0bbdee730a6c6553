"""The encoder and the task models, with their preprocessors and tokenizers."""

from kerasbert import preprocessors, tokenizers
from kerasbert.from_preset import FromPreset
from kerasbert.kinds import classes
from kerasbert.loading import names
from kerasbert.models.backbone import BertBackbone

_KNOWN = {name: getattr(preprocessors, name) for name in preprocessors.__all__}
_KNOWN |= {cls.__name__: cls for cls in (*tokenizers.CLASSES, *classes("models").values())}
globals().update(_KNOWN)

FromPreset._open_preset = staticmethod(names.open_preset)
FromPreset._presets_of = staticmethod(names.presets_of)
# KerasHub's loader finds the tokenizer and the preprocessor of a preset by its backbone.
for _cls in (preprocessors.BertPreprocessor, *tokenizers.CLASSES):
    _cls.backbone_cls = BertBackbone

__all__ = ["BertBackbone", *_KNOWN]

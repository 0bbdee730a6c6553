"""BERT in Keras 3: pretraining, fine-tuning, every checkpoint of the family, and serving."""

from kerasbert import layers, models, tokenizers
from kerasbert.export.serving import export_serving
from kerasbert.presets import builtin_presets

__version__ = "0.1.0"

__all__ = ["builtin_presets", "export_serving", "layers", "models", "tokenizers"]
